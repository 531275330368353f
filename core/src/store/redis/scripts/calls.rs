//! The script calls that change or read a campaign: their arguments, and the types of their replies.

use std::num::NonZeroU32;

use claimgate_shared::user_id::Scheme;
use claimgate_shared::{ClaimDigest, ClaimId, ShownPass, Timestamp, UserId};
use redis::Value;

use super::replies::{self, Counters, Decided, Malformed, Ready, SoldOutReply, TransitionReply, UserReply};
use super::state;
use crate::domain::addition::Addition;
use crate::domain::campaign::Campaign;
use crate::domain::claim_record::{ClaimRecord, put_be};
use crate::domain::claim_transition::{ClaimTransition, Requester};
use crate::domain::codes::CodesOfClaim;
use crate::domain::days::TimeZone;
use crate::store::redis::scripts::{self, Script, ScriptCall};

/// A call of a script on a campaign. Each call is idempotent, so it may be sent more than once.
pub trait CampaignCall: Sync {
    /// The type of the reply if the campaign is ready.
    type Reply;

    /// The call's name for step points.
    const NAME: &'static str;

    /// Whether the script uses the campaign's codes.
    const USES_CODES: bool = false;

    /// Returns the script that Redis runs.
    fn script(&self) -> &'static Script;

    /// Appends the arguments that follow the shared arguments of all scripts.
    fn arguments(&self, call: &mut ScriptCall);

    /// Reads the reply.
    fn decode(&self, reply: Value) -> Result<Ready<Self::Reply>, Malformed>;

    /// Returns whether `scheme` admits the user ids of all claims that the call can create.
    fn is_admitted_by(&self, _scheme: Scheme) -> bool {
        true
    }
}

/// A claim to decide.
#[derive(Debug, Clone, Copy)]
pub struct WantedClaim<'a> {
    /// The claim's id.
    pub id: &'a ClaimId,
    /// Units requested.
    pub quantity: u32,
    /// The pass sent with the claim; `None` if there is none.
    pub pass: Option<ShownPass>,
}

/// Expires holds that are due, then decides claims.
#[derive(Debug)]
pub struct Claim<'a> {
    /// The time zone of the campaign's days.
    pub zone: &'a TimeZone,
    /// The claims, in the order of the decisions.
    pub wanted: &'a [WantedClaim<'a>],
    /// Maximum number of events in the outbox; beyond it claims are rejected.
    pub outbox_max: u64,
    /// The call's trace context, which the outbox entry passes to the relay; `None` if the call is not
    /// traced.
    pub trace: Option<&'a str>,
}

/// Packed size of a claim whose user id is a UUID.
const CLAIM_BYTES: usize = 57;

impl CampaignCall for Claim<'_> {
    type Reply = Decided;
    const NAME: &'static str = "redis:claim";

    fn script(&self) -> &'static Script {
        &scripts::CLAIM
    }

    fn arguments(&self, call: &mut ScriptCall) {
        let mut claims = Vec::with_capacity(self.wanted.len() * CLAIM_BYTES);
        let mut passes = Vec::with_capacity(self.wanted.len() * 4);
        for wanted in self.wanted {
            put_claim(&mut claims, wanted.id, wanted.quantity);
            passes.extend_from_slice(&packed_pass(wanted.pass).to_be_bytes());
        }
        call.arg(self.outbox_max).arg(claims).arg(passes);
        if let Some(trace) = self.trace {
            call.arg(trace);
        }
    }

    fn decode(&self, reply: Value) -> Result<Ready<Decided>, Malformed> {
        replies::decided(reply, self.zone, self.wanted.iter().map(|wanted| wanted.quantity))
    }

    fn is_admitted_by(&self, scheme: Scheme) -> bool {
        self.wanted.iter().all(|wanted| scheme.admits(&wanted.id.user))
    }
}

/// Confirms, returns or extends a claim.
#[derive(Debug)]
pub struct Transition<'a> {
    /// The claim's id.
    pub id: &'a ClaimId,
    /// The requested transition.
    pub transition: ClaimTransition,
    /// The caller, for the audit.
    pub by: Requester<'a>,
    /// Maximum number of events in the outbox; beyond it extensions are rejected.
    pub outbox_max: u64,
    /// The call's trace context, as in [`Claim`].
    pub trace: Option<&'a str>,
}

