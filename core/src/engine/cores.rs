//! Which cores serve, and what each has counted, for those who watch.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use claimgate_shared::Timestamp;
use serde::Serialize;

use crate::clock;
use crate::metrics;
use crate::store::sql::CoreRow;

/// A core that has not written its row for longer is said to be silent.
const SILENT: Duration = Duration::from_secs(5);
/// Claims with these results were not refused.
const NOT_REFUSED: [&str; 3] = ["granted", "held", "replayed"];

/// How this core describes itself.
#[derive(Debug, Clone)]
pub struct ThisCore {
    pub(super) id: String,
    name: String,
    started_at: Timestamp,
}

/// A core.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveCore {
    /// Its host and the address of its internal API.
    pub name: String,
    /// Its version.
    pub version: String,
    /// When it was started, by its own clock.
    pub started_at: Timestamp,
    /// Whether it is the one that tells this.
    pub is_this: bool,
    /// `up`, or `silent`: it has not written to SQL for 5 s.
    pub state: &'static str,
    /// Claims that it decided or refused each second; `null` until that is known.
    pub decisions_per_s: Option<f64>,
}

/// Claims that were refused for one reason.
#[derive(Debug, Clone, Default, Serialize, utoipa::ToSchema)]
pub struct LiveRefusal {
    /// The problem's code.
    pub code: String,
    /// How many, since each core was started.
    pub count: u64,
    /// How many each second; `null` until that is known.
    pub per_s: Option<f64>,
}

/// What the cores have counted, read again and again.
#[derive(Debug, Default)]
pub(super) struct CoreCounts(HashMap<String, Counts>);

/// What one core had counted, when it said so, and how fast that rose.
#[derive(Debug)]
struct Counts {
    at_ms: i64,
    results: BTreeMap<String, u64>,
    per_s: Option<BTreeMap<String, f64>>,
}

impl ThisCore {
    /// The core `id`, known to people as `name`, which starts now.
    pub fn starting(id: String, name: String) -> Self {
        Self { id, name, started_at: clock::now() }
    }

    /// As SQL has it.
    pub(super) fn row(&self) -> CoreRow {
        CoreRow {
            id: self.id.clone(),
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            results: metrics::results(),
        }
    }

    /// This core as it is now and all `others` as SQL has them, each with how long ago it said so.
    pub(super) fn with(&self, others: Option<Vec<(CoreRow, Duration)>>) -> Vec<(CoreRow, Duration)> {
        let mut cores = others.unwrap_or_default();
        cores.retain(|(core, _)| core.id != self.id);
        cores.push((self.row(), Duration::ZERO));
        cores.sort_by(|(one, _), (other, _)| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        cores
    }
}

impl CoreCounts {
    /// Takes in what `cores` say at `now`: each core as those see it who watch, and what all of them have refused.
    pub(super) fn take(
        &mut self,
        this: &ThisCore,
        cores: Vec<(CoreRow, Duration)>,
        now: Timestamp,
    ) -> (Vec<LiveCore>, Vec<LiveRefusal>) {
        let mut refusals: BTreeMap<String, LiveRefusal> = BTreeMap::new();
        let mut told = Vec::with_capacity(cores.len());
        self.0.retain(|id, _| cores.iter().any(|(core, _)| core.id == *id));
        for (core, silent_for) in cores {
            let is_silent = silent_for > SILENT;
            let said_ms = now.as_ms() - i64::try_from(silent_for.as_millis()).unwrap_or(0);
            let counts = self.0.entry(core.id.clone()).or_insert_with(|| Counts::new(said_ms));
            counts.take(said_ms, core.results);
            let per_s = counts.per_s.as_ref().filter(|_| !is_silent);
            for (code, count) in &counts.results {
                if !NOT_REFUSED.contains(&code.as_str()) {
                    let refusal = refusals.entry(code.clone()).or_default();
                    refusal.count += count;
                    refusal.per_s = match per_s {
                        Some(per_s) => Some(refusal.per_s.unwrap_or(0.0) + per_s.get(code).unwrap_or(&0.0)),
                        None => refusal.per_s,
                    };
                }
            }
            told.push(LiveCore {
                is_this: core.id == this.id,
                name: core.name,
                version: core.version,
                started_at: core.started_at,
                state: if is_silent { "silent" } else { "up" },
                decisions_per_s: per_s.map(|per_s| per_s.values().sum()),
            });
        }
        let refusals = refusals.into_iter().map(|(code, refusal)| LiveRefusal { code, ..refusal });
        (told, refusals.collect())
    }
}

impl Counts {
    fn new(at_ms: i64) -> Self {
        Self { at_ms, results: BTreeMap::new(), per_s: None }
    }

    /// Takes in what the core said at `at_ms`; the same again, a few milliseconds apart by the reading, changes nothing.
    #[allow(clippy::cast_precision_loss)] // for people
    fn take(&mut self, at_ms: i64, results: BTreeMap<String, u64>) {
        let passed_ms = at_ms - self.at_ms;
        let is_first = self.results.is_empty();
        if passed_ms < SAME_MS && !is_first {
            return;
        }
        if (SAME_MS..RATE_MS_MAX).contains(&passed_ms) {
            let rate = |(result, count): (&String, &u64)| {
                // A core that was started again counts from 0.
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

/// Two readings of the same row differ by less.
const SAME_MS: i64 = 200;
/// What rose within more than this is not told as a rate of now.
const RATE_MS_MAX: i64 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn said(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
        counts.iter().map(|(result, count)| ((*result).to_owned(), *count)).collect()
    }

    #[test]
    fn a_rate_is_what_rose_between_two_sayings_and_a_restart_gives_none_below_zero() {
        let mut counts = Counts::new(10_000);
        counts.take(10_000, said(&[("sold_out", 7)]));
        assert_eq!(counts.per_s, None, "once is no rate");
        counts.take(10_050, said(&[("sold_out", 7)]));
        assert_eq!(counts.per_s, None, "the same saying, read again");
        counts.take(12_000, said(&[("granted", 4), ("sold_out", 17)]));
        assert_eq!(counts.per_s, Some([("granted".to_owned(), 2.0), ("sold_out".to_owned(), 5.0)].into()));
        counts.take(13_000, said(&[("sold_out", 1)]));
        assert_eq!(counts.per_s, Some([("sold_out".to_owned(), 0.0)].into()));
        counts.take(23_000, said(&[("sold_out", 1000)]));
        assert_eq!(counts.per_s, None, "what was long is not of now");
    }
}
