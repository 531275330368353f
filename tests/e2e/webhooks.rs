//! Webhooks: signed, retried, in order per claim, to listed hosts alone; one receiver's trouble is no other's.

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
use support::certificates::Certificates;
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::process::free_address;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Sql, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::command_line::ask;
use crate::on_postgres::on_postgres;

/// What a receiver does with an event: of this body, which comes for the so-manieth time, from 1.
type Manners = Arc<Mutex<Box<dyn FnMut(&Value, usize) -> Response + Send>>>;

/// An event as it came.
#[derive(Debug, Clone)]
struct Came {
    id: String,
    headers: HeaderMap,
    body: String,
}

impl Came {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// User and status of the claim that it tells of.
    fn told(&self) -> String {
        let claim = &self.json()["data"]["claim"];
        format!("{} {}", claim["user_id"].as_str().unwrap(), claim["status"].as_str().unwrap())
    }

    fn is_signed_with(&self, secret: &str) -> bool {
        standardwebhooks::Webhook::new(secret).unwrap().verify(self.body.as_bytes(), &self.headers).is_ok()
    }
}

/// A receiver that takes everything, unless told otherwise.
#[derive(Clone)]
struct Receiver {
    url: String,
    came: Arc<Mutex<Vec<Came>>>,
    manners: Manners,
    /// Lets an answer of status 100 go, as 200.
    let_go: Arc<Notify>,
}

impl Receiver {
    async fn start() -> Self {
        let receiver = Self::at(&format!("http://{}", free_address()));
        let address = receiver.url.trim_start_matches("http://").trim_end_matches("/hook").to_owned();
        let listener = TcpListener::bind(address).await.unwrap();
        let routes = receiver.routes();
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        receiver
    }

    fn at(origin: &str) -> Self {
        let manners: Manners = Arc::new(Mutex::new(Box::new(|_, _| StatusCode::NO_CONTENT.into_response())));
        Self { url: format!("{origin}/hook"), came: Arc::default(), manners, let_go: Arc::default() }
    }

    fn routes(&self) -> Router {
        Router::new().route("/hook", post(take)).with_state(self.clone())
    }

    /// As `CLAIMGATE_WEBHOOK_HOSTS` lists it.
    fn host(&self) -> &str {
        self.url.trim_end_matches("/hook").trim_start_matches("https://")
    }

    fn behaves(&self, manners: impl FnMut(&Value, usize) -> Response + Send + 'static) {
        *self.manners.lock().unwrap() = Box::new(manners);
    }

    fn came(&self) -> Vec<Came> {
        self.came.lock().unwrap().clone()
    }

    /// What it was told of claims, once there are `count` events.
    async fn told(&self, count: usize) -> Vec<String> {
        eventually(2 * SOON, || async {
            let came = self.came();
            holds(came.len() >= count, || format!("{} of {count} events: {came:#?}", came.len()))
        })
        .await;
        self.came().iter().map(Came::told).collect()
    }
}

