//! docs/webhooks.md; its receivers run in `webhook_receivers`.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use reqwest::Method;
use serde_json::{Value, json};
use support::CoreOptions;
use support::examples::{Desk, Examples};
use support::process::free_address;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::alike;

const RECEIVERS: &str = "tests/e2e/webhook_receivers.rs";

#[tokio::test]
async fn webhooks_are_made_and_told_as_shown() {
    let mut webhooks = Examples::of("docs/webhooks.md");
    let hosts = webhooks.next("CLAIMGATE_WEBHOOK_HOSTS=");
    let (variable, hosts) = hosts.trim().split_once('=').unwrap();
    let address = free_address();
    let core = CoreOptions::default().with(variable, format!("{hosts},http://{address}")).start().await;
    core.create("demo", json!({"total": 10})).await;

    let mut desk = Desk::of(&core);
    let commands = desk.commands(&webhooks.next("claimgate webhooks add"));
    for (at, command) in commands.iter().enumerate() {
        // There is no receiver of that name to take a test event.
        let said = desk.run(command).await.ended(i32::from(command.contains(" test ")));
        if at == 0 {
            let id = said.out.split_whitespace().find(|word| word.starts_with("wh_"));
            desk = Desk::of(&core).replacing("wh_…", id.unwrap_or_else(|| panic!("{said:?}")));
            assert!(said.out.contains("whsec_"), "{said:?}");
        }
    }

    let event: Value = serde_json::from_str(&webhooks.next(r#"{"type":"claim.granted""#)).unwrap();
    let (told, mut events) = mpsc::unbounded_channel();
    let routes = Router::new().route(
        "/",
        post(move |body: String| {
            let _ = told.send(body);
            async { StatusCode::NO_CONTENT }
        }),
    );
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let to = json!({"url": format!("http://{address}/")});
    core.admin(Method::POST, "/admin/v1/webhooks", &to).await.expect(201);
    core.claim("demo", "alice", "k").await.expect(201);
    let came: Value = serde_json::from_str(&events.recv().await.unwrap()).unwrap();
    alike(&event, &came, "event");
    assert_eq!(event["type"], came["type"]);

    webhooks.run_in("import { createHmac", RECEIVERS);
    webhooks.run_in("import base64", RECEIVERS);
    webhooks.run_in("fn claim_of(secret", RECEIVERS);
    webhooks.end();
}
