//! Step points: names before and after every call to Redis and SQL, at which a test may hold a protocol up, let it
//! crash, or lose a reply. They exist only in debug builds, which tests use; in a release build the functions do nothing.
//!
//! A task without [`Steps`] does not stop at any point; this includes the tasks that core spawns itself.

#[cfg(debug_assertions)]
pub use self::scheduled::{SCHEDULED, Steps, after, before, is_scheduled};

#[cfg(debug_assertions)]
mod scheduled {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Poll;

    /// What becomes of a task at its step points.
    pub trait Steps: Send + Sync {
        /// The task has come to the point `name`; it goes on once [`Self::may_go`].
        fn reached(&self, name: &'static str);
        /// Whether it may go on. Asked at each poll; who changes the answer polls.
        fn may_go(&self) -> bool;
        /// Whether the reply to this step is lost on its way.
        fn loses_reply(&self) -> bool;
    }

    tokio::task_local! {
        /// The control over the step points of the current task.
        pub static SCHEDULED: Arc<dyn Steps>;
    }

    /// A binary with this in it has step points.
    #[used]
    static MARK: [u8; 34] = *b"claimgate was built with: steps=on";

    /// Whether a test's schedule decides when this task goes on.
    pub fn is_scheduled() -> bool {
        SCHEDULED.try_with(|_| ()).is_ok()
    }

    /// Before a call to Redis (`redis:...`) or SQL (`sql:...`).
    pub async fn before(name: &'static str) {
        let Ok(steps) = SCHEDULED.try_with(Arc::clone) else { return };
        steps.reached(name);
        poll_fn(|context| {
            if steps.may_go() {
                return Poll::Ready(());
            }
            // A stream of futures polls only those that were woken.
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// After it: the reply, or, where the schedule loses it, what a broken connection gives.
    ///
    /// # Errors
    /// `reply`'s own.
    pub fn after<T, E: From<std::io::Error>>(reply: Result<T, E>) -> Result<T, E> {
        match SCHEDULED.try_with(|steps| steps.loses_reply()) {
            Ok(true) => Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()),
            _ => reply,
        }
    }
}

/// Whether a test's schedule decides when this task goes on.
#[cfg(not(debug_assertions))]
#[inline]
pub fn is_scheduled() -> bool {
    false
}

/// Before a call to Redis (`redis:...`) or SQL (`sql:...`).
#[cfg(not(debug_assertions))]
#[inline]
pub fn before(_name: &'static str) -> std::future::Ready<()> {
    std::future::ready(())
}

/// After it: the reply.
///
/// # Errors
/// `reply`'s own.
#[cfg(not(debug_assertions))]
#[inline]
pub fn after<T, E>(reply: Result<T, E>) -> Result<T, E> {
    reply
}
