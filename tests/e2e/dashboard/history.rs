//! The history of a campaign in the dashboard's page: what was added, and what else was changed.

use serde_json::json;
use support::browser::{DESKTOP, TOO_FAINT};

use super::{VIEWER, in_browser, with_roles};
use crate::dashboard::page::{sign_in, visit};

const LINES: &str = "[...document.querySelectorAll('#history-items li')].map((line) => line.innerText.replace(/^.*? admin /, ''))";
const SUMS: &str = "document.getElementById('history-sums').textContent";

/// Script that gives each page of the audit a next page.
const NEVER_END: &str = "(() => {
    const real = fetch;
    window.fetch = async (url, options) => {
        const reply = await real(url, options);
        if (!url.startsWith('/admin/v1/audit?')) return reply;
        return Response.json({ ...await reply.json(), next_cursor: '0' });
    };
})()";

#[test]
fn the_history_shows_what_was_added_and_changed() {
    in_browser("the_history_shows_what_was_added_and_changed", async {
        let core = with_roles().start().await;
        core.create("sale", json!({"total": 10})).await;
        for (units, key) in [(1500, "a"), (-10, "b")] {
            let body = json!({"units": units, "idempotency_key": key});
            core.admin(reqwest::Method::POST, "/admin/v1/campaigns/sale/add", &body).await.expect(200);
        }
        let change = json!({"limits": {"total": 2000, "per_user": 3}, "hold_seconds": 3600});
        core.patch("sale", change).await.expect(200);
        for ends_at in ["2098-12-31T23:59:59Z", "2099-12-31T23:59:59Z", "2099-12-31T23:59:59.999Z"] {
            core.patch("sale", json!({"ends_at": ends_at})).await.expect(200);
        }
        core.set_admin_state("sale", "pause").await.expect(200);
        // A claim's changes are not among the campaign's own.
        core.set_admin_state("sale", "resume").await.expect(200);
        let claim = core.claim("sale", "ann", "k").await.expect(201).json();
        core.transition(claim["claim"]["id"].as_str().unwrap(), "return").await.expect(200);
        core.redis().await.relayed("sale", support::SOON).await;

        let page = visit(&core, "dashboard-history").await;
        sign_in(&page, VIEWER).await;
        page.until("document.querySelector('[data-id=sale] .history')?.textContent", "History").await;
        page.press("[data-id=sale] .history").await;
        page.until(&format!("{LINES}.length"), 9).await;
        let ends = page.eval(&format!("{LINES}.flatMap((line) => line.match(/Ends: .*/) ?? [])")).await;
        let ends: Vec<_> = ends.as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        for line in &ends {
            let (before, after) = line.trim_start_matches("Ends: ").split_once(" → ").unwrap();
            assert_ne!(before, after);
        }
        let lines = [
            "resumed sale",
            "paused sale",
            &format!("changed sale\n{}", ends[0]),
            &format!("changed sale\n{}", ends[1]),
            &format!("changed sale\n{}", ends[2]),
            "changed sale\nTotal units: 1,500 → 2,000\nUnits per person: none → 3\nHold in seconds: none → 3,600",
            "removed 10 units: the total is 1,500",
            "added 1,500 units: the total is 1,510",
            "created sale",
        ];
        page.until(LINES, json!(lines)).await;
        let sums = "Total at the start: 10. Added since: 2,000. Removed: 10. Total now: 2,000.";
        assert_eq!(page.eval(SUMS).await, sums);
        for (size, name) in [((360, 800), "phone"), (DESKTOP, "desktop")] {
            page.resize(size).await;
            let wide = page.eval("document.scrollingElement.scrollWidth - innerWidth").await;
            assert!(wide.as_i64().unwrap() <= 0, "{wide} pixels too wide");
            assert_eq!(page.eval(TOO_FAINT).await, json!([]));
            page.screenshot(&format!("dashboard/history-{name}")).await;
        }
        page.assert_accessible("the history").await;
        page.press("#history-close").await;
        page.until("document.getElementById('history').open", false).await;

        // After the newest changes were cut off, the sums are unknown.
        page.eval(NEVER_END).await;
        page.press("[data-id=sale] .history").await;
        let problem = "document.getElementById('history-problem').textContent";
        page.until(problem, "Only the oldest 45 changes are shown.").await;
        assert_eq!(page.eval(SUMS).await, "");
        page.close().await;
    });
}
