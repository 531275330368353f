//! The claim page in a real browser, in front of a real edge and a real core.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::browser::{self, Browser, PHONE};
use support::core_process::API_TOKEN;
use support::edge::{LossyProxy, World, root};
use support::times::{from_now, ms, now_ms};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::RUNTIME;
use super::edge::run;

const PHASE: &str = "document.body.dataset.phase";
const BUTTON: &str = "document.getElementById('claim').disabled";
const CODE: &str = "document.getElementById('result').dataset.code";
const FOCUS: &str = "document.activeElement.id";

/// WebDriver's names of keys.
const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';

/// Answers in the edge's place, as the page's URL says: `says` to each claim, `busy` to each look at the campaign.
const SAYS: &str = "const real = fetch, query = new URLSearchParams(location.search), asked = [];
    const problem = (status, code, seconds) =>
        new Response(JSON.stringify({ code, instance: 'r-1' }), { status, headers: { 'Retry-After': seconds } });
    window.asked = asked;
    window.fetch = async (url, options) => {
        if (/claims$/.test(url) && query.has('says')) return problem(query.get('status'), query.get('says'), 60);
        if (/campaigns/.test(url) && query.has('busy')) {
            asked.push(performance.now());
            return problem(429, 'rate_limited', query.get('busy'));
        }
        return real(url, options);
    };";

/// Answers each claim in the edge's place as if four thousand million had been made before it.
const MANY: &str = "const real = fetch;
    window.fetch = async (url, options) => {
        if (!/claims$/.test(url)) return real(url, options);
        const claim = { id: 'page-digits.me.0123456789abcdefABCDEF', quantity: 1, status: 'granted',
            sequence: 4294967295, claimed_at: new Date().toISOString(), expires_at: null };
        return new Response(JSON.stringify({ claim, remaining: 4294967294, version: 1 }), { status: 201 });
    };";

/// What a person reads as one: numbers (not those within ids), and each word under the countdown. All of them, and those that are
/// broken over lines or reach beyond their half of the ticket.
const NUMBERS: &str = r"(() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const seen = [], broken = [], range = document.createRange();
    for (let text; text = texts.nextNode();) {
        const owner = text.parentElement;
        if (!owner.checkVisibility() || owner.closest('#claim-id, #user, #request, #name, script, noscript')) continue;
        const box = owner.closest('section')?.getBoundingClientRect();
        for (const found of text.data.matchAll(owner.closest('#countdown') ? /\S+/g : /\d[\d.,:]*/g)) {
            range.setStart(text, found.index);
            range.setEnd(text, found.index + found[0].length);
            const parts = [...range.getClientRects()];
            seen.push(found[0]);
            const whole = new Set(parts.map(part => Math.round(part.top))).size === 1;
            const inside = !box || parts.every(part => part.left >= box.left && part.right <= box.right);
            if (!whole || !inside) broken.push(`${found[0]} in #${owner.closest('[id]').id}`);
        }
    }
    return { seen, broken };
})()";

/// As `make up` has it: with the demo's tokens. One test at a time, so that it may break things.
async fn page_world() -> MutexGuard<'static, World> {
    static WORLD: OnceCell<Mutex<World>> = OnceCell::const_new();
    let start = || async { Mutex::new(World::start(RUNTIME, "page", "local", &[]).await) };
    let mut world = WORLD.get_or_init(start).await.lock().await;
    world.heal().await;
    world
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

/// Sends the claim even though the page holds it back, as its own view may be late.
async fn press_anyway(page: &Browser) {
    page.eval("(button => { button.disabled = false; button.click(); })(document.getElementById('claim'))")
        .await;
}

/// Checks the refusal's words in both languages; leaves English.
async fn is_said(page: &Browser, code: &str, english: &str, chinese: &str) {
    page.until(CODE, code).await;
    assert_eq!(text(page, "message").await, english);
    page.press("#lang").await;
    assert_eq!(text(page, "message").await, chinese);
    assert_eq!(page.eval("document.documentElement.lang").await, "zh-CN");
    page.press("#lang").await;
}