async fn take(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> Response {
    let came = Came {
        id: headers["webhook-id"].to_str().unwrap().to_owned(),
        headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    let times = {
        let mut all = receiver.came.lock().unwrap();
        all.push(came.clone());
        all.iter().filter(|one| one.id == came.id).count()
    };
    let response = receiver.manners.lock().unwrap()(&came.json(), times);
    if response.status() == StatusCode::CONTINUE {
        // It never answers, unless the test lets it.
        receiver.let_go.notified().await;
        return status(200);
    }
    response
}

fn status(code: u16) -> Response {
    StatusCode::from_u16(code).unwrap().into_response()
}

fn listing(receivers: &[&Receiver]) -> CoreOptions {
    let hosts: Vec<_> = receivers.iter().map(|receiver| receiver.host()).collect();
    CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", hosts.join(","))
}

async fn create(core: &Core, body: Value) -> Reply {
    core.admin(Method::POST, "/admin/v1/webhooks", &body).await
}

/// Makes a webhook; its id and secret.
async fn webhook(core: &Core, receiver: &Receiver) -> (String, String) {
    let made = create(core, json!({"url": receiver.url})).await.expect(201).json();
    let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    (text("id"), text("secret"))
}

async fn of(core: &Core, id: &str) -> Value {
    core.admin_get(&format!("/admin/v1/webhooks/{id}")).await.expect(200).json()
}

async fn until(core: &Core, id: &str, what: impl Fn(&Value) -> bool) -> Value {
    eventually(2 * SOON, || async {
        let webhook = of(core, id).await;
        if what(&webhook) { Ok(webhook) } else { Err(webhook.to_string()) }
    })
    .await
}

async fn transition(core: &Core, id: &Value, verb: &str) {
    let url = core.url(&format!("/internal/v1/claims/{}/{verb}", id.as_str().unwrap()));
    core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
}

async fn each_change_is_told_signed(core: Core, sql: Sql, receiver: &Receiver) {
    let mut body = campaign("demo", json!({"total": 10}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    core.create("other", json!({"total": 10})).await;
    core.claim("demo", "early", "k").await.expect(201);
    sql.until("demo", 1).await;
    let (id, secret) = webhook(&core, receiver).await;
    let made = create(&core, json!({"url": receiver.url, "campaign_id": "other"})).await.expect(201).json();
    let claim = core.claim("demo", "ann", "k").await.expect(201).json()["claim"].clone();
    assert_eq!(receiver.told(1).await, ["ann held"], "nothing of before it was made");
    transition(&core, &claim["id"], "confirm").await;
    assert_eq!(receiver.told(2).await[1], "ann granted");
    transition(&core, &claim["id"], "return").await;
    assert_eq!(receiver.told(3).await[2], "ann returned");
    core.claim("other", "bob", "k").await.expect(201);
    assert_eq!(receiver.told(5).await[3..], ["bob granted", "bob granted"], "both webhooks are told of it");

    let came = receiver.came();
    let event = came[2].json();
    assert_eq!((&event["type"], &event["data"]["revision"]), (&json!("claim.returned"), &json!(3)));
    assert_eq!(event["data"]["claim"]["id"], claim["id"]);
    assert!(event["timestamp"].is_string(), "{event}");
    for event in &came[..3] {
        assert!(event.is_signed_with(&secret), "{event:?}");
        assert!(!event.is_signed_with(made["secret"].as_str().unwrap()), "another one's secret");
    }
    let forged = Came { body: came[0].body.replace("ann", "eve"), ..came[0].clone() };
    assert!(!forged.is_signed_with(&secret));
    let ids: BTreeSet<_> = came.iter().map(|event| &event.id).collect();
    assert_eq!(ids.len(), 4, "one a change");

    let shown = until(&core, &id, |webhook| webhook["delivered"] == 4).await;
    assert_eq!(
        (&shown["waiting"], &shown["parked"], &shown["enabled"]),
        (&json!(0), &json!(0), &json!(true))
    );
    let all = core.admin_get("/admin/v1/webhooks").await.expect(200);
    assert_eq!(all.json()["items"].as_array().unwrap().len(), 2);
    assert!(!all.text().contains("whsec_") && !core.log().contains("whsec_"), "a secret is shown once");
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
async fn each_change_is_told_signed_sqlite() {
    let receiver = Receiver::start().await;
    let core = listing(&[&receiver]).start().await;
    let sql = core.sql();
    each_change_is_told_signed(core, sql, &receiver).await;
}

#[tokio::test]
async fn each_change_is_told_signed_postgres() {
    let receiver = Receiver::start().await;
    if let Some((core, sql, _postgres)) = on_postgres("webhooks", listing(&[&receiver])).await {
        each_change_is_told_signed(core, sql, &receiver).await;
    }
}

#[tokio::test]
async fn only_listed_hosts_at_addresses_that_may_be_called_are_called() {
    let (listed, other) = (Receiver::start().await, Receiver::start().await);
    let port = listed.url.split(':').nth(2).unwrap().trim_end_matches("/hook");
    let hosts = format!("{},http://localhost:{port},hooks.example", listed.host());
    let core = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", hosts).start().await;
    core.create("demo", json!({"total": 10})).await;
    for (url, why) in [
        (other.url.as_str(), "not in CLAIMGATE_WEBHOOK_HOSTS"),
        ("https://evil.example/", "not in CLAIMGATE_WEBHOOK_HOSTS"),
        ("http://hooks.example/", "not in CLAIMGATE_WEBHOOK_HOSTS"),
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

    // A redirect is an answer that does not take the event.
    let elsewhere = other.url.clone();
    listed.behaves(move |_, _| Redirect::temporary(&elsewhere).into_response());
    let (id, _) = webhook(&core, &listed).await;
    let tested = core.admin(Method::POST, &format!("/admin/v1/webhooks/{id}/test"), &Value::Null).await;
    assert_eq!(tested.expect(200).json(), json!({"delivered": false, "error": "status 307"}));
    assert!(other.came().is_empty(), "{:?}", other.came());

    // Off by default.
    let off = Core::start().await;
    let refused = create(&off, json!({"url": listed.url})).await.refused(400, "invalid_request").json();
    assert!(refused["detail"].as_str().unwrap().contains("CLAIMGATE_WEBHOOK_HOSTS"), "{refused}");
}

#[tokio::test]
async fn an_unknown_webhook_is_told_as_such() {
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
async fn an_event_that_is_not_taken_holds_up_its_own_claim_alone() {
    let receiver = Receiver::start().await;
    let core = listing(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "16").start().await;
    let mut body = campaign("demo", json!({"total": 10}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    let (id, _) = webhook(&core, &receiver).await;
    // Bad's first event is taken at its third try.
    receiver.behaves(|event, times| {
        let claim = &event["data"]["claim"];
        let is_first = claim["user_id"] == "bad" && claim["status"] == "held";
        if is_first && times < 3 { status(500) } else { status(200) }
    });
    let bad = core.claim("demo", "bad", "k").await.expect(201).json()["claim"]["id"].clone();
    until(&core, &id, |webhook| webhook["waiting"] == 1).await;
    transition(&core, &bad, "confirm").await;
    core.claim("demo", "good", "k").await.expect(201);
    let told = receiver.told(5).await;
    let place =
        |what: &str| told.iter().rposition(|one| one == what).unwrap_or_else(|| panic!("{what} in {told:?}"));
    assert!(place("good held") < place("bad held"), "others go on: {told:?}");
    assert!(place("bad held") < place("bad granted"), "in order: {told:?}");
    let came = receiver.came();
    let tries: Vec<_> =
        came.iter().filter(|event| event.told() == "bad held").map(|event| &event.id).collect();
    assert!(tries.len() == 3 && tries.iter().all(|id| *id == tries[0]), "the same event: {tries:?}");
    until(&core, &id, |webhook| webhook["waiting"] == 0 && webhook["delivered"] == 3).await;
}

#[tokio::test]
async fn a_receiver_that_hangs_holds_up_no_other_and_no_claim() {
    let (hangs, other) = (Receiver::start().await, Receiver::start().await);
    hangs.behaves(|_, _| status(100));
    let core = listing(&[&hangs, &other]).start().await;
    core.create("demo", json!({"total": 100})).await;
    for receiver in [&hangs, &other] {
        webhook(&core, receiver).await;
    }
    for n in 0..20 {
        core.claim("demo", &format!("u{n}"), "k").await.expect(201);
    }
    other.told(20).await;
    let waiting = hangs.came();
    assert!(waiting.len() <= 16, "as many at once as may: {}", waiting.len());
}

#[tokio::test]
async fn five_parked_events_disable_it_and_enabled_it_goes_on_where_it_stopped() {
    let receiver = Receiver::start().await;
    receiver.behaves(|_, _| status(503));
    let core = listing(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "1").start().await;
    let metrics = core.admin_get("/metrics").await.text();
    assert!(metrics.contains("claimgate_webhook_deliveries_total{outcome=\"parked\"} 0"), "{metrics}");
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
    // What changes meanwhile is told as well.
    core.claim("demo", "f", "k").await.expect(201);
    core.sql().until("demo", 6).await;
    let before = receiver.came();
    receiver.behaves(|_, _| status(200));
    core.admin(Method::POST, &format!("/admin/v1/webhooks/{id}/enable"), &Value::Null).await.expect(200);
    until(&core, &id, |webhook| webhook["delivered"] == 6 && webhook["parked"] == 0).await;
    let mut taken = BTreeMap::new();
    for event in &receiver.came()[before.len()..] {
        taken.insert(event.told(), event.id.clone());
    }
    assert_eq!(taken.len(), 6, "{taken:?}");
    assert!(before.iter().all(|event| taken[&event.told()] == event.id), "the same ids");
    let metrics = core.admin_get("/metrics").await.text();
    assert!(metrics.contains("claimgate_webhook_deliveries_total{outcome=\"parked\"} 5"), "{metrics}");
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_asked_no_more() {
    let receiver = Receiver::start().await;
    receiver.behaves(|_, _| status(410));
    let core = listing(&[&receiver]).start().await;
    core.create("demo", json!({"total": 100})).await;
    let (id, _) = webhook(&core, &receiver).await;
    core.claim("demo", "a", "k").await.expect(201);
    let disabled = until(&core, &id, |webhook| webhook["enabled"] == false).await;
    assert_eq!(disabled["disabled_because"], "the receiver has answered 410");
    assert_eq!(receiver.came().len(), 1);
    let removed = core.admin(Method::DELETE, &format!("/admin/v1/webhooks/{id}"), &Value::Null).await;
    removed.expect(200);
    let again = core.admin(Method::DELETE, &format!("/admin/v1/webhooks/{id}"), &Value::Null).await;
    again.refused(404, "webhook_not_found");
}

#[tokio::test]
async fn both_secrets_sign_for_a_day_after_a_rotation_and_the_command_line_does_all_of_it() {
    let receiver = Receiver::start().await;
    let core = listing(&[&receiver]).start().await;
    core.create("demo", json!({"total": 100})).await;
    let of = async |arguments: &[&str]| {
        let all: Vec<_> = ["webhooks"].iter().chain(arguments).chain(&["--json"]).copied().collect();
        ask(&core, &all).await.ended(0).json()
    };
    let made = of(&["add", &receiver.url, "--campaign", "demo"]).await;
    let (id, old) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let rotated = of(&["rotate-secret", id]).await;
    let new = rotated["secret"].as_str().unwrap();
    assert_ne!(old, new);
    assert_eq!(of(&["test", id]).await["delivered"], true);
    let test = receiver.came()[0].clone();
    assert!(test.is_signed_with(old) && test.is_signed_with(new), "{test:?}");
    assert_eq!(test.json()["type"], "webhook.test");
    receiver.behaves(|_, _| status(500));
    ask(&core, &["webhooks", "test", id]).await.ended(1).one_line("was not taken: status 500");
    assert_eq!(of(&["list"]).await[0]["id"], *id);
    assert_eq!(of(&["deliveries", id]).await, json!([]));
    assert_eq!(of(&["enable", id]).await["enabled"], true);
    of(&["remove", id]).await;
    ask(&core, &["webhooks", "remove", id]).await.ended(1).one_line("webhook_not_found");
    ask(&core, &["webhooks", "add", "https://evil.example/"])
        .await
        .ended(2)
        .one_line("CLAIMGATE_WEBHOOK_HOSTS");
}

#[tokio::test]
async fn a_core_that_was_killed_goes_on_where_it_was() {
    let receiver = Receiver::start().await;
    let mut core = listing(&[&receiver]).start().await;
    core.create("demo", json!({"total": 100})).await;
    let (id, _) = webhook(&core, &receiver).await;
    core.claim("demo", "before", "k").await.expect(201);
    receiver.told(1).await;
    core.kill();
    core = core.restart().await;
    core.claim("demo", "after", "k").await.expect(201);
    // The lease of the core that was killed is its own after the restart.
    receiver.told(2).await;
    until(&core, &id, |webhook| webhook["delivered"].as_u64() >= Some(2)).await;
    assert_eq!(receiver.came().last().unwrap().told(), "after granted");
}

/// A receiver behind TLS, with this certificate and key.
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
async fn a_receiver_has_to_show_a_certificate_that_is_trusted() {
    let certificates = match Certificates::make() {
        Ok(certificates) => certificates,
        Err(why) => {
            eprintln!("SKIPPED webhooks by TLS: {why}");
            assert!(std::env::var_os("CI").is_none(), "skipped: {why}");
            return;
        }
    };
    let address = free_address();
    let receiver = Receiver::at(&format!("https://{address}"));
    serve_tls(receiver.clone(), address, &certificates).await;
    for (authority, error) in
        [("ours", Value::Null), ("other", json!("invalid peer certificate: UnknownIssuer"))]
    {
        let core =
            listing(&[&receiver]).with("SSL_CERT_FILE", certificates.file(&format!("{authority}.pem")));
        let core = core.start().await;
        let (id, _) = webhook(&core, &receiver).await;
        let tested = core.admin(Method::POST, &format!("/admin/v1/webhooks/{id}/test"), &Value::Null).await;
        let tested = tested.expect(200).json();
        assert_eq!((&tested["delivered"], &tested["error"]), (&json!(error.is_null()), &error));
    }
    assert_eq!(receiver.came().len(), 1);
}

#[tokio::test]
async fn an_answer_without_end_and_one_that_comes_too_late_are_cut_off() {
    let (endless, slow) = (Receiver::start().await, Receiver::start().await);
    endless.behaves(|_, _| {
        let chunks =
            futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 8192])));
        Response::new(axum::body::Body::from_stream(chunks))
    });
    slow.behaves(|_, _| status(100));
    let core = listing(&[&endless, &slow]).start().await;
    for (receiver, expected) in [(&endless, json!(null)), (&slow, json!("no answer within 10 s"))] {
        let (id, _) = webhook(&core, receiver).await;
        let url = core.admin_url(&format!("/admin/v1/webhooks/{id}/test"));
        let request = core.client().request(Method::POST, &url).bearer_auth(core.admin_token());
        let tested = core.client().send(request.timeout(Duration::from_secs(30))).await.expect("an answer");
        assert_eq!(tested.expect(200).json()["error"], expected);
    }
}

#[tokio::test]
async fn a_status_counts_whatever_becomes_of_the_body_behind_it() {
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
    let core = listing(&[&receiver]).start().await;
    let (id, _) = webhook(&core, &receiver).await;
    let tested = core.admin(Method::POST, &format!("/admin/v1/webhooks/{id}/test"), &Value::Null).await;
    assert_eq!(tested.expect(200).json(), json!({"delivered": true, "error": null}));
}

/// A campaign that holds its claims, and the id of one by `user`.
async fn held(core: &Core, user: &str) -> Value {
    let mut body = campaign("demo", json!({"total": 100}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    core.claim("demo", user, "k").await.expect(201).json()["claim"]["id"].clone()
}

#[tokio::test]
async fn an_event_behind_another_one_has_its_own_time_for_tries() {
    let receiver = Receiver::start().await;
    receiver.behaves(|_, _| status(500));
    let core = listing(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "4").start().await;
    let (id, _) = webhook(&core, &receiver).await;
    let claim = held(&core, "ann").await;
    until(&core, &id, |webhook| webhook["waiting"] == 1).await;
    transition(&core, &claim, "confirm").await;
    until(&core, &id, |webhook| webhook["parked"] == 2).await;
    let events = core.admin_get(&format!("/admin/v1/webhooks/{id}/deliveries")).await.expect(200).json();
    let since =
        |at: usize| events["items"][at]["first_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let apart = since(1).duration_since(since(0));
    assert!(apart.as_millis() >= 4000, "its time began while it was not tried: {events}");
}

/// Looks at what waits for webhooks that a core with its database makes a second.
async fn looks_a_second(sql: &Sql) -> f64 {
    const SCANS: &str = "SELECT seq_scan + COALESCE(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = $1";
    let (before, started) = (sql.number(SCANS, "webhook_events").await, Instant::now());
    sleep(Duration::from_secs(4)).await;
    let looks = sql.number(SCANS, "webhook_events").await - before;
    f64::from(i32::try_from(looks).unwrap()) / started.elapsed().as_secs_f64()
}

#[tokio::test]
async fn an_event_behind_another_one_is_not_looked_at_all_the_time() {
    let receiver = Receiver::start().await;
    receiver.behaves(|_, _| status(500));
    let Some((core, sql, _postgres)) = on_postgres("webhooks", listing(&[&receiver])).await else { return };
    let (id, _) = webhook(&core, &receiver).await;
    let claim = held(&core, "ann").await;
    until(&core, &id, |webhook| webhook["waiting"] == 1).await;
    transition(&core, &claim, "confirm").await;
    until(&core, &id, |webhook| webhook["waiting"] == 2).await;
    let looks = looks_a_second(&sql).await;
    assert!(looks < 100.0, "{looks:.0} looks a second for an event behind another one");
}

#[tokio::test]
async fn a_core_that_has_lost_its_lease_takes_no_event_away() {
    let receiver = Receiver::start().await;
    receiver.behaves(|_, times| status(if times == 1 { 500 } else { 100 }));
    let core = listing(&[&receiver]).with("CLAIMGATE_WEBHOOK_RETRY_S", "16").start().await;
    core.create("demo", json!({"total": 10})).await;
    let (id, _) = webhook(&core, &receiver).await;
    core.claim("demo", "ann", "k").await.expect(201);
    receiver.told(2).await;
    // Meanwhile another core has delivered it, and put off another event, which has got its number.
    let sql = core.sql();
    let lease =
        |holder: &str, until: i64| format!("UPDATE webhooks SET holder = '{holder}', held_until = {until}");
    sql.run(lease("another", 9_000_000_000_000)).await;
    assert_eq!(sql.run("UPDATE webhook_events SET event_id = 'evt_another'".to_owned()).await, 1);
    receiver.behaves(|_, _| status(200));
    receiver.let_go.notify_one();
    sql.run(lease("", 0)).await;
    eventually(2 * SOON, || async {
        let came = receiver.came();
        holds(came.iter().any(|event| event.id == "evt_another"), || format!("{came:#?}"))
    })
    .await;
    until(&core, &id, |webhook| webhook["waiting"] == 0).await;
}

#[tokio::test]
async fn a_new_webhook_is_not_told_of_what_was_there_before_the_feed() {
    let receiver = Receiver::start().await;
    let core = listing(&[&receiver]).start().await;
    let sql = core.sql();
    core.create("demo", json!({"total": 10})).await;
    core.create("empty", json!({"total": 10})).await;
    core.claim("demo", "early", "k").await.expect(201);
    sql.until("demo", 1).await;
    // As a database is that is older than the feed: one row for each campaign, the last of one without claims.
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
    // A claim may be told twice: with its campaign, and by itself.
    let told = eventually(2 * SOON, || async {
        let told: BTreeSet<_> = receiver.came().iter().map(Came::told).collect();
        if told.contains("late granted") && told.contains("later granted") {
            Ok(told)
        } else {
            Err(format!("{told:?}"))
        }
    })
    .await;
    assert!(!told.contains("early granted"), "{told:?}");
}

#[tokio::test]
async fn a_claim_that_cannot_be_read_and_stops_a_webhook_is_told_to_the_operator() {
    let receiver = Receiver::start().await;
    let core = listing(&[&receiver]).start().await;
    let sql = core.sql();
    core.create("demo", json!({"total": 10})).await;
    let (id, _) = webhook(&core, &receiver).await;
    sql.run("UPDATE webhooks SET holder = 'another', held_until = 9000000000000".to_owned()).await;
    core.claim("demo", "ann", "k").await.expect(201);
    sql.until("demo", 1).await;
    sql.run("UPDATE claims SET sequence = -1".to_owned()).await;
    sql.run("UPDATE webhooks SET holder = '', held_until = 0".to_owned()).await;
    eventually(2 * SOON, || async {
        let log = core.log();
        let is_said =
            |line: &str| ["ERROR", "stand still", "cannot read", &id].iter().all(|part| line.contains(part));
        holds(log.lines().any(is_said), || log.clone())
    })
    .await;
}
