//! How far a campaign is known to have come: a Redis that is behind it has lost claims.

/// How far a campaign is known to have come in Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HighWaterMark {
    /// The last sequence given.
    pub sequence: u64,
    /// Grants, confirmations, returns and expiries so far: a Redis with fewer has lost some.
    pub events: u64,
}

impl HighWaterMark {
    /// The higher of the two, in each count.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { sequence: self.sequence.max(other.sequence), events: self.events.max(other.events) }
    }
    /// Whether it is at least as far as `other`, in each count.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.sequence >= other.sequence && self.events >= other.events
    }
}
