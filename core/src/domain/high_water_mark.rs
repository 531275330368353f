//! The known progress of a campaign. A Redis server that is behind it has lost claims.

/// A campaign's known progress in Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HighWaterMark {
    /// The last sequence number assigned.
    pub sequence: u64,
    /// Number of grants, confirmations, extensions, returns and expiries so far. A Redis server with fewer events has
    /// lost some.
    pub events: u64,
}

impl HighWaterMark {
    /// Returns the higher value of each count.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { sequence: self.sequence.max(other.sequence), events: self.events.max(other.events) }
    }
    /// Returns whether both counts are at least those of `other`.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.sequence >= other.sequence && self.events >= other.events
    }
}
