//! SQL without Redis, on both databases: the checks of core's SQL layer, and the handling of unreadable rows.

use std::time::{Duration, Instant};

use claimgate_core::config::sqlite_url;
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::domain::claim_record::ClaimRecord;
use claimgate_core::domain::counters::Epoch;
use claimgate_core::domain::event::{ClaimEvent, OutboxEntry};
use claimgate_core::domain::high_water_mark::HighWaterMark;
use claimgate_core::engine::demand::Refusals;
use claimgate_core::engine::live::cores::{CoreRun, ThisCore};
use claimgate_core::store::sql::{Change, EntryOrder, SqlStore};
use claimgate_shared::{CampaignId, ClaimStatus, Timestamp};
use futures_util::future::join_all;
use serde_json::json;
use support::postgres::Postgres;
use support::signing::claim_id;
use support::times::from_now;
use support::wait::{holds, until_status};
use support::{SOON, eventually, promised};
use tempfile::TempDir;

use crate::fixture::Fixture;
use crate::tally::Row;

/// A database of either kind with its server and files.
struct Database {
    sql: SqlStore,
    campaign: CampaignId,
    _directory: TempDir,
    postgres: Option<Postgres>,
}

impl Database {
    /// Opens a database with one campaign at epoch 1, without limits.
    async fn open(url: &str, directory: TempDir, postgres: Option<Postgres>) -> Self {
        let sql = SqlStore::open(url).await.unwrap();
        let body = json!({"id": "demo", "name": "demo", "starts_at": from_now(-60), "limits": {}});
        let new = NewCampaign::parse(body.to_string().as_bytes()).unwrap();
        let campaign = new.created_at(claimgate_core::clock::now()).unwrap();
        let change = Change { who: "test", what: "create", at: claimgate_core::clock::now() };
        assert!(sql.create(&campaign, change).await.unwrap().is_none());
        let token = sql.issue_token(&campaign.id).await.unwrap().expect("the campaign");
        sql.raise_epoch(&token, Epoch::new(1), HighWaterMark::default()).await.unwrap().expect("epoch 1");
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

/// Builds one grant, decided under `limit_at_decision` (`None`: unlimited) as the `cumulative_taken`th unit.
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
    OutboxEntry::new(format!("1-{cumulative_taken}"), Epoch::new(epoch), cumulative_taken, vec![event])
}

/// Checks that a claim revoked in SQL becomes granted there if Redis grants it again after the total was
/// removed. The guard of the first decision must not apply to the second.
async fn is_regranted(row: Row, database: Database, in_one_write: bool) {
    let Database { sql, campaign, .. } = &database;
    let (before, after) = (grant(0, Some(100), 90), grant(1, None, 150));
    let id = before.events[0].claim_id(campaign);
    if in_one_write {
        sql.write_entries(&[(campaign, &[before, after])], EntryOrder::Any).await.expect("both in one write");
    } else {
        sql.write_entries(&[(campaign, &[before])], EntryOrder::Any)
            .await
            .expect("the entry of an older epoch");
        let claim = sql.claim(&id).await.unwrap().expect("a claim").claim;
        assert_eq!(claim.status, ClaimStatus::Revoked);
        sql.write_entries(&[(campaign, &[after])], EntryOrder::Any).await.expect("the acknowledged claim");
    }
    let claim = sql.claim(&id).await.unwrap().expect("a claim").claim;
    assert_eq!((claim.status, claim.sequence), (ClaimStatus::Granted, 150));
    row.passed(2, "granted");
}

#[tokio::test]
async fn a_revoked_claim_is_regranted_without_a_total_on_sqlite() {
    let row = Row::begin("granted again after the total was removed: SQLite");
    is_regranted(row, Database::sqlite().await, false).await;
    let row = Row::begin("granted again after the total was removed, both relayed in one commit: SQLite");
    is_regranted(row, Database::sqlite().await, true).await;
}

#[tokio::test]
async fn a_revoked_claim_is_regranted_without_a_total_on_postgres() {
    for in_one_write in [false, true] {
        let row = Row::begin("granted again after the total was removed: PostgreSQL");
        let Some(database) = row.needs(Database::postgres().await) else { return };
        is_regranted(row, database, in_one_write).await;
    }
}

/// Checks that a loader without the latest token does not raise the epoch: it would lower the epoch of a
/// later load.
async fn late_loader_is_rejected(row: Row, database: Database) {
    let Database { sql, campaign, .. } = &database;
    let late = sql.issue_token(campaign).await.unwrap().expect("the campaign");
    let last = sql.issue_token(campaign).await.unwrap().expect("the campaign");
    let nothing = HighWaterMark::default();
    assert!(sql.raise_epoch(&last, Epoch::new(3), nothing).await.unwrap().is_some());
    assert!(
        sql.raise_epoch(&late, Epoch::new(2), nothing).await.unwrap().is_none(),
        "the late loader must not raise the epoch"
    );
    let epoch = sql.campaign(campaign).await.unwrap().expect("the campaign").epoch;
    assert_eq!(epoch, Epoch::new(3));
    row.passed(1, "the epoch is unchanged");
}

#[tokio::test]
async fn a_late_loader_does_not_raise_the_epoch_on_sqlite() {
    late_loader_is_rejected(
        Row::begin("a late loader does not raise the epoch: SQLite"),
        Database::sqlite().await,
    )
    .await;
}

#[tokio::test]
async fn a_late_loader_does_not_raise_the_epoch_on_postgres() {
    let row = Row::begin("a late loader does not raise the epoch: PostgreSQL");
    let Some(database) = row.needs(Database::postgres().await) else { return };
    late_loader_is_rejected(row, database).await;
}

/// Checks that a row that this build cannot read, such as one written by a different version, does not block
/// other campaigns or the start.
async fn others_are_not_blocked(row: Row, mut fixture: Fixture) {
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
        until_status(SOON, &[200, 201], async || fixture.core.claim(id, "bob", "k").await).await;
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
    // After several reads of the database the log reports the row once.
    fixture.core.create("later", json!({})).await;
    let path = "/admin/v1/campaigns/later";
    for _ in 0..2 {
        let sent_at = Instant::now();
        eventually(SOON, || async {
            let reply = fixture.core.admin_get(path).await.expect(200);
            holds(sent_at.elapsed() > Duration::from_millis(1200), || reply.text())
        })
        .await;
    }
    let log = fixture.core.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("cannot read")).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("aaa") && lines[0].contains("zone"), "{lines:?}");
    assert_eq!(fixture.sql.run(zone("UTC")).await, 1);
    until_status(SOON, &[200, 201], async || fixture.core.claim("aaa", "bob", "k").await).await;
    row.passed(20, "the other campaigns were served, and the unreadable one recovered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_campaign_does_not_block_others_on_sqlite() {
    let row = Row::begin("an unreadable campaign: SQLite");
    others_are_not_blocked(row, Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_campaign_does_not_block_others_on_postgres() {
    let row = Row::begin("an unreadable campaign: PostgreSQL");
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    others_are_not_blocked(row, fixture).await;
}

/// Slightly longer than a heartbeat's timeout; core reports the failure within 5 s.
const HEARTBEAT_MAX: Duration = Duration::from_secs(3);

/// The heartbeat has its own connection, so it fails within its timeout while other calls hang.
#[tokio::test]
async fn a_heartbeat_fails_soon_while_sql_hangs() {
    let row = Row::begin("heartbeat: PostgreSQL, SIGSTOP");
    let Some(Database { sql, campaign, postgres, .. }) = row.needs(Database::postgres().await) else {
        return;
    };
    let postgres = postgres.expect("a PostgreSQL");
    let core =
        ThisCore::starting(CoreRun::new("one".to_owned()).unwrap(), "one".to_owned(), Refusals::default())
            .row();
    sql.heartbeat(&core).await.expect("SQL works");
    row.fault();
    postgres.freeze();
    let sent_at = Instant::now();
    let (heartbeat, others) =
        tokio::join!(sql.heartbeat(&core), join_all((0..20).map(|_| sql.campaign(&campaign))));
    assert!(heartbeat.is_err() && others.iter().all(Result::is_err), "SQL must hang");
    assert!(sent_at.elapsed() < promised(HEARTBEAT_MAX), "{:?}", sent_at.elapsed());
    let sent_at = Instant::now();
    sql.heartbeat(&core).await.expect_err("SQL must hang");
    assert!(sent_at.elapsed() < promised(HEARTBEAT_MAX), "{:?}", sent_at.elapsed());
    postgres.thaw();
    eventually(SOON, || async { sql.heartbeat(&core).await.map_err(|fault| fault.to_string()) }).await;
    sql.campaign(&campaign).await.expect("SQL answers").expect("a campaign");
    row.passed(23, "failed in time");
}
