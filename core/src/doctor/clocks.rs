//! Checks that the servers' clocks agree.

use super::report::Finding;

/// A larger difference between clocks is a warning.
const CLOCKS_APART_MS_MAX: u64 = 1_000;
/// With a larger difference, campaigns' windows and the edge's signatures no longer work.
const CLOCKS_BROKEN_MS: u64 = 30_000;

/// Compares a clock that read `theirs_ms` at some time between `before_ms` and `after_ms` of this machine's clock.
pub(super) fn compare(
    check: &'static str,
    whose: &str,
    theirs_ms: i64,
    (before_ms, after_ms): (i64, i64),
) -> Option<Finding> {
    // A difference smaller than the round trip cannot be measured.
    let apart_ms = (before_ms - theirs_ms).max(theirs_ms - after_ms).max(0).unsigned_abs();
    let ahead = if theirs_ms > after_ms { "ahead of" } else { "behind" };
    let seconds = apart_ms / 1000;
    let problem = format!("{whose} clock is {seconds} s {ahead} this machine's");
    let remedy = "synchronize both (chrony, systemd-timesyncd)";
    if apart_ms > CLOCKS_BROKEN_MS {
        Some(Finding::breaks(check, format!("{problem}: campaigns open and close at the wrong time"), remedy))
    } else if apart_ms > CLOCKS_APART_MS_MAX {
        Some(Finding::warning(check, problem, remedy))
    } else {
        None
    }
}
