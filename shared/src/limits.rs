//! A campaign's limits. Adding a limit starts here.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// Limits on the number of units; `None`, `null` in JSON, is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Limit for all users together; 0 for a campaign that starts empty.
    pub total: Option<u32>,
    /// Limit for one user in the whole campaign.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    pub per_user: Option<NonZeroU32>,
    /// Limit for one user per calendar day in the campaign's time zone.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    pub per_user_per_day: Option<NonZeroU32>,
    /// Limit for one claim.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    pub per_claim: Option<NonZeroU32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_32_bit_and_only_the_total_may_be_zero() {
        for (json, good) in [
            ("1", true),
            ("4294967295", true),
            ("null", true),
            ("-1", false),
            ("-0", false),
            ("4294967296", false),
            ("1.0", false),
            ("\"1\"", false),
        ] {
            for limit in ["total", "per_user"] {
                let limits = serde_json::from_str::<Limits>(&format!("{{\"{limit}\":{json}}}"));
                assert_eq!(limits.is_ok(), good, "{limit} {json}");
            }
        }
        assert_eq!(serde_json::from_str::<Limits>("{\"total\":0}").unwrap().total, Some(0));
        for limit in ["per_user", "per_user_per_day", "per_claim"] {
            assert!(serde_json::from_str::<Limits>(&format!("{{\"{limit}\":0}}")).is_err(), "{limit}");
        }
    }
}