impl CampaignCall for Transition<'_> {
    /// `None` if there is no such claim.
    type Reply = Option<TransitionReply>;
    const NAME: &'static str = "redis:transition";

    fn script(&self) -> &'static Script {
        &scripts::TRANSITION
    }

    fn arguments(&self, call: &mut ScriptCall) {
        call.arg(self.transition.as_str()).arg(self.id.user.as_str()).arg(&self.id.digest[..]);
        call.arg(self.by.name).arg(self.transition.extension_max_ms()).arg(self.outbox_max);
        call.arg(self.by.reason.unwrap_or_default());
        if let Some(trace) = self.trace {
            call.arg(trace);
        }
    }

    fn decode(&self, reply: Value) -> Result<Ready<Self::Reply>, Malformed> {
        replies::transitioned(reply)
    }
}

/// Reads the campaign's counters and, optionally, one claim.
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

/// Reads a user's record in the campaign.
#[derive(Debug)]
pub struct ReadUser<'a> {
    /// The user's id.
    pub user: &'a UserId,
    /// The outbox entry after which the search for the user's events continues; `None` starts it.
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

/// Applies the rules of a campaign, unless Redis has newer rules.
#[derive(Debug)]
pub struct SetRules<'a> {
    /// The campaign whose rules are applied.
    pub campaign: &'a Campaign,
    /// The addition of units that created this version, if one did.
    pub addition: Option<&'a Addition>,
    /// The time around which UTC offsets are sent.
    pub now: Timestamp,
}

/// The outcome of sending rules to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulesReply {
    /// The rules are in force.
    Applied,
    /// Redis has a newer version; nothing was changed.
    Newer,
    /// Redis has different rules of this version, because SQL has lost that version and assigned its number
    /// again. Nothing was changed.
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
        let word = replies::index_of(reply, &["changed", "newer", "differs"])?;
        Ok(word.map(|word| [RulesReply::Applied, RulesReply::Newer, RulesReply::Differs][word]))
    }
}

/// Checks whether the campaign is sold out.
#[derive(Debug)]
pub struct SoldOut;

impl CampaignCall for SoldOut {
    /// The sold-out state and how long it is certain; `None` if units are left or another rule denies claims
    /// first.
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

/// Stores the codes of claims that were relayed before their codes were added.
#[derive(Debug)]
pub struct GiveCodes<'a> {
    /// The events that SQL had when the claims were read.
    pub events: u64,
    /// The claims, at most 1,000.
    pub claims: &'a [CodesOfClaim],
}

impl CampaignCall for GiveCodes<'_> {
    /// Whether the codes were stored; otherwise the claims may still be in the outbox.
    type Reply = bool;
    const NAME: &'static str = "redis:give_codes";
    const USES_CODES: bool = true;

    fn script(&self) -> &'static Script {
        &scripts::GIVE_CODES
    }

    fn arguments(&self, call: &mut ScriptCall) {
        call.arg(self.events);
        for claim in self.claims {
            call.arg(&claim.digest[..]).arg(claim.packed());
        }
    }

    fn decode(&self, reply: Value) -> Result<Ready<bool>, Malformed> {
        Ok(replies::index_of(reply, &["given", "busy"])?.map(|word| word == 0))
    }
}

/// Reads the codes of claims.
#[derive(Debug)]
pub struct ReadCodes<'a> {
    /// The digests of the claims, at most 1,000.
    pub claims: &'a [ClaimDigest],
}

impl CampaignCall for ReadCodes<'_> {
    /// The codes of the claims that have them, in the order of the claims.
    type Reply = Vec<CodesOfClaim>;
    const NAME: &'static str = "redis:read_codes";
    const USES_CODES: bool = true;

    fn script(&self) -> &'static Script {
        &scripts::READ_CODES
    }

    fn arguments(&self, call: &mut ScriptCall) {
        for digest in self.claims {
            call.arg(&digest[..]);
        }
    }

    fn decode(&self, reply: Value) -> Result<Ready<Self::Reply>, Malformed> {
        replies::codes(reply, self.claims)
    }
}

/// Packs a pass as `claim.lua` reads it: 0 is none, the largest number a pass without a limit of units.
fn packed_pass(pass: Option<ShownPass>) -> u32 {
    pass.map_or(0, |shown| shown.units.map_or(u32::MAX, NonZeroU32::get))
}

/// Appends a claim to the list that `claim.lua` takes.
fn put_claim(into: &mut Vec<u8>, id: &ClaimId, quantity: u32) {
    let user = id.user.as_str().as_bytes();
    // A user id has at most 64 bytes.
    put_be(into, user.len() as u64, 1);
    into.extend_from_slice(user);
    into.extend_from_slice(&id.digest);
    into.extend_from_slice(&quantity.to_be_bytes());
}
