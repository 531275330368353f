//! Group commit: where the database has one writer, the batches of campaigns that wait for it are committed together. With
//! many campaigns of few claims each, most of a transaction's cost is its own and the disk's, not its rows'.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use claimgate_shared::{CampaignId, Timestamp};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::store::redis::outbox::OutboxBatch;
use crate::store::sql::{Batch, EntryOrder, OutboxWriteError, SqlStore};

/// The longest a transaction may take.
const COMMIT_MAX: Duration = Duration::from_secs(10);
/// Batches are added to a group that has fewer events than this, some 200 ms of SQLite. A batch has as many at most.
const EVENTS_MAX: usize = 32_768;

/// Why a batch was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// SQL did not write it.
    #[error(transparent)]
    Write(#[from] OutboxWriteError),
    /// SQL did not commit in time: whether it has is unknown.
    #[error("SQL did not commit within {} s", COMMIT_MAX.as_secs())]
    Slow,
    /// The transaction that it shared with another campaign's batch failed.
    #[error("the transaction that it shared with other campaigns failed")]
    Shared,
}

impl CommitError {
    /// Whether it may be one batch's fault: the others can be written without it.
    fn is_of_one_batch(&self) -> bool {
        use OutboxWriteError::{Constraint, NoCampaign, OutOfOrder};
        matches!(self, Self::Write(Constraint(_) | NoCampaign | OutOfOrder))
    }
}

/// Commits batches, together where that does not make one campaign wait for another's row.
#[derive(Debug)]
pub struct GroupCommit {
    sql: SqlStore,
    waiting: Mutex<VecDeque<Waiting>>,
    /// As many transactions at once as SQL can take: one that hangs must not hold up the others.
    turns: Semaphore,
    /// The most campaigns in one transaction: PostgreSQL locks rows, of which one may be held by another core.
    campaigns_max: usize,
}

#[derive(Debug)]
struct Waiting {
    campaign: CampaignId,
    batch: Arc<OutboxBatch>,
    done: oneshot::Sender<Result<(), CommitError>>,
}

/// The writer's place, and what was written by it.
#[derive(Debug)]
pub struct Turn<'a> {
    _permit: SemaphorePermit<'a>,
    /// When the first transaction began.
    pub began: Instant,
    /// Events written.
    pub events: usize,
    /// Batches written, of one campaign each.
    pub batches: u32,
    oldest: Option<Timestamp>,
}

impl Turn<'_> {
    /// For how long the oldest entry that was written had waited at `now`; zero by a clock that is behind.
    pub fn age(&self, now: Timestamp) -> Duration {
        let ms = self.oldest.map_or(0, |oldest| now.as_ms() - oldest.as_ms());
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }
}

impl GroupCommit {
    /// Commits to `sql`.
    pub fn new(sql: SqlStore) -> Self {
        let turns = Semaphore::new(sql.writers_max());
        let campaigns_max = if sql.is_sqlite() { usize::MAX } else { 1 };
        Self { sql, waiting: Mutex::default(), turns, campaigns_max }
    }

