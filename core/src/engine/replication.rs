//! What is asked of replicas: read from SQL, and kept in step with what the primaries say.
//!
//! Every core looks at every primary. Which of them may change a set is decided in SQL, by the set's version; so a core that
//! is cut off with an old primary changes nothing, for none of that one's replicas keeps up.

use claimgate_shared::{Problem, Timestamp};
use serde::Serialize;

use super::{Engine, EngineError};
use crate::clock;
use crate::config::OWN_REDIS_HAS_NO_REPLICAS;
use crate::domain::replica_set::{NotInSet, PrimaryView, ReplicaSet, Replication, SetChange};
use crate::metrics;
use crate::store::sql::By;

/// What is asked of replicas, and how they are.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReplicationView {
    /// The least number of replicas that must have a claim before it is acknowledged; with 0 none is waited for.
    pub replicas_min: u32,
    /// Every primary that answers; none is asked while `replicas_min` is 0.
    pub primaries: Vec<PrimaryState>,
    /// Sets whose primary does not answer, or is none any more, and that no member of the set has replaced.
    pub orphans: Vec<SetState>,
}

/// A primary and its replicas.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PrimaryState {
    /// Its address.
    pub primary: String,
    /// Why nothing that it says is acknowledged; `null` when it is.
    pub refused: Option<String>,
    /// Its set; `null` when it has none.
    pub set: Option<SetState>,
    /// Its replicas.
    pub replicas: Vec<ReplicaState>,
}

/// A set of replicas.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SetState {
    /// The primary that core takes writes from.
    pub primary: String,
    /// Those of which each has all that was acknowledged: one of them may be promoted.
    pub members: Vec<String>,
    /// Those that are waited for, and will be members once they have all.
    pub joining: Vec<String>,
    /// Raised by every change.
    pub version: u64,
}

/// A replica.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReplicaState {
    /// Its address.
    pub replica: String,
    /// Whether it has all of the primary's writes.
    pub keeps_up: bool,
}

impl Engine {
    /// Reads what is asked of replicas, after recording `first` as the least number of them if none is recorded, and makes
    /// the sets that primaries lack.
    ///
    /// # Errors
    /// When a store does not answer.
    pub async fn begin_replication(&self, first: u32) -> Result<(), EngineError> {
        self.sync.sql.begin_replication(first).await?;
        match self.keep_replicas().await {
            // It is looked at again as long as core runs.
            Err(EngineError::Sync(error)) => tracing::debug!(%error, "the replicas were not looked at"),
            looked => drop(looked?),
        }
        let asked = self.sync.redis.required().now().replicas_min;
        if first > 0 && asked != first {
            tracing::warn!(
                first,
                asked,
                "CLAIMGATE_REDIS_REPLICAS is the first value only; see `claimgate replication`"
            );
        }
        Ok(())
    }

    /// Reads what is asked of replicas, looks at the primaries, and changes the sets of those that have to be changed.
    /// Returns those primaries that may not be believed, and why.
    ///
    /// # Errors
    /// When a store does not answer: what was read last stays in force.
    pub async fn keep_replicas(&self) -> Result<Vec<(String, NotInSet)>, EngineError> {
        let read = self.read_replication().await;
        // While SQL is away, what was read last is what is asked.
        let asked = self.sync.redis.required().now();
        if asked.replicas_min == 0 {
            metrics::replicas_missing(0);
            return read.map(|_| vec![]);
        }
        let primaries = self.sync.redis.primaries().await;
        metrics::replicas_missing(asked.missing(primaries.as_deref().unwrap_or_default()));
        let (read, primaries) = (read?, primaries?);
        let Some(mut replication) = read else { return Ok(vec![]) };
        let changes = replication.changes(&primaries);
        for change in &changes {
            let by = By { who: "core", at: clock::now() };
            if self.sync.sql.change_replica_set(change, by).await? {
                log(change);
            }
        }
        if !changes.is_empty()
            && let Some(now) = self.read_replication().await?
        {
            replication = now;
        }
        let refused = |view: &PrimaryView| {
            let why = replication.set_of(&view.primary).err()?;
            Some((view.primary.clone(), why))
        };
        Ok(primaries.iter().filter_map(refused).collect())
    }

