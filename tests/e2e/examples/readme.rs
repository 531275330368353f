//! The two READMEs, and docs/drill.md.

use serde_json::json;
use support::edge::{Runtime, World};
use support::examples::{Desk, Examples, Said};
use support::wait::holds;
use support::{SOON, eventually};

use crate::edge::{run, run_alone};

fn desk(world: &World) -> Desk {
    Desk::of(&world.core).replacing("127.0.0.1:8787", &world.edge.listen.to_string())
}

#[test]
fn what_the_readme_shows_is_what_happens() {
    run(async {
        let world = World::start(Runtime::asked(), "examples-readme", "local", &[]).await;
        let desk = desk(&world);
        let mut readme = Examples::of("README.md");
        readme.left_out("sequenceDiagram", "a drawing");
        readme.left_out(
            "make up\n",
            "it installs and builds; e2e::up_cluster runs the script behind it, `make bare` all of it",
        );
        readme.left_out("make test\n", "it runs this");
        first_claims(desk.run_each(&readme.next("target/debug/claimgate campaign create")).await);
        over_http(&desk, &readme.next("curl -sH")).await;
        let _ = desk.run(&readme.next("target/debug/claimgate drill")).await.ended(0).said("passed");
        readme.end();
    });
}

fn first_claims(said: Vec<Said>) {
    let mut said = said.into_iter();
    let mut next = |status, words| said.next().expect("a command").ended(status).said(words);
    let _ = next(0, "tickets");
    let _ = next(0, "granted");
    let _ = next(0, "granted (asked before: the same claim)");
    let _ = next(1, "user_daily_limit_reached");
    let _ = next(0, "1 / 100");
    assert!(said.next().is_none());
}

async fn over_http(desk: &Desk, example: &str) {
    let commands = desk.commands(example);
    let [bob, carol, carols, rows, changes] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(desk.run(bob).await.ended(0).json()["claim"]["user_id"], "bob");
    let claim = desk.run(carol).await.ended(0).json()["claim"].clone();
    let has = desk.run(carols).await.ended(0).json();
    assert_eq!((&has["items"], &has["allowance"]["per_user_per_day"]), (&json!([claim]), &json!(0)));
    for all in [rows, changes] {
        eventually(SOON, || async {
            let said = desk.run(all).await.ended(0).out;
            let has = |user: &str| said.contains(&format!("tickets.{user}."));
            holds(["alice", "bob", "carol"].into_iter().all(has), || said.clone())
        })
        .await;
    }
}

#[test]
fn the_chinese_documents_show_the_same() {
    Examples::of("README.zh-CN.md").are_those_of(Examples::of("README.md"));
    Examples::of("docs/migrating.zh-CN.md").are_those_of(Examples::of("docs/migrating.md"));
}

#[test]
fn the_drill_passes_and_fails_as_it_is_shown() {
    run_alone(async {
        let world = World::start(Runtime::asked(), "examples-drill", "test", &[]).await;
        let desk = desk(&world);
        let mut drill = Examples::of("docs/drill.md");
        let _ = desk
            .run(&drill.next("target/debug/claimgate drill http://127.0.0.1:8787"))
            .await
            .ended(0)
            .said("passed");
        let _ = desk
            .run(&drill.next("target/debug/claimgate drill http://127.0.0.1:8080"))
            .await
            .ended(1)
            .said("FAILED");
        drill.end();
    });
}
