//! Killed at the worst moment: nothing acknowledged is lost, nothing is granted twice, no limit is passed.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use serde_json::json;
use support::only_on;
use support::process::{Signal, runs, signal_pid};
use support::rng::Rng;
use support::storm::{Bounds, Seen, check, kill_once, resolve_unknown, storm, wishes};
use support::topology::OWN;
use support::wait::holds;
use support::{Core, SOON, claim_body, eventually, heavy};

const ROUNDS: usize = 3;
/// 1,000 users, two keys each.
const BOUNDS: Bounds = Bounds { total: 1500, per_user: 2 };
const AT_ONCE: usize = 200;

fn limits() -> serde_json::Value {
    json!({"total": BOUNDS.total, "per_user": BOUNDS.per_user})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_killed_during_two_thousand_claims() {
    let _turn = heavy().await;
    let mut rng = Rng::seeded("core_killed");
    let mut core = Core::start().await;
    for round in 0..ROUNDS {
        let campaign = format!("round{round}");
        core.create(&campaign, limits()).await;
        let (wishes, acknowledged) = (wishes(1000, 2), Arc::new(AtomicUsize::new(0)));
        let kill_after = usize::try_from(rng.within(1, 1000)).unwrap();
        let pid = core.pid();
        let killer = kill_once(&acknowledged, kill_after, pid);
        let mut seen = storm(&core, &campaign, &wishes, AT_ONCE, &acknowledged).await;
        killer.join().unwrap();
        core.kill();
        let unknown = seen.values().filter(|seen| **seen == Seen::Unknown).count();
        println!(
            "round {round}: killed core after {kill_after} acknowledged claims, {unknown} of 2,000 unknown"
        );
        assert!(unknown > 0, "core was killed too late to matter");
        core = core.restart().await;
        resolve_unknown(&core, &campaign, &mut seen).await;
        check(&core, &campaign, &seen, BOUNDS).await;
        let granted = seen.values().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
        assert_eq!(granted, 1500, "once all have an answer, all units are taken");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_during_two_thousand_claims() {
    only_on!(OWN, "core starts its own Redis again");
    let _turn = heavy().await;
    let mut rng = Rng::seeded("redis_killed");
    let core = Core::start().await;
    for round in 0..ROUNDS {
        let campaign = format!("round{round}");
        core.create(&campaign, limits()).await;
        let (wishes, acknowledged) = (wishes(1000, 2), Arc::new(AtomicUsize::new(0)));
        let kill_after = usize::try_from(rng.within(1, 1000)).unwrap();
        let pid = core.redis_pid().await;
        let killer = kill_once(&acknowledged, kill_after, pid);
        let mut seen = storm(&core, &campaign, &wishes, AT_ONCE, &acknowledged).await;
        killer.join().unwrap();
        let unknown = seen.values().filter(|seen| **seen == Seen::Unknown).count();
        println!(
            "round {round}: killed Redis after {kill_after} acknowledged claims, {unknown} of 2,000 unknown"
        );
        assert!(unknown > 0, "Redis was killed too late to matter");
        resolve_unknown(&core, &campaign, &mut seen).await;
        assert_ne!(core.redis_pid().await, pid, "core has started another Redis");
        check(&core, &campaign, &seen, BOUNDS).await;
        let granted = seen.values().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
        assert_eq!(granted, 1500, "once all have an answer, all units are taken");
    }
    core.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn winners_meet_their_claims_after_both_were_killed() {
    only_on!(OWN, "core starts its own Redis again");
    let _turn = heavy().await;
    let mut core = Core::start().await;
    core.create("demo", json!({"total": 50})).await;
    let (wishes, acknowledged) = (wishes(100, 1), AtomicUsize::new(0));
    let before = storm(&core, "demo", &wishes, 100, &acknowledged).await;
    let redis = core.redis_pid().await;
    signal_pid(redis, Signal::KILL);
    core.kill();
    let core = core.restart().await;
    let after = storm(&core, "demo", &wishes, 100, &acknowledged).await;
    for (wish, seen) in &before {
        match (seen, &after[wish]) {
            (
                Seen::Claimed { id, sequence, .. },
                Seen::Claimed { id: again, sequence: place, replayed: true, .. },
            ) => {
                assert_eq!((id, sequence), (again, place), "{wish:?}");
            }
            (Seen::Denied { code, .. }, Seen::Denied { code: again, .. }) => {
                assert_eq!(code, again, "{wish:?}");
            }
            other => panic!("{wish:?}: {other:?}"),
        }
    }
    check(&core, "demo", &before, Bounds { total: 50, per_user: 1 }).await;
}

#[tokio::test]
async fn a_killed_core_leaves_no_redis_behind() {
    only_on!(OWN, "core ends its own Redis");
    let mut core = Core::start().await;
    let redis = core.redis_pid().await;
    core.kill();
    eventually(SOON, || async { holds(!runs(redis), || format!("Redis {redis} still runs")) }).await;
}

#[tokio::test]
async fn a_core_told_to_stop_stops_all_and_keeps_all() {
    only_on!(OWN, "core ends its own Redis");
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
async fn a_core_told_to_stop_finishes_what_is_under_way() {
    let mut core = Core::start().await;
    core.create("demo", json!({})).await;
    let body = claim_body("demo", "alice", "k", 1).to_string();
    let request = support::raw::claim_request(&body);
    let mut raw = support::raw::Raw::connect(core.listen()).await;
    let (head, rest) = request.split_at(request.len() - 5);
    assert!(raw.send(head).await);
    // As many more connections as core has threads: one of them is on the request's thread, which has read its head by then.
    let mut others = Vec::new();
    for _ in 0..std::thread::available_parallelism().unwrap().get() {
        let mut other = support::raw::Raw::connect(core.listen()).await;
        assert!(other.send("GET /livez HTTP/1.1\r\nHost: core\r\n\r\n").await);
        assert_eq!(support::raw::status(&other.read_some().await), Some(200));
        others.push(other);
    }
    core.process().signal(Signal::TERM);
    eventually(SOON, || async { holds(core.log().contains("stopping"), || "core has not heard".to_owned()) })
        .await;
    // Idle connections end at once: core does not wait for them as long as for the request.
    for mut other in others {
        assert_eq!(other.read_to_end().await, b"", "said without being asked");
    }
    assert!(raw.send(rest).await);
    assert_eq!(support::raw::status(&raw.read_to_end().await), Some(201), "a request in flight is answered");
    assert!(core.process().wait(SOON).await.success());
}

#[tokio::test]
async fn a_second_core_on_the_same_directory_is_refused() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let log_before = core.log().len();
    let mut second = core.launch_again();
    let status = second.process().wait(SOON).await;
    assert!(!status.success());
    let log = core.log();
    let said: Vec<_> = log[log_before..].lines().filter(|line| line.starts_with("claimgate:")).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("CLAIMGATE_DATA_DIR") && said[0].contains("another claimgate"), "{said:?}");
    core.claim("demo", "alice", "k").await.expect(201);
}

#[tokio::test]
async fn a_redis_that_dies_is_started_again_and_again() {
    only_on!(OWN, "core starts its own Redis again");
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let mut last = core.redis_pid().await;
    for round in 0..4 {
        signal_pid(last, Signal::KILL);
        let won = eventually(SOON, || async {
            let reply = core.claim("demo", "alice", &format!("k{round}")).await;
            holds(reply.status < 300, || reply.text()).map(|()| reply)
        })
        .await;
        assert_eq!(won.json()["claim"]["sequence"], round + 1);
        let now = core.redis_pid().await;
        assert_ne!(now, last);
        last = now;
    }
    assert_eq!(core.sql().until("demo", 4).await.len(), 4);
}