    /// Commits a campaign's batch; returns the turn of a caller who has written it, and perhaps others', itself. A campaign
    /// may wait with one batch at a time.
    ///
    /// # Errors
    /// Those of [`CommitError`]. The same batch can be committed again.
    pub async fn commit(
        &self,
        campaign: &CampaignId,
        batch: Arc<OutboxBatch>,
    ) -> Result<Option<Turn<'_>>, CommitError> {
        let (done, mut mine) = oneshot::channel();
        self.waiting().push_back(Waiting { campaign: campaign.clone(), batch, done });
        // The semaphore is never closed.
        let permit = self.turns.acquire().await.map_err(|_| CommitError::Shared)?;
        let mut turn = Turn { _permit: permit, began: Instant::now(), events: 0, batches: 0, oldest: None };
        loop {
            match mine.try_recv() {
                Ok(written) => return written.map(|()| (turn.events > 0).then_some(turn)),
                Err(TryRecvError::Closed) => return Err(CommitError::Shared),
                Err(TryRecvError::Empty) => {}
            }
            let group = self.take_group();
            if group.is_empty() {
                // Another turn has it.
                return mine.await.unwrap_or(Err(CommitError::Shared)).map(|()| None);
            }
            turn.events += group.iter().map(|waiting| waiting.batch.events()).sum::<usize>();
            turn.batches += u32::try_from(group.len()).unwrap_or(u32::MAX);
            turn.oldest = group.iter().filter_map(|waiting| waiting.batch.oldest()).chain(turn.oldest).min();
            self.write(group).await;
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The batches that have waited longest, as many as one transaction takes.
    fn take_group(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting();
        // A caller that has gone does not know whether its batch was written: it is read again.
        waiting.retain(|waiting| !waiting.done.is_closed());
        let mut group: Vec<Waiting> = Vec::new();
        let mut events = 0;
        while group.len() < self.campaigns_max && events < EVENTS_MAX {
            let Some(next) = waiting.pop_front() else { break };
            events += next.batch.events();
            group.push(next);
        }
        group
    }

    async fn write(&self, group: Vec<Waiting>) {
        let batches: Vec<Batch<'_>> =
            group.iter().map(|waiting| (&waiting.campaign, &waiting.batch.entries[..])).collect();
        let mut written = self.transaction(&batches).await;
        let alone = group.len() > 1 && written.as_ref().is_err_and(CommitError::is_of_one_batch);
        for waiting in group {
            let of_this = if alone {
                self.transaction(&[(&waiting.campaign, &waiting.batch.entries)]).await
            } else if written.is_ok() {
                Ok(())
            } else {
                // The first is told why.
                std::mem::replace(&mut written, Err(CommitError::Shared))
            };
            // A caller that has gone reads its batch again.
            let _ = waiting.done.send(of_this);
        }
    }

    async fn transaction(&self, batches: &[Batch<'_>]) -> Result<(), CommitError> {
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

    /// SQL with these campaigns.
    async fn sql_with(campaigns: &[&str]) -> (SqlStore, TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let sql = SqlStore::open(&sqlite_url(&directory.path().join("claimgate.sqlite"))).await.unwrap();
        for id in campaigns {
            let body =
                format!(r#"{{"id":"{id}","name":"{id}","starts_at":"2020-01-01T00:00:00Z","limits":{{}}}}"#);
            let campaign = NewCampaign::parse(body.as_bytes(), clock::now()).unwrap();
            sql.create(&campaign, Change { who: "test", what: "create", at: clock::now() }).await.unwrap();
        }
        (sql, directory)
    }

    /// One grant as the `place`th claim of a campaign, within `total`.
    fn grant(place: u64, total: u64) -> Arc<OutboxBatch> {
        let at = Timestamp::from_ms(1_750_000_000_000).unwrap();
        let claim = ClaimRecord {
            digest: [7; 16],
            status: ClaimStatus::Granted,
            revision: 1,
            quantity: 1,
            sequence: place,
            claimed_at: at,
            expires_at: None,
            day: 20_000,
        };
        let event = ClaimEvent {
            user: format!("user{place}").parse().unwrap(),
            claim,
            updated_at: at,
            limit_at_decision: Some(total),
            cumulative_taken: Some(place),
        };
        let entry = OutboxEntry {
            id: format!("1-{place}"),
            epoch: Epoch::default(),
            // The campaign's first event, whatever place it was given.
            count: 1,
            events: vec![event],
            by: None,
            trace: None,
        };
        Arc::new(OutboxBatch { entries: vec![entry], malformed: vec![] })
    }

    async fn claims_of(sql: &SqlStore, campaign: &str) -> u64 {
        sql.totals(&campaign.parse().unwrap()).await.unwrap().claims
    }

    /// Commits the batches of campaigns that all wait at once; who got a turn, and what each was told.
    async fn commit_at_once(
        commits: &GroupCommit,
        batches: &[(&str, Arc<OutboxBatch>)],
    ) -> Vec<Result<usize, CommitError>> {
        let all = batches.iter().map(|(campaign, batch)| async move {
            let committed = commits.commit(&campaign.parse().unwrap(), Arc::clone(batch)).await;
            committed.map(|turn| turn.map_or(0, |turn| turn.events))
        });
        let another = commits.turns.acquire().await;
        let mut all = Box::pin(join_all(all));
        assert!((&mut all).now_or_never().is_none(), "they wait for their turn");
        drop(another);
        all.await
    }

    #[tokio::test]
    async fn campaigns_that_wait_are_committed_by_the_first_of_them() {
        let (sql, _directory) = sql_with(&["one", "two", "three"]).await;
        let commits = GroupCommit::new(sql.clone());
        let batches = ["one", "two", "three"].map(|campaign| (campaign, grant(1, 10)));
        let told = commit_at_once(&commits, &batches).await;
        assert!(matches!(told[..], [Ok(3), Ok(0), Ok(0)]), "{told:?}");
        for campaign in ["one", "two", "three"] {
            assert_eq!(claims_of(&sql, campaign).await, 1);
        }
    }

    #[tokio::test]
    async fn a_batch_that_sql_refuses_keeps_none_of_the_others() {
        let (sql, _directory) = sql_with(&["one", "two", "three"]).await;
        let commits = GroupCommit::new(sql.clone());
        let batches =
            [("one", grant(1, 10)), ("two", grant(11, 10)), ("none", grant(1, 10)), ("three", grant(1, 10))];
        let told = commit_at_once(&commits, &batches).await;
        assert!(matches!(told[0], Ok(4)) && matches!(told[3], Ok(0)), "{told:?}");
        assert!(matches!(told[1], Err(CommitError::Write(OutboxWriteError::Constraint(_)))), "{told:?}");
        assert!(matches!(told[2], Err(CommitError::Write(OutboxWriteError::NoCampaign))), "{told:?}");
        for (campaign, claims) in [("one", 1), ("two", 0), ("three", 1)] {
            assert_eq!(claims_of(&sql, campaign).await, claims, "{campaign}");
        }
    }

    #[tokio::test]
    async fn a_batch_waits_for_the_events_before_it() {
        let (sql, _directory) = sql_with(&["one"]).await;
        let commits = GroupCommit::new(sql.clone());
        let id = "one".parse().unwrap();
        let (first, mut second) = (grant(1, 10), grant(2, 10));
        Arc::get_mut(&mut second).unwrap().entries[0].count = 2;
        let early = commits.commit(&id, Arc::clone(&second)).await;
        assert!(matches!(early, Err(CommitError::Write(OutboxWriteError::OutOfOrder))), "{early:?}");
        assert_eq!(claims_of(&sql, "one").await, 0);
        drop(commits.commit(&id, first).await.unwrap());
        drop(commits.commit(&id, second).await.unwrap());
        assert_eq!(claims_of(&sql, "one").await, 2);
    }

    #[tokio::test]
    async fn what_a_caller_that_has_gone_was_waiting_with_is_not_written() {
        let (sql, _directory) = sql_with(&["one", "two"]).await;
        let commits = GroupCommit::new(sql.clone());
        let ids = ["one", "two"].map(|id| id.parse::<CampaignId>().unwrap());
        let first = commits.turns.acquire().await.unwrap();
        let mut gone = Box::pin(commits.commit(&ids[0], grant(1, 10)));
        assert!((&mut gone).now_or_never().is_none(), "it waits for its turn");
        drop((gone, first));
        assert_eq!(commits.commit(&ids[1], grant(1, 10)).await.unwrap().unwrap().events, 1);
        assert_eq!((claims_of(&sql, "one").await, claims_of(&sql, "two").await), (0, 1));
    }

    #[tokio::test]
    async fn a_turn_is_as_old_as_the_oldest_entry_written() {
        let (sql, _directory) = sql_with(&["one"]).await;
        let commits = GroupCommit::new(sql);
        let turn = commits.commit(&"one".parse().unwrap(), grant(1, 10)).await.unwrap().unwrap();
        let at = |ms: i64| Timestamp::from_ms(1_750_000_000_000 + ms).unwrap();
        assert_eq!(turn.age(at(3000)), Duration::from_secs(3));
        assert_eq!(turn.age(at(-500)), Duration::ZERO, "by a clock that is behind");
    }
}
