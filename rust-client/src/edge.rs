//! Client for the edge, with a browser user's token.

use std::time::Duration;

use claimgate_shared::http::{IDEMPOTENCY_KEY_HEADER, PASS_HEADER};
use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{Attempt, CampaignId, CampaignView, ClaimReply};
use reqwest::Method;
use serde_json::json;

use crate::listener::Listener;
use crate::{Answer, ClaimCall, Error, Retries};

/// A client for the edge. An invalid token is the problem `unauthenticated`, a missing campaign
/// `campaign_not_found`.
#[derive(Debug, Clone)]
pub struct Edge {
    listener: Listener,
}

impl Edge {
    /// Creates a client for the edge at `address`, such as `https://claims.example.com`.
    ///
    /// # Errors
    /// [`Error::Setup`] if the address is not a usable HTTP URL.
    pub fn new(address: &str) -> Result<Self, Error> {
        Ok(Self { listener: Listener::new(address)? })
    }

    /// Retries calls that are safe to retry as `retries` say: all but [`Self::claim_once`].
    #[must_use]
    pub fn with_retries(mut self, retries: Retries) -> Self {
        self.listener.retries = retries;
        self
    }

    /// Sets the timeout of one try of each call, 10 s by default.
    #[must_use]
    pub fn with_try_timeout(mut self, timeout: Duration) -> Self {
        self.listener.try_timeout = timeout;
        self
    }

    /// Sends a claim for the user of `token`, and retries with the same key while the outcome is unknown.
    ///
    /// # Errors
    /// As [`Internal::claim`](crate::Internal::claim).
    pub async fn claim(&self, token: &str, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        self.listener.retries.until_decided(async || self.claim_once(token, call).await).await
    }

    /// Sends a claim once. The token determines the user; the user in `call` is ignored.
    ///
    /// # Errors
    /// As [`Internal::claim_once`](crate::Internal::claim_once).
    pub async fn claim_once(&self, token: &str, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        let attempt = call.next_attempt();
        let claim = call.request();
        let path = format!("/v1/campaigns/{}/claims", claim.campaign_id);
        let mut request = self.listener.request(Method::POST, &path).bearer_auth(token);
        request = request.header(IDEMPOTENCY_KEY_HEADER, claim.idempotency_key.as_str());
        if attempt == Attempt::First {
            request = request.header(Attempt::HEADER, Attempt::FIRST);
        }
        if let Some(pass) = call.pass() {
            request = request.header(PASS_HEADER, pass);
        }
        self.listener.send(request.json(&json!({"quantity": claim.quantity}))).await
    }

    /// Returns the first page of the claims of `token`'s user, newest first, and the user's allowance.
    pub async fn own_claims(&self, token: &str, campaign: &CampaignId) -> Result<Answer<UserClaims>, Error> {
        let request = self.listener.request(Method::GET, &format!("/v1/campaigns/{campaign}/claims"));
        self.listener.send_until_decided(request.bearer_auth(token)).await
    }

    /// Returns the campaign as the edge shows it, up to a few seconds old.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Answer<CampaignView>, Error> {
        self.listener
            .send_until_decided(self.listener.request(Method::GET, &format!("/v1/campaigns/{id}")))
            .await
    }
}
