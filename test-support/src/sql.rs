//! Direct access to the database, bypassing core, for both SQLite and PostgreSQL.

use std::path::Path;

use sqlx::any::{AnyPoolOptions, AnyRow};
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyPool, Row as _};

use crate::time_limits::SOON;
use crate::wait::{eventually, reaches};

/// A claim's row, with the columns that both databases store in the same form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlClaim {
    /// The claim's id.
    pub id: String,
    /// The user's id.
    pub user_id: String,
    /// Number of units.
    pub quantity: u64,
    /// The status, such as `granted`.
    pub status: String,
    /// The epoch in which Redis granted the claim.
    pub epoch: u64,
    /// The revision, which every change of the claim raises.
    pub revision: u64,
    /// The sequence number.
    pub sequence: u64,
    /// The day on which the claim counts, in days since 1970.
    pub day: u64,
    /// Time of the decision, in milliseconds since 1970.
    pub claimed_at: i64,
    /// When a hold expires, in milliseconds since 1970.
    pub expires_at: Option<i64>,
}

impl SqlClaim {
    /// Returns whether the claim is active: its units are taken.
    pub fn is_active(&self) -> bool {
        ["granted", "held"].contains(&self.status.as_str())
    }
}

/// Claims for a test database: two for each user, one unit each, sequence numbers 1 to `count`.
#[derive(Debug, Clone, Copy)]
pub struct Claims<'a> {
    /// The campaign.
    pub campaign: &'a str,
    /// Number of claims.
    pub count: u64,
}

impl Claims<'_> {
    /// Returns a statement for [`Sql::run`] that both databases accept.
    pub fn insert(&self) -> String {
        let Self { campaign, count } = self;
        format!(
            "INSERT INTO claims (campaign_id, user_id, digest, quantity, status, epoch, revision, sequence, day, \
             claimed_at, expires_at, updated_at, limit_at_decision, cumulative_taken) \
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
             SELECT '{campaign}', 'u' || CAST(i / 2 AS TEXT), '000' || CAST(100000000000000000 + i AS TEXT) || 'A', 1, 'granted', 1, 1, i, 20000, 1750000000000 + i, NULL, \
             1750000000000 + i, {count}, i FROM n"
        )
    }
}

/// Campaigns for a test database: `live1` … with ten units, not yet in Redis, and `over1` …, already evicted.
#[derive(Debug, Clone, Copy)]
pub struct Campaigns {
    /// Number of campaigns without an end.
    pub live: u64,
    /// Number of ended campaigns.
    pub ended: u64,
}

impl Campaigns {
    /// Returns a statement for [`Sql::run`] that both databases accept.
    pub fn insert(&self) -> String {
        let (live, all) = (self.live, self.live + self.ended);
        format!(
            "INSERT INTO campaigns (id, name, starts_at, ends_at, time_zone, total, admin_state, version, epoch, token, \
             register_id, sequence, events, created_at, changed_at, evicted_at, evicted_taken, evicted_sequence) \
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {all}), \
             each (i, ended) AS (SELECT i, CASE WHEN i > {live} THEN 1750000000000 END FROM n) \
             SELECT CASE WHEN ended IS NULL THEN 'live' || CAST(i AS TEXT) ELSE 'over' || CAST(i - {live} AS TEXT) END, \
             'One of many', 1700000000000, ended, 'UTC', 10, 'on', 1, 0, 0, 'r' || CAST(i AS TEXT), 0, 0, \
             1700000000000, 1700000000000, ended, CASE WHEN ended IS NOT NULL THEN 0 END, \
             CASE WHEN ended IS NOT NULL THEN 0 END FROM each"
        )
    }
}

/// Core's database, of either kind.
#[derive(Debug, Clone)]
pub struct Sql {
    pool: AnyPool,
    is_sqlite: bool,
}

/// Tables that a rollback replaces; referenced tables come first.
const TABLES: [&str; 21] = [
    "campaigns",
    "claims",
    "codes",
    "code_audit",
    "archive_audit",
    "audit",
    "claim_audit",
    "extension_audit",
    "additions",
    "feed",
    "feed_position",
    "last_change",
    "last_audit",
    "user_ids",
    "user_ids_audit",
    "webhooks",
    "webhook_events",
    "webhook_audit",
    "replication",
    "replica_sets",
    "replication_audit",
];

/// Tables that a rollback keeps. Core writes heartbeats and refusals every second, and no guarantee restores them.
const TABLES_KEPT: [&str; 5] = ["cores", "serving", "refusals", "refusal_reports", "_sqlx_migrations"];

/// A lock that blocks writers until released.
#[derive(Debug)]
pub struct WriteLock(PoolConnection<Any>);

