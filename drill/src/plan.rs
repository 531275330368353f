//! How large the storm is.

use std::num::NonZeroU32;
use std::time::Duration;

/// How large the storm is, and what is expected of it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Units to be had, from 1.
    pub units: u32,
    /// Users who want one or more, from 1.
    pub users: u32,
    /// Units that each user may have, and asks for one by one. Every tenth user asks for one more.
    pub per_user: NonZeroU32,
    /// Users at once, from 1.
    pub connections: usize,
    /// Of 100 users, how many send each claim twice at the same time; as many more lose an answer. 0 to 50.
    pub duplicates: u32,
    /// Units that are to be granted; `None`: all that there are, or all that the users may have.
    pub expect: Option<u64>,
    /// For how long nothing may be decided, or reach SQL, before that is given up.
    pub patience: Duration,
    /// For how long the storm may go on before it is given up.
    pub storm_max: Duration,
    /// Whether the campaign stays open afterwards.
    pub keep: bool,
}

impl Plan {
    /// Units that are to be granted.
    pub(crate) fn expected(&self) -> u64 {
        let wanted = u64::from(self.users) * u64::from(self.per_user.get());
        self.expect.unwrap_or_else(|| wanted.min(self.units.into()))
    }
}
