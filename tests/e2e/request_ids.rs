//! A request's id is the same at the edge, in core's log and in the problem that the caller gets.

use serde_json::json;
use support::edge::{Runtime, World};
use support::wait::{eventually, holds};
use support::{CoreOptions, SOON};

use crate::edge::run;

#[test]
fn edge_core_and_caller_see_the_same_request_id() {
    run(async {
        let core = CoreOptions::default().with("RUST_LOG", "info,claimgate_core::http=debug").start().await;
        core.create("demo", json!({"total": 1})).await;
        let mut world = World::before(core, Runtime::from_env(), "request-ids", "test", &[]).await;
        let granted = world.claim("demo", "alice", "k").await.expect(201);
        let denied = world.claim("demo", "bob", "k").await.refused(409, "sold_out");
        let id = denied.header("x-request-id");
        assert_eq!(denied.json()["instance"], id);
        // 200 if the claim was retried after a 503.
        let granted_status = format!("status={}", granted.status);
        for (reply, expected) in
            [(&granted, granted_status.as_str()), (&denied, "status=409 code=\"sold_out\"")]
        {
            let id = format!("request=\"{}\"", reply.header("x-request-id"));
            // The edge also uses this id when it requests the campaign.
            world.core.until_logged(SOON, &[&id, "answered", expected]).await;
        }
        // If core does not answer, the problem that the edge returns has the same id.
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
