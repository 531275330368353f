//! A core that is newer than the edge and the page: "upgrade core first" breaks nothing, and a word that they do not know
//! is passed on. The core of this checkout says no such word, so a server of the test's own speaks in its place.

use serde_json::{Value, json};
use support::Reply;
use support::browser::{self, Browser, PHONE};
use support::edge::{Runtime, World};
use support::stand_in::{Canned, StandIn};
use support::times::from_now;
use support::wait::holds;
use support::{SOON, eventually};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::edge::run;

/// An edge of today before a core from the future.
struct Future {
    world: World,
    core: StandIn,
}

/// One test at a time: the calls that fail in a row are counted together.
async fn future() -> MutexGuard<'static, Future> {
    static FUTURE: OnceCell<Mutex<Future>> = OnceCell::const_new();
    let start = || async {
        // The page's visitors need tokens.
        let world = World::start(Runtime::asked(), "edge-future", "test", &[("DEMO", "1")]).await;
        let core = StandIn::start();
        world.proxy.lead_to(core.listen);
        Mutex::new(Future { world, core })
    };
    FUTURE.get_or_init(start).await.lock().await
}

impl Future {
    /// What is answered to claims on `campaign`.
    fn claims(&self, campaign: &str, canned: Canned) {
        self.core.answers(&format!("\"campaign_id\":\"{campaign}\""), canned);
    }

    /// What is answered to who asks for `campaign`.
    fn views(&self, campaign: &str, canned: Canned) {
        self.core.answers(&format!("GET /internal/v1/campaigns/{campaign} "), canned);
    }

    /// What is answered to who looks `claim_id` up.
    fn look_ups(&self, claim_id: &str, canned: Canned) {
        self.core.answers(&format!("GET /internal/v1/claims/{claim_id} "), canned);
    }

    /// How often core was asked what `reply` answers, in calls that begin with `line`.
    fn asked(&self, reply: &Reply, line: &str) -> usize {
        self.world.passed_on(reply).iter().filter(|said| said.starts_with(line)).count()
    }
}

/// A refusal whose code and members no edge of today knows, with headers that are internal to core.
fn refusal(status: u16, code: &str) -> Canned {
    let body = json!({
        "type": format!("/problems/{}", code.replace('_', "-")), "title": "Of tomorrow", "status": status,
        "detail": "as the release after this one says it", "code": code, "instance": "r-1",
        "limit": "per_user_per_week", "remaining": "three", "version": {"major": 2}, "starts_at": "next week",
        "claim": {"status": "escrowed"}, "more": [1, 2, 3],
    });
    Canned::problem(status, &body)
        .with("Retry-After", "7")
        .with("Set-Cookie", "core=1")
        .with("X-Core-Release", "9")
}

/// A campaign that is open, with what only a later release says.
fn view(id: &str, more: &Value) -> Value {
    let mut view = json!({
        "id": id, "name": id, "state": "open", "starts_at": "2026-01-01T00:00:00.000Z", "ends_at": null, "time_zone": "UTC",
        "limits": {"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1, "per_user_per_week": 2},
        "remaining": 42, "version": 3, "server_time": from_now(0), "kind": {"of": "tomorrow"},
    });
    view.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    view
}

/// The same answer as core's, as far as it is the browser's business.
fn is_passed_on(reply: &Reply, canned: &Canned) {
    assert_eq!(reply.text(), canned.body);
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert_eq!((reply.header("retry-after"), reply.header("cache-control")), ("7", "no-store"));
    assert_eq!((reply.header("set-cookie"), reply.header("x-core-release")), ("", ""));
    assert_eq!(reply.header("x-content-type-options"), "nosniff");
}

#[test]
fn a_refusal_by_a_code_from_the_future_passes_on_unread_and_is_no_failure_of_core() {
    run(async {
        let future = future().await;
        let world = &future.world;
        // More than the failures in a row after which core would count as dead.
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
            is_passed_on(&reply, &canned);
            assert_eq!(future.asked(&reply, "POST "), 1, "{code} is an answer");
        }
        let granted = json!({"claim": {"id": "refused.alice.x"}, "remaining": 1, "version": 1});
        future.claims("refused", Canned::json(201, &granted));
        let _ = world.claim("refused", "alice", "k").await.expect(201);
    });
}

#[test]
fn views_and_look_ups_refused_by_a_code_from_the_future_pass_on_unread() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let id = "unseen.alice.AAAAAAAAAAAAAAAAAAAAAA";
        // Also a code that is known, with members that are not.
        for (status, code) in [(409, "campaign_merged"), (503, "moving"), (503, "campaign_not_ready")] {
            let canned = refusal(status, code);
            future.look_ups(id, canned.clone());
            let reply = world.send_once(world.look_up_request(id, "alice")).await;
            is_passed_on(&reply.refused(status, code), &canned);
            let campaign = format!("unseen-{code}");
            future.views(&campaign, canned.clone());
            let reply = world.send_once(world.view_request(&campaign)).await.refused(status, code);
            is_passed_on(&reply, &canned);
            assert_eq!(future.asked(&reply, "GET "), 1, "{code} is an answer");
        }
    });
}

