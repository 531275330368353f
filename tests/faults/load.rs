//! Claims that go on while something else happens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use support::Core;
use support::checker::Checker;
use support::storm::{Seen, Wish};

const USERS: usize = 300;
const CALLERS: usize = 16;

/// Claims of many users by new keys on the campaigns of `checkers`, while `fault` lasts; returns what that does.
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
        let wish = Wish { user, key: format!("{keys}-{caller}-{at}"), units: 1 };
        if checker.ask(core.client(), &url, &wish).await == Seen::Unknown {
            // As the answer asks for, though sooner.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
