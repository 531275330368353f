//! The edge in front of lost responses and a dead core.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use support::wait::{holds, until_status};
use support::{Reply, SOON, eventually, promised};

use super::{claims_sent_to_core, run, strict_world};

#[test]
fn a_claim_with_a_lost_answer_is_retried_and_counts_once() {
    run(async {
        let world = strict_world().await;
        world.core.create("lost", json!({"total": 5})).await;
        world.proxy.lose_answers(1);
        let first = world.claim("lost", "alice", "k1").await;
        assert!(matches!(first.status, 200 | 201), "the edge retries: {}", first.text());
        world.proxy.lose_all_answers(true);
        let unknown = world.claim_once("lost", "bob", "k1").await.refused(503, "unavailable");
        assert_eq!(unknown.header("retry-after"), "1");
        world.proxy.lose_all_answers(false);
        let known = world.claim("lost", "bob", "k1").await.expect(200);
        assert_eq!(known.json()["claim"]["sequence"], 2);
        assert_eq!(world.core.sql().until("lost", 2).await.len(), 2);
    });
}

/// Core may answer a marked first try from its cache. The edge's own retry must not be marked, as the first
/// call may have won.
#[test]
fn the_first_try_mark_is_sent_to_core_only_once() {
    run(async {
        let world = strict_world().await;
        world.core.create("marked", json!({"total": 9})).await;
        let marks = |reply: &Reply| -> Vec<bool> {
            let forwarded = claims_sent_to_core(&world, reply).into_iter();
            forwarded.map(|text| text.to_lowercase().contains("\r\nclaimgate-attempt: 1\r\n")).collect()
        };
        let first_try = world.first_try("marked", "alice", "k").await.expect(201);
        assert_eq!(marks(&first_try), [true]);
        let keyless =
            until_status(SOON, &[201], async || world.send(world.claim_request("marked", "bob")).await).await;
        assert_eq!(marks(&keyless), [true], "the edge generated the key");
        let unmarked = world.claim("marked", "alice", "k").await.expect(200);
        assert_eq!(marks(&unmarked), [false]);
        let retry = world.claim_request("marked", "alice").header("Idempotency-Key", "k");
        let retry = world.send(retry.header("Claimgate-Attempt", "2")).await.expect(200);
        assert_eq!(marks(&retry), [false]);
        world.proxy.lose_answers(1);
        let lost = world.first_try("marked", "carol", "k").await;
        assert!(matches!(lost.status, 200 | 201), "{}", lost.text());
        assert_eq!(marks(&lost), [true, false], "the first call may have won");
    });
}

#[test]
fn claims_get_503_while_core_is_dead_and_then_resume() {
    run(async {
        let mut world = strict_world().await;
        world.core.create("dead", json!({"total": 5})).await;
        let won = world.claim("dead", "alice", "k1").await.expect(201).json();
        world.core.kill();
        for key in ["k1", "k2"] {
            let began = Instant::now();
            let refused = world.claim_once("dead", "alice", key).await.refused(503, "unavailable");
            assert!(began.elapsed() < promised(Duration::from_millis(2500)), "{:?}", began.elapsed());
            assert_eq!(refused.header("retry-after"), "1");
        }
        let id = won["claim"]["id"].as_str().unwrap();
        let _ = world.send_once(world.look_up_request(id, "alice")).await.refused(503, "unavailable");
        let _ = world.send_once(world.view_request("dead-unseen")).await.refused(503, "unavailable");
        world.restart_core().await;
        let tries = AtomicUsize::new(0);
        eventually(promised(Duration::from_secs(5)), || async {
            // Use a new user and address each time: the rate limiters also count calls that fail.
            let n = tries.fetch_add(1, Ordering::SeqCst);
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
