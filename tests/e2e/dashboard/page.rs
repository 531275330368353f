//! The page in a real browser before a real core: what it shows while claims come in, what each role may change, and what it
//! says when something is away.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde_json::json;
use support::browser::{Browser, DESKTOP, PHONE, TOO_FAINT};
use support::process::{Signal, free_address, signal_pid};
use support::storm::{Seen, ask, resolve_unknown, storm, wishes};
use support::{Core, CoreOptions};

use super::{OPERATOR, VIEWER, in_browser, with_roles};
use crate::on_postgres::on_postgres;

const CONNECTION: &str = "document.body.dataset.connection";
const VIEW: &str = "document.body.dataset.view";
const FOCUS: &str = "document.activeElement.id";
const PROBLEM: &str = "document.getElementById('token-problem').textContent";
const DONE: &str = "document.getElementById('done').textContent";
const ASKED: &str = "document.getElementById('ask').open";

/// WebDriver's names of keys.
const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const ESCAPE: char = '\u{e00c}';

/// The page of `core`, before the sign-in.
async fn visit(core: &Core, name: &str) -> Browser {
    let page = Browser::open(name, DESKTOP).await;
    page.goto(&core.admin_url("/?lang=en")).await;
    page.until(VIEW, "sign-in").await;
    page
}

async fn sign_in(page: &Browser, token: &str) {
    page.eval(&format!("document.getElementById('token').value = '{token}'")).await;
    page.press("#token-send").await;
}

/// The page of `core`, live for the holder of `token`.
async fn signed_in(core: &Core, name: &str, token: &str) -> Browser {
    let page = visit(core, name).await;
    sign_in(&page, token).await;
    page.until(CONNECTION, "live").await;
    page
}

/// What a part of a campaign's row says.
fn cell(campaign: &str, css: &str) -> String {
    format!("document.querySelector('[data-id=\"{campaign}\"] {css}')?.textContent")
}

/// The number in a figure at the top.
fn figure(name: &str) -> String {
    format!("document.querySelector('[data-figure={name}] b').textContent")
}

/// Types a text into the field that has the focus.
async fn type_text(page: &Browser, text: &str) {
    for key in text.chars() {
        page.key(key).await;
    }
}

async fn text(page: &Browser, id: &str) -> String {
    let text = page.eval(&format!("document.getElementById('{id}').textContent")).await;
    text.as_str().unwrap().to_owned()
}

