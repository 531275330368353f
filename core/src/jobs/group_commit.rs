//! Group commit: where the database has one writer, queued batches of several campaigns share a transaction.
//! If many campaigns have few claims each, the fixed cost of a transaction and its sync exceeds the cost of
//! the rows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{CampaignId, Timestamp};
use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::domain::codes::{CODES_AT_ONCE, CodesOfClaim};
use crate::store::redis::outbox::OutboxBatch;
use crate::store::sql::{Batch, EntryOrder, OutboxWriteError, SqlStore};

/// The time limit of a transaction.
const COMMIT_MAX: Duration = Duration::from_secs(10);
/// Number of events from which a group takes no further batches, as from [`CODES_AT_ONCE`] codes. SQLite takes about
/// 200 ms for this number of events. A single batch never has more.
const EVENTS_MAX: usize = 32_768;

/// The reason why a batch was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// SQL did not write the batch.
    #[error(transparent)]
    Write(#[from] OutboxWriteError),
    /// SQL did not answer in time; the commit may have taken effect.
    #[error("SQL did not commit within {} s", COMMIT_MAX.as_secs())]
    Slow,
    /// The transaction was shared with another campaign's batch, and failed.
    #[error("the transaction that it shared with other campaigns failed")]
    Shared,
}

impl CommitError {
    /// Returns true if a single batch may be the cause. The other batches can then be written without that
    /// batch.
    fn is_of_one_batch(&self) -> bool {
        use OutboxWriteError::{Constraint, NoCampaign, OutOfOrder};
        matches!(self, Self::Write(Constraint(_) | NoCampaign | OutOfOrder))
    }
}

/// Commits batches. Groups batches of several campaigns only if no campaign then waits for the row lock of a
/// different campaign.
#[derive(Debug)]
pub struct GroupCommit {
    sql: SqlStore,
    queue: Mutex<VecDeque<QueuedBatch>>,
    /// One permit for each concurrent transaction. PostgreSQL has several, so that a transaction that hangs
    /// does not block the rest.
    turns: Semaphore,
    /// Maximum number of campaigns in one transaction: 1 on PostgreSQL, where another core may hold a row's
    /// lock.
    campaigns_max: usize,
}

/// A batch in the queue, and the channel that returns its result.
#[derive(Debug)]
struct QueuedBatch {
    campaign: CampaignId,
    batch: Arc<OutboxBatch>,
    /// Maximum number of codes that the batch needs.
    codes: u64,
    done: oneshot::Sender<Result<Vec<CodesOfClaim>, CommitError>>,
}

/// A batch that was committed.
#[derive(Debug)]
pub struct Committed<'a> {
    /// The turn if the caller wrote the batch itself, possibly with batches of other callers; `None` if
    /// another caller wrote the batch.
    pub turn: Option<WriterTurn<'a>>,
    /// The codes of the batch's granted claims that have all of them.
    pub codes: Vec<CodesOfClaim>,
}

/// A caller's turn to write, and the totals of all batches written during the turn.
#[derive(Debug)]
pub struct WriterTurn<'a> {
    _permit: SemaphorePermit<'a>,
    /// When the turn began.
    pub began: Instant,
    /// Number of events written.
    pub events: usize,
    /// Number of batches written. Each batch has entries of one campaign.
    pub batches: u32,
    /// True if a campaign of these batches has codes.
    pub has_codes: bool,
    oldest: Option<Timestamp>,
}

impl WriterTurn<'_> {
    /// Returns the age at `now` of the oldest entry written; zero if the clock is behind Redis' clock.
    pub fn age(&self, now: Timestamp) -> Duration {
        let ms = self.oldest.map_or(0, |oldest| now.as_ms() - oldest.as_ms());
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }
}

impl GroupCommit {
    /// Creates a group commit that writes to `sql`.
    pub fn new(sql: SqlStore) -> Self {
        let turns = Semaphore::new(sql.writers_max());
        let campaigns_max = if sql.is_sqlite() { usize::MAX } else { 1 };
        Self { sql, queue: Mutex::default(), turns, campaigns_max }
    }

