//! The request bodies that create and change a campaign.

use std::num::NonZeroU32;

use claimgate_shared::campaign::AdminState;
use claimgate_shared::problem::{object, parse_json};
use claimgate_shared::{CampaignId, Limits, PassRule, Problem, Timestamp, Version, Window};
use serde::{Deserialize, Deserializer};

use super::campaign::{Campaign, Name, RegisterId};
use super::codes::{CodeStock, per_claim_limit};
use super::counters::{Epoch, FencingToken};
use super::days::TimeZone;
use super::high_water_mark::HighWaterMark;

/// `POST /admin/v1/campaigns`.
#[derive(Debug, Clone, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCampaign {
    id: CampaignId,
    name: Name,
    /// If omitted or `null`, the campaign opens immediately, and an existing campaign counts as identical
    /// regardless of its start.
    #[serde(default)]
    starts_at: Option<Timestamp>,
    #[serde(default)]
    ends_at: Option<Timestamp>,
    #[serde(default)]
    #[schema(value_type = String, format = "time-zone", default = "UTC", example = "Asia/Shanghai")]
    time_zone: TimeZone,
    #[serde(default, deserialize_with = "object")]
    limits: Limits,
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1)]
    hold_seconds: Option<NonZeroU32>,
    /// When claims by browsers need a pass; omitted or `null` if they never do.
    #[serde(default)]
    pass: Option<PassRule>,
    /// Whether each unit of a granted claim has a code. The total is then 0 until codes have been added, and
    /// `per_claim` at most 1,000, which is also the default.
    #[serde(default)]
    codes: bool,
}

impl NewCampaign {
    /// Parses the request body. An error names the invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let mut new: Self = parse_json(body)?;
        if new.codes {
            new.limits.per_claim = Some(per_claim_limit(new.limits.per_claim)?);
        }
        if let Some(starts_at) = new.starts_at {
            window(starts_at, new.ends_at)?;
        }
        Ok(new)
    }

    /// Returns the campaign's id.
    pub fn id(&self) -> &CampaignId {
        &self.id
    }

    /// Returns the campaign as created at `now`. Without a start, it opens at the beginning of the current
    /// second.
    ///
    /// # Errors
    /// `invalid_request` if the campaign has no start and its end is not after `now`; `codes_missing` for a
    /// total above 0 with codes; `unavailable` if the system returns no random bytes.
    pub fn created_at(self, now: Timestamp) -> Result<Campaign, Problem> {
        let starts_at = self.starts_at.unwrap_or_else(|| now.saturating_add_ms(-(now.as_ms() % 1000)));
        let codes = self.codes.then(CodeStock::default);
        codes.map_or(Ok(()), |stock| stock.check_total(self.limits.total))?;
        Ok(Campaign {
            id: self.id,
            name: self.name,
            window: window(starts_at, self.ends_at)?,
            zone: self.time_zone,
            limits: self.limits,
            hold_seconds: self.hold_seconds,
            pass: self.pass,
            codes,
            admin_state: AdminState::On,
            version: Version::FIRST,
            epoch: Epoch::default(),
            token: FencingToken::default(),
            register_id: RegisterId::random()?,
            high_water_mark: HighWaterMark::default(),
            changed_at: now,
            evicted: None,
            unfinished_import: None,
            archived: false,
            checked_user_ids: None,
        })
    }

    /// Returns the names of the members that differ from those of `found`. An omitted start is not compared.
    pub fn differences(&self, found: &Campaign) -> Vec<&'static str> {
        let (limits, window) = (found.limits, found.window);
        let differs = [
            ("name", self.name != found.name),
            ("starts_at", self.starts_at.is_some_and(|start| start != window.starts_at())),
            ("ends_at", self.ends_at != window.ends_at()),
            ("time_zone", self.time_zone != found.zone),
            ("limits.total", self.limits.total != limits.total),
            ("limits.per_user", self.limits.per_user != limits.per_user),
            ("limits.per_user_per_day", self.limits.per_user_per_day != limits.per_user_per_day),
            ("limits.per_claim", self.limits.per_claim != limits.per_claim),
            ("hold_seconds", self.hold_seconds != found.hold_seconds),
            ("pass", self.pass != found.pass),
            ("codes", self.codes != found.codes.is_some()),
        ];
        differs.into_iter().filter_map(|(member, differs)| differs.then_some(member)).collect()
    }
}

/// `PATCH /admin/v1/campaigns/{id}`: omitted members stay unchanged; `null` removes the end, the hold or the
/// pass rule.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(clippy::option_option)] // omitted, null and a value are three things here
pub struct CampaignPatch {
    /// The version this change was made against.
    #[schema(value_type = u64, maximum = 18_446_744_073_709_551_615_u64)]
    pub version: Version,
    name: Option<Name>,
    starts_at: Option<Timestamp>,
    #[serde(default, deserialize_with = "given")]
    ends_at: Option<Option<Timestamp>>,
    #[serde(default, deserialize_with = "object")]
    limits: LimitsPatch,
    /// Applies to claims made after the change.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    hold_seconds: Option<Option<NonZeroU32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<PassRule>)]
    pass: Option<Option<PassRule>>,
}

/// The limits that a patch changes; `null` removes one.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(clippy::option_option)] // omitted, null and a number are three things here
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

