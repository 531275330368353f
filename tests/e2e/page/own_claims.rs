//! What the page shows of the user's claims, made wherever, and what it says before a claim that cannot win is sent.

use serde_json::{Value, json};
use support::browser::{Browser, PHONE};
use support::edge::World;

use super::{AGAIN_HIDDEN, BUTTON, CODE, PHASE, SAYS, give_back, in_browser, limits, page_world, text};

/// Records whether the button worked when the user's claims were looked up; none of these gets an answer if the URL has `deaf`.
const LOOKS: &str = "const real = fetch, looks = [];
    window.looks = looks;
    window.fetch = async (url, options) => {
        if (options?.method !== 'POST' && /claims$/.test(url)) {
            looks.push({ at: performance.now(), held: document.getElementById('claim').disabled });
            if (/deaf/.test(location.search)) return new Response('{\"code\":\"unavailable\"}', { status: 503 });
        }
        return real(url, options);
    };";

/// The page on another device of this user's.
async fn device_of(world: &World, user: &str, campaign: &str, script: &str, more: &str) -> Browser {
    let page = Browser::open(campaign, PHONE).await;
    page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
    let token = world.token(user);
    page.goto(&world.edge.url(&format!("/?campaign={campaign}{more}#token={token}"))).await;
    page
}

#[test]
fn a_claim_made_elsewhere_is_shown_with_what_is_left() {
    in_browser("a_claim_made_elsewhere_is_shown_with_what_is_left", async {
        let world = page_world().await;
        let rules = json!({"total": 100, "per_user": 3, "per_claim": 1});
        world.core.create("page-own", rules).await;
        let mut ids = vec![];
        for key in ["k1", "k2"] {
            let claim = world.core.claim("page-own", "wanda", key).await.expect(201).json();
            ids.push(claim["claim"]["id"].clone());
        }
        let page = device_of(&world, "wanda", "page-own", LOOKS, "").await;
        page.until(PHASE, "won").await;
        assert_eq!(json!(text(&page, "claim-id").await), ids[1]);
        assert_eq!(text(&page, "others").await, "Also yours: No. 1");
        assert_eq!(text(&page, "left").await, "You can claim 1 more.");
        assert_eq!(
            page.eval("looks.map(({ held }) => held)").await,
            json!([false]),
            "not before the button worked"
        );
        page.press("#again").await;
        page.until("document.getElementById('sequence').textContent", "3").await;
        page.until("document.getElementById('others').textContent", "Also yours: No. 2, 1").await;
        let left = "document.getElementById('left').textContent";
        page.until(left, "You have your full share. The limit is 3 per person.").await;
        assert_eq!(page.eval(AGAIN_HIDDEN).await, true, "the next one could not win");
        page.picture("3-several").await;
        // Another tab of this browser's, opened by the same link.
        let token = world.token("wanda");
        let tab = format!("/?campaign=page-own&tab=2#token={token}");
        page.goto(&world.edge.url(&tab)).await;
        page.until("document.getElementById('sequence').textContent", "3").await;
        page.close().await;
    });
}

#[test]
fn a_claim_that_cannot_win_is_said_so_before_it_is_sent() {
    in_browser("a_claim_that_cannot_win_is_said_so_before_it_is_sent", async {
        let world = page_world().await;
        world.core.create("page-nothing", limits()).await;
        let claim = world.core.claim("page-nothing", "xena", "k").await.expect(201).json();
        let id = claim["claim"]["id"].as_str().unwrap().to_owned();
        let page = device_of(&world, "xena", "page-nothing", LOOKS, "").await;
        page.until(PHASE, "won").await;
        assert_eq!(page.eval(AGAIN_HIDDEN).await, true);
        assert!(text(&page, "left").await.starts_with("That is all for today. The limit is 1 per day."));
        // Given back: the user may claim again, and is told so.
        give_back(&world, &id).await;
        page.reload().await;
        page.until(CODE, "claim_returned").await;
        page.until(AGAIN_HIDDEN, false).await;
        page.press("#again").await;
        page.until(CODE, "granted").await;
        assert_eq!(
            world.proxy.said("POST /internal/v1/claims ").iter().filter(|text| text.contains("xena")).count(),
            1
        );
        page.close().await;
    });
}

#[test]
fn the_button_works_without_a_look_up_and_a_refused_one_is_not_repeated_at_once() {
    let name = "the_button_works_without_a_look_up_and_a_refused_one_is_not_repeated_at_once";
    in_browser(name, async {
        let world = page_world().await;
        world.core.create("page-deaf", json!({"total": 10})).await;
        let page = device_of(&world, "yara", "page-deaf", LOOKS, "&deaf").await;
        page.until("looks.length", 1).await;
        assert_eq!(page.eval(BUTTON).await, false);
        page.press("#claim").await;
        page.until(PHASE, "won").await;
        assert_eq!(page.eval(AGAIN_HIDDEN).await, true, "whether another could win is not known");
        page.until("looks.length", 2).await;
        let between = page.eval("looks[1].at - looks[0].at").await.as_f64().unwrap();
        assert!(between > 11_000.0, "{between} ms");
        page.close().await;
    });
}

#[test]
fn a_token_that_is_refused_is_said_before_the_press() {
    in_browser("a_token_that_is_refused_is_said_before_the_press", async {
        let world = page_world().await;
        world.core.create("page-expired", limits()).await;
        let page = Browser::open("page-expired", PHONE).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SAYS})).await;
        page.goto(&world.edge.url("/?campaign=page-expired#token=not.a.token")).await;
        page.until(CODE, "unauthenticated").await;
        assert_eq!(page.eval(BUTTON).await, true);
        assert_eq!(page.eval("sessionStorage['claimgate:token']").await, Value::from("null"));
        page.close().await;
    });
}
