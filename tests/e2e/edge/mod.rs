//! The Worker in a real Worker runtime, in front of a real core with a real Redis.

mod claims;
mod faults;
mod headers;
mod own_claims;
mod rates;

use std::future::Future;

use support::edge::{EXECUTOR, Runtime, TURN, World};
use support::wait::holds;
use support::{Reply, SOON, eventually, heavy};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// As the tests' environment has it: no limits on the rate.
pub async fn open_world() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(|| async { World::start(Runtime::asked(), "edge-open", "test", &[]).await }).await
}

/// As production has it: limits on the rate, here with one other origin let in. One test at a time, so that it may
/// break things.
pub async fn strict_world() -> MutexGuard<'static, World> {
    static WORLD: OnceCell<Mutex<World>> = OnceCell::const_new();
    let start = || async {
        let variables = [("CORS_ORIGINS", "https://shop.example")];
        Mutex::new(World::start(Runtime::asked(), "edge-strict", "production", &variables).await)
    };
    let mut world = WORLD.get_or_init(start).await.lock().await;
    world.heal().await;
    world
}

/// Runs `test` beside others.
pub fn run(test: impl Future<Output = ()>) {
    EXECUTOR.block_on(async {
        let _turn = TURN.read().await;
        test.await;
    });
}

/// Runs `test` by itself: a crowd would make the others' calls take longer than the edge waits.
pub fn run_alone(test: impl Future<Output = ()>) {
    EXECUTOR.block_on(async {
        let _turn = TURN.write().await;
        let _machine = heavy().await;
        test.await;
    });
}

/// What the edge sent to core to have this claim decided.
pub fn claims_passed_on(world: &World, reply: &Reply) -> Vec<String> {
    let mut said = world.passed_on(reply);
    said.retain(|text| text.starts_with("POST /internal/v1/claims "));
    said
}

/// A first try is refused with `code`, and soon by the edge alone.
pub async fn refused_early(world: &World, campaign: &str, code: &str) -> Reply {
    eventually(SOON, || async {
        let _ = world.view(campaign).await;
        let keyless = world.send(world.claim_request(campaign, "early")).await;
        let marked = world.first_try(campaign, "early", "k").await;
        assert_eq!((keyless.code().as_str(), marked.code().as_str()), (code, code));
        let reached = claims_passed_on(world, &keyless).len() + claims_passed_on(world, &marked).len();
        holds(reached == 0, || format!("{reached} of 2 claims reached core")).map(|()| marked)
    })
    .await
}