/// The key the page keeps for its claim.
async fn kept_key(page: &Browser, campaign: &str) -> String {
    let name = format!("claimgate:{campaign}:{}", user(page).await);
    let key = page.eval(&format!("JSON.parse(sessionStorage['{name}']).key")).await;
    key.as_str().unwrap().to_owned()
}

/// That the one claim of the campaign is the one the page shows.
async fn is_the_one_claim(world: &World, page: &Browser, campaign: &str) {
    let rows = world.core.sql().await.until(campaign, 1).await;
    assert_eq!((rows.len(), text(page, "claim-id").await), (1, rows[0].id.clone()));
}

fn limits() -> Value {
    json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1})
}

#[test]
fn it_opens_by_itself_and_the_claim_stays_the_same() {
    in_browser("it_opens_by_itself_and_the_claim_stays_the_same", async {
        let world = page_world().await;
        let page = Browser::open("page-opens", PHONE).await;
        let starts_at = from_now(12);
        let rules = json!({"id": "page-opens", "name": "Launch day", "starts_at": starts_at, "ends_at": from_now(9000),
            "time_zone": "Asia/Shanghai", "limits": limits()});
        world.core.create_with(rules).await;
        // The page's first look at the server's clock is to be a quick one.
        let _ = world.view("page-opens").await.expect(200);
        // A browser whose clock is an hour ahead: only the server's clock must count.
        let clock = "const real = Date.now; Date.now = () => real() + 3600000;";
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": clock})).await;
        page.goto(&world.edge.url("/?campaign=page-opens")).await;
        page.until(PHASE, "scheduled").await;
        assert_eq!(page.eval(BUTTON).await, true);
        let asked_ms = now_ms();
        let left = page.eval("+document.getElementById('countdown').dataset.seconds").await.as_i64().unwrap();
        let (most_ms, least_ms) = (ms(&starts_at) - asked_ms, ms(&starts_at) - now_ms());
        assert!((least_ms - 1500..=most_ms + 1500).contains(&(left * 1000)), "{left} s left");
        page.picture("1-before").await;
        page.until(BUTTON, false).await;
        // To half of the slowest answer the page knows the server's clock; who is a blink early asks once more.
        assert!(now_ms() + 250 > ms(&starts_at), "open {} ms too early", ms(&starts_at) - now_ms());
        assert_eq!(page.eval(PHASE).await, "open");
        page.picture("2-open").await;

        page.press("#claim").await;
        page.until(PHASE, "won").await;
        let row = world.core.sql().await.until("page-opens", 1).await.remove(0);
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
        assert_eq!(world.core.sql().await.claims("page-opens").await.len(), 1);
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
        world.proxy.lose_all_answers(true);
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        page.picture("5-asking-again").await;
        world.core.kill();
        world.restart_core().await;
        world.proxy.lose_all_answers(false);
        page.until(PHASE, "won").await;
        let rows = world.core.sql().await.until("page-lost", 1).await;
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
        world.proxy.lose_all_answers(true);
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        page.reload().await;
        world.proxy.lose_all_answers(false);
        page.until(PHASE, "won").await;
        let rows = world.core.sql().await.until("page-reload", 1).await;
        assert_eq!((rows.len(), text(&page, "claim-id").await), (1, rows[0].id.clone()));
        page.close().await;
    });
}

