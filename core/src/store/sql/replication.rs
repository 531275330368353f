//! The replication settings: the minimum number of replicas, and the replica sets; see
//! [`crate::domain::replica_set`].

use std::collections::BTreeSet;

use claimgate_shared::Timestamp;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::numbers::{to_i64, unsigned};
use super::pool::Transaction;
use super::{SqlError, SqlStore};
use crate::domain::replica_set::{ReplicaSet, Replication, ServerName, SetChange};

/// The caller and time of a change to replication, a webhook or the user ids, for the audit.
#[derive(Debug, Clone, Copy)]
pub struct ChangedBy<'a> {
    /// The name of the caller, or `core`.
    pub who: &'a str,
    /// The time of the change.
    pub at: Timestamp,
}

impl SqlStore {
    /// Reads the replication settings; `None` before [`Self::begin_replication`].
    pub(crate) async fn replication(&self) -> Result<Option<Replication>, SqlError> {
        let Some(row) = sqlx::query("SELECT replicas_min FROM replication WHERE one = 1")
            .fetch_optional(&mut self.pool.lease().await?)
            .await?
        else {
            return Ok(None);
        };
        let replicas_min = u32::try_from(unsigned(row.try_get(0)?)?).unwrap_or(u32::MAX);
        if replicas_min == 0 {
            return Ok(Some(Replication::default()));
        }
        let sets = sqlx::query(
            "SELECT id, primary_at, members, joining, tag, version FROM replica_sets ORDER BY id",
        );
        let sets =
            sets.fetch_all(&mut self.pool.lease().await?).await?.iter().map(set).collect::<Result<_, _>>()?;
        Ok(Some(Replication { replicas_min, sets }))
    }

    /// Records the minimum number of replicas, unless one is recorded already.
    pub(crate) async fn begin_replication(&self, replicas_min: u32) -> Result<(), SqlError> {
        sqlx::query(
            "INSERT INTO replication (one, replicas_min) VALUES (1, $1) ON CONFLICT (one) DO NOTHING",
        )
        .bind(i64::from(replicas_min))
        .execute(&mut self.pool.lease().await?)
        .await?;
        Ok(())
    }

    /// Changes the minimum number of replicas. If the old or the new number is 0, all sets are deleted,
    /// because sets mean nothing while no write waits for replicas. The next poll of the primaries creates
    /// new sets.
    pub(crate) async fn set_replicas_min(
        &self,
        before: &Replication,
        replicas_min: u32,
        by: ChangedBy<'_>,
    ) -> Result<(), SqlError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("UPDATE replication SET replicas_min = $1 WHERE one = 1")
            .bind(i64::from(replicas_min))
            .execute(&mut transaction.lease)
            .await?;
        if before.replicas_min == 0 || replicas_min == 0 {
            sqlx::query("DELETE FROM replica_sets").execute(&mut transaction.lease).await?;
        }
        let (before, after) = (before.replicas_min.to_string(), replicas_min.to_string());
        commit_audited(transaction, by, "replicas_min", Some(&before), &after).await
    }

    /// Deletes the sets of `before`. The current primaries are then accepted, even if they lack acknowledged
    /// writes.
    pub(crate) async fn forget_replica_sets(
        &self,
        before: &Replication,
        by: ChangedBy<'_>,
    ) -> Result<(), SqlError> {
        let before: Vec<_> = before.sets.iter().map(text).collect();
        let mut transaction = self.pool.begin().await?;
        sqlx::query("DELETE FROM replica_sets").execute(&mut transaction.lease).await?;
        commit_audited(transaction, by, "accept_loss", Some(&before.join("; ")), "").await
    }

    /// Changes a set. Returns `false` if another core has changed it in the meantime.
    pub(crate) async fn change_replica_set(
        &self,
        change: &SetChange,
        by: ChangedBy<'_>,
    ) -> Result<bool, SqlError> {
        let mut transaction = self.pool.begin().await?;
        let (statement, before, set) = match change {
            SetChange::Create(set) => (
                "INSERT INTO replica_sets (id, primary_at, members, joining, tag, version) \
                 SELECT $1 + COALESCE(MAX(id), 0) + 1, $2, $3, $4, $5, $6 FROM replica_sets WHERE $7 = 0 \
                 ON CONFLICT DO NOTHING",
                0,
                set,
            ),
            SetChange::Replace { before, set } => (
                "UPDATE replica_sets SET primary_at = $2, members = $3, joining = $4, tag = $5, version = $6 \
                 WHERE id = $1 AND version = $7",
                *before,
                set,
            ),
        };
        let done = sqlx::query(statement)
            .bind(set.id)
            .bind(set.primary.as_str())
            .bind(joined(&set.members))
            .bind(joined(&set.joining))
            .bind(set.tag.as_str())
            .bind(to_i64(set.version))
            .bind(to_i64(before))
            .execute(&mut transaction.lease)
            .await?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        commit_audited(transaction, by, "replica_set", None, &text(set)).await?;
        Ok(true)
    }
}

/// Writes an audit entry for a change of replication, and commits.
async fn commit_audited(
    mut transaction: Transaction,
    by: ChangedBy<'_>,
    what: &str,
    before: Option<&str>,
    after: &str,
) -> Result<(), SqlError> {
    sqlx::query(
        "INSERT INTO replication_audit (number, at, who, what, before, after) \
         SELECT COALESCE(MAX(number), 0) + 1, $1, $2, $3, $4, $5 FROM replication_audit",
    )
    .bind(by.at.as_ms())
    .bind(by.who)
    .bind(what)
    .bind(before)
    .bind(after)
    .execute(&mut transaction.lease)
    .await?;
    Ok(transaction.commit().await?)
}

fn set(row: &AnyRow) -> Result<ReplicaSet, SqlError> {
    let names = |column: usize| -> Result<BTreeSet<ServerName>, sqlx::Error> {
        Ok(row.try_get::<&str, _>(column)?.split_whitespace().map(str::to_owned).collect())
    };
    Ok(ReplicaSet {
        id: row.try_get(0)?,
        primary: row.try_get(1)?,
        members: names(2)?,
        joining: names(3)?,
        tag: row.try_get(4)?,
        version: unsigned(row.try_get(5)?)?,
    })
}

fn joined(names: &BTreeSet<ServerName>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Describes a set for the audit.
fn text(set: &ReplicaSet) -> String {
    let ReplicaSet { primary, members, joining, version, .. } = set;
    format!("{primary}: members [{}], joining [{}], version {version}", joined(members), joined(joining))
}
