//! Redis killed in the middle of a write to its append-only file, which then ends with half of a script's
//! writes.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use support::checker::{Checker, Expect};
use support::only_on;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, SOON, eventually};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// The beginning of a transaction.
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";

/// Returns the last position of `part` in `bytes`.
fn last(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).rposition(|window| window == part).expect("the file must contain it")
}

/// Returns the position of the value after `name` in an outbox entry of the file.
fn value(entry: &[u8], name: &[u8]) -> usize {
    let length = last(entry, name) + name.len() + 2;
    length + entry[length..].iter().position(|byte| *byte == b'\n').expect("a length") + 1
}

/// Returns the first half of a transaction for another user's claim, as if Redis was killed while writing it:
/// the complete outbox entry and the beginning of the users. The last claim in the file was decided in its
/// own call.
fn half_a_transaction(file: &[u8]) -> Vec<u8> {
    let entry = last(file, b"XADD");
    let begin = last(&file[..entry], MULTI);
    let end = entry + file[entry..].windows(4).position(|window| window == b"HSET").expect("the users");
    let mut half = file[begin..end + 4].to_vec();
    let entry = entry - begin;
    let text = String::from_utf8_lossy(&half[entry..]).into_owned();
    let (ms, _) = text.split("\r\n").nth(4).and_then(|id| id.split_once('-')).expect("the entry's id");
    let later = (ms.parse::<u64>().expect("milliseconds") + 1).to_string();
    let at = entry + text.find(ms).expect("the id");
    half[at..at + ms.len()].copy_from_slice(later.as_bytes());
    let user = value(&half, b"users");
    half[user] = b'x';
    let sequence = value(&half, b"claims") + 20;
    half[sequence] += 1;
    half
}

/// Kills core together with its Redis, and appends half a transaction to the file.
async fn kill_in_the_middle_of_a_write(core: &mut Core) {
    let redis = format!("/proc/{}", core.redis_pid().await);
    core.kill();
    eventually(SOON, || async { holds(!Path::new(&redis).exists(), || "Redis is still there".to_owned()) })
        .await;
    let files = fs::read_dir(core.data_dir().join("redis/appendonlydir")).expect("Redis' files");
    let file = files
        .map(|file| file.expect("a file").path())
        .find(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .expect("the append-only file");
    let half = half_a_transaction(&fs::read(&file).expect("the file"));
    OpenOptions::new().append(true).open(&file).expect("the file").write_all(&half).expect("written");
}

/// Checks that half a transaction is never restored. By default Redis truncates the file after its last
/// complete command and appends to an outbox entry without counters, which the next start would restore.
/// Between two starts a claim on this or another campaign is decided.
async fn half_is_never_restored(row: Row, on_another: bool) {
    let mut fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let other = Checker::create(&fixture.core, "other", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    checker.win(&fixture.core, 10..11).await;
    row.kill();
    kill_in_the_middle_of_a_write(&mut fixture.core).await;
    fixture.core = fixture.core.restart().await;
    let between = if on_another { &other } else { &checker };
    between.win(&fixture.core, 11..12).await;
    row.kill();
    fixture.core.kill();
    fixture.core = fixture.core.restart().await;
    checker.win(&fixture.core, 20..30).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_transaction_never_stays_in_the_outbox() {
    only_on!(OWN, "the file belongs to core's managed Redis");
    half_is_never_restored(Row::begin("Redis killed in the middle of a write, then again"), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_transaction_never_replaces_a_claim() {
    only_on!(OWN, "the file belongs to core's managed Redis");
    half_is_never_restored(
        Row::begin("Redis killed in the middle of a write, with claims on another campaign"),
        true,
    )
    .await;
}
