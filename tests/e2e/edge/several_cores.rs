//! Two cores behind one edge: they share the load, and a core that cannot answer or decide is skipped.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use support::available::available;
use support::edge::Runtime;
use support::pair::{Pair, PairEdge};
use support::process::Signal;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, eventually, promised};

use super::run_alone;

/// Maximum time of any response to a browser.
const ANSWER_MAX: Duration = Duration::from_millis(2_500);
/// Far less than the timeout of a call to core.
const IMMEDIATE_MAX: Duration = Duration::from_secs(1);
const CLAIMS: usize = 40;
/// Number of claims that a slow disk may delay or leave undecided. A failed core would affect half of the
/// claims.
const DELAYED_MAX: usize = CLAIMS / 4;

/// Runs `test` with two cores that share the campaign `shared`, behind one edge.
fn with_two_cores(name: &str, test: impl AsyncFnOnce(Pair, &PairEdge)) {
    run_alone(async {
        let Some(pair) = available(name, Pair::start(CoreOptions::default()).await) else { return };
        let edge = pair.edge(Runtime::from_env(), name).await;
        pair.cores[0].create("shared", json!({"total": 10_000})).await;
        let first = edge.client.send(edge.claim_request("shared", "before", "k")).await;
        let _ = first.expect("an answer of the edge").expect(201);
        test(pair, &edge).await;
    });
}

/// Makes a claim of `user` with one request. Returns the response and its latency.
async fn claim(edge: &PairEdge, user: &str) -> (Reply, Duration) {
    let began = Instant::now();
    let request = edge.claim_request("shared", user, "k");
    let reply = edge.client.once().send(request).await.expect("an answer of the edge");
    (reply, began.elapsed())
}

/// Returns whether the claim was granted. Otherwise it must be undecided, which the contract permits.
pub fn is_granted(reply: &Reply) -> bool {
    let is_undecided = (reply.status, reply.code().as_str()) == (503, "unavailable");
    assert!(is_undecided || matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
    !is_undecided
}

/// Makes [`CLAIMS`] claims one after the other and checks that all but [`DELAYED_MAX`] are granted within `limit`.
async fn assert_claims_granted(edge: &PairEdge, users: &str, limit: Duration) {
    let mut held_up = Vec::new();
    for n in 0..CLAIMS {
        let (reply, took) = claim(edge, &format!("{users}-{n}")).await;
        if !is_granted(&reply) || took >= limit {
            held_up.push(took);
        }
    }
    assert!(held_up.len() <= DELAYED_MAX, "{} of {CLAIMS} claims were delayed: {held_up:?}", held_up.len());
}

/// Makes [`CLAIMS`] concurrent claims. Returns the responses and the latency of the slowest.
async fn concurrent_claims(edge: &PairEdge, users: &str) -> (Vec<Reply>, Duration) {
    let users: Vec<_> = (0..CLAIMS).map(|n| format!("{users}-{n}")).collect();
    let answers = join_all(users.iter().map(|user| claim(edge, user))).await;
    let slowest = answers.iter().map(|(_, took)| *took).max().expect("claims");
    (answers.into_iter().map(|(reply, _)| reply).collect(), slowest)
}

/// Returns the number of 503 responses of `core`.
pub async fn unavailable(core: &Core) -> usize {
    let metrics = core.admin_get("/metrics").await.expect(200).text();
    let counts = metrics.lines().filter(|line| line.starts_with("claimgate_unavailable_total{"));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}

/// Returns the number of claims that `core` has decided.
async fn decided(core: &Core) -> usize {
    core.metric("claimgate_decision_seconds_count").await.unwrap_or(0)
}

#[test]
fn claims_are_spread_evenly_and_fail_over_to_the_other_core() {
    with_two_cores("cores-dead", async |mut pair, edge| {
        let before = [decided(&pair.cores[0]).await, decided(&pair.cores[1]).await];
        assert_claims_granted(edge, "both", promised(IMMEDIATE_MAX)).await;
        for (core, before) in pair.cores.iter().zip(before) {
            let share = decided(core).await - before;
            // Not exactly half, because other calls are also rotated.
            assert!((CLAIMS * 2 / 5..=CLAIMS * 3 / 5).contains(&share), "{share} of {CLAIMS} claims");
        }
        pair.cores[0].kill();
        assert_claims_granted(edge, "one", promised(IMMEDIATE_MAX)).await;
        pair.cores[0] = pair.cores[0].restart().await;
        eventually(SOON, || async {
            assert_claims_granted(edge, "back", promised(IMMEDIATE_MAX)).await;
            holds(decided(&pair.cores[0]).await > 0, || "the first core gets no claims".to_owned())
        })
        .await;
        for core in &mut pair.cores {
            core.kill();
        }
        let (reply, took) = claim(edge, "late").await;
        let _ = reply.refused(503, "unavailable");
        assert!(took < promised(ANSWER_MAX), "{took:?}");
    });
}

#[test]
fn claims_continue_while_one_core_is_stalled() {
    with_two_cores("cores-still", async |pair, edge| {
        let [deciding, still] = &pair.cores;
        // Latency of this machine without a fault.
        let (_, usual) = concurrent_claims(edge, "usual").await;
        let before = unavailable(deciding).await;
        support::process::signal_pid(still.pid(), Signal::STOP);
        let (replies, slowest) = concurrent_claims(edge, "still").await;
        assert!(
            slowest < promised(ANSWER_MAX + usual),
            "the slowest took {slowest:?}, but {usual:?} with both cores"
        );
        // On a slow disk, the other core may leave some claims undecided.
        let undecided = replies.iter().filter(|reply| !is_granted(reply)).count();
        let by_the_other = unavailable(deciding).await - before;
        assert!(
            undecided <= by_the_other,
            "{undecided} claims are undecided, but the other core answered only {by_the_other} with 503"
        );
        // The breaker of the stalled core is open, so only occasional probes wait for that core. The number
        // of probes depends on the duration; without the breaker, half of the claims would wait.
        let mut slow = 0;
        for n in 0..CLAIMS {
            let (reply, took) = claim(edge, &format!("after-{n}")).await;
            slow += usize::from(!is_granted(&reply) || took > promised(IMMEDIATE_MAX));
        }
        assert!(slow <= DELAYED_MAX, "{slow} of {CLAIMS} claims waited for a stalled core");
        support::process::signal_pid(still.pid(), Signal::CONT);
    });
}

#[test]
fn a_core_that_lost_its_redis_is_skipped() {
    with_two_cores("cores-cut-off", async |pair, edge| {
        pair.proxy.point_at("/no/such/redis.sock".into());
        let lost = pair.cores[0].once().claim("shared", "direct", "k").await;
        let _ = lost.refused(503, "unavailable");
        assert_claims_granted(edge, "cut-off", promised(ANSWER_MAX)).await;
    });
}
