//! `make up-cluster` as used by a developer.

use support::process::{Signal, runs, signal_group, signal_pid};
use support::wait::holds;
use support::{SOON, eventually, heavy};

use crate::up::Up;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn make_up_survives_a_dead_primary_and_leaves_nothing_behind() {
    let _machine = heavy().await;
    let mut up = Up::start(&["wrangler", "cluster"], "redis").await;
    let ports = up.words_after("node at port ");
    assert_eq!(ports.len(), 6, "{}", up.printed());
    up.until_six_nodes(&ports[0]).await;

    let alice = up.until_claim("alice", &[201]).await;
    let second = up.words_after("second core      ").remove(0);
    let replay = up.claim_at(&second, "alice").await.expect(200).json();
    assert!(alice["claim"]["id"].is_string(), "{alice}");
    assert_eq!(alice["claim"]["id"], replay["claim"]["id"], "both cores belong to one installation");

    let primary = up.words_after("kill -9 ").remove(0).parse().unwrap();
    signal_pid(primary, Signal::KILL);
    // The status is 200 if the response to an earlier try was lost.
    up.until_claim("bob", &[200, 201]).await;
    eventually(SOON, || async { holds(up.printed().contains("it restarts in"), || up.printed()) }).await;
    for port in &ports {
        up.until_six_nodes(port).await;
    }

    let before = up.processes();
    signal_pid(up.first_core(), Signal::KILL);
    up.until_claim("carol", &[200, 201]).await;
    assert!(up.printed().contains("the other core continues"), "{}", up.printed());
    // Six nodes, PostgreSQL, two cores, wrangler and the script.
    assert!(before.len() >= 11, "{before:?}");
    signal_group(up.process.pid(), Signal::INT);
    let status = up.process.wait(SOON).await;
    assert!(status.success(), "{status}: {}", up.printed());
    let left: Vec<_> = before.into_iter().filter(|pid| runs(*pid)).collect();
    assert!(left.is_empty() && up.temporary().is_empty(), "{left:?}, {:?}", up.temporary());
}
