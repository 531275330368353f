//! Webhook events are signed, retried and delivered in order per claim. Webhooks call only listed hosts and
//! do not affect each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::post;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::certificates::Certificates;
use support::claim_body;
use support::core_client::campaign;
use support::process::free_address;
use support::times::now_ms;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Sql, eventually, promised};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::command_line::run_against;
use crate::on_postgres::on_postgres;

/// Returns the response of a receiver, given the event's body and the number of the try, from 1.
type Behavior = Arc<Mutex<Box<dyn FnMut(&Value, usize) -> Response + Send>>>;

/// An event as received.
#[derive(Debug, Clone)]
pub struct ReceivedEvent {
    id: String,
    headers: HeaderMap,
    pub body: String,
}

impl ReceivedEvent {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the user and status of the event's claim.
    pub fn summary(&self) -> String {
        let claim = &self.json()["data"]["claim"];
        format!("{} {}", claim["user_id"].as_str().unwrap(), claim["status"].as_str().unwrap())
    }

    fn is_signed_with(&self, secret: &str) -> bool {
        standardwebhooks::Webhook::new(secret).unwrap().verify(self.body.as_bytes(), &self.headers).is_ok()
    }
}

/// A receiver that accepts every event by default.
#[derive(Clone)]
pub struct Receiver {
    url: String,
    received: Arc<Mutex<Vec<ReceivedEvent>>>,
    behavior: Behavior,
    /// Releases a response held back by status 100, as 200.
    release: Arc<Notify>,
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind((free_address().ip(), 0)).await.unwrap();
        let receiver = Self::at(&format!("http://{}", listener.local_addr().unwrap()));
        let routes = receiver.routes();
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        receiver
    }

    fn at(origin: &str) -> Self {
        let behavior: Behavior =
            Arc::new(Mutex::new(Box::new(|_, _| StatusCode::NO_CONTENT.into_response())));
        Self { url: format!("{origin}/hook"), received: Arc::default(), behavior, release: Arc::default() }
    }

    fn routes(&self) -> Router {
        Router::new().route("/hook", post(take)).with_state(self.clone())
    }

    /// Returns the receiver's entry for `CLAIMGATE_WEBHOOK_HOSTS`.
    fn host(&self) -> &str {
        self.url.trim_end_matches("/hook").trim_start_matches("https://")
    }

    fn respond_with(&self, behavior: impl FnMut(&Value, usize) -> Response + Send + 'static) {
        *self.behavior.lock().unwrap() = Box::new(behavior);
    }

    pub fn received(&self) -> Vec<ReceivedEvent> {
        self.received.lock().unwrap().clone()
    }

    /// Waits for `count` events and returns the user and status of each.
    async fn until_received(&self, count: usize) -> Vec<String> {
        eventually(SOON, || async {
            let received = self.received();
            holds(received.len() >= count, || format!("{} of {count} events: {received:#?}", received.len()))
        })
        .await;
        self.received().iter().map(ReceivedEvent::summary).collect()
    }
}

