//! Core's Prometheus metrics. Labels are results, parts of the system and the busiest campaigns, but never
//! users or claims.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram, with_local_recorder,
};
pub use metrics_exporter_prometheus::PrometheusHandle;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use parking_lot::Mutex;

/// Declares metrics by kind, name, unit and description, and the function that registers the descriptions.
macro_rules! declare {
    ($describe:ident: $($kind:ident $metric:ident = $name:literal $(in $unit:ident)?, $about:literal;)+) => {
        $(const $metric: &str = $name;)+

        fn $describe() {
            $($kind!($metric, $(Unit::$unit,)? $about);)+
        }
    };
}

declare! { describe:
    describe_counter DECISIONS = "claimgate_decisions_total", "Claims by result: granted, held, replayed, a denial's code, or undecided";
    describe_histogram DECISION_SECONDS = "claimgate_decision_seconds" in Seconds, "From a claim's arrival in its queue to its decision";
    describe_counter FROM_CACHE = "claimgate_sold_out_cached_total", "Claims denied as sold out from the cache, without a call to Redis";
    describe_histogram BATCH_CLAIMS = "claimgate_batch_claims" in Count, "Claims decided by one call to Redis";
    describe_counter WEBHOOK_DELIVERIES = "claimgate_webhook_deliveries_total", "Delivery attempts to webhooks by outcome: delivered, failed, or parked after the last attempt";
    describe_gauge WEBHOOKS_DISABLED = "claimgate_webhooks_disabled" in Count, "Webhooks that are disabled";
    describe_gauge WEBHOOK_EVENTS = "claimgate_webhook_events" in Count, "Events that webhooks have not accepted yet: waiting, or parked";
    describe_gauge UP = "claimgate_up", "1 if the part works: redis, sql";
    describe_gauge REFUSED = "claimgate_primaries_refused" in Count, "Redis primaries whose claims are not acknowledged, because acknowledged claims may be missing";
    describe_gauge REPLICAS_MISSING = "claimgate_replicas_missing" in Count, "Replicas that must have a claim before it is acknowledged, but are down or have fallen behind";
    describe_gauge CLAIMS_WITHOUT_CODES = "claimgate_claims_without_codes" in Count, "Granted claims without codes: add codes to their campaigns";
    describe_counter UNAVAILABLE = "claimgate_unavailable_total", "Answers with 503, by problem code and reason";
    describe_gauge BUILD_INFO = "claimgate_build_info", "Always 1; the label is the version";
}

// Metrics of campaigns and servers, which change at run time: see [`now`].
declare! { describe_now:
    describe_counter CAMPAIGN_DECISIONS = "claimgate_campaign_decisions_total", "Claims that Redis has decided, by campaign: only the busiest by name";
    describe_counter EDGE_REFUSALS = "claimgate_edge_refusals_total", "Claims that edges refused without core, by campaign and reason: only the busiest by name";
    describe_gauge OUTBOX_EVENTS = "claimgate_outbox_events" in Count, "Events not yet relayed to SQL, by campaign: only the busiest by name";
    describe_gauge OUTBOX_LAG_SECONDS = "claimgate_outbox_lag_seconds" in Seconds, "Age of the oldest entry in any outbox: it rises while nothing is relayed to SQL";
    describe_gauge NODE_UP = "claimgate_redis_node_up", "1 while this Redis primary works";
    describe_gauge NODE_PING_SECONDS = "claimgate_redis_ping_seconds" in Seconds, "Round trip of the last ping of this Redis primary";
    describe_gauge NODE_MEMORY_BYTES = "claimgate_redis_memory_bytes" in Bytes, "Memory of this Redis primary: used (as counted towards its maximum) and max";
    describe_gauge NODE_REWRITE_FAILED = "claimgate_redis_rewrite_failed", "1 if this Redis primary could not rewrite its append-only file at the last attempt";
    describe_gauge BARRIER_AGE_SECONDS = "claimgate_barrier_age_seconds" in Seconds, "Time since replicas last confirmed anything, while claims wait for them; otherwise 0";
}

/// The campaign label of the sum of all unnamed campaigns. It is not a valid id, so no campaign has this name.
pub const OTHERS: &str = "(others)";

/// A counter without labels.
#[derive(Debug)]
pub struct Total {
    name: &'static str,
    about: &'static str,
}

impl Total {
    /// Adds `more`.
    pub fn add(&self, more: u64) {
        counter!(self.name).increment(more);
    }
}

/// Declares counters without labels by name and description, and [`TOTALS`], the list of all such counters.
macro_rules! totals {
    ($($total:ident = $name:literal, $about:literal;)+) => {
        $(#[doc = $about]
        pub const $total: Total = Total { name: $name, about: $about };)+

        const TOTALS: &[Total] = &[$($total),+];
    };
}

