//! Step points: named points before and after each call to Redis and SQL, where a test may pause or crash a
//! task, or lose a reply. Step points exist only in debug builds, which tests use; in a release build the
//! functions do nothing.
//!
//! A task without [`Steps`] stops at no point; this includes the tasks that core spawns itself.

#[cfg(debug_assertions)]
pub use self::scheduled::{SCHEDULED, Steps, after, before, is_scheduled};

#[cfg(debug_assertions)]
mod scheduled {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Poll;

    /// Controls a task at its step points.
    pub trait Steps: Send + Sync {
        /// Records that the task has reached the point `name`; it continues once [`Self::may_continue`]
        /// returns true.
        fn reached(&self, name: &'static str);
        /// Returns whether the task may continue. This is called at each poll, so a test that changes the
        /// answer must poll the task.
        fn may_continue(&self) -> bool;
        /// Returns whether the reply to this step is lost.
        fn loses_reply(&self) -> bool;
    }

    tokio::task_local! {
        /// The [`Steps`] of the current task.
        pub static SCHEDULED: Arc<dyn Steps>;
    }

    /// Marks a binary that contains step points.
    #[used]
    static MARK: [u8; 34] = *b"claimgate was built with: steps=on";

    /// Returns whether a test's schedule controls this task.
    pub fn is_scheduled() -> bool {
        SCHEDULED.try_with(|_| ()).is_ok()
    }

    /// Waits at a step point before a call to Redis (`redis:...`) or SQL (`sql:...`).
    pub async fn before(name: &'static str) {
        let Ok(steps) = SCHEDULED.try_with(Arc::clone) else { return };
        steps.reached(name);
        poll_fn(|context| {
            if steps.may_continue() {
                return Poll::Ready(());
            }
            // Wake the task: a stream of futures polls only futures that have been woken.
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Returns the `reply` of a call to Redis or SQL, or the error of a broken connection if the schedule
    /// loses the reply.
    pub fn after<T, E: From<std::io::Error>>(reply: Result<T, E>) -> Result<T, E> {
        match SCHEDULED.try_with(|steps| steps.loses_reply()) {
            Ok(true) => Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()),
            _ => reply,
        }
    }
}

/// Returns whether a test's schedule controls this task.
#[cfg(not(debug_assertions))]
#[inline]
pub fn is_scheduled() -> bool {
    false
}

/// Does nothing: step points exist only in debug builds.
#[cfg(not(debug_assertions))]
#[inline]
pub fn before(_name: &'static str) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Returns the `reply` of a call to Redis or SQL.
#[cfg(not(debug_assertions))]
#[inline]
pub fn after<T, E>(reply: Result<T, E>) -> Result<T, E> {
    reply
}
