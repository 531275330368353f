//! The request bodies that create and change a campaign.

use std::num::NonZeroU32;

use claimgate_shared::campaign::AdminState;
use claimgate_shared::problem::{object, parse_json};
use claimgate_shared::{CampaignId, Limits, Problem, Timestamp, Version, Window};
use serde::{Deserialize, Deserializer};

use super::campaign::{Campaign, Name, RegisterId};
use super::counters::{Epoch, FencingToken};
use super::high_water_mark::HighWaterMark;
use super::utc_offsets::TimeZone;

/// `POST /admin/v1/campaigns`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCampaign {
    id: CampaignId,
    #[schema(value_type = String, min_length = 1, max_length = 200)]
    name: Name,
    starts_at: Timestamp,
    #[serde(default)]
    ends_at: Option<Timestamp>,
    #[serde(default)]
    #[schema(value_type = String, default = "UTC", example = "Asia/Shanghai")]
    time_zone: TimeZone,
    #[serde(default, deserialize_with = "object")]
    limits: Limits,
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1)]
    hold_seconds: Option<NonZeroU32>,
}

impl NewCampaign {
    /// Parses the body of a campaign that is created at `now`; a problem names the field that is wrong.
    ///
    /// # Errors
    /// `invalid_request`, with the field that is wrong; `unavailable` when the system has no randomness.
    pub fn parse(body: &[u8], now: Timestamp) -> Result<Campaign, Problem> {
        let new: Self = parse_json(body)?;
        Ok(Campaign {
            id: new.id,
            name: new.name,
            window: window(new.starts_at, new.ends_at)?,
            zone: new.time_zone,
            limits: new.limits,
            hold_seconds: new.hold_seconds,
            admin_state: AdminState::On,
            version: Version::FIRST,
            epoch: Epoch::default(),
            token: FencingToken::default(),
            register_id: RegisterId::random()?,
            high_water_mark: HighWaterMark::default(),
            changed_at: now,
            evicted: None,
            unfinished_import: None,
        })
    }
}

/// `PATCH /admin/v1/campaigns/{id}`: what is left out stays as it is; `null` takes a limit, the end or the
/// hold away.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(clippy::option_option)] // left out, null and a value are three things here
pub struct CampaignPatch {
    /// The version this change was made against.
    #[schema(value_type = u64)]
    pub version: Version,
    #[schema(value_type = Option<String>)]
    name: Option<Name>,
    starts_at: Option<Timestamp>,
    #[serde(default, deserialize_with = "given")]
    ends_at: Option<Option<Timestamp>>,
    #[serde(default, deserialize_with = "object")]
    limits: LimitsPatch,
    /// Counts for claims made from then on.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    hold_seconds: Option<Option<NonZeroU32>>,
}

/// The limits of a [`CampaignPatch`].
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(clippy::option_option)] // left out, null and a number are three things here
pub struct LimitsPatch {
    #[serde(default, deserialize_with = "given")]
    total: Option<Option<u32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    per_user: Option<Option<NonZeroU32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    per_user_per_day: Option<Option<NonZeroU32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    per_claim: Option<Option<NonZeroU32>>,
}

/// Tells `null` (given) from left out (not given).
#[allow(clippy::option_option)]
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl CampaignPatch {
    /// Parses the body; a problem names the field that is wrong.
    ///
    /// # Errors
    /// `invalid_request`, with the field that is wrong.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        parse_json(body)
    }

    /// `campaign` with this change made and its version raised.
    pub(crate) fn apply(self, campaign: &Campaign) -> Result<Campaign, Problem> {
        let starts_at = self.starts_at.unwrap_or_else(|| campaign.window.starts_at());
        let ends_at = self.ends_at.unwrap_or_else(|| campaign.window.ends_at());
        let now = campaign.limits;
        Ok(Campaign {
            name: self.name.unwrap_or_else(|| campaign.name.clone()),
            window: window(starts_at, ends_at)?,
            limits: Limits {
                total: self.limits.total.unwrap_or(now.total),
                per_user: self.limits.per_user.unwrap_or(now.per_user),
                per_user_per_day: self.limits.per_user_per_day.unwrap_or(now.per_user_per_day),
                per_claim: self.limits.per_claim.unwrap_or(now.per_claim),
            },
            hold_seconds: self.hold_seconds.unwrap_or(campaign.hold_seconds),
            version: campaign.version.next(),
            evicted: None,
            ..campaign.clone()
        })
    }
}

fn window(starts_at: Timestamp, ends_at: Option<Timestamp>) -> Result<Window, Problem> {
    Window::new(starts_at, ends_at).map_err(|backwards| Problem::invalid("ends_at", backwards))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_keeps_what_it_leaves_out() {
        let body =
            br#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","ends_at":"2026-02-01T00:00:00Z",
            "limits":{"total":10,"per_user":2}}"#;
        let campaign = NewCampaign::parse(body, Timestamp::default()).unwrap();
        let patch =
            |body: &str| CampaignPatch::parse(body.as_bytes()).and_then(|patch| patch.apply(&campaign));
        let changed = patch(r#"{"version":1,"ends_at":null,"limits":{"total":null,"per_claim":1}}"#).unwrap();
        assert_eq!(changed.window.ends_at(), None);
        assert_eq!((changed.limits.total, changed.limits.per_user), (None, NonZeroU32::new(2)));
        assert_eq!((changed.limits.per_claim, changed.version), (NonZeroU32::new(1), Version::new(2)));
        assert_eq!(patch(r#"{"version":1,"limits":{"total":0}}"#).unwrap().limits.total, Some(0));
        let held = patch(r#"{"version":1,"hold_seconds":5}"#).unwrap();
        assert_eq!((held.hold_seconds, held.limits.total), (NonZeroU32::new(5), Some(10)));
        for (body, field) in [
            (r#"{"version":1,"time_zone":"UTC"}"#, "time_zone"),
            (r#"{"version":1,"limits":{"total":-1}}"#, "limits.total"),
            (r#"{"version":1,"limits":{"per_user":0}}"#, "limits.per_user"),
            (r#"{"version":1,"hold_seconds":0}"#, "hold_seconds"),
            (r#"{"version":1,"limits":[1,2,3,4]}"#, "limits"),
            (r#"{"version":1,"starts_at":"2026-03-01T00:00:00Z"}"#, "ends_at"),
            ("{}", "body"),
        ] {
            assert_eq!(patch(body).unwrap_err().extensions.field.as_deref(), Some(field), "{body}");
        }
    }
}
