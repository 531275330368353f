//! Invalid cursors are rejected by parameter name, on both databases, before SQL is queried.

use reqwest::Method;
use serde_json::json;
use support::core_client::API_TOKEN;
use support::{Core, CoreOptions};

use crate::on_postgres::on_postgres;

/// Each paged list: its path, its cursor parameter, and the status and code for an invalid cursor.
const LISTS: [(&str, &str, (u16, &str)); 7] = [
    ("/admin/v1/campaigns", "cursor", (400, "invalid_request")),
    ("/admin/v1/campaigns/demo/claims", "cursor", (400, "invalid_request")),
    ("/admin/v1/campaigns/demo/claims?status=granted", "cursor", (400, "invalid_request")),
    ("/admin/v1/audit", "after", (400, "invalid_request")),
    ("/admin/v1/changes", "after", (410, "cursor_invalid")),
    ("/admin/v1/webhooks/WEBHOOK/deliveries", "cursor", (400, "invalid_request")),
    ("/internal/v1/campaigns/demo/users/alice", "cursor", (400, "invalid_request")),
];

/// Values that are not valid cursors of any list, although some look similar.
const INVALID: [&str; 12] = [
    "%00",
    "a%00b",
    "%E2%80%AE",
    "a%20b",
    "%27%20OR%201=1--",
    "1~ali%00ce.aHSIRPhRB6fDKajWWhFLtQ",
    "1~alice.aHSIRPhRB6fDKajWWh%00LtQ",
    "1~alice.short",
    "35.aHSIRPhRB6fDKajWWh%00LtQ",
    "35.short",
    "1.%00.0",
    "1.7260381945.1.ali%00ce.aHSIRPhRB6fDKajWWhFLtQ",
];

async fn every_list_rejects_an_invalid_cursor(core: &Core, webhook: &str) {
    for (path, parameter, (status, code)) in LISTS {
        let path = path.replace("WEBHOOK", webhook);
        let url = if path.starts_with("/internal") { core.url(&path) } else { core.admin_url(&path) };
        let token = if path.starts_with("/internal") { API_TOKEN.to_owned() } else { core.admin_token() };
        let and = if path.contains('?') { '&' } else { '?' };
        for cursor in INVALID {
            let request = format!("{url}{and}{parameter}={cursor}");
            let reply = core.client().call(Method::GET, &request, &token, &serde_json::Value::Null).await;
            assert_eq!((reply.status, reply.code().as_str()), (status, code), "{request}: {}", reply.text());
            if status == 400 {
                assert_eq!(reply.json()["field"], parameter, "{request}");
            }
        }
    }
}

/// Creates a campaign with a claim, and a webhook. Returns the webhook's id.
async fn create_fixtures(core: &Core) -> String {
    core.create("demo", json!({})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    let webhook = json!({"url": "http://127.0.0.1:9/hook"});
    let made = core.admin(Method::POST, "/admin/v1/webhooks", &webhook).await.expect(201).json();
    made["id"].as_str().expect("an id").to_owned()
}

fn options() -> CoreOptions {
    CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", "http://127.0.0.1:9")
}

#[tokio::test]
async fn every_list_rejects_an_invalid_cursor_on_sqlite() {
    let core = options().start().await;
    let webhook = create_fixtures(&core).await;
    every_list_rejects_an_invalid_cursor(&core, &webhook).await;
}

#[tokio::test]
async fn every_list_rejects_an_invalid_cursor_on_postgres() {
    let Some((core, _sql, _postgres)) = on_postgres("cursors", options()).await else { return };
    let webhook = create_fixtures(&core).await;
    every_list_rejects_an_invalid_cursor(&core, &webhook).await;
}
