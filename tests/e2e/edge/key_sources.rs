//! The source of the issuer's key set: bad responses, addresses that must not be reached, and the refresh interval.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use support::clock::FrozenClock;
use support::edge::{Edge, Runtime, World, payload};
use support::issuer::Issuer;
use support::times::now_ms;
use support::wait::holds;
use support::{SOON, eventually, promised};

use super::key_server::{Answer, DISCOVERY, JWKS, KeyServer};
use super::key_sets::{claim, claim_decided, kid, lasting, until_logged, world, world_on_clock};
use super::run;

/// A fetch may take 2 s; a loaded machine adds to it.
pub const FETCH_MAX: Duration = Duration::from_secs(4);
pub const NO_KEY_SET: &str = "is not a JSON Web Key Set";
const NO_DISCOVERY: &str = "is not a discovery document";

/// Returns a token by `issuer` for the configured issuer `iss`.
fn token_of(issuer: &Issuer, iss: &str) -> String {
    let mut claims = payload("alice");
    claims["iss"] = json!(iss);
    issuer.token(&kid("a"), &claims)
}

/// Returns responses in place of the JSON object `document`, each with its name and the reason in the log. `malformed`
/// is the reason if the response is not such a document.
pub fn bad_answers(
    server: &KeyServer,
    document: &Value,
    malformed: &'static str,
) -> Vec<(&'static str, Answer, &'static str)> {
    let good = Answer::json(document);
    let mut big = document.clone();
    big["more"] = json!("x".repeat(64 * 1024));
    let redirect = format!("Location: {}\r\n", server.url("/moved"));
    server.answer("/moved", good.clone());
    let text = |text: &str| Answer::Complete(200, String::new(), text.to_owned());
    let whole = document.to_string();
    vec![
        ("closed", Answer::Closed, "no answer"),
        ("silence", Answer::Silence, "no answer"),
        ("slow", Answer::Slow(FETCH_MAX, Box::new(good.clone())), "no answer"),
        ("trickle", Answer::Trickle(Duration::from_millis(200), Box::new(good)), "no complete answer"),
        ("endless", Answer::Endless, "longer than 65536 bytes"),
        ("oversized", Answer::json(&big), "longer than 65536 bytes"),
        ("redirect", Answer::Complete(302, redirect, String::new()), "status 302"),
        ("error", Answer::Complete(500, String::new(), String::new()), "status 500"),
        ("malformed", text("<html>"), malformed),
        ("half", text(&whole[..whole.len() / 2]), malformed),
        ("empty", text(""), malformed),
    ]
}

/// The part of a world's keys that a test breaks.
struct Source<'a> {
    server: &'a KeyServer,
    path: &'a str,
    good: Answer,
    /// The variable that sets the source, and its value.
    variable: (&'a str, &'a str),
    token: String,
    /// An expired token.
    expired: String,
}

impl Source<'_> {
    /// Checks that a claim gets 503 in time while the source gives `answer`, that the log contains `line`, and that
    /// a claim is granted once the source gives a good response.
    async fn heals_after(&self, name: &str, answer: Answer, line: &str) {
        self.server.answer(self.path, answer);
        let directory = format!("edge-keys-{}-{}", self.variable.0, name.replace(' ', "-"));
        let world = world(&directory, &[self.variable]).await;
        let began = Instant::now();
        let refused = claim(&world, &self.token).await;
        assert_eq!((refused.status, refused.code().as_str()), (503, "unavailable"), "{name}");
        assert!(began.elapsed() < promised(FETCH_MAX), "{name}: {:?}", began.elapsed());
        until_logged(&world, line).await;
        // A token that is wrong anyway is the user's fault, whatever the source does.
        let _ = claim(&world, &self.expired).await.refused(401, "unauthenticated");
        self.server.answer(self.path, self.good.clone());
        eventually(SOON, || async {
            let reply = claim(&world, &self.token).await;
            holds(reply.status == 201, || format!("{name}: {}", reply.text()))
        })
        .await;
    }
}

fn expired(issuer: &Issuer, iss: &str) -> String {
    let mut claims = payload("alice");
    (claims["iss"], claims["exp"]) = (json!(iss), json!(1));
    issuer.token(&kid("a"), &claims)
}

