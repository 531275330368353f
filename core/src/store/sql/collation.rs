//! The order of strings in PostgreSQL.
//!
//! The order of an index is that of its columns' collations, and the one of a database usually comes from
//! libc or ICU. If a different version of either is installed, it may sort differently: rows are then not
//! found, or stored twice. All ids are ASCII, so the columns of indexes have the collation C instead, which
//! compares bytes and never changes. SQLite compares bytes anyway.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Error, Row as _};
use tokio::time::{Instant, sleep};

/// All tables with strings in an index, `campaigns` first, as in all transactions: the order in which they are locked.
const TABLES: &str = "'{campaigns,additions,archive_audit,audit,claim_audit,claims,code_audit,codes,cores,\
                      extension_audit,feed,refusal_reports,refusals,replica_sets,webhook_events,webhooks}'::name[]";
/// The indexes of [`TABLES`] with a different collation, in the order of the tables; a replacement that an
/// interrupted start has left has the collation C already. Their keys are rendered with the collation C. An
/// index is built beforehand if that would lock its table for long; foreign keys prevent that, but the tables
/// that they refer to are small.
const INDEXES: &str = "SELECT CAST(tables.relname AS TEXT), CAST(indexes.relname AS TEXT), keys.definition, \
    keys.altered, CAST(constraints.contype AS TEXT), CAST(indisunique AS INTEGER), pg_get_expr(indpred, indrelid), \
    CAST(pg_relation_size(tables.oid) > 4194304 AND NOT EXISTS \
        (SELECT FROM pg_constraint WHERE confrelid = tables.oid) AS INTEGER) \
    FROM pg_index JOIN pg_class AS tables ON tables.oid = indrelid JOIN pg_class AS indexes ON indexes.oid = indexrelid \
    LEFT JOIN pg_constraint AS constraints ON conindid = indexrelid AND contype IN ('p', 'u') \
    CROSS JOIN LATERAL (SELECT \
        string_agg(attname || CASE atttypid WHEN 'text'::regtype THEN ' COLLATE \"C\"' ELSE '' END, ', ' ORDER BY place) \
            AS definition, \
        string_agg('ALTER ' || attname || ' TYPE TEXT COLLATE \"C\"', ', ') \
            FILTER (WHERE atttypid = 'text'::regtype AND attcollation <> 'pg_catalog.\"C\"'::regcollation) AS altered \
        FROM unnest(indkey) WITH ORDINALITY AS key (number, place) \
        JOIN pg_attribute ON attrelid = indrelid AND attnum = number) AS keys \
    WHERE tables.relnamespace = current_schema()::regnamespace AND tables.relname = ANY ({tables}) \
    AND keys.altered IS NOT NULL \
    AND EXISTS (SELECT FROM unnest(indcollation) AS used WHERE used NOT IN (0, 'pg_catalog.\"C\"'::regcollation)) \
    ORDER BY array_position({tables}, tables.relname), indexes.relname";

/// Timeout of the wait for each older transaction while an index is built or dropped.
const BUILD_WAIT: &str = "10s";
/// Timeout of the conversion's wait for the locks of all tables. Other calls wait behind it.
const LOCK_WAIT: &str = "1s";
/// Time for which the conversion tries to get these locks. An export of the database may hold one for hours.
const ATTEMPTS_MAX: Duration = Duration::from_mins(1);
/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// Names the session of a core that starts.
const NAME_SESSION: &str = "SET application_name = 'claimgate start'";
/// Takes the advisory lock under which one core at a time converts, if no other session has the lock.
const TRY_LOCK: &str = "SELECT CAST(pg_try_advisory_lock(27988534159832165) AS INTEGER)";
/// Releases the lock.
const UNLOCK: &str = "SELECT pg_advisory_unlock(27988534159832165)";

/// Gives the strings in all indexes the collation C. Large indexes are built while the tables are in use. Then
/// all tables are locked for milliseconds, and the other sessions of core's role are closed: PostgreSQL refuses
/// their prepared statements, since the type of a result has changed, and cores of earlier versions do not
/// expect that. They reconnect.
///
/// # Errors
/// The role does not own the tables, a row is stored twice (see [`problem`]), or another session keeps a table
/// locked or a transaction open for long. All indexes in use stay unchanged. An index that replaces another
/// index may remain until the next start.
pub(super) async fn compare_by_bytes(connection: &mut AnyConnection) -> Result<(), Error> {
    execute(connection, NAME_SESSION.to_owned()).await?;
    if indexes_to_convert(connection).await?.is_empty() {
        return Ok(());
    }
    // A session that waits for a lock would stop another core from building indexes.
    while !try_lock(connection).await? {
        sleep(PAUSE).await;
    }
    let converted = convert(connection).await;
    execute(connection, UNLOCK.to_owned()).await?;
    converted
}

