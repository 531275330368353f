//! One user's claims in a campaign, newest first, and the user's allowance.

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::signing::{Signed, claim_id};
use support::times::{ms, now_ms};
use support::{Core, Reply};

fn path(campaign: &str, user: &str) -> String {
    format!("/internal/v1/campaigns/{campaign}/users/{user}")
}

async fn user_page(core: &Core, user: &str) -> Value {
    core.get(&path("demo", user)).await.expect(200).json()
}

/// Returns the claim ids of these keys, as the contract derives them.
fn ids(user: &str, keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| claim_id("demo", user, key)).collect()
}

fn listed(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().expect("items");
    items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn claims_are_listed_newest_first_with_the_allowance() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 100, "per_user": 7, "per_user_per_day": 5, "per_claim": 2})).await;
    let nothing = user_page(&core, "alice").await;
    assert_eq!((&nothing["items"], &nothing["next_cursor"]), (&json!([]), &json!(null)));
    let first = core.claim_units("demo", "alice", "a", 2).await.expect(201).json();
    core.claim("demo", "bob", "a").await.expect(201);
    let second = core.claim("demo", "alice", "b").await.expect(201).json();
    let page = user_page(&core, "alice").await;
    assert_eq!(
        page["items"],
        json!([second["claim"], first["claim"]]),
        "the same claims as in the answers to the claims"
    );
    let allowance = &page["allowance"];
    let resets_at = ms(allowance["resets_at"].as_str().unwrap());
    assert_eq!(
        *allowance,
        json!({"per_claim": 2, "per_user_per_day": 2, "resets_at": allowance["resets_at"], "per_user": 4, "total": 96})
    );
    let until_reset = resets_at - now_ms();
    assert!((0..=24 * 3_600_000).contains(&until_reset), "{until_reset}");
    assert_eq!(resets_at % (12 * 3_600_000), 0, "midnight in UTC, or 12 hours ahead of it");
    // The lookup and the denial agree on the user's allowance.
    let refused = core.claim_units("demo", "alice", "c", 2).await.expect(201);
    drop(refused);
    let refused = core.claim("demo", "alice", "d").await.refused(409, "user_daily_limit_reached").json();
    let left = user_page(&core, "alice").await["allowance"].clone();
    assert_eq!(
        (&left["per_user_per_day"], &left["resets_at"]),
        (&refused["remaining"], &refused["resets_at"])
    );
}

#[tokio::test]
async fn unlimited_is_shown_as_null() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.claim("demo", "alice", "a").await.expect(201);
    assert_eq!(
        user_page(&core, "alice").await["allowance"],
        json!({"per_claim": null, "per_user_per_day": null, "resets_at": null, "per_user": null, "total": null})
    );
}

#[tokio::test]
async fn claims_show_their_status_and_returned_units_are_available() {
    let core = Core::start().await;
    let mut body = campaign("demo", json!({"total": 10, "per_user": 3, "per_user_per_day": 3}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    for key in ["a", "b", "c"] {
        core.claim("demo", "alice", key).await.expect(201);
    }
    let [confirmed, returned] = ["a", "b"].map(|key| claim_id("demo", "alice", key));
    for (id, verb) in [(&confirmed, "confirm"), (&returned, "return")] {
        core.transition(id, verb).await.expect(200);
    }
    let page = user_page(&core, "alice").await;
    let statuses: Vec<_> = page["items"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, ["held", "returned", "granted"]);
    let left = &page["allowance"];
    assert_eq!(
        (&left["per_user"], &left["per_user_per_day"], &left["total"]),
        (&json!(1), &json!(1), &json!(8))
    );
    // The page is the same in other states of the campaign.
    for (verb, total) in [("pause", 8), ("end", 8)] {
        core.set_admin_state("demo", verb).await.expect(200);
        let page = user_page(&core, "alice").await;
        assert_eq!(listed(&page), ids("alice", &["c", "b", "a"]), "{verb}");
        assert_eq!(page["allowance"]["total"], total);
    }
}

#[tokio::test]
async fn a_limit_below_the_units_taken_leaves_zero() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10, "per_user": 5})).await;
    core.claim_units("demo", "alice", "a", 4).await.expect(201);
    core.patch("demo", json!({"limits": {"total": 3, "per_user": 2, "per_claim": 6}})).await.expect(200);
    let left = user_page(&core, "alice").await["allowance"].clone();
    assert_eq!((&left["total"], &left["per_user"], &left["per_claim"]), (&json!(0), &json!(0), &json!(6)));
}

#[tokio::test]
async fn many_claims_are_listed_in_pages() {
    let core = Core::start().await;
    core.create("demo", json!({"per_user": 100})).await;
    let keys: Vec<String> = (0..30).map(|at| format!("k{at}")).collect();
    for key in &keys {
        core.claim("demo", "alice", key).await.expect(201);
        core.claim("demo", "bob", key).await.expect(201);
    }
    let newest_first: Vec<&str> = keys.iter().rev().map(String::as_str).collect();
    let expected = ids("alice", &newest_first);
    assert_eq!(listed(&user_page(&core, "alice").await), expected);
    for limit in [1, 7, 8, 29, 30, 31] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = core.get(&format!("{}?limit={limit}{cursor}", path("demo", "alice"))).await;
            let page = page.expect(200).json();
            assert!(listed(&page).len() <= limit);
            assert_eq!(page["allowance"]["per_user"], 70, "every page has the allowance");
            seen.extend(listed(&page));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, expected, "pages of {limit}");
    }
}

#[tokio::test]
async fn a_bad_query_names_the_wrong_parameter() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=", "cursor"),
        ("limit=x", "query"),
        ("page=2", "query"),
    ] {
        let refused = core.get(&format!("{}?{query}", path("demo", "alice"))).await;
        assert_eq!(refused.refused(400, "invalid_request").json()["field"], field, "{query}");
    }
    let refused = core.get(&path("demo", "a.b")).await.refused(400, "invalid_request");
    assert_eq!(refused.json()["field"], "user_id");
    core.get(&path("nowhere", "alice")).await.refused(404, "campaign_not_found");
    core.get(&path("a%00b", "alice")).await.refused(404, "campaign_not_found");
    core.get(&path("demo", "")).await.refused(404, "not_found");
}

#[tokio::test]
async fn the_edge_may_read_only_its_own_user() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.claim("demo", "alice", "a").await.expect(201);
    let path = path("demo", "alice");
    let as_alice = Signed::get(&core, &path, "alice");
    assert_eq!(listed(&as_alice.send(&core).await.expect(200).json()), ids("alice", &["a"]));
    let paged = Signed::get(&core, &format!("{path}?limit=1"), "alice");
    paged.send(&core).await.expect(200);
    let tampered = Signed { path: format!("{path}?limit=2"), ..paged.clone() };
    tampered.send_signed(&core, &paged.signature()).await.refused(401, "unauthenticated");
    for other in ["bob", ""] {
        Signed::get(&core, &path, other).send(&core).await.refused(403, "forbidden");
    }
    as_alice.send_signed(&core, "AAAA").await.refused(401, "unauthenticated");
    let call = async |token: &str| -> Reply {
        core.client().call(Method::GET, &core.url(&path), token, &Value::Null).await
    };
    call("").await.refused(401, "unauthenticated");
    call("wrong").await.refused(401, "unauthenticated");
    call(&core.admin_token()).await.expect(200);
    core.client()
        .call(Method::POST, &core.url(&path), API_TOKEN, &Value::Null)
        .await
        .refused(405, "method_not_allowed");
}