async fn take(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> Response {
    let event = ReceivedEvent {
        id: headers["webhook-id"].to_str().unwrap().to_owned(),
        headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    let times = {
        let mut all = receiver.received.lock().unwrap();
        all.push(event.clone());
        all.iter().filter(|one| one.id == event.id).count()
    };
    let response = receiver.behavior.lock().unwrap()(&event.json(), times);
    if response.status() == StatusCode::CONTINUE {
        // No response until the test releases it.
        receiver.release.notified().await;
        return status(200);
    }
    response
}

fn status(code: u16) -> Response {
    StatusCode::from_u16(code).unwrap().into_response()
}

pub fn options_for(receivers: &[&Receiver]) -> CoreOptions {
    let hosts: Vec<_> = receivers.iter().map(|receiver| receiver.host()).collect();
    CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", hosts.join(","))
}

async fn create(core: &Core, body: Value) -> Reply {
    core.admin(Method::POST, "/admin/v1/webhooks", &body).await
}

/// Creates a webhook, and returns its id and secret.
pub async fn webhook(core: &Core, receiver: &Receiver) -> (String, String) {
    let made = create(core, json!({"url": receiver.url})).await.expect(201).json();
    let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    (text("id"), text("secret"))
}

async fn get_webhook(core: &Core, id: &str) -> Value {
    core.admin_get(&format!("/admin/v1/webhooks/{id}")).await.expect(200).json()
}

async fn until(core: &Core, id: &str, what: impl Fn(&Value) -> bool) -> Value {
    eventually(SOON, || async {
        let webhook = get_webhook(core, id).await;
        if what(&webhook) { Ok(webhook) } else { Err(webhook.to_string()) }
    })
    .await
}

async fn transition(core: &Core, id: &Value, verb: &str) {
    core.transition(id.as_str().unwrap(), verb).await.expect(200);
}

async fn each_change_is_sent_signed(core: Core, sql: Sql, receiver: &Receiver) {
    let mut body = campaign("demo", json!({"total": 10}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    core.create("other", json!({"total": 10})).await;
    core.claim("demo", "early", "k").await.expect(201);
    sql.until("demo", 1).await;
    let (id, secret) = webhook(&core, receiver).await;
    let made = create(&core, json!({"url": receiver.url, "campaign_id": "other"})).await.expect(201).json();
    let claim = core.claim("demo", "ann", "k").await.expect(201).json()["claim"].clone();
    assert_eq!(receiver.until_received(1).await, ["ann held"], "claims made before the webhook are not sent");
    transition(&core, &claim["id"], "confirm").await;
    assert_eq!(receiver.until_received(2).await[1], "ann granted");
    transition(&core, &claim["id"], "return").await;
    assert_eq!(receiver.until_received(3).await[2], "ann returned");
    core.claim("other", "bob", "k").await.expect(201);
    assert_eq!(
        receiver.until_received(5).await[3..],
        ["bob granted", "bob granted"],
        "both webhooks get the event"
    );

    let all = receiver.received();
    let event = all[2].json();
    assert_eq!((&event["type"], &event["data"]["revision"]), (&json!("claim.returned"), &json!(3)));
    assert_eq!(event["data"]["claim"]["id"], claim["id"]);
    assert!(event["timestamp"].is_string(), "{event}");
    for event in &all[..3] {
        assert!(event.is_signed_with(&secret), "{event:?}");
        assert!(
            !event.is_signed_with(made["secret"].as_str().unwrap()),
            "signed with another webhook's secret"
        );
    }
    let forged = ReceivedEvent { body: all[0].body.replace("ann", "eve"), ..all[0].clone() };
    assert!(!forged.is_signed_with(&secret));
    let ids: BTreeSet<_> = all.iter().map(|event| &event.id).collect();
    assert_eq!(ids.len(), 4, "one id per change");

    let shown = until(&core, &id, |webhook| webhook["delivered"] == 4).await;
    assert_eq!(
        (&shown["waiting"], &shown["parked"], &shown["enabled"]),
        (&json!(0), &json!(0), &json!(true))
    );
    let all = core.admin_get("/admin/v1/webhooks").await.expect(200);
    assert_eq!(all.json()["items"].as_array().unwrap().len(), 2);
    assert!(
        !all.text().contains("whsec_") && !core.log().contains("whsec_"),
        "a secret is shown only at its creation"
    );
    let audit = core.admin_get("/admin/v1/audit").await.expect(200);
    assert!(!audit.text().contains("whsec_"));
    let of_it =
        audit.json()["items"].as_array().unwrap().iter().find(|item| item["webhook_id"] == id[..]).cloned();
    let of_it = of_it.unwrap_or_else(|| panic!("{}", audit.text()));
    assert_eq!(
        (&of_it["what"], &of_it["who"], &of_it["campaign_id"]),
        (&json!("webhook_create"), &json!("admin"), &Value::Null)
    );
}

#[tokio::test]
async fn each_change_is_sent_signed_on_sqlite() {
    let receiver = Receiver::start().await;
    let core = options_for(&[&receiver]).start().await;
    let sql = core.sql();
    each_change_is_sent_signed(core, sql, &receiver).await;
}

#[tokio::test]
async fn each_change_is_sent_signed_on_postgres() {
    let receiver = Receiver::start().await;
    if let Some((core, sql, _postgres)) = on_postgres("webhooks", options_for(&[&receiver])).await {
        each_change_is_sent_signed(core, sql, &receiver).await;
    }
}

#[tokio::test]
async fn only_listed_hosts_at_permitted_addresses_are_called() {
    let (listed, other) = (Receiver::start().await, Receiver::start().await);
    let port = listed.url.split(':').nth(2).unwrap().trim_end_matches("/hook");
    let hosts = format!("{},http://localhost:{port},hooks.example", listed.host());
    let core = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", hosts).start().await;
    core.create("demo", json!({"total": 10})).await;
    for (url, why) in [
        (other.url.as_str(), "not listed in CLAIMGATE_WEBHOOK_HOSTS"),
        ("https://evil.example/", "not listed in CLAIMGATE_WEBHOOK_HOSTS"),
        ("http://hooks.example/", "not listed in CLAIMGATE_WEBHOOK_HOSTS"),
        (&format!("http://localhost:{port}/"), "private address"),
        ("https://user@hooks.example/", "user"),
        ("https://hooks.example/#a", "fragment"),
        ("ftp://hooks.example/", "must be https"),
        ("", "must be https"),
    ] {
        let refused = create(&core, json!({"url": url})).await.refused(400, "invalid_request").json();
        assert_eq!(refused["field"], "url", "{url}: {refused}");
        assert!(refused["detail"].as_str().unwrap().contains(why), "{url}: {refused}");
    }
    create(&core, json!({"url": listed.url, "campaign_id": "none"})).await.refused(404, "campaign_not_found");
    create(&core, json!({"url": listed.url, "secret": "mine"})).await.refused(400, "invalid_request");
    create(&core, json!({})).await.refused(400, "invalid_request");

    // A redirect does not count as accepting the event.
    let elsewhere = other.url.clone();
    listed.respond_with(move |_, _| Redirect::temporary(&elsewhere).into_response());
    let (id, _) = webhook(&core, &listed).await;
    let tested = core.admin(Method::POST, &format!("/admin/v1/webhooks/{id}/test"), &Value::Null).await;
    assert_eq!(tested.expect(200).json(), json!({"delivered": false, "error": "status 307"}));
    assert!(other.received().is_empty(), "{:?}", other.received());

    // Webhooks are off by default.
    let off = Core::start().await;
    let refused = create(&off, json!({"url": listed.url})).await.refused(400, "invalid_request").json();
    assert!(refused["detail"].as_str().unwrap().contains("CLAIMGATE_WEBHOOK_HOSTS"), "{refused}");
}

#[tokio::test]
async fn an_unknown_webhook_is_not_found() {
    let core = Core::start().await;
    for (method, path) in [
        (Method::GET, ""),
        (Method::DELETE, ""),
        (Method::POST, "/test"),
        (Method::POST, "/enable"),
        (Method::POST, "/rotate-secret"),
        (Method::GET, "/deliveries"),
    ] {
        let reply =
            core.admin(method.clone(), &format!("/admin/v1/webhooks/wh_none{path}"), &Value::Null).await;
        reply.refused(404, "webhook_not_found");
    }
}

#[tokio::test]
async fn a_failing_event_delays_only_events_of_its_own_claim() {
    let receiver = Receiver::start().await;
    let core = options_for(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "40").start().await;
    let mut body = campaign("demo", json!({"total": 10}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    let (id, _) = webhook(&core, &receiver).await;
    // The first event of user `bad` is accepted at the third try at the earliest, and after that of `good`.
    let mut is_good_received = false;
    receiver.respond_with(move |event, times| {
        let claim = &event["data"]["claim"];
        is_good_received |= claim["user_id"] == "good";
        let is_first = claim["user_id"] == "bad" && claim["status"] == "held";
        if is_first && (times < 3 || !is_good_received) { status(500) } else { status(200) }
    });
    let bad = core.claim("demo", "bad", "k").await.expect(201).json()["claim"]["id"].clone();
    until(&core, &id, |webhook| webhook["waiting"] == 1).await;
    transition(&core, &bad, "confirm").await;
    core.claim("demo", "good", "k").await.expect(201);
    // If the event of `good` were delayed, the one of `bad` would be parked.
    until(&core, &id, |webhook| webhook["waiting"] == 0 && webhook["delivered"] == 3).await;
    let all = receiver.received();
    let summaries: Vec<_> = all.iter().map(ReceivedEvent::summary).collect();
    let place = |what: &str| {
        summaries.iter().rposition(|one| one == what).unwrap_or_else(|| panic!("{what} in {summaries:?}"))
    };
    assert!(place("bad held") < place("bad granted"), "in order: {summaries:?}");
    let tries: Vec<_> =
        all.iter().filter(|event| event.summary() == "bad held").map(|event| &event.id).collect();
    assert!(tries.len() >= 3 && tries.iter().all(|id| *id == tries[0]), "the same event: {tries:?}");
}

#[tokio::test]
async fn a_retry_after_date_is_respected() {
    let receiver = Receiver::start().await;
    // The longest accepted wait is an eighth of this.
    let core = options_for(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "80").start().await;
    core.create("demo", json!({"total": 10})).await;
    let (id, _) = webhook(&core, &receiver).await;
    let tries = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&tries);
    receiver.respond_with(move |_, times| {
        seen.lock().unwrap().push(Instant::now());
        if times > 1 {
            return status(200);
        }
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(8);
        let date = at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        (StatusCode::SERVICE_UNAVAILABLE, [("Retry-After", date)]).into_response()
    });
    core.claim("demo", "ann", "k").await.expect(201);
    until(&core, &id, |webhook| webhook["delivered"] == 1).await;
    let tries = tries.lock().unwrap();
    let waited = tries[1] - tries[0];
    // A date has no fractions of a second.
    assert!(waited >= Duration::from_secs(7), "retried after {waited:?}");
}

#[tokio::test]
async fn a_hung_receiver_does_not_delay_other_receivers_or_claims() {
    let (hangs, other) = (Receiver::start().await, Receiver::start().await);
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&arrivals);
    hangs.respond_with(move |_, _| {
        seen.lock().unwrap().push(Instant::now());
        status(100)
    });
    let core = options_for(&[&hangs, &other]).start().await;
    core.create("demo", json!({"total": 100})).await;
    for receiver in [&hangs, &other] {
        webhook(&core, receiver).await;
    }
    for n in 0..20 {
        core.claim("demo", &format!("u{n}"), "k").await.expect(201);
    }
    other.until_received(20).await;
    eventually(SOON, || async {
        holds(!arrivals.lock().unwrap().is_empty(), || "the hung receiver has no event".to_owned())
    })
    .await;
    // Each try ends after 10 s, and then another event has its turn.
    let arrivals = arrivals.lock().unwrap().clone();
    let in_flight = arrivals.iter().filter(|at| **at - arrivals[0] < Duration::from_secs(5)).count();
    assert!(in_flight <= 16, "more than the maximum in flight: {in_flight}");
}

#[tokio::test]
async fn five_parked_events_disable_a_webhook_until_it_is_enabled() {
    let receiver = Receiver::start().await;
    receiver.respond_with(|_, _| status(503));
    let core = options_for(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "1").start().await;
    assert_eq!(core.metric("claimgate_webhook_deliveries_total{outcome=\"parked\"}").await, Some(0));
    core.create("demo", json!({"total": 100})).await;
    let (id, _) = webhook(&core, &receiver).await;
    for user in ["a", "b", "c", "d", "e"] {
        core.claim("demo", user, "k").await.expect(201);
    }
    let disabled = until(&core, &id, |webhook| webhook["enabled"] == false).await;
    assert_eq!(
        (&disabled["disabled_because"], &disabled["parked"]),
        (&json!("5 events are parked"), &json!(5))
    );
    let path = format!("/admin/v1/webhooks/{id}/deliveries");
    let events = core.admin_get(&path).await.expect(200).json();
    assert_eq!(events["items"].as_array().unwrap().len(), 5);
    let first = &events["items"][0];
    assert_eq!(
        (&first["status"], &first["last_error"], &first["next_at"]),
        (&json!("parked"), &json!("status 503"), &Value::Null)
    );
    assert!(first["tries"].as_u64().unwrap() >= 8, "{first}");
    let page = core.admin_get(&format!("{path}?limit=2")).await.expect(200).json();
    let rest = format!("{path}?cursor={}", page["next_cursor"].as_str().unwrap());
    assert_eq!(core.admin_get(&rest).await.expect(200).json()["items"].as_array().unwrap().len(), 3);
    // A change made while the webhook is disabled is also delivered later.
    core.claim("demo", "f", "k").await.expect(201);
    core.sql().until("demo", 6).await;
    let before = receiver.received();
    receiver.respond_with(|_, _| status(200));
    core.admin(Method::POST, &format!("/admin/v1/webhooks/{id}/enable"), &Value::Null).await.expect(200);
    until(&core, &id, |webhook| webhook["delivered"] == 6 && webhook["parked"] == 0).await;
    let mut taken = BTreeMap::new();
    for event in &receiver.received()[before.len()..] {
        taken.insert(event.summary(), event.id.clone());
    }
    assert_eq!(taken.len(), 6, "{taken:?}");
    assert!(before.iter().all(|event| taken[&event.summary()] == event.id), "retries have the same ids");
    assert_eq!(core.metric("claimgate_webhook_deliveries_total{outcome=\"parked\"}").await, Some(5));
}

#[tokio::test]
async fn a_receiver_that_answers_410_is_disabled() {
    let receiver = Receiver::start().await;
    receiver.respond_with(|_, _| status(410));
    let core = options_for(&[&receiver]).start().await;
    core.create("demo", json!({"total": 100})).await;
    let (id, _) = webhook(&core, &receiver).await;
    core.claim("demo", "a", "k").await.expect(201);
    let disabled = until(&core, &id, |webhook| webhook["enabled"] == false).await;
    assert_eq!(disabled["disabled_because"], "the receiver answered 410 (Gone)");
    assert_eq!(receiver.received().len(), 1);
    let removed = core.admin(Method::DELETE, &format!("/admin/v1/webhooks/{id}"), &Value::Null).await;
    removed.expect(200);
    let again = core.admin(Method::DELETE, &format!("/admin/v1/webhooks/{id}"), &Value::Null).await;
    again.refused(404, "webhook_not_found");
}

#[tokio::test]
async fn both_secrets_sign_after_a_rotation_from_the_command_line() {
    let receiver = Receiver::start().await;
    let core = options_for(&[&receiver]).start().await;
    core.create("demo", json!({"total": 100})).await;
    let run_json = async |arguments: &[&str]| {
        let all: Vec<_> = ["webhooks"].iter().chain(arguments).chain(&["--json"]).copied().collect();
        run_against(&core, &all).await.ended(0).json()
    };
    let made = run_json(&["add", &receiver.url, "--campaign", "demo"]).await;
    let (id, old) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let rotated = run_json(&["rotate-secret", id]).await;
    let new = rotated["secret"].as_str().unwrap();
    assert_ne!(old, new);
    assert_eq!(run_json(&["test", id]).await["delivered"], true);
    let test = receiver.received()[0].clone();
    assert!(test.is_signed_with(old) && test.is_signed_with(new), "{test:?}");
    assert_eq!(test.json()["type"], "webhook.test");
    receiver.respond_with(|_, _| status(500));
    run_against(&core, &["webhooks", "test", id]).await.ended(1).one_line("was not accepted: status 500");
    assert_eq!(run_json(&["list"]).await[0]["id"], *id);
    assert_eq!(run_json(&["deliveries", id]).await, json!([]));
    assert_eq!(run_json(&["enable", id]).await["enabled"], true);
    run_json(&["remove", id, "--yes"]).await;
    run_against(&core, &["webhooks", "remove", id, "--yes"]).await.ended(1).one_line("webhook_not_found");
    run_against(&core, &["webhooks", "add", "https://evil.example/"])
        .await
        .ended(2)
        .one_line("CLAIMGATE_WEBHOOK_HOSTS");
}

#[tokio::test]
async fn deliveries_continue_after_core_is_killed() {
    let receiver = Receiver::start().await;
    let mut core = options_for(&[&receiver]).start().await;
    core.create("demo", json!({"total": 100})).await;
    let (id, _) = webhook(&core, &receiver).await;
    core.claim("demo", "before", "k").await.expect(201);
    receiver.until_received(1).await;
    core.kill();
    core = core.restart().await;
    core.claim("demo", "after", "k").await.expect(201);
    // After the restart, core still owns its lease.
    receiver.until_received(2).await;
    until(&core, &id, |webhook| webhook["delivered"].as_u64() >= Some(2)).await;
    assert_eq!(receiver.received().last().unwrap().summary(), "after granted");
}

/// Serves a receiver over TLS.
async fn serve_tls(receiver: Receiver, address: std::net::SocketAddr, certificates: &Certificates) {
    let (acceptor, listener) = (certificates.acceptor(), TcpListener::bind(address).await.unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(receiver.routes()));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
}

#[tokio::test]
async fn a_receiver_needs_a_trusted_certificate() {
    let Some(certificates) = available("webhooks by TLS", Certificates::make()) else { return };
    let address = free_address();
    let receiver = Receiver::at(&format!("https://{address}"));
    serve_tls(receiver.clone(), address, &certificates).await;
    for (authority, error) in
        [("ours", Value::Null), ("other", json!("invalid peer certificate: UnknownIssuer"))]
    {
        let core =
            options_for(&[&receiver]).with("SSL_CERT_FILE", certificates.file(&format!("{authority}.pem")));
        let core = core.start().await;
        let (id, _) = webhook(&core, &receiver).await;
        let tested = core.admin(Method::POST, &format!("/admin/v1/webhooks/{id}/test"), &Value::Null).await;
        let tested = tested.expect(200).json();
        assert_eq!((&tested["delivered"], &tested["error"]), (&json!(error.is_null()), &error));
    }
    assert_eq!(receiver.received().len(), 1);
}

/// Time limit of a try: the receiver has 10 s.
const TRY_MAX: Duration = Duration::from_secs(12);

#[tokio::test]
async fn a_try_ends_despite_endless_and_late_answers() {
    let (endless, slow) = (Receiver::start().await, Receiver::start().await);
    endless.respond_with(|_, _| {
        let chunks =
            futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 8192])));
        Response::new(axum::body::Body::from_stream(chunks))
    });
    slow.respond_with(|_, _| status(100));
    let core = options_for(&[&endless, &slow]).start().await;
    for (receiver, expected) in [(&endless, json!(null)), (&slow, json!("no answer within 10 s"))] {
        let (id, _) = webhook(&core, receiver).await;
        let url = core.admin_url(&format!("/admin/v1/webhooks/{id}/test"));
        let request = core.client().request(Method::POST, &url).bearer_auth(core.admin_token());
        let began = Instant::now();
        let tested = core.client().send(request.timeout(SOON)).await.expect("an answer");
        assert_eq!(tested.expect(200).json()["error"], expected);
        assert!(began.elapsed() < promised(TRY_MAX), "answered only after {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn the_status_counts_even_if_the_body_is_truncated() {
    let listener = TcpListener::bind(free_address()).await.unwrap();
    let receiver = Receiver::at(&format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ntak").await.unwrap();
            open.push(stream);
        }
    });
    let core = options_for(&[&receiver]).start().await;
    let (id, _) = webhook(&core, &receiver).await;
    let tested = core.admin(Method::POST, &format!("/admin/v1/webhooks/{id}/test"), &Value::Null).await;
    assert_eq!(tested.expect(200).json(), json!({"delivered": true, "error": null}));
}