totals! {
    RELAYED = "claimgate_relayed_events_total", "Events committed to SQL";
    DEAD_LETTERS = "claimgate_dead_letters_total", "Malformed outbox entries moved to the dead letters";
    DELETED = "claimgate_deleted_events_total", "Events whose outbox entries were deleted before they were relayed to SQL";
    LOST = "claimgate_lost_events_total", "Events, rules and campaigns that SQL had stored and has lost, restored or not";
    LOADS = "claimgate_loads_total", "Campaigns loaded from SQL into Redis";
    ADOPTIONS = "claimgate_adoptions_total", "Campaigns that continued unchanged on a promoted server";
    LEASE_LOSSES = "claimgate_lease_losses_total", "Leases that this core lost while it was using them";
    SUSPENSIONS = "claimgate_suspensions_total", "Campaigns suspended in order to be loaded from SQL again";
    REDIS_STARTS = "claimgate_redis_starts_total", "Starts of the managed Redis";
    LOG_LINES_LOST = "claimgate_log_lines_lost_total", "Lines of the log that could not be written, or not in time";
}

/// All reasons for a 503, with the problem's code.
const UNAVAILABLE_REASONS: [(&str, &str); 17] = [
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
    ("user_ids_differ", "user_ids"),
];

const LATENCY_BUCKETS_S: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Installs the recorder; the returned handle renders `/metrics`.
///
/// # Errors
/// If this process already has a recorder.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(DECISION_SECONDS.to_owned()), LATENCY_BUCKETS_S)?
        .set_buckets_for_metric(Matcher::Full(BATCH_CLAIMS.to_owned()), BATCH_BUCKETS)?
        .install_recorder()?;
    describe();
    for total in TOTALS {
        describe_counter!(total.name, total.about);
    }
    begin_at_zero();
    Ok(handle)
}

