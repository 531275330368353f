//! `examples/checkout`, a shop with Stripe Checkout: with a real core, and with a stand-in for Stripe that speaks the
//! documented requests. Redis' clock stands still, so a hold ends only when the test moves the clock.

use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use support::clock::FrozenClock;
use support::core_client::{API_TOKEN, campaign};
use support::edge::root;
use support::lossy_proxy::LossyProxy;
use support::process::{Process, command, free_address};
use support::signing::claim_id;
use support::stripe::{self, PRICE, SECRET_KEY, Stripe, WEBHOOK_SECRET};
use support::times::{from_now, ms, now_ms};
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Servers, eventually};
use tempfile::{NamedTempFile, TempDir};

/// The hold that the example's README recommends.
pub(super) const HOLD_S: i64 = 2700;
pub(super) const LOGIN_KEY: &str = "a-key-of-the-logins-for-the-tests-only";

/// The longest time for which the shop retries a call: while core and Stripe work, and while a call must fail.
pub(super) const PATIENT_MS: &str = "120000";
pub(super) const IMPATIENT_MS: &str = "3000";

pub(super) const COMPLETED: &str = "checkout.session.completed";
const EXPIRED: &str = "checkout.session.expired";
const SUCCEEDED: &str = "checkout.session.async_payment_succeeded";
const FAILED: &str = "checkout.session.async_payment_failed";

pub(super) const YOURS: &str = "The unit is yours.";
pub(super) const REFUNDED: &str = "The payment is refunded.";

/// The shop, and the services that it calls.
pub(super) struct Shop {
    pub(super) core: Core,
    /// Between the shop and core.
    proxy: LossyProxy,
    redis: Servers,
    clock: FrozenClock,
    pub(super) stripe: Stripe,
    /// Between the shop and the stand-in for Stripe.
    pub(super) stripe_proxy: LossyProxy,
    pub(super) campaign: &'static str,
    orders: TempDir,
    log: Log,
    listen: SocketAddr,
    process: Option<Process>,
}

/// The standard error of the shop's server, printed if the test fails.
struct Log(NamedTempFile);

impl Log {
    fn text(&self) -> String {
        std::fs::read_to_string(self.0.path()).unwrap()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprint!("{}", self.text());
        }
    }
}

impl Shop {
    /// Opens a shop that sells `total` units.
    pub(super) async fn open(total: u32) -> Self {
        Self::open_at(total, now_ms()).await
    }

    /// Opens a shop whose Redis has the time `now_ms`.
    async fn open_at(total: u32, now_ms: i64) -> Self {
        let clock = FrozenClock::at(now_ms);
        let redis = Servers::start_frozen(&clock).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
        let (proxy, stripe, listen) = (LossyProxy::to(core.listen()), Stripe::start(), free_address());
        let stripe_proxy = LossyProxy::to(stripe.listen);
        let (orders, log) = (tempfile::tempdir().unwrap(), Log(NamedTempFile::new().unwrap()));
        let (campaign, process) = ("spring", None);
        let mut shop =
            Self { core, proxy, redis, clock, stripe, stripe_proxy, campaign, orders, log, listen, process };
        shop.create(campaign, total).await;
        shop.restart(PATIENT_MS).await;
        shop
    }

    /// Creates a campaign that is open.
    pub(super) async fn create(&self, id: &str, total: u32) {
        let mut body = campaign(id, json!({"total": total}));
        body["starts_at"] = json!(from_now(-3600));
        body["hold_seconds"] = json!(HOLD_S);
        self.core.create_with(body).await;
    }