async fn try_lock(connection: &mut AnyConnection) -> Result<bool, Error> {
    Ok(sqlx::raw_sql(TRY_LOCK).fetch_one(connection).await?.try_get::<i32, _>(0)? == 1)
}

async fn convert(connection: &mut AnyConnection) -> Result<(), Error> {
    let indexes = indexes_to_convert(connection).await?;
    if indexes.is_empty() {
        return Ok(());
    }
    execute(connection, format!("SET lock_timeout = '{BUILD_WAIT}'")).await?;
    let converted = build_and_exchange(connection, &indexes).await;
    if converted.is_err() {
        for index in indexes.iter().filter(|index| index.is_large) {
            // After the first wait for a transaction, the others would wait for it too.
            if let Err(error) = index.drop_replacement(connection).await {
                let index = index.replacement();
                tracing::warn!(%error, index, "indexes like this are not used; the next start drops them");
                break;
            }
        }
    }
    converted
}

async fn build_and_exchange(connection: &mut AnyConnection, indexes: &[Index]) -> Result<(), Error> {
    let began = Instant::now();
    for index in indexes {
        // A remnant of a start that was interrupted.
        index.drop_replacement(connection).await?;
        if index.is_large {
            index.build_replacement(connection).await?;
        }
    }
    let serving =
        sqlx::raw_sql("SELECT CAST(COUNT(*) AS INTEGER) FROM serving").fetch_one(&mut *connection).await?;
    let conversion = conversion(indexes, serving.try_get::<i32, _>(0)? > 0);
    let built = Instant::now();
    loop {
        let locking = Instant::now();
        let Err(error) = execute(connection, conversion.clone()).await else {
            let (seconds, locked_ms) = (began.elapsed().as_secs_f64(), locking.elapsed().as_millis());
            tracing::info!(seconds, locked_ms, "converted: ids are now compared by bytes");
            return Ok(());
        };
        execute(connection, "ROLLBACK".to_owned()).await?;
        if !is_locked(&error) || built.elapsed() > ATTEMPTS_MAX {
            return Err(error);
        }
        sleep(PAUSE).await;
    }
}

/// Returns true if a lock was not granted in time, or to resolve a deadlock.
fn is_locked(error: &Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ["55P03", "40P01"].contains(&&*code))
}

/// Returns the transaction that changes the columns of `indexes`. `is_served` is false for a new database.
fn conversion(indexes: &[Index], is_served: bool) -> String {
    let mut altered: Vec<(&str, BTreeSet<&str>)> = vec![];
    for index in indexes {
        match altered.last_mut() {
            Some((table, columns)) if *table == index.table => columns.extend(index.altered.split(", ")),
            _ => altered.push((&index.table, index.altered.split(", ").collect())),
        }
    }
    let tables: Vec<_> = altered.iter().map(|(table, _)| *table).collect();
    let large = || indexes.iter().filter(|index| index.is_large);
    let mut statements = vec![
        "BEGIN".to_owned(),
        format!("SET LOCAL lock_timeout = '{LOCK_WAIT}'"),
        format!("LOCK TABLE {}", tables.join(", ")),
    ];
    statements.extend(large().map(Index::drop));
    statements.extend(altered.iter().map(|(table, columns)| {
        let columns: Vec<_> = columns.iter().copied().collect();
        format!("ALTER TABLE {table} {}", columns.join(", "))
    }));
    statements.extend(large().map(Index::replace));
    if is_served {
        statements.push(CLOSE_OTHERS.to_owned());
    }
    statements.push("COMMIT".to_owned());
    statements.join("; ")
}

/// Closes the other sessions of core's role, whose prepared statements PostgreSQL would refuse. Not those of
/// starting cores that wait for the lock, see [`NAME_SESSION`]: they have not prepared such a statement.
/// These cores would exit, since they connect again only in the first seconds of their start.
const CLOSE_OTHERS: &str = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity \
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() \
    AND application_name IS DISTINCT FROM 'claimgate start'";

/// An index with a different collation.
#[derive(Debug)]
struct Index {
    table: String,
    name: String,
    /// The key with the collation C.
    definition: String,
    /// The arguments of `ALTER TABLE`, separated by commas.
    altered: String,
    /// `p` for the index of a primary key, `u` for that of a unique constraint.
    constraint: Option<String>,
    is_unique: bool,
    predicate: Option<String>,
    is_large: bool,
}

