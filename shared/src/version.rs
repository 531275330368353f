//! The version of a campaign's rules.

use serde::{Deserialize, Serialize};

crate::monotonic! {
    /// The version of a campaign's rules: 1 when it is created, one more with each change. A number in JSON; 0 is before all.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    Version;
}

impl Version {
    /// That of a campaign just created.
    pub const FIRST: Self = Self(1);
}
