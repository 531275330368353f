//! Crashes under load: no acknowledged claim is lost, none is granted twice, and no limit is exceeded.

use std::time::{Duration, Instant};

use serde_json::json;
use support::checker::{Checker, Limits};
use support::only_on;
use support::process::{Signal, runs, signal_pid};
use support::rng::Rng;
use support::storm::{ClaimOutcome, claim_attempts};
use support::topology::OWN;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, SOON, claim_body, eventually, heavy, promised};

const ROUNDS: usize = 3;
const LIMITS: Limits = Limits { total: Some(1500), per_user: Some(2), per_user_per_day: None };
const CONCURRENT_CLAIMS: usize = 200;
/// Time limit from the death of core's own Redis until claims are decided again, even the fourth time: the pause before
/// the restart begins at 50 ms and doubles.
const RESTARTED_MAX: Duration = Duration::from_secs(2);
/// Time limit from the first death of core's own Redis until core starts it again, after a pause of 50 ms.
const STARTED_MAX: Duration = Duration::from_millis(500);
/// Time limit from a stop until core closes the connection of an incomplete request: 5 s for the requests in flight.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(7);

/// Makes 2,000 claims for 1,000 users and kills `victim` after a random number of acknowledged claims.
async fn kill_during_claims(core: &Core, campaign: &str, victim: u32, rng: &mut Rng) -> Checker {
    let checker = Checker::create(core, campaign, LIMITS).await;
    let kill_after = usize::try_from(rng.within(1, 1000)).unwrap();
    checker.kill_at(kill_after, victim);
    checker
        .storm(core.client(), || core.url("/internal/v1/claims"), &claim_attempts(1000, 2), CONCURRENT_CLAIMS)
        .await;
    checker.assert_killed();
    let unknown = checker.outcomes().values().filter(|seen| **seen == ClaimOutcome::Unknown).count();
    println!("{campaign}: killed after {kill_after} acknowledged claims, {unknown} of 2,000 unknown");
    assert!(unknown > 0, "killed too late to lose any answer");
    checker
}

