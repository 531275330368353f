//! The audit log of claims lists each confirmation and return once, with its caller, and nothing else.

use reqwest::Method;
use serde_json::{Value, json};
use support::clocked::ClockedCore;
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::wait::{holds, reaches};
use support::{Core, CoreOptions, Reply, SOON, eventually};

use crate::on_postgres::on_postgres;

const VERA: &str = "the-viewers-token-for-the-claims-audit";
const OLGA: &str = "the-operators-token-for-the-claims-audit";

fn options() -> CoreOptions {
    let admins = format!("vera:viewer:{VERA},olga:operator:{OLGA}");
    CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS", admins)
}

/// Creates a campaign with this hold time, makes a claim for each user, and returns the claims' ids.
async fn campaign_with_holds(core: &Core, id: &str, seconds: u64, users: &[&str]) -> Vec<String> {
    let mut body = campaign(id, json!({}));
    body["hold_seconds"] = json!(seconds);
    core.create_with(body).await;
    let mut ids = Vec::new();
    for user in users {
        let reply = core.claim(id, user, "k").await.expect(201).json();
        ids.push(reply["claim"]["id"].as_str().unwrap().to_owned());
    }
    ids
}

async fn transition(core: &Core, id: &str, verb: &str, token: &str) -> Reply {
    let url = core.url(&format!("/internal/v1/claims/{id}/{verb}"));
    core.client().call(Method::POST, &url, token, &Value::Null).await
}

/// Returns the first page of audit entries for `query`.
async fn items(core: &Core, query: &str) -> Vec<Value> {
    let page = core.admin_get(&format!("/admin/v1/audit?{query}")).await.expect(200).json();
    page["items"].as_array().unwrap().clone()
}

/// Waits until the campaign has `count` audit entries, and returns them.
async fn until_items(core: &Core, campaign: &str, count: usize) -> Vec<Value> {
    eventually(SOON, || async {
        let items = items(core, &format!("campaign_id={campaign}")).await;
        reaches(items.len(), count, "audit entries").map(|()| items)
    })
    .await
}

/// Returns the caller, the action, the claim's id, and its status before and after.
fn claim_change(item: &Value) -> [&str; 5] {
    let status = |name: &str| item[name]["status"].as_str().unwrap_or_default();
    [
        item["who"].as_str().unwrap(),
        item["what"].as_str().unwrap(),
        item["claim_id"].as_str().unwrap_or_default(),
        status("before"),
        status("after"),
    ]
}

async fn each_transition_is_audited_once_with_its_caller(core: &Core) {
    let ids = campaign_with_holds(core, "demo", 600, &["ann", "bob", "cy", "dan"]).await;
    let other = campaign_with_holds(core, "other", 600, &["ann"]).await;
    let admin = core.admin_token();
    for (id, verb, token) in [
        (&ids[0], "confirm", OLGA),
        (&ids[1], "return", admin.as_str()),
        (&ids[2], "confirm", API_TOKEN),
        (&ids[2], "return", OLGA),
    ] {
        // Retrying a transition changes nothing.
        for _ in 0..2 {
            transition(core, id, verb, token).await.expect(200);
        }
    }
    transition(core, &other[0], "confirm", OLGA).await.expect(200);

    // Rejected transitions change nothing.
    transition(core, &ids[3], "confirm", VERA).await.refused(403, "forbidden");
    transition(core, &ids[3], "return", "no-token-of-anybody-but-long-enough")
        .await
        .refused(401, "unauthenticated");
    transition(core, &ids[1], "confirm", OLGA).await.refused(409, "claim_returned");
    transition(core, &ids[0].replace(".ann.", ".eve."), "return", OLGA).await.refused(404, "claim_not_found");

    let demo = until_items(core, "demo", 5).await;
    let expected = [
        ["olga", "confirm", &ids[0], "held", "granted"],
        ["admin", "return", &ids[1], "held", "returned"],
        ["shop", "confirm", &ids[2], "held", "granted"],
        ["olga", "return", &ids[2], "granted", "returned"],
    ];
    assert_eq!(demo[1..].iter().map(claim_change).collect::<Vec<_>>(), expected);
    assert_eq!((&demo[0]["what"], &demo[0]["claim_id"]), (&json!("create"), &Value::Null));
    for item in &demo[1..] {
        assert_eq!((&item["campaign_id"], &item["version"]), (&json!("demo"), &Value::Null));
        assert!(item["at"].as_str().unwrap().ends_with('Z'), "{item}");
    }
    until_items(core, "other", 2).await;
    let of_campaigns = items(core, "claims=false").await;
    let whats: Vec<_> = of_campaigns.iter().map(|item| [&item["campaign_id"], &item["what"]]).collect();
    assert_eq!(whats, [[&json!("demo"), &json!("create")], [&json!("other"), &json!("create")]]);
    assert_eq!(items(core, "campaign_id=demo&claims=true").await, demo);
    pages_miss_none(core, 7).await;

    // A change of the campaign is listed after the entries already read.
    let last = items(core, "").await.last().unwrap()["number"].as_u64().unwrap();
    core.set_admin_state("demo", "pause").await.expect(200);
    let new = items(core, &format!("after={last}")).await;
    assert_eq!((new.len(), &new[0]["what"], &new[0]["claim_id"]), (1, &json!("pause"), &Value::Null));
}

