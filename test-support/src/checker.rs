//! The checker of all fault tests. It records the callers' responses and, once the system is idle, compares
//! them with core, SQL and Redis from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::core_client::API_TOKEN;
use crate::core_client::campaign;
use crate::inspect::{key, user_counters};
use crate::process::{Signal, signal_pid};
use crate::sql::{Sql, SqlClaim};
use crate::storm::{ClaimAttempt, ClaimOutcome};
use crate::time_limits::SOON;
use crate::wait::{eventually, holds, until_status};
use crate::{Core, RedisView, claim_body};

/// Number of concurrent calls of the checker.
const CONCURRENT_CALLS: usize = 64;
/// Maximum age of the cached state on which a core bases denials.
const REFUSAL_AGE_MAX: Duration = Duration::from_millis(100);

/// The highest value that each limit of the campaign ever had; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// For all users together.
    pub total: Option<u64>,
    /// For each user.
    pub per_user: Option<u64>,
    /// For each user and day.
    pub per_user_per_day: Option<u64>,
}

/// Guarantee for acknowledged claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promise {
    /// Every acknowledged claim exists as it was acknowledged.
    #[default]
    All,
    /// Only claims that had reached SQL exist: Redis has lost the other claims.
    Persisted,
}

/// Expectations in addition to the invariants.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expect<'a> {
    /// The guarantee for acknowledged claims.
    pub promise: Promise,
    /// Names of the differences that the reconciliation must report, and no others.
    pub differences: &'a [&'a str],
}

/// The result of the checks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Verdict {
    /// Claims that were acknowledged to callers.
    pub acknowledged: usize,
    /// Claims denied by a rule.
    pub denied: usize,
    /// Claims whose outcome was unknown until they were resent.
    pub unknown: usize,
    /// Claims acknowledged and then lost; 0 unless losses are expected.
    pub lost: usize,
    /// Claims that SQL stores as revoked.
    pub revoked: usize,
}

/// Records the responses that callers of one campaign received.
#[derive(Debug)]
pub struct Checker {
    campaign: String,
    limits: Mutex<Limits>,
    outcomes: Mutex<BTreeMap<ClaimAttempt, ClaimOutcome>>,
    /// Ids of claims that were returned or have expired.
    ended: Mutex<BTreeSet<String>>,
    calls: AtomicUsize,
    unknown: AtomicUsize,
    /// Number of responses that acknowledged a claim.
    granted: AtomicUsize,
    /// After this many acknowledged claims, kill the process with this pid.
    victim: Mutex<Option<(usize, u32)>>,
}

impl Checker {
    /// Creates a checker for the campaign `id`, which the test creates itself.
    pub fn new(id: &str, limits: Limits) -> Self {
        Self {
            campaign: id.to_owned(),
            limits: Mutex::new(limits),
            outcomes: Mutex::default(),
            ended: Mutex::default(),
            calls: AtomicUsize::new(0),
            unknown: AtomicUsize::new(0),
            granted: AtomicUsize::new(0),
            victim: Mutex::default(),
        }
    }

    /// Creates the campaign `id`, open and with `limits`, and its checker.
    pub async fn create(core: &Core, id: &str, limits: Limits) -> Self {
        core.create_with(campaign(id, limits.json())).await;
        Self::new(id, limits)
    }

    /// Returns the campaign's id.
    pub fn campaign(&self) -> &str {
        &self.campaign
    }

