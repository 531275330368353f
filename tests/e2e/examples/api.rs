//! docs/api.md: what it shows being sent is sent, and what it shows being answered has the members that are answered.

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::edge::{Runtime, World};
use support::examples::{Desk, Examples};
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, eventually};

use super::alike;
use crate::dashboard::Watch;
use crate::edge::run;

/// The document's examples, in its order.
struct Shown {
    view: Value,
    request: Value,
    claim: Value,
    of_a_user: Value,
    create: Value,
    audit: Value,
    live: String,
    changes: Value,
    webhook: Value,
    import: String,
    csv: String,
    ready: Value,
    problem: Value,
}

impl Shown {
    fn read() -> Self {
        let mut api = Examples::of("docs/api.md");
        let json =
            |text: String| serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let shown = Self {
            view: json(api.next(r#"{"id":"demo","name":"Demo","state""#)),
            request: json(api.next(r#"{"campaign_id""#)),
            claim: json(api.next(r#"{"claim""#)),
            of_a_user: json(api.next(r#"{"items":[{"id""#)),
            create: json(api.next(r#"{"id":"demo","name":"Demo","starts_at""#)),
            audit: json(api.next(r#"{"items":[{"number""#)),
            live: api.next("event: watcher"),
            changes: json(api.next(r#"{"items":[{"cursor""#)),
            webhook: json(api.next(r#"{"id":"wh_"#)),
            import: api.next("curl -sH"),
            csv: api.next("user_id,quantity"),
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
fn calls_and_answers_are_as_shown() {
    run(async {
        let shown = Shown::read();
        let core = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", "hooks.example.com").start().await;
        let world = World::before(core, Runtime::asked(), "examples-api", "test", &[]).await;
        let core = &world.core;
        core.create_with(shown.create.clone()).await;
        alike(&shown.view, &world.view("demo").await.expect(200).json(), "view");
        alike(
            &shown.claim,
            &post(core, "/internal/v1/claims", &shown.request).await.expect(201).json(),
            "claim",
        );
        let of_a_user = get(core, "/internal/v1/campaigns/demo/users/alice").await;
        alike(&shown.of_a_user, &of_a_user, "of a user");
        alike(&shown.ready, &get(core, "/readyz").await, "ready");
        core.create("none", json!({"total": 0})).await;
        let refused = core.claim("none", "alice", "k").await.refused(409, "sold_out").json();
        alike(&shown.problem, &refused, "problem");
        assert_eq!(shown.problem["type"], refused["type"]);
        audit_and_changes(core, &shown).await;
        live(core, &shown.live).await;
        let to = json!({"url": shown.webhook["url"], "campaign_id": null});
        let made = core.admin(Method::POST, "/admin/v1/webhooks", &to).await.expect(201).json();
        let path = format!("/admin/v1/webhooks/{}", made["id"].as_str().unwrap());
        alike(&shown.webhook, &core.admin_get(&path).await.expect(200).json(), "webhook");
        core.create("tickets", json!({})).await;
        core.set_admin_state("tickets", "pause").await.expect(200);
        let desk = Desk::of(core);
        desk.write("claims.csv", &shown.csv);
        let imported = desk.run(&shown.import).await.ended(0).json();
        assert_eq!(imported, json!({"imported": 2, "already": 0}));
    });
}

/// The first events, of which the document shortens most.
async fn live(core: &Core, shown: &str) {
    let mut watch = Watch::begin(core, &core.admin_token()).await;
    for event in shown.trim().split("\n\n") {
        let (name, data) = event.split_once('\n').unwrap();
        let data = data.replace("{…}", "null").replace("[…]", "null");
        let told: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        let (event, real) = watch.next().await.unwrap();
        assert_eq!(name, format!("event: {event}"));
        alike(&told, &real, &event);
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
    for told in shown.audit["items"].as_array().unwrap() {
        let real = eventually(SOON, || async {
            let audit = core.admin_get("/admin/v1/audit").await.expect(200).json();
            let items = audit["items"].as_array().unwrap();
            items.iter().find(|item| item["what"] == told["what"]).cloned().ok_or_else(|| audit.to_string())
        })
        .await;
        alike(told, &real, "audit");
    }
    let changes = eventually(SOON, || async {
        let changes = core.admin_get("/admin/v1/changes").await.expect(200).json();
        holds(changes["items"] != json!([]), || changes.to_string()).map(|()| changes)
    })
    .await;
    alike(&shown.changes, &changes, "changes");
}
