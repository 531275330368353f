//! Barrier rounds that callers share, and the replicas that must confirm each round. `replicas` runs one
//! round.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use crate::domain::counters::Generation;
use crate::domain::replica_set::{NotInSet, ReplicaSet, Replication, ServerName};

/// Maximum time until a caller whose wait failed retries: twice the longest backoff in core.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The reason why a server's reply may not be acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotReplicated {
    /// The server is not a primary that core may trust.
    #[error(transparent)]
    NotInSet(#[from] NotInSet),
    /// A required replica did not confirm the write in time.
    #[error("the replica {0} did not confirm the write in time")]
    Behind(ServerName),
    /// Another core has changed the replica set.
    #[error("the replica set has changed")]
    OutdatedSet,
    /// The slot of the barrier's key has moved to another node: the set needs a new key.
    #[error("the barrier's slot has moved")]
    SlotMoved,
    /// The reply's connection is no longer current: the server may have lost the write since.
    #[error("the server was replaced or restarted in the meantime")]
    ServerReplaced,
    /// The server did not reply, or replied with an error.
    #[error("the barrier failed: {0}")]
    Failed(Arc<str>),
}

impl NotReplicated {
    /// Returns whether a retry may succeed once the replica sets are refreshed.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::Behind(_) | Self::OutdatedSet | Self::SlotMoved => true,
            Self::NotInSet(why) => matches!(why, NotInSet::NotAdopted | NotInSet::Unknown),
            Self::ServerReplaced | Self::Failed(_) => false,
        }
    }
}

/// The replicas required to confirm writes, as last read from SQL; shared by all threads.
#[derive(Debug, Default)]
pub struct RequiredReplicas {
    current: RwLock<Arc<Replication>>,
    /// Copy of the value in `current`, so that installations without required replicas read only this.
    replicas_min: AtomicU32,
    refresh_requested: Notify,
    /// Held during a read and its update, so that an older read never overwrites a newer one.
    refreshing: Mutex<()>,
}

impl RequiredReplicas {
    /// Returns the current replication settings and replica sets.
    pub fn current(&self) -> Arc<Replication> {
        Arc::clone(&self.current.read())
    }

    /// Stores the result of `read`, if there is one, and returns it.
    ///
    /// # Errors
    /// The errors of `read`; the stored value is then unchanged.
    pub async fn refresh_with<E>(
        &self,
        read: impl Future<Output = Result<Option<Replication>, E>>,
    ) -> Result<Option<Replication>, E> {
        let _refreshing = self.refreshing.lock().await;
        let replication = read.await?;
        if let Some(replication) = &replication {
            self.set(replication.clone());
        }
        Ok(replication)
    }

    fn set(&self, replication: Replication) {
        self.replicas_min.store(replication.replicas_min, Ordering::Release);
        *self.current.write() = Arc::new(replication);
    }

    /// Returns whether writes have to be confirmed by any replica.
    pub fn any(&self) -> bool {
        self.replicas_min.load(Ordering::Acquire) > 0
    }

    /// Requests a refresh of the replica sets.
    pub(super) fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Waits until a barrier has failed in a way that a refresh of the replica sets may fix.
    pub async fn refresh_requested(&self) {
        self.refresh_requested.notified().await;
    }
}

/// The barrier rounds of one server. A caller that finds no round in progress leads a new round; other
/// callers wait for the outcome of that round. All waiting callers are released together: a fair lock would
/// release them one by one, and delay the next round.
#[derive(Debug)]
pub(super) struct Barrier {
    /// Number of rounds started.
    started: AtomicU64,
    /// Connection used only for rounds, since `WAIT` blocks it; locked during a round.
    connection: Mutex<RoundConnection>,
    /// The last completed round. Also notified when a leader is dropped without an outcome.
    last: watch::Sender<Option<Round>>,
    /// The callers waiting for any round.
    waiters: parking_lot::Mutex<Waiters>,
}

/// The callers waiting for a barrier.
#[derive(Debug, Default)]
struct Waiters {
    callers: usize,
    /// When a caller was last released, or when the first of the callers waiting arrived.
    since: Option<Instant>,
    /// When a wait last failed: a retry is expected.
    failed: Option<Instant>,
}

