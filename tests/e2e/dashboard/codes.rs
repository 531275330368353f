//! A campaign's codes in the dashboard's page: they are counted, and a file of codes is added, but never shown or kept.

use serde_json::{Value, json};
use support::Core;
use support::browser::{Browser, DESKTOP, TOO_FAINT};
use support::core_client::campaign;

use super::{VIEWER, in_browser, with_roles};
use crate::dashboard::form::LOSE_ANSWERS;
use crate::dashboard::page::{sign_in, visit};

const FILE: &str = "SAVE-7F3A\nSAVE-91KQ\nSAVE-M2XD\n";
const COUNTS: &str = "document.getElementById('codes-counts').textContent";
const OUTCOME: &str = "document.getElementById('codes-problem').textContent";
const CHOSEN_FILES: &str = "document.getElementById('codes-file').files.length";
const IN_DOUBT: &str =
    "There was no answer, so the outcome is unknown. Sending it again does not apply it twice.";

/// Expression for whether a code is anywhere in the page, in what it stores, or in a URL that it has requested.
const KEEPS_A_CODE: &str =
    "[document.documentElement.outerHTML, location.href, ...Object.values(sessionStorage),
    ...[...document.querySelectorAll('input')].map(({ value }) => value),
    ...performance.getEntriesByType('resource').map(({ name }) => name)].join().includes('SAVE')";

/// Script that delays changes until `release` is called.
const DELAY_CHANGES: &str = "(() => {
    const real = fetch;
    const released = new Promise((resolve) => { window.release = resolve; });
    window.fetch = async (url, options) => {
        if (options.method) await released;
        return real(url, options);
    };
})()";

/// Script that answers changes with a page of the status `answered`, as a proxy does.
const ANSWER_AS_A_PROXY: &str = "(() => {
    const real = fetch;
    window.fetch = async (url, options) =>
        options.method ? new Response('<h1>Rejected</h1>', { status: window.answered }) : real(url, options);
})()";

/// Script that keeps the timer of notices, `expire`, from running.
const KEEP_NOTICES: &str = "(() => {
    const wait = setTimeout;
    window.setTimeout = (work, ms) => {
        if (ms !== 10000) return wait(work, ms);
        window.expire = work;
    };
})()";

/// Script that counts the reads of codes, lets `countAgain` end the pause between them, and hides the tab while
/// `isHidden` is set.
const COUNT_READS: &str = "(() => {
    const real = fetch, wait = setTimeout;
    window.reads = 0;
    window.fetch = (url, options) => {
        if (url.endsWith('/codes')) reads++;
        return real(url, options);
    };
    window.setTimeout = (work, ms) => {
        if (ms !== 2000) return wait(work, ms);
        window.countAgain = work;
    };
    Object.defineProperty(document, 'hidden', { get: () => Boolean(window.isHidden) });
})()";

/// Opens the codes of the campaign `id`.
pub async fn open_codes(page: &Browser, id: &str) {
    let button = format!("[data-id={id}] .codes");
    page.until(&format!("document.querySelector('{button}')?.checkVisibility()"), true).await;
    page.press(&button).await;
    page.until("document.getElementById('codes').open", true).await;
}

/// Chooses a file with these codes, sends it, and waits for the outcome.
pub async fn add_codes(page: &Browser, codes: &str, outcome: &str) {
    let codes = json!(codes);
    let choose = format!(
        "(() => {{
            const chosen = new DataTransfer();
            chosen.items.add(new File([{codes}], 'codes.csv'));
            document.getElementById('codes-file').files = chosen.files;
        }})()"
    );
    page.eval(&choose).await;
    page.press("#codes-send").await;
    page.until(OUTCOME, outcome).await;
}

/// Starts a core with the campaign `sale`, which has no codes yet.
async fn core_with_sale() -> Core {
    let core = with_roles().start().await;
    let mut body = campaign("sale", json!({"total": 0}));
    body["codes"] = json!(true);
    core.create_with(body).await;
    core
}

