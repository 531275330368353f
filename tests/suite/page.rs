//! The claim page in a real browser, in front of a real edge and a real core.

use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};
use support::browser::{self, Browser, PHONE};
use support::edge::{Wire, World};
use support::times::{from_now, ms, now_ms};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::edge::run;

const PHASE: &str = "document.body.dataset.phase";
const BUTTON: &str = "document.getElementById('claim').disabled";

/// As `make up` has it: with the demo's tokens. One test at a time, so that it may break things.
async fn page_world() -> MutexGuard<'static, World> {
    static WORLD: OnceCell<Mutex<World>> = OnceCell::const_new();
    let start = || async { Mutex::new(World::start("page", "local", &[]).await) };
    WORLD.get_or_init(start).await.lock().await
}

/// Runs `test` where there is a browser.
fn in_browser(name: &str, test: impl Future<Output = ()>) {
    if browser::is_here() {
        run(test);
    } else {
        println!("page::{name} SKIPPED: no chromium or no chromedriver; scripts/setup.sh brings them");
    }
}

async fn visit(world: &World, campaign: &str, more: &str) -> Browser {
    let page = Browser::open(campaign, PHONE).await;
    page.goto(&world.edge.url(&format!("/?campaign={campaign}{more}"))).await;
    page
}

async fn text(page: &Browser, id: &str) -> String {
    let text = page.eval(&format!("document.getElementById('{id}').textContent")).await;
    text.as_str().unwrap().to_owned()
}

/// The id of the page's own user.
async fn user(page: &Browser) -> String {
    let user = page.eval("JSON.parse(sessionStorage['claimgate:guest'])").await;
    user.as_str().unwrap().to_owned()
}

fn limits() -> Value {
    json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1})
}

#[test]
fn it_opens_by_itself_and_the_claim_stays_the_same() {
    in_browser("it_opens_by_itself_and_the_claim_stays_the_same", async {
        let world = page_world().await;
        let starts_at = from_now(12);
        let rules = json!({"id": "page-opens", "name": "Launch day", "starts_at": starts_at, "ends_at": from_now(9000),
            "time_zone": "Asia/Shanghai", "limits": limits()});
        world.core.create_with(rules).await;
        let page = Browser::open("page-opens", PHONE).await;
        // A browser whose clock is an hour ahead: only the server's clock must count.
        let clock = "const real = Date.now; Date.now = () => real() + 3600000;";
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": clock})).await;
        page.goto(&world.edge.url("/?campaign=page-opens")).await;
        page.until(PHASE, "scheduled").await;
        assert_eq!(page.eval(BUTTON).await, true);
        let left = page.eval("+document.getElementById('countdown').dataset.seconds").await.as_i64().unwrap();
        assert!((ms(&starts_at) - now_ms() - left * 1000).abs() < 1500, "{left} s left");
        page.picture("1-before").await;
        page.until(BUTTON, false).await;
        // To half of the slowest answer the page knows the server's clock; who is a blink early asks once more.
        assert!(now_ms() + 250 > ms(&starts_at), "open {} ms too early", ms(&starts_at) - now_ms());
        assert_eq!(page.eval(PHASE).await, "open");
        page.picture("2-open").await;

        page.press("#claim").await;
        page.until(PHASE, "won").await;
        let row = world.core.register().await.until("page-opens", 1).await.remove(0);
        assert_eq!(
            (text(&page, "sequence").await, text(&page, "claim-id").await),
            ("1".to_owned(), row.id.clone())
        );
        assert_eq!(row.user_id, user(&page).await);
        page.until("document.getElementById('remaining').textContent", "99").await;
        page.picture("3-claimed").await;
        page.press("#lang").await;
        assert_eq!(text(&page, "message").await, "领取成功");
        page.picture("4-claimed-zh").await;

        page.reload().await;
        page.until(PHASE, "won").await;
        assert_eq!(text(&page, "claim-id").await, row.id);
        assert_eq!(world.core.register().await.claims("page-opens").await.len(), 1);
        page.close().await;
    });
}

#[test]
fn a_claim_whose_answer_was_lost_is_asked_for_until_it_is_known() {
    in_browser("a_claim_whose_answer_was_lost_is_asked_for_until_it_is_known", async {
        let mut world = page_world().await;
        world.core.create("page-lost", limits()).await;
        let page = visit(&world, "page-lost", "").await;
        page.until(BUTTON, false).await;
        world.wire.lose_all_answers(true);
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        page.picture("5-asking-again").await;
        world.core.kill();
        world.restart_core().await;
        world.wire.lose_all_answers(false);
        page.until(PHASE, "won").await;
        let rows = world.core.register().await.until("page-lost", 1).await;
        assert_eq!((rows.len(), text(&page, "claim-id").await), (1, rows[0].id.clone()));
        page.close().await;
    });
}

