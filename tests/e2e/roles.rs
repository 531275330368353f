//! Named admins: what each role may do, on both listeners, and how their tokens are set.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::process::{Signal, signal_pid};
use support::wait::holds;
use support::{Core, CoreOptions, SOON, claim_body, eventually};

const VIEWER: &str = "the-viewers-token-for-the-tests-only";
const OPERATOR: &str = "the-operators-token-for-the-tests-only";
const ADMIN: &str = "the-named-admins-token-for-the-tests-only";
const ROLES: [(&str, &str); 3] = [("viewer", VIEWER), ("operator", OPERATOR), ("admin", ADMIN)];

fn tokens() -> String {
    format!("vera:viewer:{VIEWER},olga:operator:{OPERATOR},ada:admin:{ADMIN}")
}

/// A call: on the admin listener or not, and the place in [`ROLES`] of the least role that may make it.
type Call = (bool, Method, String, Value, usize);

fn calls(held: &str) -> Vec<Call> {
    let admin = |method, path: &str, body, least| (true, method, format!("/admin/v1{path}"), body, least);
    let internal =
        |method, path: &str, body, least| (false, method, format!("/internal/v1{path}"), body, least);
    let none = || Value::Null;
    vec![
        admin(Method::GET, "/campaigns", none(), 0),
        admin(Method::GET, "/campaigns/demo", none(), 0),
        admin(Method::GET, "/campaigns/demo/claims", none(), 0),
        admin(Method::GET, "/campaigns/demo/reconciliation", none(), 0),
        admin(Method::GET, "/audit", none(), 0),
        admin(Method::GET, "/changes", none(), 0),
        admin(Method::GET, "/replication", none(), 0),
        admin(Method::GET, "/webhooks", none(), 0),
        admin(Method::GET, "/webhooks/none", none(), 0),
        admin(Method::GET, "/webhooks/none/deliveries", none(), 0),
        internal(Method::GET, "/campaigns/demo", none(), 0),
        internal(Method::GET, &format!("/claims/{held}"), none(), 0),
        admin(Method::POST, "/campaigns/demo/add", json!({"units": 1, "idempotency_key": "k"}), 1),
        admin(Method::POST, "/campaigns/demo/pause", none(), 1),
        admin(Method::POST, "/campaigns/demo/resume", none(), 1),
        internal(Method::POST, &format!("/claims/{held}/confirm"), none(), 1),
        internal(Method::POST, &format!("/claims/{held}/return"), none(), 1),
        admin(Method::POST, "/campaigns", campaign("other", json!({})), 2),
        admin(Method::PATCH, "/campaigns/demo", json!({"version": 9}), 2),
        admin(Method::POST, "/campaigns/demo/warm-up", none(), 2),
        admin(Method::POST, "/campaigns/demo/import", none(), 2),
        admin(Method::POST, "/campaigns/demo/reconciliation", none(), 2),
        admin(Method::POST, "/replication", json!({"replicas_min": 0}), 2),
        admin(Method::POST, "/replication/accept-loss", none(), 2),
        admin(Method::POST, "/webhooks", json!({"url": "https://none.example/"}), 2),
        admin(Method::DELETE, "/webhooks/none", none(), 2),
        admin(Method::POST, "/webhooks/none/test", none(), 2),
        admin(Method::POST, "/webhooks/none/enable", none(), 2),
        admin(Method::POST, "/webhooks/none/rotate-secret", none(), 2),
        internal(Method::POST, "/claims", claim_body("demo", "bob", "k", 1), 2),
        internal(Method::POST, "/claims/batch", json!({"claims": [claim_body("demo", "bob", "k", 1)]}), 2),
        admin(Method::POST, "/campaigns/demo/end", none(), 2),
    ]
}

async fn call(core: &Core, (is_admin, method, path, body, _): &Call, token: &str) -> support::Reply {
    let url = if *is_admin { core.admin_url(path) } else { core.url(path) };
    core.client().call(method.clone(), &url, token, body).await
}