/// Exports each counter at 0 from the start: an alarm on an increase misses a counter that first appears at 1.
fn begin_at_zero() {
    for total in TOTALS {
        counter!(total.name).absolute(0);
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

// The metrics of every claim are looked up only once, because a lookup costs more than counting. They must
// not be used before the recorder is installed.
static BATCHES: LazyLock<Histogram> = LazyLock::new(|| histogram!(BATCH_CLAIMS));
static DECIDED_AFTER: LazyLock<Histogram> = LazyLock::new(|| histogram!(DECISION_SECONDS));
static CACHED: LazyLock<Counter> = LazyLock::new(|| counter!(FROM_CACHE));
thread_local! {
    /// This thread's counters by result: a dozen at most.
    static RESULTS: RefCell<Vec<(&'static str, Counter, Arc<AtomicU64>)>> = const { RefCell::new(Vec::new()) };
}
/// The counts of every thread, which [`results`] adds up, because a Prometheus counter cannot be read back.
static TALLIES: Mutex<Vec<(&'static str, Arc<AtomicU64>)>> = Mutex::new(Vec::new());

/// Records that one call to Redis decided `claims` claims.
#[allow(clippy::cast_precision_loss)] // at most 256
pub fn batch(claims: usize) {
    BATCHES.record(claims as f64);
}

/// Records that a claim was decided, or rejected unprocessed, after this time; `result` is the decision's name.
pub fn decided(result: &'static str, after: Duration) {
    count(result);
    DECIDED_AFTER.record(after);
}

/// Counts a claim denied as sold out from the cache, without a call to Redis.
pub fn sold_out_from_cache() {
    CACHED.increment(1);
}

/// Counts a claim that Redis did not decide, by reason.
pub fn undecided(reason: &'static str) {
    count(reason);
}

/// Counts a claim with this result.
fn count(result: &'static str) {
    RESULTS.with_borrow_mut(|counters| {
        if let Some((_, counter, tally)) = counters.iter().find(|(name, ..)| *name == result) {
            tally.fetch_add(1, Ordering::Relaxed);
            return counter.increment(1);
        }
        let (counter, tally) = (counter!(DECISIONS, "result" => result), Arc::new(AtomicU64::new(1)));
        counter.increment(1);
        TALLIES.lock().push((result, Arc::clone(&tally)));
        counters.push((result, counter, tally));
    });
}

/// Returns the number of claims in this process by result: a decision's name, or the reason for none.
pub fn results() -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (result, tally) in TALLIES.lock().iter() {
        *sums.entry((*result).to_owned()).or_default() += tally.load(Ordering::Relaxed);
    }
    sums
}

/// Sets whether a part works.
pub fn up(part: &'static str, is_up: bool) {
    gauge!(UP, "part" => part).set(if is_up { 1.0 } else { 0.0 });
}

/// Sets the number of primaries whose claims are not acknowledged.
#[allow(clippy::cast_precision_loss)] // a gauge is for people
pub fn primaries_refused(primaries: usize) {
    gauge!(REFUSED).set(primaries as f64);
}

/// Counts a try to deliver an event to a webhook, by outcome.
pub fn webhook_delivery(outcome: &'static str) {
    counter!(WEBHOOK_DELIVERIES, "outcome" => outcome).increment(1);
}

/// Sets how many webhooks are disabled, and how many events of all webhooks are waiting or parked.
#[allow(clippy::cast_precision_loss)] // gauges are for people
pub fn webhooks(disabled: usize, waiting: u64, parked: u64) {
    gauge!(WEBHOOKS_DISABLED).set(disabled as f64);
    gauge!(WEBHOOK_EVENTS, "state" => "waiting").set(waiting as f64);
    gauge!(WEBHOOK_EVENTS, "state" => "parked").set(parked as f64);
}

/// Sets the number of granted claims without codes.
pub fn claims_without_codes(claims: u64) {
    #[allow(clippy::cast_precision_loss)] // fewer than 2^53
    gauge!(CLAIMS_WITHOUT_CODES).set(claims as f64);
}

/// Sets how many required replicas are missing.
pub fn replicas_missing(replicas: u32) {
    gauge!(REPLICAS_MISSING).set(f64::from(replicas));
}

/// Counts a 503 response by problem code and reason.
pub fn unavailable(code: &'static str, reason: &'static str) {
    counter!(UNAVAILABLE, "code" => code, "reason" => reason).increment(1);
}

/// Renders the metrics of campaigns and servers, which change at run time, in Prometheus' text format. A new
/// recorder receives only the values that `record` sets, so that removed campaigns and servers disappear.
pub fn now(record: impl FnOnce()) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || {
        describe_now();
        record();
    });
    recorder.handle().render()
}

/// Sets the decided claims and the waiting events of a campaign, or of all unnamed campaigns together. Call
/// within [`now`].
#[allow(clippy::cast_precision_loss)] // a gauge is for people
pub fn campaign(name: &str, decided: u64, waiting: u64) {
    counter!(CAMPAIGN_DECISIONS, "campaign" => name.to_owned()).absolute(decided);
    gauge!(OUTBOX_EVENTS, "campaign" => name.to_owned()).set(waiting as f64);
}

/// Sets the claims that edges refused for `reason`, of a campaign, of all unnamed campaigns together, or
/// of unknown ids. Call within [`now`].
pub fn edge_refusals(campaign: String, reason: &'static str, count: u64) {
    counter!(EDGE_REFUSALS, "campaign" => campaign, "reason" => reason).absolute(count);
}

/// Sets the age of the oldest entry in all outboxes; zero if there is none. Call within [`now`].
pub fn outbox_lag(age: Duration) {
    gauge!(OUTBOX_LAG_SECONDS).set(age);
}

/// Sets whether the Redis primary `node` works. Call this and the functions below within [`now`].
pub fn node_up(node: &str, is_up: bool) {
    gauge!(NODE_UP, "node" => node.to_owned()).set(if is_up { 1.0 } else { 0.0 });
}

/// Sets the round trip to `node`, and the time since its replicas last confirmed anything while claims wait.
pub fn node_times(node: &str, ping: Duration, barrier_age: Duration) {
    gauge!(NODE_PING_SECONDS, "node" => node.to_owned()).set(ping);
    gauge!(BARRIER_AGE_SECONDS, "node" => node.to_owned()).set(barrier_age);
}

/// Sets whether `node` could not rewrite its append-only file.
pub fn node_rewrite_failed(node: &str, failed: bool) {
    gauge!(NODE_REWRITE_FAILED, "node" => node.to_owned()).set(if failed { 1.0 } else { 0.0 });
}

/// Sets the memory of `node`, in bytes; `max` is `None` if there is no maximum.
#[allow(clippy::cast_precision_loss)] // a gauge is for people
pub fn node_memory(node: &str, used: u64, max: Option<u64>) {
    gauge!(NODE_MEMORY_BYTES, "node" => node.to_owned(), "kind" => "used").set(used as f64);
    if let Some(max) = max {
        gauge!(NODE_MEMORY_BYTES, "node" => node.to_owned(), "kind" => "max").set(max as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_removed_servers_disappear() {
        let text = now(|| {
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
            assert!(text.lines().any(|printed| printed == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("kind=\"max\""), "{text}");
        assert!(!now(|| node_up("b:1", false)).contains("a:1"));
    }
}
