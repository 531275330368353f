//! Calls to core over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;

use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Client, Reply};
use crate::times::from_now;

/// The token of the back end that every core of the tests knows.
pub const API_TOKEN: &str = "a-back-ends-token-for-the-tests-only";

/// A caller of one core: its back end and its admin.
#[derive(Debug, Clone)]
pub struct CoreClient {
    pub(crate) client: Client,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) data_dir: PathBuf,
}

/// A claim's request body.
pub fn claim_body(campaign: &str, user: &str, key: &str, quantity: u32) -> Value {
    json!({"campaign_id": campaign, "user_id": user, "idempotency_key": key, "quantity": quantity})
}

impl CoreClient {
    /// The same caller, who takes the first answer: for tests about availability.
    #[must_use]
    pub fn once(&self) -> Self {
        Self { client: self.client.once(), ..self.clone() }
    }

    /// Its HTTP client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where the internal API listens.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Where the admin API listens.
    pub fn admin_listen(&self) -> SocketAddr {
        self.admin
    }

    /// A URL of the internal API.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.listen)
    }

    /// A URL of the admin API.
    pub fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    /// The core's data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone()
    }

    /// The text of a file of the data directory.
    pub fn data_file(&self, name: &str) -> String {
        let file = self.data_dir.join(name);
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.trim_end().to_owned()
    }

    /// The admin token that the core has made itself.
    pub fn admin_token(&self) -> String {
        self.data_file("admin.token")
    }

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

    /// Claims units with one request; `Err` when no answer came.
    pub async fn try_claim(
        &self,
        campaign: &str,
        user: &str,
        key: &str,
        units: u32,
    ) -> Result<Reply, reqwest::Error> {
        let request =
            self.client().request(Method::POST, &self.url("/internal/v1/claims")).bearer_auth(API_TOKEN);
        self.client().once().send(request.json(&claim_body(campaign, user, key, units))).await
    }

    /// Sends a claim's body as the back end.
    pub async fn post_claim(&self, body: &Value) -> Reply {
        self.client().call(Method::POST, &self.url("/internal/v1/claims"), API_TOKEN, body).await
    }

    /// Sends claims in one request, again while one of them is undecided.
    pub async fn claim_batch(&self, claims: &[Value]) -> Reply {
        let (url, body) = (self.url("/internal/v1/claims/batch"), json!({ "claims": claims }));
        let mut repetition = self.client.repetition();
        loop {
            let reply = self.client.call(Method::POST, &url, API_TOKEN, &body).await;
            let is_undecided = reply.status == 200
                && reply.json()["results"]
                    .as_array()
                    .expect("results")
                    .iter()
                    .any(|one| one["status"] == 503);
            if !is_undecided || !repetition.has_time(&reply).await {
                return Reply { repeats: reply.repeats + repetition.count, ..reply };
            }
        }
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
    pub async fn set_admin_state(&self, id: &str, verb: &str) -> Reply {
        self.admin_post(&format!("/admin/v1/campaigns/{id}/{verb}")).await
    }

    /// Changes a campaign at the version it is at now. A change whose outcome is unknown is made again, at the version found
    /// then.
    pub async fn patch(&self, id: &str, mut change: Value) -> Reply {
        let path = format!("/admin/v1/campaigns/{id}");
        let mut repetition = self.client.repetition();
        loop {
            change["version"] = self.admin_get(&path).await.expect(200).json()["version"].clone();
            let reply = self.admin(Method::PATCH, &path, &change).await;
            if !repetition.may_follow(&reply).await {
                return Reply { repeats: repetition.count, ..reply };
            }
        }
    }
}

/// The create body of a campaign that has been open for a minute, in UTC.
#[allow(clippy::needless_pass_by_value)] // called with `json!(…)` everywhere
pub fn campaign(id: &str, limits: Value) -> Value {
    json!({"id": id, "name": id, "starts_at": from_now(-60), "limits": limits})
}
