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
/// Claims that a slow disk may hold up or leave undecided. A core that fails would do so to half of them.
const HELD_UP_MAX: usize = CLAIMS / 4;

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
        let first = edge.client.send(edge.claim_request("shared", "before", "k")).await;
        let _ = first.expect("an answer of the edge").expect(201);
        test(pair, &edge).await;
    });
}

/// A claim of `user` by one request, and how long the answer took.
async fn claim(edge: &PairEdge, user: &str) -> (Reply, Duration) {
    let began = Instant::now();
    let request = edge.claim_request("shared", user, "k");
    let reply = edge.client.once().send(request).await.expect("an answer of the edge");
    (reply, began.elapsed())
}

/// Whether the claim was granted; otherwise it was left undecided, as the contract permits.
pub fn is_granted(reply: &Reply) -> bool {
    let is_undecided = (reply.status, reply.code().as_str()) == (503, "unavailable");
    assert!(is_undecided || matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
    !is_undecided
}

/// As many claims one after the other; all but [`HELD_UP_MAX`] are granted within `limit`.
async fn all_win(edge: &PairEdge, users: &str, limit: Duration) {
    let mut held_up = Vec::new();
    for n in 0..CLAIMS {
        let (reply, took) = claim(edge, &format!("{users}-{n}")).await;
        if !is_granted(&reply) || took >= limit {
            held_up.push(took);
        }
    }
    assert!(held_up.len() <= HELD_UP_MAX, "{} of {CLAIMS} are held up: {held_up:?}", held_up.len());
}

/// As many claims at once, and the time of the slowest.
async fn all_at_once(edge: &PairEdge, users: &str) -> (Vec<Reply>, Duration) {
    let users: Vec<_> = (0..CLAIMS).map(|n| format!("{users}-{n}")).collect();
    let answers = join_all(users.iter().map(|user| claim(edge, user))).await;
    let slowest = answers.iter().map(|(_, took)| *took).max().expect("claims");
    (answers.into_iter().map(|(reply, _)| reply).collect(), slowest)
}

/// Answers with 503 that `core` has given.
pub async fn unavailable(core: &Core) -> usize {
    let metrics = core.admin_get("/metrics").await.expect(200).text();
    let counts = metrics.lines().filter(|line| line.starts_with("claimgate_unavailable_total{"));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
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
        let [deciding, still] = &pair.cores;
        // By this machine, while nothing is wrong.
        let (_, usual) = all_at_once(edge, "usual").await;
        let before = unavailable(deciding).await;
        support::process::signal_pid(still.pid(), Signal::STOP);
        let (replies, slowest) = all_at_once(edge, "still").await;
        assert!(slowest < ANSWER_MAX + usual, "{slowest:?}, and {usual:?} with both cores");
        // Where the disk is slow, the other core may leave some undecided.
        let undecided = replies.iter().filter(|reply| !is_granted(reply)).count();
        let by_the_other = unavailable(deciding).await - before;
        assert!(undecided <= by_the_other, "{undecided} are undecided, {by_the_other} by the other core");
        // Given up by now but for a probe from time to time, each of which waits for it. Without that half of them would wait:
        // how many do depends on how long all of it takes.
        let mut slow = 0;
        for n in 0..CLAIMS {
            let (reply, took) = claim(edge, &format!("after-{n}")).await;
            slow += usize::from(!is_granted(&reply) || took > AT_ONCE);
        }
        assert!(slow <= HELD_UP_MAX, "{slow} of {CLAIMS} claims waited for a core that stands still");
        support::process::signal_pid(still.pid(), Signal::CONT);
    });
}

#[test]
fn a_core_that_has_lost_its_redis_is_passed_by() {
    with_two_cores("cores-cut-off", async |pair, edge| {
        pair.proxy.point_at("/no/such/redis.sock".into());
        let lost = pair.cores[0].once().claim("shared", "direct", "k").await;
        let _ = lost.refused(503, "unavailable");
        all_win(edge, "cut-off", ANSWER_MAX).await;
    });
}
