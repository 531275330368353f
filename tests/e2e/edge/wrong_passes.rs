//! Wrong passes: each is ignored, with its reason in the refusal and in the log, and none is logged itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use support::clock::Clock;
use support::core_client::campaign;
use support::edge::{Edge, Runtime, World, signed};
use support::issuer::{Issuer, unsigned};
use support::wait::holds;
use support::{SOON, eventually};

use super::key_sets::{clocked_world, kid, lasting};
use super::{claims_sent_to_core, run};

pub const USER_SECRET: &str = "YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l";
const SHOP: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
const DOOR: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8";
const TYPE: &str = "claimgate-pass+jwt";
/// Moves the clock past the period in which a reason is logged once.
const LOG_PERIOD_MS: i64 = 11_000;
/// Number of checks of one pass while stalls disturb them.
const TRIES_MAX: usize = 5;
/// Less than the 2 s for which the edge may use a cached view.
const VIEW_OLD_MIN: Duration = Duration::from_secs(1);
/// Shortest part of a pass that must not appear in a log, in characters.
const PART_CHARS_MIN: usize = 12;

const MALFORMED: &str = "malformed token";
const WRONG_TYPE: &str = "wrong typ";
const ALGORITHM: &str = "wrong algorithm";
const CRITICAL: &str = "the header crit is not supported";
const UNKNOWN: &str = "unknown key";
const NO_KID: &str = "kid is missing, and not exactly one key fits";
const SIGNATURE: &str = "wrong signature";
const MEMBERS: &str = "sub, campaign or exp is missing, or a member has the wrong type";
const CAMPAIGN: &str = "for another campaign";
const USER: &str = "for another user";

/// The keys of the edge that must find a pass invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Two secrets, [`SHOP`] and [`DOOR`].
    Secrets,
    /// A set of public keys.
    Set,
    /// None.
    None,
}

/// A pass's defect, the edge's keys, the reason, and the pass.
type Row = (&'static str, Keys, &'static str, String);

fn header(kid: &str) -> Value {
    json!({"alg": "HS256", "typ": TYPE, "kid": kid})
}

/// Returns alice's pass, valid for the whole test, with this member; `null` removes it.
fn pass(name: &str, value: Value) -> Value {
    let mut pass = json!({"sub": "alice", "campaign": "members", "exp": 4_000_000_000_u64});
    if value.is_null() {
        pass.as_object_mut().unwrap().remove(name);
    } else {
        pass[name] = value;
    }
    pass
}

fn right() -> Value {
    pass("units", json!(1000))
}

fn by_shop(payload: &Value) -> String {
    signed(SHOP, &header("shop"), payload)
}

fn wrong_headers() -> Vec<Row> {
    let with = |name: &str, value: Value| {
        let mut header = header("shop");
        header[name] = value;
        signed(SHOP, &header, &right())
    };
    let rows = [
        ("nonsense", MALFORMED, "nonsense".to_owned()),
        ("two passes joined by a proxy", MALFORMED, format!("{0}, {0}", by_shop(&right()))),
        ("a header that is not an object", MALFORMED, signed(SHOP, &json!(["HS256", TYPE]), &right())),
        ("too long", "token longer than 8192 bytes", by_shop(&pass("more", json!("x".repeat(8_000))))),
        ("no typ", WRONG_TYPE, signed(SHOP, &json!({"alg": "HS256", "kid": "shop"}), &right())),
        ("typ JWT", WRONG_TYPE, with("typ", json!("JWT"))),
        ("typ of another media type", WRONG_TYPE, with("typ", json!("text/claimgate-pass+jwt"))),
        ("typ with a space", WRONG_TYPE, with("typ", json!("claimgate-pass+jwt "))),
        ("a list as typ", MALFORMED, with("typ", json!([TYPE]))),
        ("alice's token", WRONG_TYPE, signed(USER_SECRET, &json!({"alg": "HS256"}), &lasting("alice"))),
        ("crit", CRITICAL, with("crit", json!(["exp"]))),
        ("crit null", CRITICAL, with("crit", Value::Null)),
        ("alg none, signed", ALGORITHM, with("alg", json!("none"))),
        ("HS384", ALGORITHM, with("alg", json!("HS384"))),
        ("hs256 in lower case", ALGORITHM, with("alg", json!("hs256"))),
        ("a kid that no key has", UNKNOWN, with("kid", json!("shops"))),
        ("a kid in another case", UNKNOWN, with("kid", json!("Shop"))),
        ("no kid with two keys", NO_KID, signed(SHOP, &json!({"alg": "HS256", "typ": TYPE}), &right())),
        ("kid null with two keys", NO_KID, with("kid", Value::Null)),
    ];
    rows.map(|(what, reason, pass)| (what, Keys::Secrets, reason, pass)).to_vec()
}

