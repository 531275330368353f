//! A campaign's state in Redis: identity, counters and rules, packed into one field in the format of
//! `prelude.lua`.

use std::num::NonZeroU32;

use claimgate_shared::campaign::AdminState;
use claimgate_shared::{Limits, PassRule, Timestamp, Version, Window};

use super::layout_number::{EARLIER_LAYOUT, LAYOUT};
use crate::domain::campaign::{AppliedRules, Campaign, RegisterId, ShownProgress, UNITS_MAX};
use crate::domain::claim_record::{be_int, put_be, timestamp};
use crate::domain::counters::Epoch;

/// Field of the users' hash that contains the state; no user id is `.`.
pub const FIELD: &str = ".";
/// The packed value for "no limit".
const UNLIMITED: u64 = UNITS_MAX;
/// The packed admin state of a suspended campaign.
const SUSPENDED: u64 = 4;
/// The packed time for "never".
const NEVER: u64 = (1 << 48) - 1;

/// Identifies the counters in a campaign's keys: they are valid only for a caller with the same identity.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The epoch of the campaign's keys.
    pub epoch: Epoch,
    /// The campaign's register id.
    pub register_id: &'a RegisterId,
    /// The id of the server's replication history; it changes when the server is promoted.
    pub replication_id: &'a str,
}

impl Identity<'_> {
    /// Packs the identity in the format at the start of a state.
    pub fn pack(&self) -> Vec<u8> {
        let text = format!("{LAYOUT} {} {}", self.register_id.as_str(), self.replication_id);
        let mut bytes = Vec::with_capacity(6 + text.len());
        // The length fits into one byte: a register id has at most 24 bytes, a replication id at most 40.
        put_be(&mut bytes, 5 + text.len() as u64, 1);
        put_be(&mut bytes, self.epoch.get(), 5);
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }
}

/// Returns the packed admin state of `campaign`.
pub fn admin_state(campaign: &Campaign) -> u8 {
    match campaign.admin_state {
        AdminState::On => 1,
        AdminState::Paused => 2,
        AdminState::Ended => 3,
    }
}

/// Packs the rules of `campaign`, with the UTC offsets around `now`.
pub fn rules(campaign: &Campaign, now: Timestamp) -> Vec<u8> {
    let utc_offsets = campaign.zone.utc_offsets(now);
    let limits = campaign.limits;
    let hold_ms = campaign.hold_seconds.map_or(0, |seconds| u64::from(seconds.get()) * 1000);
    let mut bytes = Vec::with_capacity(56 + utc_offsets.packed.len());
    put_be(&mut bytes, ms(campaign.window.starts_at()), 6);
    put_be(&mut bytes, campaign.window.ends_at().map_or(NEVER, ms), 6);
    put_be(&mut bytes, limits.total.map_or(UNLIMITED, u64::from), 5);
    for limit in [limits.per_user, limits.per_user_per_day, limits.per_claim] {
        put_be(&mut bytes, limit.map_or(UNLIMITED, |limit| limit.get().into()), 5);
    }
    put_be(&mut bytes, hold_ms, 6);
    put_be(&mut bytes, pass_until(campaign.pass), 6);
    put_be(&mut bytes, campaign.version.get(), 6);
    put_be(&mut bytes, ms(utc_offsets.until), 6);
    bytes.extend_from_slice(&utc_offsets.packed);
    bytes
}

/// Parses rules in the format of [`rules`], given the packed admin state; `None` if they are malformed.
pub fn read_rules(bytes: &[u8], admin_state: u64) -> Option<AppliedRules> {
    let number = |from: usize, width: usize| bytes.get(from..from + width).map(be_int);
    let a_limit =
        |from: usize| -> Option<Option<u32>> { limit(number(from, 5)?).map(u32::try_from).transpose().ok() };
    let positive = |from: usize| Some(a_limit(from)?.and_then(NonZeroU32::new));
    let ends_at = Some(number(6, 6)?).filter(|ends_at| *ends_at < NEVER);
    let ends_at = ends_at.map(timestamp);
    let hold_seconds = u32::try_from(number(32, 6)? / 1000).ok()?;
    Some(AppliedRules {
        admin_state: match admin_state {
            1 => AdminState::On,
            2 => AdminState::Paused,
            3 => AdminState::Ended,
            _ => return None,
        },
        window: Window::new(timestamp(number(0, 6)?)?, ends_at.flatten()).ok()?,
        limits: Limits {
            total: a_limit(12)?,
            per_user: positive(17)?,
            per_user_per_day: positive(22)?,
            per_claim: positive(27)?,
        },
        hold_seconds: NonZeroU32::new(hold_seconds),
        pass: read_pass(number(38, 6)?)?,
        version: Version::new(number(44, 6)?),
    })
}

/// Returns the time until which `rule` requires a pass, in milliseconds.
fn pass_until(rule: Option<PassRule>) -> u64 {
    rule.map_or(0, |rule| rule.until().map_or(NEVER, ms))
}

/// Converts a packed pass rule; the outer `None` if it is malformed.
#[allow(clippy::option_option)]
fn read_pass(until: u64) -> Option<Option<PassRule>> {
    match until {
        0 => Some(None),
        NEVER => Some(Some(PassRule::Always)),
        until => timestamp(until).map(|until| Some(PassRule::Until { until })),
    }
}

/// Returns a time in milliseconds; no campaign is older than 1970.
fn ms(at: Timestamp) -> u64 {
    u64::try_from(at.as_ms()).unwrap_or(0)
}