#[test]
fn numbers_move_under_a_storm() {
    in_browser("numbers_move_under_a_storm", async {
        let core = with_roles().start().await;
        core.create("storm", json!({"total": 1000})).await;
        core.create("quiet", json!({"total": 7})).await;
        let page = signed_in(&core, "dashboard-storm", VIEWER).await;
        page.until(&cell("storm", ".left b"), "1,000").await;
        page.until(&cell("quiet", ".left b"), "7").await;
        page.until(&figure("open"), "2").await;
        // Slow enough to be watched: the page is told once a second.
        let wishes = wishes(1300, 1);
        let stormed = async {
            let mut claimed = 0;
            for part in wishes.chunks(100) {
                let mut seen = storm(&core, "storm", part, 8, &AtomicUsize::new(0)).await;
                resolve_unknown(&core, "storm", &mut seen).await;
                claimed += seen.values().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            claimed
        };
        let watched = async {
            page.until(&format!("Number({}.replace(',', '')) > 50", figure("claims")), true).await;
            page.until(&format!("{}.length > 1", cell("storm", ".speed b")), true).await;
            page.until(&cell("storm", ".state"), "Sold out").await;
        };
        let (claimed, ()) = tokio::join!(stormed, watched);
        assert_eq!(claimed, 1000);
        page.until(&cell("storm", ".left b"), "0").await;
        let reason = "document.querySelector('#reasons li')?.textContent.slice(0, 11)";
        page.until(reason, "sold out300").await;
        page.until(&figure("claims"), "0").await;
        page.until(&figure("outbox"), "0").await;
        let drawn =
            page.eval("[...document.querySelectorAll('canvas')].map(canvas => canvas.width > 300)").await;
        assert_eq!(drawn, json!([true, true]));
        assert_eq!(page.eval(&cell("quiet", ".left b")).await, "7");
        // What the charts show is in a table too.
        page.press("#chart-claims summary").await;
        let rows = "document.querySelectorAll('#chart-claims tbody tr').length > 0";
        page.until(rows, true).await;
        page.close().await;
    });
}

#[test]
fn a_wrong_token_is_said_to_be_wrong_and_a_right_one_stays_in_the_tab() {
    in_browser("a_wrong_token_is_said_to_be_wrong_and_a_right_one_stays_in_the_tab", async {
        let core = with_roles().start().await;
        let page = visit(&core, "dashboard-token").await;
        assert_eq!(page.eval(FOCUS).await, "token");
        page.press("#token-send").await;
        page.until(PROBLEM, "Please enter a token.").await;
        sign_in(&page, "not-a-token-of-anybody-not-a-token-of-anybody").await;
        page.until(PROBLEM, "This token is not known to this core.").await;
        assert_eq!((page.eval(VIEW).await, page.eval(FOCUS).await), (json!("sign-in"), json!("token")));
        sign_in(&page, support::core_client::API_TOKEN).await;
        page.until(PROBLEM, "This token has no role: use an admin's, not a back end's.").await;
        assert_eq!(page.eval("sessionStorage.length").await, 0, "a token that is refused is not kept");
        sign_in(&page, VIEWER).await;
        page.until(CONNECTION, "live").await;
        assert_eq!(text(&page, "who").await, "vera · viewer");
        assert_eq!(page.eval(FOCUS).await, "board");
        page.reload().await;
        page.until(CONNECTION, "live").await;
        assert_eq!(page.eval("localStorage.length").await, 0);
        assert_eq!(page.eval("document.cookie").await, "");
        assert!(!page.eval("location.href").await.as_str().unwrap().contains(VIEWER));
        page.press("#sign-out").await;
        page.until(VIEW, "sign-in").await;
        assert_eq!(page.eval("sessionStorage.length").await, 0);
        page.reload().await;
        page.until(VIEW, "sign-in").await;
        page.close().await;
    });
}

#[test]
fn a_token_that_is_withdrawn_leads_back_to_the_form() {
    in_browser("a_token_that_is_withdrawn_leads_back_to_the_form", async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens");
        std::fs::write(&file, format!("vera:viewer:{VIEWER}")).unwrap();
        let options = CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS_FILE", file.to_str().unwrap());
        let core = options.start().await;
        let page = signed_in(&core, "dashboard-withdrawn", VIEWER).await;
        std::fs::write(&file, format!("vera:viewer:{OPERATOR}")).unwrap();
        signal_pid(core.pid(), Signal::HUP);
        page.until(VIEW, "sign-in").await;
        page.until(PROBLEM, "The token is not accepted any more. Please sign in again.").await;
        page.close().await;
    });
}

