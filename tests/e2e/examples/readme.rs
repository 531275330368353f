//! Both READMEs, and docs/drill.md.

use serde_json::json;
use support::edge::{Runtime, World};
use support::examples::{CommandOutput, ExampleShell, Examples};
use support::times::zone_far_from_midnight;
use support::wait::holds;
use support::{SOON, eventually};

use crate::edge::{run, run_alone};

fn desk(world: &World) -> ExampleShell {
    ExampleShell::of(&world.core)
        .replacing("127.0.0.1:8787", &world.edge.listen.to_string())
        .replacing("Asia/Shanghai", zone_far_from_midnight())
}

#[test]
fn the_readme_works_as_shown() {
    run(async {
        let world = World::start(Runtime::from_env(), "examples-readme", "local", &[]).await;
        let desk = desk(&world);
        let mut readme = Examples::of("README.md");
        readme.left_out("sequenceDiagram", "a diagram");
        readme.left_out("docker compose up\n", "tests/images.sh runs it");
        readme.left_out(
            "make up\n",
            "it installs and builds; e2e::up_cluster runs its script, and `make bare` runs everything",
        );
        let [by_hand, http, drill] =
            ["target/debug/claimgate campaign create", "curl -sH", "target/debug/claimgate drill"]
                .map(|start| readme.next(start));
        readme.end();
        check_first_claims(desk.run_each(&by_hand).await, "granted", "1 / 100");
        check_http(&desk, &http).await;
        // A reader may rerun the examples from the start.
        check_first_claims(
            desk.run_each(&by_hand).await,
            "granted (replay: the same claim as before)",
            "3 / 100",
        );
        check_http(&desk, &http).await;
        for _ in 0..2 {
            let _ = desk.run(&drill).await.ended(0).printed("passed");
        }
    });
}

fn check_first_claims(output: Vec<CommandOutput>, first: &str, taken: &str) {
    let mut output = output.into_iter();
    let mut next = |status, words: &str| output.next().expect("a command").ended(status).printed(words);
    let _ = next(0, "tickets");
    let _ = next(0, first);
    let _ = next(0, "granted (replay: the same claim as before)");
    let _ = next(1, "user_daily_limit_reached");
    let _ = next(0, taken);
    assert!(output.next().is_none());
}

async fn check_http(desk: &ExampleShell, example: &str) {
    let commands = desk.commands(example);
    let [bob, carol, carols, rows, changes] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(desk.run(bob).await.ended(0).json()["claim"]["user_id"], "bob");
    let claim = desk.run(carol).await.ended(0).json()["claim"].clone();
    let has = desk.run(carols).await.ended(0).json();
    assert_eq!((&has["items"], &has["allowance"]["per_user_per_day"]), (&json!([claim]), &json!(0)));
    for all in [rows, changes] {
        eventually(SOON, || async {
            let output = desk.run(all).await.ended(0).out;
            let has = |user: &str| output.contains(&format!("tickets.{user}."));
            holds(["alice", "bob", "carol"].into_iter().all(has), || output.clone())
        })
        .await;
    }
}

#[test]
fn the_chinese_documents_have_the_same_examples() {
    Examples::of("README.zh-CN.md").assert_same_as(Examples::of("README.md"));
    Examples::of("docs/migrating.zh-CN.md").assert_same_as(Examples::of("docs/migrating.md"));
}

#[test]
fn the_drill_passes_and_fails_as_the_readme_shows() {
    run_alone(async {
        let world = World::start(Runtime::from_env(), "examples-drill", "test", &[]).await;
        let desk = desk(&world);
        let mut drill = Examples::of("docs/drill.md");
        let _ = desk
            .run(&drill.next("target/debug/claimgate drill http://127.0.0.1:8787"))
            .await
            .ended(0)
            .printed("passed");
        let _ = desk
            .run(&drill.next("target/debug/claimgate drill http://127.0.0.1:8080"))
            .await
            .ended(1)
            .printed("FAILED");
        drill.end();
    });
}