#[test]
fn a_request_that_the_browser_itself_sent_twice_is_no_first_try() {
    in_browser("a_request_that_the_browser_itself_sent_twice_is_no_first_try", async {
        let world = page_world().await;
        world.core.create("page-twice", json!({"total": 1})).await;
        let front = LossyProxy::to(world.edge.listen);
        front.hold_before_losing(Duration::from_millis(500));
        let page = Browser::open("page-twice", PHONE).await;
        page.goto(&format!("http://{}/?campaign=page-twice", front.listen)).await;
        page.until(BUTTON, false).await;
        front.lose_answers(1);
        page.press("#claim").await;
        // Granted, and known to be sold out, before the browser finds its connection cut and sends the same again.
        world.until_seen("page-twice", "sold_out").await;
        // Others go on looking, so that the edge goes on knowing.
        let looking = async {
            loop {
                world.until_seen("page-twice", "sold_out").await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = looking => {}
            () = page.until("document.getElementById('result').dataset.code", "replayed") => {}
        }
        let claims = front.said("/v1/campaigns/page-twice/claims");
        let marked =
            claims.iter().filter(|text| text.to_lowercase().contains("claimgate-attempt: 1")).count();
        assert_eq!(
            (claims.len(), marked),
            (3, 2),
            "the copy carries the mark, the page's own retry does not"
        );
        assert_eq!(world.core.sql().await.until("page-twice", 1).await[0].id, text(&page, "claim-id").await);
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
            let taker = if campaign == "page-daily" { user(&page).await } else { "another-user".to_owned() };
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
            assert_eq!(world.core.sql().await.until(campaign, 1).await.len(), 1);
            page.close().await;
        }
    });
}

#[test]
fn all_of_it_is_under_30_kb_and_from_one_origin() {
    in_browser("all_of_it_is_under_30_kb_and_from_one_origin", async {
        let world = page_world().await;
        world.core.create("page-small", limits()).await;
        let files = fs::read_dir(root().join("edge/assets")).unwrap().map(Result::unwrap);
        // What the server is told is not sent.
        let sent = files.filter(|file| file.file_name() != "_headers");
        let on_disk: u64 = sent.map(|file| file.metadata().unwrap().len()).sum();
        let page = visit(&world, "page-small", "").await;
        page.until(BUTTON, false).await;
        let entries = page
            .eval(
                "performance.getEntries().filter(entry => entry.decodedBodySize >= 0)\
            .map(entry => [new URL(entry.name).pathname, entry.decodedBodySize])",
            )
            .await;
        let entries: BTreeMap<String, u64> =
            serde_json::from_value::<Vec<_>>(entries).unwrap().into_iter().collect();
        let files = ["/", "/page.css", "/page.js", "/messages.js", "/favicon.svg"].map(|file| entries[file]);
        let loaded: u64 = files.iter().sum();
        assert!(
            loaded > 20_000 && loaded < 30_000 && on_disk < 30_000,
            "{loaded} of {entries:?}, {on_disk} on disk"
        );
        page.close().await;
    });
}

#[test]
fn the_keyboard_is_enough() {
    in_browser("the_keyboard_is_enough", async {
        let world = page_world().await;
        world.core.create("page-keys", json!({"total": 100})).await;
        let page = visit(&world, "page-keys", "").await;
        page.until(BUTTON, false).await;
        for id in ["lang", "claim"] {
            page.key(TAB).await;
            assert_eq!(page.eval(FOCUS).await, id);
            assert_eq!(page.eval("getComputedStyle(document.activeElement).outlineStyle").await, "solid");
        }
        page.key(ENTER).await;
        page.until(PHASE, "won").await;
        assert_eq!(page.eval(FOCUS).await, "result", "what was pressed is gone, its result is next");
        page.picture("8-focus").await;
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "copy");
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "again");
        let first = text(&page, "claim-id").await;
        page.key(' ').await;
        page.until(&format!("document.getElementById('claim-id').textContent !== '{first}'"), true).await;
        page.until(PHASE, "won").await;
        page.key(TAB).await;
        page.key(TAB).await;
        page.key(TAB).await;
        assert_eq!(page.eval("document.activeElement.tagName").await, "BODY", "out of the page");
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "lang", "and in again");
        page.key(' ').await;
        assert_eq!(
            (page.eval(FOCUS).await, text(&page, "message").await),
            (json!("lang"), "领取成功".to_owned())
        );
        page.close().await;
    });
}

