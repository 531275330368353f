//! The scripts' replies as types. The head of each script documents its replies.

use std::time::Duration;

use claimgate_shared::{ClaimDigest, Denial, Timestamp, Version};
use redis::Value;

use super::state;
use crate::domain::addition::AppliedAddition;
use crate::domain::campaign::AppliedRules;
use crate::domain::claim_record::{ClaimRecord, UserRecord, be_int, optional_timestamp, timestamp};
use crate::domain::codes::CodesOfClaim;
use crate::domain::counters::{Epoch, FencingToken};
use crate::domain::days::TimeZone;
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;

/// A reply that no script of this version sends: core and script do not match.
#[derive(Debug, thiserror::Error)]
#[error("unexpected script reply: {0}")]
pub struct Malformed(String);

impl Malformed {
    /// Creates an error that shows the unexpected value.
    pub fn new(found: String) -> Self {
        Self(found)
    }
}

/// The script's verdict on one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Granted, or held until `expires_at`.
    Granted {
        /// The claim's sequence number.
        sequence: u64,
        /// When the hold expires; `None` if the claim is granted.
        expires_at: Option<Timestamp>,
        /// Units taken of the campaign, including this claim.
        taken: u64,
    },
    /// The claim was decided by an earlier call with the same key.
    Replayed {
        /// The claim as it is now.
        claim: ClaimRecord,
        /// Units taken of the campaign.
        taken: u64,
    },
    /// Denied by a rule; nothing was changed.
    Denied(Denial),
    /// More holds are due than one call expires; the claim must be resent.
    RetryAfterSweep,
    /// The outbox is full; nothing was changed.
    OutboxFull,
}

/// The reply to a batch of claims.
#[derive(Debug)]
pub struct Decided {
    /// Redis' clock at the decision.
    pub now: Timestamp,
    /// Version of the rules applied.
    pub version: Version,
    /// The campaign's event count after this batch.
    pub events: u64,
    /// The `total` limit that applied to the batch; `None` if unlimited.
    pub total: Option<u32>,
    /// Whether more holds are due than one call expires.
    pub more_due: bool,
    /// One verdict per claim, in the order of the claims.
    pub verdicts: Vec<Verdict>,
}

impl Decided {
    /// Counts the claims denied because no units are left.
    pub fn sold_out_denials(&self) -> u64 {
        let sold_out =
            |verdict: &&Verdict| matches!(verdict, Verdict::Denied(Denial::SoldOut { remaining: 0 }));
        self.verdicts.iter().filter(sold_out).count() as u64
    }

    /// Returns whether any claim was granted or held.
    pub fn has_granted(&self) -> bool {
        self.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Granted { .. }))
    }

    /// Returns the time until the first hold of this batch is due, if the batch has holds; zero if earlier
    /// holds are due.
    pub fn hold_due_in(&self) -> Option<Duration> {
        if self.more_due {
            return Some(Duration::ZERO);
        }
        let expiries = self.verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Granted { expires_at, .. } => *expires_at,
            _ => None,
        });
        let first_ms = expiries.map(Timestamp::as_ms).min()?;
        Some(Duration::from_millis(u64::try_from(first_ms - self.now.as_ms()).unwrap_or(0)))
    }

    /// Returns the highest sequence number in this reply and the event count.
    pub fn high_water_mark(&self) -> HighWaterMark {
        let sequences = self.verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Granted { sequence, .. } => Some(*sequence),
            Verdict::Replayed { claim, .. } => Some(claim.sequence),
            _ => None,
        });
        HighWaterMark { sequence: sequences.max().unwrap_or(0), events: self.events }
    }
}

/// A script's reply, or the reason why the campaign is not ready.
pub type Ready<T> = Result<T, NotReadyReason>;

