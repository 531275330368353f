//! Background load of claims during a fault.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use support::Core;
use support::checker::Checker;
use support::storm::{ClaimAttempt, ClaimOutcome};

const USERS: usize = 300;
const CALLERS: usize = 16;

/// Sends claims of many users with new keys on the campaigns of `checkers` until `fault` ends; returns its
/// result.
pub async fn under_load<T>(
    core: &Core,
    checkers: &[&Checker],
    keys: &str,
    fault: impl Future<Output = T>,
) -> T {
    let over = AtomicBool::new(false);
    let fault = async {
        let done = fault.await;
        over.store(true, Ordering::Relaxed);
        done
    };
    let callers = (0..CALLERS).map(|caller| {
        let checker = checkers[caller % checkers.len()];
        claim_until(core, checker, keys, caller, &over)
    });
    tokio::join!(fault, join_all(callers)).0
}

async fn claim_until(core: &Core, checker: &Checker, keys: &str, caller: usize, over: &AtomicBool) {
    let url = core.url("/internal/v1/claims");
    for at in 0.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let user = format!("u{}", (caller * 19 + at) % USERS);
        let attempt = ClaimAttempt { user, key: format!("{keys}-{caller}-{at}"), units: 1 };
        if checker.send(core.client(), &url, &attempt).await == ClaimOutcome::Unknown {
            // Retry sooner than `Retry-After` requires.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
