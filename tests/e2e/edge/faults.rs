//! Lost answers and a dead core behind the edge.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use support::wait::holds;
use support::{Reply, eventually};

use super::{claims_passed_on, run, strict_world};

#[test]
fn a_lost_answer_is_asked_for_again_and_is_one_claim() {
    run(async {
        let world = strict_world().await;
        world.core.create("lost", json!({"total": 5})).await;
        world.proxy.lose_answers(1);
        let first = world.claim("lost", "alice", "k1").await;
        assert!(matches!(first.status, 200 | 201), "the edge asks again: {}", first.text());
        world.proxy.lose_all_answers(true);
        let unknown = world.claim_once("lost", "bob", "k1").await.refused(503, "unavailable");
        assert_eq!(unknown.header("retry-after"), "1");
        world.proxy.lose_all_answers(false);
        let known = world.claim("lost", "bob", "k1").await.expect(200);
        assert_eq!(known.json()["claim"]["sequence"], 2);
        assert_eq!(world.core.sql().until("lost", 2).await.len(), 2);
    });
}

/// Core may answer a first try from its memory, which a retry of the edge's own must not meet: the first asking may have won.
#[test]
fn the_mark_of_a_first_try_goes_on_to_core_once() {
    run(async {
        let world = strict_world().await;
        world.core.create("marked", json!({"total": 9})).await;
        let marks = |reply: &Reply| -> Vec<bool> {
            let said = claims_passed_on(&world, reply).into_iter();
            said.map(|text| text.to_lowercase().contains("\r\nclaimgate-attempt: 1\r\n")).collect()
        };
        let first_try = world.first_try("marked", "alice", "k").await.expect(201);
        assert_eq!(marks(&first_try), [true]);
        let keyless = world.send(world.claim_request("marked", "bob")).await.expect(201);
        assert_eq!(marks(&keyless), [true], "its key is the edge's own");
        let unmarked = world.claim("marked", "alice", "k").await.expect(200);
        assert_eq!(marks(&unmarked), [false]);
        let retry = world.claim_request("marked", "alice").header("Idempotency-Key", "k");
        let retry = world.send(retry.header("Claimgate-Attempt", "2")).await.expect(200);
        assert_eq!(marks(&retry), [false]);
        world.proxy.lose_answers(1);
        let lost = world.first_try("marked", "carol", "k").await;
        assert!(matches!(lost.status, 200 | 201), "{}", lost.text());
        assert_eq!(marks(&lost), [true, false], "it may have won");
    });
}

#[test]
fn a_dead_core_is_said_to_be_unavailable_and_claims_flow_when_it_is_back() {
    run(async {
        let mut world = strict_world().await;
        world.core.create("dead", json!({"total": 5})).await;
        let won = world.claim("dead", "alice", "k1").await.expect(201).json();
        world.core.kill();
        for key in ["k1", "k2"] {
            let began = Instant::now();
            let refused = world.claim_once("dead", "alice", key).await.refused(503, "unavailable");
            assert!(began.elapsed() < Duration::from_millis(2500), "{:?}", began.elapsed());
            assert_eq!(refused.header("retry-after"), "1");
        }
        let id = won["claim"]["id"].as_str().unwrap();
        let _ = world.send_once(world.look_up_request(id, "alice")).await.refused(503, "unavailable");
        let _ = world.send_once(world.view_request("dead-unseen")).await.refused(503, "unavailable");
        world.restart_core().await;
        let asked = AtomicUsize::new(0);
        eventually(Duration::from_secs(5), || async {
            // Each time another user from elsewhere: the limiters also count callers whom a dead core keeps waiting.
            let n = asked.fetch_add(1, Ordering::SeqCst);
            let claim = world.claim_request("dead", &format!("bob{n}"));
            let reply = world.send(claim.header("CF-Connecting-IP", format!("2001:db8:dead:{n:x}::1"))).await;
            holds(reply.status < 300, || reply.text())
        })
        .await;
        assert_eq!(world.claim("dead", "alice", "k1").await.expect(200).json()["claim"], won["claim"]);
        let taken = usize::try_from(world.core.redis().await.counter("dead", "taken").await).unwrap();
        assert_eq!(world.core.sql().until("dead", taken).await.len(), taken);
    });
}
