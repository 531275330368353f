//! docs/configuration.md and docs/capacity.md.

use reqwest::Method;
use serde_json::{Value, json};
use support::CoreOptions;
use support::examples::{Desk, Examples};

#[tokio::test]
async fn a_key_that_is_made_as_shown_is_taken_and_admins_have_their_roles() {
    let directory = tempfile::tempdir().unwrap();
    let desk = Desk::at(directory.path());
    let mut configuration = Examples::of("docs/configuration.md");
    let key = desk.run(&configuration.next("openssl rand")).await.ended(0).out;
    let admins = configuration.next("CLAIMGATE_ADMIN_TOKENS=");
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
async fn capacity_is_reckoned_as_shown() {
    let directory = tempfile::tempdir().unwrap();
    let desk = Desk::at(directory.path());
    let mut capacity = Examples::of("docs/capacity.md");
    for said in desk.run_each(&capacity.next("claimgate capacity")).await {
        let _ = said.ended(0);
    }
    capacity.end();
}
