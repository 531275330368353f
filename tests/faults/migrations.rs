//! After its migration, a database of an older version has the same claims with the same ids.

use std::path::Path;

use claimgate_core::config::sqlite_url;
use claimgate_core::store::sql::{ClaimCursor, ClaimFilter, SqlStore};
use claimgate_shared::ClaimId;
use serde_json::json;
use sqlx::migrate::Migrator;
use sqlx::{AnyPool, AssertSqlSafe};
use support::CoreOptions;
use support::fault_proxy::{Cut, FaultProxy};
use support::follower::Follower;
use support::postgres::Postgres;
use support::sql::{Campaigns, Claims, Sql};
use tempfile::TempDir;

use crate::tally::Row;

/// The last version that stored claims' ids in a column.
const WITH_IDS: i64 = 4;
/// Claims of that version: campaign, user, digest, status, sequence number. The last two have the same
/// sequence number.
const CLAIMS: &[(&str, &str, &str, &str, i64)] = &[
    ("demo", "alice", "7qS1suZRPTSNsAtig2V7tg", "granted", 1),
    ("demo", "a", "AAAAAAAAAAAAAAAAAAAAAA", "returned", 2),
    ("demo", "alice", "-_-_-_-_-_-_-_-_-_-_-g", "held", 3),
    ("demo-2", "_-_", "7qS1suZRPTSNsAtig2V7tg", "granted", 1),
    ("demo", "bob", "BBBBBBBBBBBBBBBBBBBBBA", "revoked", 4),
    ("demo", "carol", "BBBBBBBBBBBBBBBBBBBBBA", "granted", 4),
];

fn id_of(claim: &(&str, &str, &str, &str, i64)) -> String {
    format!("{}.{}.{}", claim.0, claim.1, claim.2)
}

/// Creates an empty database of the version `version`.
async fn schema_of(version: i64, url: &str) -> AnyPool {
    sqlx::any::install_default_drivers();
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/migrations");
    let all = Migrator::new(all).await.expect("the migrations");
    let first = all.iter().filter(|migration| migration.version <= version).cloned().collect();
    let pool = AnyPool::connect(url).await.expect("the database");
    Migrator { migrations: first, ..Migrator::DEFAULT }.run(&pool).await.expect("the older schema");
    pool
}

/// Creates a database of version [`WITH_IDS`] with [`CLAIMS`].
async fn create_older(url: &str) {
    let pool = schema_of(WITH_IDS, url).await;
    for claim in CLAIMS {
        let (campaign, user, _, status, sequence) = claim;
        let statement = format!(
            "INSERT INTO claims VALUES ('{}', '{campaign}', '{user}', 2, '{status}', 3, 2, {sequence}, 20000, \
             1750000000000, NULL, 1750000000001, 9, {sequence})",
            id_of(claim)
        );
        sqlx::query(AssertSqlSafe(statement)).execute(&pool).await.expect("a claim");
    }
    pool.close().await;
}

async fn keeps_its_claims(row: Row, url: &str) {
    create_older(url).await;
    for _ in 0..2 {
        let sql = SqlStore::open(url).await.expect("the migrations");
        for campaign in ["demo", "demo-2"] {
            let (id, filter) = (campaign.parse().unwrap(), ClaimFilter::default());
            let page = sql.claims(&id, &filter, &ClaimCursor::default(), 100).await.unwrap();
            let found = page.rows.iter().map(|row| {
                (row.claim.id.to_string(), row.claim.status.as_str(), row.claim.sequence, row.revision)
            });
            let of_campaign = CLAIMS.iter().filter(|claim| claim.0 == campaign);
            let expected =
                of_campaign.map(|claim| (id_of(claim), claim.3, u64::try_from(claim.4).unwrap(), 2));
            assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
        for claim in CLAIMS {
            let id: ClaimId = id_of(claim).parse().unwrap();
            let found = sql.claim(&id).await.unwrap().expect("the claim");
            assert_eq!((found.claim.id, found.claim.quantity.get(), found.day), (id, 2, 20_000));
        }
        sql.close().await;
    }
    row.passed(2 * CLAIMS.len(), "the same claims");
}

#[tokio::test]
async fn an_older_database_keeps_its_claims_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let url = sqlite_url(&directory.path().join("claimgate.sqlite"));
    keeps_its_claims(Row::begin("migration from a column of ids: SQLite"), &url).await;
}