/// The elements of a reply, which are read in order.
struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    fn of(value: Value) -> Result<Self, Malformed> {
        match value {
            Value::Array(items) => Ok(Self(items.into_iter())),
            other => Err(malformed(&other)),
        }
    }

    fn next(&mut self) -> Result<Value, Malformed> {
        self.0.next().ok_or_else(|| Malformed("too short".to_owned()))
    }

    fn int(&mut self) -> Result<i64, Malformed> {
        match self.next()? {
            Value::Int(number) => Ok(number),
            other => Err(malformed(&other)),
        }
    }

    fn number<T: TryFrom<i64>>(&mut self) -> Result<T, Malformed> {
        let number = self.int()?;
        T::try_from(number).map_err(|_| Malformed(format!("number {number}")))
    }

    fn version(&mut self) -> Result<Version, Malformed> {
        self.number().map(Version::new)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, Malformed> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(malformed(&other)),
        }
    }

    fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?).map_err(|error| Malformed(error.to_string()))
    }

    fn timestamp(&mut self) -> Result<Timestamp, Malformed> {
        let ms = self.int()?;
        Timestamp::from_ms(ms).map_err(|_| Malformed(format!("time {ms}")))
    }

    fn reason(&mut self) -> Result<NotReadyReason, Malformed> {
        let word = self.text()?;
        NotReadyReason::from_script(&word).ok_or(Malformed(word))
    }

    /// Reads a reply that can only be `not_ready`, and returns its reason.
    fn not_ready(mut self) -> Result<NotReadyReason, Malformed> {
        match self.text()?.as_str() {
            "not_ready" => self.reason(),
            other => Err(Malformed(other.to_owned())),
        }
    }

    /// Reads the first word of a reply. Returns `Ok` if it is `word`, and `Err` with the reason if it is
    /// `not_ready`.
    fn expect(&mut self, word: &str) -> Result<Ready<()>, Malformed> {
        match self.text()?.as_str() {
            "not_ready" => Ok(Err(self.reason()?)),
            first if first == word => Ok(Ok(())),
            other => Err(Malformed(other.to_owned())),
        }
    }
}

fn malformed(value: &Value) -> Malformed {
    Malformed(format!("{value:?}"))
}

/// Parses the reply of `claim.lua`, given the quantities of the claims in their order.
pub fn decided(
    reply: Value,
    zone: &TimeZone,
    quantities: impl Iterator<Item = u32>,
) -> Result<Ready<Decided>, Malformed> {
    let Value::BulkString(bytes) = reply else {
        return Parts::of(reply)?.not_ready().map(Err);
    };
    let mut packed = Packed(&bytes);
    let (now, version) = (packed.timestamp()?, Version::new(packed.number(6)?));
    let events = packed.number(6)?;
    let total = state::limit(packed.number(5)?).and_then(|total| u32::try_from(total).ok());
    let more_due = packed.number(1)? == 1;
    let (sequence, taken) = (packed.number(6)?, packed.number(6)?);
    let expires_at = optional_timestamp(packed.number(6)?);
    let mut answers = Answers { sequence, taken, expires_at, zone, packed };
    let verdicts = quantities.map(|quantity| answers.next(quantity)).collect::<Result<_, _>>()?;
    if !answers.packed.0.is_empty() {
        return Err(Malformed("more answers than claims".to_owned()));
    }
    Ok(Ok(Decided { now, version, events, total, more_due, verdicts }))
}

/// The packed answers of `claim.lua`, which are read in order, and the counters after the last answer read.
struct Answers<'a> {
    sequence: u64,
    taken: u64,
    expires_at: Option<Timestamp>,
    zone: &'a TimeZone,
    packed: Packed<'a>,
}

