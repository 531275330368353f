//! The dashboard's page in a real browser with a real core: what it shows under load, what each role may
//! change, and how it reports an outage.

use std::time::Duration;

use serde_json::json;
use support::browser::{Browser, DESKTOP, INSECURE_HOST, PHONE, TOO_FAINT};
use support::checker::{Checker, Limits};
use support::process::{Signal, free_address, signal_pid};
use support::storm::claim_attempts;
use support::times::from_now;
use support::{Core, CoreOptions};

use super::{OPERATOR, RECORD_CANVAS_TEXTS, REPEATED_LABELS, VIEWER, in_browser, with_roles};
use crate::on_postgres::on_postgres;

const CONNECTION: &str = "document.body.dataset.connection";
const VIEW: &str = "document.body.dataset.view";
const FOCUS: &str = "document.activeElement.id";
const PROBLEM: &str = "document.getElementById('token-problem').textContent";
const DONE: &str = "document.getElementById('done').textContent";
const DIALOG_OPEN: &str = "document.getElementById('ask').open";

/// WebDriver's key codes.
const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const ESCAPE: char = '\u{e00c}';

/// Opens the page of `core`, which shows the sign-in form.
pub async fn visit(core: &Core, name: &str) -> Browser {
    let page = Browser::open(name, DESKTOP).await;
    page.goto(&core.admin_url("/?lang=en")).await;
    page.until(VIEW, "sign-in").await;
    page
}

pub async fn sign_in(page: &Browser, token: &str) {
    page.eval(&format!("document.getElementById('token').value = '{token}'")).await;
    page.press("#token-send").await;
}

/// Opens the page of `core` and signs in with `token`.
async fn signed_in(core: &Core, name: &str, token: &str) -> Browser {
    let page = visit(core, name).await;
    sign_in(&page, token).await;
    page.until(CONNECTION, "live").await;
    page
}

/// Returns an expression for the text of an element in a campaign's row.
fn cell(campaign: &str, css: &str) -> String {
    format!("document.querySelector('[data-id=\"{campaign}\"] {css}')?.textContent")
}

/// Returns an expression for a figure at the top of the page.
fn figure(name: &str) -> String {
    format!("document.querySelector('[data-figure={name}] b').textContent")
}

