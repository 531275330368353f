//! docs/codes.md: a campaign from an empty directory to the winners' file.

use std::fs;

use serde_json::json;
use support::examples::{ExampleShell, Examples};
use support::wait::holds;
use support::{Core, SOON, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_runs_from_idea_to_export() {
    let mut page = Examples::of("docs/codes.md");
    let core = Core::start().await;
    let shell = ExampleShell::of(&core);
    let _ = shell.run(&page.next("printf 'SAVE-7F3A")).await.ended(0);
    let _ = shell.run(&page.next("claimgate campaign create spring")).await.ended(0);
    let claimed = shell.run(&page.next("claimgate claim spring")).await.ended(0);
    assert!(!claimed.out.contains("SAVE-"), "a claim's answer has no code: {claimed:?}");
    eventually(SOON, || async {
        let listed = core.get("/internal/v1/campaigns/spring/users/alice").await.expect(200).json();
        let codes = &listed["items"][0]["codes"];
        holds(*codes == json!(["SAVE-7F3A"]), || codes.to_string())
    })
    .await;
    let counted = shell.run(&page.next("claimgate campaign codes count")).await.ended(0);
    assert_eq!(counted.out, "4 codes added, 1 assigned, 0 claims without codes\n");
    for done in shell.run_each(&page.next("printf 'SAVE-Q5LN")).await {
        let _ = done.ended(0);
    }
    core.claim("spring", "bob", "k").await.expect(201);
    core.sql().until("spring", 2).await;
    eventually(SOON, || async {
        let listed = core.get("/internal/v1/campaigns/spring/users/bob").await.expect(200).json();
        let codes = &listed["items"][0]["codes"];
        holds(*codes == json!(["SAVE-91KQ"]), || codes.to_string())
    })
    .await;
    for done in shell.run_each(&page.next("claimgate campaign end spring")).await {
        let _ = done.ended(0);
    }
    let winners = fs::read_to_string(shell.directory().join("winners.csv")).unwrap();
    let lines: Vec<_> = winners.lines().collect();
    assert!(lines[0].ends_with(",codes"), "{winners}");
    assert!(lines[1].contains(",alice,") && lines[1].ends_with(",SAVE-7F3A"), "{winners}");
    assert!(lines[2].contains(",bob,") && lines[2].ends_with(",SAVE-91KQ"), "{winners}");
    page.end();
}
