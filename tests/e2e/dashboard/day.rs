//! A seller's day on the dashboard: from a new campaign with codes to its archive, by an admin and an operator.

use serde_json::json;
use support::browser::Browser;

use super::{OPERATOR, VIEWER, in_browser, with_roles};
use crate::dashboard::claims::{KEEP_FILE, search};
use crate::dashboard::codes::{add_codes, open_codes};
use crate::dashboard::form::{press, save, set};
use crate::dashboard::page::{sign_in, visit};

const DONE: &str = "document.getElementById('done').textContent";
const LEFT: &str = "document.querySelector('[data-id=tickets] .left b')?.textContent";
const STATE: &str = "document.querySelector('[data-id=tickets] .state')?.textContent";

async fn change_role(page: &Browser, token: &str) {
    page.press("#sign-out").await;
    sign_in(page, token).await;
    page.until(STATE, "Sold out").await;
}

/// Presses a button of the campaign, answers the dialog's question, and waits until it is done.
async fn ask(page: &Browser, verb: &str, answer: &str, done: &str) {
    let button = format!("[data-id=tickets] .{verb}");
    page.until(&format!("document.querySelector('{button}')?.checkVisibility()"), true).await;
    page.press(&button).await;
    page.until("document.getElementById('ask').open", true).await;
    page.eval(&format!("document.getElementById('ask-input').value = '{answer}'")).await;
    page.press("#ask-send").await;
    page.until(DONE, done).await;
}

#[test]
fn a_seller_spends_a_day_on_the_dashboard() {
    in_browser("a_seller_spends_a_day_on_the_dashboard", async {
        let core = with_roles().with("CLAIMGATE_PAGE_URL", "https://tickets.example.com").start().await;
        let page = visit(&core, "dashboard-day").await;
        sign_in(&page, &core.admin_token()).await;
        press(&page, "#new").await;
        set(&page, "id", "tickets").await;
        set(&page, "name", "Tickets").await;
        page.press("#edit-codes").await;
        save(&page).await;
        page.until(DONE, "“Tickets” is created.").await;
        let codes: Vec<_> = (0..40).map(|number| format!("SEAT-{number:02}")).collect();
        open_codes(&page, "tickets").await;
        add_codes(&page, &codes.join("\n"), "Codes added: 40. Already there: 0.").await;
        page.press("#codes-close").await;
        press(&page, "[data-id=tickets] .edit").await;
        set(&page, "limits-total", "20").await;
        save(&page).await;
        page.until(DONE, "“Tickets” is changed.").await;
        let link = "document.querySelector('[data-id=tickets] a').href";
        assert_eq!(page.eval(link).await, "https://tickets.example.com/?campaign=tickets");

        for user in 0..25 {
            let reply = core.claim("tickets", &format!("user-{user}"), "k").await;
            assert_eq!(reply.status, if user < 20 { 201 } else { 409 });
        }
        page.until(STATE, "Sold out").await;
        change_role(&page, VIEWER).await;
        let buttons = "document.querySelectorAll('[data-id=tickets] .actions button:not([hidden])').length";
        assert_eq!(page.eval(buttons).await, 0, "a viewer only reads");
        change_role(&page, OPERATOR).await;
        ask(&page, "add", "5", "The total of “Tickets” is now 25.").await;
        page.until(LEFT, "5").await;
        core.redis().await.relayed("tickets", support::SOON).await;
        page.press("[data-id=tickets] .claims").await;
        search(&page, "user-7").await;
        page.until("document.querySelectorAll('#claims-rows .return').length", 1).await;
        page.press("#claims-rows .return").await;
        page.eval("document.getElementById('ask-input').value = 'Bought twice'").await;
        page.press("#ask-send").await;
        let notice = "document.getElementById('claims-problem').textContent";
        page.until(notice, "The claim of “user-7” is returned.").await;
        search(&page, "").await;
        page.until("document.querySelectorAll('#claims-rows tr').length", 20).await;
        page.eval(KEEP_FILE).await;
        page.press("#claims-csv").await;
        page.until("window.saved?.match(/user-/g).length > 0", true).await;
        page.press("#claims-close").await;
        page.until(LEFT, "6").await;

        page.press("#sign-out").await;
        sign_in(&page, &core.admin_token()).await;
        page.until(LEFT, "6").await;
        ask(&page, "end", "tickets", "“Tickets” has ended.").await;
        page.until(STATE, "Ended").await;
        ask(&page, "archive", "", "“Tickets” is archived.").await;
        page.until("document.querySelectorAll('#rows tr').length", 0).await;
        assert_eq!(core.admin_get("/admin/v1/campaigns/tickets").await.json()["taken"], json!(19));
        page.close().await;
    });
}
