//! Events that `scripts/test.sh` counts at the end of a run: retried calls, stalls of the machine, and full disks.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

/// Names of the tests that have caused a fault, after which core may answer 503 more often.
static FAULTY: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Records the test and the retried call. A test that retries calls of `Client::once` records each retry itself.
pub fn record(call: &str) {
    let test = test_name();
    let is_expected = FAULTY.lock().expect("the tests with a fault").contains(&test);
    let kind = if is_expected { "retry-after-fault" } else { "retry" };
    eprintln!("repeated: {test} {call}");
    note(&format!("{kind} {test} {call}"));
}

/// Records that this test has caused a fault: `scripts/test.sh` does not limit its retries from now on.
pub fn declare_fault() {
    FAULTY.lock().expect("the tests with a fault").insert(test_name());
}

/// Returns the name of this thread, which is that of its test.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("(shared)").to_owned()
}

/// Appends a line to the file that `scripts/test.sh` reads. Its first word is the kind of event.
pub(crate) fn note(line: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/repeated-calls.log");
    let file = OpenOptions::new().create(true).append(true).open(file);
    // One write, so that test binaries do not mix their lines.
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())).expect("the file of events");
}
