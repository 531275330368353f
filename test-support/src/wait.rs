//! Waiting for conditions, and for exclusive use of the machine.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::RwLock;
use tokio::task::spawn_blocking;

use crate::client::Repetition;
use crate::time_limits::limit;
use crate::{Reply, SOON};

/// The shortest and the longest pause between two checks.
const PAUSE_SHORT: Duration = Duration::from_millis(10);
const PAUSE_LONG: Duration = Duration::from_millis(100);

/// Calls `check` until it returns `Ok`; fails the test with the last `Err` after `limit(within)`. The pauses
/// grow to a tenth of the time waited, because each check costs processor time that other tests need.
pub async fn eventually<T, F, Fut>(within: Duration, mut check: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let within = limit(within);
    let started = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(last) if started.elapsed() > within => panic!("not within {within:?}: {last}"),
            Err(_) => tokio::time::sleep((started.elapsed() / 10).clamp(PAUSE_SHORT, PAUSE_LONG)).await,
        }
    }
}

/// Returns `Ok` if `condition` holds, otherwise `Err` with the actual state: for [`eventually`].
pub fn holds(condition: bool, found: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(found()) }
}

/// Like [`holds`], for a number that only rises: one above `wanted` fails the test immediately.
pub fn reaches(found: usize, wanted: usize, what: &str) -> Result<(), String> {
    assert!(found <= wanted, "{found} {what}, not {wanted}");
    holds(found == wanted, || format!("{found} {what}, not {wanted}"))
}

/// Repeats `call` until its response has one of `statuses`; fails the test with the last response after `within`.
pub async fn until_status(within: Duration, statuses: &[u16], call: impl AsyncFn() -> Reply) -> Reply {
    eventually(within, || async {
        let reply = call().await;
        holds(statuses.contains(&reply.status), || reply.text()).map(|()| reply)
    })
    .await
}

/// Repeats `call` while a store answers too late, which core reports as `unavailable`. Checks that the next
/// response is a problem with this status and code.
pub async fn refused_in_time(status: u16, code: &str, call: impl AsyncFn() -> Reply) -> Reply {
    let mut repetition = Repetition::new(SOON);
    loop {
        let reply = call().await;
        if reply.code() != "unavailable" || !repetition.has_time(&reply).await {
            return reply.refused(status, code);
        }
    }
}

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Takes the exclusive lock for tests that load the whole machine, so that they do not starve each other or
/// other test binaries.
pub async fn heavy() -> impl Sized {
    let within = MACHINE.write().await;
    (across_binaries(File::lock).await, within)
}

/// Takes the shared lock for long tests that use little of the machine but that a heavy test would disturb.
pub async fn undisturbed() -> impl Sized {
    let within = MACHINE.read().await;
    (across_binaries(File::lock_shared).await, within)
}

/// Locks a file shared by all test binaries, which run concurrently (`scripts/test.sh`). The kernel releases
/// the lock with the file.
async fn across_binaries(lock: fn(&File) -> io::Result<()>) -> File {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/turn.lock");
    let locked = spawn_blocking(move || {
        let file = File::create(path)?;
        lock(&file).map(|()| file)
    });
    locked.await.expect("the locking thread").expect("a lock on target/turn.lock")
}
