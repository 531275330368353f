//! An HTTP client that retries calls as docs/api.md requires.
//!
//! A slow machine may answer 503 although nothing is wrong: the contract allows it, and callers retry. Tests
//! that are not about availability retry too and count the retries; tests about a 503 use [`Client::once`].

use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use reqwest::{Method, Request, RequestBuilder, Response};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::SOON;
use crate::events::record;
use crate::time_limits::limit;

/// Core closes a connection that sends no request head for 5 s. A closing connection must not be reused, even
/// if this process was delayed.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// The pause before a retry if the response has no `Retry-After`.
const PAUSE: Duration = Duration::from_millis(50);

/// Problems after which docs/api.md allows a retry. `rate_limited` is not listed, because the tests check the
/// limits.
pub(crate) const REPEATABLE: [&str; 4] =
    ["unavailable", "campaign_not_ready", "overloaded", "request_timeout"];

const MARK: &str = "Claimgate-Attempt";

/// An HTTP client that opens as many connections as it needs.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    repeats: bool,
}

/// Creates a separate client, so that no test waits for another test's connections.
pub fn client() -> Client {
    client_waiting(SOON)
}

/// Creates a client for a server whose responses may take up to `longest`.
pub(crate) fn client_waiting(longest: Duration) -> Client {
    static DESCRIPTORS: Once = Once::new();
    DESCRIPTORS.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    });
    let client = reqwest::Client::builder().no_proxy().timeout(longest).pool_idle_timeout(IDLE_MAX);
    let http = client.tls_backend_preconfigured(trusting_none()).build().expect("an HTTP client");
    Client { http, repeats: true }
}

/// Returns the TLS configuration that reqwest requires, although the tests make no TLS calls with it.
fn trusting_none() -> ClientConfig {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("TLS");
    config.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// A response, read completely.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The called path.
    pub path: String,
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
    /// Number of earlier responses that were 503 or 408.
    pub repeats: u32,
}

impl Reply {
    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Returns the problem's code; empty if the response is not a problem.
    pub fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the value of a header; empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Checks the status and returns the response, so that calls can be chained. A retried call may find what
    /// an earlier try created: 200 then counts as 201.
    pub fn expect(self, status: u16) -> Self {
        assert!(
            self.status == status || (status == 201 && self.is_created()),
            "{}, not {status}: {} {}",
            self.status,
            self.text(),
            self.header("x-request-id")
        );
        self
    }

    /// Returns whether the call created something: 201, or 200 if an earlier try may have created it.
    pub fn is_created(&self) -> bool {
        self.status == 201 || (self.status == 200 && self.repeats > 0)
    }

    /// Checks that the response is a problem with this status and code.
    pub fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.text());
        self
    }
}

impl Client {
    /// Returns the same client without retries.
    #[must_use]
    pub fn once(&self) -> Self {
        Self { http: self.http.clone(), repeats: false }
    }

    /// Sends `request` and retries it while a retry may help; `Err` if no complete response arrived.
    pub async fn send(&self, request: RequestBuilder) -> Result<Reply, reqwest::Error> {
        let request = request.build()?;
        let again = request.try_clone().filter(is_idempotent).map(unmarked);
        let mut repetition = self.repetition();
        let mut reply = read(self.http.execute(request).await?).await?;
        while let Some(again) = again.as_ref().and_then(Request::try_clone) {
            if !repetition.may_follow(&reply).await {
                break;
            }
            reply = read(self.http.execute(again).await?).await?;
        }
        Ok(Reply { repeats: repetition.count, ..reply })
    }

    pub(crate) fn repetition(&self) -> Repetition {
        Repetition::new(if self.repeats { SOON } else { Duration::ZERO })
    }

    /// Starts a request for the test to complete.
    pub fn request(&self, method: Method, url: &str) -> RequestBuilder {
        self.http.request(method, url)
    }

    /// Sends a GET request with a token (none if empty).
    pub async fn try_get(&self, url: &str, token: &str) -> Result<Reply, reqwest::Error> {
        self.send(with_token(self.request(Method::GET, url), token)).await
    }

    /// Sends a request with a token (none if empty) and a JSON body (none if null).
    pub async fn call(&self, method: Method, url: &str, token: &str, body: &Value) -> Reply {
        let mut request = with_token(self.request(method, url), token);
        if !body.is_null() {
            request = request.json(body);
        }
        self.send(request).await.unwrap_or_else(|error| panic!("no answer from {url}: {error:?}"))
    }
}

/// The retries of one call.
pub(crate) struct Repetition {
    until: Instant,
    /// Number of retries so far.
    pub count: u32,
}

impl Repetition {
    /// Starts a call that may be retried for `limit(within)`.
    pub fn new(within: Duration) -> Self {
        Self { until: Instant::now() + limit(within), count: 0 }
    }

    /// Returns whether the call should be retried after `reply`; first waits as long as `reply` requires.
    pub async fn may_follow(&mut self, reply: &Reply) -> bool {
        let may_help = [503, 408].contains(&reply.status) && REPEATABLE.contains(&reply.code().as_str());
        may_help && self.has_time(reply).await
    }

    /// Returns whether to retry after a `reply` that left part of the call undecided.
    pub async fn has_time(&mut self, reply: &Reply) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        record_retry(reply);
        self.count += 1;
        tokio::time::sleep(reply.header("retry-after").parse().map_or(PAUSE, Duration::from_secs)).await;
        true
    }
}

/// Removes the mark, which only a first try may carry.
fn unmarked(mut request: Request) -> Request {
    request.headers_mut().remove(MARK);
    request
}

/// Returns whether `request` has the same effect if it is sent twice.
fn is_idempotent(request: &Request) -> bool {
    let path = request.url().path();
    let has = |header| request.headers().contains_key(header);
    match *request.method() {
        // A 503 of `/readyz` reports core's state, not a failed call.
        Method::GET => path != "/readyz",
        // The mark of a signed request cannot be removed.
        Method::POST if has("X-Claimgate-Signature") => !has(MARK),
        // Without a key, the edge generates a new one for each request.
        Method::POST if path.starts_with("/v1/") => has("Idempotency-Key"),
        Method::POST => !path.starts_with("/admin/v1/webhooks") || path.ends_with("/enable"),
        _ => false,
    }
}

async fn read(response: Response) -> Result<Reply, reqwest::Error> {
    let path = response.url().path().to_owned();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = response.bytes().await?.to_vec();
    Ok(Reply { path, status, headers, body, repeats: 0 })
}

/// Records that the test retries the call with this response.
pub fn record_retry(reply: &Reply) {
    record(&format!("{} {} {}", reply.path, reply.status, reply.code()));
}

pub(crate) fn with_token(request: RequestBuilder, token: &str) -> RequestBuilder {
    if token.is_empty() { request } else { request.bearer_auth(token) }
}