#[test]
fn each_role_changes_what_it_may_once_it_was_asked_again() {
    in_browser("each_role_changes_what_it_may_once_it_was_asked_again", async {
        let core = with_roles().start().await;
        core.create("gifts", json!({"total": 10})).await;
        let buttons = "[...document.querySelectorAll('[data-id=gifts] button:not([hidden])')].map(one => one.textContent)";
        let page = signed_in(&core, "dashboard-roles", VIEWER).await;
        page.until(&cell("gifts", ".left b"), "10").await;
        assert_eq!(page.eval(buttons).await, json!([]), "a viewer changes nothing");
        page.press("#sign-out").await;

        sign_in(&page, OPERATOR).await;
        page.until(buttons, json!(["Pause", "Add"])).await;
        page.press("[data-id=gifts] .turn").await;
        page.until(ASKED, true).await;
        assert_eq!(text(&page, "ask-title").await, "Pause “gifts”?");
        assert_eq!(page.eval(FOCUS).await, "ask-cancel", "a key too many changes nothing");
        page.press("#ask-cancel").await;
        page.until(ASKED, false).await;
        assert_eq!(core.campaign("gifts").await["state"], "open", "asked, and not done");
        page.press("[data-id=gifts] .turn").await;
        page.press("#ask-send").await;
        page.until(DONE, "“gifts” is paused.").await;
        core.claim("gifts", "u", "k").await.refused(403, "paused");
        page.until(buttons, json!(["Resume", "Add"])).await;
        page.press("[data-id=gifts] .turn").await;
        page.press("#ask-send").await;
        page.until(DONE, "“gifts” is resumed.").await;
        core.claim("gifts", "u", "k").await.expect(201);

        page.press("[data-id=gifts] .add").await;
        page.until(FOCUS, "ask-input").await;
        type_text(&page, "many").await;
        page.press("#ask-send").await;
        page.until(
            "document.getElementById('ask-problem').textContent",
            "Please enter a whole number other than 0.",
        )
        .await;
        page.eval("document.getElementById('ask-input').value = ''").await;
        type_text(&page, "-100").await;
        page.press("#ask-send").await;
        page.until(
            "document.getElementById('ask-problem').textContent",
            "The total would be below 0 or too large.",
        )
        .await;
        page.eval("document.getElementById('ask-input').value = '5'").await;
        page.press("#ask-send").await;
        page.until(DONE, "The total of “gifts” is 15 now.").await;
        page.until(&cell("gifts", ".left b"), "14").await;
        page.press("#sign-out").await;

        sign_in(&page, &core.admin_token()).await;
        page.until(buttons, json!(["Pause", "Add", "End"])).await;
        page.press("[data-id=gifts] .end").await;
        type_text(&page, "gift").await;
        page.press("#ask-send").await;
        page.until("document.getElementById('ask-problem').textContent", "That is not its id.").await;
        type_text(&page, "s").await;
        page.press("#ask-send").await;
        page.until(DONE, "“gifts” is ended.").await;
        page.until(&cell("gifts", ".state"), "Ended").await;
        page.until(buttons, json!([])).await;
        let said =
            "[...document.querySelectorAll('#changes li')].map(one => one.querySelector('b').textContent)";
        page.until(said, json!(["admin", "olga", "olga", "olga", "admin"])).await;
        page.close().await;
    });
}

#[test]
fn the_keyboard_is_enough() {
    in_browser("the_keyboard_is_enough", async {
        let core = with_roles().start().await;
        core.create("keys", json!({"total": 10})).await;
        let page = visit(&core, "dashboard-keys").await;
        type_text(&page, OPERATOR).await;
        page.key(ENTER).await;
        page.until(FOCUS, "board").await;
        page.until(&cell("keys", ".left b"), "10").await;
        // Two tables of charts, the search, then the campaign's buttons.
        for focused in ["SUMMARY", "SUMMARY", "INPUT", "BUTTON"] {
            page.key(TAB).await;
            assert_eq!(page.eval("document.activeElement.tagName").await, focused);
            assert_eq!(page.eval("getComputedStyle(document.activeElement).outlineStyle").await, "solid");
        }
        assert_eq!(page.eval("document.activeElement.ariaLabel").await, "Pause keys");
        page.key(ENTER).await;
        page.until(FOCUS, "ask-cancel").await;
        page.key(ESCAPE).await;
        page.until(ASKED, false).await;
        assert_eq!(page.eval("document.activeElement.ariaLabel").await, "Pause keys", "back where it was");
        page.key(ENTER).await;
        page.until(FOCUS, "ask-cancel").await;
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "ask-send");
        page.key(ENTER).await;
        page.until(DONE, "“keys” is paused.").await;
        // A snapshot later it is the same button.
        page.until("document.activeElement.ariaLabel", "Resume keys").await;
        assert_eq!(core.campaign("keys").await["state"], "paused");
        page.close().await;
    });
}

