//! Thousands of claims in flight while a random process is killed every 300 ms.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use support::checker::{Checker, Expect, Limits, Verdict};
use support::client::client;
use support::heavy;
use support::process::{Signal, signal_pid};
use support::rng::Rng;
use support::storm::{Seen, Wish, wishes};
use tokio::time::{interval, sleep};

use crate::fixture::Fixture;
use crate::tally::{Row, say};

/// Rounds without `ROUNDS`; `make soak` sets 20.
const ROUNDS: usize = 3;
const KILLS_A_ROUND: usize = 7;
const KILL_EVERY: Duration = Duration::from_millis(300);
const USERS: usize = 1000;
const KEYS: usize = 3;
/// Less than is asked for, in both.
const LIMITS: Limits = Limits { total: Some(1800), per_user: Some(2), per_user_per_day: Some(2) };
/// How long a caller waits before it asks again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_cores_with_processes_killed_under_load() {
    let row = Row::begin("processes killed under load: two cores, external Redis, PostgreSQL");
    let _turn = heavy().await;
    match Fixture::two_cores().await {
        Ok(fixture) => rounds(fixture, row).await,
        Err(why) => row.skip(&why),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_core_with_processes_killed_under_load() {
    let row = Row::begin("processes killed under load: one core, managed Redis, SQLite");
    let _turn = heavy().await;
    rounds(Fixture::managed().await, row).await;
}

async fn rounds(mut fixture: Fixture, row: Row) {
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let mut rng = Rng::seeded("storm");
    let (mut all, mut operations) = (Verdict::default(), 0);
    for round in 1..=rounds {
        let checker = Checker::create(&fixture.core, &format!("round{round}"), LIMITS).await;
        let storm = Storm::new(&fixture);
        let kills = async {
            let killed = kill_again_and_again(&mut fixture, &storm, &row, &mut rng).await;
            storm.over.store(true, Ordering::Relaxed);
            killed
        };
        let (killed, ()) = tokio::join!(kills, storm.blow(&checker));
        let verdict = judge(&fixture, &checker).await;
        say(&format!("  round {round} of {rounds}: killed {killed}; {} asked; {verdict:?}", checker.asked()));
        operations += checker.asked();
        all.acknowledged += verdict.acknowledged;
        all.denied += verdict.denied;
        all.unknown += verdict.unknown;
    }
    row.survived(operations, all);
}

async fn judge(fixture: &Fixture, checker: &Checker) -> Verdict {
    let cores: Vec<_> = std::iter::once(&fixture.core).chain(&fixture.others).collect();
    for core in &cores {
        core.ready().await;
    }
    checker.judge(&cores, &fixture.sql, &fixture.redis().await, Expect::default()).await
}

/// Every process in turn may be the one; it is started again at once.
async fn kill_again_and_again(fixture: &mut Fixture, storm: &Storm, row: &Row, rng: &mut Rng) -> String {
    let mut killed = BTreeMap::<&str, usize>::new();
    let mut ticks = interval(KILL_EVERY);
    ticks.tick().await;
    for _ in 0..KILLS_A_ROUND {
        ticks.tick().await;
        let (core, redis) =
            [(true, false), (false, true), (true, true)][usize::try_from(rng.draw() % 3).unwrap()];
        if redis {
            row.kill();
            *killed.entry("Redis").or_default() += 1;
            kill_redis(fixture).await;
        }
        if core {
            row.kill();
            *killed.entry("core").or_default() += 1;
            let which = usize::try_from(rng.draw()).unwrap_or(0) % (1 + fixture.others.len());
            let core = if which == 0 { &mut fixture.core } else { &mut fixture.others[which - 1] };
            core.kill();
            *core = core.launch_again();
            storm.urls.lock().unwrap()[which] = core.url("/internal/v1/claims");
        }
    }
    format!("{killed:?}")
}

/// The managed one is started again by its core, the test's own by the test.
async fn kill_redis(fixture: &mut Fixture) {
    if let Some(server) = &mut fixture.server {
        return server.kill_and_restart().await;
    }
    let core = fixture.core.pid();
    let children = std::fs::read_to_string(format!("/proc/{core}/task/{core}/children")).unwrap_or_default();
    for task in std::fs::read_dir(format!("/proc/{core}/task")).into_iter().flatten().flatten() {
        let of_thread = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for pid in of_thread.split_whitespace().chain(children.split_whitespace()) {
            signal_pid(pid.parse().unwrap(), Signal::KILL);
        }
    }
}

/// All wishes of a round in flight at once, each asked until its outcome is known, and then again as a replay,
/// until the killing is over.
struct Storm {
    urls: Mutex<Vec<String>>,
    at: AtomicUsize,
    over: AtomicBool,
}

impl Storm {
    fn new(fixture: &Fixture) -> Self {
        let cores = std::iter::once(&fixture.core).chain(&fixture.others);
        let urls = cores.map(|core| core.url("/internal/v1/claims")).collect();
        Self { urls: Mutex::new(urls), at: AtomicUsize::new(0), over: AtomicBool::new(false) }
    }

    fn url(&self) -> String {
        let urls = self.urls.lock().unwrap();
        urls[self.at.fetch_add(1, Ordering::Relaxed) % urls.len()].clone()
    }

    async fn blow(&self, checker: &Checker) {
        let (wishes, client) = (wishes(USERS, KEYS), client());
        let callers = wishes.iter().map(|wish| self.caller(checker, &client, wish));
        futures_util::future::join_all(callers).await;
    }

    async fn caller(&self, checker: &Checker, client: &support::client::Client, wish: &Wish) {
        let mut replays = 0;
        while !self.over.load(Ordering::Relaxed) && replays < 3 {
            match checker.ask(client, &self.url(), wish).await {
                Seen::Unknown => sleep(ASK_AGAIN).await,
                _ => replays += 1,
            }
            sleep(ASK_AGAIN).await;
        }
    }
}
