//! Waiting for a condition, and for one's turn.

use std::time::{Duration, Instant};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Long enough for whatever must happen automatically, on a machine that is busy with other tests.
pub const SOON: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// Asks `check` until it is `Ok`; fails the test with the last `Err` once `within` has passed.
pub async fn eventually<T, F, Fut>(within: Duration, mut check: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let started = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(last) if started.elapsed() > within => panic!("not within {within:?}: {last}"),
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

/// `Ok` when `condition` holds, else `Err` with what was found instead: for [`eventually`].
pub fn holds(condition: bool, found: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(found()) }
}

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Held by tests that load the whole machine, so that they do not starve each other.
pub async fn heavy() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// Held by tests that take long and load it little, and that a heavy one would disturb: beside each other.
pub async fn undisturbed() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}
