//! Faults of the machine: its clock, its descriptors, its disk.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use support::checker::{Checker, Expect, Limits};
use support::clock::Clock;
use support::core_client::campaign;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::raw::Raw;
use support::storm::{Seen, Wish};
use support::times::from_now;
use support::topology::OWN;
use support::{CoreOptions, Servers};
use tokio::time::sleep;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

const HOUR_MS: i64 = 3_600_000;

fn code(seen: &Seen) -> &str {
    match seen {
        Seen::Claimed { .. } => "claimed",
        Seen::Denied { code, .. } => code,
        Seen::Unknown => "unknown",
    }
}

/// Redis' clock moves the edges of the window, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_under_redis() {
    let row = Row::begin("clock: one hour back and forth under Redis");
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
        let seen = checker.claim(&fixture.core, &format!("at-{ms}"), "k").await;
        assert_eq!(code(&seen), expected, "moved by {ms} ms");
        let replay = checker.claim(&fixture.core, "u0", "k").await;
        assert!(matches!(replay, Seen::Claimed { replayed: true, .. }), "{replay:?}");
    }
    clock.move_by_ms(0);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A user's day never goes backwards: a clock set forward and back gives each of the two days once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_across_midnight() {
    let row = Row::begin("clock: across midnight and back under Redis");
    let clock = Clock::new();
    let fixture = Fixture::on(Servers::start_on(&clock).await, CoreOptions::default()).await;
    let limits = Limits { total: None, per_user: None, per_user_per_day: Some(1) };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    for round in 0..4 {
        for hours in [0, 24, 23, 0, 24] {
            row.fault();
            fixture.move_clock(&clock, hours * HOUR_MS).await;
            for user in 0..5 {
                let seen =
                    checker.claim(&fixture.core, &format!("u{user}"), &format!("k{round}-{hours}")).await;
                assert!(seen != Seen::Unknown);
            }
        }
    }
    clock.move_by_ms(0);
    fixture.judge(row, &checker, Expect::default()).await;
    let days = fixture.sql.claims("demo").await.iter().filter(|row| row.user_id == "u0").count();
    assert_eq!(days, 2, "today and tomorrow, once each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_in_core() {
    let row = Row::begin("clock: one hour back and forth in core");
    let clock = Clock::new();
    let mut options = CoreOptions::default();
    for (name, value) in clock.environment() {
        options = options.with(name, value.display().to_string());
    }
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
        // Core's clock decides nothing: the window stays where it is.
        checker.win(&fixture.core, at * 20..at * 20 + 20).await;
        fixture.core.patch("demo", json!({"name": format!("moved by {ms}")})).await.expect(200);
        checker.win(&fixture.core, at * 20..at * 20 + 20).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_used_up() {
    only_on!(OWN, "core starts its own Redis again");
    let row = Row::begin("descriptors used up");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    let (pid, url) = (fixture.core.pid(), fixture.core.url("/internal/v1/claims"));
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    row.fault();
    limit_descriptors(pid, open + 10);
    let mut hoard = Vec::new();
    for _ in 0..100 {
        hoard.push(Raw::connect(fixture.core.listen()).await);
    }
    // A Redis that dies now needs descriptors to come back, and those who wait for one take what it frees.
    row.kill();
    signal_pid(fixture.core.redis_pid().await, Signal::KILL);
    for user in 20..30 {
        let wish = Wish { user: format!("u{user}"), key: "k".to_owned(), units: 1 };
        let asked = checker.ask(fixture.core.client(), &url, &wish);
        if tokio::time::timeout(Duration::from_millis(300), asked).await.is_err() {
            checker.keep(&wish, Seen::Unknown);
        }
    }
    drop(hoard);
    limit_descriptors(pid, 4096);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// The soft limit, of a process that runs.
fn limit_descriptors(pid: u32, count: usize) {
    let done =
        Command::new("prlimit").arg("--pid").arg(pid.to_string()).arg(format!("--nofile={count}:")).status();
    assert!(done.expect("prlimit").success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_full() {
    only_on!(OWN, "the disk is that of core and its own Redis");
    let row = Row::begin("disk full");
    if !rustix::process::geteuid().is_root() {
        return row.skip("only root can mount a small disk");
    }
    let mut fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.core.stop().await;
    let disk = match SmallDisk::under(&fixture.core.data_dir()) {
        Ok(disk) => disk,
        Err(why) => return row.skip(&why),
    };
    fixture.core = fixture.core.restart().await;
    fixture.sql = support::sql::Sql::in_directory(&fixture.core.data_dir());
    checker.win(&fixture.core, 20..40).await;
    row.fault();
    disk.fill();
    let mut refused = 0;
    for user in 40..2000 {
        let seen = checker.claim(&fixture.core, &format!("u{user}"), "k").await;
        refused += usize::from(seen == Seen::Unknown);
        if refused > 20 {
            break;
        }
    }
    assert!(refused > 20, "a full disk went unnoticed");
    disk.clear();
    sleep(Duration::from_millis(100)).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// 4 MB in memory, mounted over a directory whose files move in; gone when dropped.
struct SmallDisk<'a>(std::borrow::Cow<'a, Path>);

impl SmallDisk<'_> {
    fn under(directory: &Path) -> Result<Self, String> {
        let shell = |script: &str| {
            let done = Command::new("sh").args(["-ec", script, "sh"]).arg(directory).output();
            let done = done.map_err(|error| error.to_string())?;
            if done.status.success() {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&done.stderr).into_owned())
            }
        };
        shell(
            r#"mv "$1" "$1.aside"; mkdir -m 700 "$1"; mount -t tmpfs -o size=4m,mode=700 none "$1" || { rmdir "$1"; mv "$1.aside" "$1"; exit 1; }"#,
        )?;
        let disk = Self(directory.to_owned().into());
        shell(r#"cp -a "$1.aside/." "$1/""#)?;
        Ok(disk)
    }

    /// Leaves a few KB.
    fn fill(&self) {
        let filled = Command::new("sh")
            .args(["-c", r#"cat /dev/zero > "$1/filler""#, "sh"])
            .arg(self.0.as_ref())
            .output();
        assert!(!filled.unwrap().status.success(), "a disk without end");
    }

    fn clear(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.as_ref()).status();
    }
}