/// Types `text` into the focused field.
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
fn the_dashboard_keeps_up_with_a_storm() {
    in_browser("the_dashboard_keeps_up_with_a_storm", async {
        let core = with_roles().start().await;
        core.create("storm", json!({"total": 1000})).await;
        core.create("quiet", json!({"total": 7})).await;
        let page = Browser::open("dashboard-storm", DESKTOP).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": RECORD_CANVAS_TEXTS})).await;
        page.goto(&core.admin_url("/?lang=en")).await;
        sign_in(&page, VIEWER).await;
        page.until(CONNECTION, "live").await;
        page.until(&cell("storm", ".left b"), "1,000").await;
        page.until(&cell("quiet", ".left b"), "7").await;
        page.until(&figure("open"), "2").await;
        // Claims are slow enough to be observed, because the page is updated once a second.
        let checker = Checker::new("storm", Limits::default());
        let stormed = async {
            for part in claim_attempts(1300, 1).chunks(100) {
                checker.storm(core.client(), || core.url("/internal/v1/claims"), part, 8).await;
                checker.resolve_unknown(&core).await;
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        };
        let watched = async {
            // At the same moment, because the storm may end soon.
            let (all, storm) = (figure("claims"), cell("storm", ".speed b"));
            page.until(&format!("Number({all}.replace(',', '')) > 9 && {storm}.length > 1"), true).await;
            page.until(&cell("storm", ".state"), "Sold out").await;
        };
        tokio::join!(stormed, watched);
        assert_eq!(checker.acknowledged().len(), 1000);
        page.until(&cell("storm", ".left b"), "0").await;
        page.until("document.querySelector('#reasons li span')?.textContent", "sold out").await;
        let count = "Number(document.querySelector('#reasons li b')?.textContent.replace(',', ''))";
        // If a response was lost, the denial is counted again, also if core itself has asked Redis again.
        let most = if checker.call_count() == 1300 { 300 } else { 1300 };
        page.until(&format!("{count} >= 300 && {count} <= {most}"), true).await;
        page.until(&figure("claims"), "0").await;
        page.until(&figure("outbox"), "0").await;
        let drawn =
            page.eval("[...document.querySelectorAll('canvas')].map(canvas => canvas.width > 300)").await;
        assert_eq!(drawn, json!([true, true]));
        assert_eq!(page.eval(REPEATED_LABELS).await, json!([]), "an axis repeats a label");
        assert_eq!(page.eval(&cell("quiet", ".left b")).await, "7");
        // The data of the charts is also in a table.
        page.press("#chart-claims summary").await;
        let rows = "document.querySelectorAll('#chart-claims tbody tr').length > 0";
        page.until(rows, true).await;
        page.close().await;
    });
}

#[test]
fn an_invalid_token_is_rejected_and_a_valid_one_is_kept() {
    in_browser("an_invalid_token_is_rejected_and_a_valid_one_is_kept", async {
        let core = with_roles().start().await;
        let page = visit(&core, "dashboard-token").await;
        assert_eq!(page.eval(FOCUS).await, "token");
        page.press("#token-send").await;
        page.until(PROBLEM, "Please enter a token.").await;
        sign_in(&page, "not-a-token-of-anybody-not-a-token-of-anybody").await;
        page.until(PROBLEM, "This core does not recognize this token.").await;
        assert_eq!((page.eval(VIEW).await, page.eval(FOCUS).await), (json!("sign-in"), json!("token")));
        sign_in(&page, support::core_client::API_TOKEN).await;
        page.until(PROBLEM, "This token has no role: use an admin's token, not a back end's.").await;
        assert_eq!(page.eval("sessionStorage.length").await, 0, "a rejected token is not stored");
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
fn a_removed_token_returns_to_the_sign_in_page() {
    in_browser("a_removed_token_returns_to_the_sign_in_page", async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens");
        std::fs::write(&file, format!("vera:viewer:{VIEWER}")).unwrap();
        let options = CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS_FILE", file.to_str().unwrap());
        let core = options.start().await;
        let page = signed_in(&core, "dashboard-withdrawn", VIEWER).await;
        std::fs::write(&file, format!("vera:viewer:{OPERATOR}")).unwrap();
        signal_pid(core.pid(), Signal::HUP);
        page.until(VIEW, "sign-in").await;
        page.until(PROBLEM, "The token is no longer accepted. Please sign in again.").await;
        page.close().await;
    });
}

#[test]
fn each_role_can_make_its_changes_after_confirmation() {
    in_browser("each_role_can_make_its_changes_after_confirmation", async {
        let core = with_roles().start().await;
        core.create("gifts", json!({"total": 10})).await;
        let buttons = "[...document.querySelectorAll('[data-id=gifts] .actions button:not([hidden])')].map(one => one.textContent)";
        let page = signed_in(&core, "dashboard-roles", VIEWER).await;
        page.until(&cell("gifts", ".left b"), "10").await;
        assert_eq!(page.eval(buttons).await, json!([]), "a viewer has no buttons");
        page.press("#sign-out").await;

        sign_in(&page, OPERATOR).await;
        page.until(buttons, json!(["Pause", "Add"])).await;
        page.press("[data-id=gifts] .turn").await;
        page.until(DIALOG_OPEN, true).await;
        assert_eq!(text(&page, "ask-title").await, "Pause “gifts”?");
        assert_eq!(page.eval(FOCUS).await, "ask-cancel", "an accidental key press changes nothing");
        page.press("#ask-cancel").await;
        page.until(DIALOG_OPEN, false).await;
        assert_eq!(core.campaign("gifts").await["state"], "open", "the dialog was cancelled");
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
        page.until(DONE, "The total of “gifts” is now 15.").await;
        page.until(&cell("gifts", ".left b"), "14").await;
        page.press("#sign-out").await;

        sign_in(&page, &core.admin_token()).await;
        page.until(buttons, json!(["Pause", "Add", "End"])).await;
        page.press("[data-id=gifts] .end").await;
        type_text(&page, "gift").await;
        page.press("#ask-send").await;
        page.until("document.getElementById('ask-problem').textContent", "This is not the campaign's id.")
            .await;
        type_text(&page, "s").await;
        page.press("#ask-send").await;
        page.until(DONE, "“gifts” has ended.").await;
        page.until(&cell("gifts", ".state"), "Ended").await;
        page.until(buttons, json!([])).await;
        let callers =
            "[...document.querySelectorAll('#changes li')].map(one => one.querySelector('b').textContent)";
        page.until(callers, json!(["admin", "olga", "olga", "olga", "admin"])).await;
        page.close().await;
    });
}

/// Script that records the bodies of all changes sent. While `held` is set it delays them until `go()`; while
/// `lost` is set it drops their responses.
const RECORD_CALLS: &str = "const real = fetch; window.sent = [];
    window.fetch = async (url, options) => {
        if (options?.method !== 'POST') return real(url, options);
        sent.push(JSON.parse(options.body ?? null));
        if (window.held) await new Promise(go => { window.go = go; });
        const reply = await real(url, { ...options, signal: null });
        window.answered = reply.status;
        if (window.lost) throw new TypeError('no answer came');
        return reply;
    };";

/// Opens the page of `core`, signs in with `token`, and records the page's calls.
async fn signed_in_recorded(core: &Core, name: &str, token: &str) -> Browser {
    let page = Browser::open(name, DESKTOP).await;
    page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": RECORD_CALLS})).await;
    page.goto(&core.admin_url("/?lang=en")).await;
    page.until(VIEW, "sign-in").await;
    sign_in(&page, token).await;
    page.until(CONNECTION, "live").await;
    page
}

/// Opens the dialog that adds units to `campaign`, and submits `units`, or the prefilled number.
async fn add(page: &Browser, campaign: &str, units: Option<&str>) {
    page.press(&format!("[data-id={campaign}] .add")).await;
    page.until(FOCUS, "ask-input").await;
    if let Some(units) = units {
        page.eval(&format!("document.getElementById('ask-input').value = '{units}'")).await;
    }
    page.press("#ask-send").await;
}

async fn close_dialog(page: &Browser) {
    page.key(ESCAPE).await;
    page.until(DIALOG_OPEN, false).await;
}

#[test]
fn an_addition_with_unknown_outcome_is_resent_with_its_key() {
    in_browser("an_addition_with_unknown_outcome_is_resent_with_its_key", async {
        let core = with_roles().start().await;
        for campaign in ["doubt", "other"] {
            core.create(campaign, json!({"total": 10})).await;
        }
        let page = signed_in_recorded(&core, "dashboard-doubt", OPERATOR).await;
        let keys = "sent.map(({ units, idempotency_key }) => [units, sent.findIndex(one => one.idempotency_key === idempotency_key)])";
        page.eval("window.lost = true").await;
        add(&page, "doubt", Some("5")).await;
        let problem = "document.getElementById('ask-problem').textContent";
        let in_doubt =
            "There was no answer, so the outcome is unknown. Sending it again does not apply it twice.";
        page.until(problem, in_doubt).await;
        close_dialog(&page).await;
        page.eval("window.lost = false").await;
        // The dialog of another campaign is independent.
        add(&page, "other", Some("5")).await;
        page.until(DONE, "The total of “other” is now 15.").await;
        // Reopening the dialog continues the same addition, even after a reload.
        page.reload().await;
        page.until(CONNECTION, "live").await;
        page.press("[data-id=doubt] .add").await;
        page.until(FOCUS, "ask-input").await;
        assert_eq!(page.eval("document.getElementById('ask-input').value").await, "5");
        assert_eq!(page.eval(problem).await, in_doubt);
        page.press("#ask-send").await;
        page.until(DONE, "The total of “doubt” is now 15.").await;
        assert_eq!(core.campaign("doubt").await["limits"]["total"], 15, "the units were added twice");
        // Once the outcome is known, entering the same number makes a new addition.
        add(&page, "doubt", Some("5")).await;
        page.until(DONE, "The total of “doubt” is now 20.").await;
        // Entering a different number while the outcome is unknown deliberately makes a new addition.
        page.eval("window.lost = true").await;
        add(&page, "doubt", Some("1")).await;
        page.until(problem, in_doubt).await;
        page.eval("window.lost = false").await;
        page.eval("document.getElementById('ask-input').value = '2'").await;
        page.press("#ask-send").await;
        page.until(DONE, "The total of “doubt” is now 23.").await;
        assert_eq!(page.eval(keys).await, json!([[5, 0], [5, 1], [1, 2], [2, 3]]));
        page.close().await;
    });
}

/// The browser reports that a dialog was closed after it was reopened.
#[test]
fn a_dialog_reopened_before_its_close_event_works() {
    in_browser("a_dialog_reopened_before_its_close_event_works", async {
        let core = with_roles().start().await;
        core.create("demo", json!({"total": 10})).await;
        let page = signed_in_recorded(&core, "dashboard-reopened", OPERATOR).await;
        page.press("[data-id=demo] .add").await;
        page.until(FOCUS, "ask-input").await;
        let reopen =
            "document.getElementById('ask').addEventListener('close', () => { window.reported = true; });
            document.getElementById('ask').close();
            document.querySelector('[data-id=demo] .add').click()";
        page.eval(&format!("(() => {{ {reopen} }})()")).await;
        page.until("window.reported", true).await;
        page.eval("document.getElementById('ask-input').value = '5'").await;
        page.press("#ask-send").await;
        page.until(DONE, "The total of “demo” is now 15.").await;
        page.close().await;
    });
}

#[test]
fn a_late_response_does_not_close_a_newer_dialog() {
    in_browser("a_late_response_does_not_close_a_newer_dialog", async {
        let core = with_roles().start().await;
        for campaign in ["first", "second"] {
            core.create(campaign, json!({"total": 10})).await;
        }
        let page = signed_in_recorded(&core, "dashboard-late", OPERATOR).await;
        page.eval("window.held = true").await;
        page.press("[data-id=first] .turn").await;
        page.press("#ask-send").await;
        page.until("typeof window.go", "function").await;
        close_dialog(&page).await;
        page.press("[data-id=second] .add").await;
        page.until(FOCUS, "ask-input").await;
        assert_eq!(page.eval("document.getElementById('ask-send').disabled").await, false);
        page.eval("go()").await;
        page.until(DONE, "“first” is paused.").await;
        assert_eq!(page.eval(DIALOG_OPEN).await, true, "the answer to one dialog closed another");
        assert_eq!(text(&page, "ask-title").await, "Add units to “second”");
        page.close().await;
    });
}

#[test]
fn a_token_removed_during_a_call_leads_to_one_sign_in() {
    in_browser("a_token_removed_during_a_call_leads_to_one_sign_in", async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens");
        std::fs::write(&file, format!("olga:operator:{OPERATOR}")).unwrap();
        let options = CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS_FILE", file.to_str().unwrap());
        let core = options.start().await;
        core.create("called", json!({"total": 10})).await;
        let page = signed_in_recorded(&core, "dashboard-called", OPERATOR).await;
        page.eval("window.held = true").await;
        page.press("[data-id=called] .turn").await;
        page.press("#ask-send").await;
        page.until("typeof window.go", "function").await;
        close_dialog(&page).await;
        std::fs::write(&file, format!("vera:viewer:{VIEWER}")).unwrap();
        signal_pid(core.pid(), Signal::HUP);
        page.until(VIEW, "sign-in").await;
        page.eval("go()").await;
        page.until("window.answered", 401).await;
        page.until(PROBLEM, "The token is no longer accepted. Please sign in again.").await;
        // Closing the page fails the test if the page had script errors.
        page.close().await;
    });
}

#[test]
fn changes_can_be_made_over_plain_http() {
    in_browser("changes_can_be_made_over_plain_http", async {
        let core = with_roles().start().await;
        core.create("plain", json!({"total": 10})).await;
        let page = Browser::open("dashboard-plain", DESKTOP).await;
        let port = core.admin_listen().port();
        page.goto(&format!("http://{INSECURE_HOST}:{port}/?lang=en")).await;
        page.until(VIEW, "sign-in").await;
        assert_eq!(page.eval("isSecureContext").await, false);
        sign_in(&page, &core.admin_token()).await;
        page.until(CONNECTION, "live").await;
        add(&page, "plain", Some("5")).await;
        page.until(DONE, "The total of “plain” is now 15.").await;
        page.press("[data-id=plain] .turn").await;
        page.press("#ask-send").await;
        page.until(DONE, "“plain” is paused.").await;
        page.press("[data-id=plain] .end").await;
        type_text(&page, "plain").await;
        page.press("#ask-send").await;
        page.until(DONE, "“plain” has ended.").await;
        page.close().await;
    });
}

#[test]
fn the_list_of_changes_shows_the_units_added() {
    in_browser("the_list_of_changes_shows_the_units_added", async {
        let core = with_roles().start().await;
        core.create("units", json!({"total": 10})).await;
        let page = signed_in_recorded(&core, "dashboard-units", OPERATOR).await;
        for (units, expected) in
            [("1500", "olga added 1,500 units to units"), ("-10", "olga removed 10 units from units")]
        {
            add(&page, "units", Some(units)).await;
            let latest = "document.querySelector('#changes li')?.textContent ?? ''";
            page.until(&format!("({latest}).endsWith('{expected}')"), true).await;
        }
        page.close().await;
    });
}

#[test]
fn a_campaign_shows_its_window_limits_and_page() {
    in_browser("a_campaign_shows_its_window_limits_and_page", async {
        for address in [None, Some("https://claims.example.com")] {
            let mut options = with_roles();
            if let Some(address) = address {
                options = options.with("CLAIMGATE_PAGE_URL", address);
            }
            let core = options.start().await;
            let limits = json!({"total": 10, "per_user": 4, "per_user_per_day": 1, "per_claim": 2});
            let rules = json!({"id": "ruled", "name": "Ruled", "starts_at": from_now(-60), "ends_at": from_now(86400),
                "time_zone": "Asia/Shanghai", "limits": limits}); // on any day
            core.create_with(rules).await;
            core.create_with(
                json!({"id": "later", "name": "Later", "starts_at": from_now(86400), "limits": {}}),
            )
            .await;
            let page = signed_in(&core, "dashboard-rules", VIEWER).await;
            let rules =
                |id: &str| format!("(document.querySelector('[data-id={id}] .rules')?.textContent ?? '')");
            let each = "per person: 4, 1 a day (Asia/Shanghai), 2 per claim";
            page.until(&format!("{}.includes('{each}')", rules("ruled")), true).await;
            page.until(&format!("/^ends /.test({})", rules("ruled")), true).await;
            page.until(&format!("/^opens .*no limit per person/.test({})", rules("later")), true).await;
            let link = "document.querySelector('[data-id=ruled] a')?.href ?? null";
            let wanted = address.map(|address| format!("{address}/?campaign=ruled"));
            assert_eq!(page.eval(link).await, json!(wanted));
            page.close().await;
        }
    });
}

#[test]
fn the_dashboard_is_usable_by_keyboard() {
    in_browser("the_dashboard_is_usable_by_keyboard", async {
        let core = with_roles().start().await;
        core.create("keys", json!({"total": 10})).await;
        let page = visit(&core, "dashboard-keys").await;
        type_text(&page, OPERATOR).await;
        page.key(ENTER).await;
        page.until(FOCUS, "board").await;
        page.until(&cell("keys", ".left b"), "10").await;
        // The span and the table of two charts, the search field, then the campaign's claims, report, history and first
        // change.
        let charts = ["BUTTON", "SUMMARY", "BUTTON", "SUMMARY"];
        for focused in charts.into_iter().chain(["INPUT", "BUTTON", "BUTTON", "BUTTON", "BUTTON"]) {
            page.key(TAB).await;
            assert_eq!(page.eval("document.activeElement.tagName").await, focused);
            assert_eq!(page.eval("getComputedStyle(document.activeElement).outlineStyle").await, "solid");
        }
        assert_eq!(page.eval("document.activeElement.ariaLabel").await, "Pause keys");
        page.key(ENTER).await;
        page.until(FOCUS, "ask-cancel").await;
        page.key(ESCAPE).await;
        page.until(DIALOG_OPEN, false).await;
        assert_eq!(
            page.eval("document.activeElement.ariaLabel").await,
            "Pause keys",
            "the focus returns to the button"
        );
        page.key(ENTER).await;
        page.until(FOCUS, "ask-cancel").await;
        page.key(TAB).await;
        assert_eq!(page.eval(FOCUS).await, "ask-send");
        page.key(ENTER).await;
        page.until(DONE, "“keys” is paused.").await;
        // The focus stays on the same button after the next snapshot.
        page.until("document.activeElement.ariaLabel", "Resume keys").await;
        assert_eq!(core.campaign("keys").await["state"], "paused");
        page.close().await;
    });
}

#[test]
fn a_screen_reader_can_read_the_dashboard() {
    in_browser("a_screen_reader_can_read_the_dashboard", async {
        let core = with_roles().start().await;
        core.create("heard", json!({"total": 10})).await;
        let page = signed_in(&core, "dashboard-heard", OPERATOR).await;
        page.until(&cell("heard", ".left b"), "10").await;
        let nodes = page
            .accessible_names(&[
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
            "heading: Recent changes",
        ] {
            assert!(nodes.iter().any(|one| one.starts_with(wanted)), "no {wanted} in {nodes:#?}");
        }
        // Values that change every second are not announced; only these elements are.
        let spoken = "[...document.querySelectorAll('[role=status], [role=alert], [aria-live]')].map(one => one.id).sort()";
        assert_eq!(
            page.eval(spoken).await,
            json!([
                "ask-problem",
                "claims-problem",
                "codes-problem",
                "connection",
                "done",
                "edit-problem",
                "history-problem",
                "none",
                "outcomes",
                "report-problem",
                "token-problem"
            ])
        );
        page.close().await;
    });
}

#[test]
fn an_unreachable_core_is_shown_and_old_data_marked_stale() {
    in_browser("an_unreachable_core_is_shown_and_old_data_marked_stale", async {
        let mut core = with_roles().admin_at(free_address()).start().await;
        core.create("lasting", json!({"total": 10})).await;
        let page = signed_in(&core, "dashboard-lost", VIEWER).await;
        page.until(&cell("lasting", ".left b"), "10").await;
        // Core is suspended: the connection stays open, but no event arrives.
        signal_pid(core.pid(), Signal::STOP);
        page.until(CONNECTION, "late").await;
        page.until("document.getElementById('stale').checkVisibility()", true).await;
        let stale = text(&page, "stale").await;
        assert!(stale.starts_with("Not live: last update ") && stale.ends_with(" s ago."), "{stale}");
        assert_eq!(page.eval(TOO_FAINT).await, json!([]));
        signal_pid(core.pid(), Signal::CONT);
        page.until(CONNECTION, "live").await;
        assert_eq!(page.eval("document.getElementById('stale').hidden").await, true);
        core.kill();
        page.until(CONNECTION, "lost").await;
        let message = text(&page, "connection").await;
        assert!(message.contains("Next try in"), "{message}");
        core = core.restart().await;
        core.claim("lasting", "u", "k").await.expect(201);
        page.until(CONNECTION, "live").await;
        page.until(&cell("lasting", ".left b"), "9").await;
        page.close().await;
    });
}

#[test]
fn a_store_that_is_down_is_shown_while_the_rest_updates() {
    in_browser("a_store_that_is_down_is_shown_while_the_rest_updates", async {
        let Some((core, sql, mut postgres)) = on_postgres("the page while SQL is down", with_roles()).await
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
        assert!(note.starts_with("SQL is down: as of "), "{note}");
        assert_eq!(page.eval(CONNECTION).await, "live");
        postgres.start_again().await;
        page.until(&figure("sql"), "up").await;
        page.until(&figure("outbox"), "0").await;
        page.close().await;
    });
}

#[test]
fn an_unlisted_campaign_is_found_by_its_id() {
    in_browser("an_unlisted_campaign_is_found_by_its_id", async {
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
fn both_languages_have_the_same_messages() {
    in_browser("both_languages_have_the_same_messages", async {
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
        let chinese = page
            .eval("import('/dashboard/messages.js').then(({ languages: { zh } }) => JSON.stringify(zh))")
            .await;
        for stiff in ["发件箱", "裁决"] {
            assert!(!chinese.as_str().unwrap().contains(stiff), "{stiff}");
        }
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
fn large_numbers_fit_on_a_phone() {
    in_browser("large_numbers_fit_on_a_phone", async {
        let core = with_roles().start().await;
        core.create("phone", json!({"total": 4_000_000_000_u32})).await;
        let page = signed_in(&core, "dashboard-phone", OPERATOR).await;
        page.resize(PHONE).await;
        for user in 0..20 {
            core.claim("phone", &format!("u{user}"), "k").await.expect(201);
        }
        page.until(&cell("phone", ".left b"), "3,999,999,980").await;
        page.check_layout("dashboard/phone").await;
        page.close().await;
    });
}
