//! A database that has lost its last transactions, as after a failover to a standby that lagged. Changes
//! acknowledged to an admin stay in force, no acknowledged claim that Redis has is lost, and no unit is
//! granted twice.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::core_client::campaign;
use support::inspect::key;
use support::pair::Pair;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually, promised};

use crate::fixture::Fixture;
use crate::import::import;

/// Time limit until core has restored what a rolled-back database lacks: a second until core detects the loss, and the
/// load of one campaign.
const RESTORED_MAX: Duration = Duration::from_secs(3);

/// Waits until `core` has counted, for the alarm, at least `more` of what SQL has lost.
async fn reports_lost(core: &Core, more: u64) {
    eventually(SOON, || async {
        let lost: u64 = core.metric("claimgate_lost_events_total").await.expect("a counter");
        holds(lost >= more, || format!("{lost} were reported"))
    })
    .await;
}

/// Waits until core's reconciliation finds no difference between the stores.
async fn agrees(fixture: &Fixture) {
    eventually(SOON, || async {
        let compared = fixture.reconciliation("demo").await;
        holds(compared["agrees"] == true, || compared.to_string())
    })
    .await;
}

async fn repaired(core: &Core) -> Value {
    let path = "/admin/v1/campaigns/demo/reconciliation";
    core.admin(Method::POST, path, &json!({})).await.expect(200).json()
}

async fn version_in_sql(fixture: &Fixture) -> i64 {
    fixture.sql.number("SELECT version FROM campaigns WHERE id = $1", "demo").await
}

async fn add(core: &Core, units: i64, key: &str) -> Value {
    let body = json!({"units": units, "idempotency_key": key});
    core.admin(Method::POST, "/admin/v1/campaigns/demo/add", &body).await.expect(200).json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_applies_after_sql_lost_the_previous_change() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 100})).await;
        fixture.sql.copy_tables().await;
        core.patch("demo", json!({"limits": {"total": 90}})).await.expect(200);
        fixture.sql.restore_tables().await;
        let paused = core.set_admin_state("demo", "pause").await.expect(200).json();
        assert_eq!(paused["state"], "paused", "{paused}");
        for at in 0..10 {
            core.claim("demo", &format!("u{at}"), "k").await.refused(403, "paused");
        }
        assert_eq!(paused["limits"]["total"], 90, "the change that SQL had lost must be restored");
        assert_eq!(version_in_sql(&fixture).await, 3);
        agrees(&fixture).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_applies_after_sql_lost_two_changes_and_a_restart() {
    for mut fixture in Fixture::on_both_databases().await {
        fixture.core.create("demo", json!({"total": 100})).await;
        fixture.sql.copy_tables().await;
        for total in [90, 80] {
            fixture.core.patch("demo", json!({"limits": {"total": total}})).await.expect(200);
        }
        fixture.sql.restore_tables().await;
        fixture.replace_core().await;
        fixture.core.set_admin_state("demo", "pause").await.expect(200);
        fixture.core.claim("demo", "ann", "k").await.refused(403, "paused");
        assert_eq!(fixture.core.campaign("demo").await["limits"]["total"], 80);
        agrees(&fixture).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lower_total_applies_after_sql_lost_the_previous_change() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 100})).await;
        fixture.sql.copy_tables().await;
        core.patch("demo", json!({"name": "Launch"})).await.expect(200);
        fixture.sql.restore_tables().await;
        core.patch("demo", json!({"limits": {"total": 3}})).await.expect(200);
        for at in 0..3 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        core.claim("demo", "u3", "k").await.refused(409, "sold_out");
        agrees(&fixture).await;
    }
}

