//! Claims on the page, from before the campaign opens to the result, with lost responses, reloads and resends.

use std::time::Duration;

use serde_json::json;
use support::browser::{Browser, PHONE};
use support::edge::World;
use support::lossy_proxy::LossyProxy;
use support::times::{from_now, ms, now_ms, zone_far_from_midnight};
use support::wait::holds;
use support::{SOON, eventually};

use super::{BUTTON, PHASE, in_browser, limits, page_world, text, user, visit};

/// Shows a campaign that opens in an hour, in a browser whose clock is already there: only the server's clock must
/// count. Returns the page and the opening.
async fn scheduled_page(world: &World, campaign: &str) -> (Browser, String) {
    let page = Browser::open(campaign, PHONE).await;
    let starts_at = from_now(3600);
    let rules = json!({"id": campaign, "name": "Launch day", "starts_at": starts_at, "ends_at": from_now(9000),
        "time_zone": zone_far_from_midnight(), "limits": limits()});
    world.core.create_with(rules).await;
    // Warm the edge's cache, so that the page reads the server's clock quickly.
    let _ = world.view(campaign).await.expect(200);
    let clock = "const real = Date.now; Date.now = () => real() + 3600000;";
    page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": clock})).await;
    page.goto(&world.edge.url(&format!("/?campaign={campaign}"))).await;
    page.until(PHASE, "scheduled").await;
    assert_eq!(page.eval(BUTTON).await, true);
    (page, starts_at)
}

#[test]
fn the_page_opens_on_time() {
    in_browser("the_page_opens_on_time", async {
        let world = page_world().await;
        let (page, _) = scheduled_page(&world, "page-on-time").await;
        let starts_at = from_now(12); // real time: the browser waits for it
        world.core.patch("page-on-time", json!({"starts_at": starts_at})).await.expect(200);
        page.until(BUTTON, false).await;
        // The page estimates the server's clock with an error of up to half a round trip. A slightly early
        // claim is retried.
        assert!(now_ms() + 250 > ms(&starts_at), "open {} ms too early", ms(&starts_at) - now_ms());
        assert_eq!(page.eval(PHASE).await, "open");
        page.close().await;
    });
}

#[test]
fn a_reload_keeps_a_claim_made_after_the_opening() {
    in_browser("a_reload_keeps_a_claim_made_after_the_opening", async {
        let world = page_world().await;
        let (page, starts_at) = scheduled_page(&world, "page-opens").await;
        // A stalled page shows an old number for a moment.
        eventually(SOON, || async {
            let asked_ms = now_ms();
            let left = page.eval("+document.getElementById('countdown').dataset.seconds").await;
            let left_ms = left.as_i64().unwrap() * 1000;
            let (most_ms, least_ms) = (ms(&starts_at) - asked_ms, ms(&starts_at) - now_ms());
            holds((least_ms - 1500..=most_ms + 1500).contains(&left_ms), || format!("{left_ms} ms left"))
        })
        .await;
        page.check_layout("1-before").await;
        world.core.patch("page-opens", json!({"starts_at": from_now(-1)})).await.expect(200);
        page.until(BUTTON, false).await;
        assert_eq!(page.eval(PHASE).await, "open");
        page.check_layout("2-open").await;

        page.press("#claim").await;
        page.until(PHASE, "won").await;
        let row = world.core.sql().until("page-opens", 1).await.remove(0);
        assert_eq!(
            (text(&page, "sequence").await, text(&page, "claim-id").await),
            ("1".to_owned(), row.id.clone())
        );
        assert_eq!(row.user_id, user(&page).await);
        page.until("document.getElementById('remaining').textContent", "99").await;
        page.check_layout("3-claimed").await;
        page.press("#lang").await;
        assert_eq!(text(&page, "message").await, "领取成功");
        page.check_layout("4-claimed-zh").await;

        page.reload().await;
        page.until(PHASE, "won").await;
        assert_eq!(text(&page, "claim-id").await, row.id);
        assert_eq!(world.core.sql().claims("page-opens").await.len(), 1);
        page.close().await;
    });
}

#[test]
fn a_claim_with_a_lost_answer_is_retried_until_known() {
    in_browser("a_claim_with_a_lost_answer_is_retried_until_known", async {
        let mut world = page_world().await;
        world.core.create("page-lost", limits()).await;
        let page = visit(&world, "page-lost", "").await;
        page.until(BUTTON, false).await;
        world.proxy.lose_all_answers(true);
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        page.check_layout("5-asking-again").await;
        world.core.kill();
        world.restart_core().await;
        world.proxy.lose_all_answers(false);
        page.until(PHASE, "won").await;
        let rows = world.core.sql().until("page-lost", 1).await;
        assert_eq!((rows.len(), text(&page, "claim-id").await), (1, rows[0].id.clone()));
        page.close().await;
    });
}

#[test]
fn a_page_reload_resends_a_claim_with_unknown_outcome() {
    in_browser("a_page_reload_resends_a_claim_with_unknown_outcome", async {
        let world = page_world().await;
        world.core.create("page-reload", limits()).await;
        let page = visit(&world, "page-reload", "").await;
        page.until(BUTTON, false).await;
        world.proxy.lose_all_answers(true);
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        page.reload().await;
        world.proxy.lose_all_answers(false);
        page.until(PHASE, "won").await;
        let rows = world.core.sql().until("page-reload", 1).await;
        assert_eq!((rows.len(), text(&page, "claim-id").await), (1, rows[0].id.clone()));
        page.close().await;
    });
}

#[test]
fn a_request_resent_by_the_browser_is_not_a_first_try() {
    in_browser("a_request_resent_by_the_browser_is_not_a_first_try", async {
        let world = page_world().await;
        world.core.create("page-twice", json!({"total": 1})).await;
        let front = LossyProxy::to(world.edge.listen);
        // Time until the edge shows the sale as sold out; less than the 6 s after which the page retries.
        front.hold_before_losing(Duration::from_secs(4));
        let page = Browser::open("page-twice", PHONE).await;
        page.goto(&format!("http://{}/?campaign=page-twice", front.listen)).await;
        page.until(BUTTON, false).await;
        // The page also requests its token with a POST.
        page.until("sessionStorage['claimgate:token']?.length > 9", true).await;
        front.lose_answers(1);
        page.press("#claim").await;
        // Before the browser resends the request, the claim is granted and the edge's cache has the campaign
        // as sold out.
        world.until_edge_shows("page-twice", "sold_out").await;
        // Keep viewing the campaign, so that the edge keeps its cached state.
        let looking = async {
            loop {
                world.until_edge_shows("page-twice", "sold_out").await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = looking => {}
            () = page.until("document.getElementById('result').dataset.code", "replayed") => {}
        }
        let mut claims = front.requests_with("/v1/campaigns/page-twice/claims");
        claims.retain(|text| text.starts_with("POST "));
        let marked =
            claims.iter().filter(|text| text.to_lowercase().contains("claimgate-attempt: 1")).count();
        assert_eq!(
            (claims.len(), marked),
            (3, 2),
            "the browser's copy has the mark, the page's own retry does not"
        );
        assert_eq!(world.core.sql().until("page-twice", 1).await[0].id, text(&page, "claim-id").await);
        page.close().await;
    });
}
