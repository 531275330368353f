//! What core counts, for Prometheus. Labels are results, parts of the system and the busiest campaigns; never a user, never a
//! claim.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram, with_local_recorder,
};
pub use metrics_exporter_prometheus::PrometheusHandle;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

const DECISIONS: &str = "claimgate_decisions_total";
const DECISION_SECONDS: &str = "claimgate_decision_seconds";
const FROM_CACHE: &str = "claimgate_sold_out_cached_total";
const BATCH_CLAIMS: &str = "claimgate_batch_claims";
const CAMPAIGN_DECISIONS: &str = "claimgate_campaign_decisions_total";
const OUTBOX_EVENTS: &str = "claimgate_outbox_events";
const OUTBOX_LAG_SECONDS: &str = "claimgate_outbox_lag_seconds";
const RELAYED: &str = "claimgate_relayed_events_total";
const DEAD_LETTERS: &str = "claimgate_dead_letters_total";
const DELETED: &str = "claimgate_deleted_events_total";
const LOST: &str = "claimgate_lost_events_total";
const UP: &str = "claimgate_up";
const NODE_UP: &str = "claimgate_redis_node_up";
const NODE_PING_SECONDS: &str = "claimgate_redis_ping_seconds";
const NODE_MEMORY_BYTES: &str = "claimgate_redis_memory_bytes";
const BARRIER_AGE_SECONDS: &str = "claimgate_barrier_age_seconds";
const REFUSED: &str = "claimgate_primaries_refused";
const LOADS: &str = "claimgate_loads_total";
const ADOPTIONS: &str = "claimgate_adoptions_total";
const WEBHOOK_DELIVERIES: &str = "claimgate_webhook_deliveries_total";
const WEBHOOKS_DISABLED: &str = "claimgate_webhooks_disabled";
const WEBHOOK_EVENTS: &str = "claimgate_webhook_events";
const REPLICAS_MISSING: &str = "claimgate_replicas_missing";
const LEASE_LOSSES: &str = "claimgate_lease_losses_total";
const SUSPENSIONS: &str = "claimgate_suspensions_total";
const UNAVAILABLE: &str = "claimgate_unavailable_total";
const BUILD_INFO: &str = "claimgate_build_info";
const REDIS_STARTS: &str = "claimgate_redis_starts_total";

/// Why answers are 503: the problem's code, and what is behind it.
const UNAVAILABLE_REASONS: [(&str, &str); 16] = [
    ("campaign_not_ready", "not_ready"),
    ("campaign_not_ready", "loading"),
    ("campaign_not_ready", "not_loaded"),
    ("overloaded", "requests"),
    ("overloaded", "queue_full"),
    ("overloaded", "outbox_full"),
    ("overloaded", "sql_behind"),
    ("overloaded", "out_of_memory"),
    ("unavailable", "redis"),
    ("unavailable", "not_replicated"),
    ("unavailable", "sql"),
    ("unavailable", "timeout"),
    ("unavailable", "starting"),
    ("unavailable", "stopping"),
    ("unavailable", "readyz"),
    ("unavailable", "other"),
];

const LATENCY_BUCKETS_S: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Installs the recorder; the handle renders what `/metrics` answers.
///
/// # Errors
/// When this process has a recorder already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(DECISION_SECONDS.to_owned()), LATENCY_BUCKETS_S)?
        .set_buckets_for_metric(Matcher::Full(BATCH_CLAIMS.to_owned()), BATCH_BUCKETS)?
        .install_recorder()?;
    describe();
    begin_at_zero();
    Ok(handle)
}