impl Waiters {
    fn is_any(&self, now: Instant) -> bool {
        self.callers > 0 || self.failed.is_some_and(|at| now.duration_since(at) < RETRY_MAX)
    }

    fn age(&self, now: Instant) -> Duration {
        self.since.filter(|_| self.is_any(now)).map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    fn enter(&mut self, now: Instant) {
        if !self.is_any(now) {
            self.since = Some(now);
        }
        self.callers += 1;
    }

    fn record(&mut self, is_released: bool, now: Instant) {
        if is_released {
            (self.since, self.failed) = (Some(now), None);
        } else {
            self.failed = Some(now);
        }
    }

    fn leave(&mut self) {
        self.callers -= 1;
    }
}

/// Counts a caller as waiting for the barrier until dropped.
#[derive(Debug)]
pub(super) struct WaiterGuard<'a>(&'a Barrier);

impl WaiterGuard<'_> {
    /// Records whether the caller is released or its wait failed.
    pub(super) fn finish(self, is_released: bool) {
        self.0.waiters.lock().record(is_released, Instant::now());
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.waiters.lock().leave();
    }
}

/// The connection for rounds and its generation.
pub(super) type RoundConnection = Option<(Generation, MultiplexedConnection)>;

/// A completed round.
#[derive(Debug)]
struct Round {
    number: u64,
    generation: Generation,
    outcome: Result<(), NotReplicated>,
}

impl Default for Barrier {
    fn default() -> Self {
        let last = watch::Sender::new(None);
        Self {
            started: AtomicU64::new(0),
            connection: Mutex::default(),
            last,
            waiters: parking_lot::Mutex::default(),
        }
    }
}

impl Barrier {
    /// Returns the number of the last round started.
    pub(super) fn started(&self) -> u64 {
        self.started.load(Ordering::Acquire)
    }

    /// Returns whether the last completed round was of `generation` and succeeded.
    pub(super) fn passed(&self, generation: Generation) -> bool {
        let last = self.last.borrow();
        last.as_ref().is_some_and(|last| last.generation == generation && last.outcome.is_ok())
    }

    /// Counts a caller as waiting.
    pub(super) fn enter(&self) -> WaiterGuard<'_> {
        self.waiters.lock().enter(Instant::now());
        WaiterGuard(self)
    }

    /// Returns the time since a caller was last released, zero while no caller waits. A caller whose wait
    /// failed counts as waiting until it retries, at most for [`RETRY_MAX`].
    pub(super) fn age(&self) -> Duration {
        self.waiters.lock().age(Instant::now())
    }

    /// Returns the outcome of a round of `generation` that started after the round `after`. If there is none,
    /// leads a new `round` with the replica set of the primary `name`. Sets `after` to the number of the
    /// returned round.
    pub(super) async fn join_round(
        &self,
        (name, generation): (&str, Generation),
        required: &RequiredReplicas,
        after: &mut u64,
        round: impl AsyncFnOnce(&mut RoundConnection, &ReplicaSet) -> Result<(), NotReplicated>,
    ) -> Result<(), NotReplicated> {
        let mut ended = self.last.subscribe();
        // Dropped in reverse order: the connection is free again before the waiters are notified.
        let (mut ending, mut connection) = loop {
            // A round with an outdated set never succeeds, so a successful round waited for the right set.
            if let Some(last) = &*ended.borrow_and_update()
                && last.number > *after
                && last.generation == generation
            {
                *after = last.number;
                return last.outcome.clone();
            }
            match self.connection.try_lock() {
                Ok(connection) => break (EndOnDrop { round: None, last: &self.last }, connection),
                Err(_) => drop(ended.changed().await),
            }
        };
        let replication = required.current();
        let set = replication.set_of(name)?;
        let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        *after = number;
        let outcome = round(&mut connection, set).await;
        ending.round = Some(Round { number, generation, outcome: outcome.clone() });
        outcome
    }
}