fn wrong_signatures() -> Vec<Row> {
    let good = by_shop(&right());
    let parts: Vec<_> = good.split('.').collect();
    let others = by_shop(&pass("units", json!(1001)));
    let other_payload = others.split('.').nth(1).unwrap();
    let none = json!({"alg": "none", "typ": TYPE, "kid": "shop"});
    let es256 = json!({"typ": TYPE, "kid": "shop"});
    let rows = [
        ("unsigned", SIGNATURE, format!("{}.{}.", parts[0], parts[1])),
        ("alg none, unsigned", ALGORITHM, format!("{}.", unsigned(&none, &right()))),
        ("half of the signature", SIGNATURE, format!("{}.{}.{}", parts[0], parts[1], &parts[2][..20])),
        ("another payload", SIGNATURE, format!("{}.{other_payload}.{}", parts[0], parts[2])),
        ("the other key", SIGNATURE, signed(DOOR, &header("shop"), &right())),
        ("the key of users' tokens", SIGNATURE, signed(USER_SECRET, &header("shop"), &right())),
        ("ES256 with secrets", UNKNOWN, Issuer::p256().token(&es256, &right())),
    ];
    rows.map(|(what, reason, pass)| (what, Keys::Secrets, reason, pass)).to_vec()
}

fn wrong_payloads() -> Vec<Row> {
    let now_s = 1_700_000_000;
    let rows = [
        ("no sub", MEMBERS, pass("sub", Value::Null)),
        ("no campaign", MEMBERS, pass("campaign", Value::Null)),
        ("no exp", MEMBERS, pass("exp", Value::Null)),
        ("a number as sub", MEMBERS, pass("sub", json!(7))),
        ("a list of campaigns", MEMBERS, pass("campaign", json!(["members"]))),
        ("exp in quotes", MEMBERS, pass("exp", json!("4000000000"))),
        ("nbf in quotes", MEMBERS, pass("nbf", json!("0"))),
        ("0 units", MEMBERS, pass("units", json!(0))),
        ("units in quotes", MEMBERS, pass("units", json!("1"))),
        ("half a unit", MEMBERS, pass("units", json!(0.5))),
        ("too many units", MEMBERS, pass("units", json!(4_294_967_296_u64))),
        ("a list as payload", MEMBERS, json!(["alice", "members", 4_000_000_000_u64])),
        ("bob's pass", USER, pass("sub", json!("bob"))),
        ("Alice's pass", USER, pass("sub", json!("Alice"))),
        ("a pass for everyone", USER, pass("sub", json!("*"))),
        ("another campaign's", CAMPAIGN, pass("campaign", json!("others"))),
        ("every campaign's", CAMPAIGN, pass("campaign", json!("*"))),
        ("expired", "expired", pass("exp", json!(now_s))),
        ("in the future", "not valid yet", pass("nbf", json!(3_999_999_999_u64))),
    ];
    rows.map(|(what, reason, payload)| (what, Keys::Secrets, reason, by_shop(&payload))).to_vec()
}

