//! Memory of an idle core, and its startup time.

use std::time::Duration;

use support::only_on;
use support::topology::OWN;
use support::{Core, CoreOptions, SOON, eventually, heavy, promised};
use tokio::time::Instant;

const RESIDENT_KIB_MAX: u64 = 64 * 1024;
const READY_MAX: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_idle_core_needs_little_memory() {
    only_on!(OWN, "additional servers need additional connections");
    let _turn = heavy().await;
    let core = Core::start().await;
    core.create("demo", serde_json::json!({"total": 10})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.sql().until("demo", 1).await;
    let resident = core.resident_kib();
    println!("resident memory of an idle core: {resident} KiB");
    assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB");
}

#[tokio::test]
async fn core_is_ready_within_a_second() {
    only_on!(OWN, "the servers are started with core");
    let _turn = heavy().await;
    let mut times = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        let core = Core::launch(CoreOptions::default()).await;
        let url = core.admin_url("/readyz");
        eventually(SOON, || async {
            match core.client().try_get(&url, "").await {
                Ok(reply) if reply.status == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        times.push(started.elapsed());
    }
    println!("ready with an empty data directory after {times:?}");
    let best = times.iter().min().unwrap();
    assert!(*best < promised(READY_MAX), "the best of three took {best:?}");
}
