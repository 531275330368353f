//! What can only be seen in Redis' system calls: that fsync comes before the answer, and what an error of it does.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use support::checker::{Checker, Expect};
use support::only_on;
use support::process::{Process, Signal, command};
use support::storm::Seen;
use support::topology::{ONE_SERVER, OWN};
use support::wait::holds;
use support::{SOON, Servers, eventually};
use tempfile::NamedTempFile;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// strace on a running process, its output in a file.
struct Strace {
    process: Process,
    output: NamedTempFile,
}

impl Strace {
    /// `Err` where there is no strace, or no right to attach it.
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
            let said = std::fs::read_to_string(errors.path()).unwrap_or_default();
            if said.contains("attached") {
                return Ok(Self { process, output });
            }
            if process.ended().is_some() {
                return Err(format!("strace cannot attach: {}", said.trim()));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("strace did not attach".to_owned())
    }

    /// Lets the process go; the system calls seen.
    async fn detach(mut self) -> Vec<String> {
        self.process.signal(Signal::INT);
        self.process.wait(SOON).await;
        let text = std::fs::read(self.output.path()).unwrap();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }
}

/// Whether between writing the claim of `user` to the file and answering it the file was synced; `None` when the
/// two writes are not to be found.
fn synced_before_the_answer(calls: &[String], user: &str) -> Option<bool> {
    let is_file = |call: &&String| call.contains("write(") && call.contains("XADD") && call.contains(user);
    let written = calls.iter().position(|call| is_file(&call))?;
    let answers = |call: &String| {
        let writes = ["write(", "writev(", "sendto("].iter().any(|name| call.contains(name));
        // A packed answer to one claim: 42 bytes and one.
        writes && call.contains("\"$43\\r\\n") && !call.contains("XADD")
    };
    let answered = written + calls[written..].iter().position(answers)?;
    let synced = |call: &String| call.contains("fdatasync(") && call.trim_end().ends_with("= 0");
    Some(calls[written..answered].iter().any(synced))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fsync_truly_precedes_the_answer() {
    only_on!(OWN, "it looks at core's own Redis");
    let row = Row::begin("fsync truly precedes the answer");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..1).await;
    let trace = ["-e", "trace=fdatasync,fsync,write,writev,sendto"];
    let strace = match Strace::attach(fixture.core.redis_pid().await, &trace).await {
        Ok(strace) => strace,
        Err(why) => return row.skip(&why),
    };
    for at in 0..10 {
        checker.claim(&fixture.core, &format!("watched-{at}-"), "k").await;
    }
    let calls = strace.detach().await;
    for at in 0..10 {
        row.fault();
        let synced = synced_before_the_answer(&calls, &format!("watched-{at}-"));
        assert_eq!(synced, Some(true), "watched-{at} was answered before it was on the disk");
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// The same look at a Redis that syncs once a second: what is seen above can be told from what must not be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_look_at_fsync_tells_everysec() {
    only_on!(ONE_SERVER, "strace looks at one server");
    let row = Row::begin("fsync once a second is told from fsync on every write");
    let server = Servers::start_with(&[("appendfsync", "everysec")], &[]).await;
    let fixture = Fixture::on(server, support::CoreOptions::default()).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..1).await;
    let trace = ["-e", "trace=fdatasync,fsync,write,writev,sendto"];
    let strace = match Strace::attach(fixture.redis().await.pid().await, &trace).await {
        Ok(strace) => strace,
        Err(why) => return row.skip(&why),
    };
    for at in 0..10 {
        checker.claim(&fixture.core, &format!("watched-{at}-"), "k").await;
    }
    let calls = strace.detach().await;
    let looked = |at| synced_before_the_answer(&calls, &format!("watched-{at}-"));
    let late = (0..10).filter(|at| looked(*at) != Some(true)).count();
    assert!(late > 5, "everysec looks as good as always");
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fsync_error() {
    only_on!(OWN, "it looks at core's own Redis");
    let row = Row::begin("fsync error");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    let inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"];
    let pid = fixture.core.redis_pid().await;
    let mut strace = match Strace::attach(pid, &inject).await {
        Ok(strace) => strace,
        Err(why) => return row.skip(&why),
    };
    row.kill();
    assert_eq!(
        checker.claim(&fixture.core, "u20", "k").await,
        Seen::Unknown,
        "acknowledged, and not on the disk"
    );
    // Redis ends itself; strace has no process left to follow, and ends too.
    strace.process.wait(SOON).await;
    eventually(SOON, || async {
        let seen = checker.claim(&fixture.core, "u21", "k").await;
        holds(seen != Seen::Unknown, || "no decision".to_owned())
    })
    .await;
    assert_ne!(fixture.core.redis_pid().await, pid, "Redis went on after the disk had failed");
    fixture.judge(row, &checker, Expect::default()).await;
}
