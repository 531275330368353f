//! The database: whether it answers, and whether what it has committed survives.

use std::path::Path;

use sqlx::{AnyConnection, Connection as _, Error};

use super::clocks;
use super::report::{Finding, Report};
use super::setup::{Database, WAIT};
use crate::clock;

/// Settings that the guarantees rest on, and what does not hold when one is `off`.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("database.fsync", "fsync", "a crash of its machine may destroy the whole database"),
    (
        "database.synchronous_commit",
        "synchronous_commit",
        "a crash loses claims that had been taken off Redis' outbox because they were committed",
    ),
    ("database.full_page_writes", "full_page_writes", "a power cut may leave pages that are half written"),
];

pub(super) async fn examine(database: &Database, report: &mut Report) {
    let (asked, remedy) = match database {
        // Core makes it at its first start.
        Database::Sqlite(file) if !file.exists() => return,
        Database::Sqlite(file) => {
            (tokio::time::timeout(WAIT, sqlite(file)).await, "restore it from a backup")
        }
        Database::Postgres(url) => {
            (tokio::time::timeout(WAIT, postgres(url)).await, "start it, or correct CLAIMGATE_DATABASE_URL")
        }
    };
    let why = match asked {
        Ok(Ok(findings)) => return report.findings.extend(findings),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", WAIT.as_secs()),
    };
    report.findings.push(Finding::breaks(
        "database.reachable",
        format!("the database cannot be read: {why}"),
        remedy,
    ));
}

/// Whether the file is one; how it is synced is core's own doing.
async fn sqlite(file: &Path) -> Result<Vec<Finding>, Error> {
    let mut connection = connect(&format!("sqlite://{}?mode=ro", file.display())).await?;
    sqlx::query_scalar::<_, i64>("SELECT count(*) FROM sqlite_master").fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(Vec::new())
}

async fn postgres(url: &str) -> Result<Vec<Finding>, Error> {
    let mut connection = connect(url).await?;
    let mut found = Vec::new();
    for (check, setting, otherwise) in SETTINGS {
        let value: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(setting).fetch_one(&mut connection).await?;
        if value == "off" {
            let problem = format!("PostgreSQL's {setting} is off: {otherwise}");
            found.push(Finding::breaks(
                check,
                problem,
                format!("ALTER SYSTEM SET {setting} = on, then reload"),
            ));
        }
    }
    let before_ms = clock::now().as_ms();
    let theirs_ms = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)";
    let theirs_ms = sqlx::query_scalar(theirs_ms).fetch_one(&mut connection).await?;
    found.extend(clocks::compare(
        "database.clock",
        "PostgreSQL's",
        theirs_ms,
        (before_ms, clock::now().as_ms()),
    ));
    connection.close().await?;
    Ok(found)
}

pub(super) async fn connect(url: &str) -> Result<AnyConnection, Error> {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(url).await
}
