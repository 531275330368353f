//! Core's admin API. What has no type in `claimgate-shared` is answered as JSON; `docs/api.md` describes it.

use std::num::NonZeroU32;
use std::time::Duration;

use claimgate_shared::admin::{AdminView, ClaimItem};
use claimgate_shared::http::CSV;
use claimgate_shared::{CampaignId, ClaimStatus, IdempotencyKey, Limits, Timestamp, UserId};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::listener::Listener;
use crate::{Answer, Error, Retries};

/// Longer than core takes for any import.
const IMPORT_WAIT: Duration = Duration::from_mins(11);

/// Longer than core takes for a page of changes once it has stopped waiting for them.
const CHANGES_WAIT: Duration = Duration::from_secs(10);

/// The most items of a page.
const PAGE: u32 = 1000;

/// A campaign to be created.
#[derive(Debug, Clone, Serialize)]
pub struct NewCampaign {
    /// Its id.
    pub id: CampaignId,
    /// Its name, for people: 1 to 200 characters.
    pub name: String,
    /// When it opens.
    pub starts_at: Timestamp,
    /// When it closes; `None` never.
    pub ends_at: Option<Timestamp>,
    /// The IANA time zone whose calendar days count.
    pub time_zone: String,
    /// Its limits.
    pub limits: Limits,
    /// For how long claims are held until they are confirmed; `None` grants at once.
    pub hold_seconds: Option<NonZeroU32>,
}

/// Core's admin API.
#[derive(Debug, Clone)]
pub struct Admin {
    listener: Listener,
    token: String,
}

impl Admin {
    /// The admin API at `address`, such as `http://127.0.0.1:8081`, with an admin's token.
    ///
    /// # Errors
    /// [`Error::Setup`] for an address that cannot be called.
    pub fn new(address: &str, token: &str) -> Result<Self, Error> {
        Ok(Self { listener: Listener::new(address)?, token: token.to_owned() })
    }

    /// Repeats calls that are safe to repeat as `retries` say: all of them, but those that say that they are sent once.
    #[must_use]
    pub fn with_retries(mut self, retries: Retries) -> Self {
        self.listener.retries = retries;
        self
    }

    /// Creates a campaign; done too when an identical one exists.
    ///
    /// # Errors
    /// `campaign_exists` when it differs, and other problems.
    pub async fn create(&self, campaign: &NewCampaign) -> Result<Answer<AdminView>, Error> {
        self.listener.send_until_decided(self.request(Method::POST, "/campaigns").json(campaign)).await
    }

    /// All campaigns, in the order of their ids.
    ///
    /// # Errors
    /// Problems.
    pub async fn campaigns(&self) -> Result<Answer<Vec<AdminView>>, Error> {
        self.list("/campaigns", &[], "cursor").await
    }

