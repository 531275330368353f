//! Lists the serving cores and their counts, for live snapshots.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use claimgate_shared::Timestamp;
use claimgate_shared::admin::live::{LiveCore, LiveRefusal};

use crate::clock;
use crate::engine::demand::Refusals;
use crate::metrics;
use crate::store::sql::CoreRow;

/// Age of a core's row from which the core is shown as silent.
const SILENT: Duration = Duration::from_secs(5);
/// Marks a result that edges decided without core. It is in no result's name.
const AT_EDGES: &str = "edge:";
/// Results that do not count as refusals.
const NOT_REFUSED: [&str; 3] = ["granted", "held", "replayed"];

/// One run of a core. A core keeps its id across restarts, and a copied data directory has the same id. The
/// owner of work that only one core may do is therefore the run, not the core.
#[derive(Debug, Clone)]
pub struct CoreRun {
    core: String,
    id: String,
}

impl CoreRun {
    /// Creates a new, unique run of the core `core`.
    pub fn new(core: String) -> Result<Self, getrandom::Error> {
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce)?;
        Ok(Self { id: format!("{core}.{:016x}", u64::from_be_bytes(nonce)), core })
    }

    /// Returns the core's id, which all its runs share.
    pub fn core(&self) -> &str {
        &self.core
    }

    /// Returns the run's id: the core's id, a dot, and a random number.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// This core's identity and counts, as shown in snapshots.
#[derive(Debug, Clone)]
pub struct ThisCore {
    /// The current run.
    pub run: CoreRun,
    name: String,
    started_at: Timestamp,
    refusals: Refusals,
}

/// The counts of all cores, updated at each snapshot.
#[derive(Debug, Default)]
pub(super) struct CoreCounts(HashMap<String, Counts>);

/// A core's counts at its last report, and the rates at which these counts rose.
#[derive(Debug)]
struct Counts {
    at_ms: i64,
    results: BTreeMap<String, u64>,
    per_s: Option<BTreeMap<String, f64>>,
}

impl ThisCore {
    /// Creates the description of a core that starts now with `run`, displayed as `name`. `refusals` has the
    /// reports of edges.
    pub fn starting(run: CoreRun, name: String, refusals: Refusals) -> Self {
        Self { run, name, started_at: clock::now(), refusals }
    }

    /// Returns this core's row for SQL.
    pub fn row(&self) -> CoreRow {
        CoreRow {
            id: self.run.id.clone(),
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            results: metrics::results(),
            edge_refusals: self.refusals.by_reason(),
        }
    }

    /// Returns the number of claims that this core has refused since its start, and of those that edges have
    /// refused and reported to it.
    pub(super) fn refused(&self) -> u64 {
        let own =
            metrics::results().into_iter().filter(|(result, _)| !NOT_REFUSED.contains(&result.as_str()));
        own.map(|(_, count)| count).chain(self.refusals.by_reason().into_values()).sum()
    }