/// Creates a campaign with holds, makes a claim of `user`, and returns its id.
async fn held_claim(core: &Core, user: &str) -> Value {
    let mut body = campaign("demo", json!({"total": 100}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    core.claim("demo", user, "k").await.expect(201).json()["claim"]["id"].clone()
}

#[tokio::test]
async fn a_queued_events_retry_period_starts_at_its_first_attempt() {
    let receiver = Receiver::start().await;
    receiver.respond_with(|_, _| status(500));
    let core = options_for(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "4").start().await;
    let (id, _) = webhook(&core, &receiver).await;
    let claim = held_claim(&core, "ann").await;
    // On a slow machine the event may be parked already.
    until(&core, &id, |webhook| webhook["waiting"] == 1 || webhook["parked"] == 1).await;
    transition(&core, &claim, "confirm").await;
    until(&core, &id, |webhook| webhook["parked"] == 2).await;
    let events = core.admin_get(&format!("/admin/v1/webhooks/{id}/deliveries")).await.expect(200).json();
    let since =
        |at: usize| events["items"][at]["first_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let apart = since(1).duration_since(since(0));
    assert!(apart.as_millis() >= 4000, "its time started before it was tried: {events}");
}

/// Returns how often per second a core with this database scans the queue of webhook events.
async fn polls_per_second(sql: &Sql) -> f64 {
    const SCANS: &str = "SELECT seq_scan + COALESCE(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = $1";
    let (before, started) = (sql.number(SCANS, "webhook_events").await, Instant::now());
    sleep(Duration::from_secs(4)).await;
    let scans = sql.number(SCANS, "webhook_events").await - before;
    f64::from(i32::try_from(scans).unwrap()) / started.elapsed().as_secs_f64()
}

#[tokio::test]
async fn many_failing_events_do_not_delay_other_events() {
    const NEVER: usize = 280;
    let receiver = Receiver::start().await;
    receiver.respond_with(|event, _| {
        let user = event["data"]["claim"]["user_id"].as_str().unwrap();
        status(if user.starts_with("never") { 500 } else { 200 })
    });
    let core = options_for(&[&receiver]).start().await;
    core.create("demo", json!({})).await;
    let (id, _) = webhook(&core, &receiver).await;
    let users: Vec<_> = (0..NEVER).map(|n| format!("never{n}")).collect();
    for users in users.chunks(256) {
        let claims: Vec<_> = users.iter().map(|user| claim_body("demo", user, "k", 1)).collect();
        core.claim_batch(&claims).await.expect(200);
    }
    core.sql().until("demo", NEVER).await;
    for n in 0..5 {
        core.claim("demo", &format!("good{n}"), "k").await.expect(201);
    }
    let found = until(&core, &id, |webhook| webhook["delivered"] == 5).await;
    assert_eq!(found["enabled"], true, "{found}");
    until(&core, &id, |webhook| webhook["waiting"] == NEVER).await;
    // Failing events are also retried, alternating with new events.
    eventually(SOON, || async {
        let all = receiver.received();
        let again =
            all.iter().filter(|event| all.iter().filter(|one| one.id == event.id).count() > 1).count();
        holds(again > 0, || format!("{} events, none of them retried", all.len()))
    })
    .await;
}

#[tokio::test]
async fn a_queued_event_is_not_polled_continuously() {
    let receiver = Receiver::start().await;
    receiver.respond_with(|_, _| status(500));
    let Some((core, sql, _postgres)) = on_postgres("webhooks", options_for(&[&receiver])).await else {
        return;
    };
    let (id, _) = webhook(&core, &receiver).await;
    let claim = held_claim(&core, "ann").await;
    until(&core, &id, |webhook| webhook["waiting"] == 1).await;
    transition(&core, &claim, "confirm").await;
    until(&core, &id, |webhook| webhook["waiting"] == 2).await;
    let polls = polls_per_second(&sql).await;
    assert!(polls < 100.0, "{polls:.0} polls per second for a queued event");
}

#[tokio::test]
async fn a_core_without_the_lease_does_not_remove_events() {
    let receiver = Receiver::start().await;
    receiver.respond_with(|_, times| status(if times == 1 { 500 } else { 100 }));
    let core = options_for(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "40").start().await;
    core.create("demo", json!({"total": 10})).await;
    let (id, _) = webhook(&core, &receiver).await;
    core.claim("demo", "ann", "k").await.expect(201);
    receiver.until_received(2).await;
    // In the meantime a different core delivered the event and stored a postponed event under the same
    // number.
    let sql = core.sql();
    let lease =
        |holder: &str, until: i64| format!("UPDATE webhooks SET holder = '{holder}', held_until = {until}");
    sql.run(lease("another", now_ms() + 60_000)).await;
    assert_eq!(sql.run("UPDATE webhook_events SET event_id = 'evt_another'".to_owned()).await, 1);
    receiver.respond_with(|_, _| status(200));
    receiver.release.notify_one();
    sql.run(lease("", 0)).await;
    eventually(SOON, || async {
        let all = receiver.received();
        holds(all.iter().any(|event| event.id == "evt_another"), || format!("{all:#?}"))
    })
    .await;
    until(&core, &id, |webhook| webhook["waiting"] == 0).await;
}

#[tokio::test]
async fn a_new_webhook_does_not_get_claims_older_than_the_feed() {
    let receiver = Receiver::start().await;
    let core = options_for(&[&receiver]).start().await;
    let sql = core.sql();
    core.create("demo", json!({"total": 10})).await;
    core.create("empty", json!({"total": 10})).await;
    core.claim("demo", "early", "k").await.expect(201);
    sql.until("demo", 1).await;
    // Recreate the state of a database older than the feed: one row per campaign, the last one without
    // claims.
    for statement in [
        "DELETE FROM feed",
        "INSERT INTO feed (number, campaign_id) SELECT ROW_NUMBER() OVER (ORDER BY id), id FROM campaigns",
        "UPDATE feed_position SET last_number = 2",
    ] {
        sql.run(statement.to_owned()).await;
    }
    webhook(&core, &receiver).await;
    core.claim("empty", "late", "k").await.expect(201);
    core.claim("demo", "later", "k").await.expect(201);
    // A claim may be sent twice: with its campaign and separately.
    let summaries = eventually(SOON, || async {
        let summaries: BTreeSet<_> = receiver.received().iter().map(ReceivedEvent::summary).collect();
        if summaries.contains("late granted") && summaries.contains("later granted") {
            Ok(summaries)
        } else {
            Err(format!("{summaries:?}"))
        }
    })
    .await;
    assert!(!summaries.contains("early granted"), "{summaries:?}");
}

#[tokio::test]
async fn an_unreadable_claim_that_stops_a_webhook_is_logged() {
    let receiver = Receiver::start().await;
    let core = options_for(&[&receiver]).start().await;
    let sql = core.sql();
    core.create("demo", json!({"total": 10})).await;
    let (id, _) = webhook(&core, &receiver).await;
    let until = now_ms() + 60_000;
    sql.run(format!("UPDATE webhooks SET holder = 'another', held_until = {until}")).await;
    core.claim("demo", "ann", "k").await.expect(201);
    sql.until("demo", 1).await;
    sql.run("UPDATE claims SET sequence = -1".to_owned()).await;
    sql.run("UPDATE webhooks SET holder = '', held_until = 0".to_owned()).await;
    core.until_logged(SOON, &["ERROR", "have stopped", "cannot read", &id]).await;
}
