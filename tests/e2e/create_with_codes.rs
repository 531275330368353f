//! `claimgate campaign create --codes` checks the file before it creates the campaign.

use serde_json::json;
use support::Core;

use crate::command_line::run_against;

#[tokio::test]
async fn a_campaign_is_created_only_with_a_valid_file_of_codes() {
    let core = Core::start().await;
    let file = core.data_dir().join("codes.csv");
    let path = file.to_str().unwrap();
    let create = ["campaign", "create", "demo", "--total", "2", "--codes", path];
    for (codes, problem) in [
        ("A\nB\nA\n", "codes.csv: line 3: repeats the code of line 1"),
        ("A\nB,100\n", "codes.csv: line 2: must have one field"),
        ("code\n", "codes.csv: body: has no codes"),
        ("A\n", "codes.csv: has 1 of the 2 codes that --total needs"),
    ] {
        std::fs::write(&file, codes).unwrap();
        run_against(&core, &create).await.ended(2).one_line(problem);
        core.admin_get("/admin/v1/campaigns/demo").await.refused(404, "campaign_not_found");
    }
    std::fs::write(&file, "A\nB\nC\n").unwrap();
    let unlimited = ["campaign", "create", "demo", "--total", "none", "--per-user", "1", "--codes", path];
    run_against(&core, &unlimited).await.ended(2).one_line("--total");
    run_against(&core, &create).await.ended(0);
    assert_eq!(core.campaign("demo").await["limits"]["total"], 2);
    let counted = core.admin_get("/admin/v1/campaigns/demo/codes").await.expect(200).json();
    assert_eq!(counted, json!({"added": 3, "assigned": 0, "claims_pending": 0}));
}
