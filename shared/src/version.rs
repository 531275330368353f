//! The version of a campaign's rules.

use serde::{Deserialize, Serialize};

crate::monotonic! {
    /// The version of a campaign's rules: 1 at creation, incremented by each change. A number in JSON; 0
    /// precedes every version.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    Version;
}

impl Version {
    /// The version of a new campaign.
    pub const FIRST: Self = Self(1);
}