#[tokio::test]
async fn each_role_may_do_its_own_and_is_told_which_is_needed() {
    let core = CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS", tokens()).start().await;
    let mut body = campaign("demo", json!({"total": 50}));
    body["hold_seconds"] = json!(600);
    core.create_with(body).await;
    let held = core.claim("demo", "alice", "k").await.expect(201).json()["claim"]["id"].clone();
    for one in calls(held.as_str().unwrap()) {
        let (least, path) = (one.4, &one.2);
        for (at, (role, token)) in ROLES.iter().enumerate() {
            let reply = call(&core, &one, token).await;
            if at >= least {
                assert!(![401, 403].contains(&reply.status), "{role} {path}: {}", reply.text());
                assert!(reply.status < 500, "{role} {path}: {}", reply.text());
            } else {
                let detail = reply.refused(403, "forbidden").json()["detail"].clone();
                let needed = format!("needs the role {}", ROLES[least].0);
                assert!(detail.as_str().unwrap().contains(&needed), "{role} {path}: {detail}");
            }
        }
        let wrong = call(&core, &one, "a-token-that-is-not-known-but-long-enough").await;
        wrong.refused(401, "unauthenticated");
        if one.0 {
            let back_end = call(&core, &one, API_TOKEN).await.refused(403, "forbidden").json();
            let needed = format!("role {}", ROLES[least].0);
            assert!(back_end["detail"].as_str().unwrap().contains(&needed), "{path}: {back_end}");
        }
    }
    let names: Vec<_> = core.sql().audit("demo").await.into_iter().map(|row| (row.1, row.2)).collect();
    let expected =
        [("admin", "create"), ("olga", "add"), ("olga", "pause"), ("olga", "resume"), ("ada", "end")];
    assert_eq!(names, expected.map(|(who, what)| (who.to_owned(), what.to_owned())));
    for secret in [VIEWER, OPERATOR, ADMIN] {
        assert!(!core.log().contains(secret), "a token stands in the log");
    }
}

#[tokio::test]
async fn tokens_in_a_file_are_read_again_on_a_hangup_and_a_wrong_file_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admins");
    fs::write(&file, format!("vera:viewer:{VIEWER}\n")).unwrap();
    let core =
        CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS_FILE", file.to_str().unwrap()).start().await;
    core.create("demo", json!({"total": 1})).await;
    let pause = async |token: &str| {
        let url = core.admin_url("/admin/v1/campaigns/demo/pause");
        core.client().call(Method::POST, &url, token, &Value::Null).await.status
    };
    let until = async |token: &str, status: u16| {
        eventually(SOON, || async {
            let now = pause(token).await;
            holds(now == status, || format!("{now}, not {status}"))
        })
        .await;
    };
    assert_eq!((pause(VIEWER).await, pause(OPERATOR).await), (403, 401));
    fs::write(&file, format!("vera:operator:{VIEWER},olga:operator:{OPERATOR}")).unwrap();
    signal_pid(core.pid(), Signal::HUP);
    until(OPERATOR, 200).await;
    assert_eq!(pause(VIEWER).await, 200, "the role is the file's");
    fs::write(&file, format!("olga:boss:{OPERATOR}")).unwrap();
    signal_pid(core.pid(), Signal::HUP);
    eventually(SOON, || async {
        let log = core.log();
        holds(log.contains("CLAIMGATE_ADMIN_TOKENS: item 1"), || "nothing in the log".to_owned())
    })
    .await;
    assert_eq!((pause(VIEWER).await, pause(OPERATOR).await), (200, 200));
    assert!(!core.log().contains(OPERATOR), "a token stands in the log");
    fs::write(&file, format!("olga:operator:{OPERATOR}")).unwrap();
    signal_pid(core.pid(), Signal::HUP);
    until(VIEWER, 401).await;
}
