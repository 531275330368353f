//! What is asked of replicas: the least number, and the set of each primary; see [`crate::domain::replica_set`].

use std::collections::BTreeSet;

use claimgate_shared::Timestamp;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::numbers::{big, unsigned};
use super::pool::Transaction;
use super::{SqlError, SqlStore};
use crate::domain::replica_set::{ReplicaSet, Replication, ServerName, SetChange};

/// Who changes what is asked of replicas, and when, for the audit table.
#[derive(Debug, Clone, Copy)]
pub struct By<'a> {
    /// The caller's name, or the core's.
    pub who: &'a str,
    /// When.
    pub at: Timestamp,
}

impl SqlStore {
    /// What is asked of replicas; `None` before [`Self::begin_replication`].
    pub(crate) async fn replication(&self) -> Result<Option<Replication>, SqlError> {
        let Some(row) = sqlx::query("SELECT replicas_min FROM replication WHERE one = 1")
            .fetch_optional(&self.pool)
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
        let sets = sets.fetch_all(&self.pool).await?.iter().map(set).collect::<Result<_, _>>()?;
        Ok(Some(Replication { replicas_min, sets }))
    }

    /// Records the least number of replicas, unless one is recorded.
    pub(crate) async fn begin_replication(&self, replicas_min: u32) -> Result<(), SqlError> {
        sqlx::query(
            "INSERT INTO replication (one, replicas_min) VALUES (1, $1) ON CONFLICT (one) DO NOTHING",
        )
        .bind(i64::from(replicas_min))
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Changes the least number of replicas of `before`. Sets of a time when nothing waited for them say nothing, and are
    /// forgotten; the next looks at the primaries make new ones.
    pub(crate) async fn set_replicas_min(
        &self,
        before: &Replication,
        replicas_min: u32,
        by: By<'_>,
    ) -> Result<(), SqlError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("UPDATE replication SET replicas_min = $1 WHERE one = 1")
            .bind(i64::from(replicas_min))
            .execute(&mut *transaction)
            .await?;
        if before.replicas_min == 0 || replicas_min == 0 {
            sqlx::query("DELETE FROM replica_sets").execute(&mut *transaction).await?;
        }
        let (before, after) = (before.replicas_min.to_string(), replicas_min.to_string());
        audit(&mut transaction, by, "replicas_min", Some(&before), &after).await?;
        Ok(transaction.commit().await?)
    }

    /// Forgets the sets of `before`: whichever servers are the primaries now are believed, though they may lack what was
    /// acknowledged.
    pub(crate) async fn forget_replica_sets(&self, before: &Replication, by: By<'_>) -> Result<(), SqlError> {
        let before: Vec<_> = before.sets.iter().map(text).collect();
        let mut transaction = self.pool.begin().await?;
        sqlx::query("DELETE FROM replica_sets").execute(&mut *transaction).await?;
        audit(&mut transaction, by, "accept_loss", Some(&before.join("; ")), "").await?;
        Ok(transaction.commit().await?)
    }

    /// Makes a change of a set, unless another core has changed it since; whether it was made.
    pub(crate) async fn change_replica_set(&self, change: &SetChange, by: By<'_>) -> Result<bool, SqlError> {
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
            .bind(big(set.version))
            .bind(big(before))
            .execute(&mut *transaction)
            .await?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        audit(&mut transaction, by, "replica_set", None, &text(set)).await?;
        transaction.commit().await?;
        Ok(true)
    }
}

async fn audit(
    transaction: &mut Transaction,
    by: By<'_>,
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
    .execute(&mut **transaction)
    .await?;
    Ok(())
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

/// A set in words, for the audit table.
fn text(set: &ReplicaSet) -> String {
    let ReplicaSet { primary, members, joining, version, .. } = set;
    format!("{primary}: members [{}], joining [{}], version {version}", joined(members), joined(joining))
}
