//! The comparison of Redis and SQL for a campaign, and the result of an import.

use serde::{Deserialize, Serialize};

use crate::{Timestamp, Version};

/// Redis, SQL and the outbox between them, compared.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reconciliation {
    /// Whether there are no differences.
    pub agrees: bool,
    /// The values in Redis; `null` while the campaign is not ready or after it was evicted.
    pub redis: Option<RedisSide>,
    /// The values in SQL.
    pub sql: SqlSide,
    /// Events in Redis that are not yet in SQL.
    pub outbox: OutboxSide,
    /// All differences, by name.
    pub differences: Vec<Difference>,
    /// The repairs made; empty in a dry run.
    #[serde(default)]
    pub repairs: Vec<String>,
}

/// A campaign's values in Redis.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RedisSide {
    /// Units taken, by the campaign's counter.
    pub taken: u64,
    /// Units taken, summed over all users.
    pub taken_by_users: u64,
    /// The last sequence number assigned.
    pub sequence: u64,
    /// The version of the rules in force in Redis.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub version: Version,
    /// Number of held claims.
    pub holds: u64,
}

/// A campaign's values in SQL.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SqlSide {
    /// Units granted or held.
    pub taken: u64,
    /// The highest sequence number.
    pub sequence: u64,
    /// The campaign's version.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub version: Version,
    /// Number of held claims.
    pub holds: u64,
    /// Number of claims.
    pub claims: u64,
    /// Number of claims lost with the Redis that granted them.
    pub revoked: u64,
    /// Ranges of sequence numbers that no claim has, at most 100: claims lost before they reached SQL.
    pub sequence_gaps: Vec<Gap>,
}

/// A range of sequence numbers that no claim has.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gap {
    /// The first missing number.
    pub from: u64,
    /// The last missing number.
    pub to: u64,
}

/// A campaign's outbox.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutboxSide {
    /// Entries not yet relayed to SQL.
    pub entries: u64,
    /// Events in the entries, by the campaign's counter.
    pub events: u64,
    /// When the oldest entry was written.
    pub oldest: Option<Timestamp>,
    /// Malformed entries, moved out of the outbox.
    pub dead_letters: u64,
}

/// A difference between Redis and SQL.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Difference {
    /// `not_ready`, `taken`, `users`, `sequence`, `version`, `rules`, `lost_events`, `holds`,
    /// `stranded_holds`, `codes`, `backlog`, `outbox_lag` or `dead_letters`.
    pub name: String,
    /// A description with both numbers.
    pub detail: String,
}

/// The result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Imported {
    /// Claims that this call wrote.
    pub imported: u64,
    /// Claims that the campaign already had.
    pub already: u64,
}
