//! The number of connections that PostgreSQL allows, and the number that core uses.

use std::fmt;

use sqlx::{AnyConnection, Error, Row as _};

use super::CONNECTIONS_MAX;

/// Maximum number of connections of one core: for callers, for the relay, and one for heartbeats.
pub const CONNECTIONS_OF_A_CORE: u32 = 2 * CONNECTIONS_MAX + 1;
/// Minimum number of connections: one each for callers, the relay and heartbeats.
pub(super) const CONNECTIONS_MIN: u32 = 3;

/// Reads the limits of the role, the database and the server; -1 means none. The limits of the role and the
/// database do not apply to superusers.
const LIMITS: &str = "SELECT CAST(session_user AS TEXT), CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END, \
    CASE WHEN rolsuper THEN -1 ELSE datconnlimit END, \
    CAST(current_setting('max_connections') AS INTEGER) \
    - CAST(current_setting('superuser_reserved_connections') AS INTEGER) \
    - CAST(coalesce(current_setting('reserved_connections', true), '0') AS INTEGER) \
    FROM pg_roles, pg_database WHERE rolname = session_user AND datname = current_database()";

/// A connection limit that is lower than [`CONNECTIONS_OF_A_CORE`].
#[derive(Debug)]
pub(crate) struct LowConnectionLimit {
    pub(super) connections: u32,
    whose: String,
    pub(crate) set_by: &'static str,
}

impl fmt::Display for LowConnectionLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, whose, .. } = self;
        write!(
            f,
            "{whose} may have {connections} connections to PostgreSQL, but each core needs up to {CONNECTIONS_OF_A_CORE}: without \
             a free connection, callers get 503 and claims wait in the outbox"
        )
    }
}

/// Returns the lowest limit, if a single core may reach it.
pub(crate) async fn low_connection_limit(
    connection: &mut AnyConnection,
) -> Result<Option<LowConnectionLimit>, Error> {
    let row = sqlx::raw_sql(LIMITS).fetch_one(connection).await?;
    let role: String = row.try_get(0)?;
    let limits: [(i32, String, &str); 3] = [
        (row.try_get(1)?, format!("the role '{role}'"), "ALTER ROLE … CONNECTION LIMIT"),
        (row.try_get(2)?, "the database".to_owned(), "ALTER DATABASE … CONNECTION LIMIT"),
        (row.try_get(3)?, "all clients of the server together".to_owned(), "max_connections"),
    ];
    let limits = limits.into_iter().filter_map(|(connections, whose, set_by)| {
        Some(LowConnectionLimit { connections: u32::try_from(connections).ok()?, whose, set_by })
    });
    let least = limits.min_by_key(|limit| limit.connections);
    Ok(least.filter(|limit| limit.connections < CONNECTIONS_OF_A_CORE))
}