/// Checks that all units are taken once each claim has a response, then lets `checker` judge the whole run.
async fn assert_all_taken(core: &Core, checker: &Checker) {
    checker.resolve_unknown(core).await;
    assert_eq!(checker.acknowledged().len(), 1500);
    checker.judge_without_loss(core).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_claim_is_lost_in_a_core_crash() {
    let _turn = heavy().await;
    let mut rng = Rng::seeded("core_killed");
    let mut core = Core::start().await;
    for round in 0..ROUNDS {
        let checker = kill_during_claims(&core, &format!("round{round}"), core.pid(), &mut rng).await;
        core.kill();
        core = core.restart().await;
        assert_all_taken(&core, &checker).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_claim_is_lost_in_a_redis_crash() {
    only_on!(OWN, "core restarts only its own Redis");
    let _turn = heavy().await;
    let mut rng = Rng::seeded("redis_killed");
    let core = Core::start().await;
    for round in 0..ROUNDS {
        let pid = core.redis_pid().await;
        let checker = kill_during_claims(&core, &format!("round{round}"), pid, &mut rng).await;
        checker.resolve_unknown(&core).await;
        assert_ne!(core.redis_pid().await, pid, "core has not restarted Redis");
        assert_all_taken(&core, &checker).await;
    }
    core.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_get_the_same_response_after_both_crash() {
    only_on!(OWN, "core restarts only its own Redis");
    let _turn = heavy().await;
    let mut core = Core::start().await;
    core.create("demo", json!({"total": 50})).await;
    let limits = Limits { total: Some(50), per_user: Some(1), per_user_per_day: None };
    let (first, second) = (Checker::new("demo", limits), Checker::new("demo", limits));
    first.storm(core.client(), || core.url("/internal/v1/claims"), &claim_attempts(100, 1), 100).await;
    first.resolve_unknown(&core).await;
    let redis = core.redis_pid().await;
    signal_pid(redis, Signal::KILL);
    core.kill();
    let core = core.restart().await;
    second.storm(core.client(), || core.url("/internal/v1/claims"), &claim_attempts(100, 1), 100).await;
    let answered = second.outcomes();
    second.resolve_unknown(&core).await;
    let after = second.outcomes();
    for (wish, seen) in &first.outcomes() {
        match (seen, &after[wish]) {
            (
                ClaimOutcome::Claimed { id, sequence, .. },
                ClaimOutcome::Claimed { id: again, sequence: place, replayed, .. },
            ) => {
                assert_eq!((id, sequence), (again, place), "{wish:?}");
                // The checker records a claim that it resends as a first response.
                let is_resent = answered[wish] == ClaimOutcome::Unknown;
                assert!(*replayed || is_resent, "{wish:?} was granted twice");
            }
            (ClaimOutcome::Denied { code, .. }, ClaimOutcome::Denied { code: again, .. }) => {
                assert_eq!(code, again, "{wish:?}");
            }
            other => panic!("{wish:?}: {other:?}"),
        }
    }
    first.judge_without_loss(&core).await;
}

#[tokio::test]
async fn a_killed_cores_redis_server_is_also_killed() {
    only_on!(OWN, "core stops only its own Redis");
    let mut core = Core::start().await;
    let redis = core.redis_pid().await;
    core.kill();
    eventually(SOON, || async { holds(!runs(redis), || format!("Redis {redis} still runs")) }).await;
}

#[tokio::test]
async fn a_shutdown_stops_redis_and_keeps_all_claims() {
    only_on!(OWN, "core stops only its own Redis");
    let mut core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let won = core.claim("demo", "alice", "k").await.expect(201).json();
    let redis = core.redis_pid().await;
    core.stop().await;
    assert!(!runs(redis), "Redis {redis} outlived its core");
    let core = core.restart().await;
    assert_eq!(core.claim("demo", "alice", "k").await.expect(200).json()["claim"], won["claim"]);
    assert_eq!(core.sql().until("demo", 1).await.len(), 1);
    core.claim("demo", "bob", "k").await.expect(201);
}

#[tokio::test]
async fn a_shutdown_completes_requests_in_flight() {
    let mut core = Core::start().await;
    core.create("demo", json!({})).await;
    let body = claim_body("demo", "alice", "k", 1).to_string();
    let request = support::raw::claim_request(&body);
    let mut raw = support::raw::Raw::connect(core.listen()).await;
    let (head, rest) = request.split_at(request.len() - 5);
    assert!(raw.send(head).await);
    let mut stalled = support::raw::Raw::connect(core.listen()).await;
    assert!(stalled.send(head).await);
    // Open one connection for each thread of core. The response on the request's own thread shows that the
    // request's head has been read.
    let mut others = Vec::new();
    for _ in 0..std::thread::available_parallelism().unwrap().get() {
        let mut other = support::raw::Raw::connect(core.listen()).await;
        assert!(other.send("GET /livez HTTP/1.1\r\nHost: core\r\n\r\n").await);
        assert_eq!(support::raw::status(&other.read_some().await), Some(200));
        others.push(other);
    }
    let stopping = Instant::now();
    core.process().signal(Signal::TERM);
    core.until_logged(SOON, &["stopping"]).await;
    for mut other in others {
        assert_eq!(other.read_to_end().await, b"", "an unexpected answer");
    }
    // If core had not closed the idle connections first, it would no longer wait for this request.
    assert!(raw.send(rest).await);
    assert_eq!(support::raw::status(&raw.read_to_end().await), Some(201), "a request in flight is answered");
    let (answer, took) = (stalled.read_to_end().await, stopping.elapsed());
    if answer.is_empty() {
        assert!(took.as_secs() >= 4 && took < promised(IN_FLIGHT_MAX), "closed after {took:?}, not 5 s");
    } else {
        // The request had been incomplete for too long before the stop.
        assert_eq!(support::raw::status(&answer), Some(408));
    }
    assert!(core.process().wait(SOON).await.success());
}

#[tokio::test]
async fn a_second_core_on_the_same_directory_does_not_start() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let log_before = core.log().len();
    let mut second = core.launch_again();
    let status = second.process().wait(SOON).await;
    assert!(!status.success());
    let log = core.log();
    let errors: Vec<_> = log[log_before..].lines().filter(|line| line.starts_with("claimgate:")).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].contains("CLAIMGATE_DATA_DIR") && errors[0].contains("another claimgate"),
        "{errors:?}"
    );
    core.claim("demo", "alice", "k").await.expect(201);
}

#[tokio::test]
async fn redis_is_restarted_each_time_it_dies() {
    only_on!(OWN, "core restarts only its own Redis");
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let mut last = core.redis_pid().await;
    for round in 0..4 {
        signal_pid(last, Signal::KILL);
        // The pause before the restart doubles with each round.
        if round == 0 {
            eventually(promised(STARTED_MAX), || async {
                let starts = core.log().matches("Redis started").count();
                holds(starts >= 2, || format!("{starts} starts"))
            })
            .await;
        }
        let key = format!("k{round}");
        let won = until_status(promised(RESTARTED_MAX), &[200, 201], async || {
            core.once().claim("demo", "alice", &key).await
        })
        .await;
        assert_eq!(won.json()["claim"]["sequence"], round + 1);
        let now = core.redis_pid().await;
        assert_ne!(now, last);
        last = now;
    }
    assert_eq!(core.sql().until("demo", 4).await.len(), 4);
}

/// A process that ignores SIGCHLD, as some supervisors do, hands this down to the programs that it starts.
#[tokio::test]
async fn redis_is_restarted_although_cores_parent_ignored_sigchld() {
    only_on!(OWN, "core restarts only its own Redis");
    let core = CoreOptions::default().through(&["env", "--ignore-signal=CHLD"]).start().await;
    core.create("demo", json!({"total": 10})).await;
    let redis = core.redis_pid().await;
    signal_pid(redis, Signal::KILL);
    // The kernel may take a moment to end a killed process.
    eventually(SOON, || async { holds(!runs(redis), || format!("Redis {redis} still runs")) }).await;
    until_status(SOON, &[200, 201], async || core.once().claim("demo", "alice", "k").await).await;
    assert_ne!(core.redis_pid().await, redis);
}
