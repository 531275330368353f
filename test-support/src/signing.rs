//! The edge's signature, built from the text of the contract and from nothing of claimgate's own.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Method;
use sha2::{Digest as _, Sha256};

use crate::client::Reply;
use crate::{Core, times};

/// A request as the edge signs it. What is sent can be made to differ from what was signed.
#[derive(Debug, Clone)]
pub struct Signed {
    /// The key's id.
    pub kid: String,
    /// The key.
    pub key: Vec<u8>,
    /// When it was signed, in milliseconds since 1970.
    pub timestamp: String,
    /// `GET` or `POST`.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Empty for none.
    pub content_type: String,
    /// The body.
    pub body: String,
    /// The signed user; empty for none.
    pub user: String,
    /// The browser's address.
    pub client_ip: String,
    /// Empty for none.
    pub idempotency_key: String,
    /// `1` for a first try, empty for none.
    pub attempt: String,
}

impl Signed {
    /// The key that `core` made for its edge.
    fn by_edge_of(core: &Core, method: Method, path: &str, user: &str) -> Self {
        let named = core.data_file("edge.key");
        let (kid, key) = named.split_once(':').expect("kid:key");
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
        }
    }

    /// A claim.
    pub fn claim(core: &Core, campaign: &str, user: &str, idempotency_key: &str) -> Self {
        Self {
            content_type: "application/json".to_owned(),
            body: crate::claim_body(campaign, user, idempotency_key, 1).to_string(),
            idempotency_key: idempotency_key.to_owned(),
            ..Self::by_edge_of(core, Method::POST, "/internal/v1/claims", user)
        }
    }

    /// The same, marked as its first try.
    pub fn first_try(core: &Core, campaign: &str, user: &str, idempotency_key: &str) -> Self {
        Self { attempt: "1".to_owned(), ..Self::claim(core, campaign, user, idempotency_key) }
    }

    /// A read.
    pub fn get(core: &Core, path: &str, user: &str) -> Self {
        Self::by_edge_of(core, Method::GET, path, user)
    }

    /// The signature, as contract section 7 words it.
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
        // Where there is no mark, there is no eleventh field.
        let mark = Some(self.attempt.as_bytes()).filter(|attempt| !attempt.is_empty());
        for field in fields.into_iter().chain(mark) {
            mac.update(&u32::try_from(field.len()).expect("short").to_be_bytes());
            mac.update(field);
        }
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
    }

    /// Sends this with its own signature.
    pub async fn send(&self, core: &Core) -> Reply {
        self.send_signed(core, &self.signature()).await
    }

    /// Sends this with `signature`.
    pub async fn send_signed(&self, core: &Core, signature: &str) -> Reply {
        let mut request = core
            .client()
            .request(self.method.clone(), &core.url(&self.path))
            .header("X-Claimgate-Key", &self.kid)
            .header("X-Claimgate-Timestamp", &self.timestamp)
            .header("X-Claimgate-User", &self.user)
            .header("X-Claimgate-Client-Ip", &self.client_ip)
            .header("X-Claimgate-Signature", signature)
            .body(self.body.clone());
        if !self.content_type.is_empty() {
            request = request.header("Content-Type", &self.content_type);
        }
        if !self.attempt.is_empty() {
            request = request.header("Claimgate-Attempt", &self.attempt);
        }
        core.client().send(request).await.expect("an answer")
    }
}

/// The claim id that the contract (section 1) derives.
pub fn claim_id(campaign: &str, user: &str, idempotency_key: &str) -> String {
    let mut hash = Sha256::new();
    for field in [campaign, user, idempotency_key] {
        hash.update(u32::try_from(field.len()).expect("short").to_be_bytes());
        hash.update(field);
    }
    format!("{campaign}.{user}.{}", URL_SAFE_NO_PAD.encode(&hash.finalize()[..16]))
}
