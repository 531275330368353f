//! Deadlines to the tick. A timer of the runtime's for each head and each decision costs more than reading a claim does, and
//! hardly one ever fires: here one look at intervals serves all that wait on a thread.

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
    /// What `work` comes to within `limit`, or [`TICK`] more; `None` when it takes longer. It comes pinned, since moving it
    /// costs.
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

    /// Adds a waiter, and has them looked at.
    fn add(&self, due: Instant, waker: Waker) -> usize {
        let mut waiting = self.lock();
        if !waiting.is_watched {
            waiting.is_watched = true;
            tokio::spawn(self.clone().watch());
        }
        waiting.waiters.insert(Waiter { due, waker })
    }

    /// Wakes who is due, at each tick, until nobody waits.
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

    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    async fn ends_after(wait: Duration) -> u32 {
        sleep(wait).await;
        7
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_waited_for_until_its_deadline() {
        let (deadlines, began) = (Deadlines::default(), Instant::now());
        assert_eq!(deadlines.within(LIMIT, pin!(ends_after(Duration::from_millis(900)))).await, Some(7));
        assert_eq!(began.elapsed(), Duration::from_millis(900));
        let (first, second) = tokio::join!(
            deadlines.within(LIMIT, pin!(ends_after(LIMIT * 2))),
            deadlines.within(LIMIT / 2, pin!(pending::<()>())),
        );
        assert_eq!((first, second), (None, None));
        let took = began.elapsed() - Duration::from_millis(900);
        assert!(took >= LIMIT && took <= LIMIT + TICK, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_those_who_are_served_or_leave() {
        let deadlines = Deadlines::default();
        deadlines.within(LIMIT, pin!(ends_after(TICK))).await;
        let leaves = timeout(TICK, deadlines.within(LIMIT, pin!(pending::<()>()))).await;
        assert!(leaves.is_err());
        assert!(deadlines.lock().waiters.is_empty());
        sleep(TICK * 2).await;
        assert!(!deadlines.lock().is_watched, "looked at though nobody waits");
        // And begun again for the next.
        assert_eq!(deadlines.within(LIMIT, pin!(pending::<()>())).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_head_of_a_request_has_its_time() {
        let (deadlines, began) = (Deadlines::default(), Instant::now());
        Timer::sleep(&deadlines, LIMIT).await;
        deadlines.sleep_until((Instant::now() + LIMIT).into()).await;
        let took = began.elapsed();
        assert!(took >= LIMIT * 2 && took <= (LIMIT + TICK) * 2, "{took:?}");
    }
}
