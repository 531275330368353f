//! Detects databases that cannot store every text that core accepts.

use sqlx::{AnyConnection, Error};

use super::SqlError;

/// The remedy for [`problem`].
pub(crate) const REMEDY: &str = "create the database with ENCODING 'UTF8' TEMPLATE template0";

/// Returns what is wrong with the encoding of a PostgreSQL database; `None` for UTF-8, and for `SQL_ASCII`,
/// which stores bytes unchanged. Other encodings lack characters: a name in Chinese would be refused, and so
/// would migrations.
pub(crate) async fn problem(connection: &mut AnyConnection) -> Result<Option<String>, Error> {
    let encoding: String =
        sqlx::query_scalar("SELECT current_setting('server_encoding')").fetch_one(connection).await?;
    let is_complete = ["UTF8", "SQL_ASCII"].contains(&encoding.as_str());
    Ok((!is_complete).then(|| {
        format!(
            "the database's encoding is {encoding}, which lacks characters that names may have; core does not start \
             with it"
        )
    }))
}

/// Rejects a PostgreSQL database of an unsuitable encoding.
pub(super) async fn require_unicode(connection: &mut AnyConnection) -> Result<(), SqlError> {
    let problem = problem(connection).await?;
    problem.map_or(Ok(()), |problem| Err(SqlError::UnsuitableDatabase(format!("{problem}; {REMEDY}"))))
}
