//! A core that is newer than the edge and the page, as after "upgrade core first". Edge and page pass on
//! values that they do not recognize. The current core has no such values, so a fake server replaces it.

use serde_json::{Value, json};
use support::Reply;
use support::browser::{Browser, PHONE};
use support::edge::{Runtime, World};
use support::stand_in::{Canned, StandIn};
use support::times::from_now;
use support::wait::holds;
use support::{SOON, eventually};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::run;
use crate::page::in_browser;

/// The current edge in front of a fake core of a newer version.
struct FutureWorld {
    world: World,
    core: StandIn,
}

/// Returns the shared instance to one test at a time, because the edge counts consecutive failures.
async fn future() -> MutexGuard<'static, FutureWorld> {
    static FUTURE: OnceCell<Mutex<FutureWorld>> = OnceCell::const_new();
    let start = || async {
        // The page's visitors need tokens.
        let world = World::start(Runtime::from_env(), "edge-future", "test", &[("DEMO", "1")]).await;
        let core = StandIn::start();
        world.proxy.forward_to(core.listen);
        Mutex::new(FutureWorld { world, core })
    };
    FUTURE.get_or_init(start).await.lock().await
}

impl FutureWorld {
    /// Sets the response to claims on `campaign`.
    fn claims(&self, campaign: &str, canned: Canned) {
        self.core.answers(&format!("\"campaign_id\":\"{campaign}\""), canned);
    }

    /// Sets the response to views of `campaign`.
    fn views(&self, campaign: &str, canned: Canned) {
        self.core.answers(&format!("GET /internal/v1/campaigns/{campaign} "), canned);
    }

    /// Sets the response to lookups of `claim_id`.
    fn look_ups(&self, claim_id: &str, canned: Canned) {
        self.core.answers(&format!("GET /internal/v1/claims/{claim_id} "), canned);
    }

    /// Returns how many calls to core that begin with `line` were made for `reply`.
    fn calls_for(&self, reply: &Reply, line: &str) -> usize {
        self.world.forwarded(reply).iter().filter(|request| request.starts_with(line)).count()
    }
}

/// Returns a problem with a code and members that the edge does not know, and with headers internal to core.
fn refusal(status: u16, code: &str) -> Canned {
    let body = json!({
        "type": format!("/problems/{}", code.replace('_', "-")), "title": "From a later release", "status": status,
        "detail": "as a later release words it", "code": code, "instance": "r-1",
        "limit": "per_user_per_week", "remaining": "three", "version": {"major": 2}, "starts_at": "next week",
        "claim": {"status": "escrowed"}, "more": [1, 2, 3],
    });
    Canned::problem(status, &body)
        .with("Retry-After", "7")
        .with("Set-Cookie", "core=1")
        .with("X-Core-Release", "9")
}

/// Returns the view of an open campaign with members of a later release.
fn view(id: &str, more: &Value) -> Value {
    let mut view = json!({
        "id": id, "name": id, "state": "open", "starts_at": "2026-01-01T00:00:00.000Z", "ends_at": null, "time_zone": "UTC",
        "limits": {"total": 100, "per_user": 3, "per_user_per_day": 1, // on any day
            "per_claim": 1, "per_user_per_week": 2},
        "remaining": 42, "version": 3, "server_time": from_now(0), "kind": {"of": "tomorrow"},
    });
    view.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    view
}

/// Checks that the response has the body of core's response, and only the headers meant for browsers.
fn assert_passed_on(reply: &Reply, canned: &Canned) {
    assert_eq!(reply.text(), canned.body);
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert_eq!((reply.header("retry-after"), reply.header("cache-control")), ("7", "no-store"));
    assert_eq!((reply.header("set-cookie"), reply.header("x-core-release")), ("", ""));
    assert_eq!(reply.header("x-content-type-options"), "nosniff");
}

