//! Deadlines with the precision of a tick: one periodic check serves all waiters of a thread. Hardly any
//! deadline expires, and a runtime timer for each head and each decision took about 4 % of core's work per
//! claim.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::time::{Instant, sleep};

/// Maximum delay between a deadline's time and its expiry.
const TICK: Duration = Duration::from_millis(50);

/// The pending deadlines of one thread or runtime.
#[derive(Debug, Clone, Default)]
pub struct Deadlines(Arc<Mutex<Waiters>>);

#[derive(Debug, Default)]
struct Waiters {
    waiters: Slab<Waiter>,
    /// Whether a task is checking the deadlines; the task runs only while there are waiters.
    is_watched: bool,
}

#[derive(Debug)]
struct Waiter {
    due: Instant,
    waker: Waker,
}

impl Deadlines {
    /// Runs `work` for at most `limit`, give or take a [`TICK`]; returns `None` if it takes longer. `work` is
    /// pinned because a claim's future is large and moving it would copy it.
    pub async fn within<T>(&self, limit: Duration, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut deadline = pin!(self.at(Instant::now() + limit));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => deadline.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Returns a deadline that expires at `due`.
    pub fn at(&self, due: Instant) -> Deadline {
        Deadline { all: self.clone(), due, slot: None }
    }

    /// Adds a waiter; returns its slot.
    fn add(&self, due: Instant, waker: Waker) -> usize {
        let mut pending = self.0.lock();
        if !pending.is_watched {
            pending.is_watched = true;
            tokio::spawn(self.clone().watch());
        }
        pending.waiters.insert(Waiter { due, waker })
    }

    /// Wakes each waiter that is due, once a [`TICK`], while there are any.
    async fn watch(self) {
        loop {
            sleep(TICK).await;
            let (mut pending, now) = (self.0.lock(), Instant::now());
            if pending.waiters.is_empty() {
                pending.is_watched = false;
                return;
            }
            for (_, waiter) in &pending.waiters {
                if waiter.due <= now {
                    waiter.waker.wake_by_ref();
                }
            }
        }
    }
}

/// A future that completes at its deadline.
#[derive(Debug)]
pub struct Deadline {
    all: Deadlines,
    due: Instant,
    /// The slot among the waiters; `None` until the first poll.
    slot: Option<usize>,
}

impl Deadline {
    /// Moves the deadline to `due`.
    pub fn set_due(&mut self, due: Instant) {
        self.due = due;
        if let Some(slot) = self.slot
            && let Some(waiter) = self.all.0.lock().waiters.get_mut(slot)
        {
            waiter.due = due;
        }
    }
}

impl Future for Deadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(slot) = self.slot else {
            self.slot = Some(self.all.add(self.due, context.waker().clone()));
            return Poll::Pending;
        };
        if self.due <= Instant::now() {
            return Poll::Ready(());
        }
        if let Some(waiter) = self.all.0.lock().waiters.get_mut(slot) {
            waiter.waker.clone_from(context.waker());
        }
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.all.0.lock().waiters.try_remove(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt as _;
    use tokio::task::yield_now;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(120);
    const LATER: Duration = Duration::from_secs(60);

    async fn within<T>(deadlines: &Deadlines, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        deadlines.within(limit, pin!(work)).await
    }

    #[tokio::test]
    async fn each_task_is_aborted_at_its_own_deadline() {
        let (deadlines, began) = (Deadlines::default(), Instant::now());
        let works = async {
            sleep(TICK).await;
            7
        };
        let took = |done| (done, began.elapsed());
        let (done, (short, after_short), (long, after_long)) = tokio::join!(
            within(&deadlines, LATER, works),
            within(&deadlines, LIMIT, pending::<()>()).map(took),
            within(&deadlines, LIMIT * 3, pending::<()>()).map(took),
        );
        assert_eq!((done, short, long), (Some(7), None, None));
        assert!(after_short >= LIMIT && after_long >= LIMIT * 3, "{after_short:?}, {after_long:?}");
        tokio::select! {
            short = within(&deadlines, LIMIT, pending::<()>()) => assert_eq!(short, None),
            _ = within(&deadlines, LATER, pending::<()>()) => panic!("the earlier deadline was not observed"),
        }
    }

    #[tokio::test]
    async fn finished_and_dropped_waiters_are_removed() {
        let deadlines = Deadlines::default();
        within(&deadlines, LIMIT, sleep(TICK)).await;
        let (mut dropped, kept) = (Box::pin(deadlines.at(Instant::now())), Instant::now() + LIMIT * 50);
        let mut kept = pin!(deadlines.at(kept));
        assert!(dropped.as_mut().now_or_never().is_none() && kept.as_mut().now_or_never().is_none());
        assert_eq!(deadlines.0.lock().waiters.len(), 2);
        drop(dropped);
        assert_eq!(deadlines.0.lock().waiters.len(), 1);
        assert!(deadlines.0.lock().is_watched);
        kept.set(deadlines.at(Instant::now()));
        while deadlines.0.lock().is_watched {
            sleep(TICK).await;
        }
        // The next waiter restarts the periodic check.
        assert_eq!(within(&deadlines, LIMIT, pending::<()>()).await, None);
    }

    #[tokio::test]
    async fn a_deadline_wakes_the_last_task_that_polled_it() {
        let deadlines = Deadlines::default();
        let mut deadline = Box::pin(deadlines.at(Instant::now() + LIMIT));
        assert!(deadline.as_mut().now_or_never().is_none());
        // A different task polls the deadline from now on, with its own waker.
        let other = tokio::spawn(deadline);
        yield_now().await;
        other.await.unwrap();
    }

    #[tokio::test]
    async fn a_deadline_can_be_moved_either_way() {
        let (deadlines, began) = (Deadlines::default(), Instant::now());
        let mut sooner = Box::pin(deadlines.at(began + LATER));
        let mut later = Box::pin(deadlines.at(began));
        assert!(sooner.as_mut().now_or_never().is_none() && later.as_mut().now_or_never().is_none());
        sooner.set_due(began + LIMIT);
        later.set_due(began + LIMIT * 2);
        sooner.await;
        assert!(began.elapsed() >= LIMIT && began.elapsed() < LATER);
        later.await;
        assert!(began.elapsed() >= LIMIT * 2);
    }
}