/// Distinguishes `null` (given) from an omitted member (not given).
#[allow(clippy::option_option)]
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl CampaignPatch {
    /// Parses the request body. An error names the invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        parse_json(body)
    }

    /// Returns `campaign` with this change made and its version raised, or `campaign` itself if the change has no
    /// effect.
    pub(crate) fn apply(self, campaign: &Campaign) -> Result<Campaign, Problem> {
        let starts_at = self.starts_at.unwrap_or_else(|| campaign.window.starts_at());
        let ends_at = self.ends_at.unwrap_or_else(|| campaign.window.ends_at());
        let now = campaign.limits;
        let total = self.limits.total.unwrap_or(now.total);
        campaign.check_new_total(total)?;
        let mut per_claim = self.limits.per_claim.unwrap_or(now.per_claim);
        if campaign.codes.is_some() {
            per_claim = Some(per_claim_limit(per_claim)?);
        }
        let changed = Campaign {
            name: self.name.unwrap_or_else(|| campaign.name.clone()),
            window: window(starts_at, ends_at)?,
            limits: Limits {
                total,
                per_user: self.limits.per_user.unwrap_or(now.per_user),
                per_user_per_day: self.limits.per_user_per_day.unwrap_or(now.per_user_per_day),
                per_claim,
            },
            hold_seconds: self.hold_seconds.unwrap_or(campaign.hold_seconds),
            pass: self.pass.unwrap_or(campaign.pass),
            version: campaign.version.next(),
            evicted: None,
            ..campaign.clone()
        };
        Ok(if changed.has_same_rules_as(campaign) { campaign.clone() } else { changed })
    }
}

fn window(starts_at: Timestamp, ends_at: Option<Timestamp>) -> Result<Window, Problem> {
    Window::new(starts_at, ends_at).map_err(|backwards| Problem::invalid("ends_at", backwards))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_keeps_omitted_members() {
        let body =
            br#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","ends_at":"2026-02-01T00:00:00Z",
            "limits":{"total":10,"per_user":2}}"#;
        let campaign = NewCampaign::parse(body).unwrap().created_at(Timestamp::default()).unwrap();
        let patch =
            |body: &str| CampaignPatch::parse(body.as_bytes()).and_then(|patch| patch.apply(&campaign));
        let changed = patch(r#"{"version":1,"ends_at":null,"limits":{"total":null,"per_claim":1}}"#).unwrap();
        assert_eq!(changed.window.ends_at(), None);
        assert_eq!((changed.limits.total, changed.limits.per_user), (None, NonZeroU32::new(2)));
        assert_eq!((changed.limits.per_claim, changed.version), (NonZeroU32::new(1), Version::new(2)));
        assert_eq!(patch(r#"{"version":1,"limits":{"total":0}}"#).unwrap().limits.total, Some(0));
        let held = patch(r#"{"version":1,"hold_seconds":5}"#).unwrap();
        assert_eq!((held.hold_seconds, held.limits.total), (NonZeroU32::new(5), Some(10)));
        for body in [r#"{"version":1}"#, r#"{"version":1,"name":"D","pass":null,"limits":{"per_user":2}}"#] {
            assert_eq!(patch(body).unwrap(), campaign, "{body} has no effect");
        }
        for (body, field) in [
            (r#"{"version":1,"time_zone":"UTC"}"#, "time_zone"),
            (r#"{"version":1,"limits":{"total":-1}}"#, "limits.total"),
            (r#"{"version":1,"limits":{"per_user":0}}"#, "limits.per_user"),
            (r#"{"version":1,"hold_seconds":0}"#, "hold_seconds"),
            (r#"{"version":1,"limits":[1,2,3,4]}"#, "limits"),
            (r#"{"version":1,"starts_at":"2026-03-01T00:00:00Z"}"#, "ends_at"),
            ("{}", "version"),
        ] {
            assert_eq!(patch(body).unwrap_err().extensions.field.as_deref(), Some(field), "{body}");
        }
    }

    #[test]
    fn an_omitted_start_is_now_and_matches_any_start() {
        let new = |more: &str| {
            let body = format!(r#"{{"id":"d","name":"D","limits":{{"total":10}}{more}}}"#);
            NewCampaign::parse(body.as_bytes()).unwrap()
        };
        let now = Timestamp::from_ms(1_800_000_000_123).unwrap();
        let found = new("").created_at(now).unwrap();
        assert_eq!(found.window.starts_at().as_ms(), 1_800_000_000_000, "the second has begun: it is open");
        let none: [&str; 0] = [];
        assert_eq!(new("").differences(&found), none);
        let start = found.window.starts_at();
        assert_eq!(new(&format!(r#","starts_at":"{start}""#)).differences(&found), none);
        assert_eq!(new(&format!(r#","starts_at":"{now}""#)).differences(&found), ["starts_at"]);
        let other = r#","ends_at":"2099-01-01T00:00:00Z","time_zone":"Asia/Shanghai","hold_seconds":5"#;
        assert_eq!(new(other).differences(&found), ["ends_at", "time_zone", "hold_seconds"]);
        let past = new(r#","ends_at":"2026-01-01T00:00:00Z""#).created_at(now).unwrap_err();
        assert_eq!(past.extensions.field.as_deref(), Some("ends_at"));
    }
}
