//! A claim to be sent, as often as it takes.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::{Attempt, CampaignId, ClaimId, ClaimRequest, IdempotencyKey, Quantity, UserId};

use crate::Error;

/// An idempotency key that no other call has: 128 random bits.
///
/// # Errors
/// [`Error::Setup`] when the system has no randomness.
pub fn random_key() -> Result<IdempotencyKey, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Setup(format!("no randomness: {error}")))?;
    URL_SAFE_NO_PAD.encode(bytes).try_into().map_err(|error| Error::Setup(format!("{error}")))
}

/// A claim with its key. Only the very first try of a new one is marked as such: claimgate may refuse that from a cache. A copy
/// is never marked.
#[derive(Debug)]
pub struct ClaimCall {
    request: ClaimRequest,
    attempt: Attempt,
}

impl ClaimCall {
    /// A claim that was never sent before, with a key of its own.
    ///
    /// # Errors
    /// As [`random_key`].
    pub fn new(campaign_id: CampaignId, user_id: UserId, quantity: Quantity) -> Result<Self, Error> {
        let idempotency_key = random_key()?;
        let request = ClaimRequest { campaign_id, user_id, quantity, idempotency_key };
        Ok(Self { request, attempt: Attempt::First })
    }

    /// A claim that may have been sent before, by this program or another.
    pub fn again(request: ClaimRequest) -> Self {
        Self { request, attempt: Attempt::Unknown }
    }

    /// What is claimed, and the key.
    pub fn request(&self) -> &ClaimRequest {
        &self.request
    }

    /// The id that the claim has if it is granted.
    pub fn claim_id(&self) -> ClaimId {
        self.request.claim_id()
    }

    /// Which try the next one is; every later one may be a retry.
    pub(crate) fn next_attempt(&mut self) -> Attempt {
        std::mem::replace(&mut self.attempt, Attempt::Unknown)
    }
}

impl Clone for ClaimCall {
    fn clone(&self) -> Self {
        Self::again(self.request.clone())
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
        assert_eq!(ClaimCall::again(new.request().clone()).next_attempt(), Attempt::Unknown);
    }

    #[test]
    fn no_two_claims_have_the_same_key() {
        assert_ne!(call().claim_id(), call().claim_id());
    }
}
