//! Checks every state of the page at four widths, in both languages, light and dark, for text that is cut
//! off, overflows or is unreadable. `SCREENSHOTS=1` saves all pictures under `target/screenshots/states` for
//! review.

use serde_json::{Value, json};
use support::browser::{Browser, PHONE, TOO_FAINT};
use support::edge::{Runtime, World};

use super::access::NUMBERS;
use super::{CODE, PHASE, in_browser, press_anyway};

const SCRIPT: &str = include_str!("states.js");

const WIDTHS: [u32; 4] = [360, 768, 1000, 1440];

/// Finds texts that overflow the page, their half of the ticket or their button, and a page that is too wide.
pub const CUT: &str = r"(() => {
    const wide = document.scrollingElement.scrollWidth - innerWidth;
    const wrong = wide > 0 ? [`the page is ${wide} pixels too wide`] : [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    for (let text; text = texts.nextNode();) {
        const owner = text.parentElement;
        if (!text.data.trim() || !owner.checkVisibility() || owner.closest('svg, script, noscript')) continue;
        range.selectNodeContents(text);
        const box = owner.closest('button, section, header, footer').getBoundingClientRect();
        const inside = (part) => part.left >= box.left - 1 && part.right <= box.right + 1 && part.top >= box.top - 1
            && part.bottom <= box.bottom + 1 && part.left >= 0 && part.right <= innerWidth;
        if (![...range.getClientRects()].every(inside)) wrong.push(text.data);
    }
    return wrong;
})()";

/// Each state: its name, whether to click the button first, an expression to evaluate, and the value that
/// shows the state.
const STATES: [(&str, bool, &str, &str); 40] = [
    ("scheduled", false, PHASE, "scheduled"),
    ("open", false, PHASE, "open"),
    ("sending", true, PHASE, "sending"),
    ("asking-again", true, PHASE, "retrying"),
    ("won", true, LEFT, "You can claim 1 more."),
    ("held", true, LEFT, "You can claim 1 more."),
    ("held-ending", true, WARNING, "Less than 5 min left."),
    ("held-due", true, MESSAGE, "Checking your reservation"),
    ("won-several", false, LEFT, "You can claim 1 more."),
    ("already-won-today", false, PHASE, "won"),
    ("already-won-all", false, PHASE, "won"),
    ("returned", false, CODE, "claim_returned"),
    ("expired", false, CODE, "claim_expired"),
    ("revoked", false, CODE, "claim_revoked"),
    ("refused-per-day", true, CODE, "user_daily_limit_reached"),
    ("refused-per-user", true, CODE, "user_limit_reached"),
    ("refused-per-claim", true, CODE, "quantity_out_of_range"),
    ("foreseen-per-day", false, CODE, "user_daily_limit_reached"),
    ("foreseen-per-user", false, CODE, "user_limit_reached"),
    ("sold-out", false, PHASE, "sold_out"),
    ("sold-out-after-press", true, CODE, "sold_out"),
    ("too-early", true, CODE, "not_started"),
    ("ended", false, PHASE, "ended"),
    ("ended-by-hand", false, PHASE, "ended"),
    ("paused", false, PHASE, "paused"),
    ("rate-limited", true, CODE, "rate_limited"),
    ("rate-limited-long", true, CODE, "rate_limited"),
    ("overloaded", true, CODE, "overloaded"),
    ("not-ready", true, CODE, "campaign_not_ready"),
    ("in-doubt", true, CODE, "unavailable"),
    ("offline", true, CODE_AND_NOTE, "network: Connection lost"),
    ("token-missing", false, CODE, "unauthenticated"),
    ("token-expired", true, CODE, "unauthenticated"),
    ("forbidden", true, CODE, "forbidden"),
    ("from-the-future", true, CODE, "from_the_future"),
    ("no-campaign", false, CODE, "campaign_not_found"),
    ("not-loaded", false, CODE, "unavailable"),
    ("not-configured", false, CODE, "not_configured"),
    ("not-configured-after-press", true, CODE, "not_configured"),
    ("unlimited", false, PHASE, "open"),
];

const CODE_AND_NOTE: &str =
    "`${document.getElementById('result').dataset.code}: ${document.getElementById('note').textContent}`";
const LEFT: &str = "document.getElementById('left').textContent";
const WARNING: &str = "document.getElementById('warning').textContent";
const MESSAGE: &str = "document.getElementById('message').textContent";

#[test]
fn no_state_is_clipped_at_any_width_in_either_language() {
    in_browser("no_state_is_clipped_at_any_width_in_either_language", async {
        // A separate edge, because the test is long and fakes the responses in the page.
        let world = World::start(Runtime::from_env(), "page-states", "local", &[]).await;
        let page = Browser::open("page-states", PHONE).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SCRIPT})).await;
        let mut wrong = vec![];
        for (state, pressed, expression, wanted) in STATES {
            page.goto(&world.edge.url(&format!("/livez?state={state}"))).await;
            page.eval("localStorage.clear(), sessionStorage.clear()").await;
            page.goto(&world.edge.url(&format!("/?campaign=launch&state={state}"))).await;
            page.until(&format!("{PHASE} !== 'loading'"), true).await;
            if pressed {
                press_anyway(&page).await;
            }
            page.until(expression, wanted).await;
            wrong.extend(find_layout_faults(&page, state).await);
        }
        assert_eq!(wrong, Vec::<String>::new());
        page.close().await;
    });
}

/// Returns the layout faults of a state. With `SCREENSHOTS`, saves its pictures.
async fn find_layout_faults(page: &Browser, state: &str) -> Vec<String> {
    let saved = std::env::var_os("SCREENSHOTS").is_some();
    let mut wrong = vec![];
    let mut add = |place: String, found: &Value| {
        let found = found.as_array().unwrap().iter();
        wrong.extend(found.map(|what| format!("{state} {place}: {what}")));
    };
    for language in ["en", "zh"] {
        for scheme in ["light", "dark"] {
            page.emulate_media("prefers-color-scheme", scheme).await;
            add(format!("in {scheme} is too faint"), &page.eval(TOO_FAINT).await);
            if scheme == "dark" && !saved {
                continue; // the scheme only changes colours
            }
            for width in WIDTHS {
                page.resize((width, 900)).await;
                let found = page.eval(&format!("[{CUT}, {NUMBERS}.broken]")).await;
                add(format!("in {language} at {width} is clipped"), &found[0]);
                add(format!("in {language} at {width} wraps"), &found[1]);
                if saved {
                    page.screenshot(&format!("states/{state}-{language}-{scheme}-{width}")).await;
                }
            }
        }
        page.press("#lang").await;
    }
    wrong
}
