//! The report on a campaign's demand in the dashboard's page.

use serde_json::json;
use support::browser::{DESKTOP, TOO_FAINT};
use support::signing::Signed;
use support::times::now_ms;
use support::wait::holds;
use support::{Core, SOON, eventually};

use super::{VIEWER, in_browser, with_roles};
use crate::dashboard::page::{sign_in, visit};
use crate::report::report;

const OPEN: &str = "document.getElementById('report').open";
const PROBLEM: &str = "document.getElementById('report-problem').textContent";
const PAGE: &str = "document.querySelector('#report-body > div')?.shadowRoot.querySelector('main')";

/// Starts a core on which a campaign was sold out over half an hour, with refusals of an edge that rise and
/// fall. Core also counts each 503 as a refusal, so another core is started if a claim was repeated.
async fn sale() -> Core {
    for _ in 0..5 {
        let core = with_roles().start().await;
        if sell_out(&core).await == 0 {
            refuse_at_edge(&core).await;
            return core;
        }
    }
    panic!("calls were repeated on each of five cores");
}

/// Makes the claims, and returns the number of repeated ones.
async fn sell_out(core: &Core) -> u32 {
    core.create("tickets", json!({"total": 40})).await;
    let mut repeats = 0;
    for n in 0..40 {
        repeats += core.claim("tickets", &format!("u{n}"), "k").await.expect(201).repeats;
    }
    for n in 0..12 {
        let reply = core.claim("tickets", &format!("late{n}"), "k").await;
        repeats += reply.refused(409, "sold_out").repeats;
    }
    repeats
}

/// Reports the edge's refusals, and waits until the report is complete.
async fn refuse_at_edge(core: &Core) {
    for minute in 0..30_u32 {
        let at_s = now_ms() / 1_000 - i64::from(30 - minute) * 60;
        let count = 40 * (15 - minute.abs_diff(15)) + 5;
        let refusals = [("sold_out", count), ("rate_limited", count / 3)].map(|(reason, count)| {
            json!({"campaign_id": "tickets", "reason": reason, "at_s": at_s, "count": count})
        });
        let body = json!({"reporter": "isolate", "number": minute, "refusals": refusals});
        Signed::report(&core.data_file("edge.key"), &body).send(core).await.expect(200);
    }
    core.sql().until("tickets", 40).await;
    eventually(SOON, || async {
        let reported = report(core, "tickets").await;
        holds(reported["refusals"]["at_core"] == 12, || reported["refusals"].to_string())
    })
    .await;
}

#[test]
fn a_viewer_opens_a_campaigns_report_and_saves_it() {
    in_browser("a_viewer_opens_a_campaigns_report_and_saves_it", async {
        let core = sale().await;
        let page = visit(&core, "dashboard-report").await;
        sign_in(&page, VIEWER).await;
        page.until("document.querySelector('[data-id=tickets] .report')?.textContent", "Report").await;
        page.press("[data-id=tickets] .report").await;
        page.until(OPEN, true).await;
        page.until(&format!("{PAGE}?.querySelectorAll('svg.time').length"), 2).await;
        let text = page.eval(&format!("{PAGE}.innerText")).await;
        for part in ["Sold out", "rate_limited", "The busiest minutes", "refused at the edge"] {
            assert!(text.as_str().unwrap().contains(part), "{part} is not in {text}");
        }
        // The page has its own style, despite the policy against inline styles.
        let width =
            page.eval(&format!("{PAGE}.querySelector('svg.time').getBoundingClientRect().height")).await;
        assert!(width.as_f64().unwrap() > 100.0, "the chart is {width} pixels high");
        let fill = page.eval(&format!("getComputedStyle({PAGE}.querySelector('rect.denied')).fill")).await;
        assert_eq!(fill, "rgb(91, 123, 176)");
        assert_eq!(page.eval(TOO_FAINT).await, json!([]));
        page.screenshot("dashboard/report-desktop").await;
        page.resize((360, 800)).await;
        let wide = page.eval("document.scrollingElement.scrollWidth - innerWidth").await;
        assert!(wide.as_i64().unwrap() <= 0, "{wide} pixels too wide");
        page.screenshot("dashboard/report-phone").await;
        page.resize(DESKTOP).await;
        // Saved files are the same forms that the API returns.
        page.eval("HTMLAnchorElement.prototype.click = function () { window.saved = this.download; }").await;
        for kind in ["csv", "json", "html"] {
            page.press(&format!("#report-{kind}")).await;
            page.until("window.saved", format!("tickets.{kind}")).await;
        }
        assert_eq!(page.eval(PROBLEM).await, "");
        page.press("#report-close").await;
        page.until(OPEN, false).await;
        page.close().await;
    });
}
