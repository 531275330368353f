//! Detects that the order of texts has changed below the database.

use sqlx::{AnyConnection, Error};

/// Returns what is wrong if the operating system or ICU now sorts in another order than when the database's indexes were
/// built: rows are then not found, or stored twice. `None` for collations without a version, such as C, and before
/// PostgreSQL 15, which records no version.
pub(crate) async fn problem(connection: &mut AnyConnection) -> Result<Option<String>, Error> {
    // As JSON, since earlier versions lack the column.
    let recorded =
        "SELECT to_jsonb(pg_database)->>'datcollversion' FROM pg_database WHERE datname = current_database()";
    let Some(recorded) =
        sqlx::query_scalar::<_, Option<String>>(recorded).fetch_one(&mut *connection).await?
    else {
        return Ok(None);
    };
    let actual = "SELECT pg_database_collation_actual_version(oid) FROM pg_database WHERE datname = current_database()";
    let actual: Option<String> = sqlx::query_scalar(actual).fetch_one(connection).await?;
    Ok(actual.filter(|actual| *actual != recorded).map(|actual| {
        format!(
            "the database's indexes were built with version {recorded} of its collation, and version {actual} is \
             installed: claims may not be found, or be stored twice"
        )
    }))
}
