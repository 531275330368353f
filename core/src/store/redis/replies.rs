//! The scripts' replies as types. What a reply's numbers mean is written at the head of each script.

use std::time::Duration;

use claimgate_shared::{Denial, Timestamp, Version};
use redis::Value;

use super::state;
use crate::domain::addition::AppliedAddition;
use crate::domain::campaign::AppliedRules;
use crate::domain::claim_record::{ClaimRecord, UserRecord, be_int, optional_timestamp, timestamp};
use crate::domain::counters::{Epoch, FencingToken};
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::not_ready::NotReadyReason;
use crate::domain::utc_offsets::TimeZone;

/// A reply that no script of this version gives: core and script do not match.
#[derive(Debug, thiserror::Error)]
#[error("unexpected reply of a script: {0}")]
pub struct Malformed(String);

impl Malformed {
    /// An error that names what was read instead.
    pub fn new(found: String) -> Self {
        Self(found)
    }
}

/// The script's verdict on one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Granted, or held until `expires_at`.
    Granted {
        /// The claim's place.
        sequence: u64,
        /// Until when it is held; `None` when granted at once.
        expires_at: Option<Timestamp>,
        /// Units taken of the campaign, this claim included.
        taken: u64,
    },
    /// Decided before: a retry.
    Replayed {
        /// The claim as it stands.
        claim: ClaimRecord,
        /// Units taken of the campaign.
        taken: u64,
    },
    /// Refused by a rule; nothing was changed.
    Denied(Denial),
    /// More holds are due than one call gives back: send the claim again.
    RetryAfterSweep,
    /// The outbox is full; nothing was changed.
    OutboxFull,
}

/// The reply to a batch of claims.
#[derive(Debug)]
pub struct Decided {
    /// Redis' clock at the decision.
    pub now: Timestamp,
    /// The version by which it was decided.
    pub version: Version,
    /// The campaign's event count, these included.
    pub events: u64,
    /// The total by which it was decided; `None` when unlimited.
    pub total: Option<u32>,
    /// Whether more holds are due than one call gives back.
    pub more_due: bool,
    /// One verdict per claim, in their order.
    pub verdicts: Vec<Verdict>,
}

impl Decided {
    /// The number of claims that were denied because nothing is left.
    pub fn sold_out_denials(&self) -> u64 {
        let nothing =
            |verdict: &&Verdict| matches!(verdict, Verdict::Denied(Denial::SoldOut { remaining: 0 }));
        self.verdicts.iter().filter(nothing).count() as u64
    }

    /// Whether any claim was granted or held.
    pub fn has_granted(&self) -> bool {
        self.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Granted { .. }))
    }

    /// How long until the first hold falls due of which this call tells; zero when more are due than it gave back.
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

    /// How far the campaign has come.
    pub fn high_water_mark(&self) -> HighWaterMark {
        let sequences = self.verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Granted { sequence, .. } => Some(*sequence),
            Verdict::Replayed { claim, .. } => Some(claim.sequence),
            _ => None,
        });
        HighWaterMark { sequence: sequences.max().unwrap_or(0), events: self.events }
    }
}

/// A script's reply: `Err` is why the campaign's counters do not count.
pub type Ready<T> = Result<T, NotReadyReason>;

/// The parts of a reply, taken one after another.
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
        NotReadyReason::of_script(&word).ok_or(Malformed(word))
    }

    /// The reason behind `not_ready`, where nothing else is expected.
    fn not_ready(mut self) -> Result<NotReadyReason, Malformed> {
        match self.text()?.as_str() {
            "not_ready" => self.reason(),
            other => Err(Malformed(other.to_owned())),
        }
    }

    /// The reply's first word: `Ok` past the one expected, `Err` with the reason behind `not_ready`.
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

/// Reads the reply of `claim.lua`, given the quantities that the claims asked for, in their order.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
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