#[test]
fn a_claim_problem_with_an_unknown_code_is_passed_on() {
    run(async {
        let future = future().await;
        let world = &future.world;
        // Return more consecutive problems than the number of failures that opens the circuit breaker.
        for (status, code) in [
            (400, "invalid_coupon"),
            (403, "not_in_this_country"),
            (409, "user_weekly_limit_reached"),
            (409, "campaign_merged"),
            (429, "queue_full"),
            (451, "withheld"),
            (500, "misconfigured"),
            (503, "moving"),
        ] {
            let canned = refusal(status, code);
            future.claims("refused", canned.clone());
            let reply = world.claim_once("refused", "alice", "k").await.refused(status, code);
            assert_passed_on(&reply, &canned);
            assert_eq!(future.calls_for(&reply, "POST "), 1, "{code} is not retried");
        }
        let granted = json!({"claim": {"id": "refused.alice.x"}, "remaining": 1, "version": 1});
        future.claims("refused", Canned::json(201, &granted));
        let _ = world.claim("refused", "alice", "k").await.expect(201);
    });
}

#[test]
fn view_and_lookup_problems_with_unknown_codes_are_passed_on() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let id = "unseen.alice.AAAAAAAAAAAAAAAAAAAAAA";
        // The last code exists today, but its members are unknown.
        for (status, code) in [(409, "campaign_merged"), (503, "moving"), (503, "campaign_not_ready")] {
            let canned = refusal(status, code);
            future.look_ups(id, canned.clone());
            let reply = world.send_once(world.look_up_request(id, "alice")).await;
            assert_passed_on(&reply.refused(status, code), &canned);
            let campaign = format!("unseen-{code}");
            future.views(&campaign, canned.clone());
            let reply = world.send_once(world.view_request(&campaign)).await.refused(status, code);
            assert_passed_on(&reply, &canned);
            assert_eq!(future.calls_for(&reply, "GET "), 1, "{code} is not retried");
        }
    });
}

#[test]
fn an_answer_that_is_not_from_core_is_not_passed_on() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let granted = json!({"claim": {"id": "lost.alice.x"}, "remaining": 1, "version": 1});
        for (what, canned) in [
            ("a proxy's JSON", Canned::json(502, &json!({"code": "bad_gateway"}))),
            ("a code that is not a string", Canned::problem(409, &json!({"code": 7, "detail": ""}))),
            ("a problem without a code", Canned::problem(409, &json!({"title": "not from core"}))),
            ("a problem with a success status", Canned::problem(200, &json!({"code": "sold_out"}))),
            ("a problem with a redirect status", Canned::problem(302, &json!({"code": "moved"}))),
        ] {
            future.claims("lost", canned);
            let reply = world.claim_once("lost", "alice", "k").await.refused(503, "unavailable");
            assert_eq!(
                future.calls_for(&reply, "POST "),
                2,
                "{what} is not an answer of core, so the edge retries"
            );
            // Reset the consecutive failures, so that the breaker stays closed.
            future.claims("lost", Canned::json(201, &granted));
            let _ = world.claim("lost", "alice", "k").await.expect(201);
        }
    });
}

#[test]
fn a_claim_with_an_unknown_status_is_passed_on_unchanged() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let claim =
            json!({"id": "later.alice.x", "status": "shipped", "sequence": "17", "parcel": {"of": 2}});
        let body = json!({"claim": claim, "remaining": [1, 2], "version": "2.1", "receipt": null});
        future.claims("later", Canned::json(200, &body).with("Idempotent-Replayed", "true"));
        let reply = world.claim("later", "alice", "k").await.expect(200);
        assert_eq!((reply.json(), reply.header("idempotent-replayed")), (body.clone(), "true"));
        assert_eq!(future.calls_for(&reply, "POST "), 1);
        let id = "later.alice.AAAAAAAAAAAAAAAAAAAAAA";
        future.look_ups(id, Canned::json(200, &body));
        assert_eq!(world.look_up(id, "alice").await.expect(200).json(), body);
    });
}

#[test]
fn unknown_campaign_members_are_passed_on_unchanged() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let zero = json!({"total": 0, "per_user": null, "per_user_per_day": null, "per_claim": null});
        for (id, more) in [
            ("with-members", json!({})),
            ("with-a-total-of-none", json!({"limits": zero, "remaining": 0, "state": "sold_out"})),
            ("in-a-state", json!({"state": "lottery"})),
        ] {
            let expected = view(id, &more);
            future.views(id, Canned::json(200, &expected));
            let mut shown = world.view(id).await.expect(200).json();
            // Only the server time may differ.
            assert!(shown["server_time"].is_string());
            shown["server_time"] = expected["server_time"].clone();
            assert_eq!(shown, expected);
        }
        let etag = world.view("with-members").await.expect(200).header("etag").to_owned();
        assert_eq!(world.view("with-members").await.header("etag"), etag);
        let changed = view("with-members", &json!({"kind": {"of": "the day after"}}));
        future.views("with-members", Canned::json(200, &changed));
        eventually(SOON, || async {
            let seen = world.view("with-members").await;
            holds(seen.header("etag") != etag, || seen.text())
        })
        .await;
    });
}

