//! `examples/checkout` while something fails: Stripe's responses, the claim of a session, a second process of the shop.

use std::path::Path;

use reqwest::Method;
use serde_json::json;
use support::edge::root;
use support::process::command;
use support::signing::claim_id;
use support::{SOON, eventually};

use super::checkout::{COMPLETED, HOLD_S, IMPATIENT_MS, PATIENT_MS, REFUNDED, Shop, YOURS};

const CANCELLED: &str = "The order is cancelled.";

#[tokio::test]
async fn payments_for_a_former_campaign_are_settled() {
    let mut shop = Shop::open(3).await;
    let [alice, bob] = [shop.buy("alice").await, shop.buy("bob").await];
    shop.stripe.pay(&alice);
    shop.create("summer", 1).await;
    shop.campaign = "summer";
    shop.restart(PATIENT_MS).await;
    assert_eq!(shop.deliver(COMPLETED, &alice).await, 200);
    shop.has_status(&alice, "granted").await;
    shop.shows("alice", &alice, YOURS).await;
    assert_eq!(shop.at_stripe(&checkout(&shop, "bob", &bob).await), bob, "its payment has begun");

    // A claim without a session may be of another product, with another price.
    shop.core.claim("spring", "carol", "k").await.expect(201);
    checkout(&shop, "carol", &claim_id("spring", "carol", "k")).await.expect(404);
    let new = shop.buy("alice").await;
    assert!(new.starts_with("summer."), "{new}");
}

async fn checkout(shop: &Shop, user: &str, claim: &str) -> support::Reply {
    shop.call(user, Method::GET, &format!("/checkout/{claim}")).await
}

#[tokio::test]
async fn a_session_is_not_offered_after_a_return() {
    let shop = Shop::open(1).await;
    let claim = shop.buy("alice").await;
    shop.core.transition(&claim, "return").await.expect(200);
    let page = checkout(&shop, "alice", &claim).await;
    assert_eq!(page.path, format!("/orders/{claim}"));
    assert!(page.text().contains(CANCELLED), "{}", page.text());
    assert_eq!(shop.stripe.session(&claim)["status"], "expired");
}

/// The first tab has no session yet when the second one cancels.
#[tokio::test]
async fn a_cancellation_during_the_creation_ends_the_session() {
    let shop = Shop::open(1).await;
    shop.stripe.stall_creations(true);
    let (first_tab, claim) = tokio::join!(shop.call("alice", Method::POST, "/buy"), async {
        let created = || async {
            let sessions = shop.stripe.sessions();
            if sessions == 1 {
                Ok(shop.stripe.claim_of("cs_test_1"))
            } else {
                Err(format!("{sessions} sessions"))
            }
        };
        let claim = eventually(SOON, created).await;
        let page = shop.call("alice", Method::POST, &format!("/orders/{claim}/cancel")).await;
        assert!(page.text().contains(CANCELLED), "{}", page.text());
        shop.stripe.stall_creations(false);
        claim
    });
    assert_eq!(first_tab.path, format!("/orders/{claim}"));
    assert_eq!(shop.stripe.session(&claim)["status"], "expired");
    shop.has_status(&claim, "returned").await;
}

/// Stripe repeats a 500 for its idempotency key for a day, so the claim can have no session.
#[tokio::test]
async fn a_stored_server_error_frees_the_unit() {
    let mut shop = Shop::open(1).await;
    shop.restart(IMPATIENT_MS).await;
    shop.stripe.fail_next(&[(500, "internal")]);
    shop.call("alice", Method::POST, "/buy").await.expect(503);
    assert_eq!(shop.core.campaign("spring").await["remaining"], 1);
    assert_eq!(shop.stripe.sessions(), 0);
    shop.buy("alice").await;
}

