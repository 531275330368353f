//! Counts the claims that this isolate refuses without core, and reports the counts to a core: at most one report a
//! second, in the background. No response waits for a report.
//!
//! A report that no core has acknowledged is sent again with the same number, and every core counts a number only once.
//! If the isolate stops, its unreported counts are lost.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::refusals::RefusalCounts;
use claimgate_shared::{Code, Timestamp};
use worker::{Context, Delay, Env};

use crate::background;
use crate::campaign_cache::store;
use crate::clock::{self, age_ms};
use crate::config::Config;
use crate::core_client::CoreClient;
use crate::core_client::circuit_breaker::CallKind;
use crate::core_client::request::CoreRequest;
use crate::request_id;

/// Core's path for reports.
const PATH: &str = "/internal/v1/refusals";
/// Maximum number of counts in memory.
const ENTRIES_MAX: usize = 256;
/// Interval between two reports.
const PERIOD: Duration = Duration::from_secs(1);
/// Time limit for starting further reports in one background task. Cloudflare ends background work 30 s
/// after the response; a turn takes at most 3 s.
const TASK_MS_MAX: i64 = 20_000;
/// Age of a turn at which its background task counts as aborted: longer than a turn.
const TURN_MS_MAX: i64 = 5_000;

thread_local! {
    static REPORTER: RefCell<Reporter> = const { RefCell::new(Reporter::new()) };
}

/// Counts a claim on `campaign`, an id as the client sent it, that was refused with `code`.
pub fn count(campaign: &str, code: Code) {
    let Ok(now) = clock::now() else { return };
    let is_known = || campaign.parse().is_ok_and(|id| store::is_known(&id));
    REPORTER.with_borrow_mut(|reporter| reporter.counts.count(campaign, is_known, code, now));
}

/// Starts the background task that reports, if there are counts and no task is running.
pub fn report_in_background(env: &Env, context: &Context, config: &Rc<Config>) {
    if REPORTER.with_borrow(Reporter::is_idle) {
        return;
    }
    let Ok(now) = clock::now() else { return };
    if REPORTER.with_borrow_mut(|reporter| reporter.begin(now)) {
        let (env, config) = (env.clone(), Rc::clone(config));
        background::run(context, async move {
            // Without a clock the task stays marked as running until it counts as aborted.
            let _ = send_reports(&CoreClient::new(&env, &config), now).await;
        });
    }
}

/// Sends a report each second until all counts are acknowledged, for at most [`TASK_MS_MAX`].
async fn send_reports(core: &CoreClient<'_>, began_at: Timestamp) -> Option<()> {
    loop {
        Delay::from(PERIOD).await;
        let now = clock::now().ok()?;
        let is_last = age_ms(began_at, now) >= TASK_MS_MAX;
        let report = REPORTER.with_borrow_mut(|reporter| reporter.next_report(now, is_last))?;
        let request_id = request_id::next();
        let request = CoreRequest::new(CallKind::MayNeedSql, PATH, &request_id);
        let response = core.send(CoreRequest { body: Some(&report), ..request }).await;
        // A report that core cannot read would block all later reports.
        let is_done = response.is_ok_and(|response| {
            let summary = response.summary();
            summary.problem.is_none() || summary.is_problem(Code::InvalidRequest)
        });
        if is_done {
            REPORTER.with_borrow_mut(|reporter| reporter.unacknowledged = None);
        }
    }
}

/// An isolate's counts and its reports.
#[derive(Debug)]
struct Reporter {
    counts: RefusalCounts,
    /// Identifies the isolate in its reports; random.
    id: Option<String>,
    /// The number of the last report.
    number: u64,
    /// The report that no core has acknowledged yet.
    unacknowledged: Option<String>,
    /// When the running background task began its turn; `None` if none runs.
    turn_began_at: Option<Timestamp>,
}

impl Reporter {
    const fn new() -> Self {
        let counts = RefusalCounts::new(ENTRIES_MAX);
        Self { counts, id: None, number: 0, unacknowledged: None, turn_began_at: None }
    }

    /// Returns whether nothing is to be reported.
    fn is_idle(&self) -> bool {
        self.counts.is_empty() && self.unacknowledged.is_none()
    }

    /// Marks a background task as running from `now` on; returns false if another one is.
    fn begin(&mut self, now: Timestamp) -> bool {
        if self.turn_began_at.is_some_and(|began_at| age_ms(began_at, now) < TURN_MS_MAX) {
            return false;
        }
        self.turn_began_at = Some(now);
        true
    }

    /// Returns the report to send at `now`. Returns `None` and marks the task as ended if there is nothing to
    /// report or the task `is_last`: a later request begins another one.
    fn next_report(&mut self, now: Timestamp, is_last: bool) -> Option<String> {
        self.turn_began_at = None;
        if is_last {
            return None;
        }
        if self.unacknowledged.is_none() {
            let id = match &self.id {
                Some(id) => id,
                None => self.id.insert(random_id()?),
            };
            self.unacknowledged = self.counts.take_report(id, self.number + 1);
            self.number += u64::from(self.unacknowledged.is_some());
        }
        self.turn_began_at = self.unacknowledged.is_some().then_some(now);
        self.unacknowledged.clone()
    }
}

fn random_id() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000 + ms).unwrap()
    }

    fn refuse(reporter: &mut Reporter, now_ms: i64) {
        reporter.counts.count("demo", || true, Code::SoldOut, at(now_ms));
    }

    #[test]
    fn a_report_keeps_its_number_until_it_is_acknowledged() {
        let mut reporter = Reporter::new();
        assert!(reporter.is_idle());
        refuse(&mut reporter, 0);
        assert!(!reporter.is_idle() && reporter.begin(at(0)));
        let first = reporter.next_report(at(1_000), false).unwrap();
        refuse(&mut reporter, 1_500);
        assert_eq!(reporter.next_report(at(2_000), false).as_ref(), Some(&first), "sent again unchanged");
        reporter.unacknowledged = None;
        let second = reporter.next_report(at(3_000), false).unwrap();
        assert!(first.contains(r#""number":1,"#) && second.contains(r#""number":2,"#), "{first} {second}");
        reporter.unacknowledged = None;
        assert_eq!(reporter.next_report(at(4_000), false), None);
        assert!(reporter.is_idle() && reporter.begin(at(4_000)), "the task has ended");
    }

    #[test]
    fn one_task_runs_at_a_time_and_an_aborted_task_is_replaced() {
        let mut reporter = Reporter::new();
        refuse(&mut reporter, 0);
        assert!(reporter.begin(at(0)));
        assert!(!reporter.begin(at(4_999)));
        assert!(reporter.begin(at(5_000)), "aborted");
        assert!(reporter.next_report(at(6_000), false).is_some());
        assert!(!reporter.begin(at(10_999)), "its turn began at 6,000");
        assert_eq!(reporter.next_report(at(9_000), true), None);
        assert!(!reporter.is_idle() && reporter.begin(at(9_001)), "the next request's task continues");
    }
}