/// Returns passes that an edge with these public keys, `p256` and `rsa`, must find invalid.
fn wrong_for_a_set(p256: &Issuer, rsa: &Issuer) -> Vec<Row> {
    let header = |alg: &str, kid: &str| json!({"alg": alg, "typ": TYPE, "kid": kid});
    let confused = |secret: &[u8]| signed(&URL_SAFE_NO_PAD.encode(secret), &header("HS256", "rsa"), &right());
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", rsa.pem_body());
    let modulus = URL_SAFE_NO_PAD.decode(rsa.jwk(&json!({}))["n"].as_str().unwrap()).unwrap();
    let other = Issuer::p256();
    let own_key = json!({"alg": "ES256", "typ": TYPE, "kid": "p256", "jwk": other.jwk(&kid("p256"))});
    let zeros = URL_SAFE_NO_PAD.encode([0; 64]);
    let rows = [
        ("the RSA key's PEM as HMAC secret", UNKNOWN, confused(pem.as_bytes())),
        ("the RSA key's modulus as HMAC secret", UNKNOWN, confused(&modulus)),
        (
            "HS256 with a set, without kid",
            NO_KID,
            signed(SHOP, &json!({"alg": "HS256", "typ": TYPE}), &right()),
        ),
        ("another key with the kid", SIGNATURE, other.token(&header("ES256", "p256"), &right())),
        ("its own key in jwk", SIGNATURE, other.token(&own_key, &right())),
        ("RS256 with the kid of a P-256 key", ALGORITHM, rsa.token(&header("RS256", "p256"), &right())),
        ("RS384 with a key for RS256", ALGORITHM, rsa.token(&header("RS384", "rsa"), &right())),
        ("a kid that the set lacks", UNKNOWN, p256.token(&header("ES256", "p-256"), &right())),
        ("zeros", SIGNATURE, format!("{}.{zeros}", unsigned(&header("ES256", "p256"), &right()))),
        ("an unsigned ES256", SIGNATURE, format!("{}.", unsigned(&header("ES256", "p256"), &right()))),
        ("ES256 with typ JWT", WRONG_TYPE, p256.token(&json!({"typ": "JWT", "kid": "p256"}), &right())),
        ("ES256 for bob", USER, p256.token(&header("ES256", "p256"), &pass("sub", json!("bob")))),
        ("ES256, expired", "expired", p256.token(&header("ES256", "p256"), &pass("exp", json!(1)))),
    ];
    rows.map(|(what, reason, pass)| (what, Keys::Set, reason, pass)).to_vec()
}

/// The edges, which share a core.
struct Edges {
    world: World,
    set: Edge,
    none: Edge,
}

impl Edges {
    async fn start(key_set: &Value) -> (Self, Clock) {
        let secrets = format!("shop:{SHOP},door:{DOOR}");
        let variables = [("USER_JWT_KEY", USER_SECRET), ("PASS_KEYS", &secrets)];
        let (world, clock) = clocked_world("edge-wrong-passes", &variables).await;
        let mut members = campaign("members", json!({"total": 100_000}));
        members["pass"] = json!({"required": "always"});
        world.core.create_with(members).await;
        let core_url = format!("http://{}", world.proxy.listen);
        let (edge_key, key_set) = (world.core.data_file("edge.key"), key_set.to_string());
        let environment = clock.environment();
        let environment = environment.each_ref().map(|(name, value)| (*name, value.to_str().unwrap()));
        let common =
            [("CORE_URL", core_url.as_str()), ("EDGE_KEY", &edge_key), ("USER_JWT_KEY", USER_SECRET)];
        let start = async |name: &str, variables: &[(&str, &str)]| {
            let variables = [&common, &environment[..], variables].concat();
            Edge::start(Runtime::Workerd, name, "test", &variables).await
        };
        let set = start("edge-wrong-passes-set", &[("PASS_KEYS", &key_set)]).await;
        let none = start("edge-wrong-passes-none", &[]).await;
        (Self { world, set, none }, clock)
    }

    fn of(&self, keys: Keys) -> &Edge {
        match keys {
            Keys::Secrets => &self.world.edge,
            Keys::Set => &self.set,
            Keys::None => &self.none,
        }
    }

    fn request(&self, method: Method, keys: Keys, path: &str) -> RequestBuilder {
        self.world.core.client().request(method, &self.of(keys).url(path))
    }

    /// Returns an unsent, unmarked claim of alice.
    fn claim(&self, keys: Keys, pass: &str, key: &str) -> RequestBuilder {
        let token = signed(USER_SECRET, &json!({"alg": "HS256"}), &lasting("alice"));
        let request = self.request(Method::POST, keys, "/v1/campaigns/members/claims").bearer_auth(token);
        request.header("Claimgate-Pass", pass).header("Idempotency-Key", key).json(&json!({}))
    }

    async fn until_logged(&self, keys: Keys, line: &str) {
        eventually(SOON, || async {
            let log = self.of(keys).log();
            holds(log.contains(line), || format!("no {line:?} in {log}"))
        })
        .await;
    }

