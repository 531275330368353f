//! docs/configuration.md and docs/capacity.md.

use reqwest::Method;
use serde_json::{Value, json};
use support::CoreOptions;
use support::examples::{ExampleShell, Examples};

#[tokio::test]
async fn the_key_and_the_admin_roles_work_as_shown() {
    let directory = tempfile::tempdir().unwrap();
    let desk = ExampleShell::at(directory.path());
    let mut configuration = Examples::of("docs/configuration.md");
    let key = desk.run(&configuration.next("openssl rand")).await.ended(0).out;
    let admins = configuration.next("CLAIMGATE_ADMIN_TOKENS=");
    configuration.left_out("claimgate user-ids", "tests/e2e/user_ids.rs runs both commands");
    let secret = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA\n";
    std::fs::write(directory.path().join("user-id.key"), secret).unwrap();
    let id = desk.run(&configuration.next("CLAIMGATE_USER_ID_KEY_FILE=")).await.ended(0).out;
    assert_eq!(id.trim(), "VR1TK4_EOYBS0Q3huZcMIdZCV7W7fd9cP4b-A0VjmlHPYacoMs");
    configuration.end();
    let tokens: Vec<_> = (0..3).map(|n| format!("a-token-of-an-admin-for-the-tests-{n}")).collect();
    let admins = tokens.iter().fold(admins, |text, token| text.replacen("TOKEN,", &format!("{token},"), 1));
    let admins = admins.trim().replace(":TOKEN", &format!(":{}", tokens[2]));
    let (variable, admins) = admins.split_once('=').unwrap();
    let core = CoreOptions::default()
        .with(variable, admins)
        .with("CLAIMGATE_EDGE_KEYS", format!("k1:{}", key.trim()))
        .start()
        .await;
    core.create("demo", json!({"total": 1})).await;
    let add = json!({"units": 1, "idempotency_key": "a"});
    for (token, [sees, adds, ends]) in tokens.iter().zip([[200, 403, 403], [200, 200, 403], [200, 200, 200]])
    {
        let call = async |method, path: &str, body: &Value| {
            core.client().call(method, &core.admin_url(path), token, body).await.status
        };
        assert_eq!(call(Method::GET, "/admin/v1/campaigns", &Value::Null).await, sees, "{token}");
        assert_eq!(call(Method::POST, "/admin/v1/campaigns/demo/add", &add).await, adds, "{token}");
        assert_eq!(call(Method::POST, "/admin/v1/campaigns/demo/end", &Value::Null).await, ends, "{token}");
    }
}

#[tokio::test]
async fn the_capacity_commands_run_as_shown() {
    let directory = tempfile::tempdir().unwrap();
    let desk = ExampleShell::at(directory.path());
    let mut capacity = Examples::of("docs/capacity.md");
    for output in desk.run_each(&capacity.next("claimgate capacity")).await {
        let _ = output.ended(0);
    }
    capacity.end();
}