impl Sql {
    /// Opens the database at `url`.
    pub fn open(url: &str) -> Self {
        sqlx::any::install_default_drivers();
        let pool = AnyPoolOptions::new().max_connections(4).connect_lazy(url);
        Self { pool: pool.expect("a database's address"), is_sqlite: url.starts_with("sqlite") }
    }

    /// Opens the SQLite file in the data directory `data`.
    pub fn in_directory(data: &Path) -> Self {
        let file = reqwest::Url::from_file_path(data.join("claimgate.sqlite")).expect("an absolute path");
        Self::open(&format!("sqlite://{}?mode=rw", file.path()))
    }

    /// Returns all claims of a campaign by sequence number.
    pub async fn claims(&self, campaign: &str) -> Vec<SqlClaim> {
        let query = "SELECT campaign_id || '.' || user_id || '.' || digest, user_id, quantity, status, epoch, revision, sequence, day, claimed_at, expires_at FROM claims \
                     WHERE campaign_id = $1 ORDER BY sequence, epoch";
        let rows = sqlx::query(query).bind(campaign.to_owned()).fetch_all(&self.pool);
        rows.await.expect("claims").iter().map(read).collect()
    }

    /// Waits until SQL has `count` claims of the campaign, and returns them.
    pub async fn until(&self, campaign: &str, count: usize) -> Vec<SqlClaim> {
        eventually(SOON, || async {
            let rows = self.claims(campaign).await;
            reaches(rows.len(), count, "claims in SQL").map(|()| rows)
        })
        .await
    }

    /// Returns a campaign's audit log by version: version, caller, action, before, after.
    pub async fn audit(&self, campaign: &str) -> Vec<(i64, String, String, Option<String>, String)> {
        let query =
            "SELECT version, who, what, before, after FROM audit WHERE campaign_id = $1 ORDER BY version";
        sqlx::query_as(query).bind(campaign.to_owned()).fetch_all(&self.pool).await.expect("audit")
    }

    /// Returns the confirmations, returns and extensions of a campaign's claims in audit order: user, caller, action,
    /// before, after.
    pub async fn claim_audit(&self, campaign: &str) -> Vec<(String, String, String, String, String)> {
        let query = "SELECT user_id, who, what, before, after FROM \
                     (SELECT number, campaign_id, user_id, who, what, before, after FROM claim_audit UNION ALL \
                     SELECT number, campaign_id, user_id, who, what, before, after FROM extension_audit) AS changes \
                     WHERE campaign_id = $1 ORDER BY number";
        sqlx::query_as(query)
            .bind(campaign.to_owned())
            .fetch_all(&self.pool)
            .await
            .expect("the audit of claims")
    }

    /// Returns every row of every table as text.
    pub async fn everything(&self) -> Vec<String> {
        let mut all = Vec::new();
        for table in [
            "SELECT * FROM campaigns ORDER BY 1",
            "SELECT * FROM claims ORDER BY 1, 2, 3",
            "SELECT * FROM audit ORDER BY 1, 2",
            "SELECT * FROM claim_audit ORDER BY 1",
            "SELECT * FROM extension_audit ORDER BY 1",
        ] {
            for row in sqlx::query(table).fetch_all(&self.pool).await.expect("a table") {
                all.push((0..row.len()).map(|at| cell(&row, at)).collect::<Vec<_>>().join("|"));
            }
        }
        all
    }

    /// Adds an unknown column to every table, as a newer version may. The database must be PostgreSQL.
    pub async fn add_columns_of_a_newer_version(&self) {
        for table in self.tables().await {
            self.run(format!("ALTER TABLE {table} ADD COLUMN of_a_later_version TEXT")).await;
        }
    }

    /// Returns the names of all tables.
    async fn tables(&self) -> Vec<String> {
        let query = if self.is_sqlite {
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        } else {
            "SELECT tablename::TEXT FROM pg_tables WHERE schemaname = 'public'"
        };
        sqlx::query_scalar(query).fetch_all(&self.pool).await.expect("the tables")
    }

    /// Returns the number that `query` returns; `$1` is the campaign.
    pub async fn number(&self, query: &'static str, campaign: &str) -> i64 {
        let row = sqlx::query(query).bind(campaign.to_owned()).fetch_one(&self.pool);
        row.await.expect("one row").try_get(0).expect("a number")
    }

    /// Returns the numbers in the row that `query` returns; `$1` is the campaign. `None` if there is no row.
    pub async fn numbers(&self, query: &'static str, campaign: &str) -> Option<Vec<Option<i64>>> {
        let row = sqlx::query(query).bind(campaign.to_owned()).fetch_optional(&self.pool);
        let row = row.await.expect("at most one row")?;
        Some((0..row.len()).map(|at| row.try_get(at).expect("a number")).collect())
    }

