//! Detects unsuitable poolers between core and PostgreSQL.
//!
//! Core prepares statements and sets limits for a session, so each connection needs its own session. A pooler
//! that assigns a session to each transaction seems to work at first, but fails later.

use sqlx::{AnyConnection, Connection as _, Error, Row as _};
use tokio::time::timeout;

use super::pool::timed_out;
use super::{START_MAX, SqlError, server};

pub(crate) const SHARED: &str = "the address leads to a pooler that shares sessions between transactions (PgBouncer's pool_mode \
    transaction or statement), but core needs a session for each connection";
/// The remedy for [`SHARED`].
pub(crate) const REMEDY: &str = "use PostgreSQL's own address, or a pool with pool_mode = session";
const PARAMETER: &str = "the address leads to a pooler that refuses a startup parameter of core; in PgBouncer, set \
    ignore_startup_parameters = extra_float_digits, and pool_mode = session for core's database";

/// Rejects a pooler that moves `connection` to another session while a second connection is in a transaction.
pub(super) async fn reject_shared_sessions(
    connection: &mut AnyConnection,
    url: &str,
) -> Result<(), SqlError> {
    match timeout(START_MAX, session_changes(connection, url)).await.unwrap_or_else(|_| Err(timed_out())) {
        Ok(false) => Ok(()),
        Ok(true) => Err(shared_sessions()),
        Err(error) => Err(explain_pooler_error(error.into())),
    }
}

/// Returns true if the session of `connection` changes when a second connection begins a transaction. Such a
/// pooler gives the second connection the first free session, which was the session of `connection`.
pub(crate) async fn session_changes(connection: &mut AnyConnection, url: &str) -> Result<bool, Error> {
    let before = session(connection).await?;
    let mut second = server::open(url).await?;
    sqlx::raw_sql("BEGIN").execute(&mut second).await?;
    session(&mut second).await?;
    let after = session(connection).await;
    let _ = second.close().await;
    Ok(before != after?)
}

async fn session(connection: &mut AnyConnection) -> Result<i32, Error> {
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}

fn shared_sessions() -> SqlError {
    SqlError::UnsuitableDatabase(format!("{SHARED}; {REMEDY}"))
}

/// Replaces an error that only a pooler can cause by an error that explains the cause.
pub(crate) fn explain_pooler_error(error: SqlError) -> SqlError {
    let SqlError::Sql(Error::Database(of_server)) = &error else { return error };
    let said = of_server.message();
    if said.contains("unsupported startup parameter") {
        SqlError::UnsuitableDatabase(format!("{PARAMETER} ({said})"))
    } else if said.contains("statement pooling mode") {
        shared_sessions()
    } else {
        error
    }
}
