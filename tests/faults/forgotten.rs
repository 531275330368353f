//! A database that has lost its last transactions, as after a failover to a standby that lagged: what an admin was told is in
//! force, nothing acknowledged is lost that Redis has, and nothing is given twice.

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::campaign;
use support::inspect::key;
use support::pair::Pair;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually};

use crate::fixture::Fixture;

/// Waits until both stores have the same, by the product's own comparison.
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
async fn a_pause_is_in_force_after_sql_lost_the_change_before() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 100})).await;
        fixture.sql.copy_tables().await;
        core.patch("demo", json!({"limits": {"total": 90}})).await.expect(200);
        fixture.sql.bring_tables_back().await;
        let paused = core.set_admin_state("demo", "pause").await.expect(200).json();
        assert_eq!(paused["state"], "paused", "{paused}");
        for at in 0..10 {
            core.claim("demo", &format!("u{at}"), "k").await.refused(403, "paused");
        }
        assert_eq!(paused["limits"]["total"], 90, "the change that SQL had lost is there again");
        assert_eq!(version_in_sql(&fixture).await, 3);
        agrees(&fixture).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_in_force_after_sql_lost_two_changes_and_core_restarted() {
    for mut fixture in Fixture::on_both_databases().await {
        fixture.core.create("demo", json!({"total": 100})).await;
        fixture.sql.copy_tables().await;
        for total in [90, 80] {
            fixture.core.patch("demo", json!({"limits": {"total": total}})).await.expect(200);
        }
        fixture.sql.bring_tables_back().await;
        fixture.replace_core().await;
        fixture.core.set_admin_state("demo", "pause").await.expect(200);
        fixture.core.claim("demo", "ann", "k").await.refused(403, "paused");
        assert_eq!(fixture.core.campaign("demo").await["limits"]["total"], 80);
        agrees(&fixture).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lower_total_is_in_force_after_sql_lost_the_change_before() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 100})).await;
        fixture.sql.copy_tables().await;
        core.patch("demo", json!({"name": "Launch"})).await.expect(200);
        fixture.sql.bring_tables_back().await;
        core.patch("demo", json!({"limits": {"total": 3}})).await.expect(200);
        for at in 0..3 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        core.claim("demo", "u3", "k").await.refused(409, "sold_out");
        agrees(&fixture).await;
    }
}

/// Without any call of an admin, the older rules come back neither in SQL nor in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_rule_never_comes_back_by_itself() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 100})).await;
        core.claim("demo", "ann", "k").await.expect(201);
        fixture.relayed("demo").await;
        fixture.sql.copy_tables().await;
        core.set_admin_state("demo", "pause").await.expect(200);
        fixture.sql.bring_tables_back().await;
        eventually(SOON, || async {
            let version = version_in_sql(&fixture).await;
            holds(version == 2, || format!("SQL has version {version}"))
        })
        .await;
        agrees(&fixture).await;
        core.claim("demo", "bob", "k").await.refused(403, "paused");
        let audit = fixture.sql.audit("demo").await;
        let restored = audit.last().expect("an entry");
        assert_eq!((restored.1.as_str(), restored.2.as_str()), ("claimgate", "restore"), "{audit:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_restores_rules_and_looks_whether_it_has() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("demo", json!({"total": 100})).await;
        // Other rules of the same version: a version that was lost and given again.
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
async fn a_revoked_key_that_is_decided_again_has_its_new_quantity_in_sql() {
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

/// Held up in the other core: it has read the campaign while that was evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_acknowledged_after_a_reopening_is_found_through_every_core() {
    let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let pair = match Pair::start(options).await {
        Ok(pair) => pair,
        Err(why) => return crate::tally::say(&format!("SKIPPED: {why}")),
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
    // It reads the campaign, and finds it evicted.
    other.claim("demo", "ann", "k").await.refused(403, "ended");
    // Its reads of what has changed fail from now on: it knows no more than it did.
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
async fn a_campaign_whose_row_sql_has_lost_is_written_again() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        core.create("other", json!({"total": 1})).await;
        fixture.sql.copy_tables().await;
        core.create("demo", json!({"total": 10})).await;
        for at in 0..4 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        fixture.sql.bring_tables_back().await;
        core.claim("demo", "u4", "k").await.expect(201);
        let rows = fixture.sql.until("demo", 5).await;
        assert!(rows.iter().all(support::SqlClaim::stands), "{rows:?}");
        agrees(&fixture).await;
        for at in 5..10 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        core.claim("demo", "u10", "k").await.refused(409, "sold_out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_addition_whose_key_sql_has_lost_is_not_made_again() {
    for mut fixture in Fixture::on_both_databases().await {
        fixture.core.create("demo", json!({"total": 10})).await;
        fixture.sql.copy_tables().await;
        assert_eq!(add(&fixture.core, 5, "monday").await["limits"]["total"], 15);
        fixture.sql.bring_tables_back().await;
        fixture.replace_core().await;
        assert_eq!(add(&fixture.core, 5, "monday").await["limits"]["total"], 15, "it is the same addition");
        assert_eq!(add(&fixture.core, 5, "tuesday").await["limits"]["total"], 20);
        agrees(&fixture).await;
    }
}

/// Rows, marks and the raise of an epoch: all claims that Redis has come back to SQL without anybody's doing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_an_older_copy_lacks_come_back_by_themselves() {
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
        // The maintenance may be at it, too: a database that goes back during a load is another fault.
        agrees(&fixture).await;
        fixture.sql.bring_tables_back().await;
        core.claim("demo", "u20", "k").await.expect(201);
        fixture.sql.until("demo", 21).await;
        agrees(&fixture).await;
        for at in 21..30 {
            core.claim("demo", &format!("u{at}"), "k").await.expect(201);
        }
        core.claim("demo", "u30", "k").await.refused(409, "sold_out");
    }
}
