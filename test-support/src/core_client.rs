//! Calls to core over HTTP.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use reqwest::Method;
use serde_json::{Value, json};

use crate::SOON;
use crate::client::{Client, REPEATABLE, Repetition, Reply};
use crate::times::{from_now, zone_far_from_midnight};

/// The API token that every core in the tests accepts.
pub const API_TOKEN: &str = "a-back-ends-token-for-the-tests-only";

/// `hold_seconds` so long that each extension of a hold reaches the maximum of a day after the claim, and a repeated
/// extension gains nothing.
pub const HOLD_S_PROLONGED: u32 = 200_000;

/// A client of one core: as its back end and as its admin.
#[derive(Debug, Clone)]
pub struct CoreClient {
    pub(crate) client: Client,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) data_dir: PathBuf,
}

/// Returns the request body of a claim.
pub fn claim_body(campaign: &str, user: &str, key: &str, quantity: u32) -> Value {
    json!({"campaign_id": campaign, "user_id": user, "idempotency_key": key, "quantity": quantity})
}

impl CoreClient {
    /// Returns a client that takes the first response without retries: for tests about availability.
    #[must_use]
    pub fn once(&self) -> Self {
        Self { client: self.client.once(), ..self.clone() }
    }

    /// Returns the HTTP client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the address of the internal API.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Returns the address of the admin API.
    pub fn admin_listen(&self) -> SocketAddr {
        self.admin
    }

    /// Returns a URL of the internal API.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.listen)
    }

    /// Returns a URL of the admin API.
    pub fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    /// Returns the core's data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone()
    }

    /// Returns the content of a file in the data directory.
    pub fn data_file(&self, name: &str) -> String {
        let file = self.data_dir.join(name);
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.trim_end().to_owned()
    }

    /// Returns the admin token that core generated.
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

    /// Claims one unit as the back end, and returns the first response other than `unavailable`: a slow core
    /// may give that to any claim.
    pub async fn claim_once_available(&self, campaign: &str, user: &str, key: &str) -> Reply {
        let (once, mut repetition) = (self.once(), Repetition::new(SOON));
        loop {
            let reply = once.claim(campaign, user, key).await;
            if reply.code() != "unavailable" || !repetition.has_time(&reply).await {
                return Reply { repeats: repetition.count, ..reply };
            }
        }
    }

    /// Claims one unit as the back end, marked as a first try.
    pub async fn first_try(&self, campaign: &str, user: &str, key: &str) -> Reply {
        let url = self.url("/internal/v1/claims");
        let request = self.client().request(Method::POST, &url).bearer_auth(API_TOKEN);
        let request = request.header("Claimgate-Attempt", "1").json(&claim_body(campaign, user, key, 1));
        self.client().send(request).await.expect("an answer")
    }

    /// Claims units with one request; `Err` if no response arrived.
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

    /// Sends claims in one request, and retries while any claim is undecided.
    pub async fn claim_batch(&self, claims: &[Value]) -> Reply {
        let (url, body) = (self.url("/internal/v1/claims/batch"), json!({ "claims": claims }));
        let mut repetition = self.client.repetition();
        loop {
            let reply = self.client.call(Method::POST, &url, API_TOKEN, &body).await;
            let is_undecided =
                reply.status == 200
                    && reply.json()["results"].as_array().expect("results").iter().any(|one| {
                        one["body"]["code"].as_str().is_some_and(|code| REPEATABLE.contains(&code))
                    });
            if !is_undecided || !repetition.has_time(&reply).await {
                return Reply { repeats: reply.repeats + repetition.count, ..reply };
            }
        }
    }

    /// Reads a path of the internal API as the back end.
    pub async fn get(&self, path: &str) -> Reply {
        self.client().call(Method::GET, &self.url(path), API_TOKEN, &Value::Null).await
    }

    /// Looks up a claim.
    pub async fn look_up(&self, claim_id: &str) -> Reply {
        self.get(&format!("/internal/v1/claims/{claim_id}")).await
    }

    /// Confirms, returns or extends a claim (`confirm`, `return`, `extend`) as the back end.
    pub async fn transition(&self, claim_id: &str, verb: &str) -> Reply {
        let url = self.url(&format!("/internal/v1/claims/{claim_id}/{verb}"));
        self.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await
    }

    /// Returns the campaign view of the internal API.
    pub async fn campaign(&self, id: &str) -> Value {
        self.get(&format!("/internal/v1/campaigns/{id}")).await.expect(200).json()
    }

    /// Calls the admin API as the admin.
    pub async fn admin(&self, method: Method, path: &str, body: &Value) -> Reply {
        self.client().call(method, &self.admin_url(path), &self.admin_token(), body).await
    }

    /// Returns the value of a sample of `/metrics`, by its exact name and labels; `None` if there is none.
    pub async fn metric<T: FromStr<Err: Debug>>(&self, sample: &str) -> Option<T> {
        let metrics = self.client().try_get(&self.admin_url("/metrics"), "").await.expect("metrics").text();
        let value = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
        Some(value.trim().parse().expect("a number"))
    }

    /// Sends a GET request to the admin API.
    pub async fn admin_get(&self, path: &str) -> Reply {
        self.admin(Method::GET, path, &Value::Null).await
    }

    /// Sends a POST request without a body to the admin API.
    pub async fn admin_post(&self, path: &str) -> Reply {
        self.admin(Method::POST, path, &Value::Null).await
    }

    /// Creates an open campaign with `limits`.
    pub async fn create(&self, id: &str, limits: Value) -> Value {
        self.create_with(campaign(id, limits)).await
    }

    /// Creates a campaign.
    pub async fn create_with(&self, body: Value) -> Value {
        self.admin(Method::POST, "/admin/v1/campaigns", &body).await.expect(201).json()
    }

    /// Calls `pause`, `resume` or `end`.
    pub async fn set_admin_state(&self, id: &str, verb: &str) -> Reply {
        self.admin_post(&format!("/admin/v1/campaigns/{id}/{verb}")).await
    }

    /// Changes a campaign at its current version. If the outcome is unknown, rereads the version and
    /// retries the change at that version.
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

    /// Adds a file with one code per line to a campaign with codes.
    pub async fn add_codes(&self, id: &str, file: &str) -> Reply {
        let url = self.admin_url(&format!("/admin/v1/campaigns/{id}/codes"));
        let request = self.client.request(Method::POST, &url).header("Content-Type", "text/csv");
        let request = request.bearer_auth(self.admin_token()).body(file.to_owned());
        self.client.send(request).await.expect("an answer")
    }

    /// Moves the campaign's end into the past. Unlike a campaign created with an end, this gives a test as much time
    /// for its claims as it needs.
    pub async fn end_by_time(&self, id: &str) {
        self.patch(id, json!({"ends_at": from_now(-1)})).await.expect(200);
    }
}

/// Returns the body that creates a campaign, open since one minute ago. With a limit per day, it is in a time zone in
/// which no day ends while the test runs.
#[allow(clippy::needless_pass_by_value)] // called with `json!(…)` everywhere
pub fn campaign(id: &str, limits: Value) -> Value {
    let mut body = json!({"id": id, "name": id, "starts_at": from_now(-60), "limits": limits});
    if limits["per_user_per_day"].is_number() {
        body["time_zone"] = json!(zone_far_from_midnight());
    }
    body
}