    /// Kills the shop's server and starts it again.
    pub(super) async fn restart(&mut self, deadline_ms: &str) {
        self.process = None;
        let mut node = command(Path::new("node"));
        node.arg(root().join("examples/checkout/server.mjs"))
            .env("CAMPAIGN", self.campaign)
            .env("CLAIMGATE_DEADLINE_MS", deadline_ms)
            .env("CLAIMGATE_TOKEN", API_TOKEN)
            .env("CLAIMGATE_URL", format!("http://{}", self.proxy.listen))
            .env("HOST", self.listen.ip().to_string())
            .env("LOGIN_KEY", LOGIN_KEY)
            .env("ORDERS", self.orders.path())
            .env("ORIGIN", self.url(""))
            .env("PORT", self.listen.port().to_string())
            .env("STRIPE_PRICE", PRICE)
            .env("STRIPE_SECRET_KEY", SECRET_KEY)
            .env("STRIPE_URL", format!("http://{}", self.stripe_proxy.listen))
            .env("STRIPE_WEBHOOK_SECRET", WEBHOOK_SECRET)
            .stderr(std::fs::File::options().append(true).open(self.log.0.path()).unwrap());
        self.process = Some(Process::start(node));
        eventually(SOON, || async {
            let answer = self.core.client().once().try_get(&self.url("/"), "").await;
            answer.map(|reply| reply.expect(401)).map_err(|error| format!("{error:#}"))
        })
        .await;
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.listen)
    }

    /// Calls the shop as the user's browser does, which follows redirects.
    pub(super) async fn call(&self, user: &str, method: Method, path: &str) -> Reply {
        let request = self.core.client().request(method, &self.url(path)).header("Cookie", login(user));
        self.core.client().once().send(request).await.expect("an answer")
    }

    /// Buys a unit. Returns the claim for which the browser then shows Stripe's page.
    pub(super) async fn buy(&self, user: &str) -> String {
        self.at_stripe(&self.call(user, Method::POST, "/buy").await)
    }

    pub(super) fn at_stripe(&self, reply: &Reply) -> String {
        let session = reply.path.strip_prefix("/c/pay/");
        self.stripe.claim_of(session.unwrap_or_else(|| panic!("{} {}", reply.path, reply.text())))
    }

    /// Delivers an event about the claim's session, signed now. Returns the status.
    pub(super) async fn deliver(&self, kind: &str, claim: &str) -> u16 {
        let event = self.stripe.event(kind, claim);
        let header = stripe::signature(WEBHOOK_SECRET, now_ms() / 1000, &event);
        self.post(&event, &header).await
    }

    async fn post(&self, event: &str, signature: &str) -> u16 {
        let client = self.core.client().once();
        let request = client.request(Method::POST, &self.url("/stripe")).body(event.to_owned());
        client.send(request.header("Stripe-Signature", signature)).await.expect("an answer").status
    }

    /// Checks that the order's page contains `text`.
    pub(super) async fn shows(&self, user: &str, claim: &str, text: &str) {
        let page = self.call(user, Method::GET, &format!("/orders/{claim}")).await.expect(200).text();
        assert!(page.contains(text), "no {text:?}: {page}");
    }

    async fn claim(&self, claim: &str) -> Value {
        self.core.look_up(claim).await.expect(200).json()["claim"].clone()
    }

    pub(super) async fn has_status(&self, claim: &str, status: &str) {
        let found = self.claim(claim).await;
        assert_eq!(found["status"], status, "{found}");
    }

    pub(super) async fn advance_s(&mut self, seconds: i64) {
        let now_ms = self.clock.now_ms() + seconds * 1000;
        self.redis.set_frozen_clock(&mut self.clock, now_ms).await;
    }
}

