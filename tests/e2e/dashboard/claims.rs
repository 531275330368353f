//! A campaign's claims in the dashboard's page: a winner is found, what was found is saved, and a claim is returned.

use serde_json::json;
use support::browser::{Browser, DESKTOP, TOO_FAINT};
use support::core_client::campaign;
use support::wait::holds;
use support::{SOON, eventually};

use super::{OPERATOR, VIEWER, in_browser, with_roles};
use crate::dashboard::page::{sign_in, visit};

const ROWS: &str = "[...document.querySelectorAll('#claims-rows tr')].map((row) => row.querySelector('th').firstChild.data).join()";
/// Keeps the next saved file in `saved`, and its name in `named`.
pub const KEEP_FILE: &str = "(() => {
    URL.createObjectURL = (file) => { file.text().then((text) => { window.saved = text; }); return 'blob:kept'; };
    HTMLAnchorElement.prototype.click = function () { window.named = this.download; };
})()";
const PROBLEM: &str = "document.getElementById('claims-problem').textContent";

/// Opens the claims of the campaign `sale`.
async fn open(page: &Browser) {
    page.until("document.querySelector('[data-id=sale] .claims')?.textContent", "Claims").await;
    page.press("[data-id=sale] .claims").await;
    page.until("document.getElementById('claims').open", true).await;
}

pub async fn search(page: &Browser, text: &str) {
    page.eval(&format!("document.getElementById('claims-text').value = '{text}'")).await;
    page.press("#claims-form button").await;
}

#[test]
fn a_winner_is_found_by_user_status_and_claim() {
    in_browser("a_winner_is_found_by_user_status_and_claim", async {
        let core = with_roles().start().await;
        let mut body = campaign("sale", json!({"total": 0}));
        body["codes"] = json!(true);
        core.create_with(body).await;
        let codes: Vec<_> = (0..60).map(|number| format!("SAVE-{number:02}")).collect();
        core.add_codes("sale", &codes.join("\n")).await.expect(200);
        core.patch("sale", json!({"limits": {"total": 60}})).await.expect(200);
        for user in 0..60 {
            core.claim("sale", &format!("user-{user}"), "k").await.expect(201);
        }
        let rows = core.sql().until("sale", 60).await;
        let wanted = rows.iter().find(|row| row.user_id == "user-41").expect("a claim");
        core.transition(&wanted.id, "return").await.expect(200);
        core.redis().await.relayed("sale", support::SOON).await;

        let page = visit(&core, "dashboard-claims").await;
        sign_in(&page, VIEWER).await;
        open(&page).await;
        page.until("document.querySelectorAll('#claims-rows tr').length", 50).await;
        page.press("#claims-more").await;
        page.until("document.querySelectorAll('#claims-rows tr').length", 60).await;
        assert_eq!(page.eval("document.getElementById('claims-with-codes').hidden").await, true, "a viewer");
        search(&page, "user-7").await;
        page.until(ROWS, "user-7").await;
        search(&page, &wanted.id).await;
        page.until(ROWS, "user-41").await;
        for unknown in ["no-one", "not an id", "sale.user-41.AAAAAAAAAAAAAAAAAAAAAA"] {
            search(&page, unknown).await;
            page.until(PROBLEM, "No claims match.").await;
        }
        search(&page, "").await;
        let choose = "(() => { const status = document.getElementById('claims-status'); status.value = 'returned'; status.dispatchEvent(new Event('change')); })()";
        page.eval(choose).await;
        page.until(ROWS, "user-41").await;
        page.eval(KEEP_FILE).await;
        page.press("#claims-csv").await;
        page.until("window.named", "sale-claims.csv").await;
        page.until("typeof window.saved", "string").await;
        let saved = page.eval("window.saved").await;
        assert_eq!(saved.as_str().unwrap().matches("user-").count(), 2, "one row with user and id: {saved}");
        for (size, name) in [((360, 800), "phone"), (DESKTOP, "desktop")] {
            page.resize(size).await;
            let wide = page.eval("document.scrollingElement.scrollWidth - innerWidth").await;
            assert!(wide.as_i64().unwrap() <= 0, "{wide} pixels too wide");
            assert_eq!(page.eval(TOO_FAINT).await, json!([]));
            page.screenshot(&format!("dashboard/claims-{name}")).await;
        }
        page.assert_accessible("claims").await;
        page.press("#claims-close").await;
        page.close().await;
    });
}

#[test]
fn an_operator_returns_a_claim_with_a_reason() {
    in_browser("an_operator_returns_a_claim_with_a_reason", async {
        let core = with_roles().start().await;
        core.create("sale", json!({"total": 3})).await;
        for user in ["ann", "bob"] {
            core.claim("sale", user, "k").await.expect(201);
        }
        core.sql().until("sale", 2).await;
        let page = visit(&core, "dashboard-return").await;
        let buttons = "document.querySelectorAll('#claims-rows .return').length";
        let note = "document.getElementById('claims-role').textContent";
        sign_in(&page, VIEWER).await;
        open(&page).await;
        page.until(ROWS, "ann,bob").await;
        assert_eq!(page.eval(buttons).await, 0);
        assert_eq!(page.eval(note).await, "Returning a claim needs the role operator.");
        page.press("#claims-close").await;
        page.press("#sign-out").await;

        sign_in(&page, OPERATOR).await;
        open(&page).await;
        page.until(buttons, 2).await;
        assert_eq!(page.eval(note).await, "");
        page.press("#claims-rows .return").await;
        page.until("document.getElementById('ask-title').textContent", "Return the claim of “ann”?").await;
        page.press("#ask-send").await;
        let problem = "document.getElementById('ask-problem').textContent";
        page.until(problem, "Please enter a reason.").await;
        page.eval("document.getElementById('ask-input').value = 'Bought twice'").await;
        page.screenshot("dashboard/claims-return").await;
        page.press("#ask-send").await;
        page.until(PROBLEM, "The claim of “ann” is returned.").await;
        page.until(buttons, 1).await;
        assert_eq!(core.campaign("sale").await["remaining"], 2);
        page.assert_accessible("claims of an operator").await;
        page.press("#claims-close").await;
        let latest = "document.querySelector('#changes li').textContent";
        page.until(&format!("{latest}.endsWith('olga returned a claim of sale: Bought twice')"), true).await;
        page.close().await;
    });
}

#[test]
fn an_admin_may_see_the_codes_which_the_audit_records() {
    in_browser("an_admin_may_see_the_codes_which_the_audit_records", async {
        let core = with_roles().start().await;
        let waits = core.run_out_of_codes("sale").await;
        core.add_codes("sale", "SAVE-7F3A\n").await.expect(200);
        // The page does not ask again, and core gives the code to the claim later.
        eventually(SOON, || async {
            let claim = core.look_up(&waits).await.expect(200).text();
            holds(claim.contains("SAVE-7F3A"), || claim)
        })
        .await;
        let page = visit(&core, "dashboard-codes").await;
        sign_in(&page, &core.admin_token()).await;
        open(&page).await;
        page.until("document.querySelectorAll('#claims-rows tr').length", 2).await;
        let codes = "[...document.querySelectorAll('#claims-rows td:last-child')].map((cell) => cell.textContent).join('|')";
        assert_eq!(page.eval(codes).await, "|");
        page.press("#claims-codes").await;
        page.until(codes, "|SAVE-7F3A").await;
        let audit = core.admin_get("/admin/v1/audit?limit=10").await.expect(200).text();
        assert!(audit.contains("codes_read"), "{audit}");
        page.close().await;
    });
}
