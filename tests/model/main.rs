//! Random operations on a plain reference model and on the real system must give the same answers and the
//! same state.
//!
//! `SEED=n` repeats a run, `OPERATIONS=n` sets its length.

// All of this is test code, including functions that are not tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs)] // a test binary has no published documentation

mod compare;
mod due_holds;
mod failure;
mod http;
mod old_copy;
mod operations;
mod reference;
mod rng;
mod run;
mod seeds;
mod system;
mod words;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use run::Tally;

/// Number of operations on one campaign; then the next campaign follows, under the next seed.
const ONE_RUN: u64 = 2500;
const ONE_RUN_HTTP: u64 = 1000;
/// Only one in this number of operations is run over HTTP.
const HTTP_SHARE: u64 = 25;
const OPERATIONS: u64 = 100_000;
/// A core that is late at more than one in this many operations is too slow, unless the machine is.
const UNANSWERED_SHARE: u64 = 1000;
/// A seed with enough operations, and so enough stalls.
const STALLED_SEED: u64 = 7919;

/// A single thread, so that concurrent claims reach the batcher in order.
#[tokio::test(flavor = "current_thread")]
async fn the_system_agrees_with_the_model() {
    let (seed, operations) =
        (number("SEED").unwrap_or_else(any_seed), number("OPERATIONS").unwrap_or(OPERATIONS));
    println!("the model: SEED={seed} OPERATIONS={operations}");
    let (started, mut tally, mut runs) = (Instant::now(), Tally::default(), 0);
    while tally.operations < operations {
        let length = ONE_RUN.min(operations - tally.operations);
        match run::play(seed + runs, length).await {
            Ok(played) => tally.add(played),
            Err(failed) => panic!("{failed}"),
        }
        runs += 1;
    }
    println!("{runs} campaigns in {:?}: {tally:?}", started.elapsed());
    let is_in_time = tally.unanswered <= (operations / UNANSWERED_SHARE).max(10);
    assert!(is_in_time || support::time_limits::is_slow(), "{tally:?}");
}

/// A machine that stalls for a second does not count as a difference.
#[tokio::test(flavor = "current_thread")]
async fn a_late_answer_of_redis_is_not_a_difference() {
    let played = run::play_with_stalls(STALLED_SEED, 800, 10).await;
    let played = played.unwrap_or_else(|failed| panic!("{failed}"));
    assert!(played.unanswered > 3, "{played:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn core_agrees_with_the_model_over_http_across_kills() {
    let (seed, operations) =
        (number("SEED").unwrap_or_else(any_seed), number("OPERATIONS").unwrap_or(OPERATIONS));
    println!("the model over HTTP: SEED={seed}");
    let (started, mut played) = (Instant::now(), 0);
    for run in 0.. {
        if played >= operations / HTTP_SHARE {
            break;
        }
        match http::play(seed + run, ONE_RUN_HTTP).await {
            Ok(tally) => println!("{tally:?} in {:?}", started.elapsed()),
            Err(failed) => panic!("{failed}"),
        }
        played += ONE_RUN_HTTP;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn previously_failing_seeds_pass() {
    for (seed, operations, name) in seeds::SEEDS {
        println!("{name}: SEED={seed} OPERATIONS={operations}");
        if let Err(failed) = run::play(seed, operations).await {
            panic!("{name}: {failed}");
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a whole number, not {text:?}")))
}

/// Returns a seed from the clock, short enough to type.
fn any_seed() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_millis().try_into().unwrap_or(1)
}
