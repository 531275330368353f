//! Client for core's admin API. Responses without a type in `claimgate-shared` are JSON, as described in
//! `docs/api.md`.

use std::num::NonZeroU32;
use std::time::Duration;

use claimgate_shared::admin::codes::{AddedCodes, CodeCounts};
use claimgate_shared::admin::report::DemandReport;
use claimgate_shared::admin::{AdminView, ClaimItem};
use claimgate_shared::claim_request::ClaimLookup;
use claimgate_shared::http::CSV;
use claimgate_shared::user_id::Scheme;
use claimgate_shared::{
    CampaignId, ClaimId, ClaimStatus, IdempotencyKey, Limits, PassRule, Timestamp, UserId,
};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::listener::Listener;
use crate::{Answer, Error, Retries};

/// Timeout of an import, longer than core's own.
const IMPORT_TIMEOUT: Duration = Duration::from_mins(11);

/// Timeout of a page of changes, added to the requested wait.
const CHANGES_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a report, which reads all claims of a campaign.
const REPORT_TIMEOUT: Duration = Duration::from_mins(2);

/// Maximum number of items per page.
const PAGE_ITEMS: u32 = 1000;

/// A campaign to create.
#[derive(Debug, Clone, Serialize)]
pub struct NewCampaign {
    /// The campaign's id.
    pub id: CampaignId,
    /// The display name: 1 to 200 characters.
    pub name: String,
    /// When the campaign opens; `None` opens it immediately. If the campaign exists, its start is then not
    /// compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// When the campaign closes; `None` means never.
    pub ends_at: Option<Timestamp>,
    /// IANA time zone of the daily limit's calendar days.
    pub time_zone: String,
    /// The limits.
    pub limits: Limits,
    /// TTL of a hold that is not confirmed, in seconds; `None` grants claims immediately.
    pub hold_seconds: Option<NonZeroU32>,
    /// When claims by browsers need a pass; `None` if they never do.
    pub pass: Option<PassRule>,
    /// Whether each unit of a granted claim has a code. The total must then be 0 until codes have been added.
    pub codes: bool,
}

/// The filter of a list of claims, and whether the list has their codes. The default lists all claims,
/// without codes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClaimsFilter<'a> {
    /// Only the claims of this user.
    pub user: Option<&'a UserId>,
    /// Only claims with this status.
    pub status: Option<ClaimStatus>,
    /// With the codes of the claims.
    pub codes: bool,
}

impl ClaimsFilter<'_> {
    fn query(&self) -> Vec<(&str, &str)> {
        let user = self.user.map(|user| ("user_id", user.as_str()));
        let status = self.status.map(|status| ("status", status.as_str()));
        let codes = self.codes.then_some(("codes", "true"));
        user.into_iter().chain(status).chain(codes).collect()
    }
}

/// A page of the feed: its size, its campaign, and whether it has codes. The default is the largest page of all
/// campaigns, without codes and without waiting.
#[derive(Debug, Clone, Copy)]
pub struct ChangesFilter<'a> {
    /// Only claims of this campaign.
    pub campaign: Option<&'a CampaignId>,
    /// The maximum number of items, 1 to 1000.
    pub limit: u32,
    /// How long core waits for an item if there is none yet, in seconds: 0 to 30.
    pub wait_s: u32,
    /// With the codes of the claims that have them by now.
    pub codes: bool,
}

impl Default for ChangesFilter<'_> {
    fn default() -> Self {
        Self { campaign: None, limit: PAGE_ITEMS, wait_s: 0, codes: false }
    }
}

/// A client for core's admin API. A missing campaign or webhook is the problem `campaign_not_found` or
/// `webhook_not_found`.
#[derive(Debug, Clone)]
pub struct Admin {
    listener: Listener,
    token: String,
}

impl Admin {
    /// Creates a client for the admin API at `address`, such as `http://127.0.0.1:8081`, with an admin token.
    ///
    /// # Errors
    /// [`Error::Setup`] if the address is not a usable HTTP URL.
    pub fn new(address: &str, token: &str) -> Result<Self, Error> {
        Ok(Self { listener: Listener::new(address)?, token: token.to_owned() })
    }

    /// Retries calls that are safe to retry as `retries` say: all but those documented as not retried.
    #[must_use]
    pub fn with_retries(mut self, retries: Retries) -> Self {
        self.listener.retries = retries;
        self
    }

