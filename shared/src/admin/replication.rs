//! The replication requirement, and the state of the replicas.

use serde::Serialize;

/// The replication requirement, and the state of the replicas.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicationView {
    /// The minimum number of replicas that must have a claim before it is acknowledged; 0 waits for none.
    pub replicas_min: u32,
    /// Every available primary; empty while `replicas_min` is 0.
    pub primaries: Vec<PrimaryState>,
    /// Replica sets whose primary is unavailable or no longer a primary, and was not replaced by a member.
    pub orphans: Vec<SetState>,
}

/// A primary and its replicas.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PrimaryState {
    /// The primary's address.
    pub primary: String,
    /// Why core does not acknowledge claims on this primary; `null` if core acknowledges them.
    pub refused: Option<String>,
    /// The primary's replica set; `null` if there is none.
    pub set: Option<SetState>,
    /// The primary's replicas.
    pub replicas: Vec<ReplicaState>,
}

/// A set of replicas.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetState {
    /// The primary to which core writes.
    pub primary: String,
    /// Replicas that have every acknowledged claim. Any such replica may be promoted.
    pub members: Vec<String>,
    /// Replicas that are catching up, and become members once they have every acknowledged claim.
    pub joining: Vec<String>,
    /// Incremented by every change to the set.
    pub version: u64,
}

/// A replica.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaState {
    /// The replica's address.
    pub replica: String,
    /// Whether the replica has all the primary's writes.
    pub keeps_up: bool,
}
