//! How both databases go about every statement over claims: by an index, whatever else the table holds.

use claimgate_core::config::sqlite_url;
use claimgate_core::store::sql::statements::{self, Dialect};
use claimgate_core::store::sql::{self, SqlStore};
use sqlx::any::AnyPoolOptions;
use sqlx::{AnyPool, AssertSqlSafe, Row as _};
use support::postgres::Postgres;
use support::sql::{Claims, Sql};

use crate::tally::Row;

/// Campaigns in the table, and claims of each: one campaign is a small part of it.
const CAMPAIGNS: u64 = 20;
const CLAIMS: u64 = 2_000;

/// What each statement is given, and what its plan has to find its place by.
const GIVEN: &[(&str, &[&str], &str)] = &[
    ("WRITE", &["'[[1,1,1,null,\"c1\",\"granted\",[[\"x\",\"y\",1,9,1,null,1,1]]]]'"], ""),
    ("ONE", &["'c1'", "'u1'", "'000100000000000001A'"], "digest"),
    ("PAGE", &["'c1'", "1000", "'u1'", "'x'", "100"], "sequence"),
    ("PAGE_OF_USER", &["'c1'", "1000", "'u1'", "'x'", "100", "'u1'"], "user_id"),
    ("NEWEST_OF_USER", &["'c1'", "'u1'", "9000000000000000000", "''", "100"], "user_id"),
    ("BY_USER", &["'c1'", "'u100'", "'x'", "100"], "user_id"),
    ("FEED_END", &[], "campaign_id"),
    ("FEED_OF_CAMPAIGN", &["'c1'", "'u100'", "'x'", "100"], "user_id"),
    ("FEED_OF_CLAIMS", &["'[[0,\"c1\",\"u1\",\"000100000000000001A\"]]'"], "digest"),
    ("TRANSITION", &["'c1'", "'u1'", "'000100000000000001A'", "'returned'", "1750000000000"], "digest"),
    ("TOTALS", &["'c1'"], "campaign_id"),
    ("REFUSED", &["'c1'"], "campaign_id"),
    ("REVISIONS", &["'[[\"u1\",\"000100000000000001A\"]]'", "'c1'"], "digest"),
    ("GAPS", &["'c1'", "100"], "campaign_id"),
    ("TAKEN", &["'c1'"], "campaign_id"),
    ("STANDING", &["'c1'", "'u1'", "'000100000000000001A'"], "digest"),
    ("TAKEN_BY_USER", &["'c1'", "'u100'", "'x'", "20000"], "user_id"),
];

/// A database with claims of many campaigns.
async fn filled(url: &str) -> AnyPool {
    SqlStore::open(url).await.expect("the database").close().await;
    let sql = Sql::open(url);
    for campaign in 0..CAMPAIGNS {
        let id = format!("c{campaign}");
        assert_eq!(sql.run(Claims { campaign: &id, count: CLAIMS }.insert()).await, CLAIMS);
    }
    let options = AnyPoolOptions::new();
    let options = options.after_connect(|connection, _| Box::pin(sql::prepare(connection)));
    options.connect(url).await.expect("the database")
}

