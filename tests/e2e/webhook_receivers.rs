//! Runs the receivers shown in docs/webhooks.md unchanged, with a real core.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use axum::http;
use reqwest::Method;
use serde_json::{Value, json};
use support::examples::example;
use support::process::{Process, command, free_address};
use support::wait::holds;
use support::{CoreOptions, SOON, eventually};

const DOCUMENT: &str = "docs/webhooks.md";

fn program(name: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").expect("PATH");
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
        .expect("on PATH")
}

async fn assert_verifies_signatures(program: &Path, file: &str, source: String) {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join(file);
    fs::write(&script, source).unwrap();
    let address = free_address();
    let url = format!("http://{address}/");
    let core =
        CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", format!("http://{address}")).start().await;
    core.create("demo", json!({"total": 10})).await;
    let body = json!({"url": url});
    let made = core.admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201).json();
    let output = directory.path().join("output");
    let written = fs::File::create(&output).unwrap();
    let mut receiver = command(program);
    receiver
        .arg(&script)
        .env("SECRET", made["secret"].as_str().unwrap())
        .env("HOST", address.ip().to_string())
        .env("PORT", address.port().to_string())
        .stdout(Stdio::from(written.try_clone().unwrap()))
        .stderr(Stdio::from(written));
    let _receiver = Process::start(receiver);
    let test = async |webhook: &Value| {
        let path = format!("/admin/v1/webhooks/{}/test", webhook["id"].as_str().unwrap());
        core.admin(Method::POST, &path, &Value::Null).await.expect(200).json()
    };
    let printed = || fs::read_to_string(&output).unwrap();
    eventually(SOON, || async {
        let tested = test(&made).await;
        holds(tested["delivered"] == true, || format!("{tested} {}", printed()))
    })
    .await;
    core.claim("demo", "alice", "k").await.expect(201);
    eventually(SOON, || async { holds(printed().contains("claim.granted demo.alice."), printed) }).await;
    // An event signed with another webhook's secret is rejected.
    let other = core.admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201).json();
    assert_eq!(test(&other).await, json!({"delivered": false, "error": "status 401"}));
}

#[tokio::test]
async fn the_javascript_receiver_verifies_signatures() {
    assert_verifies_signatures(&program("node"), "receiver.mjs", example(DOCUMENT, "import { createHmac"))
        .await;
}

#[tokio::test]
async fn the_python_receiver_verifies_signatures() {
    assert_verifies_signatures(&program("python3"), "receiver.py", example(DOCUMENT, "import base64")).await;
}

// Copied from the document; the test below compares both.
#[rustfmt::skip]
fn claim_of(secret: &str, headers: &http::HeaderMap, body: &[u8]) -> Option<serde_json::Value> {
    let webhook = standardwebhooks::Webhook::new(secret).ok()?;
    webhook.verify(body, headers).ok()?;
    let event: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(event["data"]["claim"].clone())
}

#[tokio::test]
async fn the_rust_receiver_verifies_signatures() {
    assert!(
        include_str!("webhook_receivers.rs").contains(&example(DOCUMENT, "fn claim_of(secret")),
        "the document differs"
    );
    let secret = "whsec_bXkgc2VjcmV0IGlzIGxvbmcgZW5vdWdoIQ==";
    let body = br#"{"type":"claim.granted","data":{"claim":{"id":"demo.alice.x"}}}"#;
    let now = support::times::now_ms() / 1000;
    let signature = standardwebhooks::Webhook::new(secret).unwrap().sign("evt_1", now, body).unwrap();
    let mut headers = http::HeaderMap::new();
    for (name, value) in
        [("webhook-id", "evt_1"), ("webhook-timestamp", &now.to_string()), ("webhook-signature", &signature)]
    {
        headers.insert(name, value.parse().unwrap());
    }
    assert_eq!(claim_of(secret, &headers, body).unwrap()["id"], "demo.alice.x");
    assert_eq!(claim_of(secret, &headers, b"{}"), None);
}
