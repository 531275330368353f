//! Accessibility of the page: keyboard, screen reader, every width, and no Chinese font.

use serde_json::json;
use support::browser::{Browser, PHONE};
use support::times::from_now;

use super::{
    AGAIN_HIDDEN, BUTTON, PHASE, RECORD_ANNOUNCEMENTS, STATE, TAB, in_browser, limits, page_world, text,
    visit,
};

const FOCUS: &str = "document.activeElement.id";

const ENTER: char = '\u{e007}';

/// Script that answers each claim as if it were number 4294967295.
const LARGE_NUMBERS: &str = "const real = fetch;
    window.fetch = async (url, options) => {
        if (!/claims$/.test(url)) return real(url, options);
        const claim = { id: 'page-digits.me.0123456789abcdefABCDEF', quantity: 1, status: 'granted',
            sequence: 4294967295, claimed_at: new Date().toISOString(), expires_at: null };
        const allowance = { per_claim: 1, per_user_per_day: 999999, resets_at: null, per_user: 4294967294, total: null };
        if (options.method !== 'POST') return new Response(JSON.stringify({ items: window.won ? [claim] : [], allowance }));
        window.won = true;
        return new Response(JSON.stringify({ claim, remaining: 4294967294, version: 1 }), { status: 201 });
    };";

/// Finds all numbers outside of ids and all words of the countdown. Also lists those that wrap or overflow
/// their half of the ticket.
pub const NUMBERS: &str = r"(() => {
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

#[test]
fn the_claim_page_is_usable_by_keyboard() {
    in_browser("the_claim_page_is_usable_by_keyboard", async {
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
        assert_eq!(
            page.eval(FOCUS).await,
            "result",
            "the pressed button has disappeared, so the result has the focus"
        );
        page.check_layout("8-focus").await;
        // The page checks whether the user can make another claim.
        page.until(AGAIN_HIDDEN, false).await;
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "copy");
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "again");
        let first = text(&page, "claim-id").await;
        page.key(' ').await;
        page.until(&format!("document.getElementById('claim-id').textContent !== '{first}'"), true).await;
        page.until(PHASE, "won").await;
        page.until(AGAIN_HIDDEN, false).await;
        page.key(TAB).await;
        page.key(TAB).await;
        page.key(TAB).await;
        assert_eq!(page.eval("document.activeElement.tagName").await, "BODY", "the focus leaves the page");
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "lang", "the focus returns to the page");
        page.key(' ').await;
        assert_eq!(
            (page.eval(FOCUS).await, text(&page, "message").await),
            (json!("lang"), "领取成功".to_owned())
        );
        page.close().await;
    });
}

#[test]
fn a_screen_reader_gets_all_labels_and_each_result_once() {
    in_browser("a_screen_reader_gets_all_labels_and_each_result_once", async {
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
        assert_eq!(page.accessible_names(&roles).await, english);
        assert_eq!(page.eval("document.getElementById('lang').lang").await, "zh-CN");
        page.press("#lang").await;
        let chinese = [
            "button: English",
            "region: Launch day",
            "region: 您的序号",
            "heading: Launch day",
            "timer: 距结束",
            "progressbar: 剩余 100 份（共 100 份）",
            "heading: 您的序号",
            "button: 立即领取",
        ];
        assert_eq!(page.accessible_names(&roles).await, chinese);
        page.press("#lang").await;

        page.eval(RECORD_ANNOUNCEMENTS).await;
        let _ = world.core.set_admin_state("page-heard", "pause").await.expect(200);
        page.until(PHASE, "paused").await;
        let _ = world.core.set_admin_state("page-heard", "resume").await.expect(200);
        page.until(BUTTON, false).await;
        assert_eq!(page.eval("heard.splice(0)").await, json!(["Paused for now", "Open now"]));
        page.press("#claim").await;
        page.until(PHASE, "won").await;
        // Wait for a step of the countdown and a new view of the campaign.
        page.until("document.getElementById('remaining').textContent", "99").await;
        let left = page.eval("document.getElementById('countdown').dataset.seconds").await;
        page.until(&format!("document.getElementById('countdown').dataset.seconds === {left}"), false).await;
        assert_eq!(page.eval("heard").await, json!(["Sending…", "It is yours"]));

        let _ = world.core.set_admin_state("page-heard", "end").await.expect(200);
        page.until(STATE, "ended").await;
        assert_eq!(page.eval("heard").await, json!(["Sending…", "It is yours", "This campaign has ended"]));
        page.close().await;
    });
}

#[test]
fn no_number_wraps_at_any_width_in_either_language() {
    in_browser("no_number_wraps_at_any_width_in_either_language", async {
        let world = page_world().await;
        let most = u32::MAX;
        let limits = json!({"total": most, "per_user": most, "per_user_per_day": 1_000_000, "per_claim": 1});
        for (id, days) in [("page-digits", 29), ("page-digits-far", 365)] {
            let campaign = json!({"id": id, "name": "Launch day", "starts_at": from_now(-60),
                "ends_at": from_now(days * 86400 - 60), "time_zone": "Asia/Shanghai", "limits": limits});
            world.core.create_with(campaign).await;
            let page = Browser::open(id, PHONE).await;
            page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": LARGE_NUMBERS})).await;
            page.goto(&world.edge.url(&format!("/?campaign={id}"))).await;
            page.until(BUTTON, false).await;
            assert_numbers_whole(&page, id, "4,294,967,295").await;
            page.press("#claim").await;
            page.until(PHASE, "won").await;
            assert_numbers_whole(&page, &format!("{id}-won"), "4294967295").await;
            page.close().await;
        }
    });
}

/// Checks all numbers, including `one`, at four widths and in both languages. Leaves the page in English.
async fn assert_numbers_whole(page: &Browser, name: &str, one: &str) {
    let mut broken = Vec::new();
    for language in ["en", "zh"] {
        for width in [360, 768, 1000, 1440] {
            page.resize((width, 900)).await;
            let found = page.eval(NUMBERS).await;
            let seen = found["seen"].as_array().unwrap();
            // Four cells of the countdown and their words, the units left, the limits, and the end time.
            assert!(seen.len() >= 12 && seen.contains(&json!(one)), "{seen:?}");
            broken.extend(
                found["broken"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|what| format!("{language} at {width}: {what}")),
            );
            page.screenshot(&format!("{name}-{width}-{language}")).await;
        }
        page.press("#lang").await;
    }
    assert_eq!(broken, Vec::<String>::new(), "{name}");
}

/// A machine may have no Chinese font, so switching the language must not need one.
#[test]
fn the_language_switch_needs_no_chinese_font() {
    in_browser("the_language_switch_needs_no_chinese_font", async {
        let world = page_world().await;
        world.core.create("page-switch", limits()).await;
        let page = visit(&world, "page-switch", "").await;
        page.until(BUTTON, false).await;
        for (tag, name, ink) in [("zh-CN", "button: 中文", "svg"), ("en", "button: English", "span")] {
            assert!(page.accessible_names(&["button"]).await.contains(&name.to_owned()), "{name}");
            assert_eq!(page.eval("document.getElementById('lang').lang").await, tag);
            let shown = page.eval("document.getElementById('lang').innerText").await;
            assert!(shown.as_str().unwrap().is_ascii(), "{shown} needs a font that may be missing");
            let width = page
                .eval(&format!("document.querySelector('#lang {ink}').getBoundingClientRect().width"))
                .await;
            assert!(width.as_f64().unwrap() > 20.0, "{ink} is {width} wide");
            page.press("#lang").await;
        }
        page.close().await;
    });
}
