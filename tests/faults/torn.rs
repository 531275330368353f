//! Redis killed in the middle of a write to its append-only file, which then ends with half of a script's writes.

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

/// A transaction begins with it.
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";

/// Where `part` begins last in `bytes`.
fn last(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).rposition(|window| window == part).expect("it is in the file")
}

/// Where the value behind `name` begins in an outbox entry as the file has it.
fn value(entry: &[u8], name: &[u8]) -> usize {
    let length = last(entry, name) + name.len() + 2;
    length + entry[length..].iter().position(|byte| *byte == b'\n').expect("a length") + 1
}

/// The first half of what Redis would have written for one more claim, of another user, had it not been killed meanwhile:
/// all of the outbox entry, and the beginning of the users. The last claim in the file was decided alone.
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

/// Kills core, with which its Redis goes, and has the file end as above.
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

/// Left to itself, Redis takes the half off after its last whole command, and goes on writing behind an outbox entry whose
/// counters are missing: with the next start the entry is there. Between the two starts a claim on the same campaign, or on
/// another one, is decided.
async fn half_never_comes_back(row: Row, on_another: bool) {
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
async fn half_of_a_scripts_writes_never_stays_in_the_outbox() {
    only_on!(OWN, "the file is that of core's own Redis");
    half_never_comes_back(Row::begin("Redis killed in the middle of a write, and once more"), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_a_scripts_writes_never_takes_a_claims_place() {
    only_on!(OWN, "the file is that of core's own Redis");
    half_never_comes_back(Row::begin("the same, with claims on another campaign meanwhile"), true).await;
}
