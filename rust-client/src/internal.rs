//! Core's internal API, as a back end or an admin calls it.

use claimgate_shared::claim_request::ClaimLookup;
use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{Attempt, CampaignId, CampaignView, ClaimId, ClaimReply, UserId};
use reqwest::{Method, RequestBuilder};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::listener::Listener;
use crate::{Answer, ClaimCall, Error, Retries};

/// Core's internal API.
#[derive(Debug, Clone)]
pub struct Internal {
    listener: Listener,
    token: String,
}

impl Internal {
    /// The internal API at `address`, such as `http://127.0.0.1:8080`, with the token of a back end or an admin.
    ///
    /// # Errors
    /// [`Error::Setup`] for an address that cannot be called.
    pub fn new(address: &str, token: &str) -> Result<Self, Error> {
        Ok(Self { listener: Listener::new(address)?, token: token.to_owned() })
    }

    /// Repeats calls that are safe to repeat as `retries` say: all of them, but [`Self::ready`] and [`Self::claim_once`].
    #[must_use]
    pub fn with_retries(mut self, retries: Retries) -> Self {
        self.listener.retries = retries;
        self
    }

    /// Whether core is to be sent calls; needs no token. The edge has no such call: it answers `not_found`.
    ///
    /// # Errors
    /// `unavailable` while it is not, and other problems.
    pub async fn ready(&self) -> Result<Answer<Value>, Error> {
        self.listener.send(self.listener.request(Method::GET, "/readyz")).await
    }

    /// Claims, and asks again with the same key while the outcome is unknown.
    ///
    /// # Errors
    /// A denial, or why the outcome is still unknown: then the same call may be made again at any later time.
    pub async fn claim(&self, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        self.listener.retries.until_decided(async || self.claim_once(call).await).await
    }

    /// Sends a claim once.
    ///
    /// # Errors
    /// A denial, or why the outcome is unknown.
    pub async fn claim_once(&self, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        let mut request = self.request(Method::POST, "/claims");
        if call.next_attempt() == Attempt::First {
            request = request.header(Attempt::HEADER, Attempt::FIRST);
        }
        self.listener.send(request.json(call.request())).await
    }

    /// Looks a claim up; `persisted` says whether SQL has it as it stands.
    ///
    /// # Errors
    /// `claim_not_found` and other problems.
    pub async fn look_up(&self, id: &ClaimId) -> Result<Answer<ClaimLookup>, Error> {
        self.get(&format!("/claims/{id}")).await
    }

    /// Confirms a held claim; one that is granted stays so.
    ///
    /// # Errors
    /// `claim_expired`, `claim_returned` and other problems.
    pub async fn confirm(&self, id: &ClaimId) -> Result<Answer<ClaimLookup>, Error> {
        self.post(&format!("/claims/{id}/confirm")).await
    }

    /// Gives a claim's units back, once, however often it is called.
    ///
    /// # Errors
    /// `claim_not_found` and other problems.
    pub async fn give_back(&self, id: &ClaimId) -> Result<Answer<ClaimLookup>, Error> {
        self.post(&format!("/claims/{id}/return")).await
    }

    /// The campaign as every caller may see it.
    ///
    /// # Errors
    /// `campaign_not_found` and other problems.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Answer<CampaignView>, Error> {
        self.get(&format!("/campaigns/{id}")).await
    }

    /// The first page of a user's claims, newest first, and what is left to the user.
    ///
    /// # Errors
    /// `campaign_not_found` and other problems.
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
