//! docs/webhooks.md, except for the receivers, which `webhook_receivers` tests.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use reqwest::Method;
use serde_json::{Value, json};
use support::CoreOptions;
use support::examples::{ExampleShell, Examples};
use support::process::free_address;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::assert_same_shape;

const RECEIVERS: &str = "tests/e2e/webhook_receivers.rs";

#[tokio::test]
async fn webhooks_are_created_and_called_as_shown() {
    let mut webhooks = Examples::of("docs/webhooks.md");
    let hosts = webhooks.next("CLAIMGATE_WEBHOOK_HOSTS=");
    let (variable, hosts) = hosts.trim().split_once('=').unwrap();
    let address = free_address();
    let core = CoreOptions::default().with(variable, format!("{hosts},http://{address}")).start().await;
    core.create("demo", json!({"total": 10})).await;

    let mut desk = ExampleShell::of(&core);
    let commands = desk.commands(&webhooks.next("claimgate webhooks add"));
    for (at, command) in commands.iter().enumerate() {
        // The receiver does not exist, so the test event is not delivered.
        let output = desk.run(command).await.ended(i32::from(command.contains(" test ")));
        if at == 0 {
            let id = output.out.split_whitespace().find(|word| word.starts_with("wh_"));
            desk = ExampleShell::of(&core).replacing("wh_…", id.unwrap_or_else(|| panic!("{output:?}")));
            assert!(output.out.contains("whsec_"), "{output:?}");
        }
    }

    let event: Value = serde_json::from_str(&webhooks.next(r#"{"type":"claim.granted""#)).unwrap();
    let (sender, mut events) = mpsc::unbounded_channel();
    let routes = Router::new().route(
        "/",
        post(move |body: String| {
            let _ = sender.send(body);
            async { StatusCode::NO_CONTENT }
        }),
    );
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let to = json!({"url": format!("http://{address}/")});
    core.admin(Method::POST, "/admin/v1/webhooks", &to).await.expect(201);
    core.claim("demo", "alice", "k").await.expect(201);
    let received: Value = serde_json::from_str(&events.recv().await.unwrap()).unwrap();
    assert_same_shape(&event, &received, "event");
    assert_eq!(event["type"], received["type"]);

    webhooks.run_in("import { createHmac", RECEIVERS);
    webhooks.run_in("import base64", RECEIVERS);
    webhooks.run_in("fn claim_of(secret", RECEIVERS);
    webhooks.end();
}