#[test]
fn a_bad_source_gives_503_in_time_and_heals() {
    run(async {
        let issuer = Issuer::p256();
        let set = json!({"keys": [issuer.jwk(&kid("a"))]});
        let server = KeyServer::start(Answer::json(&set));
        let url = server.url(JWKS);
        let source = Source {
            server: &server,
            path: JWKS,
            good: Answer::json(&set),
            variable: ("USER_JWT_JWKS_URL", &url),
            token: token_of(&issuer, "claimgate"),
            expired: expired(&issuer, "claimgate"),
        };
        let enc = issuer.jwk(&json!({"kid": "a", "use": "enc"}));
        let unusable = ("unusable", Answer::keys(&[enc]), "user keys ignored: key 1: `use` is not `sig`");
        for (name, answer, line) in bad_answers(&server, &set, NO_KEY_SET).into_iter().chain([unusable]) {
            source.heals_after(name, answer, line).await;
        }
        assert_eq!(server.requests("/moved"), 0, "no redirect was followed");
    });
}

#[test]
fn a_bad_discovery_document_gives_503_in_time_and_heals() {
    run(async {
        let issuer = Issuer::p256();
        let server = KeyServer::start(Answer::keys(&[issuer.jwk(&kid("a"))]));
        let (url, jwks) = (server.url(""), server.url(JWKS));
        let document = json!({"issuer": url, "jwks_uri": jwks});
        let source = Source {
            server: &server,
            path: DISCOVERY,
            good: Answer::json(&document),
            variable: ("USER_JWT_ISS", &url),
            token: token_of(&issuer, &url),
            expired: expired(&issuer, &url),
        };
        let with =
            |issuer: &str, jwks_uri: &str| Answer::json(&json!({"issuer": issuer, "jwks_uri": jwks_uri}));
        let wrong = [
            (
                "another issuer",
                with("https://another.example", &jwks),
                r#"its issuer is "https://another.example", not USER_JWT_ISS"#,
            ),
            (
                "plain http",
                with(&url, "http://keys.example/jwks"),
                r#"its jwks_uri "http://keys.example/jwks" is not https"#,
            ),
            ("no jwks_uri", Answer::json(&json!({"issuer": url})), NO_DISCOVERY),
        ];
        for (name, answer, line) in bad_answers(&server, &document, NO_DISCOVERY).into_iter().chain(wrong) {
            let before = server.requests(JWKS);
            source.heals_after(name, answer, line).await;
            // Only the good document leads to the key set.
            assert_eq!(server.requests(JWKS), before + 1, "{name}");
        }
        assert_eq!(server.requests("/moved"), 0, "no redirect was followed");
    });
}

/// Starts an edge in workerd that gets its keys from `url`, and returns its log after a claim, which gets 503.
async fn log_of_source(name: &str, url: &str) -> String {
    let variables = [("USER_JWT_KEY", ""), ("USER_JWT_JWKS_URL", url)];
    let world = World::start(Runtime::Workerd, &format!("edge-keys-at-{name}"), "test", &variables).await;
    let token = token_of(&Issuer::p256(), "claimgate");
    let _ = claim(&world, &token).await.refused(503, "unavailable");
    until_logged(&world, &format!("user keys not fetched: {url}: no answer: ")).await;
    world.edge.log()
}

#[test]
fn a_key_set_at_a_private_address_is_not_fetched() {
    run(async {
        for (name, url, address) in [
            ("private", "https://10.0.0.1/jwks", "10.0.0.1:443"),
            ("metadata", "https://169.254.169.254/", "169.254.169.254:443"),
            ("private-v6", "https://[fd00::1]/jwks", "fd00::1:443"),
        ] {
            let log = log_of_source(name, url).await;
            // Match workerd's refusal message: an unreachable address would also fail, with another message.
            assert!(log.contains(&format!("connecting to {address} is not allowed")), "{url}: {log}");
        }
    });
}

/// Only a URL that plainly names this machine leads to it.
#[test]
fn a_disguised_loopback_address_gets_no_connection() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let hosts = ["2130706433", "127.1", "0x7f000001", "[::ffff:127.0.0.1]"];
        for (number, host) in (1..).zip(hosts) {
            let url = format!("https://{host}:{port}/jwks");
            let log = log_of_source(&format!("loopback-{number}"), &url).await;
            assert!(listener.accept().is_err(), "{host} was connected to: {log}");
            assert!(log.contains("is not allowed"), "{host}: {log}");
        }
        let log = log_of_source("loopback", &format!("https://127.0.0.1:{port}/jwks")).await;
        assert!(listener.accept().is_ok(), "a plain address gets a connection: {log}");
    });
}

