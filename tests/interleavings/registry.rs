//! Finds every step point in core's source, and lists those that no schedule can reach.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Step points that no protocol reaches, each with the reason.
const NOT_REACHED: &[(&str, &str)] = &[
    ("redis:probe", "the health check, which changes nothing"),
    ("redis:store_id", "read only at the start"),
    ("redis:set_store_id_if_missing", "written at the start, then only with the same value"),
    ("redis:keep_layout", "written only at the start, if missing or of the earlier layout"),
    ("redis:layout", "read only at the start"),
    ("redis:survey", "a check of idle campaigns, which changes nothing"),
    ("redis:keys_owner", "used only by `drop-foreign`; tested by faults::registers"),
    ("redis:request_check", "used only by `drop-foreign`"),
    ("redis:requested_checks", "read by the maintenance, which checks these campaigns immediately"),
    ("redis:restore_group", "only for a damaged outbox; tested by faults::jobs"),
    ("redis:sold_out", "called in a separate task of the batcher"),
    ("redis:lease.renew", "called in a separate task of the lease"),
    ("redis:user", "a read of one user's claims, which changes nothing"),
    ("sql:claims_of_user", "as above"),
    ("sql:taken_by_user", "as above"),
    ("sql:claims", "lists and exports, which change nothing"),
    ("sql:codes_of", "as above"),
    ("sql:codes_of.codes", "as above"),
    ("sql:audit_codes_read", "records who read codes"),
    ("sql:campaigns", "lists of campaigns, which change nothing"),
    ("sql:set_archived", "changes only whether lists leave the campaign out"),
    ("sql:audit", "a list of changes, which only assigns numbers to them"),
    ("sql:last_audit", "as above, for the dashboard"),
    ("sql:feed_end", "read while a reader waits, which changes nothing"),
    ("sql:webhooks", "a list of webhooks, which changes nothing"),
    ("sql:create_webhook", "created before the protocols; tested by e2e::webhooks"),
    ("sql:delete_webhook", "an admin's change of a webhook, tested by e2e::webhooks"),
    ("sql:enable_webhook", "as above"),
    ("sql:rotate_webhook", "as above"),
    ("sql:disable_webhook", "only for a receiver that rejects events, tested by e2e::webhooks"),
    ("sql:waiting_events", "as above"),
    ("sql:remove_delivered_event", "as above"),
    ("sql:reschedule_event", "as above"),
    ("sql:next_event_due", "as above"),
    ("sql:release_webhooks", "used only when core stops"),
    ("sql:end_webhook_leases_of_core", "used only at the start"),
    ("sql:begin_import", "used only by an import; reached in tests/interleavings/lost_imports.rs"),
    ("sql:import_claims", "used only by an import"),
    ("sql:end_import", "used only by an import"),
    ("sql:last_change", "read at the start, and in tests/interleavings/user_ids.rs"),
    ("sql:set_user_ids", "reached in tests/interleavings/user_ids.rs, during a reopening"),
    ("sql:pin_user_ids", "as above"),
    ("sql:restore_user_ids", "writes back what SQL has lost, unless another core has"),
];

/// Returns the step points in core's source except those of [`NOT_REACHED`].
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
    assert!(found.len() > 20, "core's source must contain its step points: {found:?}");
    for &(name, _) in NOT_REACHED {
        assert!(found.remove(name), "core's source has no {name}");
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

/// Step points depend on `debug_assertions` (core's `step.rs`), which no release profile may enable.
/// `tests/packages.sh` checks the packaged binary.
#[test]
fn no_profile_sets_debug_assertions() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("the workspace's manifest");
    assert!(!manifest.contains("debug-assertions"), "a profile sets debug-assertions");
}