fn describe() {
    describe_counter!(DECISIONS, "Claims by result: granted, held, replayed, a denial's code, or undecided");
    describe_histogram!(
        DECISION_SECONDS,
        Unit::Seconds,
        "From a claim's arrival in its queue to its decision"
    );
    describe_counter!(FROM_CACHE, "Of the claims refused as sold out: those for which Redis was not asked");
    describe_histogram!(BATCH_CLAIMS, Unit::Count, "Claims decided by one call to Redis");
    describe_counter!(
        WEBHOOK_DELIVERIES,
        "Tries to deliver events to webhooks by outcome: delivered, failed, or parked after the last one"
    );
    describe_gauge!(WEBHOOKS_DISABLED, Unit::Count, "Webhooks that are disabled");
    describe_gauge!(WEBHOOK_EVENTS, Unit::Count, "Events that webhooks did not take yet: waiting, or parked");
    describe_counter!(RELAYED, "Events committed to SQL");
    describe_counter!(DEAD_LETTERS, "Malformed outbox entries, moved to the dead letters");
    describe_counter!(DELETED, "Events whose outbox entries were deleted before they were relayed to SQL");
    describe_counter!(
        LOST,
        "Events that SQL had and has lost: found by comparing with Redis after SQL was away"
    );
    describe_gauge!(UP, "1 while the part answers: redis, sql");
    describe_gauge!(
        REFUSED,
        Unit::Count,
        "Redis primaries of which nothing is acknowledged: their replicas may lack it"
    );
    describe_counter!(LOADS, "Campaigns loaded from SQL into Redis");
    describe_counter!(ADOPTIONS, "Campaigns that went on as they were on a promoted server");
    describe_counter!(REDIS_STARTS, "Starts of the managed Redis");
    describe_gauge!(
        REPLICAS_MISSING,
        Unit::Count,
        "Replicas that must have a claim before it is acknowledged, and do not keep up or are not there"
    );
    describe_counter!(SUSPENSIONS, "Campaigns suspended, to be loaded from SQL again");
    describe_counter!(LEASE_LOSSES, "Leases that this core had and lost while it worked under them");
    describe_counter!(UNAVAILABLE, "Answers with 503 by their problem code, and what is behind it");
    describe_gauge!(BUILD_INFO, "1; the label tells the version");
}

