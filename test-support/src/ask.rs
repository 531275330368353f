//! Calls to core over HTTP, and what came back.

use std::sync::Once;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::core_process::API_TOKEN;
use crate::times::from_now;
use crate::{Core, process};

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
    let client = reqwest::Client::builder().no_proxy().timeout(WAIT).pool_idle_timeout(IDLE_MAX).build();
    Client(client.expect("an HTTP client"))
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

fn with_token(request: RequestBuilder, token: &str) -> RequestBuilder {
    if token.is_empty() { request } else { request.bearer_auth(token) }
}

/// A claim's request body.
pub fn claim_body(campaign: &str, user: &str, key: &str, quantity: u32) -> Value {
    json!({"campaign_id": campaign, "user_id": user, "idempotency_key": key, "quantity": quantity})
}

impl Core {
    /// Claims one unit as the back end.
    pub async fn claim(&self, campaign: &str, user: &str, key: &str) -> Reply {
        self.claim_units(campaign, user, key, 1).await
    }

    /// Claims units as the back end.
    pub async fn claim_units(&self, campaign: &str, user: &str, key: &str, quantity: u32) -> Reply {
        self.post_claim(&claim_body(campaign, user, key, quantity)).await
    }

    /// Claims one unit as the back end, marked as its first try.
    pub async fn first_try(&self, campaign: &str, user: &str, key: &str) -> Reply {
        let url = self.url("/internal/v1/claims");
        let request = self.client().request(Method::POST, &url).bearer_auth(API_TOKEN);
        let request = request.header("Claimgate-Attempt", "1").json(&claim_body(campaign, user, key, 1));
        self.client().send(request).await.expect("an answer")
    }

    /// Claims units; `Err` when no answer came.
    pub async fn try_claim(
        &self,
        campaign: &str,
        user: &str,
        key: &str,
        units: u32,
    ) -> Result<Reply, reqwest::Error> {
        let request =
            self.client().request(Method::POST, &self.url("/internal/v1/claims")).bearer_auth(API_TOKEN);
        self.client().send(request.json(&claim_body(campaign, user, key, units))).await
    }

    /// Sends a claim's body as the back end.
    pub async fn post_claim(&self, body: &Value) -> Reply {
        self.client().call(Method::POST, &self.url("/internal/v1/claims"), API_TOKEN, body).await
    }

    /// Reads a path of the internal API as the back end.
    pub async fn get(&self, path: &str) -> Reply {
        self.client().call(Method::GET, &self.url(path), API_TOKEN, &Value::Null).await
    }

    /// Looks a claim up.
    pub async fn look_up(&self, claim_id: &str) -> Reply {
        self.get(&format!("/internal/v1/claims/{claim_id}")).await
    }

    /// The campaign view of the internal API.
    pub async fn campaign(&self, id: &str) -> Value {
        self.get(&format!("/internal/v1/campaigns/{id}")).await.expect(200).json()
    }

    /// Calls the admin API as the admin.
    pub async fn admin(&self, method: Method, path: &str, body: &Value) -> Reply {
        self.client().call(method, &self.admin_url(path), &self.admin_token(), body).await
    }

    /// GET of the admin API.
    pub async fn admin_get(&self, path: &str) -> Reply {
        self.admin(Method::GET, path, &Value::Null).await
    }

    /// POST of the admin API, without a body.
    pub async fn admin_post(&self, path: &str) -> Reply {
        self.admin(Method::POST, path, &Value::Null).await
    }

    /// Creates a campaign that is open, in UTC, with `limits`.
    pub async fn create(&self, id: &str, limits: Value) -> Value {
        self.create_with(campaign(id, limits)).await
    }

    /// Creates a campaign.
    pub async fn create_with(&self, body: Value) -> Value {
        self.admin(Method::POST, "/admin/v1/campaigns", &body).await.expect(201).json()
    }

    /// `pause`, `resume` or `end`.
    pub async fn switch(&self, id: &str, verb: &str) -> Reply {
        self.admin_post(&format!("/admin/v1/campaigns/{id}/{verb}")).await
    }

    /// Changes a campaign at the version it is at now.
    pub async fn patch(&self, id: &str, mut change: Value) -> Reply {
        let path = format!("/admin/v1/campaigns/{id}");
        change["version"] = self.admin_get(&path).await.expect(200).json()["version"].clone();
        self.admin(Method::PATCH, &path, &change).await
    }

    /// The process id of the embedded Redis.
    pub async fn redis_pid(&self) -> u32 {
        let pid = self.redis().await.pid().await;
        assert!(process::runs(pid), "Redis says it is process {pid}");
        pid
    }
}

/// The create body of a campaign that has been open for a minute, in UTC.
#[allow(clippy::needless_pass_by_value)] // called with `json!(…)` everywhere
pub fn campaign(id: &str, limits: Value) -> Value {
    json!({"id": id, "name": id, "starts_at": from_now(-60), "limits": limits})
}