#[test]
fn a_screen_reader_is_told_all_of_it_and_the_result_once() {
    in_browser("a_screen_reader_is_told_all_of_it_and_the_result_once", async {
        let world = page_world().await;
        let campaign = json!({"id": "page-heard", "name": "Launch day", "starts_at": from_now(-60), "ends_at": from_now(9000),
            "limits": limits()});
        world.core.create_with(campaign).await;
        let page = visit(&world, "page-heard", "").await;
        page.until(BUTTON, false).await;
        let roles = ["region", "heading", "button", "timer", "progressbar"];
        let english = [
            "button: 中文",
            "region: Launch day",
            "region: Your number",
            "heading: Launch day",
            "timer: Ends in",
            "progressbar: 100 left of 100",
            "heading: Your number",
            "button: Claim yours",
        ];
        assert_eq!(page.told(&roles).await, english);
        assert_eq!(page.eval("document.getElementById('lang').lang").await, "zh-CN");
        page.press("#lang").await;
        let chinese = [
            "button: English",
            "region: Launch day",
            "region: 您的序号",
            "heading: Launch day",
            "timer: 距结束",
            "progressbar: 100 份剩余，共 100 份",
            "heading: 您的序号",
            "button: 立即领取",
        ];
        assert_eq!(page.told(&roles).await, chinese);
        page.press("#lang").await;

        // Every change of what is announced.
        page.eval(
            "(() => { window.heard = []; for (const live of document.querySelectorAll('[role=status]'))\
            new MutationObserver(() => live.ariaLive !== 'off' && live.textContent && heard.push(live.textContent))\
                .observe(live, { childList: true }); })()",
        )
        .await;
        let _ = world.core.switch("page-heard", "pause").await.expect(200);
        page.until(PHASE, "paused").await;
        let _ = world.core.switch("page-heard", "resume").await.expect(200);
        page.until(BUTTON, false).await;
        assert_eq!(page.eval("heard.splice(0)").await, json!(["Paused for now", "Open now"]));
        page.press("#claim").await;
        page.until(PHASE, "won").await;
        // Until a second has been counted down, and the campaign asked for again.
        page.until("document.getElementById('remaining').textContent", "99").await;
        let left = page.eval("document.getElementById('countdown').dataset.seconds").await;
        page.until(&format!("document.getElementById('countdown').dataset.seconds === {left}"), false).await;
        assert_eq!(page.eval("heard").await, json!(["Sending…", "It is yours"]));

        let _ = world.core.switch("page-heard", "end").await.expect(200);
        page.until("document.getElementById('state').dataset.state", "ended").await;
        assert_eq!(page.eval("heard").await, json!(["Sending…", "It is yours", "It is over"]));
        page.close().await;
    });
}

#[test]
fn a_network_lost_in_the_middle_is_waited_for() {
    in_browser("a_network_lost_in_the_middle_is_waited_for", async {
        let world = page_world().await;
        world.core.create("page-offline", limits()).await;
        let page = visit(&world, "page-offline", "").await;
        page.until(BUTTON, false).await;
        world.proxy.delay_answers(Duration::from_secs(2));
        page.press("#claim").await;
        let _ = world.core.sql().await.until("page-offline", 1).await;
        page.network(true, 0).await;
        world.proxy.delay_answers(Duration::ZERO);
        page.until(PHASE, "retrying").await;
        assert_eq!(text(&page, "message").await, "Not sure yet, asking again");
        let turning = "document.getAnimations().length";
        assert_eq!(page.eval(turning).await, 1);
        page.prefers("prefers-reduced-motion", "reduce").await;
        assert_eq!(page.eval(turning).await, 0);
        let key = kept_key(&page, "page-offline").await;
        page.until("document.getElementById('note').textContent", "Connection lost").await;
        // It stops asking, and says what to do.
        page.until(PHASE, "error").await;
        assert_eq!(page.eval(CODE).await, "network");
        assert_eq!(page.eval("document.getElementById('again').disabled").await, false);
        page.picture("9-offline").await;
        assert_eq!(kept_key(&page, "page-offline").await, key);
        // Nothing is pressed.
        page.network(false, 0).await;
        page.until(CODE, "replayed").await;
        assert_eq!(kept_key(&page, "page-offline").await, key);
        is_the_one_claim(&world, &page, "page-offline").await;
        page.close().await;
    });
}

