//! SQL by itself, on both databases: what its own guard lets in, and what it does about rows it cannot read.

use std::time::{Duration, Instant};

use claimgate_core::config::sqlite_url;
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::domain::claim_record::ClaimRecord;
use claimgate_core::domain::counters::Epoch;
use claimgate_core::domain::event::{ClaimEvent, OutboxEntry};
use claimgate_core::domain::high_water_mark::HighWaterMark;
use claimgate_core::store::sql::{Change, EntryOrder, SqlStore};
use claimgate_shared::{CampaignId, ClaimStatus, Timestamp};
use futures_util::future::join_all;
use serde_json::json;
use support::postgres::Postgres;
use support::signing::claim_id;
use support::times::from_now;
use support::wait::holds;
use support::{SOON, eventually};
use tempfile::TempDir;

use crate::fixture::Fixture;
use crate::tally::Row;

/// A database of either kind, and what it stands on.
struct Database {
    sql: SqlStore,
    campaign: CampaignId,
    _directory: TempDir,
    postgres: Option<Postgres>,
}

impl Database {
    /// With one campaign, at epoch 1 and without limits.
    async fn open(url: &str, directory: TempDir, postgres: Option<Postgres>) -> Self {
        let sql = SqlStore::open(url).await.unwrap();
        let body = json!({"id": "demo", "name": "demo", "starts_at": from_now(-60), "limits": {}});
        let campaign = NewCampaign::parse(body.to_string().as_bytes(), claimgate_core::clock::now()).unwrap();
        let change = Change { who: "test", what: "create", at: claimgate_core::clock::now() };
        assert!(sql.create(&campaign, change).await.unwrap().is_none());
        let drawn = sql.draw_token(&campaign.id).await.unwrap().expect("the campaign");
        sql.raise_epoch(&drawn, Epoch::new(1), HighWaterMark::default()).await.unwrap().expect("epoch 1");
        Self { sql, campaign: campaign.id, _directory: directory, postgres }
    }

    async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::open(&sqlite_url(&directory.path().join("claimgate.sqlite")), directory, None).await
    }

    async fn postgres() -> Result<Self, String> {
        let postgres = Postgres::start().await?;
        let url = postgres.database("claimgate").await;
        Ok(Self::open(&url, tempfile::tempdir().unwrap(), Some(postgres)).await)
    }
}

/// One grant, decided under `limit_at_decision` (none: without a limit) as the `cumulative_taken`th unit.
fn grant(epoch: u64, limit_at_decision: Option<u64>, cumulative_taken: u64) -> OutboxEntry {
    let claim = ClaimRecord {
        digest: [7; 16],
        status: ClaimStatus::Granted,
        revision: 1,
        quantity: 1,
        sequence: cumulative_taken,
        claimed_at: Timestamp::from_ms(1_750_000_000_000).unwrap(),
        expires_at: None,
        day: 20_000,
    };
    let event = ClaimEvent {
        user: "alice".parse().unwrap(),
        updated_at: claim.claimed_at,
        claim,
        limit_at_decision,
        cumulative_taken: Some(cumulative_taken),
    };
    OutboxEntry {
        id: format!("1-{cumulative_taken}"),
        epoch: Epoch::new(epoch),
        count: cumulative_taken,
        events: vec![event],
        by: None,
        trace: None,
    }
}

/// A claim that is stored as revoked, and granted again once the total has been removed, is granted in SQL too: the
/// guard of the first decision says nothing about the second.
async fn granted_again(row: Row, database: Database, at_once: bool) {
    let Database { sql, campaign, .. } = &database;
    let (before, after) = (grant(0, Some(100), 90), grant(1, None, 150));
    let id = before.events[0].claim_id(campaign);
    if at_once {
        sql.write_entries(&[(campaign, &[before, after])], EntryOrder::Any).await.expect("both in one");
    } else {
        sql.write_entries(&[(campaign, &[before])], EntryOrder::Any)
            .await
            .expect("what an older epoch has written");
        let claim = sql.claim(&id).await.unwrap().expect("a claim").claim;
        assert_eq!(claim.status, ClaimStatus::Revoked);
        sql.write_entries(&[(campaign, &[after])], EntryOrder::Any)
            .await
            .expect("what is acknowledged is written");
    }
    let claim = sql.claim(&id).await.unwrap().expect("a claim").claim;
    assert_eq!((claim.status, claim.sequence), (ClaimStatus::Granted, 150));
    row.passed(2, "granted");
}

#[tokio::test]
async fn a_revoked_claim_is_granted_again_without_a_total_sqlite() {
    let row = Row::begin("granted again after the total was removed: SQLite");
    granted_again(row, Database::sqlite().await, false).await;
    let row = Row::begin("granted again after the total was removed, both relayed at once: SQLite");
    granted_again(row, Database::sqlite().await, true).await;
}

#[tokio::test]
async fn a_revoked_claim_is_granted_again_without_a_total_postgres() {
    for at_once in [false, true] {
        let row = Row::begin("granted again after the total was removed: PostgreSQL");
        match Database::postgres().await {
            Ok(database) => granted_again(row, database, at_once).await,
            Err(why) => row.skip(&why),
        }
    }
}

