//! Opening the page: its user, its campaign, and failed loads.

use std::time::Duration;

use serde_json::{Value, json};
use support::browser::{Browser, PHONE};
use support::edge::{Edge, Runtime, World, token};

use super::{CODE, PHASE, TAB, assert_message, in_browser, limits, page_world, press_anyway, text, visit};

const DIALOG_OPEN: &str = "Boolean(document.getElementById('ask')?.open)";
const FOCUS: &str = "document.activeElement.id";
const USER: &str = "document.getElementById('user').textContent";
const TOKEN: &str = "JSON.parse(sessionStorage['claimgate:token'])";

const ENTER: char = '\u{e007}';
const ESCAPE: char = '\u{e00c}';

/// Script that records each call of the page.
const RECORD_CALLS: &str = "const real = fetch; window.calls = [];
    window.fetch = (url, options) => {
        calls.push(`${options?.method ?? 'GET'} ${url}`);
        return real(url, options);
    };";

/// Expression that clicks the button as soon as it is enabled.
const TRY_AGAIN: &str =
    "(button => !button.hidden && !button.disabled && !button.click())(document.getElementById('again'))";

async fn open_recording(name: &str, url: &str) -> Browser {
    let page = Browser::open(name, PHONE).await;
    page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": RECORD_CALLS})).await;
    page.goto(url).await;
    page
}

fn link(world: &World, campaign: &str, token: &str) -> String {
    world.edge.url(&format!("/?campaign={campaign}#token={token}"))
}

#[test]
fn a_token_link_asks_before_replacing_the_signed_in_user() {
    in_browser("a_token_link_asks_before_replacing_the_signed_in_user", async {
        let world = page_world().await;
        world.core.create("page-switch-user", limits()).await;
        let tokens = ["alice", "bob"].map(|user| world.token(user));
        let [alice, bob] = &tokens;
        let page = Browser::open("page-switch-user", PHONE).await;
        page.goto(&link(&world, "page-switch-user", alice)).await;
        page.until(USER, "Signed in as alice").await;
        assert_eq!(page.eval(DIALOG_OPEN).await, false, "no user was signed in before");

        page.goto(&link(&world, "page-switch-user", bob)).await;
        page.until(DIALOG_OPEN, true).await;
        assert_eq!(page.eval(TOKEN).await, json!(alice), "the token was replaced before the user confirmed");
        let question = text(&page, "ask-text").await;
        assert!(question.contains("alice") && question.contains("bob"), "{question}");
        for place in ["document.documentElement.outerHTML", "location.href"] {
            let shown = page.eval(place).await.as_str().unwrap().to_owned();
            assert!(!shown.contains("eyJ"), "a token is in {place}: {shown}");
        }
        page.check_layout("10-switch-user").await;
        assert_eq!(page.eval(FOCUS).await, "stay", "an accidental key press changes nothing");
        page.key(ESCAPE).await;
        page.until(DIALOG_OPEN, false).await;
        page.until(USER, "Signed in as alice").await;
        assert_eq!(page.eval(TOKEN).await, json!(alice));
        page.reload().await;
        page.until(USER, "Signed in as alice").await;

        page.goto(&link(&world, "page-switch-user&lang=zh", bob)).await;
        page.until(DIALOG_OPEN, true).await;
        assert_eq!(text(&page, "ask-text").await, "您已登录为 alice，要切换到 bob 吗？");
        page.check_layout("10-switch-user-zh").await;
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "switch");
        page.key(ENTER).await;
        page.until(DIALOG_OPEN, false).await;
        page.until(USER, "当前用户：bob").await;
        assert_eq!(page.eval(TOKEN).await, json!(bob));

        // A new token of the same user needs no confirmation. A token without a user does not replace the
        // current token.
        for (n, more) in [world.token("bob"), "not.a.token".to_owned()].into_iter().enumerate() {
            page.goto(&link(&world, &format!("page-switch-user&lang=en&visit={n}"), &more)).await;
            page.until(USER, "Signed in as bob").await;
            assert_eq!(page.eval(DIALOG_OPEN).await, false, "{more}");
        }
        page.close().await;
    });
}

