//! What was survived, row by row. Written past the test harness, which would keep it to itself.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use support::checker::Verdict;
use support::redis_server::Kind;

static ROWS: AtomicUsize = AtomicUsize::new(0);
static SKIPPED: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicUsize = AtomicUsize::new(0);
static RESTARTS: AtomicUsize = AtomicUsize::new(0);
static OPERATIONS: AtomicUsize = AtomicUsize::new(0);

/// One row of the list of faults, while its test runs.
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

    /// Begins the row `name` on one of the two servers.
    pub fn begin_on(kind: Kind, name: &str) -> Self {
        Self::begin(format!("{name} ({kind:?})"))
    }

    /// A fault was injected.
    pub fn fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// A process was killed, and is to come back.
    pub fn kill(&self) {
        self.fault();
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// The judge has found nothing wrong.
    pub fn survived(self, operations: usize, verdict: Verdict) {
        let Verdict { acknowledged, denied, unknown, lost, revoked } = verdict;
        let what = format!(
            "{acknowledged} claims acknowledged, {denied} denied, {unknown} answers unknown, {lost} lost, {revoked} revoked"
        );
        self.passed(operations, &what);
    }

    /// As [`Self::survived`], for rows that end elsewhere than before the judge.
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

    /// This machine cannot run the row. Where everything is to be there, that is a failure.
    pub fn skip(self, why: &str) {
        SKIPPED.fetch_add(1, Ordering::Relaxed);
        say(&format!("SKIPPED {}: {why}", self.name));
        let must_run = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must_run, "{} cannot be skipped where CI=true: {why}", self.name);
    }
}

/// A line that is seen also when the test passes.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
