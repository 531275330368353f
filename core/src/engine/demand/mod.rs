//! The demand for campaigns: refused claims and the report. Counts the claims that this core refuses,
//! receives the reports of edges, and writes both to SQL.
//!
//! A single writer writes all reports that arrived during its last transaction in the next one. So the cost
//! in SQL does not grow with the number of edges, and no two transactions of a core wait for the same row.

mod counts;
pub mod report;
mod totals;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use claimgate_shared::refusals::{RefusalReport, Refused};
use claimgate_shared::{CampaignId, Code};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use self::counts::Counts;
pub use self::totals::EdgeRefusals;
use self::totals::EdgeTotals;
pub use self::writer::RefusalWriter;
use super::error::EngineError;
use crate::clock;
use crate::domain::refusals::Report;

/// Maximum number of edges' reports that wait to be written.
const QUEUE_MAX: usize = 1_024;

/// Counts refused claims, and receives the reports of edges.
#[derive(Debug, Clone)]
pub struct Refusals {
    shared: Arc<Shared>,
    /// The counts of this thread.
    counts: Arc<Mutex<Counts>>,
}

/// The part that all threads share.
#[derive(Debug)]
struct Shared {
    /// The counts of every thread.
    threads: Mutex<Vec<Arc<Mutex<Counts>>>>,
    waiting: mpsc::Sender<WaitingReport>,
    /// Taken by the writer.
    receiver: Mutex<Option<mpsc::Receiver<WaitingReport>>>,
    totals: Mutex<EdgeTotals>,
    /// Number of calls that wait for their report to be written.
    callers: AtomicUsize,
}

/// A call that is counted while it waits.
#[derive(Debug)]
struct Caller<'a>(&'a AtomicUsize);

impl<'a> Caller<'a> {
    /// Returns `None` if `callers_max` calls wait already.
    fn enter(callers: &'a AtomicUsize, callers_max: usize) -> Option<Self> {
        let entered = Self(callers);
        (callers.fetch_add(1, Ordering::Relaxed) < callers_max).then_some(entered)
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An edge's report that is not written yet.
#[derive(Debug)]
struct WaitingReport {
    report: Report,
    answer: oneshot::Sender<Result<(), EngineError>>,
}

impl Default for Refusals {
    fn default() -> Self {
        let (waiting, receiver) = mpsc::channel(QUEUE_MAX);
        let shared = Shared {
            threads: Mutex::default(),
            waiting,
            receiver: Mutex::new(Some(receiver)),
            totals: Mutex::default(),
            callers: AtomicUsize::new(0),
        };
        Self::on(Arc::new(shared))
    }
}

impl Refusals {
    fn on(shared: Arc<Shared>) -> Self {
        let counts = Arc::<Mutex<Counts>>::default();
        shared.threads.lock().push(Arc::clone(&counts));
        Self { shared, counts }
    }

    /// Returns the same with separate counts, so that threads do not wait for each other.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        Self::on(Arc::clone(&self.shared))
    }

    /// Counts a claim on `campaign` that this core refused with `code`.
    pub fn count(&self, campaign: &CampaignId, code: Code) {
        self.counts.lock().count(campaign, code, clock::now());
    }

    /// Writes an edge's report, once for each number. At most `callers_max` calls wait at a time, so
    /// that claims find permits while SQL is unavailable.
    ///
    /// # Errors
    /// The report may have been written. It is safe to send it again, even to another core.
    pub async fn record(&self, report: RefusalReport, callers_max: usize) -> Result<(), EngineError> {
        let report = Report::of_edge(report).map_err(EngineError::Invalid)?;
        let _caller = Caller::enter(&self.shared.callers, callers_max).ok_or(EngineError::QueueFull)?;
        let (answer, written) = oneshot::channel();
        self.shared.waiting.try_send(WaitingReport { report, answer }).map_err(|_| EngineError::QueueFull)?;
        written.await.map_err(|_| EngineError::Stopping)?
    }

    /// Returns the number of claims refused by edges, by reason, since this core started.
    pub fn by_reason(&self) -> BTreeMap<String, u64> {
        self.shared.totals.lock().by_reason()
    }

    /// Returns the same by campaign and reason; only the campaigns that `is_named` selects have their own lines.
    pub fn by_campaign(&self, is_named: impl Fn(&str) -> bool) -> Vec<EdgeRefusals> {
        self.shared.totals.lock().by_campaign(is_named)
    }

    /// Returns the number of recent claims that edges refused, by campaign. Each call returns those since the last one.
    pub fn recent_by_campaign(&self) -> BTreeMap<String, u64> {
        self.shared.totals.lock().take_recent()
    }

    /// Removes and returns the counts of all threads.
    fn take(&self) -> Vec<Refused> {
        self.shared.threads.lock().iter().flat_map(|counts| counts.lock().take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_finds_no_room_leaves_the_count_unchanged() {
        let callers = AtomicUsize::new(0);
        let first = Caller::enter(&callers, 1);
        assert!(first.is_some() && Caller::enter(&callers, 1).is_none());
        drop(first);
        assert!(Caller::enter(&callers, 1).is_some());
        assert_eq!(callers.load(Ordering::Relaxed), 0);
    }
}