/// Converts a packed limit; `None` for unlimited.
pub fn limit(packed: u64) -> Option<u64> {
    Some(packed).filter(|limit| *limit < UNLIMITED)
}

/// A campaign's state, read without a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CampaignState {
    /// The packed identity.
    pub identity: Vec<u8>,
    /// Whether decisions are stopped until the campaign is reloaded.
    pub suspended: bool,
    /// The last sequence number assigned.
    pub sequence: u64,
    /// Units taken.
    pub taken: u64,
    /// The campaign's event count.
    pub events: u64,
    /// Number of events in the outbox.
    pub backlog: u64,
    /// The epoch of the load that wrote the other keys.
    pub loaded_epoch: Epoch,
    /// The version of the rules, which a suspension does not hide.
    pub version: Version,
    /// The rules; `None` while the campaign is suspended, or if the state has the earlier layout.
    pub rules: Option<AppliedRules>,
}

impl CampaignState {
    /// Parses a state; `None` if it is malformed.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let length = 1 + usize::from(*bytes.first()?);
        let (identity, rest) = bytes.split_at_checked(length)?;
        // The 6 bytes between the epoch and the rules are the time when the next hold is due.
        let number = |from: usize, width: usize| rest.get(from..from + width).map(be_int);
        let is_earlier = identity.get(6..)?.starts_with(format!("{EARLIER_LAYOUT} ").as_bytes());
        let rules = rest.get(36..).filter(|_| !is_earlier);
        Some(Self {
            identity: identity.to_vec(),
            suspended: number(0, 1)? == SUSPENDED,
            sequence: number(1, 6)?,
            taken: number(7, 6)?,
            events: number(13, 6)?,
            backlog: number(19, 6)?,
            loaded_epoch: Epoch::new(number(25, 5)?),
            // The earlier layout has the version at the same offset.
            version: Version::new(number(36 + 44, 6)?),
            rules: rules.and_then(|packed| read_rules(packed, u64::from(rest[0]))),
        })
    }

    /// Returns the progress that the database must have.
    pub fn progress(&self) -> ShownProgress {
        ShownProgress {
            version: self.version,
            epoch: Epoch::new(self.identity.get(1..6).map_or(0, be_int)),
            relayed: self.events.saturating_sub(self.backlog),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::campaign_change::NewCampaign;

    #[test]
    fn packed_rules_round_trip() {
        for body in [
            r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","limits":{"total":null}}"#,
            r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","ends_at":"2026-02-01T00:00:00Z",
                "hold_seconds":600,"limits":{"total":4294967295,"per_user":3,"per_user_per_day":2,"per_claim":1}}"#,
            r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","limits":{"total":0},"pass":{"required":"always"}}"#,
            r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z",
                "pass":{"required":"until","until":"2026-01-02T00:00:00Z"}}"#,
        ] {
            let campaign =
                NewCampaign::parse(body.as_bytes()).unwrap().created_at(Timestamp::default()).unwrap();
            for state in [AdminState::On, AdminState::Paused, AdminState::Ended] {
                let campaign = Campaign { admin_state: state, ..campaign.clone() };
                let bytes = rules(&campaign, Timestamp::default());
                let read = read_rules(&bytes, admin_state(&campaign).into()).unwrap();
                assert_eq!(read.applied_to(&campaign), campaign);
                assert_eq!(read.version, campaign.version);
            }
            assert_eq!(read_rules(&rules(&campaign, Timestamp::default()), SUSPENDED), None);
        }
    }

    #[test]
    fn a_suspended_campaign_still_shows_its_progress() {
        let body = r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","limits":{"total":5}}"#;
        let campaign = NewCampaign::parse(body.as_bytes()).unwrap().created_at(Timestamp::default()).unwrap();
        let campaign = Campaign { version: Version::new(7), ..campaign };
        let identity =
            Identity { epoch: Epoch::new(3), register_id: &campaign.register_id, replication_id: "00" };
        let mut bytes = identity.pack();
        put_be(&mut bytes, SUSPENDED, 1);
        // Sequence and units taken.
        bytes.extend([0; 12]);
        put_be(&mut bytes, 9, 6);
        put_be(&mut bytes, 2, 6);
        // The epoch of the load, and the time when the next hold is due.
        bytes.extend([0; 11]);
        bytes.extend(rules(&campaign, Timestamp::default()));
        let state = CampaignState::read(&bytes).unwrap();
        let progress = ShownProgress { version: campaign.version, epoch: Epoch::new(3), relayed: 7 };
        assert_eq!((state.suspended, state.progress(), state.rules), (true, progress, None));
    }

    #[test]
    fn the_rules_of_another_layout_are_not_read() {
        let body = r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","limits":{"total":7}}"#;
        let campaign = NewCampaign::parse(body.as_bytes()).unwrap().created_at(Timestamp::default()).unwrap();
        let identity =
            Identity { epoch: Epoch::new(3), register_id: &campaign.register_id, replication_id: "00" }
                .pack();
        let mut counters = [0; 36];
        counters[0] = admin_state(&campaign);
        let mut bytes = [&identity[..], &counters, &rules(&campaign, Timestamp::default())].concat();
        assert_eq!(CampaignState::read(&bytes).unwrap().rules.unwrap().limits.total, Some(7));
        bytes[6] = EARLIER_LAYOUT.to_string().as_bytes()[0];
        assert_eq!(CampaignState::read(&bytes).unwrap().rules, None);
    }
}