/// Checks that pages of two list all `count` entries once, in ascending order.
async fn pages_miss_none(core: &Core, count: usize) {
    let all = items(core, "").await;
    assert_eq!(all.len(), count, "{all:?}");
    let (mut seen, mut after) = (Vec::new(), "0".to_owned());
    loop {
        let page = core.admin_get(&format!("/admin/v1/audit?limit=2&after={after}")).await.expect(200).json();
        seen.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_str() else { break };
        next.clone_into(&mut after);
    }
    assert_eq!(seen, all);
    let numbers: Vec<_> = all.iter().map(|item| item["number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
}

#[tokio::test]
async fn each_transition_is_audited_once_with_its_caller_on_sqlite() {
    each_transition_is_audited_once_with_its_caller(&options().start().await).await;
}

#[tokio::test]
async fn each_transition_is_audited_once_with_its_caller_on_postgres() {
    if let Some((core, _sql, _postgres)) = on_postgres("the claims' audit on PostgreSQL", options()).await {
        each_transition_is_audited_once_with_its_caller(&core).await;
    }
}

async fn a_return_has_its_reason_in_the_audit(core: &Core) {
    let ids = campaign_with_holds(core, "demo", 600, &["ann", "bob"]).await;
    let url = core.admin_url(&format!("/admin/v1/claims/{}/return", ids[0]));
    let return_for = async |reason: &str, token: &str| {
        core.client().call(Method::POST, &url, token, &json!({ "reason": reason })).await
    };
    return_for("Bought twice", VERA).await.refused(403, "forbidden");
    let returned = return_for("Bought twice", OLGA).await.expect(200).json();
    assert_eq!(returned["claim"]["status"], "returned");
    // A retry changes nothing, so its reason is not recorded.
    return_for("Another reason", OLGA).await.expect(200);
    transition(core, &ids[1], "return", OLGA).await.expect(200);
    let listed = until_items(core, "demo", 3).await;
    assert_eq!(claim_change(&listed[1]), ["olga", "return", &ids[0], "held", "returned"]);
    let reasons: Vec<_> = listed.iter().map(|item| &item["reason"]).collect();
    assert_eq!(reasons, [&Value::Null, &json!("Bought twice"), &Value::Null]);
    let unknown = core.admin_url(&format!("/admin/v1/claims/{}/return", ids[0].replace(".ann.", ".eve.")));
    let unknown = core.client().call(Method::POST, &unknown, OLGA, &json!({"reason": "Unknown"})).await;
    unknown.refused(404, "claim_not_found");
}

#[tokio::test]
async fn a_return_has_its_reason_in_the_audit_on_sqlite() {
    a_return_has_its_reason_in_the_audit(&options().start().await).await;
}

#[tokio::test]
async fn a_return_has_its_reason_in_the_audit_on_postgres() {
    if let Some((core, _sql, _postgres)) = on_postgres("reasons on PostgreSQL", options()).await {
        a_return_has_its_reason_in_the_audit(&core).await;
    }
}

/// The next call expires holds that are due, but its caller did not cause the expiry.
#[tokio::test]
async fn an_expiry_is_audited_without_a_caller() {
    let clocked = ClockedCore::start(options()).await;
    let core = &clocked.core;
    let ids = campaign_with_holds(core, "demo", 600, &["ann", "bob"]).await;
    clocked.move_by_hours(1).await;
    for id in &ids {
        eventually(SOON, || async {
            let reply = core.look_up(id).await.expect(200).json();
            holds(reply["claim"]["status"] == "expired", || reply.to_string())
        })
        .await;
    }
    transition(core, &ids[0], "return", OLGA).await.expect(200);
    transition(core, &ids[1], "confirm", OLGA).await.refused(409, "claim_expired");
    eventually(SOON, || async {
        let rows = core.sql().claims("demo").await;
        holds(rows.iter().all(|row| row.status == "expired"), || format!("{rows:?}"))
    })
    .await;
    until_items(core, "demo", 1).await;
}

/// Without holds, a returned claim was previously granted.
#[tokio::test]
async fn returning_a_granted_claim_is_audited() {
    let core = options().start().await;
    core.create("demo", json!({})).await;
    let id = core.claim("demo", "ann", "k").await.expect(201).json()["claim"]["id"].clone();
    let id = id.as_str().unwrap();
    transition(&core, id, "confirm", OLGA).await.expect(200);
    transition(&core, id, "return", OLGA).await.expect(200);
    let listed = until_items(&core, "demo", 2).await;
    assert_eq!(claim_change(&listed[1]), ["olga", "return", id, "granted", "returned"]);
}