#[tokio::test]
async fn lost_responses_repeat_neither_session_nor_refund() {
    let mut shop = Shop::open(2).await;
    let requests =
        |shop: &Shop, path: &str| shop.stripe_proxy.requests_with(&format!("POST /v1/{path} HTTP")).len();
    shop.stripe_proxy.lose_answers(1);
    let alice = shop.buy("alice").await;
    assert_eq!(requests(&shop, "checkout/sessions"), 2);
    shop.stripe.fail_next(&[(409, "idempotency_key_in_use"), (429, "rate_limit")]);
    let bob = shop.buy("bob").await;
    assert_eq!(requests(&shop, "checkout/sessions"), 5);
    assert_eq!(shop.stripe.sessions(), 2);

    shop.advance_s(HOLD_S).await;
    let payments = [&alice, &bob].map(|claim| shop.stripe.pay(claim));
    shop.stripe_proxy.lose_answers(1);
    assert_eq!(shop.deliver(COMPLETED, &alice).await, 200);
    assert_eq!(requests(&shop, "refunds"), 2);
    shop.stripe.fail_next(&[(429, "lock_timeout"), (503, "unavailable")]);
    assert_eq!(shop.deliver(COMPLETED, &bob).await, 200);
    assert_eq!(requests(&shop, "refunds"), 5);
    assert_eq!(shop.stripe.refunds(), payments);
    shop.shows("alice", &alice, REFUNDED).await;
    shop.shows("bob", &bob, REFUNDED).await;
    assert_eq!(shop.stripe.refunds(), payments);
}

/// Runs `script` with the shop's functions and a `fetch` of its own. Returns the JSON that the script prints.
fn run_in_node(script: &str) -> serde_json::Value {
    let orders = tempfile::tempdir().unwrap();
    let mut node = command(Path::new("node"));
    node.args(["--input-type=module", "--eval", &format!("{IMPORTS}{script}")]);
    for name in ["CLAIMGATE_TOKEN", "CLAIMGATE_URL", "ORIGIN", "STRIPE_PRICE", "STRIPE_SECRET_KEY"] {
        node.env(name, "unused");
    }
    node.env("CAMPAIGN", "spring").env("ORDERS", orders.path());
    let output = node.env("SHOP_FILES", root().join("examples/checkout")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const IMPORTS: &str = r#"
const { buy, cancel } = await import(process.env.SHOP_FILES + "/purchase.mjs");
const { remove, storeOnce } = await import(process.env.SHOP_FILES + "/store.mjs");
"#;

/// Both processes find that the previous purchase is over, and the other one is faster.
#[test]
fn two_processes_share_the_claim_of_a_user() {
    let tried = run_in_node(
        r#"
const name = "spring.alice", newKey = "stored-by-the-other-process", tried = [];
globalThis.fetch = async (_url, { body }) => {
	const { idempotency_key: key } = JSON.parse(body);
	if (tried.push(key) === 1) {
		remove(name, key);
		storeOnce(name, { key: newKey });
	}
	return Response.json({ claim: { id: "id", status: tried.length > 1 ? "held" : "expired" } });
};
storeOnce(name, { key: "previous" });
await buy("alice");
console.log(JSON.stringify(tried));
"#,
    );
    assert_eq!(tried, json!(["previous", "stored-by-the-other-process"]));
}

/// The session is stored, and its claim is read as held, immediately before a cancellation returns the claim.
#[test]
fn a_session_stored_during_a_cancellation_ends() {
    let ended = run_in_node(
        r#"
const claim = { id: "id", status: "held" }, ended = [];
const session = { id: "cs_1", status: "open", payment_status: "unpaid", metadata: { claim_id: "id" } };
globalThis.fetch = async (url) => {
	if (url.endsWith("/expire")) ended.push(url.split("/").at(-2));
	if (url.includes("/checkout/sessions/")) return Response.json(session);
	if (url.endsWith("/return")) {
		storeOnce("id.session", { id: session.id });
		claim.status = "returned";
	}
	return Response.json({ claim });
};
await cancel("id");
console.log(JSON.stringify(ended));
"#,
    );
    assert_eq!(ended, json!(["cs_1"]));
}
