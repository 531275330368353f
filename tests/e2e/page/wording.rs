//! The page's message for each response, in both languages.

use std::time::Instant;

use futures_util::future::join_all;
use serde_json::json;
use support::browser::Browser;
use support::clocked::ClockedCore;
use support::edge::{Runtime, World};
use support::times::from_now;
use support::{CoreOptions, SOON};

use super::{
    BUTTON, CODE, FAKE_ANSWERS, PHASE, STATE, assert_message, in_browser, limits, page_world, press_anyway,
    return_claim, text, until_an_hour_later, user, visit, visit_on_clock,
};

#[test]
fn states_that_allow_no_claim_are_worded_in_both_languages() {
    in_browser("states_that_allow_no_claim_are_worded_in_both_languages", async {
        let world = page_world().await;
        world.core.create("page-paused", limits()).await;
        let _ = world.core.set_admin_state("page-paused", "pause").await.expect(200);
        world.core.create("page-ended", limits()).await;
        let _ = world.core.set_admin_state("page-ended", "end").await.expect(200);
        world.core.create("page-sold-out", json!({"total": 1})).await;
        let _ = world.core.claim("page-sold-out", "winner", "k").await.expect(201);
        for (campaign, id, english, chinese) in [
            ("page-paused", "state", "Paused for now", "暂停领取"),
            ("page-ended", "state", "This campaign has ended", "活动已结束"),
            ("page-sold-out", "state", "All taken", "已领完"),
            ("page-none", "message", "No such campaign", "活动不存在"),
        ] {
            let page = visit(&world, campaign, "").await;
            page.until(&format!("document.getElementById('{id}').textContent"), english).await;
            assert_eq!(page.eval(BUTTON).await, true, "{campaign}");
            assert_shown_once(&page, english).await;
            page.check_layout(&format!("6-{campaign}")).await;
            page.press("#lang").await;
            assert_shown_once(&page, chinese).await;
            assert_eq!(page.eval("document.documentElement.lang").await, "zh-CN");
            page.check_layout(&format!("6-{campaign}-zh")).await;
            page.close().await;
        }
    });
}

/// Checks that the visible text contains `words` exactly once.
async fn assert_shown_once(page: &Browser, words: &str) {
    let seen = page.eval("document.body.innerText").await.as_str().unwrap().to_owned();
    assert_eq!(seen.matches(words).count(), 1, "{words} in {seen}");
}

#[test]
fn an_ended_campaign_offers_no_action() {
    in_browser("an_ended_campaign_offers_no_action", async {
        let world = page_world().await;
        let rules = json!({"id": "page-closed", "name": "Closed", "starts_at": from_now(-60), "ends_at": from_now(-10),
            "limits": {"total": 10}});
        world.core.create_with(rules).await;
        world.core.create("page-stopped", limits()).await;
        let _ = world.core.set_admin_state("page-stopped", "end").await.expect(200);
        for (campaign, detail) in
            [("page-closed", "Closed: "), ("page-stopped", "Granted claims stay valid.")]
        {
            let page = visit(&world, campaign, "").await;
            page.until(PHASE, "ended").await;
            assert_shown_once(&page, "This campaign has ended").await;
            let seen = page.eval("document.body.innerText").await.as_str().unwrap().to_owned();
            assert!(seen.contains(detail), "{seen}");
            for offered in ["left of", "Your number", "Sign in"] {
                assert!(!seen.contains(offered), "{offered} is still offered: {seen}");
            }
            let shown = "[...document.querySelectorAll('progress, #countdown, .actions button')].filter(one => one.checkVisibility()).length";
            assert_eq!(page.eval(shown).await, 0);
            page.check_layout(&format!("6-{campaign}")).await;
            page.close().await;
        }
    });
}

#[test]
fn the_chinese_texts_are_idiomatic() {
    in_browser("the_chinese_texts_are_idiomatic", async {
        let world = page_world().await;
        let rules = json!({"id": "page-spoken", "name": "口语", "starts_at": from_now(-60), "ends_at": from_now(9000),
            "time_zone": "Asia/Shanghai", "limits": limits()}); // on any day
        world.core.create_with(rules).await;
        let page = visit(&world, "page-spoken", "&lang=zh").await;
        page.until(BUTTON, false).await;
        let stock = page.eval("document.querySelector('.stock').innerText").await;
        let stock = stock.as_str().unwrap();
        assert!(stock.contains("剩余 100 份（共 100 份）"), "{stock}");
        assert!(stock.contains("每人：每天限 1 份（上海时间） · 共 3 份"), "{stock}");
        assert!(text(&page, "when").await.ends_with("（您所在时区）"));
        let words =
            page.eval("import('/messages.js').then(({ languages: { zh } }) => JSON.stringify(zh))").await;
        let words = words.as_str().unwrap();
        for wanted in ["请求编号：", "您的其他序号：", "您的请求不会丢失", "找不到这条领取记录"]
        {
            assert!(words.contains(wanted), "no {wanted}");
        }
        page.close().await;
    });
}

