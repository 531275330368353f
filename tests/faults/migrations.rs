//! A database of an earlier version: brought up to date, it holds the same claims, each under the same id.

use std::path::Path;

use claimgate_core::config::sqlite_url;
use claimgate_core::store::sql::{ClaimCursor, ClaimFilter, SqlStore};
use claimgate_shared::ClaimId;
use serde_json::json;
use sqlx::migrate::Migrator;
use sqlx::{AnyPool, AssertSqlSafe};
use support::CoreOptions;
use support::follower::Follower;
use support::postgres::Postgres;
use support::sql::{Campaigns, Claims, Sql};
use tempfile::TempDir;

use crate::tally::Row;

/// The last version whose claims had their id as a column.
const WITH_IDS: i64 = 4;
/// Claims as that version has them: campaign, user, digest, status, sequence; the last two share a place.
const CLAIMS: &[(&str, &str, &str, &str, i64)] = &[
    ("demo", "alice", "7qS1suZRPTSNsAtig2V7tg", "granted", 1),
    ("demo", "a", "AAAAAAAAAAAAAAAAAAAAAA", "returned", 2),
    ("demo", "alice", "-_-_-_-_-_-_-_-_-_-_-g", "held", 3),
    ("demo-2", "_-_", "7qS1suZRPTSNsAtig2V7tg", "granted", 1),
    ("demo", "bob", "BBBBBBBBBBBBBBBBBBBBBA", "revoked", 4),
    ("demo", "carol", "BBBBBBBBBBBBBBBBBBBBBA", "granted", 4),
];

fn id(claim: &(&str, &str, &str, &str, i64)) -> String {
    format!("{}.{}.{}", claim.0, claim.1, claim.2)
}

/// An empty database of the version `version`.
async fn schema_of(version: i64, url: &str) -> AnyPool {
    sqlx::any::install_default_drivers();
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/migrations");
    let all = Migrator::new(all).await.expect("the migrations");
    let first = all.iter().filter(|migration| migration.version <= version).cloned().collect();
    let pool = AnyPool::connect(url).await.expect("the database");
    Migrator { migrations: first, ..Migrator::DEFAULT }.run(&pool).await.expect("the older schema");
    pool
}

/// A database of version [`WITH_IDS`] with [`CLAIMS`].
async fn older(url: &str) {
    let pool = schema_of(WITH_IDS, url).await;
    for claim in CLAIMS {
        let (campaign, user, _, status, sequence) = claim;
        let statement = format!(
            "INSERT INTO claims VALUES ('{}', '{campaign}', '{user}', 2, '{status}', 3, 2, {sequence}, 20000, \
             1750000000000, NULL, 1750000000001, 9, {sequence})",
            id(claim)
        );
        sqlx::query(AssertSqlSafe(statement)).execute(&pool).await.expect("a claim");
    }
    pool.close().await;
}

async fn keeps_its_claims(row: Row, url: &str) {
    older(url).await;
    for _ in 0..2 {
        let sql = SqlStore::open(url).await.expect("brought up to date");
        for campaign in ["demo", "demo-2"] {
            let (asked, filter) = (campaign.parse().unwrap(), ClaimFilter::default());
            let page = sql.claims(&asked, &filter, &ClaimCursor::default(), 100).await.unwrap();
            let found = page.rows.iter().map(|row| {
                (row.claim.id.to_string(), row.claim.status.as_str(), row.claim.sequence, row.revision)
            });
            let of_campaign = CLAIMS.iter().filter(|claim| claim.0 == campaign);
            let expected = of_campaign.map(|claim| (id(claim), claim.3, u64::try_from(claim.4).unwrap(), 2));
            assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
        for claim in CLAIMS {
            let id: ClaimId = id(claim).parse().unwrap();
            let found = sql.claim(&id).await.unwrap().expect("the claim");
            assert_eq!((found.claim.id, found.claim.quantity.get(), found.day), (id, 2, 20_000));
        }
        sql.close().await;
    }
    row.passed(2 * CLAIMS.len(), "the same claims");
}

#[tokio::test]
async fn an_older_database_keeps_its_claims_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let url = sqlite_url(&directory.path().join("claimgate.sqlite"));
    keeps_its_claims(Row::begin("a database with ids as a column: SQLite"), &url).await;
}

#[tokio::test]
async fn an_older_database_keeps_its_claims_postgres() {
    let row = Row::begin("a database with ids as a column: PostgreSQL");
    let postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => return row.skip(&why),
    };
    keeps_its_claims(row, &postgres.database("older").await).await;
}

/// The last version without a feed.
const WITHOUT_FEED: i64 = 11;

/// Claims that a database had before there was a feed are told like any, before what comes later.
async fn are_told(row: Row, url: &str, options: CoreOptions, directory: TempDir) {
    schema_of(WITHOUT_FEED, url).await.close().await;
    let sql = Sql::open(url);
    sql.run(Campaigns { live: 3, ended: 0 }.insert()).await;
    for (campaign, count) in [("live1", 600), ("live3", 5)] {
        sql.run(Claims { campaign, count }.insert()).await;
    }
    let core = options.start_in(directory).await;
    let mut followers = [Follower::default(), Follower::of("live3"), Follower::of("live2")];
    for (follower, limit) in followers.iter_mut().zip([100, 2, 1000]) {
        follower.to_the_end(&core, limit).await;
    }
    let rows = [sql.claims("live1").await, sql.claims("live2").await, sql.claims("live3").await];
    followers[0].knows(&rows.concat());
    followers[1].knows(&rows[2]);
    followers[2].knows(&rows[1]);
    assert_eq!(followers[0].items, 605, "each once");
    core.create("new", json!({})).await;
    core.claim("new", "ann", "k").await.expect(201);
    sql.until("new", 1).await;
    assert_eq!(followers[0].to_the_end(&core, 100).await.len(), 1);
    row.passed(606, "each told");
}

#[tokio::test]
async fn claims_of_before_the_feed_are_told_sqlite() {
    let directory = tempfile::Builder::new().prefix("cg-").tempdir().unwrap();
    let data = directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let url = sqlite_url(&data.join("claimgate.sqlite"));
    are_told(Row::begin("claims of before the feed: SQLite"), &url, CoreOptions::default(), directory).await;
}

#[tokio::test]
async fn claims_of_before_the_feed_are_told_postgres() {
    let row = Row::begin("claims of before the feed: PostgreSQL");
    let postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => return row.skip(&why),
    };
    let directory = tempfile::Builder::new().prefix("cg-").tempdir().unwrap();
    let url = postgres.database("before").await;
    let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url);
    are_told(row, &url, options, directory).await;
}

/// What a later version has changed is not known to this one: it must not begin to write there.
async fn is_left_alone(url: &str) {
    SqlStore::open(url).await.expect("a new database").close().await;
    let pool = AnyPool::connect(url).await.expect("the database");
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 SELECT 9999, 'later', success, checksum, 0 FROM _sqlx_migrations WHERE version = 1";
    sqlx::query(later).execute(&pool).await.expect("a later migration");
    pool.close().await;
    let error = SqlStore::open(url).await.expect_err("a later version's database").to_string();
    assert!(error.contains("a later version") && error.contains("9999"), "{error}");
}

#[tokio::test]
async fn a_database_of_a_later_version_is_refused_by_name() {
    let row = Row::begin("a database of a later version");
    let directory = tempfile::tempdir().unwrap();
    is_left_alone(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await;
    if let Ok(postgres) = Postgres::start().await {
        is_left_alone(&postgres.database("later").await).await;
    }
    row.passed(1, "refused by name");
}