/// A loader whose token is not the last one drawn raises no epoch: it would set back the epoch of a later load.
async fn a_late_loader(row: Row, database: Database) {
    let Database { sql, campaign, .. } = &database;
    let late = sql.draw_token(campaign).await.unwrap().expect("the campaign");
    let last = sql.draw_token(campaign).await.unwrap().expect("the campaign");
    let nothing = HighWaterMark::default();
    assert!(sql.raise_epoch(&last, Epoch::new(3), nothing).await.unwrap().is_some());
    assert!(sql.raise_epoch(&late, Epoch::new(2), nothing).await.unwrap().is_none(), "it was late");
    let epoch = sql.campaign(campaign).await.unwrap().expect("the campaign").epoch;
    assert_eq!(epoch, Epoch::new(3));
    row.passed(1, "raises nothing");
}

#[tokio::test]
async fn a_late_loader_raises_no_epoch_sqlite() {
    a_late_loader(Row::begin("a late loader raises no epoch: SQLite"), Database::sqlite().await).await;
}

#[tokio::test]
async fn a_late_loader_raises_no_epoch_postgres() {
    let row = Row::begin("a late loader raises no epoch: PostgreSQL");
    match Database::postgres().await {
        Ok(database) => a_late_loader(row, database).await,
        Err(why) => row.skip(&why),
    }
}

/// A row that this build cannot read, as another version may have written it, stops neither the others nor the start.
async fn one_is_unreadable(row: Row, mut fixture: Fixture) {
    for id in ["aaa", "demo", "zzz"] {
        fixture.core.create(id, json!({"total": 10})).await;
        fixture.core.claim(id, "alice", "k").await.expect(201);
    }
    fixture.relayed("aaa").await;
    row.kill();
    fixture.core.kill();
    let zone = |zone| format!("UPDATE campaigns SET time_zone = '{zone}' WHERE id = 'aaa'");
    assert_eq!(fixture.sql.run(zone("Mars/Olympus")).await, 1);
    fixture.core = fixture.core.restart().await;
    for id in ["demo", "zzz"] {
        eventually(SOON, || async {
            let reply = fixture.core.claim(id, "bob", "k").await;
            holds([200, 201].contains(&reply.status), || reply.text())
        })
        .await;
    }
    let listed = fixture.core.admin_get("/admin/v1/campaigns?limit=1").await.expect(200).json();
    assert_eq!((listed["items"].as_array().unwrap().len(), &listed["next_cursor"]), (0, &json!("aaa")));
    let listed = fixture.core.admin_get("/admin/v1/campaigns?cursor=aaa").await.expect(200).json();
    let ids: Vec<_> = listed["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect();
    assert_eq!(ids, ["demo", "zzz"]);
    for _ in 0..3 {
        let caller = fixture.core.once();
        let refused = [
            caller.claim("aaa", "bob", "k").await,
            caller.look_up(&claim_id("aaa", "alice", "k")).await,
            caller.get("/internal/v1/campaigns/aaa").await,
            caller.admin_get("/admin/v1/campaigns/aaa").await,
            caller.set_admin_state("aaa", "pause").await,
        ];
        for reply in refused {
            let text = reply.refused(503, "unavailable").text();
            assert!(!text.contains("Mars") && !text.contains("zone"), "{text}");
        }
    }
    // Several reads of the database later, the log has said it once.
    fixture.core.create("later", json!({})).await;
    let path = "/admin/v1/campaigns/later";
    for _ in 0..2 {
        let asked = Instant::now();
        eventually(SOON, || async {
            let reply = fixture.core.admin_get(path).await.expect(200);
            holds(asked.elapsed() > Duration::from_millis(1200), || reply.text())
        })
        .await;
    }
    let log = fixture.core.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("cannot read")).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("aaa") && lines[0].contains("zone"), "{lines:?}");
    assert_eq!(fixture.sql.run(zone("UTC")).await, 1);
    eventually(SOON, || async {
        let reply = fixture.core.claim("aaa", "bob", "k").await;
        holds([200, 201].contains(&reply.status), || reply.text())
    })
    .await;
    row.passed(20, "the others were served, and it is back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unreadable_campaign_stops_no_other_sqlite() {
    let row = Row::begin("a campaign that cannot be read: SQLite");
    one_is_unreadable(row, Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unreadable_campaign_stops_no_other_postgres() {
    let row = Row::begin("a campaign that cannot be read: PostgreSQL");
    match Fixture::on_postgres(true).await {
        Ok(fixture) => one_is_unreadable(row, fixture).await,
        Err(why) => row.skip(&why),
    }
}

/// Beside whatever else waits for SQL.
#[tokio::test]
async fn a_ping_says_soon_how_sql_is() {
    let row = Row::begin("SQL asked how it is: PostgreSQL, SIGSTOP");
    let Database { sql, campaign, postgres, .. } = match Database::postgres().await {
        Ok(database) => database,
        Err(why) => return row.skip(&why),
    };
    let postgres = postgres.expect("a PostgreSQL");
    sql.ping().await.expect("SQL answers");
    row.fault();
    postgres.freeze();
    let asked = Instant::now();
    let (ping, others) = tokio::join!(sql.ping(), join_all((0..20).map(|_| sql.campaign(&campaign))));
    assert!(ping.is_err() && others.iter().all(Result::is_err), "SQL was to stand still");
    assert!(asked.elapsed() < Duration::from_millis(2500), "{:?}", asked.elapsed());
    let asked = Instant::now();
    sql.ping().await.expect_err("SQL was to stand still");
    assert!(asked.elapsed() < Duration::from_millis(1500), "{:?}", asked.elapsed());
    postgres.thaw();
    eventually(SOON, || async { sql.ping().await.map_err(|error| error.to_string()) }).await;
    sql.campaign(&campaign).await.expect("SQL answers").expect("a campaign");
    row.passed(23, "said in time");
}
