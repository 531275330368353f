//! Servers and tools that a test needs and the machine may lack.

use std::io::Write as _;

/// Returns the server or tool that was started for the test `what`. `None` skips the test, prints why, and
/// fails the test in CI.
pub fn available<T>(what: &str, started: Result<T, String>) -> Option<T> {
    let unavailable = |why: &String| {
        say(&format!("SKIPPED {what}: {why}"));
        assert!(std::env::var_os("CI").is_none(), "{what} cannot be skipped in CI: {why}");
    };
    started.inspect_err(unavailable).ok()
}

/// Writes a line to standard error directly, because the test harness hides the output of a passing test.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
