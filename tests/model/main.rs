//! Random operations against a plain reference model and the real thing: the same answers, the same state.
//!
//! `SEED=n` plays one run again, `OPERATIONS=n` sets how long it is.

// Test code throughout, also in functions that are not tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs)] // a binary of tests: its documentation is read beside the code only

mod compare;
mod due_holds;
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

/// Operations on one campaign; then comes another one, under the next seed.
const ONE_RUN: u64 = 2500;
const ONE_RUN_HTTP: u64 = 1000;
/// Over HTTP, one operation in this many is played.
const HTTP_SHARE: u64 = 25;
const OPERATIONS: u64 = 100_000;

/// One thread: claims asked for together reach the batcher in their order.
#[tokio::test(flavor = "current_thread")]
async fn the_system_does_what_the_model_says() {
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
}

#[tokio::test(flavor = "current_thread")]
async fn the_same_over_http_with_core_killed_time_and_again() {
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
async fn seeds_that_failed_once() {
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

/// From the clock; short enough to be typed.
fn any_seed() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_millis().try_into().unwrap_or(1)
}