    /// Returns the number of calls so far.
    pub fn call_count(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the latest outcome of each claim attempt.
    pub fn outcomes(&self) -> BTreeMap<ClaimAttempt, ClaimOutcome> {
        self.outcomes.lock().expect("the outcomes").clone()
    }

    /// Returns those of `claim_attempts` whose outcome is unknown.
    pub fn undecided<'a>(&self, claim_attempts: &'a [ClaimAttempt]) -> Vec<&'a ClaimAttempt> {
        let outcomes = self.outcomes();
        let is_unknown = |attempt: &&ClaimAttempt| outcomes.get(*attempt) == Some(&ClaimOutcome::Unknown);
        claim_attempts.iter().filter(is_unknown).collect()
    }

    /// Returns the ids of all claims acknowledged so far.
    pub fn acknowledged(&self) -> Vec<String> {
        let claimed = |outcome| match outcome {
            ClaimOutcome::Claimed { id, .. } => Some(id),
            _ => None,
        };
        self.outcomes().into_values().filter_map(claimed).collect()
    }

    /// Records that a claim was returned or has expired: its row must exist but no longer counts.
    pub fn ended(&self, claim_id: &str) {
        self.ended.lock().expect("what has ended").insert(claim_id.to_owned());
    }

    /// Claims one unit for `user` with `key`, in one request.
    pub async fn claim(&self, core: &Core, user: &str, key: &str) -> ClaimOutcome {
        let attempt = ClaimAttempt { user: user.to_owned(), key: key.to_owned(), units: 1 };
        self.send(core.client(), &core.url("/internal/v1/claims"), &attempt).await
    }

    /// Claims one unit with the key `k` for each of the users `from..upto`, one after another. All claims
    /// must be granted; each is retried as long as the contract permits.
    pub async fn win(&self, core: &Core, users: std::ops::Range<usize>) {
        for user in users {
            let attempt = ClaimAttempt { user: format!("u{user}"), key: "k".to_owned(), units: 1 };
            let outcome = self.send_to(core.client(), &core.url("/internal/v1/claims"), &attempt).await;
            assert!(matches!(outcome, ClaimOutcome::Claimed { .. }), "u{user}: {outcome:?}");
        }
    }

    /// Sends one claim attempt to `url` with one request, and records its outcome.
    pub async fn send(&self, client: &Client, url: &str, attempt: &ClaimAttempt) -> ClaimOutcome {
        self.send_to(&client.once(), url, attempt).await
    }

    async fn send_to(&self, client: &Client, url: &str, attempt: &ClaimAttempt) -> ClaimOutcome {
        let body = claim_body(&self.campaign, &attempt.user, &attempt.key, attempt.units);
        let request = client.request(Method::POST, url).bearer_auth(API_TOKEN).json(&body);
        let reply = client.send(request).await;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let outcome = reply.ok().and_then(|reply| ClaimOutcome::of(&reply)).unwrap_or(ClaimOutcome::Unknown);
        self.record(attempt, outcome.clone());
        outcome
    }

    /// Records the outcome of `attempt`.
    pub fn record(&self, attempt: &ClaimAttempt, outcome: ClaimOutcome) {
        match outcome {
            ClaimOutcome::Unknown => self.unknown.fetch_add(1, Ordering::Relaxed),
            ClaimOutcome::Claimed { .. } => {
                let before = self.granted.fetch_add(1, Ordering::Relaxed);
                self.kill_victim_of(before + 1);
                before
            }
            ClaimOutcome::Denied { .. } => 0,
        };
        let mut all = self.outcomes.lock().expect("the outcomes");
        // Once a claim is acknowledged, only another acknowledgement replaces its outcome.
        let known = matches!(all.get(attempt), Some(ClaimOutcome::Claimed { .. }));
        if !known || matches!(outcome, ClaimOutcome::Claimed { .. }) {
            all.insert(attempt.clone(), outcome);
        }
    }

    /// Sends all `claim_attempts`, at most `concurrency` concurrently, each to the URL that `url` returns at
    /// that moment.
    pub async fn storm(
        &self,
        client: &Client,
        url: impl Fn() -> String,
        claim_attempts: &[ClaimAttempt],
        concurrency: usize,
    ) {
        let url = &url;
        let calls = stream::iter(claim_attempts)
            .map(|attempt| async move { self.send(client, &url(), attempt).await });
        calls.buffer_unordered(concurrency).for_each(|_| async {}).await;
    }

    /// Kills `pid` with SIGKILL when [`Checker::record`] counts `count` acknowledged claims. No thread has to
    /// be scheduled for it, so the process answers no claim that is sent later.
    pub fn kill_at(&self, count: usize, pid: u32) {
        *self.victim.lock().expect("the victim") = Some((count, pid));
    }

    fn kill_victim_of(&self, granted: usize) {
        let mut victim = self.victim.lock().expect("the victim");
        if let Some((_, pid)) = victim.take_if(|(count, _)| *count <= granted) {
            signal_pid(pid, Signal::KILL);
        }
    }

    /// Checks that the process passed to [`Checker::kill_at`] was killed: enough claims were acknowledged.
    pub fn assert_killed(&self) {
        let victim = *self.victim.lock().expect("the victim");
        let granted = self.granted.load(Ordering::Relaxed);
        assert!(victim.is_none(), "{granted} claims were acknowledged, too few to kill {victim:?}");
    }

    /// Returns what is wrong in the responses themselves: limits that they exceed, and sequence numbers
    /// that two claims have. Where Redis may lose claims, some of these claims are no longer active.
    fn wrong_answers(&self) -> Vec<String> {
        let limits = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut total, mut of_user, mut of_sequence, mut wrong) =
            (0, BTreeMap::new(), BTreeMap::new(), vec![]);
        for (attempt, outcome) in outcomes.iter() {
            let ClaimOutcome::Claimed { id, sequence, .. } = outcome else { continue };
            if let Some(other) = of_sequence.insert(sequence, id).filter(|other| *other != id) {
                wrong.push(format!("{id} and {other} both have the sequence number {sequence}"));
            }
            if !ended.contains(id) {
                total += u64::from(attempt.units);
                *of_user.entry(&attempt.user).or_insert(0) += u64::from(attempt.units);
            }
        }
        if total > limits.total.unwrap_or(u64::MAX) {
            wrong.push(format!("{total} units were granted, more than {limits:?} allows"));
        }
        let of_users = of_user.into_iter().filter(|(_, units)| *units > limits.per_user.unwrap_or(u64::MAX));
        wrong.extend(of_users.map(|(user, units)| format!("{user} was granted {units} units, {limits:?}")));
        wrong
    }

    /// Waits until no core has work left, then checks everything. Panics with the first mismatch.
    pub async fn judge(&self, cores: &[&Core], sql: &Sql, redis: &RedisView, expect: Expect<'_>) -> Verdict {
        self.settle(cores, redis).await;
        self.within_limits(&active(&sql.claims(&self.campaign).await));
        self.claims_succeed(cores).await;
        self.until_quiet(cores, redis).await;
        let rows = sql.claims(&self.campaign).await;
        let active = active(&rows);
        self.within_limits(&active);
        self.check_redis_counters(&active, redis).await;
        let gaps = sequences_are_unique(&rows);
        let lost = self.count_missing(&rows, expect.promise);
        self.look_ups_agree(cores[0], &rows).await;
        for core in cores {
            self.reconciliation_agrees(core, &gaps, expect.differences).await;
        }
        let denied = self
            .outcomes()
            .into_values()
            .filter(|outcome| matches!(outcome, ClaimOutcome::Denied { .. }))
            .count();
        Verdict {
            acknowledged: self.acknowledged().len(),
            denied,
            unknown: self.unknown.load(Ordering::Relaxed),
            lost,
            revoked: rows.iter().filter(|row| row.status == "revoked").count(),
        }
    }

    /// Judges a core whose stores have lost nothing: sequence numbers must not have gaps either.
    pub async fn judge_without_loss(&self, core: &Core) {
        self.judge(&[core], &core.sql(), &core.redis().await, Expect::default()).await;
        let rows = core.sql().claims(&self.campaign).await;
        let sequences: Vec<_> = rows.iter().map(|row| row.sequence).collect();
        let expected: Vec<_> = (1..).take(rows.len()).collect();
        assert_eq!(sequences, expected, "sequence numbers repeat or have gaps");
    }

    /// Waits until all outcomes are known and no core has work left. SQL then has everything that was
    /// decided.
    pub async fn settle(&self, cores: &[&Core], redis: &RedisView) {
        self.resolve_unknown(cores[0]).await;
        self.until_quiet(cores, redis).await;
    }

    /// Resends every attempt with an unknown outcome, with the same key. A claim found this way counts as a
    /// first response.
    pub async fn resolve_unknown(&self, core: &Core) {
        let unknown = self.outcomes().into_iter().filter(|(_, outcome)| *outcome == ClaimOutcome::Unknown);
        let calls = stream::iter(unknown).map(|(attempt, _)| async move {
            let outcome = eventually(SOON, || async {
                let outcome = self.send(core.client(), &core.url("/internal/v1/claims"), &attempt).await;
                holds(outcome != ClaimOutcome::Unknown, || format!("{attempt:?} is still unknown"))
                    .map(|()| outcome)
            })
            .await;
            if let ClaimOutcome::Claimed { id, sequence, .. } = outcome {
                self.record(
                    &attempt,
                    ClaimOutcome::Claimed { id, sequence, replayed: false, remaining: None },
                );
            }
        });
        calls.buffer_unordered(CONCURRENT_CALLS).collect::<Vec<()>>().await;
    }

    /// Checks that a new user gets a claim on every core without intervention; if the campaign is sold out,
    /// after raising the total by one.
    async fn claims_succeed(&self, cores: &[&Core]) {
        for (at, core) in cores.iter().enumerate() {
            let user = format!("new-{at}-{}", self.call_count());
            let ClaimOutcome::Denied { code, remaining } = self.decided(SOON, core, &user, "k").await else {
                continue;
            };
            assert_eq!((code.as_str(), remaining), ("sold_out", Some(0)), "{user}");
            self.raise_total(cores[0]).await;
            // A core may deny claims based on a cached state of this age.
            tokio::time::sleep(REFUSAL_AGE_MAX).await;
            let outcome = self.decided(SOON, core, &user, "k").await;
            assert!(
                matches!(outcome, ClaimOutcome::Claimed { .. }),
                "{user} was {outcome:?} although one unit was left"
            );
        }
    }

    /// Claims one unit for `user` with `key`, and retries until there is a decision.
    pub async fn decided(&self, within: Duration, core: &Core, user: &str, key: &str) -> ClaimOutcome {
        eventually(within, || async {
            match self.claim(core, user, key).await {
                ClaimOutcome::Unknown => Err(format!("no decision for {user}\n{}", core.log())),
                outcome => Ok(outcome),
            }
        })
        .await
    }

    /// Claims one unit for `user` with `key`, and retries until the claim is granted; returns its id.
    pub async fn granted(&self, core: &Core, user: &str, key: &str) -> String {
        eventually(SOON, || async {
            match self.claim(core, user, key).await {
                ClaimOutcome::Claimed { id, .. } => Ok(id),
                other => Err(format!("{user} of {}: {other:?}", self.campaign)),
            }
        })
        .await
    }

    /// Raises the total by one.
    async fn raise_total(&self, core: &Core) {
        let total = {
            let mut limits = self.limits.lock().expect("limits");
            let total = limits.total.as_mut().expect("sold out without a total");
            *total += 1;
            *total
        };
        until_status(SOON, &[200], async || {
            core.patch(&self.campaign, json!({"limits": {"total": total}})).await
        })
        .await;
    }

    async fn until_quiet(&self, cores: &[&Core], redis: &RedisView) {
        for core in cores {
            eventually(SOON, || async {
                // A connection that a frozen core has dropped is not a response.
                let url = core.url(&format!("/internal/v1/campaigns/{}", self.campaign));
                match core.client().try_get(&url, API_TOKEN).await {
                    Ok(view) if view.status == 200 => Ok(()),
                    Ok(view) => Err(format!("{}\n{}", view.text(), core.log())),
                    Err(error) => Err(format!("{error:#}")),
                }
            })
            .await;
        }
        eventually(SOON, || async {
            let entries = redis.outbox_entries(&self.campaign).await;
            // `None` while the campaign is being loaded into Redis.
            let backlog = redis.state(&self.campaign).await.map(|state| state["backlog"]);
            let logs = || cores.iter().map(|core| core.log()).collect::<String>();
            holds((entries, backlog) == (1, Some(0)), || {
                format!("{entries} entries, {backlog:?} events in the outbox\n{}", logs())
            })
        })
        .await;
    }

    fn within_limits(&self, active: &[&SqlClaim]) {
        let limits = *self.limits.lock().expect("limits");
        let granted: u64 = active.iter().map(|row| row.quantity).sum();
        assert!(
            granted <= limits.total.unwrap_or(u64::MAX),
            "SQL has {granted} units granted, more than {limits:?} allows"
        );
        let (mut of_user, mut of_day) = (BTreeMap::new(), BTreeMap::new());
        for row in active {
            *of_user.entry(&row.user_id).or_insert(0) += row.quantity;
            *of_day.entry((&row.user_id, row.day)).or_insert(0) += row.quantity;
        }
        for (user, units) in of_user {
            assert!(units <= limits.per_user.unwrap_or(u64::MAX), "{user} has {units} in SQL, {limits:?}");
        }
        for (day, units) in of_day {
            assert!(units <= limits.per_user_per_day.unwrap_or(u64::MAX), "{day:?} has {units}, {limits:?}");
        }
    }

    /// Checks that Redis' counters, in total and per user, match the sums of SQL's rows.
    async fn check_redis_counters(&self, active: &[&SqlClaim], redis: &RedisView) {
        let granted: u64 = active.iter().map(|row| row.quantity).sum();
        let taken = redis.counter(&self.campaign, "taken").await;
        assert_eq!(taken, granted, "Redis' total must match SQL's");
        let records: BTreeMap<String, Vec<u8>> =
            redis.query(&["HGETALL", &key(&self.campaign, "users")]).await;
        let mut in_sql: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
        for row in active {
            *in_sql.entry(&row.user_id).or_default().entry(row.day).or_default() += row.quantity;
        }
        let mut counted = 0;
        for (user, record) in records.iter().filter(|(user, _)| *user != ".") {
            let (day, today, ever) = user_counters(record);
            let days = in_sql.remove(user.as_str()).unwrap_or_default();
            let of_sql = (days.get(&day).copied().unwrap_or(0), days.values().sum());
            assert_eq!((today, ever), of_sql, "units of {user} today and in total, in Redis and in SQL");
            counted += ever;
        }
        assert_eq!(counted, granted, "the sum over Redis' users must match SQL's total");
        assert!(in_sql.is_empty(), "Redis has no record of {in_sql:?}");
    }

    /// Returns the number of acknowledged claims that are missing; panics if none may be missing.
    fn count_missing(&self, rows: &[SqlClaim], promise: Promise) -> usize {
        let by_id: BTreeMap<_, _> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        assert_eq!(by_id.len(), rows.len(), "an id is in SQL twice");
        let ended = self.ended.lock().expect("what has ended").clone();
        let (mut ids, mut lost) = (BTreeSet::new(), 0);
        for (attempt, outcome) in self.outcomes() {
            let ClaimOutcome::Claimed { id, sequence, .. } = outcome else { continue };
            assert!(ids.insert(id.clone()), "two keys have the claim {id}");
            let row = by_id.get(id.as_str());
            let there = row.is_some_and(|row| {
                (row.sequence, row.quantity) == (sequence, u64::from(attempt.units))
                    && (row.is_active() != ended.contains(&id))
            });
            lost += usize::from(!there);
            assert!(
                there || promise == Promise::Persisted,
                "{attempt:?} was acknowledged with sequence {sequence}, SQL has {row:?}"
            );
        }
        for row in rows.iter().filter(|row| row.is_active()) {
            assert!(
                ids.contains(&row.id),
                "SQL has {row:?}, which no caller received although all outcomes are known"
            );
        }
        lost
    }

    /// Checks that the API returns each claim as SQL has it.
    async fn look_ups_agree(&self, core: &Core, rows: &[SqlClaim]) {
        let looked_up = stream::iter(rows).map(|row| async move {
            // A database that has just restarted may still refuse a connection or two.
            let reply = eventually(SOON, || async {
                let reply = core.look_up(&row.id).await;
                if reply.status == 503 { Err(reply.text()) } else { Ok(reply) }
            });
            let claim = reply.await.expect(200).json()["claim"].clone();
            let report = (claim["status"].as_str(), claim["sequence"].as_u64(), claim["quantity"].as_u64());
            assert_eq!(
                report,
                (Some(row.status.as_str()), Some(row.sequence), Some(row.quantity)),
                "{claim}"
            );
            assert_eq!(claim["persisted"], true, "{claim}");
        });
        looked_up.buffer_unordered(CONCURRENT_CALLS).collect::<Vec<()>>().await;
    }

    async fn reconciliation_agrees(&self, core: &Core, gaps: &[(u64, u64)], differences: &[&str]) {
        let path = format!("/admin/v1/campaigns/{}/reconciliation", self.campaign);
        let report = core.admin_get(&path).await.expect(200).json();
        let list = report["differences"].as_array().expect("differences");
        let names: Vec<_> = list.iter().filter_map(|difference| difference["name"].as_str()).collect();
        assert_eq!(names, differences, "{report}");
        assert_eq!(report["agrees"], differences.is_empty(), "{report}");
        let ranges: Vec<_> = gaps.iter().map(|(from, to)| json!({"from": from, "to": to})).collect();
        assert_eq!(report["sql"]["sequence_gaps"], Value::from(ranges), "{report}");
    }
}

