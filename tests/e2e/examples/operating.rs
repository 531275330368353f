//! docs/operations.md and docs/redis-layout.md.

use serde_json::json;
use support::examples::{ExampleShell, Examples};
use support::only_on;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually};

const BACKUP: &str = "tests/faults/backup.rs";

#[tokio::test]
async fn the_operators_commands_work_as_shown() {
    // Use a directory on disk, because doctor reports directories in memory.
    let on_disk = tempfile::Builder::new().prefix("cg-").tempdir_in("/var/tmp").unwrap();
    let core = CoreOptions::default().start_in(on_disk).await;
    core.create("tickets", json!({"total": 10})).await;
    core.set_admin_state("tickets", "pause").await.expect(200);
    let desk = ExampleShell::of(&core).replacing("CAMPAIGN", "tickets");
    let mut operations = Examples::of("docs/operations.md");
    desk.write("campaigns.yaml", operations.next("- id: spring-sale"));
    let apply = operations.next("target/debug/claimgate campaign apply");
    for (status, preview, result) in
        [(1, "spring-sale: create", "members: created, version 1"), (0, "unchanged", "members: unchanged")]
    {
        let applied = desk.run_each(&apply).await;
        assert_eq!((applied[0].status, applied[1].status), (status, 0), "{applied:?}");
        assert!(applied[0].out.contains(preview) && applied[1].out.contains(result), "{applied:?}");
    }
    let _ = desk.run(&operations.next("target/debug/claimgate doctor")).await.ended(0);
    desk.write("claims.csv", operations.next("user_id,quantity"));
    let _ = desk
        .run(&operations.next("target/debug/claimgate campaign import"))
        .await
        .ended(0)
        .printed("1 claims imported");
    for report in desk.run_each(&operations.next("target/debug/claimgate report")).await {
        let _ = report.ended(0);
    }
    let audits = desk.run_each(&operations.next("target/debug/claimgate audit")).await;
    for audit in audits {
        let _ = audit.ended(0).printed("import");
    }
    let reconcile = operations.next("target/debug/claimgate reconcile");
    eventually(SOON, || async {
        let output = desk.run(&reconcile).await;
        holds(output.status == 0, || format!("{output:?}"))
    })
    .await;
    operations.left_out(
        "target/debug/claimgate drop-foreign",
        "faults::registers runs it with a foreign campaign, and waits 30 s",
    );
    for start in [
        "sqlite3 data/claimgate.sqlite",
        "pg_dump --format=custom",
        "cp data/admin.token",
        "rm -rf data/redis",
        "redis-cli -u",
        "cp backup.sqlite",
        "pg_restore --no-owner",
    ] {
        operations.run_in(start, BACKUP);
    }
    operations.end();
}

#[tokio::test]
async fn a_live_campaign_is_inspected_as_shown() {
    only_on!(OWN, "it inspects core's own Redis");
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.sql().until("demo", 1).await;
    let desk = ExampleShell::of(&core);
    let mut layout = Examples::of("docs/redis-layout.md");
    let show = layout.next("target/debug/claimgate campaign show demo");
    eventually(SOON, || async {
        let output = desk.run(&show).await;
        holds(output.status == 0 && output.out.contains("1 / 10"), || format!("{output:?}"))
    })
    .await;
    let look = layout.next("export REDISCLI_AUTH=");
    let _ = desk.run(&look).await.ended(0).printed("0000000").printed("consumers");
    let numbers = layout.next("redis-cli -s data/redis.sock --user claimgate EVAL");
    let auth = look.lines().next().unwrap();
    eventually(SOON, || async {
        let counted = desk.run(&format!("{auth}\n{numbers}")).await.ended(0).out;
        let counted: Vec<_> = counted.split_whitespace().collect();
        // After the admin state: sequence, units taken, events, backlog.
        holds(counted[1..5] == ["1", "1", "1", "0"], || format!("{counted:?}"))
    })
    .await;
    layout.end();
}