/// Only core knows what "nothing is left" means in an unknown state.
#[test]
fn no_claim_is_rejected_early_in_an_unknown_state() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let more = json!({"state": "lottery", "remaining": 0, "ends_at": from_now(-5)});
        future.views("lottery", Canned::json(200, &view("lottery", &more)));
        let granted = json!({"claim": {"id": "lottery.alice.x"}, "remaining": 0, "version": 3});
        future.claims("lottery", Canned::json(201, &granted));
        for n in 0..3 {
            let _ = world.view("lottery").await.expect(200);
            let _ = world.first_try("lottery", &format!("u{n}"), "k").await.expect(201);
        }
    });
}

// ------------------------------------------------------------------------------------------------------------ the page

const CODE: &str = "document.getElementById('result').dataset.code";
const MESSAGE: &str = "document.getElementById('message').textContent";
const STATE: &str = "document.getElementById('state').textContent";
const DISABLED: &str = "document.getElementById('claim').disabled";

/// Opens the page of a campaign and clicks the button; the response to the claim is `canned`.
async fn claim_on_the_page(future: &FutureWorld, campaign: &str, more: &Value, canned: Canned) -> Browser {
    future.views(campaign, Canned::json(200, &view(campaign, more)));
    future.claims(campaign, canned);
    let page = Browser::open(campaign, PHONE).await;
    page.goto(&future.world.edge.url(&format!("/?campaign={campaign}"))).await;
    page.until(DISABLED, false).await;
    page.press("#claim").await;
    page
}

/// Checks that the page shows the code's message in both languages.
async fn assert_message(page: &Browser, code: &str, english: &str, chinese: &str) {
    page.until(CODE, code).await;
    page.until(MESSAGE, english).await;
    page.press("#lang").await;
    page.until(MESSAGE, chinese).await;
}

#[test]
fn the_page_shows_a_problem_with_an_unknown_code() {
    in_browser("the_page_shows_a_problem_with_an_unknown_code", async {
        let future = future().await;
        for (n, code) in ["user_weekly_limit_reached", "campaign_merged"].into_iter().enumerate() {
            let page =
                claim_on_the_page(&future, &format!("page-code-{n}"), &json!({}), refusal(409, code)).await;
            assert_message(&page, code, "That did not work", "操作未成功").await;
            page.close().await;
        }
    });
}

#[test]
fn the_page_shows_a_campaign_in_an_unknown_state() {
    in_browser("the_page_shows_a_campaign_in_an_unknown_state", async {
        let future = future().await;
        // "suspended" contains "ended".
        for state in ["lottery", "suspended"] {
            let granted = json!({"claim": {"id": format!("{state}.alice.x"), "status": "granted", "sequence": 17,
                "claimed_at": from_now(0), "expires_at": null}, "remaining": 3, "version": 3});
            let campaign = format!("page-{state}");
            let page =
                claim_on_the_page(&future, &campaign, &json!({"state": state}), Canned::json(201, &granted))
                    .await;
            assert_message(&page, "granted", "It is yours", "领取成功").await;
            page.until(STATE, state).await;
            page.close().await;
        }
    });
}

/// The page must not say that such a claim is the user's, nor that it is gone.
#[test]
fn the_page_shows_a_claim_with_an_unknown_status() {
    in_browser("the_page_shows_a_claim_with_an_unknown_status", async {
        let future = future().await;
        let shipped = json!({"claim": {"id": "page-status.alice.x", "status": "shipped", "sequence": 17,
            "claimed_at": from_now(0), "expires_at": null}, "remaining": 3, "version": 3});
        let page = claim_on_the_page(&future, "page-status", &json!({}), Canned::json(200, &shipped)).await;
        assert_message(&page, "claim_shipped", "We found your claim", "已找到您的领取记录").await;
        page.until("document.getElementById('detail').textContent.includes('shipped')", true).await;
        page.close().await;
    });
}