    /// Returns the current state of this core, and the `others` from SQL, each with the time since its last
    /// report.
    pub(super) fn with(&self, others: Option<Vec<(CoreRow, Duration)>>) -> Vec<(CoreRow, Duration)> {
        let mut cores = others.unwrap_or_default();
        cores.retain(|(core, _)| core.id != self.run.id);
        cores.push((self.row(), Duration::ZERO));
        cores.sort_by(|(one, _), (other, _)| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        cores
    }
}

impl CoreCounts {
    /// Records the reports of `cores` at `now`. Returns the list of cores, and the sum of their refusals.
    pub(super) fn record(
        &mut self,
        this: &ThisCore,
        cores: Vec<(CoreRow, Duration)>,
        now: Timestamp,
    ) -> (Vec<LiveCore>, Vec<LiveRefusal>) {
        let mut refusals: BTreeMap<String, LiveRefusal> = BTreeMap::new();
        let mut listed = Vec::with_capacity(cores.len());
        self.0.retain(|id, _| cores.iter().any(|(core, _)| core.id == *id));
        for (core, silent_for) in cores {
            let is_silent = silent_for > SILENT;
            let reported_ms = now.as_ms() - i64::try_from(silent_for.as_millis()).unwrap_or(0);
            let counts = self.0.entry(core.id.clone()).or_insert_with(|| Counts::new(reported_ms));
            counts.record(reported_ms, with_edges(core.results, core.edge_refusals));
            let per_s = counts.per_s.as_ref().filter(|_| !is_silent);
            for (result, count) in &counts.results {
                let (code, at_edges) = match result.strip_prefix(AT_EDGES) {
                    Some(code) => (code, *count),
                    None if NOT_REFUSED.contains(&result.as_str()) => continue,
                    None => (result.as_str(), 0),
                };
                let refusal = refusals.entry(code.to_owned()).or_default();
                refusal.count += count;
                refusal.at_edges += at_edges;
                refusal.per_s = match per_s {
                    Some(per_s) => Some(refusal.per_s.unwrap_or(0.0) + per_s.get(result).unwrap_or(&0.0)),
                    None => refusal.per_s,
                };
            }
            listed.push(LiveCore {
                is_this: core.id == this.run.id,
                name: core.name,
                version: core.version,
                started_at: core.started_at,
                state: if is_silent { "silent" } else { "up" },
                decisions_per_s: per_s.map(decisions),
            });
        }
        let refusals = refusals.into_iter().map(|(code, refusal)| LiveRefusal { code, ..refusal });
        (listed, refusals.collect())
    }
}

/// Adds the claims that edges refused to a core's results.
fn with_edges(mut results: BTreeMap<String, u64>, refused: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    results.extend(refused.into_iter().map(|(code, count)| ([AT_EDGES, &code].concat(), count)));
    results
}

/// Returns the rate of the claims that the core itself decided.
fn decisions(per_s: &BTreeMap<String, f64>) -> f64 {
    let own = per_s.iter().filter(|(result, _)| !result.starts_with(AT_EDGES));
    own.fold(0.0, |sum, (_, per_s)| sum + per_s) // sum() of nothing is -0.0
}

impl Counts {
    fn new(at_ms: i64) -> Self {
        Self { at_ms, results: BTreeMap::new(), per_s: None }
    }

    /// Records the core's report of `at_ms`. Rereading the same report, with a time that differs by a few
    /// milliseconds, changes nothing.
    #[allow(clippy::cast_precision_loss)] // for display
    fn record(&mut self, at_ms: i64, results: BTreeMap<String, u64>) {
        let passed_ms = at_ms - self.at_ms;
        let is_first = self.results.is_empty();
        if passed_ms < SAME_MS && !is_first {
            return;
        }
        if (SAME_MS..RATE_MS_MAX).contains(&passed_ms) {
            let rate = |(result, count): (&String, &u64)| {
                // A restarted core counts from 0.
                let rise = count.saturating_sub(self.results.get(result).copied().unwrap_or(0));
                (result.clone(), rise as f64 * 1000.0 / passed_ms as f64)
            };
            self.per_s = Some(results.iter().map(rate).collect());
        } else {
            self.per_s = None;
        }
        (self.at_ms, self.results) = (at_ms, results);
    }
}

/// Maximum time difference between two readings of the same row.
const SAME_MS: i64 = 200;
/// Maximum time between two reports from which a current rate is computed.
const RATE_MS_MAX: i64 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
        counts.iter().map(|(result, count)| ((*result).to_owned(), *count)).collect()
    }

    /// JSON and the dashboard show a negative zero as -0.
    #[test]
    fn the_rate_of_a_core_without_claims_is_a_positive_zero() {
        let at_edges = [([AT_EDGES, "sold_out"].concat(), 2.0)].into();
        for idle in [BTreeMap::new(), at_edges] {
            assert_eq!(decisions(&idle).to_bits(), 0.0_f64.to_bits(), "{idle:?}");
        }
    }

    #[test]
    fn rates_span_two_reports_and_are_never_negative() {
        let mut counts = Counts::new(10_000);
        counts.record(10_000, reported(&[("sold_out", 7)]));
        assert_eq!(counts.per_s, None, "one report gives no rate");
        counts.record(10_050, reported(&[("sold_out", 7)]));
        assert_eq!(counts.per_s, None, "the same report, read again");
        counts.record(12_000, reported(&[("granted", 4), ("sold_out", 17)]));
        assert_eq!(counts.per_s, Some([("granted".to_owned(), 2.0), ("sold_out".to_owned(), 5.0)].into()));
        counts.record(13_000, reported(&[("sold_out", 1)]));
        assert_eq!(counts.per_s, Some([("sold_out".to_owned(), 0.0)].into()));
        counts.record(23_000, reported(&[("sold_out", 1000)]));
        assert_eq!(counts.per_s, None, "a rise over a long time is not a current rate");
    }
}
