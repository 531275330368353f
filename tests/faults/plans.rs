//! Query plans of every statement on claims, on both databases: each uses an index, regardless of the table's
//! other rows.

use claimgate_core::config::sqlite_url;
use claimgate_core::store::sql::statements::{self, Dialect};
use claimgate_core::store::sql::{self, SqlStore};
use sqlx::any::AnyPoolOptions;
use sqlx::{AnyPool, AssertSqlSafe, Row as _};
use support::postgres::Postgres;
use support::sql::{Claims, Sql};

use crate::tally::Row;

/// Number of campaigns in the table and of claims in each; one campaign is a small part of the table.
const CAMPAIGNS: u64 = 20;
const CLAIMS: u64 = 2_000;

/// The arguments of each statement, and the column that its plan must use.
const GIVEN: &[(&str, &[&str], &str)] = &[
    ("WRITE", &["'[[1,1,1,null,\"c1\",\"granted\",[[\"x\",\"y\",1,9,1,null,1,1]]]]'"], ""),
    ("FIRST_CODES", &["'[[0,\"u1\",\"000100000000000001A\",1,1,1]]'", "'c1'"], "digest"),
    ("GIVE_NUMBERS", &["'c1'", "'u1'", "'000100000000000001A'", "1"], "digest"),
    ("NUMBERED", &["'c1'", "1", "100"], "first_code"),
    ("GRANTED_NUMBERED", &["'c1'", "1", "100"], "first_code"),
    ("PENDING_CODES", &["'c1'", "1"], "first_code"),
    ("WITH_CODES", &["'c1'", "9000000000000000000"], "campaign_id"),
    ("FIRST_CODE_UP_TO", &["'c1'", "1"], "first_code"),
    ("NUMBERS_OF_CLAIMS", &["'[[\"u1\",\"000100000000000001A\"]]'", "'c1'"], "digest"),
    ("NUMBERS_OF_GRANTED", &["'[[\"u1\",\"000100000000000001A\"]]'", "'c1'"], "digest"),
    ("ONE", &["'c1'", "'u1'", "'000100000000000001A'"], "digest"),
    ("PAGE", &["'c1'", "1000", "'u1'", "'x'", "100"], "sequence"),
    ("PAGE_OF_USER", &["'c1'", "1000", "'u1'", "'x'", "100", "'u1'"], "user_id"),
    ("NEWEST_OF_USER", &["'c1'", "'u1'", "9000000000000000000", "''", "100"], "user_id"),
    ("BY_USER", &["'c1'", "'u100'", "'x'", "100"], "user_id"),
    ("FEED_END", &[], "campaign_id"),
    ("FEED_OF_CAMPAIGN", &["'c1'", "'u100'", "'x'", "100"], "user_id"),
    ("FEED_OF_CLAIMS", &["'[[0,\"c1\",\"u1\",\"000100000000000001A\"]]'"], "digest"),
    (
        "TRANSITION",
        &["'c1'", "'u1'", "'000100000000000001A'", "'held'", "1750000000000", "1750000060000"],
        "digest",
    ),
    ("TOTALS", &["'c1'"], "campaign_id"),
    ("REPORT_TOTALS", &["'c1'"], "campaign_id"),
    ("REPORT_STATUSES", &["'c1'"], "campaign_id"),
    ("REPORT_PEAK", &["'c1'"], "campaign_id"),
    ("REPORT_STEPS", &["'c1'", "60", "1700000000", "1800000000"], "campaign_id"),
    ("REFUSED", &["'c1'"], "campaign_id"),
    ("OTHER_USER_IDS", &["1750000000000", "'VR1TK4_'", "50", "0"], "campaign_id"),
    ("OTHER_USER_ID", &["'c1'", "'VR1TK4_'", "50"], "campaign_id"),
    ("REVISIONS", &["'[[\"u1\",\"000100000000000001A\"]]'", "'c1'"], "digest"),
    ("GAPS", &["'c1'", "100"], "campaign_id"),
    ("TAKEN", &["'c1'"], "campaign_id"),
    ("STANDING", &["'c1'", "'u1'", "'000100000000000001A'"], "digest"),
    ("TAKEN_BY_USER", &["'c1'", "'u100'", "'x'", "20000"], "user_id"),
];

/// Creates a database with claims of many campaigns.
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

