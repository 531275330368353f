//! One look at many campaigns, in one pipeline of plain reads: whether each seems ready, and what it waits for.
//!
//! It costs Redis a few microseconds per campaign and no write, so that campaigns at rest cost next to nothing. It only
//! shows which campaigns need a script call; what `prelude.lua` replies then is what counts.

use claimgate_shared::Timestamp;
use redis::streams::StreamRangeReply;
use redis::{FromRedisValue, Pipeline, RedisError, Value, from_redis_value};

use super::keys::Keys;
use super::state::{self, CampaignState};
use super::{CallTarget, RedisStore, RedisStoreError, Session};
use crate::domain::claim_record::timestamp;
use crate::domain::counters::Generation;
use crate::step;

/// The fields of the campaign's hash that are read.
const FIELDS: [&str; 3] = ["phase", "events_loaded", "revisions_loaded"];

/// Replies of one campaign, in the order of [`ask`].
const REPLIES: usize = 5;

/// What one look shows of a campaign.
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
    /// The generation of the connection: each campaign has to be synchronised once per connection.
    pub generation: Generation,
    /// One look per campaign, in their order.
    pub looks: Vec<Look>,
}

impl RedisStore {
    /// Looks at `campaigns`. Writes nothing, and neither synchronises nor judges any of them: see the module.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn survey(&self, campaigns: &[CallTarget<'_>]) -> Result<Survey, RedisStoreError> {
        let mut pipe = Pipeline::with_capacity(1 + REPLIES * campaigns.len());
        pipe.ignore_errors().cmd("TIME");
        for target in campaigns {
            ask(&mut pipe, target.keys);
        }
        let mut session = self.connection.session().await?;
        step::before("redis:survey").await;
        let replies = step::after(pipe.query_async(&mut session.connection).await);
        let replies: Vec<Result<Value, RedisError>> = self.noted(replies, session.generation).await?;
        let mut replies = replies.into_iter();
        let now = clock(replies.next())?;
        let mut looks = Vec::with_capacity(campaigns.len());
        for target in campaigns {
            looks.push(look(target, &session, &mut replies)?);
        }
        Ok(Survey { now, generation: session.generation, looks })
    }
}

fn ask(pipe: &mut Pipeline, keys: &Keys) {
    pipe.cmd("HMGET").arg(&keys.campaign).arg(&FIELDS);
    pipe.cmd("HGET").arg(&keys.users).arg(state::FIELD);
    pipe.cmd("HGET").arg(&keys.claims).arg(".");
    // The sentinel, whose score is below every time, and the hold that falls due first.
    pipe.cmd("ZRANGE").arg(&keys.holds).arg(0).arg(1).arg("WITHSCORES");
    // The sentinel and the oldest entry.
    pipe.cmd("XRANGE").arg(&keys.outbox).arg("-").arg("+").arg("COUNT").arg(2);
}

type Replies = std::vec::IntoIter<Result<Value, RedisError>>;

/// The next reply, `None` when the key is of another type, which no ready campaign has. Any other error is the server's,
/// not the campaign's.
fn next<T: FromRedisValue>(replies: &mut Replies) -> Result<Option<T>, RedisStoreError> {
    match replies.next() {
        Some(Ok(value)) => Ok(from_redis_value(value).ok()),
        Some(Err(error)) if error.code() == Some("WRONGTYPE") => Ok(None),
        Some(Err(error)) => Err(RedisStoreError::of(error)),
        None => Ok(None),
    }
}

fn clock(reply: Option<Result<Value, RedisError>>) -> Result<Timestamp, RedisStoreError> {
    let reply = reply.transpose().map_err(RedisStoreError::of)?.unwrap_or(Value::Nil);
    let (seconds, micros): (u64, u64) =
        from_redis_value(reply).map_err(|error| RedisStoreError::Unavailable(error.into()))?;
    Ok(timestamp(seconds * 1000 + micros / 1000).unwrap_or_default())
}

fn look(target: &CallTarget<'_>, session: &Session, replies: &mut Replies) -> Result<Look, RedisStoreError> {
    let fields: Option<[Option<String>; FIELDS.len()]> = next(replies)?;
    let state: Option<Vec<u8>> = next(replies)?;
    let claims: Option<String> = next(replies)?;
    let holds: Vec<(Vec<u8>, f64)> = next(replies)?.unwrap_or_default();
    let outbox: StreamRangeReply = next(replies)?.unwrap_or_default();
    let (Some([phase, events_loaded, revisions_loaded]), Some(state)) =
        (fields, state.as_deref().and_then(CampaignState::read))
    else {
        return Ok(Look::default());
    };
    let number = |field: Option<String>| field.and_then(|text| text.parse::<u64>().ok());
    let since_load = state.events.saturating_sub(number(events_loaded).unwrap_or(0));
    let loaded = state.loaded_epoch.to_string();
    let ready = state.identity == target.identity(session).pack()
        && !state.suspended
        && phase.as_deref() == Some("open")
        && state.events >= target.minimum_events
        && claims.as_deref() == Some(loaded.as_str())
        && holds.first().is_some_and(|(member, score)| member == b"." && is_score(*score, &loaded))
        && outbox.ids.first().is_some_and(|entry| entry.id == format!("0-{loaded}"));
    Ok(Look {
        ready,
        backlog: state.backlog,
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
