//! What the page says to each answer, in both languages.

use futures_util::future::join_all;
use serde_json::json;
use support::times::from_now;

use super::{
    BUTTON, CODE, PHASE, SAYS, give_back, in_browser, is_said, limits, page_world, press_anyway, text, user,
    visit,
};

#[test]
fn every_refusal_is_in_words_of_both_languages() {
    in_browser("every_refusal_is_in_words_of_both_languages", async {
        let world = page_world().await;
        world.core.create("page-paused", limits()).await;
        let _ = world.core.set_admin_state("page-paused", "pause").await.expect(200);
        world.core.create("page-ended", limits()).await;
        let _ = world.core.set_admin_state("page-ended", "end").await.expect(200);
        world.core.create("page-sold-out", json!({"total": 1})).await;
        let _ = world.core.claim("page-sold-out", "winner", "k").await.expect(201);
        for (campaign, english, chinese) in [
            ("page-paused", "Paused for now", "暂停领取"),
            ("page-ended", "It is over", "活动已结束"),
            ("page-sold-out", "All taken", "已领完"),
            ("page-none", "No such campaign", "没有这个活动"),
        ] {
            let page = visit(&world, campaign, "").await;
            page.until("document.getElementById('message').textContent", english).await;
            assert_eq!(page.eval(BUTTON).await, true, "{campaign}");
            page.picture(&format!("6-{campaign}")).await;
            page.press("#lang").await;
            assert_eq!(text(&page, "message").await, chinese);
            assert_eq!(page.eval("document.documentElement.lang").await, "zh-CN");
            page.picture(&format!("6-{campaign}-zh")).await;
            page.close().await;
        }
    });
}

#[test]
fn a_refusal_after_the_press_is_in_words_too() {
    in_browser("a_refusal_after_the_press_is_in_words_too", async {
        let world = page_world().await;
        world.core.create("page-daily", limits()).await;
        world.core.create("page-last", json!({"total": 1})).await;
        for (campaign, code, english, chinese) in [
            ("page-daily", "user_daily_limit_reached", "That is all for today", "今天已领完"),
            ("page-last", "sold_out", "All taken", "已领完"),
        ] {
            let page = visit(&world, campaign, "").await;
            page.until(BUTTON, false).await;
            let taker = if campaign == "page-daily" { user(&page).await } else { "another-user".to_owned() };
            let _ = world.core.claim(campaign, &taker, "elsewhere").await.expect(201);
            press_anyway(&page).await; // it may have looked up meanwhile that there is nothing to claim
            page.until("document.getElementById('result').dataset.code", code).await;
            assert_eq!(text(&page, "message").await, english);
            page.picture(&format!("7-{campaign}")).await;
            page.press("#lang").await;
            assert_eq!(text(&page, "message").await, chinese);
            page.picture(&format!("7-{campaign}-zh")).await;
            page.reload().await;
            if campaign == "page-daily" {
                page.until(PHASE, "won").await; // the claim that was made elsewhere
                page.until("/今天已领完/.test(document.getElementById('left').textContent)", true).await;
            } else {
                page.until(BUTTON, true).await;
            }
            assert_eq!(world.core.sql().until(campaign, 1).await.len(), 1);
            page.close().await;
        }
    });
}

#[test]
fn rules_that_refuse_are_in_words_of_both_languages() {
    in_browser("rules_that_refuse_are_in_words_of_both_languages", async {
        let world = page_world().await;
        let core = &world.core;
        core.create_with(
            json!({"id": "page-soon", "name": "Soon", "starts_at": from_now(9000), "limits": limits()}),
        )
        .await;
        core.create("page-halted", limits()).await;
        let _ = core.set_admin_state("page-halted", "pause").await.expect(200);
        core.create("page-over", limits()).await;
        let _ = core.set_admin_state("page-over", "end").await.expect(200);
        core.create("page-full", json!({"total": 10, "per_user": 1})).await;
        core.create("page-gifts", limits()).await;
        let page = visit(&world, "page-gifts", "").await;
        page.until(BUTTON, false).await;
        let _ = core.claim("page-full", &user(&page).await, "elsewhere").await.expect(201);
        for (campaign, state, code, english, chinese) in [
            ("page-soon", "scheduled", "not_started", "Not open yet", "尚未开始"),
            ("page-halted", "paused", "paused", "Paused for now", "暂停领取"),
            ("page-over", "ended", "ended", "It is over", "活动已结束"),
            ("page-full", "open", "user_limit_reached", "You have your full share", "您已领满"),
        ] {
            page.goto(&world.edge.url(&format!("/?campaign={campaign}"))).await;
            page.until(PHASE, state).await;
            press_anyway(&page).await;
            is_said(&page, code, english, chinese).await;
            page.picture(&format!("7-{campaign}")).await;
            assert_eq!(page.eval(BUTTON).await, true, "{campaign}");
        }
        page.goto(&world.edge.url("/?campaign=page-gifts#token=not.a.token")).await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        is_said(&page, "unauthenticated", "Please sign in first", "请先登录").await;
        page.picture("7-unauthenticated").await;
        page.close().await;
    });
}

