//! docs/campaign.md: a campaign from an empty directory to the winners' file.

use std::fs;

use serde_json::json;
use support::examples::{CommandOutput, ExampleShell, Examples};
use support::wait::holds;
use support::{Core, SOON, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_runs_from_idea_to_export() {
    let mut page = Examples::of("docs/campaign.md");
    let core = Core::start().await;
    let shell = ExampleShell::of(&core);
    let _ = shell.run(&page.next("printf 'SAVE-7F3A")).await.ended(0);
    let _ = shell.run(&page.next("claimgate campaign create spring")).await.ended(0);
    let claimed = shell.run(&page.next("claimgate claim spring")).await.ended(0);
    assert!(!claimed.out.contains("SAVE-"), "a claim's answer has no code: {claimed:?}");
    has_code(&core, "alice", "SAVE-7F3A").await;

    let watched = all_done(shell.run_each(&page.next("claimgate campaign show spring")).await);
    let [shown, counted, claims] = &watched[..] else { panic!("{watched:?}") };
    assert!(shown.contains("1 / 4"), "{shown}");
    assert_eq!(counted, "4 codes added, 1 assigned, 0 claims without codes\n");
    assert!(claims.contains("alice"), "{claims}");

    let raised = all_done(shell.run_each(&page.next("printf 'SAVE-Q5LN")).await);
    assert!(raised[2].contains("1 / 6"), "{raised:?}");
    core.claim("spring", "bob", "k").await.expect(201);
    has_code(&core, "bob", "SAVE-91KQ").await;

    let found = shell.run(&page.next("claimgate claims spring --user alice")).await.ended(0).out;
    let returned = page.next("claimgate return ");
    let id = returned.trim_start_matches("claimgate return ").trim();
    assert!(found.contains(id) && found.contains("SAVE-7F3A") && !found.contains("bob"), "{found}");
    for _ in 0..2 {
        let _ = shell.run(&returned).await.ended(0).printed("returned");
    }
    core.claim("spring", "carol", "k").await.expect(201);
    has_code(&core, "carol", "SAVE-M2XD").await;
    eventually(SOON, || async {
        let listed = core.admin_get("/admin/v1/campaigns/spring/claims?status=returned").await.json();
        holds(listed["items"][0]["id"] == id, || listed.to_string())
    })
    .await;

    all_done(shell.run_each(&page.next("claimgate campaign end spring")).await);
    let winners = fs::read_to_string(shell.directory().join("winners.csv")).unwrap();
    let lines: Vec<_> = winners.lines().collect();
    let [head, bob, carol] = &lines[..] else { panic!("{winners}") };
    assert!(head.ends_with(",codes"), "{winners}");
    assert!(bob.contains(",bob,") && bob.ends_with(",SAVE-91KQ"), "{winners}");
    assert!(carol.contains(",carol,") && carol.ends_with(",SAVE-M2XD"), "{winners}");
    let _ = shell.run(&page.next("claimgate report spring")).await.ended(0);
    assert!(fs::read_to_string(shell.directory().join("report.html")).unwrap().contains("spring"));
    page.end();
}

/// Returns what the commands printed; each must have succeeded.
fn all_done(outputs: Vec<CommandOutput>) -> Vec<String> {
    outputs.into_iter().map(|output| output.ended(0).out).collect()
}

async fn has_code(core: &Core, user: &str, wanted: &str) {
    eventually(SOON, || async {
        let path = format!("/internal/v1/campaigns/spring/users/{user}");
        let listed = core.get(&path).await.expect(200).json();
        let codes = &listed["items"][0]["codes"];
        holds(*codes == json!([wanted]), || codes.to_string())
    })
    .await;
}