/// The packed answers of `claim.lua`, taken one after another, and what the next of them goes on from.
struct Answers<'a> {
    sequence: u64,
    taken: u64,
    expires_at: Option<Timestamp>,
    zone: &'a TimeZone,
    packed: Packed<'a>,
}

impl Answers<'_> {
    /// The answer to the next claim, which asked for `quantity`.
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
            other => return Err(Malformed(format!("answer {other}"))),
        };
        Ok(Verdict::Denied(denial))
    }
}

/// Packed fields, taken one after another.
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

    /// Units left or allowed; more than 32 bits only where a limit is none.
    fn units(&mut self) -> Result<u32, Malformed> {
        Ok(u32::try_from(self.number(5)?).unwrap_or(u32::MAX))
    }

    fn timestamp(&mut self) -> Result<Timestamp, Malformed> {
        self.number(6).and_then(|ms| timestamp(ms).ok_or_else(|| Malformed(format!("time {ms}"))))
    }
}

/// A campaign's counters as they stand in Redis.
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    /// Redis' clock.
    pub now: Timestamp,
    /// The version Redis decides by.
    pub version: Version,
    /// Units taken.
    pub taken: u64,
    /// The last sequence given.
    pub sequence: u64,
    /// Events in the outbox.
    pub backlog: u64,
    /// The campaign's event count.
    pub events: u64,
}

/// Reads the reply of `read.lua`.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
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

/// What Redis tells of one user of a campaign.
#[derive(Debug)]
pub struct UserReply {
    /// The version Redis decides by.
    pub version: Version,
    /// Units taken of the campaign.
    pub taken: u64,
    /// The calendar day in the campaign's time zone, in days since 1970.
    pub today: u32,
    /// The user's record.
    pub record: UserRecord,
    /// The user's events in the outbox entries that were searched, oldest first: each is a claim as it stood then.
    pub events: Vec<ClaimRecord>,
    /// The entry behind which the search goes on; `None` when it is over.
    pub next: Option<String>,
}

/// Reads the reply of `user.lua`.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
pub fn user(reply: Value) -> Result<Ready<UserReply>, Malformed> {
    let mut parts = Parts::of(reply)?;
    if let Err(why) = parts.expect("found")? {
        return Ok(Err(why));
    }
    let (version, taken, today) = (parts.version()?, parts.number()?, parts.number()?);
    let malformed = || Malformed("a user's record".to_owned());
    let record = UserRecord::read(&parts.bytes()?).ok_or_else(malformed)?;
    let events = ClaimRecord::read_all(&parts.bytes()?).ok_or_else(malformed)?;
    let next = Some(parts.text()?).filter(|entry| !entry.is_empty());
    Ok(Ok(UserReply { version, taken, today, record, events, next }))
}

/// That nothing is left of a campaign.
#[derive(Debug, Clone, Copy)]
pub struct SoldOutReply {
    /// The campaign's version.
    pub version: Version,
    /// The last sequence given: a further one means a further claim.
    pub sequence: u64,
    /// The most a user without claims may ask for before another limit refuses.
    pub most: u64,
    /// Until a hold falls due or the window ends, 1 s at most: by then Redis has to be asked again.
    pub valid_for: Duration,
}

/// Reads the reply of `sold_out.lua`.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
pub fn sold_out(reply: Value) -> Result<Ready<Option<SoldOutReply>>, Malformed> {
    let mut parts = Parts::of(reply)?;
    match parts.text()?.as_str() {
        "not_ready" => Ok(Err(parts.reason()?)),
        "open" => Ok(Ok(None)),
        "sold_out" => Ok(Ok(Some(SoldOutReply {
            version: parts.version()?,
            sequence: parts.number()?,
            most: parts.number()?,
            valid_for: Duration::from_millis(parts.number()?),
        }))),
        other => Err(Malformed(other.to_owned())),
    }
}