#[test]
fn denials_after_the_click_are_worded_in_both_languages() {
    in_browser("denials_after_the_click_are_worded_in_both_languages", async {
        let world = page_world().await;
        world.core.create("page-daily", limits()).await;
        world.core.create("page-last", json!({"total": 1})).await;
        for (campaign, code, english, chinese) in [
            ("page-daily", "user_daily_limit_reached", "You have reached today's limit", "您今天已领满"),
            ("page-last", "sold_out", "All taken", "已领完"),
        ] {
            let page = visit(&world, campaign, "").await;
            page.until(BUTTON, false).await;
            let taker = if campaign == "page-daily" { user(&page).await } else { "another-user".to_owned() };
            let _ = world.core.claim(campaign, &taker, "elsewhere").await.expect(201);
            press_anyway(&page).await; // a lookup may have disabled the button
            page.until("document.getElementById('result').dataset.code", code).await;
            assert_eq!(text(&page, "message").await, english);
            page.check_layout(&format!("7-{campaign}")).await;
            page.press("#lang").await;
            assert_eq!(text(&page, "message").await, chinese);
            page.check_layout(&format!("7-{campaign}-zh")).await;
            page.reload().await;
            if campaign == "page-daily" {
                page.until(PHASE, "won").await; // by the claim made elsewhere
                page.until("/您今天已领满/.test(document.getElementById('left').textContent)", true).await;
            } else {
                page.until(BUTTON, true).await;
            }
            assert_eq!(world.core.sql().until(campaign, 1).await.len(), 1);
            page.close().await;
        }
    });
}

#[test]
fn every_denying_rule_is_worded_in_both_languages() {
    in_browser("every_denying_rule_is_worded_in_both_languages", async {
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
            ("page-over", "ended", "ended", "This campaign has ended", "活动已结束"),
            ("page-full", "open", "user_limit_reached", "You have reached your limit", "您已领满"),
        ] {
            page.goto(&world.edge.url(&format!("/?campaign={campaign}"))).await;
            page.until(STATE, state).await;
            press_anyway(&page).await;
            assert_message(&page, code, english, chinese).await;
            page.check_layout(&format!("7-{campaign}")).await;
            assert_eq!(page.eval(BUTTON).await, true, "{campaign}");
        }
        page.goto(&world.edge.url("/?campaign=page-gifts#token=not.a.token")).await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        assert_message(&page, "unauthenticated", "Please sign in first", "请先登录").await;
        page.check_layout("7-unauthenticated").await;
        page.close().await;
    });
}

#[test]
fn a_rate_limited_claim_is_retried_after_the_wait() {
    in_browser("a_rate_limited_claim_is_retried_after_the_wait", async {
        let world = page_world().await;
        world.core.create("page-fast", json!({"total": 10, "per_user": 1})).await;
        let page = visit(&world, "page-fast", "").await;
        page.until(BUTTON, false).await;
        let user = user(&page).await;
        let _ = world.core.claim("page-fast", &user, "elsewhere").await.expect(201);
        // Repeat if the limiter allows the page's claim again after the others.
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < SOON, "the page's claim is never rate limited");
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
        assert_message(&page, "rate_limited", "Too many requests", "操作过于频繁").await;
        assert_eq!(page.eval(PHASE).await, "retrying", "the page waits for Retry-After and then retries");
        page.until(CODE, "user_limit_reached").await;
        page.close().await;
    });
}

#[test]
fn an_expired_or_returned_claim_is_shown_as_such() {
    in_browser("an_expired_or_returned_claim_is_shown_as_such", async {
        let ClockedCore { core, redis, clock } = ClockedCore::start(CoreOptions::default()).await;
        let world = World::before(core, Runtime::from_env(), "page-holding", "local", &[]).await;
        world.core.create("page-returned", limits()).await;
        let rules = json!({"id": "page-held", "name": "Held", "starts_at": from_now(-60), "limits": limits(), "hold_seconds": 3600});
        world.core.create_with(rules).await;
        let page = visit_on_clock(&world, "page-held", "").await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        assert_message(&page, "held", "Reserved for you", "已为您保留").await;
        page.check_layout("3-held").await;
        redis.move_clock(&clock, 3_600_000).await;
        until_an_hour_later(&page, CODE, "claim_expired").await;
        assert_message(&page, "claim_expired", "Your reservation has expired", "保留已过期").await;
        page.check_layout("7-expired").await;

        page.goto(&world.edge.url("/?campaign=page-returned")).await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        return_claim(&world, &text(&page, "claim-id").await).await;
        page.reload().await;
        assert_message(&page, "claim_returned", "This claim was returned", "这份已退回").await;
        page.close().await;
    });
}

#[test]
fn rare_problems_are_worded_in_both_languages() {
    in_browser("rare_problems_are_worded_in_both_languages", async {
        let world = page_world().await;
        world.core.create("page-rare", limits()).await;
        let page = visit(&world, "page-rare", "").await;
        let keys = "import('/messages.js').then(({ languages: { en, zh } }) => ";
        let shape = "words => Object.entries(words).map(([key, text]) => [key, Array.isArray(text) ? text.length : 0])";
        let pair = page.eval(&format!("{keys}[en, zh].map({shape}))")).await;
        assert_eq!(pair[0], pair[1], "both languages have the same messages");
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": FAKE_ANSWERS})).await;
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
            (503, "not_configured", true),
            (503, "user_ids_differ", true),
            (418, "unheard_of", false),
        ] {
            page.eval("localStorage.clear()").await;
            let query = format!("/?campaign=page-rare&says={code}&status={status}");
            page.goto(&world.edge.url(&query)).await;
            page.until(BUTTON, false).await;
            page.press("#claim").await;
            let words =
                page.eval(&format!("{keys}[en, zh].map(words => (words.{code} ?? words.problem)[0]))")).await;
            assert_message(&page, code, words[0].as_str().unwrap(), words[1].as_str().unwrap()).await;
            assert_eq!(page.eval("!document.getElementById('again').hidden").await, may_ask_again, "{code}");
        }
        page.check_layout("7-unheard-of").await;
        page.close().await;
    });
}