#[test]
fn a_reload_while_the_outcome_is_unknown_is_the_same_claim() {
    in_browser("a_reload_while_the_outcome_is_unknown_is_the_same_claim", async {
        let world = page_world().await;
        world.core.create("page-reload", limits()).await;
        let page = visit(&world, "page-reload", "").await;
        page.until(BUTTON, false).await;
        world.wire.lose_all_answers(true);
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        page.reload().await;
        world.wire.lose_all_answers(false);
        page.until(PHASE, "won").await;
        let rows = world.core.register().await.until("page-reload", 1).await;
        assert_eq!((rows.len(), text(&page, "claim-id").await), (1, rows[0].id.clone()));
        page.close().await;
    });
}

#[test]
fn a_request_that_the_browser_itself_sent_twice_is_no_first_try() {
    in_browser("a_request_that_the_browser_itself_sent_twice_is_no_first_try", async {
        let world = page_world().await;
        world.core.create("page-twice", json!({"total": 1})).await;
        let front = Wire::to(world.edge.listen);
        front.hold_before_losing(Duration::from_secs(1));
        let page = Browser::open("page-twice", PHONE).await;
        page.goto(&format!("http://{}/?campaign=page-twice", front.listen)).await;
        page.until(BUTTON, false).await;
        front.lose_answers(1);
        page.press("#claim").await;
        // Granted, and known to be sold out, before the browser finds its connection cut and sends the same again.
        world.until_seen("page-twice", "sold_out").await;
        page.until("document.getElementById('result').dataset.code", "replayed").await;
        let claims = front.said("/v1/campaigns/page-twice/claims");
        let marked =
            claims.iter().filter(|text| text.to_lowercase().contains("claimgate-attempt: 1")).count();
        assert_eq!(
            (claims.len(), marked),
            (3, 2),
            "the copy carries the mark, the page's own retry does not"
        );
        assert_eq!(
            world.core.register().await.until("page-twice", 1).await[0].id,
            text(&page, "claim-id").await
        );
        page.close().await;
    });
}

#[test]
fn every_refusal_is_in_words_of_both_languages() {
    in_browser("every_refusal_is_in_words_of_both_languages", async {
        let world = page_world().await;
        world.core.create("page-paused", limits()).await;
        let _ = world.core.switch("page-paused", "pause").await.expect(200);
        world.core.create("page-ended", limits()).await;
        let _ = world.core.switch("page-ended", "end").await.expect(200);
        world.core.create("page-sold-out", json!({"total": 1})).await;
        let _ = world.core.claim("page-sold-out", "winner", "k").await.expect(201);
        for (campaign, english, chinese) in [
            ("page-paused", "Paused for now", "暂停领取"),
            ("page-ended", "It is over", "活动已结束"),
            ("page-sold-out", "All taken", "已领完"),
            ("page-none", "No such campaign", "没有这个活动"),
        ] {
            let page = visit(&world, campaign, "").await;
            page.until("document.getElementById('message').textContent", english).await;
            assert_eq!(page.eval(BUTTON).await, true, "{campaign}");
            page.picture(&format!("6-{campaign}")).await;
            page.press("#lang").await;
            assert_eq!(text(&page, "message").await, chinese);
            assert_eq!(page.eval("document.documentElement.lang").await, "zh-CN");
            page.picture(&format!("6-{campaign}-zh")).await;
            page.close().await;
        }
    });
}

#[test]
fn a_refusal_after_the_press_is_in_words_too() {
    in_browser("a_refusal_after_the_press_is_in_words_too", async {
        let world = page_world().await;
        world.core.create("page-daily", limits()).await;
        world.core.create("page-last", json!({"total": 1})).await;
        for (campaign, code, english, chinese) in [
            ("page-daily", "user_daily_limit_reached", "That is all for today", "今天已领完"),
            ("page-last", "sold_out", "All taken", "已领完"),
        ] {
            let page = visit(&world, campaign, "").await;
            page.until(BUTTON, false).await;
            let taker = if campaign == "page-daily" { user(&page).await } else { "somebody-else".to_owned() };
            let _ = world.core.claim(campaign, &taker, "elsewhere").await.expect(201);
            page.press("#claim").await;
            page.until("document.getElementById('result').dataset.code", code).await;
            assert_eq!(text(&page, "message").await, english);
            page.picture(&format!("7-{campaign}")).await;
            page.press("#lang").await;
            assert_eq!(text(&page, "message").await, chinese);
            page.picture(&format!("7-{campaign}-zh")).await;
            page.reload().await;
            page.until(BUTTON, campaign != "page-daily").await;
            assert_eq!(world.core.register().await.until(campaign, 1).await.len(), 1);
            page.close().await;
        }
    });
}