    /// A campaign with its live counters.
    ///
    /// # Errors
    /// `campaign_not_found` and other problems.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.get(&format!("/campaigns/{id}")).await
    }

    /// Changes name, window, limits or hold. `change` has the `version` that it is made against; members left out stay. Sent once.
    ///
    /// # Errors
    /// `version_conflict` and other problems.
    pub async fn change(&self, id: &CampaignId, change: &Value) -> Result<Answer<AdminView>, Error> {
        self.listener.send(self.request(Method::PATCH, &format!("/campaigns/{id}")).json(change)).await
    }

    /// Adds `units` to the total, or takes them off it when negative; once for each `key`.
    ///
    /// # Errors
    /// `quantity_out_of_range`, `campaign_ended` and other problems.
    pub async fn add(
        &self,
        id: &CampaignId,
        units: i64,
        key: &IdempotencyKey,
    ) -> Result<Answer<AdminView>, Error> {
        let body = json!({"units": units, "idempotency_key": key});
        self.listener
            .send_until_decided(self.request(Method::POST, &format!("/campaigns/{id}/add")).json(&body))
            .await
    }

    /// Stops claims until resumed.
    ///
    /// # Errors
    /// Problems.
    pub async fn pause(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.post(&format!("/campaigns/{id}/pause")).await
    }

    /// Lets claims in again.
    ///
    /// # Errors
    /// `campaign_ended` and other problems.
    pub async fn resume(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.post(&format!("/campaigns/{id}/resume")).await
    }

    /// Ends a campaign for good.
    ///
    /// # Errors
    /// Problems.
    pub async fn end(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.post(&format!("/campaigns/{id}/end")).await
    }

    /// Imports past claims from a CSV file; answers `{"imported":n,"already":m}`.
    ///
    /// # Errors
    /// `campaign_open`, `import_unfinished`, `invalid_request` with the first bad line, and other problems.
    pub async fn import(&self, id: &CampaignId, csv: Vec<u8>) -> Result<Answer<Value>, Error> {
        let request = self.request(Method::POST, &format!("/campaigns/{id}/import"));
        self.listener
            .send_until_decided(request.header(CONTENT_TYPE, CSV).body(csv).timeout(IMPORT_WAIT))
            .await
    }

    /// A campaign's claims as SQL has them, in the order of their sequence: all, or those of one user or status.
    ///
    /// # Errors
    /// `campaign_not_found` and other problems.
    pub async fn claims(
        &self,
        id: &CampaignId,
        user: Option<&UserId>,
        status: Option<ClaimStatus>,
    ) -> Result<Answer<Vec<ClaimItem>>, Error> {
        let user = user.map(|user| ("user_id", user.as_str()));
        let status = status.map(|status| ("status", status.as_str()));
        let query: Vec<_> = user.into_iter().chain(status).collect();
        self.list(&format!("/campaigns/{id}/claims"), &query, "cursor").await
    }

    /// Redis and SQL compared; `agrees` says whether nothing differs.
    ///
    /// # Errors
    /// `campaign_not_found` and other problems.
    pub async fn reconciliation(&self, id: &CampaignId) -> Result<Answer<Value>, Error> {
        self.get(&format!("/campaigns/{id}/reconciliation")).await
    }

    /// Repairs what is safe to repair, then compares.
    ///
    /// # Errors
    /// `campaign_not_found` and other problems.
    pub async fn repair(&self, id: &CampaignId) -> Result<Answer<Value>, Error> {
        self.post(&format!("/campaigns/{id}/reconciliation")).await
    }

    /// Who changed which campaign, when and how: of all campaigns, or of one.
    ///
    /// # Errors
    /// `campaign_not_found` and other problems.
    pub async fn audit(&self, campaign: Option<&CampaignId>) -> Result<Answer<Vec<Value>>, Error> {
        let of: Vec<_> = campaign.iter().map(|id| ("campaign_id", id.as_str())).collect();
        self.list("/audit", &of, "after").await
    }

    /// A page of the feed of changed claims behind the cursor `after`, of at most `limit` items (1 to 1000), of all campaigns or
    /// of one. While there is nothing, core waits for `wait_s` (0 to 30).
    ///
    /// # Errors
    /// `cursor_invalid` and other problems.
    pub async fn changes(
        &self,
        after: Option<&str>,
        campaign: Option<&CampaignId>,
        limit: u32,
        wait_s: u32,
    ) -> Result<Answer<Value>, Error> {
        let request = self.changes_request(after, campaign, limit, wait_s);
        self.listener.send_until_decided(request).await
    }

    fn changes_request(
        &self,
        after: Option<&str>,
        campaign: Option<&CampaignId>,
        limit: u32,
        wait_s: u32,
    ) -> RequestBuilder {
        let wait = Duration::from_secs(wait_s.into()) + CHANGES_WAIT;
        let request = self.request(Method::GET, "/changes").query(&[("limit", limit), ("wait_s", wait_s)]);
        request.query(&[("campaign_id", campaign)]).query(&[("after", after)]).timeout(wait)
    }

    /// Which replicas must have a claim before it is acknowledged.
    ///
    /// # Errors
    /// Problems.
    pub async fn replication(&self) -> Result<Answer<Value>, Error> {
        self.get("/replication").await
    }

    /// Changes how many replicas must have a claim before it is acknowledged; with 0 none is waited for.
    ///
    /// # Errors
    /// Problems.
    pub async fn set_replicas(&self, replicas_min: u32) -> Result<Answer<Value>, Error> {
        let body = json!({"replicas_min": replicas_min});
        self.listener.send_until_decided(self.request(Method::POST, "/replication").json(&body)).await
    }

    /// Believes the servers that are the primaries now, though they may lack acknowledged claims. Sent once.
    ///
    /// # Errors
    /// Problems.
    pub async fn accept_loss(&self) -> Result<Answer<Value>, Error> {
        self.listener.send(self.request(Method::POST, "/replication/accept-loss")).await
    }

    /// All webhooks.
    ///
    /// # Errors
    /// Problems.
    pub async fn webhooks(&self) -> Result<Answer<Vec<Value>>, Error> {
        self.list("/webhooks", &[], "cursor").await
    }

    /// Makes a webhook for one campaign or for all; its `secret` is in this answer alone. Sent once.
    ///
    /// # Errors
    /// `invalid_request` for an address that may not be called, and other problems.
    pub async fn create_webhook(
        &self,
        url: &str,
        campaign: Option<&CampaignId>,
    ) -> Result<Answer<Value>, Error> {
        let body = json!({"url": url, "campaign_id": campaign});
        self.listener.send(self.request(Method::POST, "/webhooks").json(&body)).await
    }

    /// Removes a webhook. Sent once.
    ///
    /// # Errors
    /// `webhook_not_found` and other problems.
    pub async fn delete_webhook(&self, id: &str) -> Result<Answer<Value>, Error> {
        self.listener.send(self.request(Method::DELETE, &format!("/webhooks/{id}"))).await
    }

    /// Sends a test event; whether it was `delivered`, and the `error` if not. Sent once.
    ///
    /// # Errors
    /// `webhook_not_found` and other problems.
    pub async fn test_webhook(&self, id: &str) -> Result<Answer<Value>, Error> {
        let request = self.request(Method::POST, &format!("/webhooks/{id}/test"));
        self.listener.send(request.timeout(CHANGES_WAIT + Duration::from_secs(10))).await
    }

    /// Enables a webhook, which goes on where it stopped.
    ///
    /// # Errors
    /// `webhook_not_found` and other problems.
    pub async fn enable_webhook(&self, id: &str) -> Result<Answer<Value>, Error> {
        self.post(&format!("/webhooks/{id}/enable")).await
    }

    /// Makes another `secret` for a webhook. Sent once.
    ///
    /// # Errors
    /// `webhook_not_found` and other problems.
    pub async fn rotate_webhook_secret(&self, id: &str) -> Result<Answer<Value>, Error> {
        self.listener.send(self.request(Method::POST, &format!("/webhooks/{id}/rotate-secret"))).await
    }

    /// The events that a webhook did not take yet.
    ///
    /// # Errors
    /// `webhook_not_found` and other problems.
    pub async fn webhook_deliveries(&self, id: &str) -> Result<Answer<Vec<Value>>, Error> {
        self.list(&format!("/webhooks/{id}/deliveries"), &[], "cursor").await
    }

    /// All items of the list at `path`, page by page, of those that `query` asks for: `next` is the parameter that takes the
    /// `next_cursor` of the page before.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        next: &str,
    ) -> Result<Answer<Vec<T>>, Error> {
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let request = self.page_request(path, query, next, cursor.as_deref());
            let mut page: Answer<Value> = self.listener.send_until_decided(request).await?;
            if let Some(Value::Array(items)) = page.json.get_mut("items").map(Value::take) {
                all.extend(items);
            }
            cursor = page.json["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return Ok(Answer::new(Value::Array(all), false));
            }
        }
    }

    fn page_request(
        &self,
        path: &str,
        query: &[(&str, &str)],
        next: &str,
        cursor: Option<&str>,
    ) -> RequestBuilder {
        self.request(Method::GET, path).query(query).query(&[("limit", PAGE)]).query(&[(next, cursor)])
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.listener.request(method, &format!("/admin/v1{path}")).bearer_auth(&self.token)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, Error> {
        self.listener.send_until_decided(self.request(Method::GET, path)).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, Error> {
        self.listener.send_until_decided(self.request(Method::POST, path)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What no cursor of today has, and one of another version may.
    const CURSOR: &str = "1.a b&limit=7#%/+ä";
    const ENCODED: &str = "1.a+b%26limit%3D7%23%25%2F%2B%C3%A4";

    fn query(request: RequestBuilder) -> String {
        request.build().unwrap().url().query().unwrap_or_default().to_owned()
    }

    #[test]
    fn cursors_are_encoded() {
        let admin = Admin::new("http://127.0.0.1:8081", "token").unwrap();
        let id = "demo".parse().unwrap();
        let changes = admin.changes_request(Some(CURSOR), Some(&id), 10, 30);
        assert_eq!(query(changes), format!("limit=10&wait_s=30&campaign_id=demo&after={ENCODED}"));
        let first = admin.changes_request(None, None, 10, 0);
        assert_eq!(query(first), "limit=10&wait_s=0");
        let page = admin.page_request("/claims", &[("status", "held")], "cursor", Some(CURSOR));
        assert_eq!(query(page), format!("status=held&limit=1000&cursor={ENCODED}"));
    }
}