/// Returns every statement with its arguments, in the database's dialect.
fn rendered(dialect: Dialect) -> Vec<(&'static str, String, &'static [&'static str], &'static str)> {
    let all = statements::ALL.iter().map(|(name, text)| {
        let given = GIVEN.iter().find(|given| given.0 == *name);
        let (_, arguments, by) = given.unwrap_or_else(|| panic!("{name} is new: add its arguments to GIVEN"));
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

/// Returns whether the plan uses the index of the revoked claims.
fn is_by_the_revoked(plan: &[String]) -> bool {
    plan.iter().any(|line| line.contains("claims_revoked"))
}

#[tokio::test]
async fn every_claim_query_uses_an_index_on_sqlite() {
    let row = Row::begin("query plans over claims: SQLite");
    let directory = tempfile::tempdir().unwrap();
    let pool = filled(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await;
    analyze(&pool).await;
    let rendered = rendered(Dialect::SQLITE);
    for (name, text, arguments, by) in &rendered {
        let text = (1..)
            .zip(*arguments)
            .fold(text.clone(), |text, (at, argument)| text.replace(&format!("${at}"), argument));
        let plan = lines(&pool, format!("EXPLAIN QUERY PLAN {text}"), 3).await;
        assert!(!plan.iter().any(|line| line.starts_with("SCAN claims")), "{name}: {plan:?}");
        let search = plan.iter().find(|line| line.starts_with("SEARCH claims USING "));
        // SQLite's plan does not show that an upsert finds the claim by its primary key.
        let found = search.is_some_and(|line| line.contains(" INDEX ") && line.contains(by));
        assert!(found || *name == "WRITE", "{name}: {plan:?}");
        assert!(*name != "REFUSED" || is_by_the_revoked(&plan), "{name}: {plan:?}");
        // A temporary table for each row, which `status IN (…)` in a constraint causes, takes an eighth of
        // the relay's time.
        let steps = lines(&pool, format!("EXPLAIN {text}"), 1).await;
        assert!(*name != "WRITE" || !steps.iter().any(|step| step == "OpenEphemeral"), "{steps:?}");
    }
    let marks = Dialect::SQLITE.render(statements::RAISE_MARKS);
    let marks = format!("EXPLAIN QUERY PLAN {}", marks.replace("$1", "'[[\"c1\",1,9,9],[\"c2\",1,9,9]]'"));
    let plan = lines(&pool, marks, 3).await;
    assert!(plan.iter().any(|line| line.starts_with("SEARCH campaigns USING ")), "RAISE_MARKS: {plan:?}");
    row.passed(rendered.len() + 1, "no statement scans the table");
}

/// Returns PostgreSQL's plan of a prepared statement.
async fn plan_of(pool: &AnyPool, mode: &str, text: &str, arguments: &[&str]) -> Vec<String> {
    // Without arguments the parentheses must be omitted.
    let arguments = if arguments.is_empty() { String::new() } else { format!("({})", arguments.join(", ")) };
    let rendered = format!(
        "BEGIN; SET LOCAL plan_cache_mode = {mode}; PREPARE rendered AS {text}; \
         EXPLAIN EXECUTE rendered {arguments}; DEALLOCATE rendered; COMMIT"
    );
    lines(pool, rendered, 0).await
}

#[tokio::test]
async fn every_claim_query_uses_an_index_on_postgres() {
    let row = Row::begin("query plans over claims: PostgreSQL");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let pool = filled(&postgres.database("claimgate").await).await;
    let rendered = rendered(Dialect::POSTGRES);
    // A freshly restored database has no statistics yet.
    for analyzed in [false, true] {
        if analyzed {
            analyze(&pool).await;
        }
        // The plan for these values, and the generic one that a prepared statement may get.
        for mode in ["force_custom_plan", "force_generic_plan"] {
            for (name, text, arguments, by) in &rendered {
                let plan = plan_of(&pool, mode, text, arguments).await;
                let with = format!("{name}, {mode}, analyzed: {analyzed}: {plan:#?}");
                assert!(!plan.iter().any(|line| line.contains("Seq Scan on claims")), "{with}");
                let found = plan.iter().any(|line| line.contains("Index Cond") && line.contains(by));
                let written = plan.iter().any(|line| line.contains("Conflict Arbiter Indexes: claims_key"));
                assert!(if *name == "WRITE" { written } else { found }, "{with}");
                assert!(*name != "REFUSED" || is_by_the_revoked(&plan), "{with}");
                // With a sort, each page would sort all remaining claims.
                let is_page = ["PAGE", "BY_USER", "FEED_OF_CAMPAIGN"].contains(name);
                assert!(!is_page || !plan.iter().any(|line| line.contains("->  Sort")), "{with}");
            }
        }
    }
    row.passed(rendered.len(), "no statement scans the table");
}