#[test]
fn a_reload_without_a_network_is_the_same_claim_too() {
    in_browser("a_reload_without_a_network_is_the_same_claim_too", async {
        let world = page_world().await;
        world.core.create("page-gone", limits()).await;
        let page = visit(&world, "page-gone", "").await;
        page.until(BUTTON, false).await;
        let key =
            "JSON.parse(Object.entries(sessionStorage).find(([name]) => /page-gone/.test(name))[1]).key";
        page.network(true, 0).await;
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        let before = page.eval(key).await;
        page.devtools("Page.reload", json!({})).await;
        page.until("document.getElementById('claim') === null", true).await; // the browser's own page of errors
        assert_eq!(world.core.sql().await.claims("page-gone").await.len(), 0);
        page.network(false, 0).await;
        page.goto(&world.edge.url("/?campaign=page-gone")).await;
        page.until(PHASE, "won").await;
        assert_eq!(page.eval(key).await, before);
        is_the_one_claim(&world, &page, "page-gone").await;
        page.close().await;
    });
}

#[test]
fn a_slow_network_is_one_request_and_no_doubt() {
    in_browser("a_slow_network_is_one_request_and_no_doubt", async {
        let world = page_world().await;
        world.core.create("page-slow", limits()).await;
        let page = Browser::open("page-slow", PHONE).await;
        page.network(false, 2000).await;
        page.goto(&world.edge.url("/?campaign=page-slow")).await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        assert_eq!(page.eval(PHASE).await, "sending");
        page.picture("9-sending").await;
        page.until(PHASE, "won").await;
        assert_eq!(page.eval(CODE).await, "granted");
        is_the_one_claim(&world, &page, "page-slow").await;
        page.close().await;
    });
}

#[test]
fn rules_that_refuse_are_in_words_of_both_languages() {
    in_browser("rules_that_refuse_are_in_words_of_both_languages", async {
        let world = page_world().await;
        let core = &world.core;
        core.create_with(
            json!({"id": "page-soon", "name": "Soon", "starts_at": from_now(9000), "limits": limits()}),
        )
        .await;
        core.create("page-halted", limits()).await;
        let _ = core.switch("page-halted", "pause").await.expect(200);
        core.create("page-over", limits()).await;
        let _ = core.switch("page-over", "end").await.expect(200);
        core.create("page-full", json!({"total": 10, "per_user": 1})).await;
        core.create("page-gifts", limits()).await;
        let page = visit(&world, "page-gifts", "").await;
        page.until(BUTTON, false).await;
        let _ = core.claim("page-full", &user(&page).await, "elsewhere").await.expect(201);
        for (campaign, state, code, english, chinese) in [
            ("page-soon", "scheduled", "not_started", "Not open yet", "尚未开始"),
            ("page-halted", "paused", "paused", "Paused for now", "暂停领取"),
            ("page-over", "ended", "ended", "It is over", "活动已结束"),
            ("page-full", "open", "user_limit_reached", "You have your full share", "您已领满"),
        ] {
            page.goto(&world.edge.url(&format!("/?campaign={campaign}"))).await;
            page.until(PHASE, state).await;
            press_anyway(&page).await;
            is_said(&page, code, english, chinese).await;
            page.picture(&format!("7-{campaign}")).await;
            assert_eq!(page.eval(BUTTON).await, true, "{campaign}");
        }
        page.goto(&world.edge.url("/?campaign=page-gifts#token=not.a.token")).await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        is_said(&page, "unauthenticated", "Please sign in first", "请先登录").await;
        page.picture("7-unauthenticated").await;
        page.close().await;
    });
}