impl Index {
    fn of(row: &AnyRow) -> Result<Self, Error> {
        Ok(Self {
            table: row.try_get(0)?,
            name: row.try_get(1)?,
            definition: row.try_get(2)?,
            altered: row.try_get(3)?,
            constraint: row.try_get(4)?,
            is_unique: row.try_get::<i32, _>(5)? == 1,
            predicate: row.try_get(6)?,
            is_large: row.try_get::<i32, _>(7)? == 1,
        })
    }

    /// The name of the index that replaces this one.
    fn replacement(&self) -> String {
        format!("{}_c", self.name)
    }

    /// Builds the index that replaces this one, while the table is in use.
    async fn build_replacement(&self, connection: &mut AnyConnection) -> Result<(), Error> {
        let (table, definition, replacement) = (&self.table, &self.definition, self.replacement());
        let unique = if self.is_unique { "UNIQUE" } else { "" };
        let predicate =
            self.predicate.as_ref().map_or(String::new(), |predicate| format!("WHERE {predicate}"));
        let create =
            format!("CREATE {unique} INDEX CONCURRENTLY {replacement} ON {table} ({definition}) {predicate}");
        execute(connection, create).await
    }

    /// Drops the index that replaces this one, if there is one, while the table is in use.
    async fn drop_replacement(&self, connection: &mut AnyConnection) -> Result<(), Error> {
        execute(connection, format!("DROP INDEX CONCURRENTLY IF EXISTS {}", self.replacement())).await
    }

    fn drop(&self) -> String {
        match self.constraint {
            Some(_) => format!("ALTER TABLE {} DROP CONSTRAINT {}", self.table, self.name),
            None => format!("DROP INDEX {}", self.name),
        }
    }

    fn replace(&self) -> String {
        let (table, name, replacement) = (&self.table, &self.name, self.replacement());
        let kind = match self.constraint.as_deref() {
            Some("p") => "PRIMARY KEY",
            Some(_) => "UNIQUE",
            None => return format!("ALTER INDEX {replacement} RENAME TO {name}"),
        };
        format!("ALTER TABLE {table} ADD CONSTRAINT {name} {kind} USING INDEX {replacement}")
    }
}

async fn indexes_to_convert(connection: &mut AnyConnection) -> Result<Vec<Index>, Error> {
    let statement = AssertSqlSafe(INDEXES.replace("{tables}", TABLES));
    sqlx::raw_sql(statement).fetch_all(connection).await?.iter().map(Index::of).collect()
}

async fn execute(connection: &mut AnyConnection, statement: String) -> Result<(), Error> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.map(drop)
}

/// Returns the encoding and the collation of the database, as text for people. The version is the
/// one that PostgreSQL has recorded; C has none.
pub(crate) async fn with_encoding(connection: &mut AnyConnection) -> Result<String, Error> {
    // As JSON, since the columns differ between versions of PostgreSQL.
    let described = "SELECT 'encoding ' || current_setting('server_encoding') || ', collation ' \
        || COALESCE(this->>'datlocale', this->>'daticulocale', this->>'datcollate') \
        || COALESCE(' of version ' || (this->>'datcollversion'), '') \
        FROM (SELECT to_jsonb(pg_database) AS this FROM pg_database WHERE datname = current_database()) AS found";
    sqlx::query_scalar(described).fetch_one(connection).await
}

/// Returns what is wrong if ids still have the database's collation, and libc or ICU now sorts differently
/// from when the indexes were built: rows are then not found, or stored twice. `None` for collations without
/// a version, such as C, and before PostgreSQL 15, which records no version.
pub(crate) async fn problem(connection: &mut AnyConnection) -> Result<Option<String>, Error> {
    // As JSON, since earlier versions lack the column.
    let recorded =
        "SELECT to_jsonb(pg_database)->>'datcollversion' FROM pg_database WHERE datname = current_database()";
    let Some(recorded) =
        sqlx::query_scalar::<_, Option<String>>(recorded).fetch_one(&mut *connection).await?
    else {
        return Ok(None);
    };
    let actual = "SELECT pg_database_collation_actual_version(oid) FROM pg_database \
                  WHERE datname = current_database()";
    let actual: Option<String> = sqlx::query_scalar(actual).fetch_one(&mut *connection).await?;
    let Some(actual) = actual.filter(|actual| *actual != recorded) else { return Ok(None) };
    Ok((!indexes_to_convert(connection).await?.is_empty()).then(|| {
        format!(
            "the database's indexes were built with version {recorded} of its collation, and version {actual} is \
             installed: existing claims may be missed or stored twice"
        )
    }))
}
