//! Keeps the required replicas in SQL in sync with the primaries' reports.
//!
//! Every core checks every primary. If two cores change a set concurrently, SQL accepts only the first change,
//! based on the set's version. A core that is partitioned together with an old primary changes nothing, because
//! no replica of that primary keeps up.

use std::sync::Arc;

use super::error::{EngineError, StoreError};
use super::stores::Stores;
use crate::clock;
use crate::config::OWN_REDIS_HAS_NO_REPLICAS;
use crate::domain::replica_set::{NotInSet, PrimaryView, ReplicaSet, Replication, SetChange};
use crate::metrics;
use crate::store::sql::ChangedBy;
use claimgate_shared::admin::replication::{PrimaryState, ReplicaState, ReplicationView, SetState};
use claimgate_shared::{Problem, Timestamp};

/// Keeps the required replica sets up to date.
#[derive(Debug, Clone)]
pub struct Replicas {
    pub(super) stores: Arc<Stores>,
    /// Whether core starts its own Redis server, which has no replicas.
    pub(super) redis_is_own: bool,
}

impl Replicas {
    /// Reads the required replicas, and creates the sets of primaries that have none. Before that, records
    /// `first` as the minimum number of replicas if none is recorded.
    pub async fn begin(&self, first: u32) -> Result<(), EngineError> {
        self.stores.sql.begin_replication(first).await?;
        match self.keep().await {
            // The replicas are checked regularly while core runs.
            Err(EngineError::Store(error)) if matches!(*error, StoreError::Redis(_)) => {
                tracing::debug!(%error, "the replicas were not checked");
            }
            result => drop(result?),
        }
        let requested = self.stores.redis.required_replicas().current().replicas_min;
        if first > 0 && requested != first {
            tracing::warn!(
                first,
                requested,
                "CLAIMGATE_REDIS_REPLICAS sets only the first value; see `claimgate replication`"
            );
        }
        Ok(())
    }

    /// Reads the required replicas, checks the primaries, and updates the sets. Returns the primaries that
    /// must not be trusted, with the reasons.
    ///
    /// # Errors
    /// If a store fails. The requirement that was read last stays in force.
    pub async fn keep(&self) -> Result<Vec<(String, NotInSet)>, EngineError> {
        let read = self.read().await;
        // While SQL is unavailable, the requirement that was read last applies.
        let requested = self.stores.redis.required_replicas().current();
        if requested.replicas_min == 0 {
            metrics::replicas_missing(0);
            return read.map(|_| vec![]);
        }
        let primaries = self.stores.redis.primaries().await;
        metrics::replicas_missing(requested.missing(primaries.as_deref().unwrap_or_default()));
        let (read, primaries) = (read?, primaries?);
        let Some(mut replication) = read else { return Ok(vec![]) };
        let changes = replication.changes(&primaries);
        for change in &changes {
            let by = ChangedBy { who: "core", at: clock::now() };
            if self.stores.sql.change_replica_set(change, by).await? {
                log(change);
            }
        }
        if !changes.is_empty()
            && let Some(now) = self.read().await?
        {
            replication = now;
        }
        let refused = |view: &PrimaryView| {
            let why = replication.set_of(&view.primary).err()?;
            Some((view.primary.clone(), why))
        };
        Ok(primaries.iter().filter_map(refused).collect())
    }

    async fn read(&self) -> Result<Option<Replication>, EngineError> {
        Ok(self.stores.redis.required_replicas().refresh_with(self.stores.sql.replication()).await?)
    }

    /// Returns the required replicas and their state.
    pub async fn view(&self) -> Result<ReplicationView, EngineError> {
        let replication = self.read().await?.unwrap_or_default();
        let primaries =
            if replication.replicas_min == 0 { vec![] } else { self.stores.redis.primaries().await? };
        Ok(view_of(&replication, &primaries))
    }

    /// Returns the same from core's memory, without reading SQL; core reads it every half second anyway.
    pub(super) async fn view_as_read(&self) -> Result<ReplicationView, EngineError> {
        let replication = self.stores.redis.required_replicas().current();
        let primaries =
            if replication.replicas_min == 0 { vec![] } else { self.stores.redis.primaries().await? };
        Ok(view_of(&replication, &primaries))
    }

    /// Changes the minimum number of replicas at `now`; `who` is the caller's name for the audit. Other cores
    /// follow within a second.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] if replicas are required of core's own Redis server, which has none.
    pub async fn set_min(&self, replicas_min: u32, who: &str, now: Timestamp) -> Result<(), EngineError> {
        if self.redis_is_own && replicas_min > 0 {
            let problem = Problem::invalid("replicas_min", OWN_REDIS_HAS_NO_REPLICAS);
            return Err(EngineError::Invalid(problem));
        }
        let before = self.stores.sql.replication().await?.unwrap_or_default();
        if before.replicas_min != replicas_min {
            self.stores.sql.set_replicas_min(&before, replicas_min, ChangedBy { who, at: now }).await?;
        }
        self.keep().await?;
        Ok(())
    }

    /// Accepts the current primaries, even if they lack acknowledged claims.
    pub async fn accept_loss(&self, who: &str, now: Timestamp) -> Result<(), EngineError> {
        let before = self.stores.sql.replication().await?.unwrap_or_default();
        self.stores.sql.forget_replica_sets(&before, ChangedBy { who, at: now }).await?;
        self.keep().await?;
        Ok(())
    }
}

fn log(change: &SetChange) {
    let (SetChange::Create(set) | SetChange::Replace { set, .. }) = change;
    let ReplicaSet { primary, members, joining, version, .. } = set;
    tracing::warn!(primary, ?members, ?joining, version, "the set of required replicas has changed");
}

fn view_of(replication: &Replication, primaries: &[PrimaryView]) -> ReplicationView {
    let has_primary = |set: &&ReplicaSet| primaries.iter().any(|view| view.primary == set.primary);
    ReplicationView {
        replicas_min: replication.replicas_min,
        orphans: replication.sets.iter().filter(|set| !has_primary(set)).map(state_of_set).collect(),
        primaries: primaries.iter().map(|view| state_of_primary(view, replication)).collect(),
    }
}

fn state_of_primary(view: &PrimaryView, replication: &Replication) -> PrimaryState {
    let replica =
        |(name, keeps_up): (&String, &bool)| ReplicaState { replica: name.clone(), keeps_up: *keeps_up };
    PrimaryState {
        primary: view.primary.clone(),
        refused: replication.set_of(&view.primary).err().map(|why| why.to_string()),
        set: replication.sets.iter().find(|set| set.primary == view.primary).map(state_of_set),
        replicas: view.replicas.iter().map(replica).collect(),
    }
}

fn state_of_set(set: &ReplicaSet) -> SetState {
    SetState {
        primary: set.primary.clone(),
        members: set.members.iter().cloned().collect(),
        joining: set.joining.iter().cloned().collect(),
        version: set.version,
    }
}