/// Returns the cookie of a signed-in user.
fn login(user: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(LOGIN_KEY.as_bytes()).unwrap();
    mac.update(user.as_bytes());
    format!("theme=dark; login={user}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

#[tokio::test]
async fn the_webhook_may_precede_the_redirect() {
    let shop = Shop::open(2).await;
    let [alice, bob] = [shop.buy("alice").await, shop.buy("bob").await];
    shop.shows("alice", &alice, "Please pay").await;
    shop.stripe.pay(&alice);
    assert_eq!(shop.deliver(COMPLETED, &alice).await, 200);
    shop.has_status(&alice, "granted").await;
    shop.shows("alice", &alice, YOURS).await;

    shop.stripe.pay(&bob);
    shop.shows("bob", &bob, YOURS).await;
    shop.has_status(&bob, "granted").await;
    assert_eq!(shop.deliver(COMPLETED, &bob).await, 200);
    shop.has_status(&bob, "granted").await;
    assert!(shop.stripe.refunds().is_empty());
}

#[tokio::test]
async fn a_payment_after_the_hold_is_refunded() {
    let mut shop = Shop::open(1).await;
    let claim = shop.buy("alice").await;
    shop.advance_s(HOLD_S).await;
    let payment = shop.stripe.pay(&claim);
    assert_eq!(shop.deliver(COMPLETED, &claim).await, 200);
    assert_eq!(shop.stripe.refunds(), [payment]);
    shop.has_status(&claim, "expired").await;
    shop.shows("alice", &claim, REFUNDED).await;

    // The unit can be bought again: the previous purchase is over.
    let second = shop.buy("alice").await;
    assert_ne!(second, claim);
    shop.stripe.pay(&second);
    assert_eq!(shop.deliver(COMPLETED, &second).await, 200);
    shop.shows("alice", &second, YOURS).await;
    assert_eq!(shop.stripe.refunds().len(), 1);
}

#[tokio::test]
async fn a_hold_that_expires_during_the_payment_is_refunded() {
    let mut shop = Shop::open(1).await;
    let alice = shop.buy("alice").await;
    let payment = shop.stripe.pay(&alice);
    let late = shop.stripe.event(COMPLETED, &alice);
    shop.advance_s(HOLD_S).await;
    let bob = shop.buy("bob").await;
    shop.stripe.pay(&bob);
    shop.shows("bob", &bob, YOURS).await;

    let signature = stripe::signature(WEBHOOK_SECRET, now_ms() / 1000, &late);
    assert_eq!(shop.post(&late, &signature).await, 200);
    assert_eq!(shop.stripe.refunds(), [payment]);
    shop.shows("alice", &alice, REFUNDED).await;
    shop.has_status(&bob, "granted").await;
}

#[tokio::test]
async fn repeated_events_change_nothing() {
    let mut shop = Shop::open(2).await;
    let [alice, bob] = [shop.buy("alice").await, shop.buy("bob").await];
    let repeat = async |shop: &Shop, claim: &str| {
        let statuses = join_all((0..8).map(|_| shop.deliver(COMPLETED, claim))).await;
        assert_eq!(statuses, [200; 8]);
        assert_eq!(shop.deliver(COMPLETED, claim).await, 200);
    };
    shop.stripe.pay(&alice);
    repeat(&shop, &alice).await;
    shop.has_status(&alice, "granted").await;
    assert!(shop.stripe.refunds().is_empty());

    shop.advance_s(HOLD_S).await;
    let payment = shop.stripe.pay(&bob);
    repeat(&shop, &bob).await;
    assert_eq!(shop.stripe.refunds(), [payment], "one refund");
    repeat(&shop, &alice).await;
    shop.has_status(&alice, "granted").await;
    assert_eq!(shop.core.campaign("spring").await["remaining"], 1);
}

#[tokio::test]
async fn a_payment_survives_restarts() {
    let mut shop = Shop::open(1).await;
    let claim = shop.buy("alice").await;
    shop.stripe.pay(&claim);
    shop.restart(IMPATIENT_MS).await;
    shop.core.kill();
    assert_eq!(shop.deliver(COMPLETED, &claim).await, 503, "Stripe repeats the event");
    shop.call("alice", Method::GET, &format!("/orders/{claim}")).await.expect(503);
    shop.core = shop.core.restart().await;
    shop.proxy.forward_to(shop.core.listen());
    shop.restart(PATIENT_MS).await;
    assert_eq!(shop.deliver(COMPLETED, &claim).await, 200);
    shop.has_status(&claim, "granted").await;
    shop.shows("alice", &claim, YOURS).await;
    assert!(shop.stripe.refunds().is_empty());
}

#[tokio::test]
async fn a_purchase_continues_after_a_restart() {
    let mut shop = Shop::open(1).await;
    shop.restart(IMPATIENT_MS).await;
    shop.proxy.lose_all_answers(true);
    shop.call("alice", Method::POST, "/buy").await.expect(503);
    shop.proxy.lose_all_answers(false);
    eventually(SOON, || async {
        let remaining = shop.core.campaign("spring").await["remaining"].clone();
        holds(remaining == 0, || format!("core made no claim: {remaining} remaining"))
    })
    .await;
    shop.restart(PATIENT_MS).await;
    let claim = shop.buy("alice").await;
    // Simulate a crash before the shop stored the session.
    std::fs::remove_file(shop.orders.path().join(format!("{claim}.session.json"))).unwrap();
    shop.restart(PATIENT_MS).await;
    let purchases = join_all((0..4).map(|_| shop.buy("alice"))).await;
    assert_eq!(purchases, vec![claim; 4]);
    assert_eq!(shop.stripe.sessions(), 1);
    let claims = shop.proxy.requests_with("POST /internal/v1/claims HTTP");
    let is_marked = |head: &&String| head.to_ascii_lowercase().contains("claimgate-attempt: 1");
    assert!(is_marked(&&claims[0]) && claims.iter().filter(is_marked).count() == 1, "{claims:?}");
}

#[tokio::test]
async fn a_failed_refund_is_retried() {
    let mut shop = Shop::open(1).await;
    let claim = shop.buy("alice").await;
    shop.advance_s(HOLD_S).await;
    let payment = shop.stripe.pay(&claim);
    shop.stripe.refuse_refunds(true);
    for _ in 0..2 {
        assert_eq!(shop.deliver(COMPLETED, &claim).await, 503, "Stripe repeats the event");
    }
    shop.stripe.refuse_refunds(false);
    shop.restart(PATIENT_MS).await;
    assert_eq!(shop.deliver(COMPLETED, &claim).await, 200);
    assert_eq!(shop.stripe.refunds(), [payment]);
    shop.shows("alice", &claim, REFUNDED).await;
}

/// 404 says nothing about the claim: the address may be wrong. A refund for each payment would be the worse fault.
#[tokio::test]
async fn an_unknown_claim_is_neither_confirmed_nor_refunded() {
    let mut shop = Shop::open(1).await;
    let claim = shop.buy("alice").await;
    shop.stripe.pay(&claim);
    let other = Core::start().await;
    shop.proxy.forward_to(other.listen());
    shop.restart(PATIENT_MS).await;
    assert_eq!(shop.deliver(COMPLETED, &claim).await, 503);
    assert!(shop.stripe.refunds().is_empty());
    shop.proxy.forward_to(shop.core.listen());
    shop.restart(PATIENT_MS).await;
    assert_eq!(shop.deliver(COMPLETED, &claim).await, 200);
    shop.has_status(&claim, "granted").await;
}

#[tokio::test]
async fn a_delayed_payment_extends_the_hold() {
    let mut shop = Shop::open(2).await;
    let [alice, bob] = [shop.buy("alice").await, shop.buy("bob").await];
    let first_expiry = ms(shop.claim(&alice).await["expires_at"].as_str().unwrap());
    shop.advance_s(600).await;
    for claim in [&alice, &bob] {
        shop.stripe.begin_payment(claim);
        assert_eq!(shop.deliver(COMPLETED, claim).await, 200);
        let claim = shop.claim(claim).await;
        assert_eq!(claim["status"], "held");
        assert_eq!(ms(claim["expires_at"].as_str().unwrap()), first_expiry + 600_000);
    }
    shop.shows("alice", &alice, "is being processed").await;

    let early = [alice.as_str(), &bob].map(|claim| shop.stripe.event(COMPLETED, claim));
    shop.stripe.end_payment(&alice, true);
    shop.stripe.end_payment(&bob, false);
    // The first events arrive again and out of order, yet the shop acts on the current state.
    for event in early {
        let signature = stripe::signature(WEBHOOK_SECRET, now_ms() / 1000, &event);
        assert_eq!(shop.post(&event, &signature).await, 200);
    }
    shop.has_status(&alice, "granted").await;
    shop.has_status(&bob, "returned").await;
    assert_eq!(shop.deliver(SUCCEEDED, &alice).await, 200);
    assert_eq!(shop.deliver(FAILED, &bob).await, 200);
    shop.has_status(&alice, "granted").await;
    shop.has_status(&bob, "returned").await;
    assert!(shop.stripe.refunds().is_empty());
}

#[tokio::test]
async fn an_order_without_a_payment_frees_its_unit() {
    let shop = Shop::open(1).await;
    let abandoned = shop.buy("alice").await;
    shop.stripe.expire(&abandoned);
    assert_eq!(shop.deliver(EXPIRED, &abandoned).await, 200);
    shop.has_status(&abandoned, "returned").await;

    let cancelled = shop.buy("bob").await;
    let cancel = async |claim: &str| shop.call("bob", Method::POST, &format!("/orders/{claim}/cancel")).await;
    assert!(cancel(&cancelled).await.expect(200).text().contains("The order is cancelled."));
    assert_eq!(shop.stripe.session(&cancelled)["status"], "expired");
    shop.has_status(&cancelled, "returned").await;

    let paid = shop.buy("bob").await;
    shop.stripe.pay(&paid);
    assert!(cancel(&paid).await.expect(200).text().contains(YOURS), "the payment was faster");
    shop.has_status(&paid, "granted").await;
    shop.call("carol", Method::POST, "/buy").await.expect(409);
}

#[tokio::test]
async fn a_session_ends_when_its_claim_is_returned() {
    let shop = Shop::open(1).await;
    let claim = shop.buy("alice").await;
    shop.core.transition(&claim, "return").await.expect(200);
    shop.shows("alice", &claim, "The order is cancelled.").await;
    assert_eq!(shop.stripe.session(&claim)["status"], "expired");
}

#[tokio::test]
async fn forged_and_foreign_events_change_nothing() {
    let shop = Shop::open(1).await;
    let claim = shop.buy("alice").await;
    let (event, now_s) = (shop.stripe.event(COMPLETED, &claim), now_ms() / 1000);
    let signed = stripe::signature(WEBHOOK_SECRET, now_s, &event);
    shop.stripe.pay(&claim);
    for (body, header) in [
        (event.as_str(), String::new()),
        (&event, format!("t={now_s}")),
        (&event, stripe::signature("whsec_of_another_endpoint", now_s, &event)),
        (&event, stripe::signature(WEBHOOK_SECRET, now_s - 3600, &event)),
        (&event, stripe::signature(WEBHOOK_SECRET, now_s + 3600, &event)),
        (&event, signed.replace("v1=", "v0=")),
        (&event.replace("evt_1", "evt_2"), signed.clone()),
    ] {
        assert_eq!(shop.post(body, &header).await, 400, "{header}");
    }
    assert_eq!(shop.post(&"x".repeat(1024 * 1024 + 1), &signed).await, 413);
    let log = shop.log.text();
    let logged = |reason: &str| log.matches(&format!("rejected an event: {reason}")).count();
    let reasons = ["the header", "no signature matches", "the signature's age is", "the body has more than"];
    assert_eq!(reasons.map(logged), [1, 4, 2, 1], "{log}");
    assert!(!log.contains(WEBHOOK_SECRET) && !log.contains("evt_"), "{log}");
    let session = json!({"id": "cs_test_1", "metadata": {"claim_id": &claim, "shop": "another"}});
    let foreign = stripe::event(COMPLETED, &session);
    let other = stripe::event("charge.refunded", &json!({"id": "ch_1", "metadata": null}));
    for event in [foreign, other] {
        assert_eq!(shop.post(&event, &stripe::signature(WEBHOOK_SECRET, now_s, &event)).await, 200);
    }
    shop.has_status(&claim, "held").await;
    shop.call("bob", Method::GET, &format!("/orders/{claim}")).await.expect(404);
    let forged = shop.core.client().request(Method::POST, &shop.url("/buy"));
    let forged = forged.header("Cookie", login("alice").replace("alice", "bob"));
    shop.core.client().once().send(forged).await.unwrap().expect(401);
    // While Stripe changes the secret, it signs with both.
    let both = format!(
        "{},{}",
        stripe::signature("whsec_old", now_s, &event),
        &signed[signed.find("v1").unwrap()..]
    );
    assert_eq!(shop.post(&event, &both).await, 200);
    shop.has_status(&claim, "granted").await;
}

/// A claim of the claim page, whose hold would end before the session.
#[tokio::test]
async fn a_hold_is_extended_for_its_session() {
    let mut shop = Shop::open_at(1, now_ms() - 600_000).await;
    shop.core.claim("spring", "alice", "k").await.expect(201);
    let claim = claim_id("spring", "alice", "k");
    let first_expiry = ms(shop.claim(&claim).await["expires_at"].as_str().unwrap());
    shop.advance_s(600).await;
    let checkout = async || shop.call("alice", Method::GET, &format!("/checkout/{claim}")).await;
    assert_eq!(shop.at_stripe(&checkout().await), claim);
    let expiry = ms(shop.claim(&claim).await["expires_at"].as_str().unwrap());
    assert_eq!(expiry, first_expiry + 600_000);
    let session_expiry = shop.stripe.session(&claim)["expires_at"].as_i64().unwrap() * 1000;
    assert!(session_expiry + 300_000 <= expiry, "{session_expiry} {expiry}");
    assert_eq!(shop.at_stripe(&checkout().await), claim);
    assert_eq!(shop.stripe.sessions(), 1);
}

#[tokio::test]
async fn a_claim_without_a_possible_session_is_returned() {
    let shop = Shop::open(1).await;
    shop.core.patch("spring", json!({"hold_seconds": 600})).await.expect(200);
    shop.call("alice", Method::POST, "/buy").await.expect(503);
    shop.core.patch("spring", json!({"hold_seconds": null})).await.expect(200);
    shop.call("alice", Method::POST, "/buy").await.expect(503);
    shop.core.patch("spring", json!({"hold_seconds": HOLD_S})).await.expect(200);
    assert_eq!(shop.core.campaign("spring").await["remaining"], 1);

    // The first try was so long ago that Stripe no longer accepts the session's end.
    shop.core.claim("spring", "alice", "k").await.expect(201);
    let claim = claim_id("spring", "alice", "k");
    let expiry = shop.orders.path().join(format!("{claim}.expiry.json"));
    std::fs::write(expiry, json!({"expires_at": now_ms() / 1000 + 1700}).to_string()).unwrap();
    shop.call("alice", Method::GET, &format!("/checkout/{claim}")).await.expect(503);
    shop.has_status(&claim, "returned").await;
    assert_eq!(shop.stripe.sessions(), 0);
    shop.buy("alice").await;
}
