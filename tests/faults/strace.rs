//! Properties that only Redis' system calls show: fsync precedes the reply, a failed fsync is never acknowledged, and
//! a retry after a slow fsync gets one claim.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use support::checker::{Checker, Expect};
use support::only_on;
use support::process::{Process, Signal, command};
use support::storm::ClaimOutcome;
use support::topology::{ONE_SERVER, OWN};
use support::{Core, SOON, Servers};
use tempfile::NamedTempFile;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// strace on a running process, with its output in a file.
struct Strace {
    process: Process,
    output: NamedTempFile,
}

impl Strace {
    /// Attaches strace to `pid`; `Err` if strace is missing or not permitted to attach.
    async fn attach(pid: u32, options: &[&str]) -> Result<Self, String> {
        let there = std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|directory| directory.join("strace").is_file())
        });
        if !there {
            return Err("no strace".to_owned());
        }
        let (output, errors) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
        let mut strace = command(Path::new("strace"));
        strace
            .args(["-f", "-s", "65536", "-o"])
            .arg(output.path())
            .args(options)
            .arg("-p")
            .arg(pid.to_string());
        strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.reopen().unwrap());
        let mut process = Process::start(strace);
        for _ in 0..500 {
            let stderr = std::fs::read_to_string(errors.path()).unwrap_or_default();
            if stderr.contains("attached") {
                return Ok(Self { process, output });
            }
            if process.ended().is_some() {
                return Err(format!("strace cannot attach: {}", stderr.trim()));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("strace did not attach".to_owned())
    }

    /// Detaches from the process; returns the recorded system calls.
    async fn detach(mut self) -> Vec<String> {
        self.process.signal(Signal::INT);
        self.process.wait(SOON).await;
        let text = std::fs::read(self.output.path()).unwrap();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }
}

/// Returns whether the file was synced between writing the claim of `user` to it and answering; `None` if
/// either write is missing.
fn synced_before_the_answer(calls: &[String], user: &str) -> Option<bool> {
    let is_file = |call: &&String| call.contains("write(") && call.contains("XADD") && call.contains(user);
    let written = calls.iter().position(|call| is_file(&call))?;
    let answers = |call: &String| {
        let writes = ["write(", "writev(", "sendto("].iter().any(|name| call.contains(name));
        // A packed answer to one claim has 43 bytes.
        writes && call.contains("\"$43\\r\\n") && !call.contains("XADD")
    };
    let answered = written + calls[written..].iter().position(answers)?;
    let synced = |call: &String| call.contains("fdatasync(") && call.trim_end().ends_with("= 0");
    Some(calls[written..answered].iter().any(synced))
}

/// Makes claims while Redis is traced. Returns the users whose claims were granted: the trace of a call that
/// timed out may lack a write.
async fn watched_claims(checker: &Checker, core: &Core) -> Vec<String> {
    let mut granted = Vec::new();
    for at in 0..10 {
        let user = format!("watched-{at}-");
        let outcome = checker.claim(core, &user, "k").await;
        if matches!(outcome, ClaimOutcome::Claimed { replayed: false, .. }) {
            granted.push(user);
        }
    }
    assert!(granted.len() >= 5, "only {} of 10 claims were granted", granted.len());
    granted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fsync_precedes_the_answer() {
    only_on!(OWN, "it traces core's managed Redis");
    let row = Row::begin("fsync precedes the answer");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..1).await;
    let trace = ["-e", "trace=fdatasync,fsync,write,writev,sendto"];
    let Some(strace) = row.needs(Strace::attach(fixture.core.redis_pid().await, &trace).await) else {
        return;
    };
    let users = watched_claims(&checker, &fixture.core).await;
    let calls = strace.detach().await;
    for user in users {
        row.fault();
        let synced = synced_before_the_answer(&calls, &user);
        assert_eq!(synced, Some(true), "{user} was answered before the sync");
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// The fsync check must fail on a Redis server that syncs once a second, which proves that the check works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fsync_check_detects_everysec() {
    only_on!(ONE_SERVER, "strace traces one server");
    let row = Row::begin("fsync once a second is detected");
    let server = Servers::start_with(&[("appendfsync", "everysec")], &[]).await;
    let fixture = Fixture::on(server, support::CoreOptions::default()).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..1).await;
    let trace = ["-e", "trace=fdatasync,fsync,write,writev,sendto"];
    let Some(strace) = row.needs(Strace::attach(fixture.redis().await.pid().await, &trace).await) else {
        return;
    };
    let users = watched_claims(&checker, &fixture.core).await;
    let calls = strace.detach().await;
    let late = users.iter().filter(|user| synced_before_the_answer(&calls, user) != Some(true)).count();
    assert!(late > users.len() / 2, "the check does not detect everysec");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fsync_is_never_acknowledged() {
    only_on!(OWN, "it traces core's managed Redis");
    let row = Row::begin("fsync error");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    let inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"];
    let pid = fixture.core.redis_pid().await;
    let Some(mut strace) = row.needs(Strace::attach(pid, &inject).await) else { return };
    row.kill();
    assert_eq!(
        checker.claim(&fixture.core, "u20", "k").await,
        ClaimOutcome::Unknown,
        "acknowledged without a sync"
    );
    // Redis exits, and strace ends with it.
    strace.process.wait(SOON).await;
    checker.decided(SOON, &fixture.core, "u21", "k").await;
    assert_ne!(fixture.core.redis_pid().await, pid, "Redis continued after the disk failed");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_gets_one_claim_after_a_slow_fsync() {
    only_on!(OWN, "it traces core's managed Redis");
    let row = Row::begin("fsync takes seconds");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    let slow = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=60000000"];
    let attached = Strace::attach(fixture.core.redis_pid().await, &slow).await;
    let Some(strace) = row.needs(attached) else { return };
    row.fault();
    assert_eq!(
        checker.claim(&fixture.core, "u20", "k").await,
        ClaimOutcome::Unknown,
        "acknowledged before the sync"
    );
    strace.detach().await;
    checker.granted(&fixture.core, "u20", "k").await;
    fixture.judge(row, &checker, Expect::default()).await;
}
