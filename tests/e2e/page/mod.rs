//! The claim page in a real browser, with a real edge and core.

mod access;
mod arrival;
mod brand;
mod button;
mod campaigns;
mod challenges;
mod claim;
mod codes;
mod held;
mod network;
mod sign_in;
mod states;
mod users_claims;
mod wording;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use support::browser::{self, Browser, PHONE};
use support::edge::{Runtime, World};
use support::wait::holds;
use support::{SOON, eventually};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::edge::run;

pub const PHASE: &str = "document.body.dataset.phase";
/// The campaign's state. Unlike the phase, it stays when a lookup finds that the user's next claim would be denied.
pub const STATE: &str = "document.getElementById('state').dataset.state";
pub const BUTTON: &str = "document.getElementById('claim').disabled";
pub const AGAIN_HIDDEN: &str = "document.getElementById('again').hidden";
pub const CODE: &str = "document.getElementById('result').dataset.code";

/// WebDriver's code of the Tab key.
pub const TAB: char = '\u{e004}';

/// Script that fakes responses of the edge: the code in the URL's `says` to each claim, and 429 to each view if
/// `busy` is set.
pub const FAKE_ANSWERS: &str = "const real = fetch, query = new URLSearchParams(location.search), asked = [];
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

/// Script that shifts the browser's clock by `ahead` ms, initially by the URL's.
pub const SHIFTED_CLOCK: &str = "const realNow = Date.now;
    window.ahead = Number(new URLSearchParams(location.search).get('ahead'));
    Date.now = () => realNow() + window.ahead;";

/// Script that shortens the page's random waits, such as the one before it looks up the user's claims: they only keep
/// many visitors from calling at the same moment.
pub const SHORT_WAITS: &str = "(random => { Math.random = () => random() / 10; })(Math.random);";

/// Script that fails each GET of the page while `deaf` is set, initially by the URL.
pub const DEAF: &str = "const realFetch = fetch;
    window.deaf = /deaf/.test(location.search);
    window.fetch = (url, options) => deaf && options?.method !== 'POST'
        ? Promise.reject(new TypeError('no network')) : realFetch(url, options);";

/// Records in `heard` what a screen reader announces from now on.
pub const RECORD_ANNOUNCEMENTS: &str = "(() => { window.heard = [];
    for (const live of document.querySelectorAll('[role=status]')) new MutationObserver(
        () => live.ariaLive !== 'off' && live.textContent && heard.push(live.textContent)
    ).observe(live, { childList: true }); })()";

/// Returns one of three shared edges with demo tokens, as in `make up`. Only one test at a time has it, so
/// that it may break things.
pub async fn page_world() -> MutexGuard<'static, World> {
    static WORLDS: [OnceCell<Mutex<World>>; 3] = [const { OnceCell::const_new() }; 3];
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let at = TAKEN.fetch_add(1, Ordering::Relaxed) % WORLDS.len();
    let start =
        || async { Mutex::new(World::start(Runtime::from_env(), &format!("page-{at}"), "local", &[]).await) };
    let mut world = WORLDS[at].get_or_init(start).await.lock().await;
    world.heal().await;
    world
}

/// Runs `test` if a browser is installed.
pub fn in_browser(name: &str, test: impl Future<Output = ()>) {
    if browser::is_installed(name) {
        run(test);
    }
}

pub async fn visit(world: &World, campaign: &str, more: &str) -> Browser {
    let page = Browser::open(campaign, PHONE).await;
    page.goto(&world.edge.url(&format!("/?campaign={campaign}{more}"))).await;
    page
}

/// Opens a campaign's page with a clock that [`until_an_hour_later`] moves.
pub async fn visit_on_clock(world: &World, campaign: &str, more: &str) -> Browser {
    let page = Browser::open(campaign, PHONE).await;
    page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SHIFTED_CLOCK})).await;
    page.goto(&world.edge.url(&format!("/?campaign={campaign}{more}"))).await;
    page
}

/// Moves the page's clock by an hour, and again until `expression` is `wanted`: each view sets the page's clock by the
/// server's again.
pub async fn until_an_hour_later(page: &Browser, expression: &str, wanted: impl Into<Value>) {
    let wanted = wanted.into();
    eventually(SOON, || async {
        page.eval("window.ahead += 3600000").await;
        let value = page.eval(expression).await;
        holds(value == wanted, || format!("{expression} is {value}, not {wanted}"))
    })
    .await;
}

pub async fn text(page: &Browser, id: &str) -> String {
    let text = page.eval(&format!("document.getElementById('{id}').textContent")).await;
    text.as_str().unwrap().to_owned()
}

/// Returns the id of the page's guest user, which it has soon after the button is enabled.
pub async fn user(page: &Browser) -> String {
    page.until("'claimgate:guest' in localStorage", true).await;
    let user = page.eval("JSON.parse(localStorage['claimgate:guest'])").await;
    user.as_str().unwrap().to_owned()
}

/// Sends the claim even if the page has disabled its button.
pub async fn press_anyway(page: &Browser) {
    page.eval("(button => { button.disabled = false; button.click(); })(document.getElementById('claim'))")
        .await;
}

/// Checks the page's message for `code` in both languages, and leaves the page in English.
pub async fn assert_message(page: &Browser, code: &str, english: &str, chinese: &str) {
    page.until(CODE, code).await;
    assert_eq!(text(page, "message").await, english);
    page.press("#lang").await;
    assert_eq!(text(page, "message").await, chinese);
    assert_eq!(page.eval("document.documentElement.lang").await, "zh-CN");
    page.press("#lang").await;
}

/// Returns the key that the page stores while its claim is unanswered.
pub async fn stored_key(page: &Browser, campaign: &str) -> String {
    let name = format!("claimgate:{campaign}:{}", user(page).await);
    let key = page.eval(&format!("JSON.parse(localStorage['{name}']).key")).await;
    key.as_str().unwrap().to_owned()
}

/// Checks that the campaign has one claim, which the page shows.
pub async fn assert_only_claim(world: &World, page: &Browser, campaign: &str) {
    let rows = world.core.sql().until(campaign, 1).await;
    assert_eq!((rows.len(), text(page, "claim-id").await), (1, rows[0].id.clone()));
}

/// Returns the claim, as a back end would.
pub async fn return_claim(world: &World, claim_id: &str) {
    world.core.transition(claim_id, "return").await.expect(200);
}

pub fn limits() -> Value {
    json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1})
}
