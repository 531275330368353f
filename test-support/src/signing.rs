//! The edge's signature, implemented from the contract's text without any code of claimgate.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::client::Reply;
use crate::{Core, times};

/// A request as the edge signs it. The fields sent can differ from the fields signed.
#[derive(Debug, Clone)]
pub struct Signed {
    /// The key's id.
    pub kid: String,
    /// The key.
    pub key: Vec<u8>,
    /// Time of the signature, in milliseconds since 1970.
    pub timestamp: String,
    /// `GET` or `POST`.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Empty if there is none.
    pub content_type: String,
    /// The body.
    pub body: String,
    /// The signed user; empty if there is none.
    pub user: String,
    /// The browser's address.
    pub client_ip: String,
    /// Empty if there is none.
    pub idempotency_key: String,
    /// `1` for a first try; empty if there is no mark.
    pub attempt: String,
    /// The scheme of user ids, `FORM:FINGERPRINT`; empty if the edge sends none.
    pub user_ids: String,
    /// The pass that the edge verified, `shown` or `shown:UNITS`; empty if there is none.
    pub pass: String,
}

impl Signed {
    /// Creates a request signed with the key that `core` generated for its edge.
    fn by_edge_of(core: &Core, method: Method, path: &str, user: &str) -> Self {
        Self::by(&core.data_file("edge.key"), method, path, user)
    }

    /// Creates a request signed with the edge's key `KID:KEY`.
    fn by(edge_key: &str, method: Method, path: &str, user: &str) -> Self {
        let (kid, key) = edge_key.split_once(':').expect("kid:key");
        Self {
            kid: kid.to_owned(),
            key: URL_SAFE_NO_PAD.decode(key).expect("base64url"),
            timestamp: times::now_ms().to_string(),
            method,
            path: path.to_owned(),
            content_type: String::new(),
            body: String::new(),
            user: user.to_owned(),
            client_ip: "192.0.2.7".to_owned(),
            idempotency_key: String::new(),
            attempt: String::new(),
            user_ids: String::new(),
            pass: String::new(),
        }
    }

    /// Creates a signed claim.
    pub fn claim(core: &Core, campaign: &str, user: &str, idempotency_key: &str) -> Self {
        Self {
            content_type: "application/json".to_owned(),
            body: crate::claim_body(campaign, user, idempotency_key, 1).to_string(),
            idempotency_key: idempotency_key.to_owned(),
            ..Self::by_edge_of(core, Method::POST, "/internal/v1/claims", user)
        }
    }

    /// Creates a signed claim, marked as a first try.
    pub fn first_try(core: &Core, campaign: &str, user: &str, idempotency_key: &str) -> Self {
        Self { attempt: "1".to_owned(), ..Self::claim(core, campaign, user, idempotency_key) }
    }

    /// Creates a report of refused claims, signed with the edge's key `KID:KEY`.
    pub fn report(edge_key: &str, body: &Value) -> Self {
        Self {
            content_type: "application/json".to_owned(),
            body: body.to_string(),
            ..Self::by(edge_key, Method::POST, "/internal/v1/refusals", "")
        }
    }

    /// Adds a pass, `shown` or `shown:UNITS`.
    #[must_use]
    pub fn with_pass(self, pass: &str) -> Self {
        Self { pass: pass.to_owned(), ..self }
    }

    /// Creates a signed read.
    pub fn get(core: &Core, path: &str, user: &str) -> Self {
        Self::by_edge_of(core, Method::GET, path, user)
    }

