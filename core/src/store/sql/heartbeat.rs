//! The health check of SQL: once a second, each core writes its row in `cores` on a dedicated connection.
//!
//! A read is not enough, because a server that answers may not accept writes. An old connection is not enough
//! either, because the server may not accept new connections. So the connection is replaced every few seconds
//! ([`super::heartbeat_connection`]).

use sqlx::{Error, Row as _};
use tokio::time::timeout;

use super::SqlStore;
use super::cores::CoreRow;
use super::heartbeat_connection::HEARTBEAT_MAX;
use super::pool::timed_out;
use crate::domain::store_fault::StoreFault;

impl SqlStore {
    /// Records that `core` serves. Returns a number that identifies the run of the SQL server: the number
    /// changes when the server is restarted or replaced.
    ///
    /// # Errors
    /// The fault, within 2.5 s, if SQL has refused the row, or another statement in the last few seconds.
    pub async fn heartbeat(&self, core: &CoreRow) -> Result<i64, StoreFault> {
        let answer =
            timeout(HEARTBEAT_MAX, self.write_heartbeat(core)).await.unwrap_or_else(|_| Err(timed_out()));
        let run = answer.map_err(|error| self.server.fault_of(&error))?;
        // A disk may be too full for new claims, but not for an update of this row.
        self.server.recent_fault().map_or(Ok(run), Err)
    }

    async fn write_heartbeat(&self, core: &CoreRow) -> Result<i64, Error> {
        let mut slot = self.heartbeats.slot().await;
        let mut open = self.heartbeats.renewed(slot.take()).await?;
        let json = |counts| serde_json::to_string(counts).map_err(|error| Error::Encode(error.into()));
        let (results, edge_refusals) = (json(&core.results)?, json(&core.edge_refusals)?);
        let run = if self.is_sqlite() { "0" } else { SERVER_RUN };
        let statement = self.with_database_clock(&RECORD.replace("{run}", run));
        let writer_turn = match &self.writer {
            Some(writer) => Some(writer.lock().await),
            None => None,
        };
        let query = sqlx::query(statement).bind(core.id.as_str()).bind(core.name.as_str());
        let query =
            query.bind(core.version.as_str()).bind(core.started_at.as_ms()).bind(results).bind(edge_refusals);
        let rows = query.fetch_all(&mut open.connection).await;
        drop(writer_turn);
        let rows = rows.inspect_err(|error| {
            self.server.record_error(error);
        })?;
        let run = rows.first().ok_or(Error::RowNotFound)?.try_get(0)?;
        *slot = Some(open);
        Ok(run)
    }
}

const RECORD: &str = "INSERT INTO cores (id, name, version, started_at, seen_at, results, edge_refusals) \
    VALUES ($1, $2, $3, $4, {now}, $5, $6) \
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, version = excluded.version, \
    started_at = excluded.started_at, seen_at = excluded.seen_at, results = excluded.results, \
    edge_refusals = excluded.edge_refusals RETURNING {run}";

/// The start time of the PostgreSQL server, in ms since 1970.
const SERVER_RUN: &str = "CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time()) * 1000 AS BIGINT)";
