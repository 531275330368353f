//! Every step point in core's source, and those that no schedule can come to.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Step points that no protocol of the schedules comes to, each with the reason.
const ELSEWHERE: [(&str, &str); 38] = [
    ("redis:ping", "the health check, which changes nothing"),
    ("redis:store_id", "asked at the start alone"),
    ("redis:keep_store_id", "written at the start, and then again as it is"),
    ("redis:keep_layout", "written at the start, where there is none"),
    ("redis:layout", "asked at the start alone"),
    ("redis:survey", "a look at campaigns at rest, which changes nothing"),
    ("redis:keys_owner", "asked by `drop-foreign` alone; faults::registers does"),
    ("redis:want_look", "asked by `drop-foreign` alone"),
    ("redis:looks_wanted", "asked by the maintenance, which looks at these campaigns out of turn"),
    ("redis:restore_group", "for an outbox that was tampered with; faults::jobs does"),
    ("redis:sold_out", "asked in a task of the batcher's own"),
    ("redis:lease.renew", "asked in a task of the lease's own"),
    ("redis:user", "a look at one user's claims, which changes nothing"),
    ("sql:claims_of_user", "as above"),
    ("sql:taken_by_user", "as above"),
    ("sql:claims", "lists and exports, which change nothing"),
    ("sql:campaigns", "lists of campaigns, which change nothing"),
    ("sql:audit", "a list of changes, which changes nothing but the numbers of what it lists"),
    ("sql:last_audit", "as above, for the dashboard"),
    ("sql:feed", "reads of the feed, which change nothing"),
    ("sql:feed_end", "as above"),
    ("sql:webhooks", "webhooks follow the feed, and change nothing of a claim; e2e::webhooks"),
    ("sql:webhook", "as above"),
    ("sql:create_webhook", "as above"),
    ("sql:delete_webhook", "as above"),
    ("sql:enable_webhook", "as above"),
    ("sql:rotate_webhook", "as above"),
    ("sql:disable_webhook", "as above"),
    ("sql:hold_webhook", "as above"),
    ("sql:release_webhooks", "as above"),
    ("sql:waiting_events", "as above"),
    ("sql:advance_webhook", "as above"),
    ("sql:took_waiting", "as above"),
    ("sql:put_off_waiting", "as above"),
    ("sql:begin_import", "asked by an import alone; faults::import kills one"),
    ("sql:import_claims", "asked by an import alone"),
    ("sql:end_import", "asked by an import alone"),
    ("sql:last_change", "asked at the start alone"),
];

/// The names that stand in core's source but for those of [`ELSEWHERE`].
pub fn names() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src");
    let mut found = BTreeSet::new();
    for file in files(&source) {
        let text = fs::read_to_string(&file).expect("a source file");
        for store in ["redis:", "sql:"] {
            for (at, _) in text.match_indices(&format!("\"{store}")) {
                let literal = text[at + 1..].split('"').next().unwrap_or_default();
                let name = literal.strip_prefix(store).unwrap_or_default();
                if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c)) {
                    found.insert(literal.to_owned());
                }
            }
        }
    }
    assert!(found.len() > 20, "core's source has its step points: {found:?}");
    for (name, _) in ELSEWHERE {
        assert!(found.remove(name), "{name} stands nowhere in core's source");
    }
    found
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(directory).expect("core's source").map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                Vec::from_iter(path.extension().is_some_and(|of| of == "rs").then_some(path))
            }
        })
        .collect()
}

/// Step points follow `debug_assertions` (core's `step.rs`), which no profile of a release may turn on. That the packaged
/// binary has none is checked by `tests/packages.sh`.
#[test]
fn a_release_has_no_step_points() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("the workspace's manifest");
    assert!(!manifest.contains("debug-assertions"), "a profile changes them");
}
