//! Thousands of claims in flight while a random process is killed every 300 ms.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::checker::{Checker, Expect, Limits, Verdict};
use support::client::client;
use support::heavy;
use support::rng::Rng;
use support::storm::{ClaimAttempt, ClaimOutcome, claim_attempts};
use tokio::time::sleep;

use crate::fixture::Fixture;
use crate::random_kills::{Addresses, kill_repeatedly};
use crate::tally::{Row, say};

/// Number of rounds unless `ROUNDS` is set; `make soak` sets 20.
const ROUNDS: usize = 3;
const USERS: usize = 1000;
const KEYS: usize = 3;
/// Both limits are lower than the demand.
const LIMITS: Limits = Limits { total: Some(1800), per_user: Some(2), per_user_per_day: Some(2) };
/// Pause of a caller before a retry.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_cores_never_oversell_while_processes_are_killed() {
    let row = Row::begin("processes killed under load: two cores, external Redis, PostgreSQL");
    let _turn = heavy().await;
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    rounds(fixture, row).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_core_stays_exact_while_processes_are_killed() {
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
            let killed = kill_repeatedly(&mut fixture, &storm.addresses, &row, &mut rng).await;
            storm.over.store(true, Ordering::Relaxed);
            killed
        };
        let (killed, ()) = tokio::join!(kills, storm.run(&checker));
        let verdict = judge(&fixture, &checker).await;
        say(&format!(
            "  round {round} of {rounds}: killed {killed}; {} calls; {verdict:?}",
            checker.call_count()
        ));
        operations += checker.call_count();
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

/// All attempts of a round, which are in flight at the same time. Each attempt is retried until its outcome
/// is known, and then replayed until the kills end.
struct Storm {
    addresses: Addresses,
    over: AtomicBool,
}

impl Storm {
    fn new(fixture: &Fixture) -> Self {
        Self { addresses: Addresses::of(fixture), over: AtomicBool::new(false) }
    }

    async fn run(&self, checker: &Checker) {
        let (claim_attempts, client) = (claim_attempts(USERS, KEYS), client());
        let callers = claim_attempts.iter().map(|attempt| self.caller(checker, &client, attempt));
        futures_util::future::join_all(callers).await;
    }

    async fn caller(&self, checker: &Checker, client: &support::client::Client, attempt: &ClaimAttempt) {
        let mut replays = 0;
        while !self.over.load(Ordering::Relaxed) && replays < 3 {
            match checker.send(client, &self.addresses.url("/internal/v1/claims"), attempt).await {
                ClaimOutcome::Unknown => sleep(RETRY_PAUSE).await,
                _ => replays += 1,
            }
            sleep(RETRY_PAUSE).await;
        }
    }
}
