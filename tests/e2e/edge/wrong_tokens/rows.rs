//! The invalid tokens, each with the edge that must reject it and the reason.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::super::key_sets::{kid, lasting};
use super::{By, Row, Signers, by_hmac, changed, mac, signed};
use support::issuer::{Issuer, unsigned};

const SIGNATURE: &str = "wrong signature";
const ALGORITHM: &str = "wrong algorithm";
const MALFORMED: &str = "malformed token";
const UNKNOWN: &str = "unknown key";
const CRITICAL: &str = "the header crit is not supported";
const MEMBERS: &str = "iss, aud, sub or exp is missing or has the wrong type";
const SUBJECT: &str = "the user's id must be 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'";
const REQUIRED: &str = "a required token claim is missing or has a different value";
const NO_KID: &str = "kid is missing, and not exactly one key fits";
const TOO_LONG: &str = "token longer than 8192 bytes";

fn rows<const N: usize>(by: By, rows: [(&str, &'static str, String); N]) -> Vec<Row> {
    rows.into_iter().map(|(what, reason, token)| (what.to_owned(), by, reason, token)).collect()
}

/// Returns all invalid tokens.
pub fn all(signers: &Signers) -> Vec<Row> {
    [
        wrong_algorithms(signers),
        wrong_headers(signers),
        wrong_signatures(signers),
        wrong_forms(signers),
        wrong_claims(signers),
        wrong_required_claims(signers),
        wrong_for_a_secret(signers),
    ]
    .concat()
}

/// Returns tokens whose algorithm is not the key's.
fn wrong_algorithms(signers: &Signers) -> Vec<Row> {
    let (rsa, good) = (signers.rsa, lasting("alice"));
    let hs256 = json!({"alg": "HS256", "kid": "rsa"});
    let modulus = URL_SAFE_NO_PAD.decode(rsa.jwk(&json!({}))["n"].as_str().unwrap()).unwrap();
    let jwk = rsa.jwk(&json!({"kid": "rsa", "alg": "RS256"})).to_string();
    let spki = STANDARD.decode(rsa.pem_body()).unwrap();
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", rsa.pem_body());
    let confused = |secret: &[u8]| by_hmac(secret, &hs256, &good);
    let named = |algorithm: &str, kid: &str| {
        signed(&unsigned(&json!({"alg": algorithm, "kid": kid}), &good), |text| rsa.sign("RS256", text))
    };
    let padded = |algorithm: &str, kid: &str, padding: &str| {
        signed(&unsigned(&json!({"alg": algorithm, "kid": kid}), &good), |text| rsa.sign(padding, text))
    };
    let mut all = rows(
        By::KeySet,
        [
            ("the RSA key's modulus as HMAC secret", ALGORITHM, confused(&modulus)),
            ("the RSA key's JWK as HMAC secret", ALGORITHM, confused(jwk.as_bytes())),
            ("the RSA key's base64 as HMAC secret", ALGORITHM, confused(rsa.pem_body().as_bytes())),
            ("the RSA key's PEM as HMAC secret", ALGORITHM, confused(pem.as_bytes())),
            ("the RSA key's DER as HMAC secret", ALGORITHM, confused(&spki)),
            ("HS256 with the set's shared secret", UNKNOWN, {
                by_hmac(&signers.secret, &json!({"alg": "HS256", "kid": "secret"}), &good)
            }),
            ("HS256 with a key set, without kid", ALGORITHM, {
                by_hmac(&signers.secret, &json!({"alg": "HS256"}), &good)
            }),
            ("HS384", ALGORITHM, by_hmac(b"x", &json!({"alg": "HS384", "kid": "rsa"}), &good)),
            ("HS512", ALGORITHM, by_hmac(b"x", &json!({"alg": "HS512", "kid": "rsa"}), &good)),
            ("PSS padding named RS256", SIGNATURE, padded("RS256", "rsa", "PS256")),
            ("PKCS#1 padding named PS256", SIGNATURE, padded("PS256", "pss", "RS256")),
            ("SHA-384 named RS256", SIGNATURE, padded("RS256", "rsa", "RS384")),
            ("PS256 with a key for RS256", ALGORITHM, padded("PS256", "rsa", "PS256")),
            ("RS256 with a key for PS256", ALGORITHM, padded("RS256", "pss", "RS256")),
            ("RS384 with a key for RS256", ALGORITHM, padded("RS384", "rsa", "RS384")),
            ("RS512 with a key for RS256", ALGORITHM, padded("RS512", "rsa", "RS512")),
            ("PS384, which is not supported", ALGORITHM, named("PS384", "rsa")),
            ("ES512, which is not supported", ALGORITHM, named("ES512", "p256")),
            ("ES256K, which is not supported", ALGORITHM, named("ES256K", "p256")),
            ("RSA-OAEP, an encryption", ALGORITHM, named("RSA-OAEP", "rsa")),
            ("rs256 in lower case", ALGORITHM, named("rs256", "rsa")),
            ("a space after RS256", ALGORITHM, named("RS256 ", "rsa")),
            ("an empty alg", ALGORITHM, named("", "rsa")),
            ("RS256 with the kid of a P-256 key", ALGORITHM, named("RS256", "p256")),
            ("ES384 with the kid of a P-256 key", ALGORITHM, {
                signers.p384.token(&json!({"alg": "ES384", "kid": "p256"}), &good)
            }),
            ("ES256 with the kid of a P-384 key", ALGORITHM, {
                signers.p256.token(&json!({"alg": "ES256", "kid": "p384"}), &good)
            }),
            ("EdDSA with the kid of a P-256 key", ALGORITHM, {
                signers.ed25519.token(&json!({"alg": "EdDSA", "kid": "p256"}), &good)
            }),
            ("no alg", MALFORMED, signers.by_rsa(r#"{"kid":"rsa"}"#, good.to_string())),
            ("alg null", MALFORMED, signers.by_rsa(r#"{"alg":null,"kid":"rsa"}"#, good.to_string())),
            (
                "a list as alg",
                MALFORMED,
                signers.by_rsa(r#"{"alg":["RS256"],"kid":"rsa"}"#, good.to_string()),
            ),
            ("none with the RSA key's signature", ALGORITHM, named("none", "rsa")),
        ],
    );
    for none in nones() {
        let token = format!("{}.", unsigned(&json!({"alg": none, "kid": "rsa"}), &good));
        all.push((format!("alg {none}, unsigned"), By::KeySet, ALGORITHM, token));
    }
    all
}

/// Returns tokens whose header is wrong for the set's keys, or names another key.
fn wrong_headers(signers: &Signers) -> Vec<Row> {
    let (good, other) = (lasting("alice").to_string(), Issuer::p256());
    let with = |header: Value| signers.by_rsa(&header.to_string(), &good);
    let own = |name: &str, value: Value| {
        let mut header = json!({"kid": "p256"});
        header[name] = value;
        other.token(&header, &lasting("alice"))
    };
    let by_p256 = |header: Value| signers.p256.token(&header, &lasting("alice"));
    let inner = with(json!({"alg": "RS256", "kid": "rsa"}));
    rows(
        By::KeySet,
        [
            ("its own key in jwk", SIGNATURE, own("jwk", other.jwk(&kid("p256")))),
            ("its own key behind jku", SIGNATURE, own("jku", json!("https://evil.example/jwks"))),
            ("its own key behind x5u", SIGNATURE, own("x5u", json!("https://evil.example/x5c"))),
            ("its own key in x5c", SIGNATURE, own("x5c", json!([other.pem_body()]))),
            ("its own key in jwk, without kid", NO_KID, {
                other.token(&json!({"jwk": other.jwk(&json!({}))}), &lasting("alice"))
            }),
            ("crit", CRITICAL, with(json!({"alg": "RS256", "kid": "rsa", "crit": ["exp"], "exp": 1}))),
            ("crit of nothing", CRITICAL, with(json!({"alg": "RS256", "kid": "rsa", "crit": []}))),
            ("crit null", CRITICAL, with(json!({"alg": "RS256", "kid": "rsa", "crit": null}))),
            ("b64", CRITICAL, with(json!({"alg": "RS256", "kid": "rsa", "b64": false, "crit": ["b64"]}))),
            ("b64 without crit, the payload as it is", MALFORMED, {
                let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","kid":"rsa","b64":false}"#);
                signed(&format!("{header}.{good}"), |text| signers.rsa.sign("RS256", text))
            }),
            ("a nested JWT", MALFORMED, {
                signers.by_rsa(r#"{"alg":"RS256","kid":"rsa","cty":"JWT"}"#, inner)
            }),
            ("no kid, several keys fit", NO_KID, by_p256(json!({}))),
            ("kid null, several keys fit", NO_KID, by_p256(json!({"kid": null}))),
            ("no kid, no key fits", ALGORITHM, with(json!({"alg": "RS512"}))),
            ("an encryption key's kid", UNKNOWN, with(json!({"alg": "RS256", "kid": "enc"}))),
            ("a kid that occurs twice", UNKNOWN, by_p256(kid("twice"))),
            ("a kid in another case", UNKNOWN, with(json!({"alg": "RS256", "kid": "RSA"}))),
            ("an empty kid", UNKNOWN, with(json!({"alg": "RS256", "kid": ""}))),
            ("a kid that is a path", UNKNOWN, with(json!({"alg": "RS256", "kid": "../../dev/null"}))),
            ("a kid that is SQL", UNKNOWN, with(json!({"alg": "RS256", "kid": "x' UNION SELECT 'k"}))),
            ("a kid that breaks lines", UNKNOWN, with(json!({"alg": "RS256", "kid": "a\nb\u{0}"}))),
            ("a kid of 4,000 characters", UNKNOWN, with(json!({"alg": "RS256", "kid": "k".repeat(4_000)}))),
            ("a kid that is a number", MALFORMED, with(json!({"alg": "RS256", "kid": 1}))),
            ("a kid that is a list", MALFORMED, with(json!({"alg": "RS256", "kid": ["rsa"]}))),
            ("alg twice", MALFORMED, signers.by_rsa(r#"{"alg":"RS256","kid":"rsa","alg":"none"}"#, &good)),
            ("kid twice", MALFORMED, signers.by_rsa(r#"{"alg":"RS256","kid":"enc","kid":"rsa"}"#, &good)),
            ("a header that is a list", MALFORMED, signers.by_rsa(r#"["RS256","rsa"]"#, &good)),
            ("a header that is no JSON", MALFORMED, signers.by_rsa("RS256", &good)),
            (
                "a header followed by another",
                MALFORMED,
                signers.by_rsa(r#"{"alg":"RS256","kid":"rsa"}{}"#, &good),
            ),
            ("an empty header", MALFORMED, signers.by_rsa("", &good)),
        ],
    )
}

/// Returns tokens whose signature is wrong.
fn wrong_signatures(signers: &Signers) -> Vec<Row> {
    let token = signers.with_payload(lasting("alice").to_string());
    let (text, signature) = token.rsplit_once('.').unwrap();
    let (header, payload) = text.split_once('.').unwrap();
    let mallory = URL_SAFE_NO_PAD.encode(lasting("mallory").to_string());
    let by_rsa =
        |change: fn(Vec<u8>) -> Vec<u8>| signed(text, |text| change(signers.rsa.sign("RS256", text)));
    rows(
        By::KeySet,
        [
            ("another user's payload", SIGNATURE, format!("{header}.{mallory}.{signature}")),
            ("another issuer's P-256 key", SIGNATURE, Issuer::p256().token(&kid("p256"), &lasting("alice"))),
            ("another issuer's Ed25519 key", SIGNATURE, {
                Issuer::ed25519().token(&kid("ed25519"), &lasting("alice"))
            }),
            ("another header", SIGNATURE, {
                let header = URL_SAFE_NO_PAD.encode(r#"{"kid":"rsa","alg":"RS256"}"#);
                format!("{header}.{payload}.{signature}")
            }),
            ("no RSA signature", SIGNATURE, format!("{text}.")),
            ("an RSA signature of 255 bytes", SIGNATURE, by_rsa(|it| it[..255].to_vec())),
            ("an RSA signature of 257 bytes", SIGNATURE, by_rsa(|it| [it, vec![0]].concat())),
            ("an RSA signature of zeros", SIGNATURE, by_rsa(|it| vec![0; it.len()])),
            ("an RSA signature of ones", SIGNATURE, by_rsa(|it| vec![0xff; it.len()])),
            ("an ES256 signature in DER", SIGNATURE, signers.with_signature(der)),
            ("an ES256 signature of zeros", SIGNATURE, signers.with_signature(|it| vec![0; it.len()])),
            (
                "an ES256 signature above the order",
                SIGNATURE,
                signers.with_signature(|it| vec![0xff; it.len()]),
            ),
            ("no ES256 signature", SIGNATURE, signers.with_signature(|_| Vec::new())),
            ("an ES256 signature of 63 bytes", SIGNATURE, signers.with_signature(|it| it[1..].to_vec())),
            ("an ES256 signature of 65 bytes", SIGNATURE, signers.with_signature(|it| [it, &[0]].concat())),
            (
                "an ES256 signature of 96 bytes",
                SIGNATURE,
                signers.with_signature(|it| [it, &[0; 32]].concat()),
            ),
            (
                "an ES256 signature whose s is 0",
                SIGNATURE,
                signers.with_signature(|it| [&it[..32], &[0; 32]].concat()),
            ),
            ("the numbers of ES256 swapped", SIGNATURE, {
                signers.with_signature(|it| [&it[32..], &it[..32]].concat())
            }),
            ("an ES256 signature with its high bit flipped", SIGNATURE, {
                signers.with_signature(|it| [&[it[0] ^ 0x80], &it[1..]].concat())
            }),
            ("an EdDSA signature with its high bits set", SIGNATURE, {
                signers.with_ed25519_signature(|mut it| {
                    it[63] |= 0xe0;
                    it
                })
            }),
            ("an EdDSA signature with the order added", SIGNATURE, {
                signers.with_ed25519_signature(with_order_added)
            }),
            (
                "an EdDSA signature of 32 bytes",
                SIGNATURE,
                signers.with_ed25519_signature(|it| it[..32].to_vec()),
            ),
        ],
    )
}

/// Returns strings that are not tokens in the compact form, and a token that is too long.
fn wrong_forms(signers: &Signers) -> Vec<Row> {
    let token = signers.with_payload(lasting("alice").to_string());
    let (text, signature) = token.rsplit_once('.').unwrap();
    let (header, payload) = text.split_once('.').unwrap();
    let standard = || {
        let header = STANDARD_NO_PAD.encode(r#"{"alg":"RS256","kid":"rsa","x":"~~~~???"}"#);
        assert!(header.contains(['+', '/']), "{header}");
        signed(&format!("{header}.{payload}"), |text| signers.rsa.sign("RS256", text))
    };
    rows(
        By::KeySet,
        [
            ("spare bits in the signature", MALFORMED, with_spare_bits(&token)),
            ("a padded signature", MALFORMED, format!("{token}=")),
            ("a padded header", MALFORMED, format!("{header}=.{payload}.{signature}")),
            ("standard base64", MALFORMED, standard()),
            ("a space before the payload", SIGNATURE, format!("{header}. {payload}.{signature}")),
            ("no token", MALFORMED, "nonsense".to_owned()),
            ("only dots", MALFORMED, "..".to_owned()),
            ("two parts", MALFORMED, text.to_owned()),
            ("four parts", MALFORMED, format!("{token}.e30")),
            ("five parts: an encrypted token", MALFORMED, format!("{token}.e30.e30")),
            ("a token in quotes", MALFORMED, format!("\"{token}\"")),
            ("the scheme twice", MALFORMED, format!("Bearer {token}")),
            ("the JSON serialization", MALFORMED, {
                json!({"protected": header, "payload": payload, "signature": signature}).to_string()
            }),
            ("more than 8 KB", TOO_LONG, signers.with("groups", json!("g".repeat(6_000)))),
        ],
    )
}

/// Returns correctly signed tokens with invalid claims.
fn wrong_claims(signers: &Signers) -> Vec<Row> {
    let with = |name: &str, value: Value| signers.with(name, value);
    let twice = |members: &str| signers.with_payload(with_members(members));
    let not_utf8 = lasting("alice").to_string().replace("alice", "ali?e").into_bytes();
    let not_utf8: Vec<u8> = not_utf8.into_iter().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
    rows(
        By::KeySet,
        [
            ("no exp", MEMBERS, with("exp", Value::Null)),
            (
                "exp null",
                MEMBERS,
                signers.with_payload(with_members("\"nbf\":null").replace("4000000000", "null")),
            ),
            ("exp as text", MEMBERS, with("exp", json!("4000000000"))),
            ("exp true", MEMBERS, with("exp", json!(true))),
            ("exp as a list", MEMBERS, with("exp", json!([4_000_000_000_u64]))),
            ("exp beyond any number", MALFORMED, {
                signers.with_payload(lasting("alice").to_string().replace("4000000000", "1e999"))
            }),
            ("exp in the past", "expired", with("exp", json!(1_700_000_000))),
            ("exp with a fraction, in the past", "expired", with("exp", json!(1_700_000_000.5))),
            ("exp 0", "expired", with("exp", json!(0))),
            ("a negative exp", "expired", with("exp", json!(-4_000_000_000_i64))),
            ("exp twice", MEMBERS, twice(r#""exp":1"#)),
            ("nbf ahead", "not valid yet", with("nbf", json!(3_999_999_999_u64))),
            ("nbf with a fraction, ahead", "not valid yet", with("nbf", json!(3_999_999_999.5))),
            ("nbf as text", MEMBERS, with("nbf", json!("1"))),
            ("nbf twice", MEMBERS, twice(r#""nbf":1,"nbf":2"#)),
            ("no iss", MEMBERS, with("iss", Value::Null)),
            ("another iss", "wrong issuer", with("iss", json!("https://evil.example"))),
            ("iss in another case", "wrong issuer", with("iss", json!("Claimgate"))),
            ("iss with a slash", "wrong issuer", with("iss", json!("claimgate/"))),
            ("iss as a list", MEMBERS, with("iss", json!(["claimgate"]))),
            ("iss twice", MEMBERS, twice(r#""iss":"https://evil.example""#)),
            ("no aud", MEMBERS, with("aud", Value::Null)),
            ("aud null", MEMBERS, {
                signers.with_payload(
                    lasting("alice").to_string().replace(r#""aud":"claimgate""#, r#""aud":null"#),
                )
            }),
            ("another aud", "wrong audience", with("aud", json!("another"))),
            ("aud in another case", "wrong audience", with("aud", json!("CLAIMGATE"))),
            ("other audiences", "wrong audience", with("aud", json!(["another", "claimgate2"]))),
            ("no audience in the list", "wrong audience", with("aud", json!([]))),
            ("aud as an object", MEMBERS, with("aud", json!({"claimgate": true}))),
            ("a number among the audiences", MEMBERS, with("aud", json!(["claimgate", 1]))),
            ("aud twice", MEMBERS, twice(r#""aud":"another""#)),
            ("no sub", MEMBERS, with("sub", Value::Null)),
            ("sub as a number", MEMBERS, with("sub", json!(42))),
            ("sub twice", MEMBERS, twice(r#""sub":"mallory""#)),
            ("sub twice, once escaped", MEMBERS, twice(r#""\u0073ub":"mallory""#)),
            ("an empty sub", SUBJECT, with("sub", json!(""))),
            ("an e-mail address as sub", SUBJECT, with("sub", json!("anna@example.com"))),
            ("a path as sub", SUBJECT, with("sub", json!("../alice"))),
            ("a sub of 65 characters", SUBJECT, with("sub", json!("a".repeat(65)))),
            ("a sub beyond ASCII", SUBJECT, with("sub", json!("аlice"))),
            ("an empty payload", MALFORMED, signers.with_payload("")),
            ("a payload that is a string", MEMBERS, signers.with_payload("\"alice\"")),
            ("a payload that is a list", MEMBERS, {
                signers.with_payload(r#"["claimgate","claimgate","alice",4000000000,null]"#)
            }),
            ("a payload that ends early", MALFORMED, signers.with_payload(r#"{"iss":"claimgate""#)),
            ("a payload followed by another", MALFORMED, {
                signers.with_payload(format!("{}{{}}", lasting("alice")))
            }),
            ("a payload that is not UTF-8", MALFORMED, signers.with_payload(not_utf8)),
        ],
    )
}

/// Returns tokens that lack the claim that is required instead of an audience.
fn wrong_required_claims(signers: &Signers) -> Vec<Row> {
    let without_aud = |more: &str| {
        let claims = with_members(more).replace(r#""aud":"claimgate","#, "");
        assert!(!claims.contains("\"aud\""), "{claims}");
        signers.with_payload(claims)
    };
    rows(
        By::Claims,
        [
            ("neither aud nor client_id", REQUIRED, without_aud(r#""x":1"#)),
            ("aud instead of client_id", REQUIRED, signers.with("x", json!(1))),
            ("another client_id", REQUIRED, without_aud(r#""client_id":"another""#)),
            ("client_id in another case", REQUIRED, without_aud(r#""client_id":"7G4""#)),
            ("client_id as a list", REQUIRED, without_aud(r#""client_id":["7g4"]"#)),
            ("client_id null", REQUIRED, without_aud(r#""client_id":null"#)),
            ("client_id twice", MEMBERS, without_aud(r#""client_id":"7g4","client_id":"another""#)),
        ],
    )
}

/// Returns tokens for the edge with a secret.
fn wrong_for_a_secret(signers: &Signers) -> Vec<Row> {
    let (good, header) = (lasting("alice"), json!({"alg": "HS256", "typ": "JWT"}));
    let named = |algorithm: &str| by_hmac(&signers.secret, &json!({"alg": algorithm}), &good);
    let text = unsigned(&header, &good);
    rows(
        By::Secret,
        [
            ("another secret", SIGNATURE, by_hmac(b"another secret", &header, &good)),
            ("an empty secret", SIGNATURE, by_hmac(b"", &header, &good)),
            ("the secret's base64url as secret", SIGNATURE, {
                by_hmac(URL_SAFE_NO_PAD.encode(&signers.secret).as_bytes(), &header, &good)
            }),
            ("no MAC", SIGNATURE, format!("{text}.")),
            ("half a MAC", SIGNATURE, signed(&text, |text| mac(&signers.secret, text)[..16].to_vec())),
            ("a MAC with a byte more", SIGNATURE, {
                signed(&text, |text| [mac(&signers.secret, text), vec![0]].concat())
            }),
            ("a MAC named none", ALGORITHM, named("none")),
            ("a MAC named HS512", ALGORITHM, named("HS512")),
            ("a MAC named RS256", ALGORITHM, named("RS256")),
            ("a MAC named hs256", ALGORITHM, named("hs256")),
            ("RS256 of an RSA key", ALGORITHM, signers.with_payload(good.to_string())),
            ("a MAC with crit", CRITICAL, {
                by_hmac(&signers.secret, &json!({"alg": "HS256", "crit": ["exp"]}), &good)
            }),
            ("a MAC, no aud", MEMBERS, by_hmac(&signers.secret, &header, &changed("aud", Value::Null))),
            (
                "a MAC, exp in the past",
                "expired",
                by_hmac(&signers.secret, &header, &changed("exp", json!(1))),
            ),
        ],
    )
}

/// Returns valid claims in which `members`, a JSON text, occur as well: JSON values cannot hold a member
/// twice.
fn with_members(members: &str) -> String {
    let claims = lasting("alice").to_string();
    format!("{},{members}}}", claims.trim_end_matches('}'))
}

/// Encodes both numbers of an ECDSA signature as DER (RFC 3279, 2.2.3).
fn der(signature: &[u8]) -> Vec<u8> {
    let (r, s) = signature.split_at(signature.len() / 2);
    let integer = |number: &[u8]| {
        let number = &number[number.iter().take_while(|byte| **byte == 0).count()..];
        let sign = if number[0] >= 0x80 { &[0][..] } else { &[] };
        [&[2, u8::try_from(sign.len() + number.len()).unwrap()], sign, number].concat()
    };
    let numbers = [integer(r), integer(s)].concat();
    [&[0x30, u8::try_from(numbers.len()).unwrap()], &numbers[..]].concat()
}

/// Adds the order of the group to the number S of an Ed25519 signature (RFC 8032, 5.1.7 forbids such a signature).
fn with_order_added(mut signature: Vec<u8>) -> Vec<u8> {
    const ORDER: [u8; 32] = *b"\xed\xd3\xf5\x5c\x1a\x63\x12\x58\xd6\x9c\xf7\xa2\xde\xf9\xde\x14\
        \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10";
    let mut carry = 0;
    for (byte, added) in signature[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(added) + carry;
        *byte = sum.to_le_bytes()[0];
        carry = sum >> 8;
    }
    signature
}

/// Sets the bits of the last character of base64url that stand for no byte.
fn with_spare_bits(token: &str) -> String {
    let (rest, last) = token.split_at(token.len() - 1);
    let next = char::from(last.as_bytes()[0] + 1);
    assert!("AQgw".contains(last) && next.is_ascii_alphanumeric(), "{last} has spare bits");
    format!("{rest}{next}")
}

/// Returns every spelling of `none` in upper and lower case.
fn nones() -> Vec<String> {
    let spelled = |bits: u32| {
        let cased =
            |(at, char): (usize, char)| if bits >> at & 1 == 1 { char.to_ascii_uppercase() } else { char };
        "none".chars().enumerate().map(cased).collect()
    };
    (0..16).map(spelled).collect()
}
