//! A storm of claims while the log cannot be written: core behaves as with a log file.

use std::io::pipe;
use std::time::Duration;

use support::checker::{Checker, Expect, Limits};
use support::client::client;
use support::process::{Signal, runs};
use support::storm::{ClaimAttempt, ClaimOutcome, claim_attempts};
use support::topology::OWN;
use support::wait::holds;
use support::{CoreOptions, SOON, eventually, only_on, promised};

use crate::fixture::Fixture;
use crate::logs::{full_pipe, until_lines_are_lost};
use crate::tally::Row;

/// Number of claims unless `CALLS` is set; `make soak` sets 20,000.
const CALLS: usize = 2_000;
/// Number of concurrent calls in flight.
const CONCURRENCY: usize = 64;
/// Number of claims of new users while the campaign is paused.
const LATE: usize = 20;
/// Core must end this long after SIGTERM (docs/operations.md).
const STOPPED_MAX: Duration = Duration::from_secs(15);

/// A storm on one core with its own Redis, which is killed amid the claims.
struct Storm {
    fixture: Fixture,
    checker: Checker,
    row: Row,
    attempts: Vec<ClaimAttempt>,
    /// The campaign's total: three of four attempts can be granted.
    total: usize,
}

impl Storm {
    async fn begin(row: Row, options: CoreOptions) -> Self {
        let calls = std::env::var("CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(CALLS);
        let total = calls * 3 / 4;
        let limits = Limits { total: Some(total as u64), ..Limits::default() };
        // Each call is many lines: more than the queue of a log takes.
        let fixture = Fixture::managed_with(options.with("RUST_LOG", "trace")).await;
        let checker = Checker::create(&fixture.core, "demo", limits).await;
        Self { fixture, checker, row, attempts: claim_attempts(calls, 1), total }
    }

    async fn claim(&self, attempts: &[ClaimAttempt]) {
        let url = self.fixture.core.url("/internal/v1/claims");
        self.checker.storm(&client(), || url.clone(), attempts, CONCURRENCY).await;
        self.checker.settle(&[&self.fixture.core], &self.fixture.redis().await).await;
    }

    /// Half of the attempts are fewer than the total, so that a claim of a paused campaign could be granted.
    async fn play(&self) {
        let core = &self.fixture.core;
        let (first, second) = self.attempts.split_at(self.attempts.len() / 2);
        self.row.kill();
        let redis = core.redis_pid().await;
        self.checker.kill_at(first.len() / 2, redis);
        self.claim(first).await;
        self.checker.assert_killed();
        // The kernel may take a moment to end a killed process.
        eventually(SOON, || async { holds(!runs(redis), || format!("Redis {redis} still runs")) }).await;
        assert_ne!(core.redis_pid().await, redis, "Redis was not killed");
        assert_eq!(self.checker.acknowledged().len(), first.len());
        core.set_admin_state("demo", "pause").await.expect(200);
        for late in 0..LATE {
            let outcome = self.checker.decided(SOON, core, &format!("late{late}"), "k").await;
            let is_refused = matches!(&outcome, ClaimOutcome::Denied { code, .. } if code == "paused");
            assert!(is_refused, "a claim of the paused campaign: {outcome:?}");
        }
        core.set_admin_state("demo", "resume").await.expect(200);
        self.claim(second).await;
        assert_eq!(self.checker.acknowledged().len(), self.total);
    }

    async fn end(mut self) {
        let core = [&self.fixture.core];
        let verdict = self
            .checker
            .judge(&core, &self.fixture.sql, &self.fixture.redis().await, Expect::default())
            .await;
        let core = &mut self.fixture.core;
        core.process().signal(Signal::TERM);
        let status = core.process().wait(promised(STOPPED_MAX)).await;
        assert!(status.success(), "core ended with {status} on SIGTERM");
        // The checker has claimed one unit beyond the total, which it has raised.
        assert_eq!(self.fixture.sql.claims("demo").await.len(), self.total + 1);
        self.row.survived(self.checker.call_count(), verdict);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_file_takes_the_lines_of_a_storm() {
    only_on!(OWN, "core's own Redis is killed");
    let storm = Storm::begin(Row::begin("a storm with a log file"), CoreOptions::default()).await;
    storm.play().await;
    let log = storm.fixture.core.log();
    assert!(log.contains("paused"), "the pause is not in the log of {} bytes", log.len());
    storm.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_standard_streams_change_nothing() {
    only_on!(OWN, "core's own Redis is killed");
    let row = Row::begin("a storm with standard input, output and error closed");
    row.fault();
    let storm = Storm::begin(row, CoreOptions::default().without_standard_streams()).await;
    storm.play().await;
    assert_eq!(storm.fixture.core.log(), "", "standard error was closed");
    storm.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_log_that_goes_away_stops_nothing() {
    only_on!(OWN, "core's own Redis is killed");
    let row = Row::begin("a storm without a reader of the log");
    row.fault();
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let storm = Storm::begin(row, CoreOptions::default().log_to(writer)).await;
    storm.play().await;
    until_lines_are_lost(&storm.fixture.core).await;
    storm.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_log_that_stands_still_stops_nothing() {
    only_on!(OWN, "core's own Redis is killed");
    let row = Row::begin("a storm with a full pipe as the log");
    row.fault();
    let (_reader, writer) = full_pipe(true);
    let storm = Storm::begin(row, CoreOptions::default().log_to(writer)).await;
    storm.play().await;
    until_lines_are_lost(&storm.fixture.core).await;
    storm.end().await;
}
