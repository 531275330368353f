//! One look at many campaigns, in one pipeline of plain reads: how a campaign that is well looks, and what it waits for.
//!
//! It costs Redis a few microseconds a campaign and no write, so that campaigns at rest cost next to nothing. It only says
//! where a closer look is due; what `prelude.lua` says then is what counts.

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::Timestamp;
use redis::streams::StreamRangeReply;
use redis::{FromRedisValue, Pipeline, RedisError, Value, from_redis_value};

use super::record::timestamp;
use super::scripts::{Decided, LAYOUT, Verdict};
use super::{Ledger, LedgerError};
use crate::campaigns::Known;
use crate::step;

/// Fields of the campaign's hash that are looked at.
const FIELDS: [&str; 7] =
    ["layout", "epoch", "switch", "events", "backlog", "events_loaded", "revisions_loaded"];

/// Replies of one campaign, in the order of [`ask`].
const REPLIES: usize = 5;

/// How a campaign looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Whether nothing speaks against its being ready.
    pub ready: bool,
    /// Events in the outbox, by the campaign's own counter.
    pub backlog: u64,
    /// The sum of all claims' revisions, relayed or not: each event raises one by one.
    pub revisions: u64,
    /// When the oldest entry of the outbox was written; `None` when the outbox is empty.
    pub oldest: Option<Timestamp>,
    /// When the next hold falls due.
    pub next_hold: Option<Timestamp>,
}

/// Campaigns as they looked at one moment.
#[derive(Debug)]
pub struct Survey {
    /// Redis' clock.
    pub now: Timestamp,
    /// Over which connection: campaigns are to be met anew behind each.
    pub generation: u64,
    /// One a campaign, in their order.
    pub looks: Vec<Look>,
}

/// What a campaign that is well has, as far as this core knew before it asked.
struct Expected {
    epoch: u64,
    events: u64,
}

impl Ledger {
    /// Looks at `campaigns`. Writes nothing, meets none of them, and judges none: see the module.
    pub async fn survey(&self, campaigns: &[Arc<Known>]) -> Result<Survey, LedgerError> {
        let mut pipe = Pipeline::with_capacity(1 + REPLIES * campaigns.len());
        pipe.ignore_errors().cmd("TIME");
        // Taken before Redis is asked: it may have come further by then, never less far.
        let expected: Vec<_> = campaigns.iter().map(|known| ask(&mut pipe, known)).collect();
        let mut session = self.link.session().await?;
        step::before("redis:survey").await;
        let replies = step::after(pipe.query_async(&mut session.connection).await);
        let replies: Vec<Result<Value, RedisError>> = self.noted(replies, session.generation).await?;
        let mut replies = replies.into_iter();
        let now = clock(replies.next())?;
        let mut looks = Vec::with_capacity(campaigns.len());
        for expected in &expected {
            looks.push(look(expected, &mut replies)?);
        }
        Ok(Survey { now, generation: session.generation, looks })
    }
}

fn ask(pipe: &mut Pipeline, known: &Known) -> Expected {
    let keys = &known.keys;
    pipe.cmd("HMGET").arg(&keys.campaign).arg(&FIELDS);
    pipe.cmd("HGET").arg(&keys.users).arg(".");
    pipe.cmd("HGET").arg(&keys.claims).arg(".");
    // The sentinel, whose score is below every time, and the hold that falls due first.
    pipe.cmd("ZRANGE").arg(&keys.holds).arg(0).arg(1).arg("WITHSCORES");
    // The sentinel and the oldest entry.
    pipe.cmd("XRANGE").arg(&keys.outbox).arg("-").arg("+").arg("COUNT").arg(2);
    Expected { epoch: known.campaign().epoch, events: known.reached().events }
}

type Replies = std::vec::IntoIter<Result<Value, RedisError>>;

/// The next reply, `None` when the key is of another type: no campaign that is well looks like that. Any other error is
/// the server's, not the campaign's.
fn next<T: FromRedisValue>(replies: &mut Replies) -> Result<Option<T>, LedgerError> {
    match replies.next() {
        Some(Ok(value)) => Ok(from_redis_value(value).ok()),
        Some(Err(error)) if error.code() == Some("WRONGTYPE") => Ok(None),
        Some(Err(error)) => Err(LedgerError::of(error)),
        None => Ok(None),
    }
}

fn clock(reply: Option<Result<Value, RedisError>>) -> Result<Timestamp, LedgerError> {
    let reply = reply.transpose().map_err(LedgerError::of)?.unwrap_or(Value::Nil);
    let (seconds, micros): (u64, u64) =
        from_redis_value(reply).map_err(|error| LedgerError::Unavailable(error.into()))?;
    Ok(timestamp(seconds * 1000 + micros / 1000).unwrap_or_default())
}

fn look(expected: &Expected, replies: &mut Replies) -> Result<Look, LedgerError> {
    let fields: Option<[Option<String>; FIELDS.len()]> = next(replies)?;
    let sentinels = [next::<Option<String>>(replies)?.flatten(), next::<Option<String>>(replies)?.flatten()];
    let holds: Vec<(Vec<u8>, f64)> = next(replies)?.unwrap_or_default();
    let outbox: StreamRangeReply = next(replies)?.unwrap_or_default();
    let Some([layout, epoch, switch, events, backlog, events_loaded, revisions_loaded]) = fields else {
        return Ok(Look::default());
    };
    let number = |field: Option<String>| field.and_then(|text| text.parse::<u64>().ok());
    let events = number(events);
    let since_load = events.unwrap_or(0).saturating_sub(number(events_loaded).unwrap_or(0));
    let wanted = expected.epoch.to_string();
    let is_epoch = |field: &Option<String>| field.as_deref() == Some(wanted.as_str());
    let ready = layout == Some(LAYOUT.to_string())
        && is_epoch(&epoch)
        && matches!(switch.as_deref(), Some("on" | "paused" | "ended"))
        && events.is_some_and(|events| events >= expected.events)
        && sentinels.iter().all(is_epoch)
        && holds.first().is_some_and(|(member, score)| member == b"." && is_score(*score, &wanted))
        && outbox.ids.first().is_some_and(|entry| entry.id == format!("0-{wanted}"));
    Ok(Look {
        ready,
        backlog: number(backlog).unwrap_or(0),
        revisions: number(revisions_loaded).unwrap_or(0) + since_load,
        oldest: outbox.ids.iter().find_map(|entry| written_at(&entry.id)),
        next_hold: holds.iter().find_map(|(_, score)| due_at(*score)),
    })
}

fn is_score(score: f64, epoch: &str) -> bool {
    epoch.parse::<f64>().is_ok_and(|epoch| score.to_bits() == (-epoch).to_bits())
}

/// When an entry was written, by its id; `None` for sentinels, whose ids begin with 0.
fn written_at(id: &str) -> Option<Timestamp> {
    timestamp(id.split('-').next()?.parse().ok().filter(|ms| *ms > 0)?)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a time in milliseconds is below 2^53
fn due_at(score: f64) -> Option<Timestamp> {
    if score > 0.0 { timestamp(score as u64) } else { None }
}

impl Decided {
    /// How long until the first hold falls due of which this call tells; zero when more are due than it gave back.
    pub(super) fn hold_due_in(&self) -> Option<Duration> {
        if self.more_due {
            return Some(Duration::ZERO);
        }
        let expiries = self.verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Taken { expires_at, .. } => *expires_at,
            _ => None,
        });
        let first_ms = expiries.map(Timestamp::as_ms).min()?;
        Some(Duration::from_millis(u64::try_from(first_ms - self.now.as_ms()).unwrap_or(0)))
    }
}