    /// Commits a campaign's batch. A campaign may have one batch in the queue at a time.
    ///
    /// # Errors
    /// After any error, it is safe to retry the same batch.
    pub async fn commit(
        &self,
        campaign: &CampaignId,
        batch: Arc<OutboxBatch>,
        has_codes: bool,
    ) -> Result<Committed<'_>, CommitError> {
        let (done, mut mine) = oneshot::channel();
        let codes = if has_codes { batch.units() } else { 0 };
        self.queue.lock().push_back(QueuedBatch { campaign: campaign.clone(), batch, codes, done });
        // The semaphore is never closed.
        let permit = self.turns.acquire().await.map_err(|_| CommitError::Shared)?;
        let mut turn = WriterTurn {
            _permit: permit,
            began: Instant::now(),
            events: 0,
            batches: 0,
            has_codes: false,
            oldest: None,
        };
        loop {
            match mine.try_recv() {
                Ok(written) => {
                    return written.map(|codes| Committed { turn: (turn.events > 0).then_some(turn), codes });
                }
                Err(TryRecvError::Closed) => return Err(CommitError::Shared),
                Err(TryRecvError::Empty) => {}
            }
            let group = self.take_group();
            if group.is_empty() {
                // Another caller took this batch into its group.
                let written = mine.await.unwrap_or(Err(CommitError::Shared));
                return written.map(|codes| Committed { turn: None, codes });
            }
            turn.events += group.iter().map(|queued| queued.batch.events()).sum::<usize>();
            turn.batches += u32::try_from(group.len()).unwrap_or(u32::MAX);
            turn.has_codes |= group.iter().any(|queued| queued.codes > 0);
            turn.oldest = group.iter().filter_map(|queued| queued.batch.oldest()).chain(turn.oldest).min();
            self.write(group).await;
        }
    }

    /// Removes the oldest batches from the queue, up to the limits of one transaction.
    fn take_group(&self) -> Vec<QueuedBatch> {
        let mut queue = self.queue.lock();
        // A caller that gave up does not learn whether its batch was written, so it rereads those entries.
        queue.retain(|queued| !queued.done.is_closed());
        let mut group: Vec<QueuedBatch> = Vec::new();
        let (mut events, mut codes) = (0, 0);
        while group.len() < self.campaigns_max && events < EVENTS_MAX && codes < CODES_AT_ONCE {
            let Some(next) = queue.pop_front() else { break };
            events += next.batch.events();
            codes += next.codes;
            group.push(next);
        }
        group
    }

    async fn write(&self, group: Vec<QueuedBatch>) {
        let batches: Vec<Batch<'_>> =
            group.iter().map(|queued| (&queued.campaign, &queued.batch.entries[..])).collect();
        let mut written = self.transaction(&batches).await;
        let one_by_one = group.len() > 1 && written.as_ref().is_err_and(CommitError::is_of_one_batch);
        for (at, queued) in group.into_iter().enumerate() {
            let result = if one_by_one {
                let alone = self.transaction(&[(&queued.campaign, &queued.batch.entries)]).await;
                alone.map(|codes| codes.into_iter().flatten().collect())
            } else {
                match &mut written {
                    Ok(codes) => Ok(codes.get_mut(at).map(std::mem::take).unwrap_or_default()),
                    // Only the first caller gets the cause.
                    Err(cause) => Err(std::mem::replace(cause, CommitError::Shared)),
                }
            };
            // A caller that gave up rereads its batch.
            let _ = queued.done.send(result);
        }
    }

    async fn transaction(&self, batches: &[Batch<'_>]) -> Result<Vec<Vec<CodesOfClaim>>, CommitError> {
        let written = timeout(COMMIT_MAX, self.sql.write_entries(batches, EntryOrder::Following)).await;
        Ok(written.map_err(|_| CommitError::Slow)??)
    }
}

#[cfg(test)]
mod tests {
    use claimgate_shared::ClaimStatus;
    use futures_util::future::{FutureExt as _, join_all};
    use tempfile::TempDir;

    use super::*;
    use crate::clock;
    use crate::config::sqlite_url;
    use crate::domain::campaign_change::NewCampaign;
    use crate::domain::claim_record::ClaimRecord;
    use crate::domain::counters::Epoch;
    use crate::domain::event::{ClaimEvent, OutboxEntry};
    use crate::store::sql::Change;

