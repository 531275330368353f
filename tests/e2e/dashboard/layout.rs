//! Every state of the dashboard, at four widths, in both languages, in light and in dark, looked at for what is cut, runs over
//! or cannot be read. `SCREENSHOTS=1` saves them all under `target/screenshots/dashboard`, for people to look at.

use serde_json::{Value, json};
use support::Core;
use support::browser::{Browser, DESKTOP, TOO_FAINT};

use super::in_browser;

const SCRIPT: &str = include_str!("states.js");

const WIDTHS: [u32; 4] = [360, 768, 1000, 1440];

/// Texts that reach beyond what they are in, numbers that are broken over lines, and a page that is too wide.
const CUT: &str = r"(() => {
    const wide = document.scrollingElement.scrollWidth - innerWidth;
    const wrong = wide > 0 ? [`the page is ${wide} pixels too wide`] : [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    for (let text; text = texts.nextNode();) {
        const owner = text.parentElement;
        if (!text.data.trim() || !owner.checkVisibility() || owner.closest('svg, script, noscript, .unseen, .plot')) continue;
        if (owner.closest('thead') && innerWidth < 960) continue; // for screen readers alone
        range.selectNodeContents(text);
        const box = owner.closest('button, summary, dialog, td, th, #figures div, section, figure, header, main').getBoundingClientRect();
        const parts = [...range.getClientRects()];
        const inside = (part) => part.left >= box.left - 1 && part.right <= box.right + 1 && part.left >= 0 && part.right <= innerWidth;
        const isWhole = !/^[\d.,]+$/.test(text.data) || new Set(parts.map((part) => Math.round(part.top))).size === 1;
        if (!parts.every(inside) || !isWhole) wrong.push(text.data);
    }
    return wrong;
})()";

/// Each state, an expression that tells when it is there, and what it is then.
const STATES: [(&str, &str, &str); 11] = [
    ("sign-in", "document.body.dataset.view", "sign-in"),
    ("empty", CONNECTION, "live"),
    ("load", CONNECTION, "live"),
    ("large", CONNECTION, "live"),
    ("sold-out", CONNECTION, "live"),
    ("node-down", CONNECTION, "live"),
    ("redis-down", CONNECTION, "live"),
    ("sql-down", CONNECTION, "live"),
    ("lost", CONNECTION, "lost"),
    ("ask-add", CONNECTION, "live"),
    ("ask-end", CONNECTION, "live"),
];

const CONNECTION: &str = "document.body.dataset.connection";

#[test]
fn nothing_is_cut_in_any_state_at_any_width_in_either_language() {
    in_browser("nothing_is_cut_in_any_state_at_any_width_in_either_language", async {
        let core = Core::start().await;
        let page = Browser::open("dashboard-layout", DESKTOP).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SCRIPT})).await;
        let mut wrong = vec![];
        for (state, tells, wanted) in STATES {
            page.goto(&core.admin_url(&format!("/?lang=en&state={state}"))).await;
            page.until(tells, wanted).await;
            if let Some(verb) = state.strip_prefix("ask-") {
                page.press(&format!("[data-id=launch-day] .{verb}")).await;
            }
            wrong.extend(looked_at(&page, state).await);
        }
        assert_eq!(wrong, Vec::<String>::new());
        page.close().await;
    });
}

/// Saves the state's pictures, each of the whole page. Returns what is wrong in them.
async fn looked_at(page: &Browser, state: &str) -> Vec<String> {
    let saved = std::env::var_os("SCREENSHOTS").is_some();
    let mut wrong = vec![];
    let mut add = |place: String, found: &Value| {
        let found = found.as_array().unwrap().iter();
        wrong.extend(found.map(|what| format!("{state} {place}: {what}")));
    };
    for language in ["en", "zh"] {
        for scheme in ["light", "dark"] {
            page.prefers("prefers-color-scheme", scheme).await;
            add(format!("in {scheme} is too faint"), &page.eval(TOO_FAINT).await);
            if scheme == "dark" && !saved {
                continue; // the scheme changes colours alone
            }
            for width in WIDTHS {
                page.resize((width, 900)).await;
                add(format!("in {language} at {width} is cut"), &page.eval(CUT).await);
                if saved {
                    let whole = page.eval("Math.max(900, document.documentElement.scrollHeight)").await;
                    page.resize((width, u32::try_from(whole.as_u64().unwrap()).unwrap())).await;
                    page.shoot(&format!("dashboard/{state}-{language}-{scheme}-{width}")).await;
                }
            }
        }
        // A dialog is before the button.
        page.eval("document.getElementById('lang').click()").await;
    }
    wrong
}