#[test]
fn an_admin_adds_files_of_codes() {
    in_browser("an_admin_adds_files_of_codes", async {
        let core = core_with_sale().await;
        let page = visit(&core, "dashboard-add-codes").await;
        sign_in(&page, &core.admin_token()).await;
        open_codes(&page, "sale").await;
        page.until(COUNTS, "Codes: 0. Given to claims: 0. Left: 0. Claims without codes: 0.").await;
        page.press("#codes-send").await;
        page.until(OUTCOME, "Please choose a file.").await;
        for (file, problem) in [
            ("SAVE-7F3A\nSAVE-91KQ\nSAVE-7F3A\n", "line 3: repeats the code of line 1"),
            ("code\nSAVE-7F3A,SAVE-91KQ\n", "line 2: must have one field, not 2"),
            ("code\n", "body: has no codes"),
        ] {
            add_codes(&page, file, &format!("Rejected: {problem}")).await;
            assert_eq!(page.eval(CHOSEN_FILES).await, 0, "it must be corrected, and chosen again");
        }
        add_codes(&page, FILE, "Codes added: 3. Already there: 0.").await;
        page.until(COUNTS, "Codes: 3. Given to claims: 0. Left: 3. Claims without codes: 0.").await;
        add_codes(&page, &format!("{FILE}SAVE-Q5LN\n"), "Codes added: 1. Already there: 3.").await;
        page.until(COUNTS, "Codes: 4. Given to claims: 0. Left: 4. Claims without codes: 0.").await;
        for (size, name) in [((360, 800), "phone"), (DESKTOP, "desktop")] {
            page.resize(size).await;
            let wide = page.eval("document.scrollingElement.scrollWidth - innerWidth").await;
            assert!(wide.as_i64().unwrap() <= 0, "{wide} pixels too wide");
            assert_eq!(page.eval(TOO_FAINT).await, json!([]));
            page.screenshot(&format!("dashboard/codes-{name}")).await;
        }
        page.assert_accessible("codes").await;
        assert_eq!(page.eval(KEEPS_A_CODE).await, false);
        assert!(!core.log().contains("SAVE"), "a code is in core's log");
        // Without a result: WebDriver would read all members of the prototype.
        let enlarge = "Object.defineProperty(Blob.prototype, 'size', { get: () => 2 ** 29 })";
        page.eval(&format!("(() => {{ {enlarge}; }})()")).await;
        let too_large = "The file is larger than 256 MiB: add its codes in several files.";
        add_codes(&page, "SAVE-T6WE\n", too_large).await;
        page.press("#codes-close").await;
        let latest = "document.querySelector('#changes li').textContent";
        page.until(&format!("{latest}.endsWith('admin added codes to sale')"), true).await;
        page.close().await;
    });
}

#[test]
fn a_file_whose_answer_was_lost_is_added_once() {
    in_browser("a_file_whose_answer_was_lost_is_added_once", async {
        let core = core_with_sale().await;
        let page = visit(&core, "dashboard-lost-codes").await;
        sign_in(&page, &core.admin_token()).await;
        page.eval(LOSE_ANSWERS).await;
        open_codes(&page, "sale").await;
        page.eval("window.lost = true").await;
        add_codes(&page, FILE, IN_DOUBT).await;
        page.eval("window.lost = false").await;
        assert_eq!(page.eval(CHOSEN_FILES).await, 1, "it can be sent again");
        page.press("#codes-send").await;
        page.until(OUTCOME, "Codes added: 0. Already there: 3.").await;
        assert_eq!(page.eval(CHOSEN_FILES).await, 0);
        let counted = core.admin_get("/admin/v1/campaigns/sale/codes").await.expect(200).json();
        assert_eq!(counted, json!({"added": 3, "assigned": 0, "claims_pending": 0}));

        // The outcome of a file is reported even if the dialog was closed, and stays until it is closed.
        page.eval(KEEP_NOTICES).await;
        page.eval(DELAY_CHANGES).await;
        add_codes(&page, "SAVE-Q5LN\n", "Adding the codes…").await;
        page.press("#codes-close").await;
        page.until("document.getElementById('codes').open", false).await;
        page.eval("window.release()").await;
        let outcome = "document.querySelector('#outcomes span')?.textContent ?? null";
        page.until(outcome, "“sale”: Codes added: 1. Already there: 0.").await;
        assert_eq!(page.eval("window.expire ?? null").await, Value::Null, "it would vanish");
        page.press("#outcomes button").await;
        page.until(outcome, Value::Null).await;
        // The next user does not see the outcome of an upload that ended after the sign-out.
        open_codes(&page, "sale").await;
        page.eval(DELAY_CHANGES).await;
        add_codes(&page, "SAVE-T6WE\n", "Adding the codes…").await;
        page.press("#codes-close").await;
        page.press("#sign-out").await;
        page.eval("window.release()").await;
        page.until(outcome, "“sale”: Codes added: 1. Already there: 0.").await;
        sign_in(&page, &core.admin_token()).await;
        page.until(outcome, Value::Null).await;
        page.close().await;
    });
}

