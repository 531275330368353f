//! Rounds of a barrier that callers share, and what is asked of replicas. How a round goes is in `replicas`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use crate::domain::counters::Generation;
use crate::domain::replica_set::{NotInSet, ReplicaSet, Replication, ServerName};

/// A caller that was refused asks again within this time: the longest back-off of core's own work, twice.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Why what a server said may not be acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotReplicated {
    /// The server is not to be believed.
    #[error(transparent)]
    NotInSet(#[from] NotInSet),
    /// A replica that must have it did not confirm it in time.
    #[error("the replica {0} did not confirm it in time")]
    Behind(ServerName),
    /// Another core has changed the set of replicas.
    #[error("other replicas have to confirm it by now")]
    OldSet,
    /// The slot of the barrier's own key has moved to another node: the set needs another key.
    #[error("the barrier's slot has moved")]
    Moved,
    /// The connection on which it was said is not in use any more: the server may have lost it since.
    #[error("the server was replaced or has restarted meanwhile")]
    ServerReplaced,
    /// The server gave no answer that counts.
    #[error("the barrier failed: {0}")]
    Failed(Arc<str>),
}

impl NotReplicated {
    /// Whether it may be otherwise once the sets were looked at again.
    pub(super) fn may_pass_soon(&self) -> bool {
        match self {
            Self::Behind(_) | Self::OldSet | Self::Moved => true,
            Self::NotInSet(why) => matches!(why, NotInSet::NotAdopted | NotInSet::Unknown),
            Self::ServerReplaced | Self::Failed(_) => false,
        }
    }
}

/// What is asked of replicas, as last read from SQL; shared by all threads.
#[derive(Debug, Default)]
pub struct Required {
    now: RwLock<Arc<Replication>>,
    /// The same as in `now`: without replicas to wait for, nothing else is looked at.
    replicas_min: AtomicU32,
    outdated: Notify,
    /// Held while it is read and replaced: what was read earlier must not replace what was read later.
    reading: Mutex<()>,
}

impl Required {
    /// What is asked of replicas.
    pub fn now(&self) -> Arc<Replication> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces it by what `read` gives, if anything; returns that.
    ///
    /// # Errors
    /// Those of `read`: it stays as it was.
    pub async fn renew<E>(
        &self,
        read: impl Future<Output = Result<Option<Replication>, E>>,
    ) -> Result<Option<Replication>, E> {
        let _reading = self.reading.lock().await;
        let now = read.await?;
        if let Some(now) = &now {
            self.set(now.clone());
        }
        Ok(now)
    }

    fn set(&self, now: Replication) {
        self.replicas_min.store(now.replicas_min, Ordering::Release);
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
    }

    /// Whether any replica is waited for.
    pub fn any(&self) -> bool {
        self.replicas_min.load(Ordering::Acquire) > 0
    }

    /// Has the sets looked at again.
    pub(super) fn is_outdated(&self) {
        self.outdated.notify_one();
    }

    /// Waits until a server has refused it as outdated, or a primary has no set.
    pub async fn outdated(&self) {
        self.outdated.notified().await;
    }
}

/// The rounds of one server. A caller that finds no round under way leads one; the others wait for its outcome, and are let go
/// at once: one after another, as by a fair lock, they would keep the next round waiting.
#[derive(Debug)]
pub(super) struct Barrier {
    /// How many rounds have begun.
    begun: AtomicU64,
    /// Of the rounds alone, since `WAIT` blocks it; locked while there is a round.
    connection: Mutex<RoundConnection>,
    /// The last round that has ended. Told too when a leader is gone without an outcome.
    last: watch::Sender<Option<Round>>,
    /// Who waits, of all rounds.
    waits: std::sync::Mutex<Waits>,
}

/// Those who wait for a barrier.
#[derive(Debug, Default)]
struct Waits {
    callers: usize,
    /// When a caller was last let go, or the first of those who wait came.
    since: Option<Instant>,
    /// When a caller was last refused: its retry is waited for.
    refused: Option<Instant>,
}

impl Waits {
    fn is_any(&self, now: Instant) -> bool {
        self.callers > 0 || self.refused.is_some_and(|at| now.duration_since(at) < RETRY_MAX)
    }

    fn age(&self, now: Instant) -> Duration {
        self.since.filter(|_| self.is_any(now)).map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    fn begin(&mut self, now: Instant) {
        if !self.is_any(now) {
            self.since = Some(now);
        }
        self.callers += 1;
    }

    fn judge(&mut self, is_let_go: bool, now: Instant) {
        if is_let_go {
            (self.since, self.refused) = (Some(now), None);
        } else {
            self.refused = Some(now);
        }
    }

    fn leave(&mut self) {
        self.callers -= 1;
    }
}

/// A caller that waits for a barrier, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiting<'a>(&'a Barrier);

impl Waiting<'_> {
    /// Records whether the caller is let go.
    pub(super) fn ends(self, is_let_go: bool) {
        self.0.waits().judge(is_let_go, Instant::now());
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waits().leave();
    }
}

/// The connection of the rounds, and its generation.
pub(super) type RoundConnection = Option<(Generation, MultiplexedConnection)>;

/// A round that has ended.
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
            begun: AtomicU64::new(0),
            connection: Mutex::default(),
            last,
            waits: std::sync::Mutex::default(),
        }
    }
}

impl Barrier {
    /// The number of the last round that has begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Whether the last round was of `generation`, and has passed.
    pub(super) fn passes(&self, generation: Generation) -> bool {
        let last = self.last.borrow();
        last.as_ref().is_some_and(|last| last.generation == generation && last.outcome.is_ok())
    }