    async fn read_replication(&self) -> Result<Option<Replication>, EngineError> {
        Ok(self.sync.redis.required().renew(self.sync.sql.replication()).await?)
    }

    /// What is asked of replicas, and how they are.
    ///
    /// # Errors
    /// When a store does not answer.
    pub async fn replication(&self) -> Result<ReplicationView, EngineError> {
        let replication = self.read_replication().await?.unwrap_or_default();
        let primaries =
            if replication.replicas_min == 0 { vec![] } else { self.sync.redis.primaries().await? };
        Ok(ReplicationView::of(&replication, &primaries))
    }

    /// The same by what was last read from SQL, which is asked within half a second anyway.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub(super) async fn replication_as_read(&self) -> Result<ReplicationView, EngineError> {
        let replication = self.sync.redis.required().now();
        let primaries =
            if replication.replicas_min == 0 { vec![] } else { self.sync.redis.primaries().await? };
        Ok(ReplicationView::of(&replication, &primaries))
    }

    /// Changes the least number of replicas at `now`; `who` is the caller's name in the audit table. Other cores follow
    /// within a second.
    ///
    /// # Errors
    /// When any are required of core's own Redis, which has none, or a store does not answer.
    pub async fn set_replicas_min(
        &self,
        replicas_min: u32,
        who: &str,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        if self.redis_is_own && replicas_min > 0 {
            let problem = Problem::invalid("replicas_min", OWN_REDIS_HAS_NO_REPLICAS);
            return Err(EngineError::Invalid(problem));
        }
        let before = self.sync.sql.replication().await?.unwrap_or_default();
        if before.replicas_min != replicas_min {
            self.sync.sql.set_replicas_min(&before, replicas_min, By { who, at: now }).await?;
        }
        self.keep_replicas().await?;
        Ok(())
    }

    /// Believes whichever servers are the primaries now, though they may lack what was acknowledged.
    ///
    /// # Errors
    /// When a store does not answer.
    pub async fn accept_loss(&self, who: &str, now: Timestamp) -> Result<(), EngineError> {
        let before = self.sync.sql.replication().await?.unwrap_or_default();
        self.sync.sql.forget_replica_sets(&before, By { who, at: now }).await?;
        self.keep_replicas().await?;
        Ok(())
    }
}

fn log(change: &SetChange) {
    let (SetChange::Create(set) | SetChange::Replace { set, .. }) = change;
    let ReplicaSet { primary, members, joining, version, .. } = set;
    tracing::warn!(primary, ?members, ?joining, version, "replicas that must have what is acknowledged");
}

impl ReplicationView {
    fn of(replication: &Replication, primaries: &[PrimaryView]) -> Self {
        let stands = |set: &&ReplicaSet| primaries.iter().any(|view| view.primary == set.primary);
        Self {
            replicas_min: replication.replicas_min,
            orphans: replication.sets.iter().filter(|set| !stands(set)).map(SetState::of).collect(),
            primaries: primaries.iter().map(|view| PrimaryState::of(view, replication)).collect(),
        }
    }
}

impl PrimaryState {
    fn of(view: &PrimaryView, replication: &Replication) -> Self {
        let replica =
            |(name, keeps_up): (&String, &bool)| ReplicaState { replica: name.clone(), keeps_up: *keeps_up };
        Self {
            primary: view.primary.clone(),
            refused: replication.set_of(&view.primary).err().map(|why| why.to_string()),
            set: replication.sets.iter().find(|set| set.primary == view.primary).map(SetState::of),
            replicas: view.replicas.iter().map(replica).collect(),
        }
    }
}

impl SetState {
    fn of(set: &ReplicaSet) -> Self {
        Self {
            primary: set.primary.clone(),
            members: set.members.iter().cloned().collect(),
            joining: set.joining.iter().cloned().collect(),
            version: set.version,
        }
    }
}