/// A counter that is first seen at 1 has not risen, as far as an alarm on its rise can tell.
fn begin_at_zero() {
    for name in
        [RELAYED, DEAD_LETTERS, DELETED, LOST, LOADS, ADOPTIONS, LEASE_LOSSES, SUSPENSIONS, REDIS_STARTS]
    {
        counter!(name).absolute(0);
    }
    for result in ["not_ready", "out_of_memory", "unavailable"] {
        counter!(DECISIONS, "result" => result).absolute(0);
    }
    for (code, reason) in UNAVAILABLE_REASONS {
        counter!(UNAVAILABLE, "code" => code, "reason" => reason).absolute(0);
    }
    for outcome in ["delivered", "failed", "parked"] {
        counter!(WEBHOOK_DELIVERIES, "outcome" => outcome).absolute(0);
    }
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

// What every claim counts is looked up once, for a look-up costs more than counting; first used after the recorder was
// installed.
static BATCHES: LazyLock<Histogram> = LazyLock::new(|| histogram!(BATCH_CLAIMS));
static DECIDED_AFTER: LazyLock<Histogram> = LazyLock::new(|| histogram!(DECISION_SECONDS));
static CACHED: LazyLock<Counter> = LazyLock::new(|| counter!(FROM_CACHE));
thread_local! {
    /// The counters of the results that this thread has counted: a dozen at most.
    static RESULTS: RefCell<Vec<(&'static str, Counter, Arc<AtomicU64>)>> = const { RefCell::new(Vec::new()) };
}
/// What every thread has counted, as [`results`] adds it up: a counter of Prometheus cannot be read back.
static TALLIES: Mutex<Vec<(&'static str, Arc<AtomicU64>)>> = Mutex::new(Vec::new());

/// One call to Redis decided `claims` claims.
#[allow(clippy::cast_precision_loss)] // at most 256
pub fn batch(claims: usize) {
    BATCHES.record(claims as f64);
}

/// A claim decided, or refused untried, after this long; `result` is the decision's name.
pub fn decided(result: &'static str, after: Duration) {
    count(result);
    DECIDED_AFTER.record(after);
}

/// A claim denied as sold out from the cache, without a call to Redis.
pub fn sold_out_from_cache() {
    CACHED.increment(1);
}

/// A claim on which Redis gave no decision, and why.
pub fn undecided(reason: &'static str) {
    count(reason);
}

/// One more claim with this result.
fn count(result: &'static str) {
    RESULTS.with_borrow_mut(|counters| {
        if let Some((_, counter, tally)) = counters.iter().find(|(name, ..)| *name == result) {
            tally.fetch_add(1, Ordering::Relaxed);
            return counter.increment(1);
        }
        let (counter, tally) = (counter!(DECISIONS, "result" => result), Arc::new(AtomicU64::new(1)));
        counter.increment(1);
        TALLIES.lock().unwrap_or_else(PoisonError::into_inner).push((result, Arc::clone(&tally)));
        counters.push((result, counter, tally));
    });
}

/// How many claims have had each result in this process: a decision's name, or why there was none.
pub fn results() -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (result, tally) in TALLIES.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        *sums.entry((*result).to_owned()).or_default() += tally.load(Ordering::Relaxed);
    }
    sums
}

/// Events committed to SQL.
pub fn relayed(events: u64) {
    counter!(RELAYED).increment(events);
}

/// A malformed outbox entry became a dead letter.
pub fn dead_letter() {
    counter!(DEAD_LETTERS).increment(1);
}

/// Events whose outbox entries something else has deleted before they were relayed.
pub fn deleted_events(events: u64) {
    counter!(DELETED).increment(events);
}

/// Events that SQL has lost, and Redis has not.
pub fn lost_events(events: u64) {
    counter!(LOST).increment(events);
}

/// Whether a part answers.
pub fn up(part: &'static str, answers: bool) {
    gauge!(UP, "part" => part).set(if answers { 1.0 } else { 0.0 });
}

/// Primaries of which nothing is acknowledged.
#[allow(clippy::cast_precision_loss)] // a gauge is for people
pub fn primaries_refused(primaries: usize) {
    gauge!(REFUSED).set(primaries as f64);
}

/// A try to deliver an event to a webhook had this outcome.
pub fn webhook_delivery(outcome: &'static str) {
    counter!(WEBHOOK_DELIVERIES, "outcome" => outcome).increment(1);
}

/// How many webhooks are disabled, and how many events wait or are parked, of all webhooks.
#[allow(clippy::cast_precision_loss)] // gauges are for people
pub fn webhooks(disabled: usize, waiting: u64, parked: u64) {
    gauge!(WEBHOOKS_DISABLED).set(disabled as f64);
    gauge!(WEBHOOK_EVENTS, "state" => "waiting").set(waiting as f64);
    gauge!(WEBHOOK_EVENTS, "state" => "parked").set(parked as f64);
}

/// So many replicas are missing that must have what is acknowledged.
pub fn replicas_missing(replicas: u32) {
    gauge!(REPLICAS_MISSING).set(f64::from(replicas));
}

/// A lease was lost while this core worked under it.
pub fn lease_lost() {
    counter!(LEASE_LOSSES).increment(1);
}

/// A campaign was suspended.
pub fn suspended() {
    counter!(SUSPENSIONS).increment(1);
}

/// A request was answered with 503: its problem's code, and what is behind it.
pub fn unavailable(code: &'static str, reason: &'static str) {
    counter!(UNAVAILABLE, "code" => code, "reason" => reason).increment(1);
}

/// What is told of campaigns and servers, which come and go, as Prometheus' text: what `tell` tells and no more, so that
/// nothing is told of those that are gone.
pub fn now(tell: impl FnOnce()) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || {
        describe_now();
        tell();
    });
    recorder.handle().render()
}