#[test]
fn who_is_too_fast_is_told_how_long_to_wait() {
    in_browser("who_is_too_fast_is_told_how_long_to_wait", async {
        let world = page_world().await;
        world.core.create("page-fast", json!({"total": 10, "per_user": 1})).await;
        let page = visit(&world, "page-fast", "").await;
        page.until(BUTTON, false).await;
        let user = user(&page).await;
        let _ = world.core.claim("page-fast", &user, "elsewhere").await.expect(201);
        // Once more when the limiter has just begun to count afresh.
        for _ in 0..3 {
            let many = (0..25).map(|n| {
                let request =
                    world.claim_request("page-fast", &user).header("CF-Connecting-IP", "192.0.2.77");
                world.send(request.header("Idempotency-Key", format!("k-{n}")))
            });
            if !join_all(many).await.iter().any(|reply| reply.status == 429) {
                continue;
            }
            press_anyway(&page).await;
            page.until(&format!("{CODE} !== ''"), true).await;
            if page.eval(CODE).await == "rate_limited" {
                break;
            }
        }
        is_said(&page, "rate_limited", "A little too fast", "操作太快了").await;
        assert_eq!(page.eval(PHASE).await, "retrying", "it waits as long as it is told, then asks by itself");
        page.until(CODE, "user_limit_reached").await;
        page.close().await;
    });
}

#[test]
fn a_claim_that_stands_no_more_is_said_so() {
    in_browser("a_claim_that_stands_no_more_is_said_so", async {
        let world = page_world().await;
        world.core.create("page-returned", limits()).await;
        let rules = json!({"id": "page-held", "name": "Held", "starts_at": from_now(-60), "limits": limits(), "hold_seconds": 8});
        world.core.create_with(rules).await;
        let page = visit(&world, "page-held", "").await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        is_said(&page, "held", "Reserved for you", "已为您保留").await;
        page.picture("3-held").await;
        is_said(&page, "claim_expired", "The reservation ran out", "保留已过期").await;
        page.picture("7-expired").await;

        page.goto(&world.edge.url("/?campaign=page-returned")).await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        give_back(&world, &text(&page, "claim-id").await).await;
        page.reload().await;
        is_said(&page, "claim_returned", "This claim was given back", "这份已退回").await;
        page.close().await;
    });
}

#[test]
fn rare_answers_are_in_words_too() {
    in_browser("rare_answers_are_in_words_too", async {
        let world = page_world().await;
        world.core.create("page-rare", limits()).await;
        let page = visit(&world, "page-rare", "").await;
        let keys = "import('/messages.js').then(({ languages: { en, zh } }) => ";
        let shape = "words => Object.entries(words).map(([key, text]) => [key, Array.isArray(text) ? text.length : 0])";
        let pair = page.eval(&format!("{keys}[en, zh].map({shape}))")).await;
        assert_eq!(pair[0], pair[1], "both languages say the same");
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SAYS})).await;
        for (status, code, may_ask_again) in [
            (409, "sold_out", false),
            (409, "claim_revoked", true),
            (403, "forbidden", false),
            (400, "invalid_request", false),
            (408, "request_timeout", true),
            (429, "rate_limited", true),
            (503, "campaign_not_ready", true),
            (503, "overloaded", true),
            (503, "unavailable", true),
            (418, "unheard_of", false),
        ] {
            page.eval("localStorage.clear()").await;
            let query = format!("/?campaign=page-rare&says={code}&status={status}");
            page.goto(&world.edge.url(&query)).await;
            page.until(BUTTON, false).await;
            page.press("#claim").await;
            let words =
                page.eval(&format!("{keys}[en, zh].map(words => (words.{code} ?? words.problem)[0]))")).await;
            is_said(&page, code, words[0].as_str().unwrap(), words[1].as_str().unwrap()).await;
            assert_eq!(page.eval("!document.getElementById('again').hidden").await, may_ask_again, "{code}");
        }
        page.picture("7-unheard-of").await;
        page.close().await;
    });
}