#[test]
fn who_is_too_fast_is_told_how_long_to_wait() {
    in_browser("who_is_too_fast_is_told_how_long_to_wait", async {
        let world = page_world().await;
        world.core.create("page-fast", json!({"total": 10, "per_user": 1})).await;
        let page = visit(&world, "page-fast", "").await;
        page.until(BUTTON, false).await;
        let user = user(&page).await;
        let _ = world.core.claim("page-fast", &user, "elsewhere").await.expect(201);
        // Once more when the limiter has just begun to count afresh.
        for _ in 0..3 {
            let many = (0..25).map(|n| {
                let request =
                    world.claim_request("page-fast", &user).header("CF-Connecting-IP", "192.0.2.77");
                world.send(request.header("Idempotency-Key", format!("k-{n}")))
            });
            if !join_all(many).await.iter().any(|reply| reply.status == 429) {
                continue;
            }
            press_anyway(&page).await;
            page.until(&format!("{CODE} !== ''"), true).await;
            if page.eval(CODE).await == "rate_limited" {
                break;
            }
        }
        is_said(&page, "rate_limited", "A little too fast", "操作太快了").await;
        assert_eq!(page.eval("document.getElementById('again').disabled").await, true);
        page.picture("7-rate-limited").await;
        page.until("document.getElementById('again').disabled", false).await;
        page.press("#again").await;
        page.until(CODE, "user_limit_reached").await;
        page.close().await;
    });
}

#[test]
fn a_claim_that_stands_no_more_is_said_so() {
    in_browser("a_claim_that_stands_no_more_is_said_so", async {
        let world = page_world().await;
        world.core.create("page-returned", limits()).await;
        let rules = json!({"id": "page-held", "name": "Held", "starts_at": from_now(-60), "limits": limits(), "hold_seconds": 8});
        world.core.create_with(rules).await;
        let page = visit(&world, "page-held", "").await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        is_said(&page, "held", "Reserved for you", "已为您保留").await;
        page.picture("3-held").await;
        is_said(&page, "claim_expired", "The reservation ran out", "保留已过期").await;
        page.picture("7-expired").await;

        page.goto(&world.edge.url("/?campaign=page-returned")).await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        let path = format!("/internal/v1/claims/{}/return", text(&page, "claim-id").await);
        let _ = world
            .core
            .client()
            .call(Method::POST, &world.core.url(&path), API_TOKEN, &Value::Null)
            .await
            .expect(200);
        page.reload().await;
        is_said(&page, "claim_returned", "This claim was given back", "这份已退回").await;
        page.close().await;
    });
}

#[test]
fn rare_answers_are_in_words_too() {
    in_browser("rare_answers_are_in_words_too", async {
        let world = page_world().await;
        world.core.create("page-rare", limits()).await;
        let page = visit(&world, "page-rare", "").await;
        let keys = "import('/messages.js').then(({ languages: { en, zh } }) => ";
        let shape = "words => Object.entries(words).map(([key, text]) => [key, Array.isArray(text) ? text.length : 0])";
        let pair = page.eval(&format!("{keys}[en, zh].map({shape}))")).await;
        assert_eq!(pair[0], pair[1], "both languages say the same");
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SAYS})).await;
        for (status, code, may_ask_again) in [
            (409, "sold_out", false),
            (409, "claim_revoked", true),
            (403, "forbidden", false),
            (400, "invalid_request", false),
            (408, "request_timeout", true),
            (503, "campaign_not_ready", true),
            (503, "overloaded", true),
            (503, "unavailable", true),
            (418, "unheard_of", false),
        ] {
            page.eval("sessionStorage.clear()").await;
            let query = format!("/?campaign=page-rare&says={code}&status={status}");
            page.goto(&world.edge.url(&query)).await;
            page.until(BUTTON, false).await;
            page.press("#claim").await;
            let words =
                page.eval(&format!("{keys}[en, zh].map(words => (words.{code} ?? words.problem)[0]))")).await;
            is_said(&page, code, words[0].as_str().unwrap(), words[1].as_str().unwrap()).await;
            assert_eq!(page.eval("!document.getElementById('again').hidden").await, may_ask_again, "{code}");
        }
        page.picture("7-unheard-of").await;
        page.close().await;
    });
}

