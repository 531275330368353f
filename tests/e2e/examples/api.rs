//! docs/api.md: the requests shown are sent, and the responses shown are compared with the real responses.

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::edge::{Runtime, World};
use support::examples::{ExampleShell, Examples};
use support::signing::Signed;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, eventually};

use super::assert_same_shape;
use crate::dashboard::LiveStream;
use crate::edge::run;

/// The document's examples, in order.
struct Shown {
    view: Value,
    request: Value,
    claim: Value,
    of_a_user: Value,
    refusals: Value,
    create: Value,
    audit: Value,
    live: String,
    changes: Value,
    report: Value,
    webhook: Value,
    import: String,
    csv: String,
    edge_ready: Value,
    ready: Value,
    problem: Value,
}

impl Shown {
    fn read() -> Self {
        let mut api = Examples::of("docs/api.md");
        let json =
            |text: String| serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let view = json(api.next(r#"{"id":"demo","name":"Demo","state""#));
        api.run_in(r#"{"altcha""#, "tests/e2e/examples/challenges.rs");
        api.run_in(r#"{"turnstile""#, "tests/e2e/examples/challenges.rs");
        let shown = Self {
            view,
            request: json(api.next(r#"{"campaign_id""#)),
            claim: json(api.next(r#"{"claim""#)),
            of_a_user: json(api.next(r#"{"items":[{"id""#)),
            refusals: json(api.next(r#"{"reporter""#)),
            create: json(api.next(r#"{"id":"demo","name":"Demo","starts_at""#)),
            audit: json(api.next(r#"{"items":[{"number""#)),
            live: api.next("event: watcher"),
            changes: json(api.next(r#"{"items":[{"cursor""#)),
            report: json(api.next(r#"{"campaign_id":"demo","name""#)),
            webhook: json(api.next(r#"{"id":"wh_"#)),
            import: api.next("curl -sH"),
            csv: api.next("user_id,quantity"),
            edge_ready: json(api.next(r#"{"cores""#)),
            ready: json(api.next(r#"{"redis""#)),
            problem: json(api.next(r#"{"type":"/problems/sold-out""#)),
        };
        api.end();
        shown
    }
}

async fn post(core: &Core, path: &str, body: &Value) -> Reply {
    core.client().call(Method::POST, &core.url(path), API_TOKEN, body).await
}

async fn get(core: &Core, path: &str) -> Value {
    core.client().call(Method::GET, &core.url(path), API_TOKEN, &Value::Null).await.expect(200).json()
}

#[test]
fn calls_and_answers_match_the_document() {
    run(async {
        let shown = Shown::read();
        let core = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", "hooks.example.com").start().await;
        let world = World::before(core, Runtime::from_env(), "examples-api", "test", &[]).await;
        let core = &world.core;
        core.create_with(shown.create.clone()).await;
        assert_same_shape(&shown.view, &world.view("demo").await.expect(200).json(), "view");
        assert_same_shape(
            &shown.claim,
            &post(core, "/internal/v1/claims", &shown.request).await.expect(201).json(),
            "claim",
        );
        let of_a_user = get(core, "/internal/v1/campaigns/demo/users/alice").await;
        assert_same_shape(&shown.of_a_user, &of_a_user, "of a user");
        let edge_ready = world.send(world.request("GET", "/readyz")).await.expect(200).json();
        assert_same_shape(&shown.edge_ready, &edge_ready, "edge ready");
        assert_same_shape(&shown.ready, &get(core, "/readyz").await, "ready");
        core.create("none", json!({"total": 0})).await;
        let refused = core.claim("none", "alice", "k").await.refused(409, "sold_out").json();
        assert_same_shape(&shown.problem, &refused, "problem");
        assert_eq!(shown.problem["type"], refused["type"]);
        audit_and_changes(core, &shown).await;
        live(core, &shown.live).await;
        report(core, &shown).await;
        let to = json!({"url": shown.webhook["url"], "campaign_id": null});
        let made = core.admin(Method::POST, "/admin/v1/webhooks", &to).await.expect(201).json();
        let path = format!("/admin/v1/webhooks/{}", made["id"].as_str().unwrap());
        assert_same_shape(&shown.webhook, &core.admin_get(&path).await.expect(200).json(), "webhook");
        core.create("tickets", json!({})).await;
        core.set_admin_state("tickets", "pause").await.expect(200);
        let desk = ExampleShell::of(core);
        desk.write("claims.csv", &shown.csv);
        let imported = desk.run(&shown.import).await.ended(0).json();
        assert_eq!(imported, json!({"imported": 2, "already": 0}));
    });
}

/// Sends the report of an edge, and compares the report on a campaign that is sold out.
async fn report(core: &Core, shown: &Shown) {
    let sent = Signed::report(&core.data_file("edge.key"), &shown.refusals).send(core).await.expect(200);
    assert_eq!(sent.json(), json!({}));
    core.create("gone", json!({"total": 1})).await;
    core.claim("gone", "alice", "k").await.expect(201);
    core.claim("gone", "bob", "k").await.refused(409, "sold_out");
    let reported = eventually(SOON, || async {
        let reported = core.admin_get("/admin/v1/campaigns/gone/report").await.expect(200).json();
        let is_whole = reported["refusals"]["total"] == 1 && reported["sold_out_at"].is_string();
        holds(is_whole, || reported.to_string()).map(|()| reported)
    })
    .await;
    assert_same_shape(&shown.report, &reported, "report");
}

/// Compares the first events, which the document shortens.
async fn live(core: &Core, shown: &str) {
    let mut watch = LiveStream::open(core, &core.admin_token()).await;
    for event in shown.trim().split("\n\n") {
        let (name, data) = event.split_once('\n').unwrap();
        let data = data.replace("{…}", "null").replace("[…]", "null");
        let expected: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        let (event, actual) = watch.next().await.unwrap();
        assert_eq!(name, format!("event: {event}"));
        assert_same_shape(&expected, &actual, &event);
    }
}

async fn audit_and_changes(core: &Core, shown: &Shown) {
    let add = json!({"units": 50, "idempotency_key": "a-1"});
    core.admin(Method::POST, "/admin/v1/campaigns/demo/add", &add).await.expect(200);
    let mut held = campaign("held", json!({}));
    held["hold_seconds"] = json!(600);
    core.create_with(held).await;
    let id = core.claim("held", "alice", "k").await.expect(201).json()["claim"]["id"].clone();
    let confirm = format!("/internal/v1/claims/{}/confirm", id.as_str().unwrap());
    post(core, &confirm, &Value::Null).await.expect(200);
    for expected in shown.audit["items"].as_array().unwrap() {
        let actual = eventually(SOON, || async {
            let audit = core.admin_get("/admin/v1/audit").await.expect(200).json();
            let items = audit["items"].as_array().unwrap();
            items
                .iter()
                .find(|item| item["what"] == expected["what"])
                .cloned()
                .ok_or_else(|| audit.to_string())
        })
        .await;
        assert_same_shape(expected, &actual, "audit");
    }
    let changes = eventually(SOON, || async {
        let changes = core.admin_get("/admin/v1/changes").await.expect(200).json();
        holds(changes["items"] != json!([]), || changes.to_string()).map(|()| changes)
    })
    .await;
    assert_same_shape(&shown.changes, &changes, "changes");
}
