//! A claim with its idempotency key, which may be sent several times.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::{Attempt, CampaignId, ClaimId, ClaimRequest, IdempotencyKey, Quantity, UserId};

use crate::Error;

/// Generates a unique idempotency key: 128 random bits.
///
/// # Errors
/// [`Error::Setup`] if the system's random number generator fails.
pub fn random_key() -> Result<IdempotencyKey, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Setup(format!("the system's random number generator failed: {error}")))?;
    URL_SAFE_NO_PAD.encode(bytes).try_into().map_err(|error| Error::Setup(format!("{error}")))
}

/// A claim with its key. Only the first try of a new claim is marked as such, because claimgate may reject a
/// first try from a cache. A clone is never marked.
#[derive(Debug)]
pub struct ClaimCall {
    request: ClaimRequest,
    attempt: Attempt,
    pass: Option<String>,
}

impl ClaimCall {
    /// Creates a new claim, never sent before, with a [`random_key`].
    pub fn new(campaign_id: CampaignId, user_id: UserId, quantity: Quantity) -> Result<Self, Error> {
        let idempotency_key = random_key()?;
        let request = ClaimRequest { campaign_id, user_id, quantity, idempotency_key };
        Ok(Self { request, attempt: Attempt::First, pass: None })
    }

    /// Creates a claim that may have been sent before, by this program or a different one.
    pub fn retry(request: ClaimRequest) -> Self {
        Self { request, attempt: Attempt::Unknown, pass: None }
    }

    /// Sends the signed `pass` with each further try through the edge. After the problem `pass_required`, the
    /// same claim can be sent again with a new pass.
    pub fn set_pass(&mut self, pass: impl Into<String>) {
        self.pass = Some(pass.into());
    }

    /// Returns the pass to send.
    pub(crate) fn pass(&self) -> Option<&str> {
        self.pass.as_deref()
    }

    /// Returns the request, including the key.
    pub fn request(&self) -> &ClaimRequest {
        &self.request
    }

    /// Returns the id that the claim has if it is granted.
    pub fn claim_id(&self) -> ClaimId {
        self.request.claim_id()
    }

    /// Returns the mark for the next try. Every try after the first may be a retry.
    pub(crate) fn next_attempt(&mut self) -> Attempt {
        std::mem::replace(&mut self.attempt, Attempt::Unknown)
    }
}

impl Clone for ClaimCall {
    fn clone(&self) -> Self {
        Self { pass: self.pass.clone(), ..Self::retry(self.request.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> ClaimCall {
        ClaimCall::new("demo".parse().unwrap(), "alice".parse().unwrap(), Quantity::ONE).unwrap()
    }

    #[test]
    fn only_the_first_try_of_a_new_claim_is_marked() {
        let mut new = call();
        let tries = [new.next_attempt(), new.next_attempt(), new.next_attempt()];
        assert_eq!(tries, [Attempt::First, Attempt::Unknown, Attempt::Unknown]);
        assert_eq!(call().clone().next_attempt(), Attempt::Unknown, "the original may have been sent");
        assert_eq!(ClaimCall::retry(new.request().clone()).next_attempt(), Attempt::Unknown);
    }

    #[test]
    fn every_new_claim_has_its_own_key() {
        assert_ne!(call().claim_id(), call().claim_id());
    }
}