#[tokio::test]
async fn an_older_database_keeps_its_claims_on_postgres() {
    let row = Row::begin("migration from a column of ids: PostgreSQL");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    keeps_its_claims(row, &postgres.database("older").await).await;
}

/// The last version without a feed.
const WITHOUT_FEED: i64 = 11;

/// Claims older than the feed appear in it, before later claims.
async fn old_claims_are_in_the_feed(row: Row, url: &str, options: CoreOptions, directory: TempDir) {
    schema_of(WITHOUT_FEED, url).await.close().await;
    let sql = Sql::open(url);
    sql.run(Campaigns { live: 3, ended: 0 }.insert()).await;
    for (campaign, count) in [("live1", 600), ("live3", 5)] {
        sql.run(Claims { campaign, count }.insert()).await;
    }
    let core = options.start_in(directory).await;
    let mut followers = [Follower::default(), Follower::of("live3"), Follower::of("live2")];
    for (follower, limit) in followers.iter_mut().zip([100, 2, 1000]) {
        follower.read_all(&core, limit).await;
    }
    let rows = [sql.claims("live1").await, sql.claims("live2").await, sql.claims("live3").await];
    followers[0].matches_sql(&rows.concat());
    followers[1].matches_sql(&rows[2]);
    followers[2].matches_sql(&rows[1]);
    assert_eq!(followers[0].items, 605, "each must appear once");
    core.create("new", json!({})).await;
    core.claim("new", "ann", "k").await.expect(201);
    sql.until("new", 1).await;
    assert_eq!(followers[0].read_all(&core, 100).await.len(), 1);
    row.passed(606, "each reported");
}

#[tokio::test]
async fn claims_older_than_the_feed_appear_in_it_on_sqlite() {
    let directory = tempfile::Builder::new().prefix("cg-").tempdir().unwrap();
    let data = directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let url = sqlite_url(&data.join("claimgate.sqlite"));
    old_claims_are_in_the_feed(
        Row::begin("claims older than the feed: SQLite"),
        &url,
        CoreOptions::default(),
        directory,
    )
    .await;
}

#[tokio::test]
async fn claims_older_than_the_feed_appear_in_it_on_postgres() {
    let row = Row::begin("claims older than the feed: PostgreSQL");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let directory = tempfile::Builder::new().prefix("cg-").tempdir().unwrap();
    let url = postgres.database("before").await;
    let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url);
    old_claims_are_in_the_feed(row, &url, options, directory).await;
}

/// This version does not know a newer version's schema changes, so it must not write to that database.
async fn is_rejected(url: &str) {
    SqlStore::open(url).await.expect("a new database").close().await;
    let pool = AnyPool::connect(url).await.expect("the database");
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 SELECT 9999, 'later', success, checksum, 0 FROM _sqlx_migrations WHERE version = 1";
    sqlx::query(later).execute(&pool).await.expect("a later migration");
    pool.close().await;
    let error = SqlStore::open(url).await.expect_err("a newer version's database").to_string();
    assert!(error.contains("a newer version") && error.contains("9999"), "{error}");
}

#[tokio::test]
async fn a_database_with_a_newer_schema_is_rejected() {
    let row = Row::begin("a database with a newer schema");
    let directory = tempfile::tempdir().unwrap();
    is_rejected(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await;
    if let Ok(postgres) = Postgres::start().await {
        is_rejected(&postgres.database("later").await).await;
    }
    row.passed(1, "rejected with the version");
}

/// The database restarts after core has connected to it for the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_waits_for_a_database_that_restarts_during_its_start() {
    let row = Row::begin("SQL lost while core starts");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    for (mark, database) in
        [("_sqlx_migrations", "one"), ("CREATE TABLE campaigns", "two"), ("SELECT 1", "three")]
    {
        postgres.database(database).await;
        let proxy = FaultProxy::start(postgres.socket()).await;
        proxy.cut(Cut::Reset, mark, 1);
        let url = Postgres::url_at(proxy.address(), database);
        let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url).start().await;
        row.fault();
        assert_eq!(proxy.injected(), 1, "{mark} was not sent");
        drop(core);
    }
    row.passed(3, "core started");
}