#[test]
fn the_outcome_of_a_file_takes_the_focus_only_from_the_form() {
    in_browser("the_outcome_of_a_file_takes_the_focus_only_from_the_form", async {
        let core = core_with_sale().await;
        let page = visit(&core, "dashboard-focus-codes").await;
        sign_in(&page, &core.admin_token()).await;
        open_codes(&page, "sale").await;
        add_codes(&page, "SAVE-7F3A\n", "Codes added: 1. Already there: 0.").await;
        let focused = "document.activeElement.id";
        assert_eq!(page.eval(focused).await, "codes-file");
        page.eval(DELAY_CHANGES).await;
        add_codes(&page, "SAVE-91KQ\n", "Adding the codes…").await;
        page.eval("document.getElementById('codes-close').focus()").await;
        page.eval("window.release()").await;
        page.until(OUTCOME, "Codes added: 1. Already there: 0.").await;
        assert_eq!(page.eval(focused).await, "codes-close");
        page.close().await;
    });
}

#[test]
fn a_hidden_tab_does_not_count_codes() {
    in_browser("a_hidden_tab_does_not_count_codes", async {
        let core = core_with_sale().await;
        let page = visit(&core, "dashboard-hidden-codes").await;
        sign_in(&page, &core.admin_token()).await;
        page.eval(COUNT_READS).await;
        open_codes(&page, "sale").await;
        page.until("typeof window.countAgain", "function").await;
        page.eval("void (window.isHidden = true, window.countAgain())").await;
        assert_eq!(page.eval("window.reads").await, 1);
        page.eval("void (window.isHidden = false, document.dispatchEvent(new Event('visibilitychange')))")
            .await;
        page.until("window.reads", 2).await;
        page.close().await;
    });
}

#[test]
fn a_file_is_kept_only_while_its_outcome_is_unknown() {
    in_browser("a_file_is_kept_only_while_its_outcome_is_unknown", async {
        let core = core_with_sale().await;
        let page = visit(&core, "dashboard-rejected-codes").await;
        sign_in(&page, &core.admin_token()).await;
        page.eval(ANSWER_AS_A_PROXY).await;
        open_codes(&page, "sale").await;
        for (status, outcome, chosen) in [(408, IN_DOUBT, 1), (413, "Rejected: 413", 0), (502, IN_DOUBT, 1)] {
            page.eval(&format!("window.answered = {status}")).await;
            add_codes(&page, FILE, outcome).await;
            assert_eq!(page.eval(CHOSEN_FILES).await, chosen, "{status}");
        }
        page.close().await;
    });
}

#[test]
fn claims_that_wait_get_the_codes_that_an_admin_adds() {
    in_browser("claims_that_wait_get_the_codes_that_an_admin_adds", async {
        let core = with_roles().start().await;
        core.run_out_of_codes("sale").await;
        core.create("plain", json!({"total": 5})).await;
        let page = visit(&core, "dashboard-waiting-codes").await;
        let is_shown = |element: &str| format!("document.querySelector('{element}')?.checkVisibility()");
        sign_in(&page, VIEWER).await;
        open_codes(&page, "sale").await;
        page.until(COUNTS, "Codes: 1. Given to claims: 1. Left: 0. Claims without codes: 1.").await;
        let note = "document.getElementById('codes-role').textContent";
        assert_eq!(page.eval(note).await, "Adding codes needs the role admin.");
        assert_eq!(page.eval(&is_shown("#codes-form")).await, false);
        page.press("#codes-close").await;
        page.until(&is_shown("[data-id=plain] .history"), true).await;
        assert_eq!(page.eval(&is_shown("[data-id=plain] .codes")).await, false, "it has no codes");
        page.press("#sign-out").await;

        sign_in(&page, &core.admin_token()).await;
        open_codes(&page, "sale").await;
        add_codes(&page, "B\n", "Codes added: 1. Already there: 0.").await;
        page.until(COUNTS, "Codes: 2. Given to claims: 2. Left: 0. Claims without codes: 0.").await;
        assert_eq!(page.eval(note).await, "");
        page.close().await;
    });
}
