//! Takes snapshots of many campaigns in one pipeline of plain reads: whether each campaign looks ready, and
//! its pending work.
//!
//! A snapshot takes Redis a few microseconds and no write, so idle campaigns cost almost nothing. A snapshot
//! only shows which campaigns need a script call; the reply of that script (see `prelude.lua`) is
//! authoritative.

use claimgate_shared::{CampaignId, Timestamp, Version};
use futures_util::future::join_all;
use redis::streams::StreamRangeReply;
use redis::{FromRedisValue, Pipeline, RedisError, Value, from_redis_value};

use super::scripts::keys::{self, Keys};
use super::scripts::state::{self, CampaignState};
use super::topology::cluster::is_redirect;
use super::topology::slot::Slot;
use super::{CallTarget, RedisStore, RedisStoreError, Session};
use crate::domain::claim_record::timestamp;
use crate::domain::counters::Generation;

/// Fields read from the campaign's hash.
const FIELDS: [&str; 3] = ["phase", "events_loaded", "revisions_loaded"];

/// TTL of the requested checks, renewed by each request.
const CHECKS_TTL_MS: u64 = 60_000;

/// Number of replies per campaign, in the order of [`add_reads`].
const REPLIES: usize = 5;

/// A campaign's state in one survey.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CampaignSnapshot {
    /// The time by the clock of the campaign's server.
    pub now: Timestamp,
    /// The first generation that led to this run of the server; each campaign has to be synchronized once per run.
    pub run: Generation,
    /// Whether the campaign looks ready.
    pub ready: bool,
    /// The last sequence number assigned.
    pub sequence: u64,
    /// Units taken.
    pub taken: u64,
    /// Version of the rules; 0 while the campaign is suspended.
    pub version: Version,
    /// The campaign's event count.
    pub events: u64,
    /// Number of events in the outbox, by the campaign's own counter.
    pub backlog: u64,
    /// Sum of all claims' revisions, relayed or not. Each event raises one revision by 1.
    pub revisions: u64,
    /// Time of the oldest outbox entry; `None` if the outbox is empty.
    pub oldest: Option<Timestamp>,
    /// When the next hold expires.
    pub next_hold: Option<Timestamp>,
}