fn describe_now() {
    describe_counter!(CAMPAIGN_DECISIONS, "Claims that Redis has answered, by campaign: the busiest by name");
    describe_gauge!(
        OUTBOX_EVENTS,
        Unit::Count,
        "Events not yet relayed to SQL, by campaign: the busiest by name"
    );
    describe_gauge!(
        OUTBOX_LAG_SECONDS,
        Unit::Seconds,
        "Age of the oldest entry in any outbox: it rises while nothing is relayed to SQL"
    );
    describe_gauge!(NODE_UP, "1 while this Redis primary answers");
    describe_gauge!(
        NODE_PING_SECONDS,
        Unit::Seconds,
        "How long this Redis primary took to answer when last asked"
    );
    describe_gauge!(
        NODE_MEMORY_BYTES,
        Unit::Bytes,
        "Memory of this Redis primary: used, as far as it counts towards its maximum, and that"
    );
    describe_gauge!(
        BARRIER_AGE_SECONDS,
        Unit::Seconds,
        "While something waits for replicas: since when they have confirmed nothing"
    );
}

/// A campaign, or those together that have no name: the claims that Redis has answered, and the events that wait for SQL.
/// Within [`now`].
#[allow(clippy::cast_precision_loss)] // a gauge is for people
pub fn campaign(name: &str, decided: u64, waiting: u64) {
    counter!(CAMPAIGN_DECISIONS, "campaign" => name.to_owned()).absolute(decided);
    gauge!(OUTBOX_EVENTS, "campaign" => name.to_owned()).set(waiting as f64);
}

/// The age of the oldest entry of all outboxes; zero when there is none. Within [`now`].
pub fn outbox_lag(age: Duration) {
    gauge!(OUTBOX_LAG_SECONDS).set(age);
}

/// Whether the Redis primary `node` answers. Within [`now`], as are those that follow.
pub fn node_up(node: &str, answers: bool) {
    gauge!(NODE_UP, "node" => node.to_owned()).set(if answers { 1.0 } else { 0.0 });
}

/// How long `node` took to answer, and since when its replicas have confirmed nothing though something waits.
pub fn node_times(node: &str, ping: Duration, barrier_age: Duration) {
    gauge!(NODE_PING_SECONDS, "node" => node.to_owned()).set(ping);
    gauge!(BARRIER_AGE_SECONDS, "node" => node.to_owned()).set(barrier_age);
}

/// The memory of `node`, in bytes; `max` is `None` where there is no maximum.
#[allow(clippy::cast_precision_loss)] // a gauge is for people
pub fn node_memory(node: &str, used: u64, max: Option<u64>) {
    gauge!(NODE_MEMORY_BYTES, "node" => node.to_owned(), "kind" => "used").set(used as f64);
    if let Some(max) = max {
        gauge!(NODE_MEMORY_BYTES, "node" => node.to_owned(), "kind" => "max").set(max as f64);
    }
}

/// A campaign was loaded from SQL.
pub fn loaded() {
    counter!(LOADS).increment(1);
}

/// A campaign goes on as it was on a promoted server.
pub fn adopted() {
    counter!(ADOPTIONS).increment(1);
}

/// The managed Redis was started.
pub fn redis_started() {
    counter!(REDIS_STARTS).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_told_no_more() {
        let told = now(|| {
            node_up("a:1", true);
            node_memory("a:1", 7, None);
            campaign("demo", 3, 2);
        });
        for line in [
            "claimgate_redis_node_up{node=\"a:1\"} 1",
            "claimgate_redis_memory_bytes{node=\"a:1\",kind=\"used\"} 7",
            "claimgate_campaign_decisions_total{campaign=\"demo\"} 3",
            "claimgate_outbox_events{campaign=\"demo\"} 2",
        ] {
            assert!(told.lines().any(|told| told == line), "{line} is not in\n{told}");
        }
        assert!(!told.contains("kind=\"max\""), "{told}");
        assert!(!now(|| node_up("b:1", false)).contains("a:1"));
    }
}