#[test]
fn a_screen_reader_is_told_what_there_is() {
    in_browser("a_screen_reader_is_told_what_there_is", async {
        let core = with_roles().start().await;
        core.create("heard", json!({"total": 10})).await;
        let page = signed_in(&core, "dashboard-heard", OPERATOR).await;
        page.until(&cell("heard", ".left b"), "10").await;
        let told = page
            .told(&[
                "main",
                "heading",
                "button",
                "table",
                "columnheader",
                "rowheader",
                "progressbar",
                "searchbox",
            ])
            .await;
        for wanted in [
            "main: Dashboard",
            "heading: Dashboard",
            "heading: Campaigns",
            "table: Campaigns",
            "columnheader: Claims / s",
            "rowheader: heard heard",
            "progressbar: Left 10 of 10",
            "searchbox: Find by id or name",
            "button: Pause heard",
            "button: Add heard",
            "button: 中文",
            "heading: Last changes",
        ] {
            assert!(told.contains(&wanted.to_owned()), "no {wanted} in {told:#?}");
        }
        // What moves each second is not read out: these alone are.
        let spoken = "[...document.querySelectorAll('[role=status], [role=alert], [aria-live]')].map(one => one.id).sort()";
        assert_eq!(
            page.eval(spoken).await,
            json!(["ask-problem", "connection", "done", "none", "token-problem"])
        );
        page.close().await;
    });
}

#[test]
fn a_core_that_is_gone_is_said_to_be_and_nothing_old_is_shown_as_live() {
    in_browser("a_core_that_is_gone_is_said_to_be_and_nothing_old_is_shown_as_live", async {
        let mut core = with_roles().admin_at(free_address()).start().await;
        core.create("lasting", json!({"total": 10})).await;
        let page = signed_in(&core, "dashboard-lost", VIEWER).await;
        page.until(&cell("lasting", ".left b"), "10").await;
        // It stands still: the connection is there, and nothing comes.
        signal_pid(core.pid(), Signal::STOP);
        page.until(CONNECTION, "late").await;
        page.until("document.getElementById('stale').checkVisibility()", true).await;
        let stale = text(&page, "stale").await;
        assert!(
            stale.starts_with("Not live: what is below was so ") && stale.ends_with(" s ago."),
            "{stale}"
        );
        assert_eq!(page.eval(TOO_FAINT).await, json!([]));
        signal_pid(core.pid(), Signal::CONT);
        page.until(CONNECTION, "live").await;
        assert_eq!(page.eval("document.getElementById('stale').hidden").await, true);
        core.kill();
        page.until(CONNECTION, "lost").await;
        let said = text(&page, "connection").await;
        assert!(said.contains("Next try in"), "{said}");
        core = core.restart().await;
        core.claim("lasting", "u", "k").await.expect(201);
        page.until(CONNECTION, "live").await;
        page.until(&cell("lasting", ".left b"), "9").await;
        page.close().await;
    });
}

#[test]
fn a_store_that_is_away_is_said_to_be_while_the_rest_goes_on() {
    in_browser("a_store_that_is_away_is_said_to_be_while_the_rest_goes_on", async {
        let Some((core, sql, mut postgres)) = on_postgres("stores away from the page", with_roles()).await
        else {
            return;
        };
        core.create("stores", json!({"total": 10})).await;
        core.claim("stores", "u0", "k").await.expect(201);
        let page = signed_in(&core, "dashboard-stores", VIEWER).await;
        page.until(&figure("sql"), "up").await;
        page.until("document.querySelectorAll('#changes li').length", 1).await;
        sql.until("stores", 1).await;
        postgres.stop_immediately().await;
        page.until(&figure("sql"), "down").await;
        core.claim("stores", "u1", "k").await.expect(201);
        page.until(&cell("stores", ".left b"), "8").await;
        page.until(&figure("outbox"), "1").await;
        let note = text(&page, "audit-note").await;
        assert!(note.starts_with("SQL does not answer: as of "), "{note}");
        assert_eq!(page.eval(CONNECTION).await, "live");
        postgres.start_again().await;
        page.until(&figure("sql"), "up").await;
        page.until(&figure("outbox"), "0").await;
        page.close().await;
    });
}