/// Reads the reply of `transition.lua`: the claim, and the campaign's event count; `None` when there is no such
/// claim.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
pub fn transitioned(reply: Value) -> Result<Ready<Option<(ClaimRecord, u64)>>, Malformed> {
    let mut parts = Parts::of(reply)?;
    match parts.text()?.as_str() {
        "not_ready" => Ok(Err(parts.reason()?)),
        "unknown" => Ok(Ok(None)),
        "transitioned" => {
            let record = ClaimRecord::read(&parts.bytes()?).ok_or_else(|| Malformed("record".to_owned()))?;
            Ok(Ok(Some((record, parts.number()?))))
        }
        other => Err(Malformed(other.to_owned())),
    }
}

/// The reply of `suspend.lua`.
#[derive(Debug, Clone)]
pub enum SuspendReply {
    /// The campaign is suspended.
    Done(Suspended),
    /// A higher token, this one, was there before: nothing was changed.
    Late(FencingToken),
}

/// What Redis holds of a campaign that it has just suspended.
#[derive(Debug, Clone)]
pub struct Suspended {
    /// The epoch of its keys; 0 when there were none.
    pub epoch: Epoch,
    /// Its high-water mark.
    pub high_water_mark: HighWaterMark,
    /// Units taken.
    pub taken: u64,
    /// The sum of all its claims' revisions; `None` when not all of its users and claims are there.
    pub revisions: Option<u64>,
    /// Events that were never taken off the outbox.
    pub backlog: u64,
    /// The token under which the campaign was suspended before; 0 for none.
    pub previous_token: FencingToken,
    /// The rules that Redis decided by; `None` when they are not there.
    pub rules: Option<AppliedRules>,
    /// The last units that were added, oldest first.
    pub additions: Vec<AppliedAddition>,
}

/// Reads a fencing token; that of an operator's `drop-foreign` is a fraction above its campaign's own.
fn token(parts: &mut Parts) -> Result<FencingToken, Malformed> {
    let text = parts.text()?;
    let whole = text.split('.').next().unwrap_or_default();
    whole.parse().map(FencingToken::new).map_err(|_| Malformed(format!("token {text}")))
}

/// Reads the reply of `suspend.lua`.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
pub fn suspended(reply: Value) -> Result<Ready<SuspendReply>, Malformed> {
    let mut parts = Parts::of(reply)?;
    match parts.text()?.as_str() {
        "not_ready" => Ok(Err(parts.reason()?)),
        "late" => Ok(Ok(SuspendReply::Late(token(&mut parts)?))),
        "suspended" => {
            let epoch = Epoch::new(parts.number()?);
            let high_water_mark = HighWaterMark { sequence: parts.number()?, events: parts.number()? };
            let (taken, revisions, backlog) = (parts.number()?, parts.int()?, parts.number()?);
            let (previous_token, admin_state) = (token(&mut parts)?, parts.number()?);
            let rules = state::read_rules(&parts.bytes()?, admin_state);
            let additions = parts.text()?;
            let additions = AppliedAddition::read_all(&additions).ok_or(Malformed(additions))?;
            Ok(Ok(SuspendReply::Done(Suspended {
                epoch,
                high_water_mark,
                taken,
                revisions: u64::try_from(revisions).ok(),
                backlog,
                previous_token,
                rules,
                additions,
            })))
        }
        other => Err(Malformed(other.to_owned())),
    }
}

/// The reply of `lease.lua`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseReply {
    /// Acquired, with its fencing token.
    Held(u64),
    /// Another holder has it.
    Taken,
    /// Renewed, or released.
    Done,
    /// Not this holder's any more.
    Lost,
}

/// Reads the reply of `lease.lua`.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
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

/// Reads a reply that is a number and nothing else.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
pub fn count(reply: &Value) -> Result<u64, Malformed> {
    match reply {
        Value::Int(number) => Ok(u64::try_from(*number).unwrap_or(0)),
        other => Err(malformed(other)),
    }
}

/// Reads a reply that is one word out of `words`, as its place among them.
///
/// # Errors
/// [`Malformed`] when the script of this version gives no such reply.
pub fn word(reply: Value, words: &[&str]) -> Result<Ready<usize>, Malformed> {
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
