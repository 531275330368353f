//! Bad answers of the source of the issuer's key set.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::edge::payload;
use support::issuer::Issuer;
use support::wait::holds;
use support::{SOON, eventually, promised};

use super::key_server::{Answer, DISCOVERY, JWKS, KeyServer};
use super::key_sets::{claim, kid, until_logged, world};
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

/// Returns answers in place of the JSON object `document`, each with its name and the reason in the log. `malformed`
/// is the reason if the answer is not such a document.
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
    /// A token that is wrong for a reason besides its key.
    expired: String,
}

impl Source<'_> {
    /// Checks that a claim gets 503 in time while the source gives `answer`, that the log contains `line`, and that
    /// a claim is granted once the source gives a good answer.
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