impl Answers<'_> {
    /// Reads the answer to the next claim, which has this `quantity`.
    fn next(&mut self, quantity: u32) -> Result<Verdict, Malformed> {
        let packed = &mut self.packed;
        let denial = match packed.number(1)? {
            1 => {
                self.sequence += 1;
                self.taken += u64::from(quantity);
                let (sequence, expires_at, taken) = (self.sequence, self.expires_at, self.taken);
                return Ok(Verdict::Granted { sequence, expires_at, taken });
            }
            2 => {
                let record = ClaimRecord::read(packed.take(ClaimRecord::BYTES)?);
                let claim = record.ok_or_else(|| Malformed("record".to_owned()))?;
                return Ok(Verdict::Replayed { claim, taken: self.taken });
            }
            3 => Denial::IdempotencyKeyReused,
            4 => Denial::Paused,
            5 => Denial::Ended { ends_at: None },
            6 => Denial::NotStarted { starts_at: packed.timestamp()? },
            7 => Denial::Ended { ends_at: Some(packed.timestamp()?) },
            8 => Denial::QuantityOutOfRange { per_claim: packed.units()? },
            9 => {
                let (remaining, day) = (packed.units()?, packed.number(3)?);
                let resets_at = self.zone.day_end(i64::try_from(day).unwrap_or(i64::MAX));
                Denial::UserDailyLimitReached { remaining, resets_at }
            }
            10 => Denial::UserLimitReached { remaining: packed.units()? },
            11 => Denial::SoldOut { remaining: packed.units()? },
            12 => return Ok(Verdict::RetryAfterSweep),
            13 => return Ok(Verdict::OutboxFull),
            14 => Denial::PassRequired { until: optional_timestamp(packed.number(6)?) },
            other => return Err(Malformed(format!("answer {other}"))),
        };
        Ok(Verdict::Denied(denial))
    }
}

/// Packed fields, which are read in order.
struct Packed<'a>(&'a [u8]);

impl Packed<'_> {
    fn take(&mut self, length: usize) -> Result<&[u8], Malformed> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or_else(|| Malformed("answers cut short".to_owned()))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Result<u64, Malformed> {
        self.take(width).map(be_int)
    }

    /// Reads a number of units left or allowed. A value above 32 bits means unlimited, and becomes the
    /// maximum.
    fn units(&mut self) -> Result<u32, Malformed> {
        Ok(u32::try_from(self.number(5)?).unwrap_or(u32::MAX))
    }

    fn timestamp(&mut self) -> Result<Timestamp, Malformed> {
        self.number(6).and_then(|ms| timestamp(ms).ok_or_else(|| Malformed(format!("time {ms}"))))
    }
}

/// A campaign's counters in Redis.
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    /// Redis' clock.
    pub now: Timestamp,
    /// Version of the rules in force in Redis.
    pub version: Version,
    /// Units taken.
    pub taken: u64,
    /// The last sequence number assigned.
    pub sequence: u64,
    /// Number of events in the outbox.
    pub backlog: u64,
    /// The campaign's event count.
    pub events: u64,
}

/// Parses the reply of `read.lua`.
pub fn read(reply: Value) -> Result<Ready<(Counters, Option<ClaimRecord>)>, Malformed> {
    let mut parts = Parts::of(reply)?;
    if let Err(why) = parts.expect("found")? {
        return Ok(Err(why));
    }
    let counters = Counters {
        now: parts.timestamp()?,
        version: parts.version()?,
        taken: parts.number()?,
        sequence: parts.number()?,
        backlog: parts.number()?,
        events: parts.number()?,
    };
    let record = match parts.0.next() {
        Some(Value::BulkString(bytes)) => {
            Some(ClaimRecord::read(&bytes).ok_or_else(|| Malformed("record".to_owned()))?)
        }
        _ => None,
    };
    Ok(Ok((counters, record)))
}

/// One user's data in a campaign.
#[derive(Debug)]
pub struct UserReply {
    /// Version of the rules in force in Redis.
    pub version: Version,
    /// Units taken of the campaign.
    pub taken: u64,
    /// The calendar day in the campaign's time zone, in days since 1970.
    pub today: u32,
    /// The user's record.
    pub record: UserRecord,
    /// The user's events in the searched outbox entries, oldest first. Each event is the claim's state at
    /// that time.
    pub events: Vec<ClaimRecord>,
    /// The entry after which the search continues; `None` at the end.
    pub next: Option<String>,
}

/// Parses the reply of `user.lua`.
pub fn user(reply: Value) -> Result<Ready<UserReply>, Malformed> {
    let mut parts = Parts::of(reply)?;
    if let Err(why) = parts.expect("found")? {
        return Ok(Err(why));
    }
    let (version, taken, today) = (parts.version()?, parts.number()?, parts.number::<u32>()?);
    let malformed = || Malformed("a user's record".to_owned());
    let record = UserRecord::read(&parts.bytes()?, today + 1).ok_or_else(malformed)?;
    let events = ClaimRecord::read_all(&parts.bytes()?).ok_or_else(malformed)?;
    let next = Some(parts.text()?).filter(|entry| !entry.is_empty());
    Ok(Ok(UserReply { version, taken, today, record, events, next }))
}

