//! The parameters of a drill.

use std::num::NonZeroU32;
use std::time::Duration;

/// The size of the storm, and its expected result.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Units of the scratch campaign, at least 1.
    pub units: u32,
    /// Users who claim, at least 1.
    pub users: u32,
    /// Units that each user may have, and claims one by one. Every tenth user claims one more.
    pub per_user: NonZeroU32,
    /// Users who claim at the same time, at least 1.
    pub connections: usize,
    /// Percentage of users who send each claim twice at the same time; the same percentage lose a response. 0 to 50.
    pub duplicates: u32,
    /// Units that must be granted; `None` for all, or as many as the users may have.
    pub expect: Option<u64>,
    /// The drill gives up if no claim is decided, or none reaches SQL, for this long.
    pub patience: Duration,
    /// The drill gives up if the storm takes longer than this.
    pub storm_max: Duration,
    /// Whether each granted unit gets a code.
    pub codes: bool,
    /// Whether the campaign stays open afterwards.
    pub keep: bool,
}

impl Plan {
    /// Returns the number of units that must be granted.
    pub(crate) fn expected(&self) -> u64 {
        let wanted = u64::from(self.users) * u64::from(self.per_user.get());
        self.expect.unwrap_or_else(|| wanted.min(self.units.into()))
    }
}
