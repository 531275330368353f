//! An HTTP client, and what came back.

use std::sync::{Arc, Once};
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Longer than any answer of core may take.
const WAIT: Duration = Duration::from_secs(30);

/// Core closes a connection on which no head comes for 5 s; one that is being closed is not to be used again.
const IDLE_MAX: Duration = Duration::from_secs(3);

/// An HTTP client that opens as many connections as it needs.
#[derive(Debug, Clone)]
pub struct Client(reqwest::Client);

/// A client of its own, so that no test waits for another one's connections.
pub fn client() -> Client {
    static DESCRIPTORS: Once = Once::new();
    DESCRIPTORS.call_once(|| {
        let _ = rlimit::increase_nofile_limit(u64::MAX);
    });
    let client = reqwest::Client::builder().no_proxy().timeout(WAIT).pool_idle_timeout(IDLE_MAX);
    Client(client.tls_backend_preconfigured(trusting_none()).build().expect("an HTTP client"))
}

/// TLS as reqwest wants to be told of it, though nothing of the tests' own is called by it.
fn trusting_none() -> ClientConfig {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("TLS");
    config.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// The problem's code; empty when this is no problem.
    pub fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }

    /// A header's one value; empty when it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Checks the status; the answer again, so that calls can be chained.
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{} {}", self.text(), self.header("x-request-id"));
        self
    }

    /// Checks that this is a problem with that status and code.
    pub fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.text());
        self
    }
}

impl Client {
    /// Sends what `build` makes; `Err` when no whole answer came.
    pub async fn send(&self, request: RequestBuilder) -> Result<Reply, reqwest::Error> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await?.to_vec();
        Ok(Reply { status, headers, body })
    }

    /// A request to fill in.
    pub fn request(&self, method: Method, url: &str) -> RequestBuilder {
        self.0.request(method, url)
    }

    /// GET with a token (none when empty).
    pub async fn try_get(&self, url: &str, token: &str) -> Result<Reply, reqwest::Error> {
        self.send(with_token(self.request(Method::GET, url), token)).await
    }

    /// A call with a token (none when empty) and a JSON body (none when null).
    pub async fn call(&self, method: Method, url: &str, token: &str, body: &Value) -> Reply {
        let mut request = with_token(self.request(method, url), token);
        if !body.is_null() {
            request = request.json(body);
        }
        self.send(request).await.unwrap_or_else(|error| panic!("no answer from {url}: {error:?}"))
    }
}

pub(crate) fn with_token(request: RequestBuilder, token: &str) -> RequestBuilder {
    if token.is_empty() { request } else { request.bearer_auth(token) }
}
