//! The user's claims on the page, including claims made elsewhere, and the message shown before the user
//! sends a claim that cannot succeed.

use serde_json::{Value, json};
use support::browser::{Browser, PHONE};
use support::edge::World;

use super::{
    AGAIN_HIDDEN, BUTTON, CODE, FAKE_ANSWERS, PHASE, SHORT_WAITS, in_browser, limits, page_world,
    return_claim, text,
};

/// Script that records whether the button was disabled at each lookup of the user's claims. Lookups fail if
/// the URL contains `deaf`.
const RECORD_LOOKUPS: &str = "const real = fetch, lookups = [];
    window.lookups = lookups;
    window.fetch = async (url, options) => {
        if (options?.method !== 'POST' && /claims$/.test(url)) {
            lookups.push({ at: performance.now(), held: document.getElementById('claim').disabled });
            if (/deaf/.test(location.search)) return new Response('{\"code\":\"unavailable\"}', { status: 503 });
        }
        return real(url, options);
    };";

/// Opens the page on another device of `user`.
async fn device_of(world: &World, user: &str, campaign: &str, script: &str, more: &str) -> Browser {
    let page = Browser::open(campaign, PHONE).await;
    for source in [SHORT_WAITS, script] {
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": source})).await;
    }
    let token = world.token(user);
    page.goto(&world.edge.url(&format!("/?campaign={campaign}{more}#token={token}"))).await;
    page
}

#[test]
fn a_claim_made_elsewhere_is_shown_with_the_allowance() {
    in_browser("a_claim_made_elsewhere_is_shown_with_the_allowance", async {
        let world = page_world().await;
        let rules = json!({"total": 100, "per_user": 3, "per_claim": 1});
        world.core.create("page-own", rules).await;
        let mut ids = vec![];
        for key in ["k1", "k2"] {
            let claim = world.core.claim("page-own", "wanda", key).await.expect(201).json();
            ids.push(claim["claim"]["id"].clone());
        }
        let page = device_of(&world, "wanda", "page-own", RECORD_LOOKUPS, "").await;
        page.until(PHASE, "won").await;
        assert_eq!(json!(text(&page, "claim-id").await), ids[1]);
        assert_eq!(text(&page, "others").await, "Also yours: No. 1");
        assert_eq!(text(&page, "left").await, "You can claim 1 more.");
        assert_eq!(
            page.eval("lookups.map(({ held }) => held)").await,
            json!([false]),
            "the lookup waits until the button is enabled"
        );
        page.press("#again").await;
        page.until("document.getElementById('sequence').textContent", "3").await;
        page.until("document.getElementById('others').textContent", "Also yours: No. 2, 1").await;
        let left = "document.getElementById('left').textContent";
        page.until(left, "You have reached your limit. The limit is 3 per person.").await;
        assert_eq!(page.eval(AGAIN_HIDDEN).await, true, "a further claim would be denied");
        page.check_layout("3-several").await;
        // Another tab of the same browser, opened by the same link.
        let token = world.token("wanda");
        let tab = format!("/?campaign=page-own&tab=2#token={token}");
        page.goto(&world.edge.url(&tab)).await;
        page.until("document.getElementById('sequence').textContent", "3").await;
        page.close().await;
    });
}

#[test]
fn a_used_up_limit_is_shown_before_a_claim_is_sent() {
    in_browser("a_used_up_limit_is_shown_before_a_claim_is_sent", async {
        let world = page_world().await;
        world.core.create("page-nothing", limits()).await;
        let claim = world.core.claim("page-nothing", "xena", "k").await.expect(201).json();
        let id = claim["claim"]["id"].as_str().unwrap().to_owned();
        let page = device_of(&world, "xena", "page-nothing", RECORD_LOOKUPS, "").await;
        page.until(PHASE, "won").await;
        assert_eq!(page.eval(AGAIN_HIDDEN).await, true);
        assert!(
            text(&page, "left").await.starts_with("You have reached today's limit. The limit is 1 per day.")
        );
        // After the return, the page offers another claim.
        return_claim(&world, &id).await;
        page.reload().await;
        page.until(CODE, "claim_returned").await;
        page.until(AGAIN_HIDDEN, false).await;
        page.press("#again").await;
        page.until(CODE, "granted").await;
        assert_eq!(
            world
                .proxy
                .requests_with("POST /internal/v1/claims ")
                .iter()
                .filter(|text| text.contains("xena"))
                .count(),
            1
        );
        page.close().await;
    });
}

#[test]
fn a_failed_lookup_does_not_block_claims_and_is_retried() {
    let name = "a_failed_lookup_does_not_block_claims_and_is_retried";
    in_browser(name, async {
        let world = page_world().await;
        world.core.create("page-deaf", json!({"total": 10})).await;
        let page = device_of(&world, "yara", "page-deaf", RECORD_LOOKUPS, "&deaf").await;
        page.until("lookups.length", 1).await;
        assert_eq!(page.eval(BUTTON).await, false);
        page.press("#claim").await;
        page.until(PHASE, "won").await;
        assert_eq!(
            page.eval(AGAIN_HIDDEN).await,
            true,
            "it is unknown whether a further claim would be denied"
        );
        page.until("lookups.length", 2).await;
        let between = page.eval("lookups[1].at - lookups[0].at").await.as_f64().unwrap();
        assert!(between > 11_000.0, "{between} ms");
        page.close().await;
    });
}

#[test]
fn a_rejected_token_is_reported_before_any_click() {
    in_browser("a_rejected_token_is_reported_before_any_click", async {
        let world = page_world().await;
        world.core.create("page-expired", limits()).await;
        let page = Browser::open("page-expired", PHONE).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": FAKE_ANSWERS})).await;
        page.goto(&world.edge.url("/?campaign=page-expired#token=not.a.token")).await;
        page.until(CODE, "unauthenticated").await;
        assert_eq!(page.eval(BUTTON).await, true);
        assert_eq!(page.eval("sessionStorage['claimgate:token']").await, Value::from("null"));
        page.close().await;
    });
}
