//! Faults of the machine: its clock, descriptors, processes and disk.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use support::checker::{Checker, Expect, Limits};
use support::clock::Clock;
use support::core_client::campaign;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::process_limit::ProcessLimit;
use support::raw::Raw;
use support::small_disk::SmallDisk;
use support::sql::Sql;
use support::storm::{ClaimAttempt, ClaimOutcome};
use support::times::from_now;
use support::topology::OWN;
use support::{CoreOptions, SOON, Servers};
use tokio::time::sleep;

use crate::fixture::{Fixture, ROOMY};
use crate::logs::until_lines_are_lost;
use crate::tally::Row;

const HOUR_MS: i64 = 3_600_000;

fn code(outcome: &ClaimOutcome) -> &str {
    match outcome {
        ClaimOutcome::Claimed { .. } => "claimed",
        ClaimOutcome::Denied { code, .. } => code,
        ClaimOutcome::Unknown => "unknown",
    }
}

/// Moving Redis' clock shifts only the start and end of the window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_the_clock_of_redis_moves_only_the_claim_window() {
    let row = Row::begin("clock: Redis' clock moved by one hour");
    let clock = Clock::new();
    let fixture = Fixture::on(Servers::start_on(&clock).await, CoreOptions::default()).await;
    let limits = Limits { total: Some(1000), per_user: Some(3), per_user_per_day: Some(3) };
    let mut body = campaign("demo", limits.json());
    body["starts_at"] = json!(from_now(-1800));
    body["ends_at"] = json!(from_now(1800));
    fixture.core.create_with(body).await;
    let checker = Checker::new("demo", limits);
    checker.win(&fixture.core, 0..20).await;
    for (ms, expected) in [(HOUR_MS, "ended"), (-HOUR_MS, "not_started"), (0, "claimed"), (HOUR_MS, "ended")]
    {
        row.fault();
        fixture.move_clock(&clock, ms).await;
        let outcome = checker.decided(SOON, &fixture.core, &format!("at-{ms}"), "k").await;
        assert_eq!(code(&outcome), expected, "moved by {ms} ms");
        let replay = checker.decided(SOON, &fixture.core, "u0", "k").await;
        assert!(matches!(replay, ClaimOutcome::Claimed { replayed: true, .. }), "{replay:?}");
    }
    clock.move_by_ms(0);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A user's day never goes backwards: a clock moved forward and back grants each of the two days once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_moved_across_midnight_does_not_repeat_a_day() {
    let row = Row::begin("clock: Redis' clock moved across midnight and back");
    let clock = Clock::new();
    let fixture = Fixture::on(Servers::start_on(&clock).await, CoreOptions::default()).await;
    let limits = Limits { total: None, per_user: None, per_user_per_day: Some(1) };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    for round in 0..4 {
        for hours in [0, 24, 23, 0, 24] {
            row.fault();
            fixture.move_clock(&clock, hours * HOUR_MS).await;
            for user in 0..5 {
                let (user, key) = (format!("u{user}"), format!("k{round}-{hours}"));
                checker.decided(SOON, &fixture.core, &user, &key).await;
            }
        }
    }
    clock.move_by_ms(0);
    fixture.judge(row, &checker, Expect::default()).await;
    let days = fixture.sql.claims("demo").await.iter().filter(|row| row.user_id == "u0").count();
    assert_eq!(days, 2, "one claim today and one tomorrow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_cores_clock_does_not_change_decisions() {
    let row = Row::begin("clock: core's clock moved by one hour");
    let clock = Clock::new();
    let options = CoreOptions::default().with_all(&clock.environment());
    let fixture = Fixture::on(Servers::start().await, options).await;
    let limits = Limits { total: Some(1000), per_user: Some(1), per_user_per_day: Some(1) };
    let mut body = campaign("demo", limits.json());
    body["starts_at"] = json!(from_now(-1800));
    body["ends_at"] = json!(from_now(1800));
    fixture.core.create_with(body).await;
    let checker = Checker::new("demo", limits);
    for (at, ms) in [HOUR_MS, -HOUR_MS, 0].into_iter().enumerate() {
        row.fault();
        clock.move_by_ms(ms);
        // Core's clock affects no decision: the window does not move.
        checker.win(&fixture.core, at * 20..at * 20 + 20).await;
        fixture.core.patch("demo", json!({"name": format!("moved by {ms}")})).await.expect(200);
        checker.win(&fixture.core, at * 20..at * 20 + 20).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_recovers_from_exhausted_descriptors() {
    only_on!(OWN, "core starts its own Redis again");
    let row = Row::begin("descriptors exhausted");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    let (pid, url) = (fixture.core.pid(), fixture.core.url("/internal/v1/claims"));
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    row.fault();
    set_limit(pid, "nofile", open + 10);
    let mut hoard = Vec::new();
    for _ in 0..100 {
        hoard.push(Raw::connect(fixture.core.listen()).await);
    }
    // A restarted Redis needs descriptors, but callers waiting for a descriptor take those that the dead
    // server frees.
    row.kill();
    signal_pid(fixture.core.redis_pid().await, Signal::KILL);
    for user in 20..30 {
        let attempt = ClaimAttempt { user: format!("u{user}"), key: "k".to_owned(), units: 1 };
        let claim_call = checker.send(fixture.core.client(), &url, &attempt);
        // Not a limit: a call may hang.
        if tokio::time::timeout(Duration::from_millis(300), claim_call).await.is_err() {
            checker.record(&attempt, ClaimOutcome::Unknown);
        }
    }
    drop(hoard);
    set_limit(pid, "nofile", 4096);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Sets a soft limit of a running process.
fn set_limit(pid: u32, resource: &str, limit: usize) {
    let mut prlimit = Command::new("prlimit");
    prlimit.arg("--pid").arg(pid.to_string()).arg(format!("--{resource}={limit}:"));
    assert!(prlimit.status().expect("prlimit").success());
}

/// As with `ulimit -f`. By default, the kernel ends a process that writes beyond the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_at_its_size_limit_stops_nothing() {
    /// More than the size of SQLite's files, which the limit also covers.
    const LOG_BYTES: usize = 16 << 20;
    only_on!(OWN, "the log does not depend on the servers");
    let row = Row::begin("the log reaches the limit of a file's size");
    let fixture = Fixture::managed().await;
    let core = &fixture.core;
    let checker = Checker::create(core, "demo", ROOMY).await;
    let mut log = OpenOptions::new().append(true).open(core.log_path()).expect("a log");
    log.write_all(&vec![b' '; LOG_BYTES]).expect("space");
    row.fault();
    set_limit(core.pid(), "fsize", LOG_BYTES);
    // Each of these changes is a line of the log.
    for verb in ["pause", "resume"] {
        core.set_admin_state("demo", verb).await.expect(200);
    }
    until_lines_are_lost(core).await;
    checker.win(core, 0..20).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// As with systemd's `TasksMax`: no process and no thread can be started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_recovers_from_exhausted_processes() {
    only_on!(OWN, "core starts its own Redis again");
    let row = Row::begin("processes and threads exhausted");
    let Some(limit) = row.needs(ProcessLimit::create()) else { return };
    let fixture = Fixture::managed().await;
    let core = &fixture.core;
    let checker = Checker::create(core, "demo", ROOMY).await;
    checker.win(core, 0..20).await;
    let mut coded = campaign("coded", json!({"total": 0}));
    coded["codes"] = json!(true);
    core.create_with(coded).await;
    limit.add(core.pid());
    limit.close();
    row.kill();
    signal_pid(core.redis_pid().await, Signal::KILL);
    core.until_logged(SOON, &["ERROR", "cannot start"]).await;
    for user in 20..25 {
        checker.claim(core, &format!("u{user}"), "k").await;
    }
    // The file is parsed on a thread of its own.
    let added = core.once().add_codes("coded", "A\n").await;
    assert!([200, 503].contains(&added.status), "{}", added.text());
    limit.set("max");
    checker.win(core, 25..45).await;
    assert!(!core.log().contains("panicked"), "{}", core.log());
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_recovers_from_a_full_disk() {
    only_on!(OWN, "core and its managed Redis share the disk");
    let row = Row::begin("disk full");
    let Some(disk) = row.needs(SmallDisk::mount("4m")) else { return };
    let directory = tempfile::Builder::new().prefix("cg-").tempdir_in(disk.path()).unwrap();
    let core = CoreOptions::default().start_in(directory).await;
    let sql = Sql::in_directory(&core.data_dir());
    let fixture = Fixture { core, others: vec![], proxy: None, server: None, postgres: None, sql };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..40).await;
    row.fault();
    disk.fill();
    let mut refused = 0;
    for user in 40..2000 {
        let outcome = checker.claim(&fixture.core, &format!("u{user}"), "k").await;
        refused += usize::from(outcome == ClaimOutcome::Unknown);
        if refused > 20 {
            break;
        }
    }
    assert!(refused > 20, "a full disk went unnoticed");
    disk.empty();
    sleep(Duration::from_millis(100)).await;
    fixture.judge(row, &checker, Expect::default()).await;
}
