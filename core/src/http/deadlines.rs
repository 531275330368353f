//! Deadlines to the tick: one look at intervals serves all that wait on a thread. Hardly any deadline is ever met, and a timer of
//! the runtime's for each head and each decision took some 4 % of core's work on a claim.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use slab::Slab;
use tokio::time::{Instant, sleep};

/// A deadline is noticed this much too late at most.
const TICK: Duration = Duration::from_millis(50);

/// The deadlines of those who wait on one thread, or on one runtime.
#[derive(Debug, Clone, Default)]
pub struct Deadlines(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    waiters: Slab<Waiter>,
    /// Whether a task looks at them: only while there are any.
    is_watched: bool,
}

#[derive(Debug)]
struct Waiter {
    due: Instant,
    waker: Waker,
}

impl Deadlines {
    /// What `work` comes to within `limit`, or [`TICK`] more; `None` when it takes longer. It comes pinned: a claim's future is
    /// large, and moving it would copy it.
    pub async fn within<T>(&self, limit: Duration, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut deadline = pin!(self.at(Instant::now() + limit));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => deadline.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    fn at(&self, due: Instant) -> Deadline {
        Deadline { all: self.clone(), due, place: None }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a waiter; returns its place.
    fn add(&self, due: Instant, waker: Waker) -> usize {
        let mut waiting = self.lock();
        if !waiting.is_watched {
            waiting.is_watched = true;
            tokio::spawn(self.clone().watch());
        }
        waiting.waiters.insert(Waiter { due, waker })
    }

    /// Has each waiter that is due polled, at intervals, while there are any.
    async fn watch(self) {
        loop {
            sleep(TICK).await;
            let (mut waiting, now) = (self.lock(), Instant::now());
            if waiting.waiters.is_empty() {
                waiting.is_watched = false;
                return;
            }
            for (_, waiter) in &waiting.waiters {
                if waiter.due <= now {
                    waiter.waker.wake_by_ref();
                }
            }
        }
    }
}

/// Ready once its time has come.
#[derive(Debug)]
struct Deadline {
    all: Deadlines,
    due: Instant,
    /// Its place among those that wait, once it was asked.
    place: Option<usize>,
}

impl Future for Deadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(place) = self.place else {
            self.place = Some(self.all.add(self.due, context.waker().clone()));
            return Poll::Pending;
        };
        if self.due <= Instant::now() {
            return Poll::Ready(());
        }
        if let Some(waiter) = self.all.lock().waiters.get_mut(place) {
            waiter.waker.clone_from(context.waker());
        }
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.all.lock().waiters.try_remove(place);
        }
    }
}

impl Sleep for Deadline {}

/// For the time that a request's head may take.
impl Timer for Deadlines {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.at(Instant::now() + duration))
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.at(deadline.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt as _;
    use tokio::task::yield_now;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(120);

    async fn within<T>(deadlines: &Deadlines, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        deadlines.within(limit, pin!(work)).await
    }

    #[tokio::test]
    async fn work_is_waited_for_until_its_deadline_and_each_has_its_own() {
        let (deadlines, began) = (Deadlines::default(), Instant::now());
        let works = async {
            sleep(TICK).await;
            7
        };
        let took = |done| (done, began.elapsed());
        let (done, (short, after_short), (long, after_long)) = tokio::join!(
            within(&deadlines, LIMIT * 50, works),
            within(&deadlines, LIMIT, pending::<()>()).map(took),
            within(&deadlines, LIMIT * 3, pending::<()>()).map(took),
        );
        assert_eq!((done, short, long), (Some(7), None, None));
        assert!(after_short >= LIMIT && after_long >= LIMIT * 3, "{after_short:?}, {after_long:?}");
        assert!(after_short < after_long);
    }

    #[tokio::test]
    async fn nothing_is_kept_of_those_who_are_served_or_leave() {
        let deadlines = Deadlines::default();
        within(&deadlines, LIMIT, sleep(TICK)).await;
        let (mut leaves, stays) = (Box::pin(deadlines.at(Instant::now())), Instant::now() + LIMIT * 50);
        let mut stays = pin!(deadlines.at(stays));
        assert!(leaves.as_mut().now_or_never().is_none() && stays.as_mut().now_or_never().is_none());
        assert_eq!(deadlines.lock().waiters.len(), 2);
        drop(leaves);
        assert_eq!(deadlines.lock().waiters.len(), 1);
        assert!(deadlines.lock().is_watched);
        stays.set(deadlines.at(Instant::now()));
        while deadlines.lock().is_watched {
            sleep(TICK).await;
        }
        // And looked at again for the next.
        assert_eq!(within(&deadlines, LIMIT, pending::<()>()).await, None);
    }

    #[tokio::test]
    async fn a_deadline_wakes_who_waits_for_it_last() {
        let deadlines = Deadlines::default();
        let mut deadline = Box::pin(deadlines.at(Instant::now() + LIMIT));
        assert!(deadline.as_mut().now_or_never().is_none());
        // Handed to another task, whose waker it is asked with from then on.
        let other = tokio::spawn(deadline);
        yield_now().await;
        other.await.unwrap();
    }

    #[tokio::test]
    async fn the_head_of_a_request_has_its_time() {
        let (deadlines, began) = (Deadlines::default(), Instant::now());
        Timer::sleep(&deadlines, LIMIT).await;
        deadlines.sleep_until((Instant::now() + LIMIT).into()).await;
        assert!(began.elapsed() >= LIMIT * 2);
    }
}