    /// Returns the body's hash as sent in its header.
    pub fn body_hash(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(self.body.as_bytes()))
    }

    /// Returns the signature as section 7 of the contract defines it.
    pub fn signature(&self) -> String {
        let body_hash = Sha256::digest(self.body.as_bytes());
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes any key");
        let fields = [
            "1".as_bytes(),
            self.kid.as_bytes(),
            self.timestamp.as_bytes(),
            self.method.as_str().as_bytes(),
            self.path.as_bytes(),
            self.content_type.as_bytes(),
            &body_hash,
            self.user.as_bytes(),
            self.client_ip.as_bytes(),
            self.idempotency_key.as_bytes(),
        ];
        // Without a mark, a scheme or a pass, its field is absent.
        let mark = Some(self.attempt.as_bytes()).filter(|attempt| !attempt.is_empty());
        let user_ids = Some(format!("user-ids:{}", self.user_ids)).filter(|_| !self.user_ids.is_empty());
        let pass = Some(format!("pass:{}", self.pass)).filter(|_| !self.pass.is_empty());
        let named = [&user_ids, &pass].into_iter().flatten().map(String::as_bytes);
        for field in fields.into_iter().chain(mark).chain(named) {
            mac.update(&u32::try_from(field.len()).expect("short").to_be_bytes());
            mac.update(field);
        }
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
    }

    /// Sends the request with its own signature.
    pub async fn send(&self, core: &Core) -> Reply {
        self.send_signed(core, &self.signature()).await
    }

    /// Sends the request with `signature` and, if it has a body, the body's hash.
    pub async fn send_signed(&self, core: &Core, signature: &str) -> Reply {
        let hash = if self.body.is_empty() { String::new() } else { self.body_hash() };
        self.send_with_hash(core, signature, &hash).await
    }

    /// Sends the request once, as earlier versions of the edge did: without the headers that describe the
    /// body.
    pub async fn send_as_before(&self, core: &Core) -> Reply {
        let request = self.request(core, &self.signature(), "");
        core.client().once().send(request).await.expect("an answer")
    }

    /// Sends the request with `signature` and `hash` as the body's hash.
    pub async fn send_with_hash(&self, core: &Core, signature: &str, hash: &str) -> Reply {
        core.client().send(self.request(core, signature, hash)).await.expect("an answer")
    }

    fn request(&self, core: &Core, signature: &str, hash: &str) -> RequestBuilder {
        let request = core.client().request(self.method.clone(), &core.url(&self.path));
        let headers = self.headers(signature, hash).into_iter();
        headers.fold(request.body(self.body.clone()), |request, (name, value)| request.header(name, value))
    }

    /// Returns the request's head, which announces a body; with `signature` and the body's hash.
    pub fn head(&self, signature: &str) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: core\r\n", self.method, self.path);
        for (name, value) in self.headers(signature, &self.body_hash()) {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head + &format!("Content-Length: {}\r\n\r\n", self.body.len())
    }

    fn headers(&self, signature: &str, hash: &str) -> Vec<(&'static str, String)> {
        let of_the_body = if hash.is_empty() { "" } else { self.idempotency_key.as_str() };
        let may_lack = [
            ("Content-Type", self.content_type.as_str()),
            ("Claimgate-Attempt", &self.attempt),
            ("X-Claimgate-User-Ids", &self.user_ids),
            ("X-Claimgate-Pass", &self.pass),
            ("X-Claimgate-Content-SHA256", hash),
            ("X-Claimgate-Idempotency-Key", of_the_body),
        ];
        let always = [
            ("X-Claimgate-Key", self.kid.as_str()),
            ("X-Claimgate-Timestamp", &self.timestamp),
            ("X-Claimgate-User", &self.user),
            ("X-Claimgate-Client-Ip", &self.client_ip),
            ("X-Claimgate-Signature", signature),
        ];
        let there = may_lack.into_iter().filter(|(_, value)| !value.is_empty());
        always.into_iter().chain(there).map(|(name, value)| (name, value.to_owned())).collect()
    }
}

/// Returns the claim id as section 1 of the contract derives it.
pub fn claim_id(campaign: &str, user: &str, idempotency_key: &str) -> String {
    let mut hash = Sha256::new();
    for field in [campaign, user, idempotency_key] {
        hash.update(u32::try_from(field.len()).expect("short").to_be_bytes());
        hash.update(field);
    }
    format!("{campaign}.{user}.{}", URL_SAFE_NO_PAD.encode(&hash.finalize()[..16]))
}
