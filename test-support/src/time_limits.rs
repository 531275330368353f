//! The time limits of waits.

use std::time::Duration;

/// The limit of every wait for something that must happen: far longer than it takes on the slowest machine, so that it
/// elapses only if nothing would ever happen. Costs nothing while all is well.
pub const SOON: Duration = Duration::from_secs(180);

/// Returns the limit of what is promised within `time`. On a busy machine nothing is in time, so the gate only checks
/// that it happens; the part `promises` of `make soak` runs one test at a time and checks the times.
pub fn promised(time: Duration) -> Duration {
    if std::env::var_os("PROMISES").is_some() { time } else { SOON }
}

/// Returns whether `scripts/slow.sh` runs the tests.
pub fn is_slow() -> bool {
    std::env::var_os("CLAIMGATE_TEST_SLOW").is_some()
}

/// Returns the limit of a wait that may take `within`: four times as long on a simulated slow machine.
pub(crate) fn limit(within: Duration) -> Duration {
    if is_slow() { 4 * within } else { within }
}
