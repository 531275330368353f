//! The script calls that decide on a campaign, or read it: what each sends, and what its reply means.

use claimgate_shared::{ClaimId, Timestamp, UserId};
use redis::Value;

use super::replies::{self, Counters, Decided, Malformed, Ready, SoldOutReply, UserReply};
use super::scripts::{self, Script, ScriptCall};
use super::state;
use crate::domain::addition::Addition;
use crate::domain::campaign::Campaign;
use crate::domain::claim_record::{ClaimRecord, put_be};
use crate::domain::claim_transition::ClaimTransition;
use crate::domain::utc_offsets::TimeZone;

/// A script with its own arguments, after those that all scripts take. It is idempotent: it may be sent more than once.
pub trait CampaignCall: Sync {
    /// The reply on a campaign that is ready.
    type Reply;

    /// The call's name, for step points.
    const NAME: &'static str;

    /// The script that Redis runs.
    fn script(&self) -> &'static Script;

    /// Appends its own arguments.
    fn arguments(&self, call: &mut ScriptCall);

    /// Reads the reply.
    ///
    /// # Errors
    /// When the script never gives such a reply.
    fn decode(&self, reply: Value) -> Result<Ready<Self::Reply>, Malformed>;
}

/// Expires holds that are due, then decides claims.
#[derive(Debug)]
pub struct Claim<'a> {
    /// The time zone in which the campaign's days end.
    pub zone: &'a TimeZone,
    /// Each claim and its quantity, in the order in which they are decided.
    pub wanted: &'a [(&'a ClaimId, u32)],
    /// The most events the outbox may hold before claims are refused.
    pub outbox_max: u64,
    /// The context of what this call is part of, for who relays the outbox entry; `None` when it is not traced.
    pub trace: Option<&'a str>,
}

/// A claim of a user with a UUID for an id, as the script takes it.
const CLAIM_BYTES: usize = 57;

impl CampaignCall for Claim<'_> {
    type Reply = Decided;
    const NAME: &'static str = "redis:claim";

    fn script(&self) -> &'static Script {
        &scripts::CLAIM
    }

    fn arguments(&self, call: &mut ScriptCall) {
        let mut claims = Vec::with_capacity(self.wanted.len() * CLAIM_BYTES);
        for (id, quantity) in self.wanted {
            put_claim(&mut claims, id, *quantity);
        }
        call.arg(self.outbox_max).arg(claims);
        if let Some(trace) = self.trace {
            call.arg(trace);
        }
    }

    fn decode(&self, reply: Value) -> Result<Ready<Decided>, Malformed> {
        replies::decided(reply, self.zone, self.wanted.iter().map(|(_, quantity)| *quantity))
    }
}

/// Confirms or returns a claim.
#[derive(Debug)]
pub struct Transition<'a> {
    /// The claim's id.
    pub id: &'a ClaimId,
    /// The requested transition.
    pub transition: ClaimTransition,
    /// The caller's name, for the audit.
    pub by: &'a str,
    /// As in [`Claim`].
    pub trace: Option<&'a str>,
}

impl CampaignCall for Transition<'_> {
    /// The claim as it stands then, and the campaign's event count; `None` when there is no such claim.
    type Reply = Option<(ClaimRecord, u64)>;
    const NAME: &'static str = "redis:transition";

    fn script(&self) -> &'static Script {
        &scripts::TRANSITION
    }

    fn arguments(&self, call: &mut ScriptCall) {
        call.arg(self.transition.as_str()).arg(self.id.user.as_str()).arg(&self.id.digest[..]).arg(self.by);
        if let Some(trace) = self.trace {
            call.arg(trace);
        }
    }

    fn decode(&self, reply: Value) -> Result<Ready<Self::Reply>, Malformed> {
        replies::transitioned(reply)
    }
}

/// Reads the campaign's counters, and a claim as it stands.
#[derive(Debug)]
pub struct Read<'a> {
    /// The id of the claim to read, if any.
    pub id: Option<&'a ClaimId>,
}

