//! `make up-cluster` as its user meets it.

use support::process::{Signal, runs, signal_group, signal_pid};
use support::wait::holds;
use support::{SOON, eventually, heavy};

use crate::up::Up;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up_cluster_survives_a_primary_and_leaves_nothing_behind() {
    let _machine = heavy().await;
    let mut up = Up::start(&["wrangler", "cluster"], "redis").await;
    let ports = up.told("node at port ");
    assert_eq!(ports.len(), 6, "{}", up.said());
    up.six_nodes(&ports[0]).await;

    let alice = up.claims("alice", &[201]).await;
    let second = up.told("second core      ").remove(0);
    let replay = up.claim_at(&second, "alice").await.expect(200).json();
    assert!(alice["claim"]["id"].is_string(), "{alice}");
    assert_eq!(alice["claim"]["id"], replay["claim"]["id"], "both cores are of one installation");

    let primary = up.told("kill -9 ").remove(0).parse().unwrap();
    signal_pid(primary, Signal::KILL);
    // Decided already where the answer to an earlier try was lost.
    up.claims("bob", &[200, 201]).await;
    eventually(SOON, || async { holds(up.said().contains("is started again"), || up.said()) }).await;
    for port in &ports {
        up.six_nodes(port).await;
    }

    let before = up.processes();
    signal_pid(up.first_core(), Signal::KILL);
    up.claims("carol", &[200, 201]).await;
    assert!(up.said().contains("the other one goes on"), "{}", up.said());
    // Six nodes, PostgreSQL, two cores, wrangler and the script.
    assert!(before.len() >= 11, "{before:?}");
    signal_group(up.process.pid(), Signal::INT);
    let status = up.process.wait(2 * SOON).await;
    assert!(status.success(), "{status}: {}", up.said());
    let left: Vec<_> = before.into_iter().filter(|pid| runs(*pid)).collect();
    assert!(left.is_empty() && up.temporary().is_empty(), "{left:?}, {:?}", up.temporary());
}
