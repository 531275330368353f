//! Named admins: the permissions of each role on both listeners, and the configuration of tokens.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::{API_TOKEN, campaign};
use support::process::{Signal, signal_pid};
use support::wait::holds;
use support::{CoreOptions, SOON, eventually};

use crate::every_call::place::Fixture;
use crate::every_call::table::{CALLS, Role};
use crate::every_call::{options_with_receiver, send};

const VIEWER: &str = "the-viewers-token-for-the-tests-only";
const OPERATOR: &str = "the-operators-token-for-the-tests-only";
const ADMIN: &str = "the-named-admins-token-for-the-tests-only";
const ROLES: [(Role, &str, &str); 3] =
    [(Role::Viewer, "viewer", VIEWER), (Role::Operator, "operator", OPERATOR), (Role::Admin, "admin", ADMIN)];

fn tokens() -> String {
    format!("vera:viewer:{VIEWER},olga:operator:{OPERATOR},ada:admin:{ADMIN}")
}

#[tokio::test]
async fn each_role_may_make_its_calls_and_a_403_names_the_role() {
    let (options, receiver) = options_with_receiver();
    let core = options.with("CLAIMGATE_ADMIN_TOKENS", tokens()).start().await;
    let mut audited = Vec::new();
    for (at, call) in CALLS.iter().enumerate() {
        let fixture = Fixture::make(&core, format!("c{at}"), &receiver, call).await;
        let (name, call_request) = (call.name, call.request(&fixture));
        let needed = ROLES.iter().find(|(role, ..)| *role == call.role).expect("a role").1;
        for (role, named, token) in ROLES {
            let reply = send(&core, &call_request, token).await;
            if role >= call.role {
                assert!(![401, 403].contains(&reply.status), "{named} {name}: {}", reply.text());
                assert!(reply.status < 500, "{named} {name}: {}", reply.text());
            } else {
                let detail = reply.refused(403, "forbidden").json()["detail"].clone();
                let names_role = detail.as_str().unwrap().contains(&format!("needs the role {needed}"));
                assert!(names_role, "{named} {name}: {detail}");
            }
        }
        send(&core, &call_request, "a-token-that-is-not-known-but-long-enough")
            .await
            .refused(401, "unauthenticated");
        if call_request.path.starts_with("/admin/") {
            let back_end = send(&core, &call_request, API_TOKEN).await.refused(403, "forbidden").json();
            let names_role = back_end["detail"].as_str().unwrap().contains(&format!("role {needed}"));
            assert!(names_role, "{name}: {back_end}");
        }
        audited.extend(core.sql().audit(&fixture.campaign).await.into_iter().map(|row| (row.1, row.2)));
        fixture.clean_up(&core).await;
    }
    audited.retain(|(who, _)| who != "admin");
    let expected = [
        ("ada", "update"),
        ("olga", "add"),
        ("ada", "import"),
        ("olga", "pause"),
        ("olga", "resume"),
        ("ada", "end"),
    ];
    assert_eq!(audited, expected.map(|(who, what)| (who.to_owned(), what.to_owned())));
    for secret in [VIEWER, OPERATOR, ADMIN] {
        assert!(!core.log().contains(secret), "a token is in the log");
    }
}

