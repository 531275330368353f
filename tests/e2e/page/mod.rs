//! The claim page in a real browser, in front of a real edge and a real core.

mod access;
mod claim;
mod network;
mod own_claims;
mod states;
mod words;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;
use serde_json::{Value, json};
use support::browser::{self, Browser, PHONE};
use support::core_client::API_TOKEN;
use support::edge::{Runtime, World};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::edge::run;

pub const PHASE: &str = "document.body.dataset.phase";
pub const BUTTON: &str = "document.getElementById('claim').disabled";
pub const AGAIN_HIDDEN: &str = "document.getElementById('again').hidden";
pub const CODE: &str = "document.getElementById('result').dataset.code";

/// Answers in the edge's place, as the page's URL says: `says` to each claim, `busy` to each look at the campaign.
pub const SAYS: &str = "const real = fetch, query = new URLSearchParams(location.search), asked = [];
    const problem = (status, code, seconds) =>
        new Response(JSON.stringify({ code, instance: 'r-1' }), { status, headers: { 'Retry-After': seconds } });
    window.asked = asked;
    window.fetch = async (url, options) => {
        const isClaim = options?.method === 'POST' && /claims$/.test(url);
        if (isClaim && query.has('says')) return problem(query.get('status'), query.get('says'), 60);
        if (/campaigns.[^/]+$/.test(url) && query.has('busy')) {
            asked.push(performance.now());
            return problem(429, 'rate_limited', query.get('busy'));
        }
        return real(url, options);
    };";

/// As `make up` has it: with the demo's tokens. One of a few, each for one test at a time, so that it may break things.
pub async fn page_world() -> MutexGuard<'static, World> {
    static WORLDS: [OnceCell<Mutex<World>>; 3] = [const { OnceCell::const_new() }; 3];
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let at = TAKEN.fetch_add(1, Ordering::Relaxed) % WORLDS.len();
    let start =
        || async { Mutex::new(World::start(Runtime::asked(), &format!("page-{at}"), "local", &[]).await) };
    let mut world = WORLDS[at].get_or_init(start).await.lock().await;
    world.heal().await;
    world
}

/// Runs `test` where there is a browser.
pub fn in_browser(name: &str, test: impl Future<Output = ()>) {
    if browser::is_here() {
        run(test);
    } else {
        println!("page::{name} SKIPPED: no chromium or no chromedriver; scripts/setup.sh brings them");
    }
}

pub async fn visit(world: &World, campaign: &str, more: &str) -> Browser {
    let page = Browser::open(campaign, PHONE).await;
    page.goto(&world.edge.url(&format!("/?campaign={campaign}{more}"))).await;
    page
}

pub async fn text(page: &Browser, id: &str) -> String {
    let text = page.eval(&format!("document.getElementById('{id}').textContent")).await;
    text.as_str().unwrap().to_owned()
}

/// The id of the page's own user.
pub async fn user(page: &Browser) -> String {
    let user = page.eval("JSON.parse(localStorage['claimgate:guest'])").await;
    user.as_str().unwrap().to_owned()
}

/// Sends the claim even though the page holds it back, as its own view may be late.
pub async fn press_anyway(page: &Browser) {
    page.eval("(button => { button.disabled = false; button.click(); })(document.getElementById('claim'))")
        .await;
}

/// Checks the refusal's words in both languages; leaves English.
pub async fn is_said(page: &Browser, code: &str, english: &str, chinese: &str) {
    page.until(CODE, code).await;
    assert_eq!(text(page, "message").await, english);
    page.press("#lang").await;
    assert_eq!(text(page, "message").await, chinese);
    assert_eq!(page.eval("document.documentElement.lang").await, "zh-CN");
    page.press("#lang").await;
}

/// The key the page keeps for its claim while that is without an answer.
pub async fn kept_key(page: &Browser, campaign: &str) -> String {
    let name = format!("claimgate:{campaign}:{}", user(page).await);
    let key = page.eval(&format!("JSON.parse(localStorage['{name}']).key")).await;
    key.as_str().unwrap().to_owned()
}

/// That the one claim of the campaign is the one the page shows.
pub async fn is_the_one_claim(world: &World, page: &Browser, campaign: &str) {
    let rows = world.core.sql().until(campaign, 1).await;
    assert_eq!((rows.len(), text(page, "claim-id").await), (1, rows[0].id.clone()));
}

/// Returns the claim, as a back end does.
pub async fn give_back(world: &World, claim_id: &str) {
    let url = world.core.url(&format!("/internal/v1/claims/{claim_id}/return"));
    let _ = world.core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
}

pub fn limits() -> Value {
    json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1})
}