/// A campaign that is sold out.
#[derive(Debug, Clone, Copy)]
pub struct SoldOutReply {
    /// The campaign's version.
    pub version: Version,
    /// The last sequence number assigned. A higher number later means that a claim was granted or held since.
    pub sequence: u64,
    /// Maximum quantity that the other limits allow a user without claims.
    pub max_quantity: u64,
    /// Time until a hold is due, or the window or the pass rule ends, at most 1 s. After that, Redis has to be queried
    /// again.
    pub valid_for: Duration,
    /// Whether a claim without a pass is denied for that.
    pub requires_pass: bool,
}

/// Parses the reply of `sold_out.lua`.
pub fn sold_out(reply: Value) -> Result<Ready<Option<SoldOutReply>>, Malformed> {
    let mut parts = Parts::of(reply)?;
    match parts.text()?.as_str() {
        "not_ready" => Ok(Err(parts.reason()?)),
        "open" => Ok(Ok(None)),
        "sold_out" => Ok(Ok(Some(SoldOutReply {
            version: parts.version()?,
            sequence: parts.number()?,
            max_quantity: parts.number()?,
            valid_for: Duration::from_millis(parts.number()?),
            requires_pass: parts.int()? == 1,
        }))),
        other => Err(Malformed(other.to_owned())),
    }
}

/// The reply of `transition.lua`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransitionReply {
    /// The claim as it is now.
    pub record: ClaimRecord,
    /// The campaign's event count.
    pub events: u64,
    /// Why an extension was rejected; `None` if the record shows the result.
    pub rejected: Option<RejectedExtension>,
}

/// Why an extension changed nothing, although it would have gained time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectedExtension {
    /// The hold was extended the maximum number of times.
    TooOften,
    /// The outbox has the maximum number of events.
    OutboxFull,
}

/// Parses the reply of `transition.lua`; `None` if there is no such claim.
pub fn transitioned(reply: Value) -> Result<Ready<Option<TransitionReply>>, Malformed> {
    let mut parts = Parts::of(reply)?;
    let rejected = match parts.text()?.as_str() {
        "not_ready" => return Ok(Err(parts.reason()?)),
        "unknown" => return Ok(Ok(None)),
        "transitioned" => None,
        "extended_too_often" => Some(RejectedExtension::TooOften),
        "outbox_full" => Some(RejectedExtension::OutboxFull),
        other => return Err(Malformed(other.to_owned())),
    };
    let record = ClaimRecord::read(&parts.bytes()?).ok_or_else(|| Malformed("record".to_owned()))?;
    Ok(Ok(Some(TransitionReply { record, events: parts.number()?, rejected })))
}

/// The reply of `suspend.lua`.
#[derive(Debug, Clone)]
pub enum SuspendReply {
    /// The campaign is suspended.
    Done(Suspended),
    /// The campaign has this higher token; nothing was changed.
    Superseded(FencingToken),
}

/// The contents of a campaign's keys at its suspension.
#[derive(Debug, Clone)]
pub struct Suspended {
    /// The epoch of the keys; 0 if there were no keys.
    pub epoch: Epoch,
    /// The campaign's high-water mark.
    pub high_water_mark: HighWaterMark,
    /// Units taken.
    pub taken: u64,
    /// Sum of all claims' revisions; `None` if users or claims are missing.
    pub revisions: Option<u64>,
    /// Number of events never removed from the outbox.
    pub backlog: u64,
    /// The token of the previous suspension; 0 for none.
    pub previous_token: FencingToken,
    /// The rules that were in force; `None` if they are missing.
    pub rules: Option<AppliedRules>,
    /// The last additions of units, oldest first.
    pub additions: Vec<AppliedAddition>,
    /// The layout of the records in the keys.
    pub layout: u32,
}