#[test]
fn a_campaign_that_is_not_listed_is_found_by_its_id() {
    in_browser("a_campaign_that_is_not_listed_is_found_by_its_id", async {
        let core = with_roles().start().await;
        for n in 0..60 {
            core.create(&format!("many-{n:02}"), json!({"total": 5})).await;
        }
        let page = signed_in(&core, "dashboard-many", OPERATOR).await;
        page.until("document.getElementById('campaigns-note').textContent", "the busiest 50 of 60").await;
        assert_eq!(page.eval("document.querySelectorAll('#rows tr').length").await, 50);
        page.press("#find").await;
        type_text(&page, "many-59").await;
        page.until(&cell("many-59", ".left b"), "5").await;
        assert_eq!(page.eval("document.querySelectorAll('#rows tr').length").await, 1);
        let shown = page.eval(&cell("many-59", ".state + small")).await;
        assert!(shown.as_str().unwrap().starts_with("as of "), "{shown}");
        page.press("[data-id=many-59] .turn").await;
        page.press("#ask-send").await;
        page.until(&cell("many-59", ".state"), "Paused").await;
        page.press("#find").await;
        type_text(&page, "x").await;
        page.until("document.getElementById('none').textContent.includes('many-59x')", true).await;
        page.close().await;
    });
}

#[test]
fn both_languages_say_the_same() {
    in_browser("both_languages_say_the_same", async {
        let core = with_roles().start().await;
        core.create("words", json!({"total": 10})).await;
        let page = signed_in(&core, "dashboard-words", &core.admin_token()).await;
        let shape = "const shape = (said) => typeof said === 'string' ? (said.match(/{\\w+}/g) ?? []).sort().join() : Object.fromEntries(Object.entries(said).map(([key, one]) => [key, shape(one)]))";
        let pair = page
            .eval(&format!("import('/dashboard/messages.js').then(({{ languages: {{ en, zh }} }}) => {{ {shape}; return [shape(en), shape(zh)]; }})"))
            .await;
        let mut pair: Vec<_> = pair.as_array().unwrap().clone();
        for side in &mut pair {
            side.as_object_mut().unwrap().remove("tag");
        }
        assert_eq!(pair[0], pair[1]);
        page.until(&cell("words", ".state"), "Open").await;
        page.press("#lang").await;
        page.until(&cell("words", ".state"), "进行中").await;
        assert_eq!(page.eval("document.documentElement.lang").await, "zh-CN");
        page.press("[data-id=words] .end").await;
        page.until("document.getElementById('ask-title').textContent", "永久结束“words”？").await;
        page.key(ESCAPE).await;
        page.reload().await;
        page.until(&cell("words", ".state"), "进行中").await;
        page.close().await;
    });
}

#[test]
fn it_fits_a_telephone_under_a_storm() {
    in_browser("it_fits_a_telephone_under_a_storm", async {
        let core = with_roles().start().await;
        core.create("phone", json!({"total": 4_000_000_000_u32})).await;
        let page = signed_in(&core, "dashboard-phone", OPERATOR).await;
        page.resize(PHONE).await;
        for wish in wishes(20, 1) {
            ask(&core, "phone", &wish).await;
        }
        page.until(&cell("phone", ".left b"), "3,999,999,980").await;
        page.picture("dashboard/phone").await;
        page.close().await;
    });
}