/// On Cloudflare, the isolates of a data center share a fetched key set for 30 s; failures are not cached. workerd has
/// no such cache, so the test checks what the edge asks for.
#[test]
fn a_location_is_asked_to_cache_only_a_fetched_set() {
    run(async {
        let issuer = Issuer::p256();
        let set = json!({"keys": [issuer.jwk(&kid("a"))]}).to_string();
        let world = World::start(Runtime::Workerd, "edge-keys-location-core", "test", &[]).await;
        world.core.create("keys", json!({"total": 10})).await;
        let core_url = format!("http://{}", world.core.listen());
        let edge_key = world.core.data_file("edge.key");
        let variables = [
            ("CORE_URL", core_url.as_str()),
            ("EDGE_KEY", &edge_key),
            ("USER_JWT_JWKS_URL", "https://issuer.example/jwks"),
            ("KEY_SET", &set),
        ];
        let config = "tests/e2e/edge/location.capnp".into();
        let edge = Edge::start_with(config, Runtime::Workerd, "edge-keys-location", "test", &variables).await;
        let request = world.core.client().request(Method::POST, &edge.url("/v1/campaigns/keys/claims"));
        let request = request.bearer_auth(token_of(&issuer, "claimgate")).header("Idempotency-Key", "k");
        let _ = world.send(request.json(&json!({}))).await.expect(201);
        let asked = r#"cf of https://issuer.example/jwks: {"cacheTtlByStatus":{"200-299":30,"300-599":0}}"#;
        eventually(SOON, || async { holds(edge.log().contains(asked), || edge.log()) }).await;
    });
}

/// Each set's `max-age` and the age at which it is refreshed: 1 to 60 minutes.
const REFRESHES_S: [(i64, i64); 3] = [(120, 120), (5, 60), (86_400, 3_600)];

#[test]
fn a_set_is_refreshed_at_its_max_age() {
    run(async {
        let issuers: Vec<_> = (0..=REFRESHES_S.len()).map(|_| Issuer::p256()).collect();
        let key = |number: usize| kid(&format!("key-{number}"));
        let set = |number: usize| {
            let max_age = REFRESHES_S.get(number).map(|(max_age_s, _)| max_age_s);
            let header = max_age.map(|seconds| format!("Cache-Control: public, max-age={seconds}\r\n"));
            let body = json!({"keys": [issuers[number].jwk(&key(number))]});
            Answer::Complete(200, header.unwrap_or_default(), body.to_string())
        };
        let token = |number: usize| issuers[number].token(&key(number), &lasting("alice"));
        let server = KeyServer::start(set(0));
        let mut clock = FrozenClock::at(now_ms());
        let variables = [("USER_JWT_JWKS_URL", &*server.url(JWKS))];
        let world = world_on_clock(&clock.environment(), "edge-keys-max-age", &variables).await;
        let _ = claim_decided(&world, &token(0)).await.expect(201);
        for (number, (max_age_s, due_s)) in REFRESHES_S.into_iter().enumerate() {
            let (fetched_at_ms, old) = (clock.now_ms(), token(number));
            // The next set lacks the key of this one.
            server.answer(JWKS, set(number + 1));
            clock.set_ms(fetched_at_ms + (due_s - 1) * 1_000);
            for _ in 0..2 {
                let _ = claim_decided(&world, &old).await.expect(201);
            }
            assert_eq!(server.requests(JWKS), number + 1, "max-age={max_age_s} is not due");
            clock.set_ms(fetched_at_ms + (due_s + 1) * 1_000);
            eventually(SOON, || async {
                let reply = claim(&world, &old).await;
                holds(reply.status == 401, || format!("max-age={max_age_s}: {}", reply.text()))
            })
            .await;
            assert_eq!(server.requests(JWKS), number + 2, "max-age={max_age_s}");
        }
        let _ = claim_decided(&world, &token(REFRESHES_S.len())).await.expect(201);
    });
}