/// Publishes the end of a round when dropped, with or without an outcome.
struct EndOnDrop<'a> {
    round: Option<Round>,
    last: &'a watch::Sender<Option<Round>>,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.last.send_modify(|last| {
            let newer = |round: &Round| last.as_ref().is_none_or(|last| last.number < round.number);
            if let Some(round) = self.round.take().filter(newer) {
                *last = Some(round);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::pin::pin;

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    fn one_primary() -> RequiredReplicas {
        let set = ReplicaSet {
            id: 1,
            primary: "p:1".to_owned(),
            members: BTreeSet::new(),
            joining: BTreeSet::new(),
            tag: "7".to_owned(),
            version: 1,
        };
        let required = RequiredReplicas::default();
        required.set(Replication { replicas_min: 0, sets: vec![set] });
        required
    }

    /// Joins a round that started after the round `after`, or leads a round that ends when `end` fires.
    async fn join(
        barrier: &Barrier,
        required: &RequiredReplicas,
        after: u64,
        end: Option<oneshot::Receiver<()>>,
    ) -> u64 {
        let mut after = after;
        let round = async |_: &mut RoundConnection, _: &ReplicaSet| {
            let _ = end.expect("this caller must not lead a round").await;
            Ok(())
        };
        let server = ("p:1", Generation::new(1));
        barrier.join_round(server, required, &mut after, round).await.unwrap();
        after
    }

    #[tokio::test]
    async fn callers_share_the_first_round_after_their_reply() {
        let (barrier, required) = (Barrier::default(), one_primary());
        let ((end_first, first), (end_second, second)) = (oneshot::channel(), oneshot::channel());
        let mut leader = pin!(join(&barrier, &required, 0, Some(first)));
        assert!(leader.as_mut().now_or_never().is_none());
        // The reply of `early` came before the round started, so that round covers it; the reply of `late`
        // came afterwards.
        let mut early = pin!(join(&barrier, &required, 0, None));
        let mut late = pin!(join(&barrier, &required, barrier.started(), Some(second)));
        assert!(early.as_mut().now_or_never().is_none() && late.as_mut().now_or_never().is_none());
        end_first.send(()).unwrap();
        assert_eq!((leader.await, early.await), (1, 1));
        assert!(late.as_mut().now_or_never().is_none(), "released by a round that started too early");
        end_second.send(()).unwrap();
        assert_eq!(late.await, 2);
    }

    #[test]
    fn age_rises_while_a_caller_waits_or_may_retry() {
        let (mut waiters, start) = (Waiters::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let age = |waiters: &Waiters, seconds| waiters.age(at(seconds)).as_secs();
        assert_eq!(age(&waiters, 5), 0);
        waiters.enter(at(5));
        waiters.enter(at(6));
        assert_eq!(age(&waiters, 7), 2, "since the first caller arrived");
        waiters.record(false, at(7));
        waiters.leave();
        assert_eq!(age(&waiters, 8), 3, "no caller was released");
        waiters.record(false, at(8));
        waiters.leave();
        // The retry arrives while no other caller waits.
        waiters.enter(at(9));
        assert_eq!(age(&waiters, 10), 5);
        waiters.record(true, at(10));
        waiters.leave();
        assert_eq!(age(&waiters, 11), 0);
        waiters.enter(at(20));
        waiters.record(false, at(21));
        waiters.leave();
        assert_eq!((age(&waiters, 30), age(&waiters, 31)), (10, 0), "no retry arrived");
        // A caller that leaves without an outcome does not count as failed.
        waiters.enter(at(40));
        waiters.leave();
        assert_eq!(age(&waiters, 41), 0);
    }

    #[tokio::test]
    async fn a_dropped_leader_is_followed_by_another_round() {
        let (barrier, required) = (Barrier::default(), one_primary());
        let ((_end_first, first), (end_second, second)) = (oneshot::channel(), oneshot::channel());
        let mut leader = Box::pin(join(&barrier, &required, 0, Some(first)));
        assert!(leader.as_mut().now_or_never().is_none());
        let mut waiter = pin!(join(&barrier, &required, barrier.started(), Some(second)));
        assert!(waiter.as_mut().now_or_never().is_none());
        drop(leader);
        end_second.send(()).unwrap();
        let round = tokio::time::timeout(std::time::Duration::from_secs(60), waiter).await;
        assert_eq!(round.expect("the waiter leads a round"), 2);
    }
}
