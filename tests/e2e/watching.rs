//! Monitoring of core: metrics, the OpenAPI document and health checks, which need no token.

use std::fs;
use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::process::Signal;
use support::topology::Topology;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, SOON, eventually};

const CAMPAIGNS: &str = "/admin/v1/campaigns";

/// Starts a core that has granted, replayed and denied one claim each, without a repeated call.
async fn core_after_three_claims() -> Core {
    for _ in 0..5 {
        let core = Core::start().await;
        core.create("demo", json!({"total": 1})).await;
        let replies = [
            core.claim("demo", "metric-user", "metric-key").await.expect(201),
            core.claim("demo", "metric-user", "metric-key").await.expect(200),
            core.claim("demo", "metric-other", "metric-key").await.refused(409, "sold_out"),
        ];
        if replies.iter().all(|reply| reply.repeats == 0) {
            return core;
        }
    }
    panic!("calls were repeated on each of five cores");
}

#[tokio::test]
async fn metrics_show_results_but_never_users() {
    let core = core_after_three_claims().await;
    core.sql().until("demo", 1).await;
    let expected = [
        "claimgate_relayed_events_total 1",
        "claimgate_outbox_events{",
        "claimgate_outbox_lag_seconds",
        "claimgate_decisions_total{result=\"granted\"} 1",
        "claimgate_decisions_total{result=\"replayed\"} 1",
        "claimgate_decisions_total{result=\"sold_out\"} 1",
        "claimgate_decision_seconds_count 3",
        "claimgate_batch_claims_count 3",
        "claimgate_up{part=\"redis\"} 1",
        "claimgate_up{part=\"sql\"} 1",
    ];
    // Health checks, which run from time to time, set some of them.
    let text = eventually(SOON, || async {
        let text = core.admin_get("/metrics").await.expect(200).text();
        let missing = expected.iter().find(|expected| !text.contains(**expected));
        missing.map_or(Ok(text.clone()), |missing| Err(format!("no {missing} in:\n{text}")))
    })
    .await;
    if Topology::from_env() == Topology::Own {
        assert!(text.contains("claimgate_redis_starts_total 1"), "{text}");
    }
    for hidden in ["metric-user", "metric-other", "metric-key", core.admin_token().as_str()] {
        assert!(!text.contains(hidden), "{hidden} is in /metrics");
    }
    assert!(text.lines().filter(|line| line.starts_with("# TYPE")).count() > 5);
}

#[tokio::test]
async fn the_served_openapi_document_is_complete() {
    let core = Core::start().await;
    let url = core.admin_url("/openapi.json");
    let reply = core.client().call(Method::GET, &url, "", &Value::Null).await.expect(200);
    assert!(reply.header("content-type").starts_with("application/json"));
    let document = reply.json();
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("openapi.json");
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        fs::write(&committed, format!("{document:#}\n")).unwrap();
    }
    let written: Value = serde_json::from_str(&fs::read_to_string(committed).unwrap()).unwrap();
    assert!(written == document, "openapi.json differs: run this test with UPDATE_OPENAPI=1");
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{}", document["openapi"]);
    let one = "/admin/v1/campaigns/{id}";
    for (path, methods) in [
        ("/internal/v1/claims", &["post"][..]),
        ("/internal/v1/claims/{claim_id}", &["get"]),
        ("/internal/v1/campaigns/{id}", &["get"]),
        ("/internal/v1/campaigns/{id}/users/{user_id}", &["get"]),
        (CAMPAIGNS, &["get", "post"]),
        (one, &["get", "patch"]),
        ("/admin/v1/audit", &["get"]),
        ("/admin/v1/changes", &["get"]),
        ("/admin/v1/live", &["get"]),
        (&format!("{one}/add"), &["post"]),
        (&format!("{one}/pause"), &["post"]),
        (&format!("{one}/resume"), &["post"]),
        (&format!("{one}/end"), &["post"]),
        (&format!("{one}/import"), &["post"]),
        (&format!("{one}/claims"), &["get"]),
    ] {
        for method in methods {
            assert!(document["paths"][path][method]["responses"].is_object(), "{method} {path}");
        }
    }
    let text = document.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let pointer = part.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer} does not exist");
    }
}

#[tokio::test]
async fn both_listeners_report_the_health_of_core() {
    let core = Core::start().await;
    let redis = core.data_dir().canonicalize().unwrap().join("redis.sock");
    let own = json!([{"address": redis, "state": "up"}]);
    let internal = core.url("");
    for token in ["", "a-token-that-no-caller-has-been-given"] {
        let reply = until_status(SOON, &[200], async || {
            core.client().call(Method::GET, &core.url("/readyz"), token, &Value::Null).await
        })
        .await;
        let members: Vec<_> = reply.json().as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            members,
            ["redis", "sql"],
            "unauthenticated callers must not see addresses: {}",
            reply.text()
        );
    }
    for (base, token) in [(internal, API_TOKEN), (core.admin_url(""), "")] {
        let alive = core.client().call(Method::GET, &format!("{base}/livez"), "", &Value::Null).await;
        assert_eq!(alive.status, 200, "{base}");
        eventually(SOON, || async {
            let reply = core.client().call(Method::GET, &format!("{base}/readyz"), token, &Value::Null).await;
            // SQL is checked a little later than Redis.
            let up = reply.status == 200 && ["redis", "sql"].iter().all(|part| reply.json()[part] == "up");
            let nodes = reply.json()["redis_nodes"].clone();
            let all_up = nodes
                .as_array()
                .is_some_and(|nodes| !nodes.is_empty() && nodes.iter().all(|node| node["state"] == "up"));
            let as_they_are = Topology::from_env() != Topology::Own || nodes == own;
            holds(up && all_up && as_they_are, || reply.text())
        })
        .await;
    }
}

#[tokio::test]
async fn a_stopping_core_is_not_ready_but_serves_until_drained() {
    let mut core = CoreOptions::default().with("CLAIMGATE_DRAIN_S", "300").start().await;
    core.create("demo", json!({"total": 5})).await;
    let stays = core.claim("demo", "before", "k").await.expect(201);
    assert_eq!(stays.header("connection"), "");
    core.process().signal(Signal::TERM);
    for url in [core.url("/readyz"), core.admin_url("/readyz")] {
        eventually(SOON, || async {
            let reply = core.client().call(Method::GET, &url, "", &Value::Null).await;
            holds(reply.status == 503 && reply.code() == "unavailable", || reply.text())
        })
        .await;
    }
    let goes = core.claim("demo", "during", "k").await.expect(201);
    assert_eq!(
        goes.header("connection"),
        "close",
        "the connection is closed, so that the next call opens a new one"
    );
    let view = core.get("/internal/v1/campaigns/demo").await.expect(200);
    assert_eq!(view.header("connection"), "close");
    // A second signal ends the drain.
    core.stop().await;
}
