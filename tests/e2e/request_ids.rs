//! A request's id goes with it: from the edge to core's log and into the problem that the caller gets.

use serde_json::json;
use support::CoreOptions;
use support::edge::{Runtime, World};
use support::wait::{SOON, eventually, holds};

use crate::edge::run_alone;

#[test]
fn the_edge_core_and_the_caller_know_a_request_by_the_same_id() {
    run_alone(async {
        let core = CoreOptions::default().with("RUST_LOG", "info,claimgate_core::http=debug").start().await;
        core.create("demo", json!({"total": 1})).await;
        let mut world = World::before(core, Runtime::asked(), "request-ids", "test", &[]).await;
        let granted = world.claim("demo", "alice", "k").await.expect(201);
        let denied = world.claim("demo", "bob", "k").await.refused(409, "sold_out");
        let id = denied.header("x-request-id");
        assert_eq!(denied.json()["instance"], id);
        for (reply, said) in [(&granted, "status=201"), (&denied, "status=409 code=\"sold_out\"")] {
            let id = format!("request=\"{}\"", reply.header("x-request-id"));
            eventually(SOON, || async {
                let log = world.core.log();
                // The edge asks for the campaign by the same id.
                let is_told = |line: &str| [&*id, "answered", said].iter().all(|part| line.contains(part));
                holds(log.lines().any(is_told), || format!("{id} {said}\n{log}"))
            })
            .await;
        }
        // What no core answers is told by the edge, by the same id.
        world.core.kill();
        let lost = world.claim_once("demo", "carol", "k").await.expect(503);
        let id = lost.header("x-request-id").to_owned();
        assert_eq!(lost.json()["instance"], id);
        eventually(SOON, || async {
            let log = world.edge.log();
            holds(log.contains(&format!("{id} no answer from core")), || log)
        })
        .await;
    });
}
