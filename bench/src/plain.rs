//! Baseline (a): `redis-benchmark` with the plain three-limit script, one call per claim.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use support::RedisView;
use support::process::command;
use tokio::process::Command;

use crate::redis::{self, Fsync, query};
use crate::users::Uuids;

/// The plain script; its head documents the arguments.
pub const SCRIPT: &str = include_str!("plain.lua");
const CONNECTIONS: &str = "50";
/// Warm-up calls. Their rate determines how many calls fill the measured time.
const WARM_UP: u64 = 30_000;
/// Upper bound of the random user numbers. `redis-benchmark` replaces the placeholder below with twelve
/// digits, which gives the 36 characters of a UUID.
const USERS: &str = "2000000000";
const USER: &str = "00000000-0000-4000-8000-__rand_int__";
/// Prefix of the warm-up's users, because two runs may use the same random numbers.
const WARM_UP_USER: &str = "00000000-0000-4000-8001-__rand_int__";
const KEYS: [&str; 3] = ["plain:{bench}:day", "plain:{bench}:user", "plain:{bench}:campaign"];

/// The result of a run of the baseline.
#[derive(Debug, Clone, Copy)]
pub struct Plain {
    /// Calls answered per second.
    pub calls_per_s: f64,
    /// Microseconds of Redis' CPU time per call.
    pub cpu_us: f64,
}

/// Runs the baseline for about `seconds` on its own Redis, with `pipeline` calls in flight per connection.
pub async fn run(fsync: Fsync, pipeline: u32, seconds: f64) -> anyhow::Result<Plain> {
    let server = redis::start(fsync).await;
    let view = server.view().await;
    let url = server.url();
    let socket = Path::new(url.strip_prefix("unix://").context("a unix socket")?);
    let digest: String = query(&view, &["SCRIPT", "LOAD", SCRIPT]).await?;
    let warm_up = benchmark(socket, &digest, WARM_UP_USER, pipeline, WARM_UP).await?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a positive number of calls
    // A multiple of the pipeline's length: `redis-benchmark` always fills the last pipeline.
    let calls = ((warm_up * seconds) as u64).next_multiple_of(u64::from(pipeline));
    let before = redis::cpu_seconds(&view).await?;
    let calls_per_s = benchmark(socket, &digest, USER, pipeline, calls).await?;
    let cpu_s = redis::cpu_seconds(&view).await? - before;
    check(&view, WARM_UP + calls).await?;
    Ok(Plain { calls_per_s, cpu_us: cpu_s * 1e6 / calls as f64 })
}

/// Returns microseconds of Redis' CPU time per call, for `calls` sequential calls on one connection, each by
/// a new user.
pub async fn call_us(calls: usize) -> anyhow::Result<f64> {
    let server = redis::start(Fsync::EverySecond).await;
    let view = server.view().await;
    let digest: String = query(&view, &["SCRIPT", "LOAD", SCRIPT]).await?;
    let users = Uuids::of(0).texts(calls + 1);
    let (first, others) = users.split_first().context("a first user")?;
    call(&view, &digest, first).await?;
    let before = redis::cpu_seconds(&view).await?;
    for user in others {
        call(&view, &digest, user).await?;
    }
    Ok((redis::cpu_seconds(&view).await? - before) * 1e6 / calls as f64)
}

async fn call(view: &RedisView, digest: &str, user: &str) -> anyhow::Result<()> {
    let words = ["EVALSHA", digest, "3", KEYS[0], KEYS[1], KEYS[2], user, "5", "5", "1000000000"];
    let granted: u64 = query(view, &words).await?;
    ensure!(granted == 1, "the plain script denied a new user");
    Ok(())
}

/// Checks that every call was granted, nearly all to different users: random numbers may repeat.
async fn check(view: &RedisView, calls: u64) -> anyhow::Result<()> {
    let taken: u64 = query(view, &["HGET", KEYS[2], "taken"]).await?;
    let users: u64 = query(view, &["HLEN", KEYS[1]]).await?;
    ensure!(taken == calls, "baseline (a) granted {taken} of {calls} calls");
    ensure!(users * 1000 >= calls * 999, "baseline (a) had {users} users in {calls} calls");
    Ok(())
}

/// Returns the calls per second that `redis-benchmark` reports.
async fn benchmark(
    socket: &Path,
    digest: &str,
    user: &str,
    pipeline: u32,
    calls: u64,
) -> anyhow::Result<f64> {
    let mut command = command(Path::new("redis-benchmark"));
    command.arg("-s").arg(socket).args(["-c", CONNECTIONS, "-r", USERS, "--csv"]);
    command.args(["-P", &pipeline.to_string(), "-n", &calls.to_string()]);
    command.args(["EVALSHA", digest, "3"]).args(KEYS).args([user, "5", "5", "1000000000"]);
    let mut command = Command::from(command);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.context("redis-benchmark")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.lines().last().and_then(|line| line.split("\",\"").nth(1)?.parse().ok());
    rate.with_context(|| {
        format!("redis-benchmark gave no figures: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}