/// Without any admin call, the older rules do not return in SQL or in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_rules_never_return_without_an_admin() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 100})).await;
        core.claim("demo", "ann", "k").await.expect(201);
        fixture.relayed("demo").await;
        fixture.sql.copy_tables().await;
        core.set_admin_state("demo", "pause").await.expect(200);
        fixture.sql.restore_tables().await;
        eventually(promised(RESTORED_MAX), || async {
            let version = version_in_sql(&fixture).await;
            holds(version == 2, || format!("SQL has version {version}"))
        })
        .await;
        agrees(&fixture).await;
        reports_lost(core, 1).await;
        core.claim("demo", "bob", "k").await.refused(403, "paused");
        let audit = fixture.sql.audit("demo").await;
        let restored = audit.last().expect("an entry");
        assert_eq!((restored.1.as_str(), restored.2.as_str()), ("claimgate", "restore"), "{audit:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_restores_rules_and_verifies_them() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 100})).await;
        // Store different rules under the same version, as if that version had been lost and reassigned.
        fixture.sql.run("UPDATE campaigns SET total = 7 WHERE id = 'demo'".to_owned()).await;
        let before = fixture.reconciliation("demo").await;
        assert!(before["differences"].to_string().contains("rules"), "{before}");
        let after = repaired(core).await;
        assert_eq!(after["agrees"], true, "{after}");
        for at in 0..7 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        core.claim("demo", "u7", "k").await.refused(409, "sold_out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_decided_again_stores_its_new_quantity() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 10})).await;
        core.claim("demo", "bob", "k").await.expect(201);
        fixture.relayed("demo").await;
        fixture.sql.run("UPDATE claims SET status = 'revoked' WHERE user_id = 'bob'".to_owned()).await;
        repaired(core).await;
        core.claim_units("demo", "bob", "k", 3).await.expect(201);
        fixture.relayed("demo").await;
        let quantity = "SELECT quantity FROM claims WHERE campaign_id = $1 AND user_id = 'bob'";
        assert_eq!(fixture.sql.number(quantity, "demo").await, 3);
        repaired(core).await;
        core.claim_units("demo", "carol", "k", 8).await.refused(409, "sold_out");
        core.claim_units("demo", "carol", "k2", 7).await.expect(201);
        core.claim_units("demo", "bob", "k", 3).await.expect(200);
        agrees(&fixture).await;
    }
}

/// The other core has read the campaign while it was evicted, and cannot read later changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_core_finds_a_key_acknowledged_after_a_reopening() {
    let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let Some(pair) = available("a key acknowledged after a reopening", Pair::start(options).await) else {
        return;
    };
    let [one, other] = &pair.cores;
    let mut body = campaign("demo", json!({"total": 100}));
    body["ends_at"] = json!("2021-01-01T00:00:00Z");
    body["starts_at"] = json!("2020-01-01T00:00:00Z");
    one.create_with(body).await;
    eventually(SOON, || async {
        let evicted = "SELECT CAST(CASE WHEN evicted_at IS NULL THEN 0 ELSE 1 END AS BIGINT) FROM campaigns WHERE id = $1";
        holds(pair.sql.number(evicted, "demo").await == 1, || "not evicted".to_owned())
    })
    .await;
    // The other core reads the campaign while it is evicted.
    other.claim("demo", "ann", "k").await.refused(403, "ended");
    // From now on the other core's reads of changes fail, so it finds no newer changes.
    pair.sql.run("ALTER TABLE last_change RENAME TO last_change_gone".to_owned()).await;
    pair.sql.run("CREATE TABLE last_change (one BIGINT, number BIGINT)".to_owned()).await;
    pair.sql.run("INSERT INTO last_change SELECT * FROM last_change_gone".to_owned()).await;
    one.patch("demo", json!({"ends_at": null})).await.expect(200);
    let won = one.claim("demo", "ann", "k").await.expect(201).json();
    let found = other.claim("demo", "ann", "k").await.expect(200).json();
    assert_eq!(found["claim"]["id"], won["claim"]["id"]);
    other.look_up(won["claim"]["id"].as_str().unwrap()).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_row_lost_by_sql_is_restored() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("other", json!({"total": 1})).await;
        fixture.sql.copy_tables().await;
        core.create("demo", json!({"total": 10})).await;
        for at in 0..4 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        fixture.sql.restore_tables().await;
        core.claim("demo", "u4", "k").await.expect(201);
        let rows = fixture.sql.until("demo", 5).await;
        assert!(rows.iter().all(support::SqlClaim::is_active), "{rows:?}");
        agrees(&fixture).await;
        reports_lost(core, 1).await;
        for at in 5..10 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        core.claim("demo", "u10", "k").await.refused(409, "sold_out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_addition_whose_key_sql_lost_is_not_repeated() {
    for mut fixture in Fixture::on_both_databases().await {
        fixture.core.create("demo", json!({"total": 10})).await;
        fixture.sql.copy_tables().await;
        assert_eq!(add(&fixture.core, 5, "monday").await["limits"]["total"], 15);
        fixture.sql.restore_tables().await;
        fixture.replace_core().await;
        assert_eq!(
            add(&fixture.core, 5, "monday").await["limits"]["total"],
            15,
            "it must be the same addition"
        );
        assert_eq!(add(&fixture.core, 5, "tuesday").await["limits"]["total"], 20);
        agrees(&fixture).await;
    }
}