    /// Checks that the pass is refused with the reason, from the edge's cache and by core. The error says
    /// whether a stall may be its cause: core did not answer in time, or the cached view became too old.
    async fn check(&self, (what, keys, reason, pass): &Row, key: &str) -> Result<(), (bool, String)> {
        let began = Instant::now();
        let view = self.request(Method::GET, *keys, "/v1/campaigns/members");
        let _ = self.world.send(view).await.expect(200);
        let end = format!("claims need a pass; the pass sent is invalid: {reason}");
        let first = self.claim(*keys, pass, key).header("Claimgate-Attempt", "1");
        let first = self.world.send_once(first).await;
        let retry = self.world.send_once(self.claim(*keys, pass, key)).await;
        for (reply, calls) in [(&first, 0), (&retry, 1)] {
            let detail = reply.json()["detail"].as_str().unwrap_or_default().to_owned();
            let sent = claims_sent_to_core(&self.world, reply).len();
            if reply.status != 403 || reply.code() != "pass_required" || detail != end || sent != calls {
                let text = format!("{what}: {} {detail}, {sent} of {calls} calls", reply.status);
                let is_view_old = sent > calls && began.elapsed() > VIEW_OLD_MIN;
                return Err((reply.status == 503 || is_view_old, text));
            }
        }
        let line = format!("{} pass rejected: {reason}", first.header("x-request-id"));
        self.until_logged(*keys, &line).await;
        Ok(())
    }
}

#[test]
fn wrong_passes_are_ignored_and_the_reason_reported() {
    run(async {
        let (p256, rsa) = (Issuer::p256(), Issuer::shared_rsa());
        let key_set = json!({"keys": [p256.jwk(&kid("p256")), rsa.jwk(&kid("rsa"))]});
        let (edges, clock) = Edges::start(&key_set).await;
        let by_p256 = p256.token(&json!({"typ": TYPE, "kid": "p256"}), &right());
        let by_rsa = rsa.token(&json!({"typ": format!("application/{TYPE}"), "kid": "rsa"}), &right());
        let by_door = signed(DOOR, &header("door"), &pass("nbf", json!(0.5)));
        let right_passes = [
            (Keys::Secrets, by_shop(&right())),
            (Keys::Secrets, by_door),
            (Keys::Set, by_p256),
            (Keys::Set, by_rsa),
        ];
        for (at, (keys, pass)) in (1..).zip(&right_passes) {
            let made = edges.world.send(edges.claim(*keys, pass, &format!("right-{at}"))).await;
            assert_eq!(made.status, 201, "{keys:?} {pass}: {}", made.text());
        }

        let without_keys = ("a valid pass at an edge without keys", Keys::None, UNKNOWN, by_shop(&right()));
        let rows = [
            wrong_headers(),
            wrong_signatures(),
            wrong_payloads(),
            wrong_for_a_set(&p256, rsa),
            vec![without_keys],
        ]
        .concat();
        let names: BTreeSet<_> = rows.iter().map(|(what, ..)| what).collect();
        assert!(names.len() == rows.len() && rows.len() >= 50, "{} rows", rows.len());
        println!("{} invalid passes", rows.len());
        let (mut wrong, mut at) = (Vec::new(), 0_i64);
        for row in &rows {
            let mut checked = Ok(());
            for _ in 0..TRIES_MAX {
                at += 1;
                // Each reason may be logged again.
                clock.move_by_ms(at * LOG_PERIOD_MS);
                checked = edges.check(row, &format!("wrong-{at}")).await;
                if !matches!(checked, Err((true, _))) {
                    break;
                }
            }
            wrong.extend(checked.err().map(|(_, text)| text));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let taken = edges.world.core.campaign("members").await["remaining"].clone();
        assert_eq!(taken, 100_000 - right_passes.len());

        let logs = [&edges.world.edge, &edges.set, &edges.none].map(Edge::log).concat();
        for (what, _, _, pass) in &rows {
            for part in pass.split(['.', ',', ' ']).filter(|part| part.len() >= PART_CHARS_MIN) {
                assert!(!logs.contains(part), "{what}: {part} is in a log");
            }
        }
        assert!(!logs.contains("bob"), "another user's id is in a log");
    });
}
