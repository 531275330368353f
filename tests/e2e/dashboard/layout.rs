//! Checks every state of the dashboard at five widths, in both languages, light and dark, for text that is
//! clipped, overflows or is unreadable. `SCREENSHOTS=1` saves all pictures under
//! `target/screenshots/dashboard` for review.

use serde_json::{Value, json};
use support::Core;
use support::browser::{Browser, DESKTOP, TOO_FAINT};

use super::{RECORD_CANVAS_TEXTS, REPEATED_LABELS, in_browser};

const SCRIPT: &str = include_str!("states.js");

const WIDTHS: [u32; 5] = [360, 768, 1000, 1280, 1440];

/// Finds texts that overflow their box, numbers that wrap, and a page that is too wide.
const CUT: &str = r"(() => {
    const wide = document.scrollingElement.scrollWidth - innerWidth;
    const wrong = wide > 0 ? [`the page is ${wide} pixels too wide`] : [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    for (let text; text = texts.nextNode();) {
        const owner = text.parentElement;
        if (!text.data.trim() || !owner.checkVisibility() || owner.closest('svg, script, noscript, .unseen, .plot')) continue;
        if (owner.closest('thead') && innerWidth < 960) continue; // only for screen readers
        range.selectNodeContents(text);
        const box = owner.closest('button, summary, dialog, td, th, #figures div, section, figure, header, main').getBoundingClientRect();
        const parts = [...range.getClientRects()];
        const inside = (part) => part.left >= box.left - 1 && part.right <= box.right + 1 && part.left >= 0 && part.right <= innerWidth;
        const isWhole = !/^[\d.,]+$/.test(text.data) || new Set(parts.map((part) => Math.round(part.top))).size === 1;
        if (!parts.every(inside) || !isWhole) wrong.push(text.data);
    }
    return wrong;
})()";

/// Finds empty space between two panels and at the end of a panel.
const EMPTY_SPACE: &str = r"(() => {
    const boxOf = (element) => element.getBoundingClientRect();
    const panels = [...document.querySelectorAll('#board .panel, #figures')].filter((one) => one.checkVisibility());
    const name = (panel) => panel.id || panel.closest('[id]').id;
    const wrong = [];
    for (const panel of panels) {
        const { left, right, bottom } = boxOf(panel);
        const below = panels.map(boxOf).filter((box) => box.top >= bottom && box.left < right && box.right > left);
        const between = Math.min(...below.map(({ top }) => top)) - bottom;
        if (between > 24 && between < Infinity) wrong.push(`${Math.round(between)} pixels under #${name(panel)}`);
        const inside = bottom - Math.max(...[...panel.children].filter((one) => one.checkVisibility()).map((one) => boxOf(one).bottom));
        if (inside > 24) wrong.push(`${Math.round(inside)} pixels at the end of #${name(panel)}`);
    }
    return wrong;
})()";

/// Maximum height of the board in pixels on the narrowest phone with seven campaigns: two and a half screens.
const LENGTH_MAX: u64 = 1_900;

/// Each state, with an expression and its value once the state is shown.
const STATES: [(&str, &str, &str); 13] = [
    ("sign-in", "document.body.dataset.view", "sign-in"),
    ("empty", CONNECTION, "live"),
    ("load", CONNECTION, "live"),
    ("fresh", CONNECTION, "live"),
    ("large", CONNECTION, "live"),
    ("sold-out", CONNECTION, "live"),
    ("node-down", CONNECTION, "live"),
    ("redis-down", CONNECTION, "live"),
    ("sql-down", CONNECTION, "live"),
    ("lost", CONNECTION, "lost"),
    ("ask-add", CONNECTION, "live"),
    ("ask-end", CONNECTION, "live"),
    ("form", CONNECTION, "live"),
];

/// Expression for the number of charts that have labels.
const LABELLED_CHARTS: &str =
    "[...document.querySelectorAll('canvas')].filter(({ texts = [] }) => texts.length > 3).length";

const CONNECTION: &str = "document.body.dataset.connection";

#[test]
fn each_state_fits_every_width_in_both_languages() {
    in_browser("each_state_fits_every_width_in_both_languages", async {
        let core = Core::start().await;
        let page = Browser::open("dashboard-layout", DESKTOP).await;
        for script in [RECORD_CANVAS_TEXTS, SCRIPT] {
            page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
        }
        let mut wrong = vec![];
        for (state, expression, wanted) in STATES {
            page.goto(&core.admin_url(&format!("/?lang=en&state={state}"))).await;
            page.until(expression, wanted).await;
            if wanted != "sign-in" {
                page.until(LABELLED_CHARTS, 2).await;
            }
            if let Some(verb) = state.strip_prefix("ask-") {
                page.press(&format!("[data-id=launch-day] .{verb}")).await;
            }
            if state == "form" {
                page.press("#new").await;
            }
            wrong.extend(find_layout_faults(&page, state).await);
        }
        assert_eq!(wrong, Vec::<String>::new());
        page.close().await;
    });
}

#[test]
fn a_phone_shows_everything_in_a_few_screens() {
    in_browser("a_phone_shows_everything_in_a_few_screens", async {
        let core = Core::start().await;
        let page = Browser::open("dashboard-telephone", (360, 800)).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SCRIPT})).await;
        page.goto(&core.admin_url("/?lang=en&state=load")).await;
        page.until(CONNECTION, "live").await;
        for language in ["en", "zh"] {
            let length = page.eval("document.documentElement.scrollHeight").await.as_u64().unwrap();
            assert!(length <= LENGTH_MAX, "{length} pixels in {language}");
            page.press("#lang").await;
        }
        // A collapsed section can be opened, and stays open while the numbers are updated.
        let changes = "document.querySelector('#changes li').checkVisibility()";
        page.until(changes, false).await;
        page.press("#audit summary").await;
        page.until(changes, true).await;
        let before = page.eval("document.getElementById('connection').textContent").await;
        assert_eq!(before, "Live");
        page.until("snapshots >= 3", true).await;
        assert_eq!(page.eval(changes).await, true);
        let change = "document.querySelector('[data-id=launch-day] .add').checkVisibility()";
        page.until(change, false).await;
        page.eval("scrollTo(0, 0)").await; // so that the header does not cover it
        page.press("[data-id=launch-day] summary").await;
        page.until(change, true).await;
        // On a desktop no section is collapsed.
        page.resize((1440, 900)).await;
        page.goto(&core.admin_url("/?lang=en&state=load")).await;
        page.until(changes, true).await;
        page.close().await;
    });
}

/// Returns the layout faults of a state. With `SCREENSHOTS`, saves pictures of the whole page.
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
                add(format!("in {language} at {width} is clipped"), &page.eval(CUT).await);
                add(format!("in {language} at {width} repeats labels"), &page.eval(REPEATED_LABELS).await);
                if width >= 1280 {
                    add(format!("in {language} at {width} has empty space"), &page.eval(EMPTY_SPACE).await);
                }
                if saved {
                    let whole = page.eval("Math.max(900, document.documentElement.scrollHeight)").await;
                    page.resize((width, u32::try_from(whole.as_u64().unwrap()).unwrap())).await;
                    page.screenshot(&format!("dashboard/{state}-{language}-{scheme}-{width}")).await;
                }
            }
        }
        // A dialog may cover the button.
        page.eval("document.getElementById('lang').click()").await;
    }
    wrong
}
