//! Clocks that are apart.

use super::report::Finding;

/// Clocks that are further apart than this are a warning, …
const CLOCKS_APART_MS_MAX: u64 = 1_000;
/// … and further than this, windows and signatures are not what they say.
const CLOCKS_BROKEN_MS: u64 = 30_000;

/// The finding on a clock that showed `theirs_ms` when it was read between `before_ms` and `after_ms` of this machine's.
pub(super) fn compare(
    check: &'static str,
    whose: &str,
    theirs_ms: i64,
    (before_ms, after_ms): (i64, i64),
) -> Option<Finding> {
    // Within the time that the answer took nothing can be told.
    let apart_ms = (before_ms - theirs_ms).max(theirs_ms - after_ms).max(0).unsigned_abs();
    let ahead = if theirs_ms > after_ms { "ahead of" } else { "behind" };
    let seconds = apart_ms / 1000;
    let problem = format!("{whose} clock is {seconds} s {ahead} this machine's");
    let remedy = "synchronise both (chrony, systemd-timesyncd)";
    if apart_ms > CLOCKS_BROKEN_MS {
        Some(Finding::breaks(
            check,
            format!("{problem}: campaigns open and close at another time than they say"),
            remedy,
        ))
    } else if apart_ms > CLOCKS_APART_MS_MAX {
        Some(Finding::warning(check, problem, remedy))
    } else {
        None
    }
}