impl Drop for Checker {
    /// A test that ends early never calls [`Checker::judge`]: prints whether the responses so far kept the
    /// guarantees, so that a wrong response is not taken for a slow machine.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut wrong = self.wrong_answers();
            if wrong.is_empty() {
                wrong.push(
                    "they keep the limits in total and per user, and no sequence number repeats".to_owned(),
                );
            }
            let verdict = wrong.join("\n");
            let (calls, campaign) = (self.call_count(), &self.campaign);
            eprintln!("{campaign}: {calls} answers until the test ended early: {verdict}");
        }
    }
}

impl Limits {
    /// Returns the limits as the API accepts them.
    pub fn json(&self) -> Value {
        json!({"total": self.total, "per_user": self.per_user, "per_user_per_day": self.per_user_per_day})
    }
}

fn active(rows: &[SqlClaim]) -> Vec<&SqlClaim> {
    rows.iter().filter(|row| row.is_active()).collect()
}

/// Checks that no two claims share a sequence number; returns the ranges of unused numbers.
fn sequences_are_unique(rows: &[SqlClaim]) -> Vec<(u64, u64)> {
    let mut taken = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status != "revoked") {
        let other = taken.insert(row.sequence, row);
        assert!(other.is_none(), "a sequence number occurs twice: {row:?} and {other:?}");
    }
    let all: BTreeSet<_> = rows.iter().map(|row| row.sequence).collect();
    let (mut gaps, mut last) = (Vec::new(), 0);
    for sequence in all {
        if sequence > last + 1 {
            gaps.push((last + 1, sequence - 1));
        }
        last = sequence;
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_are_found_without_the_stores() {
        let checker =
            Checker::new("demo", Limits { total: Some(2), per_user: Some(1), per_user_per_day: None });
        let claimed = |id: &str, sequence| ClaimOutcome::Claimed {
            id: id.to_owned(),
            sequence,
            replayed: false,
            remaining: None,
        };
        let attempt =
            |user: &str, key: &str| ClaimAttempt { user: user.to_owned(), key: key.to_owned(), units: 1 };
        checker.record(&attempt("a", "k"), claimed("1", 1));
        checker.record(&attempt("b", "k"), claimed("2", 2));
        assert!(checker.wrong_answers().is_empty());
        checker.record(&attempt("b", "l"), claimed("3", 2));
        assert_eq!(checker.wrong_answers().len(), 3);
        checker.ended("3");
        assert_eq!(checker.wrong_answers(), ["3 and 2 both have the sequence number 2"]);
    }
}
