//! Waiting for a condition, and for one's turn.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::RwLock;
use tokio::task::spawn_blocking;

/// Long enough for whatever must happen automatically, on a slow machine that is busy with other tests.
pub const SOON: Duration = Duration::from_secs(45);
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

/// Held by tests that load the whole machine, so that they do not starve each other, nor those of another test binary.
pub async fn heavy() -> impl Sized {
    let within = MACHINE.write().await;
    (across_binaries(File::lock).await, within)
}

/// Held by tests that take long and load it little, and that a heavy one would disturb: beside each other.
pub async fn undisturbed() -> impl Sized {
    let within = MACHINE.read().await;
    (across_binaries(File::lock_shared).await, within)
}

/// Test binaries run side by side (`scripts/test.sh`). The kernel gives the lock back with the file.
async fn across_binaries(lock: fn(&File) -> io::Result<()>) -> File {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/turn.lock");
    let locked = spawn_blocking(move || {
        let file = File::create(path)?;
        lock(&file).map(|()| file)
    });
    locked.await.expect("the thread that waits").expect("a lock on target/turn.lock")
}