    /// Creates a campaign. If an identical one exists, returns it with `replayed`.
    ///
    /// # Errors
    /// `campaign_exists` if a different one exists.
    pub async fn create(&self, campaign: &NewCampaign) -> Result<Answer<AdminView>, Error> {
        self.listener.send_until_decided(self.request(Method::POST, "/campaigns").json(campaign)).await
    }

    /// Returns all campaigns, ordered by id.
    pub async fn campaigns(&self) -> Result<Answer<Vec<AdminView>>, Error> {
        self.list("/campaigns", &[], "cursor").await
    }

    /// Returns a campaign with its live counters.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.get(&format!("/campaigns/{id}")).await
    }

    /// Changes name, window, limits or hold. `change` contains the expected `version`; omitted members stay
    /// as they are. Not retried.
    ///
    /// # Errors
    /// `version_conflict` if the campaign has a different version.
    pub async fn change(&self, id: &CampaignId, change: &Value) -> Result<Answer<AdminView>, Error> {
        self.listener.send(self.request(Method::PATCH, &format!("/campaigns/{id}")).json(change)).await
    }

    /// Adds `units` to the total, or removes them if negative, once per `key`.
    ///
    /// # Errors
    /// `quantity_out_of_range` if the total would leave its range; `campaign_ended`.
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

    /// Pauses a campaign: no claims until it is resumed.
    pub async fn pause(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.post(&format!("/campaigns/{id}/pause")).await
    }

    /// Resumes a paused campaign.
    ///
    /// # Errors
    /// `campaign_ended`.
    pub async fn resume(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.post(&format!("/campaigns/{id}/resume")).await
    }

    /// Ends a campaign permanently.
    pub async fn end(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.post(&format!("/campaigns/{id}/end")).await
    }

    /// Archives an ended campaign.
    ///
    /// # Errors
    /// `campaign_open` if the campaign has not ended.
    pub async fn archive(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.post(&format!("/campaigns/{id}/archive")).await
    }

    /// Lists an archived campaign again.
    pub async fn unarchive(&self, id: &CampaignId) -> Result<Answer<AdminView>, Error> {
        self.post(&format!("/campaigns/{id}/unarchive")).await
    }

    /// Returns a claim's units. The audit records the `reason` of 1 to 200 characters.
    ///
    /// # Errors
    /// `claim_not_found`; `claim_revoked`.
    pub async fn return_claim(&self, id: &ClaimId, reason: &str) -> Result<Answer<ClaimLookup>, Error> {
        let request = self.request(Method::POST, &format!("/claims/{id}/return"));
        self.listener.send_until_decided(request.json(&json!({ "reason": reason }))).await
    }

    /// Imports past claims from a CSV file. Returns `{"imported":n,"already":m}`.
    ///
    /// # Errors
    /// `campaign_open`, `import_unfinished`, or `invalid_request` with the first invalid line.
    pub async fn import(&self, id: &CampaignId, csv: Vec<u8>) -> Result<Answer<Value>, Error> {
        let request = self.request(Method::POST, &format!("/campaigns/{id}/import"));
        self.listener
            .send_until_decided(request.header(CONTENT_TYPE, CSV).body(csv).timeout(IMPORT_TIMEOUT))
            .await
    }

    /// Adds codes from a file with one code per line.
    ///
    /// # Errors
    /// `invalid_request` with the first line that is not a code or repeats one. This error adds no code.
    pub async fn add_codes(&self, id: &CampaignId, csv: Vec<u8>) -> Result<Answer<AddedCodes>, Error> {
        let request = self.request(Method::POST, &format!("/campaigns/{id}/codes"));
        self.listener
            .send_until_decided(request.header(CONTENT_TYPE, CSV).body(csv).timeout(IMPORT_TIMEOUT))
            .await
    }

    /// Counts a campaign's codes, and the claims without codes.
    pub async fn codes(&self, id: &CampaignId) -> Result<Answer<CodeCounts>, Error> {
        self.get(&format!("/campaigns/{id}/codes")).await
    }

    /// Returns a campaign's claims in SQL, ordered by sequence number.
    ///
    /// # Errors
    /// `forbidden` for [`ClaimsFilter::codes`] with a role below admin.
    pub async fn claims(
        &self,
        id: &CampaignId,
        filter: ClaimsFilter<'_>,
    ) -> Result<Answer<Vec<ClaimItem>>, Error> {
        self.list(&format!("/campaigns/{id}/claims"), &filter.query(), "cursor").await
    }

    /// Returns the list of [`Self::claims`] in CSV format.
    ///
    /// # Errors
    /// As for [`Self::claims`].
    pub async fn claims_csv(
        &self,
        id: &CampaignId,
        filter: ClaimsFilter<'_>,
    ) -> Result<Answer<String>, Error> {
        let request = self.request(Method::GET, &format!("/campaigns/{id}/claims"));
        let request = request.query(&filter.query()).header(ACCEPT, CSV);
        self.listener.text(request.timeout(IMPORT_TIMEOUT)).await
    }

    /// Returns the report on a campaign's demand.
    pub async fn report(&self, id: &CampaignId) -> Result<Answer<DemandReport>, Error> {
        self.listener.send_until_decided(self.report_request(id)).await
    }

    /// Returns the report on a campaign's demand as CSV: a line for each second in which a claim was made or refused.
    pub async fn report_csv(&self, id: &CampaignId) -> Result<Answer<String>, Error> {
        self.listener.text(self.report_request(id).header(ACCEPT, CSV)).await
    }

    fn report_request(&self, id: &CampaignId) -> RequestBuilder {
        self.request(Method::GET, &format!("/campaigns/{id}/report")).timeout(REPORT_TIMEOUT)
    }

    /// Compares Redis and SQL. `agrees` is true if there are no differences.
    pub async fn reconciliation(&self, id: &CampaignId) -> Result<Answer<Value>, Error> {
        self.get(&format!("/campaigns/{id}/reconciliation")).await
    }

    /// Repairs the differences that are safe to repair, then compares Redis and SQL.
    pub async fn repair(&self, id: &CampaignId) -> Result<Answer<Value>, Error> {
        self.post(&format!("/campaigns/{id}/reconciliation")).await
    }

    /// Returns the audit of all campaigns, or of one.
    pub async fn audit(&self, campaign: Option<&CampaignId>) -> Result<Answer<Vec<Value>>, Error> {
        let query: Vec<_> = campaign.iter().map(|id| ("campaign_id", id.as_str())).collect();
        self.list("/audit", &query, "after").await
    }

    /// Returns a page of the feed after the cursor `after`.
    ///
    /// # Errors
    /// `cursor_invalid` if `after` is not a cursor of this feed; `forbidden` for [`ChangesFilter::codes`] with a role
    /// below admin.
    pub async fn changes(
        &self,
        after: Option<&str>,
        filter: ChangesFilter<'_>,
    ) -> Result<Answer<Value>, Error> {
        self.listener.send_until_decided(self.changes_request(after, filter)).await
    }

    fn changes_request(&self, after: Option<&str>, filter: ChangesFilter<'_>) -> RequestBuilder {
        let ChangesFilter { campaign, limit, wait_s, codes } = filter;
        let timeout = Duration::from_secs(wait_s.into()) + CHANGES_TIMEOUT;
        let request = self.request(Method::GET, "/changes").query(&[("limit", limit), ("wait_s", wait_s)]);
        let request = request.query(&[("codes", codes.then_some(true))]);
        request.query(&[("campaign_id", campaign)]).query(&[("after", after)]).timeout(timeout)
    }

    /// Returns the replication requirement and the state of the replicas.
    pub async fn replication(&self) -> Result<Answer<Value>, Error> {
        self.get("/replication").await
    }

    /// Sets the number of replicas that must have a claim before it is acknowledged; 0 waits for none.
    pub async fn set_replicas(&self, replicas_min: u32) -> Result<Answer<Value>, Error> {
        let body = json!({"replicas_min": replicas_min});
        self.listener.send_until_decided(self.request(Method::POST, "/replication").json(&body)).await
    }

    /// Accepts the current primaries, even though they may lack acknowledged claims. Not retried.
    pub async fn accept_loss(&self) -> Result<Answer<Value>, Error> {
        self.listener.send(self.request(Method::POST, "/replication/accept-loss")).await
    }

    /// Returns the scheme of user ids that the database is pinned to, and why core last rejected a caller.
    pub async fn user_ids(&self) -> Result<Answer<Value>, Error> {
        self.get("/user-ids").await
    }

    /// Changes the scheme of user ids that the database is pinned to. Not retried.
    ///
    /// # Errors
    /// `campaign_open` while any campaign has not ended.
    pub async fn set_user_ids(&self, scheme: Scheme) -> Result<Answer<Value>, Error> {
        let body = json!({"user_ids": scheme});
        self.listener.send(self.request(Method::POST, "/user-ids").json(&body)).await
    }

    /// Returns all webhooks.
    pub async fn webhooks(&self) -> Result<Answer<Vec<Value>>, Error> {
        self.list("/webhooks", &[], "cursor").await
    }

    /// Creates a webhook for one campaign or for all. Only this response contains its `secret`. Not retried.
    ///
    /// # Errors
    /// `invalid_request` for a URL that webhooks may not call.
    pub async fn create_webhook(
        &self,
        url: &str,
        campaign: Option<&CampaignId>,
    ) -> Result<Answer<Value>, Error> {
        let body = json!({"url": url, "campaign_id": campaign});
        self.listener.send(self.request(Method::POST, "/webhooks").json(&body)).await
    }

    /// Removes a webhook. Not retried.
    pub async fn delete_webhook(&self, id: &str) -> Result<Answer<Value>, Error> {
        self.listener.send(self.request(Method::DELETE, &format!("/webhooks/{id}"))).await
    }

    /// Sends a test event. Returns whether it was `delivered`, and the `error` if not. Not retried.
    pub async fn test_webhook(&self, id: &str) -> Result<Answer<Value>, Error> {
        let request = self.request(Method::POST, &format!("/webhooks/{id}/test"));
        self.listener.send(request.timeout(CHANGES_TIMEOUT + Duration::from_secs(10))).await
    }

    /// Enables a webhook. Deliveries continue where they stopped.
    pub async fn enable_webhook(&self, id: &str) -> Result<Answer<Value>, Error> {
        self.post(&format!("/webhooks/{id}/enable")).await
    }

    /// Generates a new `secret` for a webhook. Not retried.
    pub async fn rotate_webhook_secret(&self, id: &str) -> Result<Answer<Value>, Error> {
        self.listener.send(self.request(Method::POST, &format!("/webhooks/{id}/rotate-secret"))).await
    }

    /// Returns the events that a webhook's receiver has not accepted yet.
    pub async fn webhook_deliveries(&self, id: &str) -> Result<Answer<Vec<Value>>, Error> {
        self.list(&format!("/webhooks/{id}/deliveries"), &[], "cursor").await
    }

    /// Fetches all pages of the list at `path`, filtered by `query`. `cursor_name` is the query parameter for
    /// the previous page's `next_cursor`.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        cursor_name: &str,
    ) -> Result<Answer<Vec<T>>, Error> {
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let request = self.page_request(path, query, cursor_name, cursor.as_deref());
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
        cursor_name: &str,
        cursor: Option<&str>,
    ) -> RequestBuilder {
        let request = self.request(Method::GET, path).query(query).query(&[("limit", PAGE_ITEMS)]);
        request.query(&[(cursor_name, cursor)])
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

    /// Characters that no cursor contains today, but a newer version's cursor may.
    const CURSOR: &str = "1.a b&limit=7#%/+ä";
    const ENCODED: &str = "1.a+b%26limit%3D7%23%25%2F%2B%C3%A4";

    fn query(request: RequestBuilder) -> String {
        request.build().unwrap().url().query().unwrap_or_default().to_owned()
    }

    #[test]
    fn cursors_are_percent_encoded() {
        let admin = Admin::new("http://127.0.0.1:8081", "token").unwrap();
        let id = "demo".parse().unwrap();
        let filter = ChangesFilter { campaign: Some(&id), limit: 10, wait_s: 30, codes: true };
        let changes = admin.changes_request(Some(CURSOR), filter);
        assert_eq!(query(changes), format!("limit=10&wait_s=30&codes=true&campaign_id=demo&after={ENCODED}"));
        let first = admin.changes_request(None, ChangesFilter::default());
        assert_eq!(query(first), "limit=1000&wait_s=0");
        let page = admin.page_request("/claims", &[("status", "held")], "cursor", Some(CURSOR));
        assert_eq!(query(page), format!("status=held&limit=1000&cursor={ENCODED}"));
    }
}
