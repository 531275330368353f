//! The state of a campaign in Redis: identity, counters and rules, packed into one field, as `prelude.lua` has it.

use std::num::NonZeroU32;

use claimgate_shared::campaign::AdminState;
use claimgate_shared::{Limits, Timestamp, Version, Window};

use super::scripts::LAYOUT;
use crate::domain::campaign::{AppliedRules, Campaign, RegisterId};
use crate::domain::claim_record::{be_int, put_be, timestamp};
use crate::domain::counters::Epoch;

/// The field of the users' hash that it stands in; no user has such an id.
pub const FIELD: &str = ".";
/// A limit that is none.
const UNLIMITED: u64 = (1 << 40) - 1;
/// What the admin state is while no claim is decided.
const SUSPENDED: u64 = 4;
/// A time that never comes.
const NEVER: u64 = (1 << 48) - 1;

/// Whose counters a campaign's keys in Redis hold: they count for no other.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The epoch of the campaign's keys.
    pub epoch: Epoch,
    /// The campaign's register id.
    pub register_id: &'a RegisterId,
    /// The id of the server's history: a server that was promoted has another one.
    pub replication_id: &'a str,
}

impl Identity<'_> {
    /// As it stands at the beginning of a state.
    pub fn pack(&self) -> Vec<u8> {
        let text = format!("{LAYOUT} {} {}", self.register_id.as_str(), self.replication_id);
        let mut bytes = Vec::with_capacity(6 + text.len());
        // 24 bytes of register id and 40 of replication id at most.
        put_be(&mut bytes, 5 + text.len() as u64, 1);
        put_be(&mut bytes, self.epoch.get(), 5);
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }
}

/// What a script needs to know of an admin's switch.
pub fn admin_state(campaign: &Campaign) -> u8 {
    match campaign.admin_state {
        AdminState::On => 1,
        AdminState::Paused => 2,
        AdminState::Ended => 3,
    }
}

/// The rules of `campaign`, with the UTC offsets around `now`.
pub fn rules(campaign: &Campaign, now: Timestamp) -> Vec<u8> {
    let utc_offsets = campaign.zone.utc_offsets(now);
    let limits = campaign.limits;
    let hold_ms = campaign.hold_seconds.map_or(0, |seconds| u64::from(seconds.get()) * 1000);
    let mut bytes = Vec::with_capacity(50 + utc_offsets.packed.len());
    put_be(&mut bytes, ms(campaign.window.starts_at()), 6);
    put_be(&mut bytes, campaign.window.ends_at().map_or(NEVER, ms), 6);
    put_be(&mut bytes, limits.total.map_or(UNLIMITED, u64::from), 5);
    for limit in [limits.per_user, limits.per_user_per_day, limits.per_claim] {
        put_be(&mut bytes, limit.map_or(UNLIMITED, |limit| limit.get().into()), 5);
    }
    put_be(&mut bytes, hold_ms, 6);
    put_be(&mut bytes, ms(utc_offsets.until), 6);
    put_be(&mut bytes, campaign.version.get(), 6);
    bytes.extend_from_slice(&utc_offsets.packed);
    bytes
}

/// Reads rules as [`rules`] packs them, beside the admin state; `None` for anything else.
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
        version: Version::new(number(44, 6)?),
    })
}

/// No campaign is of before 1970.
fn ms(at: Timestamp) -> u64 {
    u64::try_from(at.as_ms()).unwrap_or(0)
}

/// A limit as it is packed; `None` for unlimited.
pub fn limit(packed: u64) -> Option<u64> {
    Some(packed).filter(|limit| *limit < UNLIMITED)
}

/// What a look at a campaign reads of its state, past the scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CampaignState {
    /// The identity, packed.
    pub identity: Vec<u8>,
    /// Whether no claim is decided until it has been loaded again.
    pub suspended: bool,
    /// The last sequence given.
    pub sequence: u64,
    /// Units taken.
    pub taken: u64,
    /// The campaign's event count.
    pub events: u64,
    /// Events in the outbox.
    pub backlog: u64,
    /// The epoch of the load that wrote the other keys.
    pub loaded_epoch: Epoch,
    /// The rules; `None` while it is suspended.
    pub rules: Option<AppliedRules>,
}

impl CampaignState {
    /// Reads a state; `None` for anything else.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let length = 1 + usize::from(*bytes.first()?);
        let (identity, rest) = bytes.split_at_checked(length)?;
        // The next hold's time lies between the epoch and the rules.
        let number = |from: usize, width: usize| rest.get(from..from + width).map(be_int);
        Some(Self {
            identity: identity.to_vec(),
            suspended: number(0, 1)? == SUSPENDED,
            sequence: number(1, 6)?,
            taken: number(7, 6)?,
            events: number(13, 6)?,
            backlog: number(19, 6)?,
            loaded_epoch: Epoch::new(number(25, 5)?),
            rules: rest.get(36..).and_then(|packed| read_rules(packed, u64::from(rest[0]))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::campaign_change::NewCampaign;

    #[test]
    fn rules_are_read_as_they_were_packed() {
        for body in [
            r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","limits":{"total":null}}"#,
            r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","ends_at":"2026-02-01T00:00:00Z",
                "hold_seconds":600,"limits":{"total":4294967295,"per_user":3,"per_user_per_day":2,"per_claim":1}}"#,
            r#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","limits":{"total":0}}"#,
        ] {
            let campaign = NewCampaign::parse(body.as_bytes(), Timestamp::default()).unwrap();
            for state in [AdminState::On, AdminState::Paused, AdminState::Ended] {
                let campaign = Campaign { admin_state: state, ..campaign.clone() };
                let bytes = rules(&campaign, Timestamp::default());
                let read = read_rules(&bytes, admin_state(&campaign).into()).unwrap();
                assert_eq!(read.of(&campaign), campaign);
                assert_eq!(read.version, campaign.version);
            }
            assert_eq!(read_rules(&rules(&campaign, Timestamp::default()), SUSPENDED), None);
        }
    }
}