/// Only owners, back ends and admins of the role admin read codes; who reads many is in the audit.
#[tokio::test]
async fn operators_and_viewers_read_no_codes() {
    let core = CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS", tokens()).start().await;
    let mut rules = campaign("demo", json!({"total": 0}));
    rules["codes"] = json!(true);
    core.create_with(rules).await;
    core.add_codes("demo", "SAVE-1\n").await.expect(200);
    core.patch("demo", json!({"limits": {"total": 1}})).await.expect(200);
    let claimed = core.claim("demo", "ann", "k").await.expect(201).json();
    let id = claimed["claim"]["id"].as_str().unwrap();
    eventually(SOON, || async {
        let found = core.look_up(id).await.expect(200).json();
        holds(found["claim"]["codes"] == json!(["SAVE-1"]), || found.to_string())
    })
    .await;
    let get = async |url: String, token: &str| core.client().try_get(&url, token).await.unwrap();
    let lists = ["/admin/v1/campaigns/demo/claims?codes=true", "/admin/v1/changes?codes=true"]
        .map(|path| core.admin_url(path));
    let own = ["/internal/v1/campaigns/demo/users/ann".to_owned(), format!("/internal/v1/claims/{id}")];
    for (role, _, token) in ROLES {
        let may_read = role == Role::Admin;
        for list in &lists {
            let reply = get(list.clone(), token).await;
            assert_eq!(reply.status, if may_read { 200 } else { 403 }, "{list}: {}", reply.text());
            assert_eq!(reply.text().contains("SAVE-1"), may_read, "{list}: {}", reply.text());
            let without = get(list.replace("?codes=true", ""), token).await.expect(200);
            assert!(!without.text().contains("SAVE-1"), "{}", without.text());
        }
        for path in &own {
            let reply = get(core.url(path), token).await.expect(200);
            assert_eq!(reply.text().contains("SAVE-1"), may_read, "{path}: {}", reply.text());
        }
    }
    // An idle follower's pages are empty.
    let cursor =
        get(core.admin_url("/admin/v1/changes"), ADMIN).await.expect(200).json()["next_cursor"].take();
    let rest = format!("{}&after={}", lists[1], cursor.as_str().unwrap());
    assert_eq!(get(rest, ADMIN).await.expect(200).json()["items"], json!([]));
    let audit = core.admin_get("/admin/v1/audit").await.expect(200).json();
    let items = audit["items"].as_array().unwrap();
    // A slow core may answer 503, and the retry adds nothing.
    let added = items.iter().find(|item| item["what"] == "codes").expect("the codes that were added");
    assert_eq!([&added["before"]["codes"], &added["after"]["codes"]], [&json!(0), &json!(1)], "{added}");
    let read = items.iter().filter(|item| item["what"] == "codes_read");
    let read: Vec<_> = read.map(|item| (item["who"].clone(), item["campaign_id"].clone())).collect();
    assert_eq!(read, [(json!("ada"), json!("demo")), (json!("ada"), Value::Null)]);
}

#[tokio::test]
async fn sighup_reloads_tokens_and_an_invalid_file_changes_nothing() {
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
    assert_eq!(pause(VIEWER).await, 200, "the role has changed with the file");
    fs::write(&file, format!("olga:boss:{OPERATOR}")).unwrap();
    signal_pid(core.pid(), Signal::HUP);
    core.until_logged(SOON, &["CLAIMGATE_ADMIN_TOKENS: item 1"]).await;
    assert_eq!((pause(VIEWER).await, pause(OPERATOR).await), (200, 200));
    assert!(!core.log().contains(OPERATOR), "a token is in the log");
    fs::write(&file, format!("olga:operator:{OPERATOR}")).unwrap();
    signal_pid(core.pid(), Signal::HUP);
    until(VIEWER, 401).await;
}

#[tokio::test]
async fn a_back_end_cannot_take_a_reserved_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("back-ends");
    let (first, second) = ("the-first-token-of-32-characters-", "the-second-token-of-32-characters");
    fs::write(&file, format!("till:{first}")).unwrap();
    let options = CoreOptions::default().without("CLAIMGATE_API_TOKENS");
    let core = options.with("CLAIMGATE_API_TOKENS_FILE", file.to_str().unwrap()).start().await;
    core.create("demo", json!({"total": 1})).await;
    let show = async |token: &str| {
        let url = core.url("/internal/v1/campaigns/demo");
        core.client().call(Method::GET, &url, token, &Value::Null).await.status
    };
    assert_eq!((show(first).await, show(second).await), (200, 401));
    for (tried, name) in [(1, "admin"), (2, "edge")] {
        fs::write(&file, format!("till:{second},{name}:{first}")).unwrap();
        signal_pid(core.pid(), Signal::HUP);
        eventually(SOON, || async {
            let log = core.log();
            let refusals = log.matches("CLAIMGATE_API_TOKENS: item 2 must not be called").count();
            holds(refusals == tried, || log)
        })
        .await;
        assert_eq!((show(first).await, show(second).await), (200, 401), "{name}");
    }
}
