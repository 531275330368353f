//! `/readyz` reports each node of a cluster. Core stays ready if one node is lost permanently, and is not
//! ready if all nodes are lost.

use serde_json::{Value, json};
use support::cluster::ClusterSet;
use support::only_on;
use support::process::{Signal, signal_pid};
use support::redis_server::Kind;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually, undisturbed};

use crate::tally::Row;

/// Campaigns on all three primaries.
const CAMPAIGNS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

/// Waits until core reports these primaries as up and the others as down.
async fn until_up(core: &Core, set: &ClusterSet, up: [bool; 3]) {
    eventually(SOON, || async {
        let reply = core.get("/readyz").await.expect(200).json();
        let found = |at: usize| -> Option<&str> {
            let address = Value::from(set.address(at).to_string());
            let nodes = reply["redis_nodes"].as_array()?;
            nodes.iter().find(|node| node["address"] == address)?["state"].as_str()
        };
        let right = (0..3).all(|at| found(at) == Some(if up[at] { "up" } else { "down" }));
        holds(right && reply["redis"] == "up", || reply.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_is_reported_but_core_stays_ready() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let row = Row::begin_on(kind, "Cluster: a primary and its replica lost, then all nodes");
    let _turn = undisturbed().await;
    let set = ClusterSet::start_without_failovers(kind).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", set.url()).start().await;
    for campaign in CAMPAIGNS {
        core.create(campaign, json!({"total": 100})).await;
        core.claim(campaign, "before", "k").await.expect(201);
    }
    until_up(&core, &set, [true; 3]).await;
    let lost = set.primary_of("c0", 0).await;
    let observer = (lost + 1) % 3;
    let mut pids = Vec::new();
    for node in 0..6 {
        pids.push(set.view(node).await.pid().await);
    }
    row.fault();
    for node in [lost + 3, lost] {
        signal_pid(pids[node], Signal::KILL);
    }
    until_up(&core, &set, [0, 1, 2].map(|at| at != lost)).await;
    for campaign in CAMPAIGNS {
        let is_lost = set.primary_of(campaign, observer).await == lost;
        if is_lost {
            core.once().claim(campaign, "after", "k").await.expect(503);
        } else {
            core.claim(campaign, "after", "k").await.expect(201);
        }
    }
    row.fault();
    for pid in pids {
        signal_pid(pid, Signal::KILL);
    }
    eventually(SOON, || async {
        let reply = core.get("/readyz").await;
        holds(reply.status == 503 && reply.code() == "unavailable", || reply.text())
    })
    .await;
    row.passed(3 * CAMPAIGNS.len(), "the other nodes decided");
}
