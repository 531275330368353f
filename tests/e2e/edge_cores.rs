//! Two cores behind one edge: each does its share, and one that cannot answer or decide is passed by.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use support::edge::Runtime;
use support::pair::{Pair, PairEdge};
use support::process::Signal;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, eventually};

use super::edge::run_alone;

/// How long any browser may wait.
const ANSWER_MAX: Duration = Duration::from_millis(2_500);
/// Far less than what a call that core does not answer takes.
const AT_ONCE: Duration = Duration::from_secs(1);
const CLAIMS: usize = 40;

/// Runs `test` on two cores that know the campaign `shared`, and an edge before them.
fn with_two_cores(name: &str, test: impl AsyncFnOnce(Pair, &PairEdge)) {
    run_alone(async {
        let pair = match Pair::start(CoreOptions::default()).await {
            Ok(pair) => pair,
            Err(why) => {
                eprintln!("SKIPPED {name}: {why}");
                assert!(std::env::var_os("CI").is_none(), "skipped: {why}");
                return;
            }
        };
        let edge = pair.edge(Runtime::asked(), name).await;
        pair.cores[0].create("shared", json!({"total": 10_000})).await;
        let _ = claim(&edge, "before").await.0.expect(201);
        test(pair, &edge).await;
    });
}

/// A claim of `user`, and how long it took.
async fn claim(edge: &PairEdge, user: &str) -> (Reply, Duration) {
    let began = Instant::now();
    let reply =
        edge.client.send(edge.claim_request("shared", user, "k")).await.expect("an answer of the edge");
    (reply, began.elapsed())
}

/// As many claims one after the other, each granted within `limit`.
async fn all_win(edge: &PairEdge, users: &str, limit: Duration) {
    for n in 0..CLAIMS {
        let (reply, took) = claim(edge, &format!("{users}-{n}")).await;
        assert!(matches!(reply.status, 200 | 201), "{n}: {} {}", reply.status, reply.text());
        assert!(took < limit, "{n}: {took:?}");
    }
}

/// Claims that `core` has decided.
async fn decided(core: &Core) -> usize {
    let metrics = core.admin_get("/metrics").await.expect(200).text();
    let line = metrics.lines().find_map(|line| line.strip_prefix("claimgate_decision_seconds_count "));
    line.map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn claims_are_spread_evenly_and_a_dead_cores_share_goes_to_the_other() {
    with_two_cores("cores-dead", async |mut pair, edge| {
        let before = [decided(&pair.cores[0]).await, decided(&pair.cores[1]).await];
        all_win(edge, "both", AT_ONCE).await;
        for (core, before) in pair.cores.iter().zip(before) {
            let share = decided(core).await - before;
            // Not exactly half: what else is asked takes turns, too.
            assert!((CLAIMS * 2 / 5..=CLAIMS * 3 / 5).contains(&share), "{share} of {CLAIMS} claims");
        }
        pair.cores[0].kill();
        all_win(edge, "one", AT_ONCE).await;
        pair.cores[0] = pair.cores[0].restart().await;
        eventually(SOON, || async {
            all_win(edge, "back", AT_ONCE).await;
            holds(decided(&pair.cores[0]).await > 0, || "nothing is sent to the first core".to_owned())
        })
        .await;
        for core in &mut pair.cores {
            core.kill();
        }
        let (reply, took) = claim(edge, "late").await;
        let _ = reply.refused(503, "unavailable");
        assert!(took < ANSWER_MAX, "{took:?}");
    });
}

#[test]
fn a_core_that_stands_still_costs_no_claim() {
    with_two_cores("cores-still", async |pair, edge| {
        let still = &pair.cores[1];
        support::process::signal_pid(still.pid(), Signal::STOP);
        let users: Vec<_> = (0..CLAIMS).map(|n| format!("still-{n}")).collect();
        let seen = join_all(users.iter().map(|user| claim(edge, user))).await;
        for (reply, took) in seen {
            assert!(matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
            assert!(took < ANSWER_MAX, "{took:?}");
        }
        // Given up by now but for a probe from time to time, each of which waits for it. Without that half of them would wait:
        // how many do depends on how long all of it takes.
        let mut slow = 0;
        for n in 0..CLAIMS {
            let (reply, took) = claim(edge, &format!("after-{n}")).await;
            assert!(matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
            slow += usize::from(took > AT_ONCE);
        }
        assert!(slow <= CLAIMS / 4, "{slow} of {CLAIMS} claims waited for a core that stands still");
        support::process::signal_pid(still.pid(), Signal::CONT);
    });
}

#[test]
fn a_core_that_has_lost_its_redis_is_passed_by() {
    with_two_cores("cores-cut-off", async |pair, edge| {
        pair.proxy.point_at("/no/such/redis.sock".into());
        let lost = pair.cores[0].claim("shared", "direct", "k").await;
        let _ = lost.refused(503, "unavailable");
        all_win(edge, "cut-off", ANSWER_MAX).await;
    });
}