/// Parses a fencing token. The token of an operator's `drop-foreign` has a fraction, which is dropped here.
fn token(parts: &mut Parts) -> Result<FencingToken, Malformed> {
    let text = parts.text()?;
    let whole = text.split('.').next().unwrap_or_default();
    whole.parse().map(FencingToken::new).map_err(|_| Malformed(format!("token {text}")))
}

/// Parses the reply of `suspend.lua`.
pub fn suspended(reply: Value) -> Result<Ready<SuspendReply>, Malformed> {
    let mut parts = Parts::of(reply)?;
    match parts.text()?.as_str() {
        "not_ready" => Ok(Err(parts.reason()?)),
        "late" => Ok(Ok(SuspendReply::Superseded(token(&mut parts)?))),
        "suspended" => {
            let epoch = Epoch::new(parts.number()?);
            let high_water_mark = HighWaterMark { sequence: parts.number()?, events: parts.number()? };
            let (taken, revisions, backlog) = (parts.number()?, parts.int()?, parts.number()?);
            let (previous_token, admin_state) = (token(&mut parts)?, parts.number()?);
            let rules = state::read_rules(&parts.bytes()?, admin_state);
            let additions = parts.text()?;
            let additions = AppliedAddition::read_all(&additions).ok_or(Malformed(additions))?;
            let layout = parts.number()?;
            Ok(Ok(SuspendReply::Done(Suspended {
                epoch,
                high_water_mark,
                taken,
                revisions: u64::try_from(revisions).ok(),
                backlog,
                previous_token,
                rules,
                additions,
                layout,
            })))
        }
        other => Err(Malformed(other.to_owned())),
    }
}

/// The reply of `lease.lua`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseReply {
    /// The lease is held, with this fencing token.
    Held(u64),
    /// Another holder has the lease.
    Taken,
    /// The lease was renewed or released.
    Done,
    /// This holder no longer has the lease.
    Lost,
}

/// Parses the reply of `lease.lua`.
pub fn lease(reply: Value) -> Result<LeaseReply, Malformed> {
    let mut parts = Parts::of(reply)?;
    Ok(match parts.text()?.as_str() {
        "held" => LeaseReply::Held(parts.number()?),
        "taken" => LeaseReply::Taken,
        "renewed" | "released" => LeaseReply::Done,
        "lost" => LeaseReply::Lost,
        other => return Err(Malformed(other.to_owned())),
    })
}

/// Parses the reply of `keep_layout.lua`.
pub fn layout(reply: Value) -> Result<String, Malformed> {
    match reply {
        Value::BulkString(layout) => String::from_utf8(layout).map_err(|error| Malformed(error.to_string())),
        other => Err(malformed(&other)),
    }
}

/// Parses a reply that is a single number.
pub fn count(reply: &Value) -> Result<u64, Malformed> {
    match reply {
        Value::Int(number) => Ok(u64::try_from(*number).unwrap_or(0)),
        other => Err(malformed(other)),
    }
}

/// Parses the reply of `read_codes.lua`. An error does not contain the reply, because codes must not be logged.
pub fn codes(reply: Value, digests: &[ClaimDigest]) -> Result<Ready<Vec<CodesOfClaim>>, Malformed> {
    let mut parts = Parts::of(reply)?;
    if let Err(why) = parts.expect("found")? {
        return Ok(Err(why));
    }
    let wrong = || Malformed("codes".to_owned());
    let Some(Value::Array(found)) = parts.0.next() else { return Err(wrong()) };
    let mut codes = Vec::new();
    for (digest, packed) in digests.iter().zip(found) {
        if let Value::BulkString(packed) = packed {
            codes.push(CodesOfClaim::unpack(digest, &packed).ok_or_else(wrong)?);
        }
    }
    Ok(Ok(codes))
}

/// Parses a reply that is one of `words`, and returns its index.
pub fn index_of(reply: Value, words: &[&str]) -> Result<Ready<usize>, Malformed> {
    let mut parts = Parts::of(reply)?;
    match parts.text()?.as_str() {
        "not_ready" => Ok(Err(parts.reason()?)),
        first => {
            words.iter().position(|word| *word == first).map(Ok).ok_or_else(|| Malformed(first.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests;
