//! Checks the database: that it answers and accepts writes, has enough connections, and does not lose committed data.

use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::clocks;
use super::report::{Finding, Report};
use super::setup::{Database, WAIT};
use crate::clock;
use crate::config::sqlite_url_to_read;
use crate::domain::store_fault::FaultKind;
use crate::store::sql::connection_limits::CONNECTIONS_OF_A_CORE;
use crate::store::sql::examined::ExaminedDatabase;
use crate::store::sql::server::{Server, Writable};
use crate::store::sql::{SqlError, encoding, pooler};

/// The name of the connection limit's check, which `serve` also runs when it opens the database.
pub const FEW_CONNECTIONS: &str = "database.connections";

/// The consequence of a database that accepts no writes.
const CONSEQUENCE: &str = "admins' changes get 503, and so do claims once the outbox is full";

const REBUILD: &str = "stop all cores, run REINDEX DATABASE, then ALTER DATABASE … REFRESH COLLATION VERSION";

/// Settings that the guarantees need, and the consequence of each being `off`.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("database.fsync", "fsync", "a crash of its machine may destroy the whole database"),
    (
        "database.synchronous_commit",
        "synchronous_commit",
        "a crash may lose claims that were committed and therefore removed from Redis' outbox",
    ),
    ("database.full_page_writes", "full_page_writes", "a power failure may leave half-written pages"),
];

pub(super) async fn examine(database: &Database, report: &mut Report) {
    let (checked, address) = match database {
        Database::Sqlite(file) if !file.exists() => {
            let note = format!("{} does not exist yet: core creates it at its first start", file.display());
            return report.notes.push(note);
        }
        Database::Sqlite(file) => (tokio::time::timeout(WAIT, sqlite(file)).await, ""),
        Database::Postgres(url) => (tokio::time::timeout(WAIT, postgres(url)).await, url.as_str()),
    };
    let (why, kind) = match checked {
        Ok(Ok((part, findings))) => return report.add(part, findings),
        Ok(Err(error)) => match pooler::explain_pooler_error(error) {
            SqlError::Sql(error) => {
                let fault = Server::at(address).fault_of(&error);
                (fault.message, fault.kind)
            }
            of_pooler => (of_pooler.to_string(), FaultKind::Refused),
        },
        Err(_) => (format!("no answer within {} s", WAIT.as_secs()), FaultKind::NoAnswer),
    };
    let remedy = match (database, kind) {
        (Database::Sqlite(_), _) => "restore it from a backup",
        (_, FaultKind::NoConnections) => {
            "close other clients' connections, or raise the limit that PostgreSQL names"
        }
        _ => "start it, or correct CLAIMGATE_DATABASE_URL",
    };
    report.findings.push(Finding::breaks(
        "database.reachable",
        format!("the database cannot be read: {why}"),
        remedy,
    ));
}

/// The checked part, and the findings.
type Examined = (String, Vec<Finding>);

/// Checks that the file is a database and can be written; core itself sets how it is synced.
async fn sqlite(file: &Path) -> Result<Examined, SqlError> {
    let part = format!("the database {}: readable and writable", file.display());
    if matches!(access(file, Access::WRITE_OK), Err(Errno::ROFS | Errno::ACCESS)) {
        let problem = format!("{} cannot be written: {CONSEQUENCE}", file.display());
        let remedy = "mount its disk read-write, and give core's user write permission";
        return Ok((part, vec![Finding::breaks("database.read_only", problem, remedy)]));
    }
    let mut sql = ExaminedDatabase::connect(&sqlite_url_to_read(file)).await?;
    sql.read_sqlite().await?;
    let found = claims_without_codes(&mut sql).await;
    sql.close().await?;
    Ok((part, found))
}

async fn postgres(url: &str) -> Result<Examined, SqlError> {
    let mut sql = ExaminedDatabase::connect(url).await?;
    // The checks below need a session that is not shared.
    if sql.shares_sessions(url).await? {
        let problem = format!("{}; core does not start with it", pooler::SHARED);
        let finding = Finding::breaks("database.pooler", problem, pooler::REMEDY);
        return Ok(("PostgreSQL: pooler".to_owned(), vec![finding]));
    }
    let mut found = Vec::new();
    found.extend(read_only(&mut sql).await?);
    found.extend(too_few_connections(&mut sql).await?);
    if let Some(problem) = sql.encoding_problem().await? {
        found.push(Finding::breaks("database.encoding", problem, encoding::REMEDY));
    }
    if let Some(problem) = sql.collation_problem().await? {
        found.push(Finding::breaks("database.collation", problem, REBUILD));
    }
    for (check, setting, otherwise) in SETTINGS {
        if sql.setting(setting).await? == "off" {
            let problem = format!("PostgreSQL's {setting} is off: {otherwise}");
            found.push(Finding::breaks(
                check,
                problem,
                format!("ALTER SYSTEM SET {setting} = on, then reload"),
            ));
        }
    }
    let before_ms = clock::now().as_ms();
    let theirs_ms = sql.clock_ms().await?;
    found.extend(clocks::compare(
        "database.clock",
        "PostgreSQL's",
        theirs_ms,
        (before_ms, clock::now().as_ms()),
    ));
    found.extend(claims_without_codes(&mut sql).await);
    let part = format!("PostgreSQL: settings, clock, {}", sql.encoding_and_collation().await?);
    sql.close().await?;
    Ok((part, found))
}

/// Finds campaigns with granted claims without codes.
async fn claims_without_codes(sql: &mut ExaminedDatabase) -> Vec<Finding> {
    // A database that no core of this version has served lacks the tables.
    let waiting = sql.claims_without_codes().await.unwrap_or_default();
    let finding = |(campaign, claims): (String, i64)| {
        let problem = format!("granted claims of campaign {campaign} without codes: {claims}");
        let remedy = format!("add codes: claimgate campaign codes add {campaign} FILE");
        Finding::warning("database.codes", problem, remedy)
    };
    waiting.into_iter().map(finding).collect()
}

async fn read_only(sql: &mut ExaminedDatabase) -> Result<Option<Finding>, SqlError> {
    let (problem, remedy) = match sql.writable().await? {
        Writable::Yes => return Ok(None),
        Writable::ReadOnly => (
            "PostgreSQL is set read-only for core (default_transaction_read_only)",
            "reset it for the server, the database and the role",
        ),
        Writable::Standby => (
            "PostgreSQL is a standby and accepts no writes",
            "set CLAIMGATE_DATABASE_URL to the primary's address, or promote the standby",
        ),
    };
    Ok(Some(Finding::breaks("database.read_only", format!("{problem}; {CONSEQUENCE}"), remedy)))
}

async fn too_few_connections(sql: &mut ExaminedDatabase) -> Result<Option<Finding>, SqlError> {
    let few = sql.low_connection_limit().await?;
    Ok(few.map(|few| {
        let remedy = format!("raise {} to {CONNECTIONS_OF_A_CORE} for each core", few.set_by);
        Finding::warning(FEW_CONNECTIONS, few.to_string(), remedy)
    }))
}
