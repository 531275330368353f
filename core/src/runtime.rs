//! Runtimes that keep working when the system starts no further threads.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// The maximum number of threads for blocking work in each runtime, since they are never released.
const BLOCKING_THREADS_MAX: usize = 64;

/// Builds a runtime that always has a thread for blocking work, such as the lookup of a name. Without one, a
/// lookup would panic while the system has no thread left, and end the task that needs it.
///
/// # Errors
/// If the system has no descriptor left.
///
/// # Panics
/// If the system starts no thread now.
pub fn build(builder: &mut Builder) -> io::Result<Runtime> {
    builder.enable_all().thread_keep_alive(Duration::MAX).max_blocking_threads(BLOCKING_THREADS_MAX);
    let runtime = builder.build()?;
    // Starts the thread.
    drop(runtime.spawn_blocking(|| {}));
    Ok(runtime)
}
