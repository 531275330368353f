//! Prints a line for each survived row, bypassing the test harness, which hides the output of passing tests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use support::available::available;
pub use support::available::say;
use support::checker::Verdict;
use support::events::declare_fault;
use support::redis_server::Kind;

static ROWS: AtomicUsize = AtomicUsize::new(0);
static SKIPPED: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicUsize = AtomicUsize::new(0);
static RESTARTS: AtomicUsize = AtomicUsize::new(0);
static OPERATIONS: AtomicUsize = AtomicUsize::new(0);

/// One row of the list of survived faults, while its test runs.
#[derive(Debug)]
pub struct Row {
    name: String,
    started: Instant,
    faults: AtomicUsize,
    restarts: AtomicUsize,
}

impl Row {
    /// Begins the row `name`.
    pub fn begin(name: impl Into<String>) -> Self {
        let (faults, restarts) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { name: name.into(), started: Instant::now(), faults, restarts }
    }

    /// Begins the row `name` on one of the two kinds of server.
    pub fn begin_on(kind: Kind, name: &str) -> Self {
        Self::begin(format!("{name} ({kind:?})"))
    }

    /// Counts an injected fault.
    pub fn fault(&self) {
        declare_fault();
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a fault that kills a process, and its restart.
    pub fn kill(&self) {
        self.fault();
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the row after the checker found nothing wrong.
    pub fn survived(self, operations: usize, verdict: Verdict) {
        let Verdict { acknowledged, denied, unknown, lost, revoked } = verdict;
        let what = format!(
            "{acknowledged} claims acknowledged, {denied} denied, {unknown} answers unknown, {lost} lost, {revoked} revoked"
        );
        self.passed(operations, &what);
    }

    /// Ends a row that does not use the checker's verdict.
    pub fn passed(self, operations: usize, what: &str) {
        let (faults, restarts) = (self.faults.into_inner(), self.restarts.into_inner());
        let rows = ROWS.fetch_add(1, Ordering::Relaxed) + 1;
        let all_faults = FAULTS.fetch_add(faults, Ordering::Relaxed) + faults;
        let all_restarts = RESTARTS.fetch_add(restarts, Ordering::Relaxed) + restarts;
        let all_operations = OPERATIONS.fetch_add(operations, Ordering::Relaxed) + operations;
        say(&format!(
            "survived {}: {faults} faults, {restarts} restarts, {operations} operations in {:.1} s; {what}\n         \
             so far {rows} rows ({} skipped), {all_faults} faults, {all_restarts} restarts, {all_operations} operations",
            self.name,
            self.started.elapsed().as_secs_f64(),
            SKIPPED.load(Ordering::Relaxed),
        ));
    }

    /// Returns what was started for the row. `None` skips the row, because the machine lacks something.
    pub fn needs<T>(&self, started: Result<T, String>) -> Option<T> {
        SKIPPED.fetch_add(usize::from(started.is_err()), Ordering::Relaxed);
        available(&self.name, started)
    }
}
