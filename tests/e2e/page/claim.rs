//! A claim on the page from before the campaign opens to the result, and again after lost answers, reloads and resends.

use std::time::Duration;

use serde_json::json;
use support::browser::{Browser, PHONE};
use support::lossy_proxy::LossyProxy;
use support::times::{from_now, ms, now_ms};

use super::{BUTTON, PHASE, in_browser, limits, page_world, text, user, visit};

#[test]
fn it_opens_by_itself_and_the_claim_stays_the_same() {
    in_browser("it_opens_by_itself_and_the_claim_stays_the_same", async {
        let world = page_world().await;
        let page = Browser::open("page-opens", PHONE).await;
        let starts_at = from_now(12);
        let rules = json!({"id": "page-opens", "name": "Launch day", "starts_at": starts_at, "ends_at": from_now(9000),
            "time_zone": "Asia/Shanghai", "limits": limits()});
        world.core.create_with(rules).await;
        // The page's first look at the server's clock is to be a quick one.
        let _ = world.view("page-opens").await.expect(200);
        // A browser whose clock is an hour ahead: only the server's clock must count.
        let clock = "const real = Date.now; Date.now = () => real() + 3600000;";
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": clock})).await;
        page.goto(&world.edge.url("/?campaign=page-opens")).await;
        page.until(PHASE, "scheduled").await;
        assert_eq!(page.eval(BUTTON).await, true);
        let asked_ms = now_ms();
        let left = page.eval("+document.getElementById('countdown').dataset.seconds").await.as_i64().unwrap();
        let (most_ms, least_ms) = (ms(&starts_at) - asked_ms, ms(&starts_at) - now_ms());
        assert!((least_ms - 1500..=most_ms + 1500).contains(&(left * 1000)), "{left} s left");
        page.picture("1-before").await;
        page.until(BUTTON, false).await;
        // To half of the slowest answer the page knows the server's clock; who is a blink early asks once more.
        assert!(now_ms() + 250 > ms(&starts_at), "open {} ms too early", ms(&starts_at) - now_ms());
        assert_eq!(page.eval(PHASE).await, "open");
        page.picture("2-open").await;

        page.press("#claim").await;
        page.until(PHASE, "won").await;
        let row = world.core.sql().until("page-opens", 1).await.remove(0);
        assert_eq!(
            (text(&page, "sequence").await, text(&page, "claim-id").await),
            ("1".to_owned(), row.id.clone())
        );
        assert_eq!(row.user_id, user(&page).await);
        page.until("document.getElementById('remaining').textContent", "99").await;
        page.picture("3-claimed").await;
        page.press("#lang").await;
        assert_eq!(text(&page, "message").await, "领取成功");
        page.picture("4-claimed-zh").await;

        page.reload().await;
        page.until(PHASE, "won").await;
        assert_eq!(text(&page, "claim-id").await, row.id);
        assert_eq!(world.core.sql().claims("page-opens").await.len(), 1);
        page.close().await;
    });
}

#[test]
fn a_claim_whose_answer_was_lost_is_asked_for_until_it_is_known() {
    in_browser("a_claim_whose_answer_was_lost_is_asked_for_until_it_is_known", async {
        let mut world = page_world().await;
        world.core.create("page-lost", limits()).await;
        let page = visit(&world, "page-lost", "").await;
        page.until(BUTTON, false).await;
        world.proxy.lose_all_answers(true);
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        page.picture("5-asking-again").await;
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
fn a_reload_while_the_outcome_is_unknown_is_the_same_claim() {
    in_browser("a_reload_while_the_outcome_is_unknown_is_the_same_claim", async {
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
fn a_request_that_the_browser_itself_sent_twice_is_no_first_try() {
    in_browser("a_request_that_the_browser_itself_sent_twice_is_no_first_try", async {
        let world = page_world().await;
        world.core.create("page-twice", json!({"total": 1})).await;
        let front = LossyProxy::to(world.edge.listen);
        front.hold_before_losing(Duration::from_millis(500));
        let page = Browser::open("page-twice", PHONE).await;
        page.goto(&format!("http://{}/?campaign=page-twice", front.listen)).await;
        page.until(BUTTON, false).await;
        front.lose_answers(1);
        page.press("#claim").await;
        // Granted, and known to be sold out, before the browser finds its connection cut and sends the same again.
        world.until_seen("page-twice", "sold_out").await;
        // Others go on looking, so that the edge goes on knowing.
        let looking = async {
            loop {
                world.until_seen("page-twice", "sold_out").await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = looking => {}
            () = page.until("document.getElementById('result').dataset.code", "replayed") => {}
        }
        let mut claims = front.said("/v1/campaigns/page-twice/claims");
        claims.retain(|text| text.starts_with("POST "));
        let marked =
            claims.iter().filter(|text| text.to_lowercase().contains("claimgate-attempt: 1")).count();
        assert_eq!(
            (claims.len(), marked),
            (3, 2),
            "the copy carries the mark, the page's own retry does not"
        );
        assert_eq!(world.core.sql().until("page-twice", 1).await[0].id, text(&page, "claim-id").await);
        page.close().await;
    });
}