impl RedisStore {
    /// Takes a snapshot of each campaign, in the order given; all nodes of a cluster are read in parallel. A
    /// snapshot is `None` if the campaign's node returned none. Writes nothing and synchronizes nothing.
    ///
    /// # Errors
    /// If no server of any campaign answers.
    pub async fn survey(
        &self,
        campaigns: &[CallTarget<'_>],
    ) -> Result<Vec<Option<CampaignSnapshot>>, RedisStoreError> {
        let slots: Vec<_> = campaigns.iter().map(|target| target.keys.slot).collect();
        let surveys = self.connections.sessions(&slots).await.into_iter().map(|(session, indexes)| async {
            let targets: Vec<_> = indexes.iter().map(|index| campaigns[*index]).collect();
            let result = match session {
                Ok(mut session) => self.survey_node(&mut session, &targets).await,
                Err(error) => Err(error.into()),
            };
            (indexes, result)
        });
        let (mut snapshots, mut failed) = (vec![None; campaigns.len()], None);
        for (indexes, result) in join_all(surveys).await {
            match result {
                Ok(found) => {
                    indexes.into_iter().zip(found).for_each(|(index, snapshot)| snapshots[index] = snapshot);
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if snapshots.iter().all(Option::is_none) => Err(error),
            _ => Ok(snapshots),
        }
    }

    /// Requests that the cores serving `campaign` check it soon. Cores do so within seconds; the request
    /// expires after a minute.
    pub async fn request_check(&self, campaign: &CampaignId) -> Result<(), RedisStoreError> {
        let slot = Slot::of(keys::CHECKS_REQUESTED);
        let add = redis::cmd("SADD").arg(keys::CHECKS_REQUESTED).arg(campaign.as_str()).to_owned();
        self.query::<Value>("redis:request_check", slot, &add).await?;
        let expire = redis::cmd("PEXPIRE").arg(keys::CHECKS_REQUESTED).arg(CHECKS_TTL_MS).to_owned();
        self.query::<Value>("redis:request_check", slot, &expire).await.map(drop)
    }

    /// Returns the ids of the campaigns for which a check was requested.
    pub async fn requested_checks(&self) -> Result<Vec<String>, RedisStoreError> {
        let read = redis::cmd("SMEMBERS").arg(keys::CHECKS_REQUESTED).to_owned();
        self.query("redis:requested_checks", Slot::of(keys::CHECKS_REQUESTED), &read).await
    }

    async fn survey_node(
        &self,
        session: &mut Session,
        campaigns: &[CallTarget<'_>],
    ) -> Result<Vec<Option<CampaignSnapshot>>, RedisStoreError> {
        let mut pipe = Pipeline::with_capacity(1 + REPLIES * campaigns.len());
        pipe.ignore_errors().cmd("TIME");
        for target in campaigns {
            add_reads(&mut pipe, target.keys);
        }
        let replies =
            session.query("redis:survey", async |connection| pipe.query_async(connection).await).await;
        let replies: Vec<Result<Value, RedisError>> = self.record_error(replies, session).await?;
        // A campaign whose slot is being migrated to another node cannot be read.
        let redirect =
            replies.iter().find_map(|reply| reply.as_ref().err().filter(|error| is_redirect(error)));
        if let Some(error) = redirect {
            self.connections.note_error(error, session).await;
        }
        let mut replies = replies.into_iter();
        let (now, run) = (server_time(replies.next())?, session.run);
        let mut snapshots = Vec::with_capacity(campaigns.len());
        for target in campaigns {
            let of_one: Vec<_> = replies.by_ref().take(REPLIES).collect();
            let is_moving = of_one.iter().any(|reply| reply.as_ref().is_err_and(is_redirect));
            let snapshot =
                if is_moving { None } else { Some(snapshot(target, session, &mut of_one.into_iter())?) };
            snapshots.push(snapshot.map(|snapshot| CampaignSnapshot { now, run, ..snapshot }));
        }
        Ok(snapshots)
    }
}

/// Appends the reads of one campaign to `pipe`.
fn add_reads(pipe: &mut Pipeline, keys: &Keys) {
    pipe.cmd("HMGET").arg(&keys.campaign).arg(&FIELDS);
    pipe.cmd("HGET").arg(&keys.users).arg(state::FIELD);
    pipe.cmd("HGET").arg(&keys.claims).arg(".");
    // The epoch marker, whose negative score sorts first, and the hold that expires next.
    pipe.cmd("ZRANGE").arg(&keys.holds).arg(0).arg(1).arg("WITHSCORES");
    // The epoch marker and the oldest entry.
    pipe.cmd("XRANGE").arg(&keys.outbox).arg("-").arg("+").arg("COUNT").arg(2);
}

type Replies = std::vec::IntoIter<Result<Value, RedisError>>;

/// Returns the next reply; `None` if the key has the wrong type, which does not occur in a ready campaign.
/// Any other error is about the server, not the campaign.
fn next<T: FromRedisValue>(replies: &mut Replies) -> Result<Option<T>, RedisStoreError> {
    match replies.next() {
        Some(Ok(value)) => Ok(from_redis_value(value).ok()),
        Some(Err(error)) if error.code() == Some("WRONGTYPE") => Ok(None),
        Some(Err(error)) => Err(RedisStoreError::of(error)),
        None => Ok(None),
    }
}

/// Parses the reply of `TIME`.
fn server_time(reply: Option<Result<Value, RedisError>>) -> Result<Timestamp, RedisStoreError> {
    let reply = reply.transpose().map_err(RedisStoreError::of)?.unwrap_or(Value::Nil);
    let (seconds, micros): (u64, u64) =
        from_redis_value(reply).map_err(|error| RedisStoreError::Unavailable(error.into()))?;
    Ok(timestamp(seconds * 1000 + micros / 1000).unwrap_or_default())
}

/// Builds a snapshot from the replies of one campaign, without time and run.
fn snapshot(
    target: &CallTarget<'_>,
    session: &Session,
    replies: &mut Replies,
) -> Result<CampaignSnapshot, RedisStoreError> {
    let fields: Option<[Option<String>; FIELDS.len()]> = next(replies)?;
    let state: Option<Vec<u8>> = next(replies)?;
    let claims: Option<String> = next(replies)?;
    let holds: Vec<(Vec<u8>, f64)> = next(replies)?.unwrap_or_default();
    let outbox: StreamRangeReply = next(replies)?.unwrap_or_default();
    // The time is set even if the campaign is not ready: its outbox entries still have to reach SQL.
    let oldest = outbox.ids.iter().find_map(|entry| written_at(&entry.id));
    let (Some([phase, events_loaded, revisions_loaded]), Some(state)) =
        (fields, state.as_deref().and_then(CampaignState::read))
    else {
        return Ok(CampaignSnapshot { oldest, ..CampaignSnapshot::default() });
    };
    let number = |field: Option<String>| field.and_then(|text| text.parse::<u64>().ok());
    let since_load = state.events.saturating_sub(number(events_loaded).unwrap_or(0));
    let loaded = state.loaded_epoch.to_string();
    let ready = state.identity == target.identity(session).pack()
        && !state.suspended
        && phase.as_deref() == Some("open")
        && state.events >= target.minimum_events
        && claims.as_deref() == Some(loaded.as_str())
        && holds.first().is_some_and(|(member, score)| member == b"." && is_sentinel_score(*score, &loaded))
        && outbox.ids.first().is_some_and(|entry| entry.id == format!("0-{loaded}"));
    Ok(CampaignSnapshot {
        ready,
        sequence: state.sequence,
        taken: state.taken,
        version: state.rules.map(|rules| rules.version).unwrap_or_default(),
        events: state.events,
        backlog: state.backlog,
        revisions: number(revisions_loaded).unwrap_or(0) + since_load,
        oldest,
        next_hold: holds.iter().find_map(|(_, score)| due_at(*score)),
        ..CampaignSnapshot::default()
    })
}

/// Returns whether `score` is the score of the epoch marker of `epoch`.
fn is_sentinel_score(score: f64, epoch: &str) -> bool {
    epoch.parse::<f64>().is_ok_and(|epoch| score.to_bits() == (-epoch).to_bits())
}

/// Returns the time in an entry's id; `None` for epoch markers, whose ids begin with 0.
fn written_at(id: &str) -> Option<Timestamp> {
    timestamp(id.split('-').next()?.parse().ok().filter(|ms| *ms > 0)?)
}

/// Returns the expiry that a hold's score encodes; `None` for the epoch marker.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a time in milliseconds is below 2^53
fn due_at(score: f64) -> Option<Timestamp> {
    if score > 0.0 { timestamp(score as u64) } else { None }
}