    /// Runs a statement; returns the number of affected rows.
    pub async fn run(&self, statement: String) -> u64 {
        let statement = sqlx::AssertSqlSafe(statement);
        let done = sqlx::query(statement).execute(&self.pool).await;
        done.expect("a statement").rows_affected()
    }

    /// Copies the tables for [`Self::restore_tables`]. Fails the test if a table is neither rolled back nor kept.
    pub async fn copy_tables(&self) {
        let mut unlisted = self.tables().await;
        unlisted.retain(|table| {
            let table = table.as_str();
            !table.ends_with("_behind") && !TABLES.contains(&table) && !TABLES_KEPT.contains(&table)
        });
        assert!(unlisted.is_empty(), "neither in TABLES nor in TABLES_KEPT: {unlisted:?}");
        for table in TABLES {
            self.run(format!("DROP TABLE IF EXISTS {table}_behind")).await;
            self.run(format!("CREATE TABLE {table}_behind AS SELECT * FROM {table}")).await;
        }
    }

    /// Restores the copy, as a failover to a standby that lacks the last transactions does. Cores keep
    /// running, so a deadlock with one of their transactions may abort this one.
    pub async fn restore_tables(&self) {
        eventually(SOON, || async { self.try_to_bring_back().await.map_err(|error| error.to_string()) })
            .await;
    }

    async fn try_to_bring_back(&self) -> Result<(), sqlx::Error> {
        let mut transaction = self.pool.begin().await?;
        if !self.is_sqlite {
            // Otherwise a transaction of a core could end after its rows in one table were replaced and
            // before its rows in another are.
            let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", TABLES.join(", "));
            sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *transaction).await?;
        }
        let cleared = TABLES.iter().rev().map(|table| format!("DELETE FROM {table}"));
        let filled = TABLES.iter().map(|table| format!("INSERT INTO {table} SELECT * FROM {table}_behind"));
        for statement in cleared.chain(filled) {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }

    /// Changes a campaign's columns under the next version and change number, like a core that dies before it
    /// applies the change to Redis.
    pub async fn change_campaign(&self, campaign: &str, set: &str) {
        let mut transaction = self.pool.begin().await.expect("a transaction");
        for statement in [
            format!("UPDATE campaigns SET {set}, version = version + 1 WHERE id = '{campaign}'"),
            "UPDATE last_change SET number = number + 1".to_owned(),
            format!(
                "UPDATE campaigns SET change_number = (SELECT number FROM last_change) WHERE id = '{campaign}'"
            ),
        ] {
            let done = sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut *transaction).await;
            assert_eq!(done.expect("a statement").rows_affected(), 1);
        }
        transaction.commit().await.expect("committed");
    }

    /// Blocks all writers of claims: with SQLite's exclusive lock, or PostgreSQL's locks on all campaign
    /// rows.
    pub async fn hold(&self) -> WriteLock {
        if self.is_sqlite {
            self.hold_by(&["BEGIN EXCLUSIVE".to_owned()]).await
        } else {
            self.hold_by(&["BEGIN".to_owned(), "SELECT id FROM campaigns FOR UPDATE".to_owned()]).await
        }
    }

    /// Blocks all writers of one campaign with PostgreSQL's lock on its row.
    pub async fn hold_campaign(&self, campaign: &str) -> WriteLock {
        assert!(!self.is_sqlite, "SQLite locks no single row");
        let lock = format!("SELECT id FROM campaigns WHERE id = '{campaign}' FOR UPDATE");
        self.hold_by(&["BEGIN".to_owned(), lock]).await
    }

    async fn hold_by(&self, statements: &[String]) -> WriteLock {
        let mut connection = self.pool.acquire().await.expect("a connection");
        for statement in statements {
            let run = sqlx::query(sqlx::AssertSqlSafe(statement.clone())).execute(&mut *connection).await;
            run.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        WriteLock(connection)
    }
}

impl WriteLock {
    /// Releases the writers.
    pub async fn release(mut self) {
        let done = sqlx::query("ROLLBACK").execute(&mut *self.0).await;
        done.expect("ROLLBACK");
    }
}

/// Returns a number or a string as a string; empty for NULL.
fn cell(row: &AnyRow, at: usize) -> String {
    let number = row.try_get::<Option<i64>, _>(at).map(|number| number.map(|number| number.to_string()));
    number.or_else(|_| row.try_get::<Option<String>, _>(at)).expect("a number or a text").unwrap_or_default()
}

fn read(row: &AnyRow) -> SqlClaim {
    let number = |at: usize| u64::try_from(row.get::<i64, _>(at)).expect("no negative number");
    SqlClaim {
        id: row.get(0),
        user_id: row.get(1),
        quantity: number(2),
        status: row.get(3),
        epoch: number(4),
        revision: number(5),
        sequence: number(6),
        day: number(7),
        claimed_at: row.get(8),
        expires_at: row.get(9),
    }
}
