//! The list of migrations that sqlx runs.
//!
//! The list is written by hand, because sqlx's macro would build both drivers a second time for the compiler.

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// The version, description and text of each migration. sqlx stores them in the table `_sqlx_migrations`, the
/// text as a checksum, so they must never change.
const ALL: [(i64, &str, &str); 25] = [
    (1, "register", include_str!("../../../migrations/0001_register.sql")),
    (2, "claims by place and user", include_str!("../../../migrations/0002_claims_by_place_and_user.sql")),
    (3, "fencing", include_str!("../../../migrations/0003_fencing.sql")),
    (4, "standard names", include_str!("../../../migrations/0004_standard_names.sql")),
    (5, "claim identity", include_str!("../../../migrations/0005_claim_identity.sql")),
    (6, "claim status check", include_str!("../../../migrations/0006_claim_status_check.sql")),
    (7, "changes", include_str!("../../../migrations/0007_changes.sql")),
    (8, "replication", include_str!("../../../migrations/0008_replication.sql")),
    (9, "additions", include_str!("../../../migrations/0009_additions.sql")),
    (10, "audit in order", include_str!("../../../migrations/0010_audit_in_order.sql")),
    (11, "imports", include_str!("../../../migrations/0011_imports.sql")),
    (12, "feed", include_str!("../../../migrations/0012_feed.sql")),
    (13, "audit of claims", include_str!("../../../migrations/0013_audit_of_claims.sql")),
    (14, "webhooks", include_str!("../../../migrations/0014_webhooks.sql")),
    (15, "revoked claims", include_str!("../../../migrations/0015_revoked_claims.sql")),
    (16, "cores", include_str!("../../../migrations/0016_cores.sql")),
    (17, "webhook events by time", include_str!("../../../migrations/0017_webhook_events_by_time.sql")),
    (18, "user ids", include_str!("../../../migrations/0018_user_ids.sql")),
    (19, "passes", include_str!("../../../migrations/0019_passes.sql")),
    (20, "refusals", include_str!("../../../migrations/0020_refusals.sql")),
    (21, "codes", include_str!("../../../migrations/0021_codes.sql")),
    (22, "extensions", include_str!("../../../migrations/0022_extensions.sql")),
    (23, "return reasons", include_str!("../../../migrations/0023_return_reasons.sql")),
    (24, "archived", include_str!("../../../migrations/0024_archived.sql")),
    (25, "checked user ids", include_str!("../../../migrations/0025_checked_user_ids.sql")),
];

/// Returns all migrations in order.
pub fn migrator() -> Migrator {
    let migrations = ALL.map(|(version, description, text)| {
        Migration::new(version, description.into(), MigrationType::Simple, text.into_sql_str(), false)
    });
    Migrator::with_migrations(migrations.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_migration_of_the_directory_is_listed() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name());
        let mut files: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
        files.sort();
        let listed = ALL
            .map(|(version, description, _)| format!("{version:04}_{}.sql", description.replace(' ', "_")));
        assert_eq!(listed.as_slice(), files);
    }
}
