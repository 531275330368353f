//! One look at many campaigns, in one pipeline of plain reads: whether each seems ready, and what it waits for.
//!
//! It costs Redis a few microseconds per campaign and no write, so that campaigns at rest cost next to nothing. It only
//! shows which campaigns need a script call; what `prelude.lua` replies then is what counts.

use claimgate_shared::{CampaignId, Timestamp, Version};
use futures_util::future::join_all;
use redis::streams::StreamRangeReply;
use redis::{FromRedisValue, Pipeline, RedisError, Value, from_redis_value};

use super::cluster::is_redirect;
use super::keys::{self, Keys};
use super::slot::Slot;
use super::state::{self, CampaignState};
use super::{CallTarget, RedisStore, RedisStoreError, Session};
use crate::domain::claim_record::timestamp;
use crate::domain::counters::Generation;

/// The fields of the campaign's hash that are read.
const FIELDS: [&str; 3] = ["phase", "events_loaded", "revisions_loaded"];

/// For how long a campaign is looked at after it was last asked for.
const LOOKS_WANTED_MS: u64 = 60_000;

/// Replies of one campaign, in the order of [`ask`].
const REPLIES: usize = 5;

/// What one look shows of a campaign.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Its server's clock.
    pub now: Timestamp,
    /// The generation of the connection: each campaign has to be synchronised once per connection.
    pub generation: Generation,
    /// Whether nothing speaks against its being ready.
    pub ready: bool,
    /// The last sequence given.
    pub sequence: u64,
    /// Units taken.
    pub taken: u64,
    /// The version of the rules; 0 while it is suspended.
    pub version: Version,
    /// The campaign's event count.
    pub events: u64,
    /// Events in the outbox, by the campaign's own counter.
    pub backlog: u64,
    /// The sum of all claims' revisions, relayed or not: each event raises one by one.
    pub revisions: u64,
    /// When the oldest entry of the outbox was written; `None` when the outbox is empty.
    pub oldest: Option<Timestamp>,
    /// When the next hold falls due.
    pub next_hold: Option<Timestamp>,
}

impl RedisStore {
    /// Looks at `campaigns`; of a cluster at those of all nodes at once. Returns a look each, in their order, and `None` for
    /// those whose node gave none. Writes nothing, and neither synchronises nor judges any of them: see the module.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when no server of any of them answers.
    pub async fn survey(&self, campaigns: &[CallTarget<'_>]) -> Result<Vec<Option<Look>>, RedisStoreError> {
        let slots: Vec<_> = campaigns.iter().map(|target| target.keys.slot).collect();
        let looked = self.connections.sessions(&slots).await.into_iter().map(|(session, places)| async {
            let targets: Vec<_> = places.iter().map(|place| campaigns[*place]).collect();
            let looks = match session {
                Ok(mut session) => self.look_at(&mut session, &targets).await,
                Err(error) => Err(error.into()),
            };
            (places, looks)
        });
        let (mut looks, mut failed) = (vec![None; campaigns.len()], None);
        for (places, looked) in join_all(looked).await {
            match looked {
                Ok(found) => places.into_iter().zip(found).for_each(|(place, look)| looks[place] = look),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if looks.iter().all(Option::is_none) => Err(error),
            _ => Ok(looks),
        }
    }

    /// Asks the cores that serve `campaign` to look at it, which they do within seconds; for a minute.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer: whether they will look is unknown.
    pub async fn want_look(&self, campaign: &CampaignId) -> Result<(), RedisStoreError> {
        let slot = Slot::of(keys::LOOKS_WANTED);
        let add = redis::cmd("SADD").arg(keys::LOOKS_WANTED).arg(campaign.as_str()).to_owned();
        self.query::<Value>("redis:want_look", slot, &add).await?;
        let expire = redis::cmd("PEXPIRE").arg(keys::LOOKS_WANTED).arg(LOOKS_WANTED_MS).to_owned();
        self.query::<Value>("redis:want_look", slot, &expire).await.map(drop)
    }

    /// The campaigns that are to be looked at.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn looks_wanted(&self) -> Result<Vec<String>, RedisStoreError> {
        let ask = redis::cmd("SMEMBERS").arg(keys::LOOKS_WANTED).to_owned();
        self.query("redis:looks_wanted", Slot::of(keys::LOOKS_WANTED), &ask).await
    }

    /// Looks at campaigns of one server.
    async fn look_at(
        &self,
        session: &mut Session,
        campaigns: &[CallTarget<'_>],
    ) -> Result<Vec<Option<Look>>, RedisStoreError> {
        let mut pipe = Pipeline::with_capacity(1 + REPLIES * campaigns.len());
        pipe.ignore_errors().cmd("TIME");
        for target in campaigns {
            ask(&mut pipe, target.keys);
        }
        let replies =
            session.ask("redis:survey", async |connection| pipe.query_async(connection).await).await;
        let replies: Vec<Result<Value, RedisError>> = self.noted(replies, session).await?;
        // A campaign that is on its way to another node cannot be looked at.
        let redirect =
            replies.iter().find_map(|reply| reply.as_ref().err().filter(|error| is_redirect(error)));
        if let Some(error) = redirect {
            self.connections.note(error, session).await;
        }
        let mut replies = replies.into_iter();
        let (now, generation) = (clock(replies.next())?, session.generation);
        let mut looks = Vec::with_capacity(campaigns.len());
        for target in campaigns {
            let of_one: Vec<_> = replies.by_ref().take(REPLIES).collect();
            let moves = of_one.iter().any(|reply| reply.as_ref().is_err_and(is_redirect));
            let look = if moves { None } else { Some(look(target, session, &mut of_one.into_iter())?) };
            looks.push(look.map(|look| Look { now, generation, ..look }));
        }
        Ok(looks)
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
    // Also of a campaign that is not ready: what its outbox holds waits for SQL.
    let oldest = outbox.ids.iter().find_map(|entry| written_at(&entry.id));
    let (Some([phase, events_loaded, revisions_loaded]), Some(state)) =
        (fields, state.as_deref().and_then(CampaignState::read))
    else {
        return Ok(Look { oldest, ..Look::default() });
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
        sequence: state.sequence,
        taken: state.taken,
        version: state.rules.map(|rules| rules.version).unwrap_or_default(),
        events: state.events,
        backlog: state.backlog,
        revisions: number(revisions_loaded).unwrap_or(0) + since_load,
        oldest,
        next_hold: holds.iter().find_map(|(_, score)| due_at(*score)),
        ..Look::default()
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