#[test]
fn no_number_breaks_at_any_width_in_either_language() {
    in_browser("no_number_breaks_at_any_width_in_either_language", async {
        let world = page_world().await;
        let most = u32::MAX;
        let limits = json!({"total": most, "per_user": most, "per_user_per_day": 1_000_000, "per_claim": 1});
        for (id, days) in [("page-digits", 29), ("page-digits-far", 365)] {
            let campaign = json!({"id": id, "name": "Launch day", "starts_at": from_now(-60),
                "ends_at": from_now(days * 86400 - 60), "time_zone": "Asia/Shanghai", "limits": limits});
            world.core.create_with(campaign).await;
            let page = Browser::open(id, PHONE).await;
            page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": MANY})).await;
            page.goto(&world.edge.url(&format!("/?campaign={id}"))).await;
            page.until(BUTTON, false).await;
            numbers_are_whole(&page, id, "4,294,967,295").await;
            page.press("#claim").await;
            page.until(PHASE, "won").await;
            numbers_are_whole(&page, &format!("{id}-won"), "4294967295").await;
            page.close().await;
        }
    });
}

/// Looks at every number at four widths and in both languages, `one` among them; leaves English.
async fn numbers_are_whole(page: &Browser, name: &str, one: &str) {
    let mut broken = Vec::new();
    for language in ["en", "zh"] {
        for width in [360, 768, 1000, 1440] {
            page.resize((width, 900)).await;
            let found = page.eval(NUMBERS).await;
            let seen = found["seen"].as_array().unwrap();
            // Four cells of the countdown and their words, what is left, the limits, the time of the end.
            assert!(seen.len() >= 12 && seen.contains(&json!(one)), "{seen:?}");
            broken.extend(
                found["broken"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|what| format!("{language} at {width}: {what}")),
            );
            page.shoot(&format!("{name}-{width}-{language}")).await;
        }
        page.press("#lang").await;
    }
    assert_eq!(broken, Vec::<String>::new(), "{name}");
}

/// A font for Chinese is on no machine for certain: the way out of and into the language must not need one.
#[test]
fn the_language_switch_needs_no_chinese_font() {
    in_browser("the_language_switch_needs_no_chinese_font", async {
        let world = page_world().await;
        world.core.create("page-switch", limits()).await;
        let page = visit(&world, "page-switch", "").await;
        page.until(BUTTON, false).await;
        for (tag, name, ink) in [("zh-CN", "button: 中文", "svg"), ("en", "button: English", "span")] {
            assert!(page.told(&["button"]).await.contains(&name.to_owned()), "{name}");
            assert_eq!(page.eval("document.getElementById('lang').lang").await, tag);
            let shown = page.eval("document.getElementById('lang').innerText").await;
            assert!(shown.as_str().unwrap().is_ascii(), "{shown} is drawn by a font that may be missing");
            let width = page
                .eval(&format!("document.querySelector('#lang {ink}').getBoundingClientRect().width"))
                .await;
            assert!(width.as_f64().unwrap() > 20.0, "{ink} is {width} wide");
            page.press("#lang").await;
        }
        page.close().await;
    });
}

#[test]
fn it_asks_no_sooner_than_it_is_told() {
    in_browser("it_asks_no_sooner_than_it_is_told", async {
        let world = page_world().await;
        let page = Browser::open("page-busy", PHONE).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SAYS})).await;
        page.goto(&world.edge.url("/?campaign=page-busy&busy=5")).await;
        page.until("asked.length", 2).await;
        let waited = page.eval("asked[1] - asked[0]").await.as_f64().unwrap();
        assert!(waited > 5000.0, "{waited} ms");
        page.close().await;
    });
}