    /// Creates a SQLite store with these campaigns.
    async fn sql_with(campaigns: &[&str]) -> (SqlStore, TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let sql = SqlStore::open(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await.unwrap();
        for id in campaigns {
            let body =
                format!(r#"{{"id":"{id}","name":"{id}","starts_at":"2020-01-01T00:00:00Z","limits":{{}}}}"#);
            let campaign = NewCampaign::parse(body.as_bytes()).unwrap().created_at(clock::now()).unwrap();
            sql.create(&campaign, Change { who: "test", what: "create", at: clock::now() }).await.unwrap();
        }
        (sql, directory)
    }

    /// Returns a batch with one grant, which has the sequence number `sequence` within `total`.
    fn grant(sequence: u64, total: u64) -> Arc<OutboxBatch> {
        let at = Timestamp::from_ms(1_750_000_000_000).unwrap();
        let claim = ClaimRecord {
            digest: [7; 16],
            status: ClaimStatus::Granted,
            revision: 1,
            quantity: 1,
            sequence,
            claimed_at: at,
            expires_at: None,
            day: 20_000,
        };
        let event = ClaimEvent {
            user: format!("user{sequence}").parse().unwrap(),
            claim,
            updated_at: at,
            limit_at_decision: Some(total),
            cumulative_taken: Some(sequence),
        };
        // Always the campaign's first event, regardless of the sequence number.
        let entry = OutboxEntry::new(format!("1-{sequence}"), Epoch::default(), 1, vec![event]);
        Arc::new(OutboxBatch { entries: vec![entry], malformed: vec![] })
    }

    async fn claim_count(sql: &SqlStore, campaign: &str) -> u64 {
        sql.totals(&campaign.parse().unwrap()).await.unwrap().claims
    }

    /// Commits all queued batches in one round. Returns each caller's result: the events it wrote, or its
    /// error.
    async fn commit_in_one_round(
        commits: &GroupCommit,
        batches: &[(&str, Arc<OutboxBatch>)],
    ) -> Vec<Result<usize, CommitError>> {
        let all = batches.iter().map(|(campaign, batch)| async move {
            let committed = commits.commit(&campaign.parse().unwrap(), Arc::clone(batch), false).await;
            committed.map(|committed| committed.turn.map_or(0, |turn| turn.events))
        });
        let another = commits.turns.acquire().await;
        let mut all = Box::pin(join_all(all));
        assert!((&mut all).now_or_never().is_none(), "all are queued");
        drop(another);
        all.await
    }

    #[tokio::test]
    async fn queued_campaigns_are_committed_by_the_first_caller() {
        let (sql, _directory) = sql_with(&["one", "two", "three"]).await;
        let commits = GroupCommit::new(sql.clone());
        let batches = ["one", "two", "three"].map(|campaign| (campaign, grant(1, 10)));
        let results = commit_in_one_round(&commits, &batches).await;
        assert!(matches!(results[..], [Ok(3), Ok(0), Ok(0)]), "{results:?}");
        for campaign in ["one", "two", "three"] {
            assert_eq!(claim_count(&sql, campaign).await, 1);
        }
    }

    #[tokio::test]
    async fn a_batch_that_sql_refuses_does_not_block_the_others() {
        let (sql, _directory) = sql_with(&["one", "two", "three"]).await;
        let commits = GroupCommit::new(sql.clone());
        let batches =
            [("one", grant(1, 10)), ("two", grant(11, 10)), ("none", grant(1, 10)), ("three", grant(1, 10))];
        let results = commit_in_one_round(&commits, &batches).await;
        assert!(matches!(results[0], Ok(4)) && matches!(results[3], Ok(0)), "{results:?}");
        assert!(
            matches!(results[1], Err(CommitError::Write(OutboxWriteError::Constraint(_)))),
            "{results:?}"
        );
        assert!(matches!(results[2], Err(CommitError::Write(OutboxWriteError::NoCampaign))), "{results:?}");
        for (campaign, claims) in [("one", 1), ("two", 0), ("three", 1)] {
            assert_eq!(claim_count(&sql, campaign).await, claims, "{campaign}");
        }
    }

    #[tokio::test]
    async fn a_batch_is_refused_until_earlier_events_are_written() {
        let (sql, _directory) = sql_with(&["one"]).await;
        let commits = GroupCommit::new(sql.clone());
        let id = "one".parse().unwrap();
        let (first, mut second) = (grant(1, 10), grant(2, 10));
        Arc::get_mut(&mut second).unwrap().entries[0].count = 2;
        let early = commits.commit(&id, Arc::clone(&second), false).await;
        assert!(matches!(early, Err(CommitError::Write(OutboxWriteError::OutOfOrder))), "{early:?}");
        assert_eq!(claim_count(&sql, "one").await, 0);
        drop(commits.commit(&id, first, false).await.unwrap());
        drop(commits.commit(&id, second, false).await.unwrap());
        assert_eq!(claim_count(&sql, "one").await, 2);
    }

    #[tokio::test]
    async fn the_batch_of_a_caller_that_gave_up_is_not_written() {
        let (sql, _directory) = sql_with(&["one", "two"]).await;
        let commits = GroupCommit::new(sql.clone());
        let ids = ["one", "two"].map(|id| id.parse::<CampaignId>().unwrap());
        let first = commits.turns.acquire().await.unwrap();
        let mut gone = Box::pin(commits.commit(&ids[0], grant(1, 10), false));
        assert!((&mut gone).now_or_never().is_none(), "it is queued");
        drop((gone, first));
        assert_eq!(commits.commit(&ids[1], grant(1, 10), false).await.unwrap().turn.unwrap().events, 1);
        assert_eq!((claim_count(&sql, "one").await, claim_count(&sql, "two").await), (0, 1));
    }

    #[tokio::test]
    async fn the_age_of_a_turn_is_that_of_its_oldest_entry() {
        let (sql, _directory) = sql_with(&["one"]).await;
        let commits = GroupCommit::new(sql);
        let turn = commits.commit(&"one".parse().unwrap(), grant(1, 10), false).await.unwrap().turn.unwrap();
        let at = |ms: i64| Timestamp::from_ms(1_750_000_000_000 + ms).unwrap();
        assert_eq!(turn.age(at(3000)), Duration::from_secs(3));
        assert_eq!(turn.age(at(-500)), Duration::ZERO, "the clock is behind");
    }
}