impl CampaignCall for Read<'_> {
    type Reply = (Counters, Option<ClaimRecord>);
    const NAME: &'static str = "redis:read";

    fn script(&self) -> &'static Script {
        &scripts::READ
    }

    fn arguments(&self, call: &mut ScriptCall) {
        if let Some(id) = self.id {
            call.arg(id.user.as_str()).arg(&id.digest[..]);
        }
    }

    fn decode(&self, reply: Value) -> Result<Ready<Self::Reply>, Malformed> {
        replies::read(reply)
    }
}

/// Reads what a user has of the campaign.
#[derive(Debug)]
pub struct ReadUser<'a> {
    /// The user's id.
    pub user: &'a UserId,
    /// The outbox entry behind which the search for the user's events goes on; `None` begins it.
    pub after: Option<&'a str>,
}

impl CampaignCall for ReadUser<'_> {
    type Reply = UserReply;
    const NAME: &'static str = "redis:user";

    fn script(&self) -> &'static Script {
        &scripts::USER
    }

    fn arguments(&self, call: &mut ScriptCall) {
        call.arg(self.user.as_str()).arg(self.after.unwrap_or("0"));
    }

    fn decode(&self, reply: Value) -> Result<Ready<UserReply>, Malformed> {
        replies::user(reply)
    }
}

/// Applies the rules of a campaign, unless Redis holds newer ones.
#[derive(Debug)]
pub struct SetRules<'a> {
    /// The campaign whose rules are applied.
    pub campaign: &'a Campaign,
    /// The addition that made them, if one did.
    pub addition: Option<&'a Addition>,
    /// The instant around which the UTC offsets are sent.
    pub now: Timestamp,
}

/// What became of rules that were sent to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulesReply {
    /// They are in force.
    Applied,
    /// Redis holds a newer version: nothing was changed.
    Newer,
    /// Redis holds this version with other rules, since SQL has lost it and given it again: nothing was changed.
    Differs,
}

impl CampaignCall for SetRules<'_> {
    type Reply = RulesReply;
    const NAME: &'static str = "redis:set_rules";

    fn script(&self) -> &'static Script {
        &scripts::SET_RULES
    }

    fn arguments(&self, call: &mut ScriptCall) {
        call.arg(self.campaign.version.get());
        call.arg(state::admin_state(self.campaign)).arg(state::rules(self.campaign, self.now));
        if let Some(addition) = self.addition {
            call.arg(addition.idempotency_key.as_str()).arg(addition.units);
        }
    }

    fn decode(&self, reply: Value) -> Result<Ready<RulesReply>, Malformed> {
        let word = replies::word(reply, &["changed", "newer", "differs"])?;
        Ok(word.map(|word| [RulesReply::Applied, RulesReply::Newer, RulesReply::Differs][word]))
    }
}

/// Tells whether nothing is left.
#[derive(Debug)]
pub struct SoldOut;

impl CampaignCall for SoldOut {
    /// For how long that is certain; `None` when something is left, or when another rule refuses first.
    type Reply = Option<SoldOutReply>;
    const NAME: &'static str = "redis:sold_out";

    fn script(&self) -> &'static Script {
        &scripts::SOLD_OUT
    }

    fn arguments(&self, _: &mut ScriptCall) {}

    fn decode(&self, reply: Value) -> Result<Ready<Self::Reply>, Malformed> {
        replies::sold_out(reply)
    }
}

/// Appends a claim to the list that `claim.lua` takes.
fn put_claim(into: &mut Vec<u8>, id: &ClaimId, quantity: u32) {
    let user = id.user.as_str().as_bytes();
    // An id has at most 64 bytes.
    put_be(into, user.len() as u64, 1);
    into.extend_from_slice(user);
    into.extend_from_slice(&id.digest);
    into.extend_from_slice(&quantity.to_be_bytes());
}