/// All claims that Redis has return to SQL automatically, with high-water marks and epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_missing_from_an_older_sql_copy_are_restored() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 30})).await;
        for at in 0..10 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        fixture.relayed("demo").await;
        fixture.sql.copy_tables().await;
        for at in 10..20 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        fixture.relayed("demo").await;
        fixture.redis().await.query::<u64>(&["UNLINK", &key("demo", "outbox")]).await;
        repaired(core).await;
        // The maintenance job may be loading the campaign at this moment; a database that is replaced by an
        // older copy during a load is a different fault.
        agrees(&fixture).await;
        fixture.sql.restore_tables().await;
        core.claim("demo", "u20", "k").await.expect(201);
        fixture.sql.until("demo", 21).await;
        agrees(&fixture).await;
        reports_lost(core, 10).await;
        for at in 21..30 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        core.claim("demo", "u30", "k").await.refused(409, "sold_out");
    }
}

/// The same file completes the import; each of its claims counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_lost_by_sql_is_completed_by_the_same_file() {
    const FILE: &str = "user_id,quantity,idempotency_key\nann,2,old-1\nbob,1,old-2\n";
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 4})).await;
        core.set_admin_state("demo", "pause").await.expect(200);
        fixture.sql.copy_tables().await;
        import(core, "demo", FILE).await.expect(200);
        fixture.sql.restore_tables().await;
        let again = import(core, "demo", FILE).await.expect(200).json();
        let claims = again["imported"].as_u64().zip(again["already"].as_u64());
        assert_eq!(claims.map(|(new, old)| new + old), Some(2), "{again}");
        core.set_admin_state("demo", "resume").await.expect(200);
        agrees(&fixture).await;
        core.claim_units("demo", "ann", "old-1", 2).await.expect(200);
        core.claim_units("demo", "carol", "k", 2).await.refused(409, "sold_out");
        core.claim("demo", "carol", "k").await.expect(201);
        fixture.sql.until("demo", 3).await;
        agrees(&fixture).await;
    }
}

/// Otherwise a core that starts later would let one user have two ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_id_scheme_lost_by_sql_is_pinned_again() {
    for mut fixture in Fixture::on_both_databases().await {
        fixture.sql.copy_tables().await;
        let scheme = json!({"user_ids": "hmac:PBjTMm"});
        fixture.core.admin(Method::POST, "/admin/v1/user-ids", &scheme).await.expect(200);
        fixture.sql.restore_tables().await;
        eventually(SOON, || async {
            let pinned = fixture.sql.number("SELECT COUNT(*) FROM user_ids WHERE scheme <> $1", "").await;
            holds(pinned == 1, || "SQL lacks the scheme".to_owned())
        })
        .await;
        fixture.replace_core().await;
        fixture.core.create("demo", json!({"total": 10})).await;
        fixture.core.claim("demo", "ann", "k").await.refused(503, "user_ids_differ");
    }
}
