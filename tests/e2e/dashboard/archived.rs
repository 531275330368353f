//! An ended campaign is archived on the dashboard, and found by its id.

use serde_json::json;

use super::{OPERATOR, in_browser, with_roles};
use crate::dashboard::page::{sign_in, visit};

const DONE: &str = "document.getElementById('done').textContent";

/// Returns an expression for whether a link of the campaign `sale` is shown.
fn is_shown(link: &str) -> String {
    format!("document.querySelector('[data-id=sale] .{link}')?.checkVisibility()")
}

#[test]
fn an_admin_archives_a_campaign_that_is_over() {
    in_browser("an_admin_archives_a_campaign_that_is_over", async {
        let core = with_roles().start().await;
        for id in ["sale", "other"] {
            core.create(id, json!({"total": 5})).await;
        }
        let page = visit(&core, "dashboard-archive").await;
        sign_in(&page, &core.admin_token()).await;
        page.until(&is_shown("archive"), false).await; // it is open
        core.set_admin_state("sale", "end").await.expect(200);
        page.until(&is_shown("archive"), true).await;
        page.press("#sign-out").await;
        sign_in(&page, OPERATOR).await;
        page.until(&is_shown("archive"), false).await;
        page.press("#sign-out").await;

        sign_in(&page, &core.admin_token()).await;
        page.until(&is_shown("archive"), true).await;
        page.press("[data-id=sale] .archive").await;
        page.until("document.getElementById('ask').open", true).await;
        page.press("#ask-send").await;
        page.until(DONE, "“sale” is archived.").await;
        let rows = "[...document.querySelectorAll('#rows tr')].map((row) => row.dataset.id)";
        page.until(rows, json!(["other"])).await;

        page.press("#find").await;
        for key in "sale".chars() {
            page.key(key).await;
        }
        let note =
            "document.querySelector('[data-id=sale] .state + small')?.textContent.startsWith('archived')";
        page.until(note, true).await;
        assert_eq!(page.eval(&is_shown("archive")).await, false);
        page.press("[data-id=sale] .unarchive").await;
        page.until("document.getElementById('ask').open", true).await;
        page.press("#ask-send").await;
        page.until(DONE, "“sale” is no longer archived.").await;
        page.until(&is_shown("archive"), true).await;
        page.close().await;
    });
}