    /// Records that a caller waits.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waits().begin(Instant::now());
        Waiting(self)
    }

    /// How long no caller has been let go though some wait; one that was refused counts until it has asked again, for
    /// [`RETRY_MAX`] at most. Zero while none waits.
    pub(super) fn age(&self) -> Duration {
        self.waits().age(Instant::now())
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outcome of a round on a connection of `generation` that began after the round `after`, which is replaced by its
    /// number; without one, of a new `round`, which waits for the set of the primary `name`.
    pub(super) async fn join_round(
        &self,
        (name, generation): (&str, Generation),
        required: &Required,
        after: &mut u64,
        round: impl AsyncFnOnce(&mut RoundConnection, &ReplicaSet) -> Result<(), NotReplicated>,
    ) -> Result<(), NotReplicated> {
        let mut ended = self.last.subscribe();
        // Dropped in the opposite order: another round can be led before those who wait are told to look.
        let (mut ending, mut connection) = loop {
            // Older sets than the one in force pass no round, so whichever it waited for was right.
            if let Some(last) = &*ended.borrow_and_update()
                && last.number > *after
                && last.generation == generation
            {
                *after = last.number;
                return last.outcome.clone();
            }
            match self.connection.try_lock() {
                Ok(connection) => break (Ending { round: None, last: &self.last }, connection),
                Err(_) => drop(ended.changed().await),
            }
        };
        let replication = required.now();
        let set = replication.set_of(name)?;
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        *after = number;
        let outcome = round(&mut connection, set).await;
        ending.round = Some(Round { number, generation, outcome: outcome.clone() });
        outcome
    }
}

/// Tells those who wait that a round is over when it is dropped, whether or not the round came to an outcome.
struct Ending<'a> {
    round: Option<Round>,
    last: &'a watch::Sender<Option<Round>>,
}

impl Drop for Ending<'_> {
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

    fn one_primary() -> Required {
        let set = ReplicaSet {
            id: 1,
            primary: "p:1".to_owned(),
            members: BTreeSet::new(),
            joining: BTreeSet::new(),
            tag: "7".to_owned(),
            version: 1,
        };
        let required = Required::default();
        required.set(Replication { replicas_min: 0, sets: vec![set] });
        required
    }

    /// A caller that joins a round after `after`; the round that it leads, if it does, ends with `end`.
    async fn join(
        barrier: &Barrier,
        required: &Required,
        after: u64,
        end: Option<oneshot::Receiver<()>>,
    ) -> u64 {
        let mut after = after;
        let round = async |_: &mut RoundConnection, _: &ReplicaSet| {
            let _ = end.expect("a caller that leads no round").await;
            Ok(())
        };
        let asked = ("p:1", Generation::new(1));
        barrier.join_round(asked, required, &mut after, round).await.unwrap();
        after
    }

    #[tokio::test]
    async fn who_comes_while_a_round_is_under_way_has_the_next_one_and_all_have_the_same() {
        let (barrier, required) = (Barrier::default(), one_primary());
        let ((end_first, first), (end_second, second)) = (oneshot::channel(), oneshot::channel());
        let mut leader = pin!(join(&barrier, &required, 0, Some(first)));
        assert!(leader.as_mut().now_or_never().is_none());
        // Its answer was there before the round began: that round will do. The other's was not.
        let mut early = pin!(join(&barrier, &required, 0, None));
        let mut late = pin!(join(&barrier, &required, barrier.begun(), Some(second)));
        assert!(early.as_mut().now_or_never().is_none() && late.as_mut().now_or_never().is_none());
        end_first.send(()).unwrap();
        assert_eq!((leader.await, early.await), (1, 1));
        assert!(late.as_mut().now_or_never().is_none(), "a round that began too early was enough");
        end_second.send(()).unwrap();
        assert_eq!(late.await, 2);
    }

    #[test]
    fn its_age_rises_while_a_caller_waits_or_was_refused_just_now() {
        let (mut waits, began) = (Waits::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        let age = |waits: &Waits, seconds| waits.age(at(seconds)).as_secs();
        assert_eq!(age(&waits, 5), 0);
        waits.begin(at(5));
        waits.begin(at(6));
        assert_eq!(age(&waits, 7), 2, "since the first came");
        waits.judge(false, at(7));
        waits.leave();
        assert_eq!(age(&waits, 8), 3, "none was let go");
        waits.judge(false, at(8));
        waits.leave();
        // The retry comes while no other caller waits.
        waits.begin(at(9));
        assert_eq!(age(&waits, 10), 5);
        waits.judge(true, at(10));
        waits.leave();
        assert_eq!(age(&waits, 11), 0);
        waits.begin(at(20));
        waits.judge(false, at(21));
        waits.leave();
        assert_eq!((age(&waits, 30), age(&waits, 31)), (10, 0), "it did not ask again");
        // One that left without an outcome was not refused.
        waits.begin(at(40));
        waits.leave();
        assert_eq!(age(&waits, 41), 0);
    }

    #[tokio::test]
    async fn a_round_whose_leader_is_gone_is_followed_by_another() {
        let (barrier, required) = (Barrier::default(), one_primary());
        let ((_end_first, first), (end_second, second)) = (oneshot::channel(), oneshot::channel());
        let mut leader = Box::pin(join(&barrier, &required, 0, Some(first)));
        assert!(leader.as_mut().now_or_never().is_none());
        let mut waits = pin!(join(&barrier, &required, barrier.begun(), Some(second)));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(leader);
        end_second.send(()).unwrap();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(5), waits).await;
        assert_eq!(waited.expect("a round of its own"), 2);
    }
}