/// Every statement with what it is given, as the database is asked.
fn asked(dialect: Dialect) -> Vec<(&'static str, String, &'static [&'static str], &'static str)> {
    let all = statements::ALL.iter().map(|(name, text)| {
        let given = GIVEN.iter().find(|given| given.0 == *name);
        let (_, arguments, by) = given.unwrap_or_else(|| panic!("{name} is new: say here what it is given"));
        (*name, dialect.render(text), *arguments, *by)
    });
    all.collect()
}

async fn analyze(pool: &AnyPool) {
    sqlx::raw_sql("ANALYZE").execute(pool).await.expect("statistics");
}

async fn lines(pool: &AnyPool, statement: String, column: usize) -> Vec<String> {
    let rows = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(pool).await.expect("a plan");
    rows.iter().map(|row| row.get(column)).collect()
}

/// By the index of nothing but the revoked claims.
fn is_by_the_revoked(plan: &[String]) -> bool {
    plan.iter().any(|line| line.contains("claims_revoked"))
}

#[tokio::test]
async fn sqlite_finds_every_claim_by_an_index() {
    let row = Row::begin("the plan of every statement over claims: SQLite");
    let directory = tempfile::tempdir().unwrap();
    let pool = filled(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await;
    analyze(&pool).await;
    let asked = asked(Dialect::SQLITE);
    for (name, text, arguments, by) in &asked {
        let text = (1..)
            .zip(*arguments)
            .fold(text.clone(), |text, (at, argument)| text.replace(&format!("${at}"), argument));
        let plan = lines(&pool, format!("EXPLAIN QUERY PLAN {text}"), 3).await;
        assert!(!plan.iter().any(|line| line.starts_with("SCAN claims")), "{name}: {plan:?}");
        let search = plan.iter().find(|line| line.starts_with("SEARCH claims USING "));
        // The place of a claim that is written is found by its primary key, which no plan says.
        let found = search.is_some_and(|line| line.contains(" INDEX ") && line.contains(by));
        assert!(found || *name == "WRITE", "{name}: {plan:?}");
        assert!(*name != "REFUSED" || is_by_the_revoked(&plan), "{name}: {plan:?}");
        // A temporary table for each row, as for `status IN (…)` in a constraint, costs an eighth of the relay's time.
        let steps = lines(&pool, format!("EXPLAIN {text}"), 1).await;
        assert!(*name != "WRITE" || !steps.iter().any(|step| step == "OpenEphemeral"), "{steps:?}");
    }
    let marks = Dialect::SQLITE.render(statements::RAISE_MARKS);
    let marks = format!("EXPLAIN QUERY PLAN {}", marks.replace("$1", "'[[\"c1\",1,9,9],[\"c2\",1,9,9]]'"));
    let plan = lines(&pool, marks, 3).await;
    assert!(plan.iter().any(|line| line.starts_with("SEARCH campaigns USING ")), "RAISE_MARKS: {plan:?}");
    row.passed(asked.len() + 1, "none goes through the table");
}

/// How PostgreSQL goes about a prepared statement.
async fn plan_of(pool: &AnyPool, mode: &str, text: &str, arguments: &[&str]) -> Vec<String> {
    // None is not `()`.
    let arguments = if arguments.is_empty() { String::new() } else { format!("({})", arguments.join(", ")) };
    let asked = format!(
        "BEGIN; SET LOCAL plan_cache_mode = {mode}; PREPARE asked AS {text}; \
         EXPLAIN EXECUTE asked {arguments}; DEALLOCATE asked; COMMIT"
    );
    lines(pool, asked, 0).await
}

#[tokio::test]
async fn postgres_finds_every_claim_by_an_index() {
    let row = Row::begin("the plan of every statement over claims: PostgreSQL");
    let postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => return row.skip(&why),
    };
    let pool = filled(&postgres.database("claimgate").await).await;
    let asked = asked(Dialect::POSTGRES);
    // A database that has just been restored has no statistics yet.
    for analyzed in [false, true] {
        if analyzed {
            analyze(&pool).await;
        }
        // The plan for these values, and the one for any, which a prepared statement may get.
        for mode in ["force_custom_plan", "force_generic_plan"] {
            for (name, text, arguments, by) in &asked {
                let plan = plan_of(&pool, mode, text, arguments).await;
                let with = format!("{name}, {mode}, analyzed: {analyzed}: {plan:#?}");
                assert!(!plan.iter().any(|line| line.contains("Seq Scan on claims")), "{with}");
                let found = plan.iter().any(|line| line.contains("Index Cond") && line.contains(by));
                let written = plan.iter().any(|line| line.contains("Conflict Arbiter Indexes: claims_key"));
                assert!(if *name == "WRITE" { written } else { found }, "{with}");
                assert!(*name != "REFUSED" || is_by_the_revoked(&plan), "{with}");
                // Else each page would sort all that are left.
                let is_page = ["PAGE", "BY_USER", "FEED_OF_CAMPAIGN"].contains(name);
                assert!(!is_page || !plan.iter().any(|line| line.contains("->  Sort")), "{with}");
            }
        }
    }
    row.passed(asked.len(), "none goes through the table");
}
