//! The edge, as a browser's user calls it.

use claimgate_shared::http::IDEMPOTENCY_KEY_HEADER;
use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{Attempt, CampaignId, CampaignView, ClaimReply};
use reqwest::Method;
use serde_json::json;

use crate::listener::Listener;
use crate::{Answer, ClaimCall, Error, Retries};

/// The edge.
#[derive(Debug, Clone)]
pub struct Edge {
    listener: Listener,
}

impl Edge {
    /// The edge at `address`, such as `https://claims.example.com`.
    ///
    /// # Errors
    /// [`Error::Setup`] for an address that cannot be called.
    pub fn new(address: &str) -> Result<Self, Error> {
        Ok(Self { listener: Listener::new(address)? })
    }

    /// Repeats calls that are safe to repeat as `retries` say: all of them, but [`Self::claim_once`].
    #[must_use]
    pub fn with_retries(mut self, retries: Retries) -> Self {
        self.listener.retries = retries;
        self
    }

    /// Claims for the user whose token `token` is, and asks again with the same key while the outcome is unknown.
    ///
    /// # Errors
    /// As [`Internal::claim`](crate::Internal::claim).
    pub async fn claim(&self, token: &str, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        self.listener.retries.until_decided(async || self.claim_once(token, call).await).await
    }

    /// Sends a claim once. The user is the token's, whatever `call` says.
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
        self.listener.send(request.json(&json!({"quantity": claim.quantity}))).await
    }

    /// The first page of the claims of the user whose token `token` is, newest first, and what is left to the user.
    ///
    /// # Errors
    /// `unauthenticated`, `campaign_not_found` and other problems.
    pub async fn own_claims(&self, token: &str, campaign: &CampaignId) -> Result<Answer<UserClaims>, Error> {
        let request = self.listener.request(Method::GET, &format!("/v1/campaigns/{campaign}/claims"));
        self.listener.send_until_decided(request.bearer_auth(token)).await
    }

    /// The campaign as the edge shows it, up to some seconds old.
    ///
    /// # Errors
    /// `campaign_not_found` and other problems.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Answer<CampaignView>, Error> {
        self.listener
            .send_until_decided(self.listener.request(Method::GET, &format!("/v1/campaigns/{id}")))
            .await
    }
}