#[test]
fn what_is_no_answer_of_any_core_is_not_passed_on() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let granted = json!({"claim": {"id": "lost.alice.x"}, "remaining": 1, "version": 1});
        for (what, canned) in [
            ("a proxy's JSON", Canned::json(502, &json!({"code": "bad_gateway"}))),
            ("a code that is no word", Canned::problem(409, &json!({"code": 7, "detail": ""}))),
            ("a problem without a code", Canned::problem(409, &json!({"title": "of something else"}))),
            ("a refusal that is a success", Canned::problem(200, &json!({"code": "sold_out"}))),
            ("a refusal that leads elsewhere", Canned::problem(302, &json!({"code": "moved"}))),
        ] {
            future.claims("lost", canned);
            let reply = world.claim_once("lost", "alice", "k").await.refused(503, "unavailable");
            assert_eq!(future.asked(&reply, "POST "), 2, "{what} is no answer, so core is asked again");
            // Whatever comes next is not to be kept from core by failures in a row.
            future.claims("lost", Canned::json(201, &granted));
            let _ = world.claim("lost", "alice", "k").await.expect(201);
        }
    });
}

#[test]
fn a_claim_that_stands_as_no_edge_knows_it_passes_on_as_it_is() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let claim =
            json!({"id": "later.alice.x", "status": "shipped", "sequence": "17", "parcel": {"of": 2}});
        let body = json!({"claim": claim, "remaining": [1, 2], "version": "2.1", "receipt": null});
        future.claims("later", Canned::json(200, &body).with("Idempotent-Replayed", "true"));
        let reply = world.claim("later", "alice", "k").await.expect(200);
        assert_eq!((reply.json(), reply.header("idempotent-replayed")), (body.clone(), "true"));
        assert_eq!(future.asked(&reply, "POST "), 1);
        let id = "later.alice.AAAAAAAAAAAAAAAAAAAAAA";
        future.look_ups(id, Canned::json(200, &body));
        assert_eq!(world.look_up(id, "alice").await.expect(200).json(), body);
    });
}

#[test]
fn a_campaign_of_the_future_is_shown_with_all_that_core_says_of_it() {
    run(async {
        let future = future().await;
        let world = &future.world;
        let zero = json!({"total": 0, "per_user": null, "per_user_per_day": null, "per_claim": null});
        for (id, more) in [
            ("with-members", json!({})),
            ("with-a-total-of-none", json!({"limits": zero, "remaining": 0, "state": "sold_out"})),
            ("in-a-state", json!({"state": "lottery"})),
        ] {
            let said = view(id, &more);
            future.views(id, Canned::json(200, &said));
            let mut shown = world.view(id).await.expect(200).json();
            // Core's clock is the one thing that has moved on.
            assert!(shown["server_time"].is_string());
            shown["server_time"] = said["server_time"].clone();
            assert_eq!(shown, said);
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

/// What "nothing is left" means in such a state only core knows.
#[test]
fn a_state_from_the_future_has_no_caller_refused_from_memory() {
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

/// Opens the page of a campaign that is open, and claims; the answer is `canned`.
async fn claim_on_the_page(future: &Future, campaign: &str, more: &Value, canned: Canned) -> Browser {
    future.views(campaign, Canned::json(200, &view(campaign, more)));
    future.claims(campaign, canned);
    let page = Browser::open(campaign, PHONE).await;
    page.goto(&future.world.edge.url(&format!("/?campaign={campaign}"))).await;
    page.until(DISABLED, false).await;
    page.press("#claim").await;
    page
}

/// Where the page says which code it was, it shows that it has not choked on it: it goes on in either language.
async fn is_told(page: &Browser, code: &str, english: &str, chinese: &str) {
    page.until(CODE, code).await;
    page.until(MESSAGE, english).await;
    page.press("#lang").await;
    page.until(MESSAGE, chinese).await;
}

#[test]
fn the_page_tells_a_refusal_whose_code_it_does_not_know() {
    if !browser::is_here() {
        println!("SKIPPED: no chromium or no chromedriver; scripts/setup.sh brings them");
        return;
    }
    run(async {
        let future = future().await;
        for (n, code) in ["user_weekly_limit_reached", "campaign_merged"].into_iter().enumerate() {
            let page =
                claim_on_the_page(&future, &format!("page-code-{n}"), &json!({}), refusal(409, code)).await;
            is_told(&page, code, "That did not work", "没有成功").await;
            page.close().await;
        }
    });
}

#[test]
fn the_page_shows_a_campaign_in_a_state_that_it_does_not_know() {
    if !browser::is_here() {
        println!("SKIPPED: no chromium or no chromedriver; scripts/setup.sh brings them");
        return;
    }
    run(async {
        let future = future().await;
        // "suspended" has "ended" in it.
        for state in ["lottery", "suspended"] {
            let granted = json!({"claim": {"id": format!("{state}.alice.x"), "status": "granted", "sequence": 17,
                "claimed_at": from_now(0), "expires_at": null}, "remaining": 3, "version": 3});
            let campaign = format!("page-{state}");
            let page =
                claim_on_the_page(&future, &campaign, &json!({"state": state}), Canned::json(201, &granted))
                    .await;
            is_told(&page, "granted", "It is yours", "领取成功").await;
            page.until(STATE, state).await;
            page.close().await;
        }
    });
}

/// It is neither "yours" nor "gone": the page says what it knows.
#[test]
fn the_page_tells_of_a_claim_whose_status_it_does_not_know() {
    if !browser::is_here() {
        println!("SKIPPED: no chromium or no chromedriver; scripts/setup.sh brings them");
        return;
    }
    run(async {
        let future = future().await;
        let shipped = json!({"claim": {"id": "page-status.alice.x", "status": "shipped", "sequence": 17,
            "claimed_at": from_now(0), "expires_at": null}, "remaining": 3, "version": 3});
        let page = claim_on_the_page(&future, "page-status", &json!({}), Canned::json(200, &shipped)).await;
        is_told(&page, "claim_shipped", "Your claim is there", "您的领取已存在").await;
        page.until("document.getElementById('detail').textContent.includes('shipped')", true).await;
        page.close().await;
    });
}
