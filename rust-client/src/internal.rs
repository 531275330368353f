//! Client for core's internal API, for back ends and admins.

use std::time::Duration;

use claimgate_shared::claim_request::ClaimLookup;
use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{Attempt, CampaignId, CampaignView, ClaimId, ClaimReply, UserId};
use reqwest::{Method, RequestBuilder};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::listener::Listener;
use crate::{Answer, ClaimCall, Error, Retries};

/// A client for core's internal API. A missing campaign or claim is the problem `campaign_not_found` or
/// `claim_not_found`.
#[derive(Debug, Clone)]
pub struct Internal {
    listener: Listener,
    token: String,
}

impl Internal {
    /// Creates a client for the internal API at `address`, such as `http://127.0.0.1:8080`, with a back end's
    /// or admin token.
    ///
    /// # Errors
    /// [`Error::Setup`] if the address is not a usable HTTP URL.
    pub fn new(address: &str, token: &str) -> Result<Self, Error> {
        Ok(Self { listener: Listener::new(address)?, token: token.to_owned() })
    }

    /// Retries calls that are safe to retry as `retries` say: all but [`Self::ready`] and
    /// [`Self::claim_once`].
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

    /// Checks whether core is ready for calls. Needs no token. The response of an edge lists `cores` instead.
    ///
    /// # Errors
    /// `unavailable` while core is not ready.
    pub async fn ready(&self) -> Result<Answer<Value>, Error> {
        self.listener.send(self.listener.request(Method::GET, "/readyz")).await
    }

    /// Sends a claim, and retries with the same key while the outcome is unknown.
    ///
    /// # Errors
    /// A denial, or the reason why the outcome is still unknown. Then the same call may be retried at any
    /// time.
    pub async fn claim(&self, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        self.listener.retries.until_decided(async || self.claim_once(call).await).await
    }

    /// Sends a claim once.
    ///
    /// # Errors
    /// A denial, or the reason why the outcome is unknown.
    pub async fn claim_once(&self, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        let mut request = self.request(Method::POST, "/claims");
        if call.next_attempt() == Attempt::First {
            request = request.header(Attempt::HEADER, Attempt::FIRST);
        }
        self.listener.send(request.json(call.request())).await
    }

    /// Looks up a claim. `persisted` is true if SQL has it in its current status.
    pub async fn look_up(&self, id: &ClaimId) -> Result<Answer<ClaimLookup>, Error> {
        self.get(&format!("/claims/{id}")).await
    }

    /// Confirms a held claim. A granted claim stays granted.
    ///
    /// # Errors
    /// `claim_expired`, `claim_returned` or `claim_revoked` if the claim is no longer held.
    pub async fn confirm(&self, id: &ClaimId) -> Result<Answer<ClaimLookup>, Error> {
        self.post(&format!("/claims/{id}/confirm")).await
    }

    /// Extends the hold of a claim to the campaign's `hold_seconds` from now; `expires_at` is unchanged if that gains
    /// less than 10 s. A granted claim stays granted.
    ///
    /// # Errors
    /// `claim_expired`, `claim_returned` or `claim_revoked` if the claim is no longer held;
    /// `hold_extended_too_often` after 64 extensions.
    pub async fn extend(&self, id: &ClaimId) -> Result<Answer<ClaimLookup>, Error> {
        self.post(&format!("/claims/{id}/extend")).await
    }

    /// Returns a claim: its units go back to the campaign once, however often this is called.
    ///
    /// # Errors
    /// `claim_revoked` if the claim was revoked.
    pub async fn return_claim(&self, id: &ClaimId) -> Result<Answer<ClaimLookup>, Error> {
        self.post(&format!("/claims/{id}/return")).await
    }

    /// Returns the campaign as all callers see it.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Answer<CampaignView>, Error> {
        self.get(&format!("/campaigns/{id}")).await
    }

    /// Returns the first page of a user's claims, newest first, and the user's allowance.
    pub async fn user_claims(
        &self,
        campaign: &CampaignId,
        user: &UserId,
    ) -> Result<Answer<UserClaims>, Error> {
        self.get(&format!("/campaigns/{campaign}/users/{user}")).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.listener.request(method, &format!("/internal/v1{path}")).bearer_auth(&self.token)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, Error> {
        self.listener.send_until_decided(self.request(Method::GET, path)).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, Error> {
        self.listener.send_until_decided(self.request(Method::POST, path)).await
    }
}
