//! The state of a campaign in Redis: identity, counters and rules, packed into one field, as `prelude.lua` has it.

use claimgate_shared::Timestamp;
use claimgate_shared::campaign::AdminState;

use super::scripts::LAYOUT;
use crate::domain::campaign::{Campaign, RegisterId};
use crate::domain::claim_record::{be_int, put_be};
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
}

impl CampaignState {
    /// Reads a state; `None` for anything else.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let length = 1 + usize::from(*bytes.first()?);
        let (identity, rest) = bytes.split_at_checked(length)?;
        let number = |from: usize, width: usize| rest.get(from..from + width).map(be_int);
        Some(Self {
            identity: identity.to_vec(),
            suspended: number(0, 1)? == SUSPENDED,
            sequence: number(1, 6)?,
            taken: number(7, 6)?,
            events: number(13, 6)?,
            backlog: number(19, 6)?,
            loaded_epoch: Epoch::new(number(25, 5)?),
        })
    }
}