#[test]
fn retrying_a_failed_page_load_does_not_send_a_claim() {
    in_browser("retrying_a_failed_page_load_does_not_send_a_claim", async {
        let world = page_world().await;
        world.core.create("page-unloaded", limits()).await;
        world.proxy.delay_answers(Duration::from_secs(10));
        let page = open_recording("page-unloaded", &world.edge.url("/?campaign=page-unloaded")).await;
        page.until(PHASE, "error").await;
        let visible = page.eval("document.body.innerText").await.as_str().unwrap().to_owned();
        assert!(!visible.contains("claim was received"), "no claim was made: {visible}");
        page.check_layout("9-not-loaded").await;
        let views = "calls.filter(call => call === 'GET /v1/campaigns/page-unloaded').length";
        let before = page.eval(views).await.as_i64().unwrap();
        page.until(TRY_AGAIN, true).await;
        page.until(&format!("{views} > {before}"), true).await;
        world.proxy.delay_answers(Duration::ZERO);
        page.until(PHASE, "open").await;
        let posted = page.eval("calls.filter(call => /^POST .*claims$/.test(call))").await;
        assert_eq!(posted, json!([]), "a claim on a campaign that was never shown");
        assert_eq!(world.core.sql().claims("page-unloaded").await.len(), 0);
        page.close().await;
    });
}

#[test]
fn a_link_without_a_campaign_is_reported_without_a_call() {
    in_browser("a_link_without_a_campaign_is_reported_without_a_call", async {
        let world = page_world().await;
        let page = open_recording("page-unnamed", &world.edge.url("/?campaign=")).await;
        assert_message(&page, "no_campaign", "The link names no campaign", "链接中未指定活动").await;
        page.check_layout("6-unnamed").await;
        assert_eq!(page.eval("calls").await, json!([]), "the page must not call the edge");
        let buttons =
            "[...document.querySelectorAll('.actions button')].filter(one => one.checkVisibility()).length";
        assert_eq!(page.eval(buttons).await, 0);
        // In the demo of `make up`, the root shows the demo campaign.
        page.goto(&world.edge.url("/?lang=zh")).await;
        page.until("location.search", "?lang=zh&campaign=demo").await;
        page.close().await;
    });
}

#[test]
fn an_unconfigured_edge_shows_unavailable_and_nothing_else() {
    in_browser("an_unconfigured_edge_shows_unavailable_and_nothing_else", async {
        let variables = [("CORE_URL", "http://127.0.0.1:9")];
        let edge = Edge::start(Runtime::from_env(), "page-unconfigured", "test", &variables).await;
        let page = Browser::open("page-unconfigured", PHONE).await;
        let token = token(&"A".repeat(43), "alice");
        // A visitor without a token, then one with a token.
        for visit in ["/?campaign=none".to_owned(), format!("/?campaign=any#token={token}")] {
            page.goto(&edge.url(&visit)).await;
            assert_message(&page, "not_configured", "Currently unavailable", "暂不可用").await;
            let visible = page.eval("document.body.innerText").await.as_str().unwrap().to_owned();
            assert!(!visible.contains("claim was received") && !visible.contains("sign in"), "{visible}");
        }
        page.check_layout("9-not-configured").await;
        // A claim sent anyway is rejected unread, so its outcome is known. The outcome is unknown only if one
        // of the page's requests has timed out.
        let is_in_doubt = async |attempt: usize| {
            let campaign = format!("unlooked-{attempt}");
            page.goto(&edge.url(&format!("/?campaign={campaign}#token={token}"))).await;
            page.until(CODE, "not_configured").await;
            press_anyway(&page).await;
            page.until(&format!("{PHASE} === 'error' && {CODE}"), "not_configured").await;
            let kept =
                format!("Object.keys(localStorage).some(name => name.startsWith('claimgate:{campaign}:'))");
            page.eval(&kept).await == true
        };
        let mut attempts = 1;
        while is_in_doubt(attempts).await {
            assert!(attempts < 4, "a key is stored for a claim that was never read");
            attempts += 1;
        }
        page.close().await;
    });
}

#[test]
fn a_visitor_without_a_token_sees_one_sign_in_request() {
    in_browser("a_visitor_without_a_token_sees_one_sign_in_request", async {
        let world = World::start(Runtime::from_env(), "page-no-demo", "test", &[]).await;
        world.core.create("page-signed-out", limits()).await;
        let page = visit(&world, "page-signed-out", "").await;
        page.until(CODE, "unauthenticated").await;
        let count = page.eval("document.body.innerText.split('Please sign in first').length - 1").await;
        assert_eq!(count, Value::from(1));
        page.close().await;
    });
}
