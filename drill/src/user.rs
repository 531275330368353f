//! A simulated user of the storm, and the outcome of each claim.

use std::num::NonZeroU32;

use claimgate_client::{Answer, ClaimCall, Error};
use claimgate_shared::problem::Limit;
use claimgate_shared::{ClaimId, ClaimReply, UserId};
use serde::Deserialize as _;

use crate::Plan;

/// The way in which a user sends each claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// Sends the claim, and retries while the outcome is unknown.
    Plain,
    /// Sends the claim twice at the same time.
    Duplicate,
    /// Ignores the first response, and retries.
    IgnoreAnswer,
    /// Cuts the connection while the first try is in flight, and retries.
    Cut,
}

/// A user as the installation knows them.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) id: UserId,
    /// The token that names the user; empty for core, which needs none.
    pub(crate) token: String,
}

/// A simulated user: the claims that the user sends during the storm, and how.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedUser {
    pub(crate) name: UserId,
    /// The number of claims, of one unit each, sent one after another.
    pub(crate) claims: u32,
    /// The way in which the user sends the claims.
    pub(crate) behavior: Behavior,
}

impl SimulatedUser {
    /// Returns the `n`th user of the storm that `plan` describes.
    pub(crate) fn nth(plan: &Plan, n: u32) -> Option<Self> {
        /// Coprime to 100, so that neighbours behave differently and any 100 consecutive users get all 100 ranks.
        const STRIDE: u64 = 37;
        let rank = u64::from(n) * STRIDE % 100;
        let share = u64::from(plan.duplicates);
        let behavior = match rank {
            rank if rank < share => Behavior::Duplicate,
            rank if rank >= 100 - share && n.is_multiple_of(2) => Behavior::IgnoreAnswer,
            rank if rank >= 100 - share => Behavior::Cut,
            _ => Behavior::Plain,
        };
        let greedy = n % 10 == 3;
        let claims = plan.per_user.get().saturating_add(greedy.into());
        Some(Self { name: format!("u{n}").parse().ok()?, claims, behavior })
    }
}

/// The result of one try of a claim, as the caller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TryOutcome {
    /// The claim was granted, now or by an earlier try.
    Claimed { id: ClaimId, sequence: u64, units: NonZeroU32 },
    /// A rule denied the claim.
    Denied { code: String, limit: Option<Limit> },
    /// There was no decision in time.
    Unknown(String),
}

impl TryOutcome {
    /// Classifies a response or an error.
    pub(crate) fn of(answer: Result<Answer<ClaimReply>, Error>) -> Self {
        match answer.and_then(|answer| answer.read()) {
            Ok(ClaimReply { claim, .. }) => match NonZeroU32::new(claim.quantity.get()) {
                Some(units) => Self::Claimed { id: claim.id, sequence: claim.sequence, units },
                None => Self::Unknown("the claim has 0 units".to_owned()),
            },
            Err(error) if error.retry_after().is_some() => Self::Unknown(error.to_string()),
            Err(error) => match error.problem() {
                Some(problem) => Self::Denied {
                    code: problem.code.clone(),
                    limit: Limit::deserialize(&problem.json["limit"]).ok(),
                },
                None => Self::Unknown(error.to_string()),
            },
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        matches!(self, Self::Claimed { .. })
    }
}

/// The outcome of one claim.
#[derive(Debug, Clone)]
pub(crate) struct ClaimOutcome {
    /// The claim, with its user and key.
    pub(crate) call: ClaimCall,
    /// The user's token.
    pub(crate) token: String,
    /// The results, in the order of the tries.
    pub(crate) tries: Vec<TryOutcome>,
    /// Whether the tries were sent at the same time.
    pub(crate) concurrent: bool,
}

impl ClaimOutcome {
    /// Returns the first try that was acknowledged, if any.
    pub(crate) fn claimed(&self) -> Option<&TryOutcome> {
        self.tries.iter().find(|result| result.is_claimed())
    }

    /// Returns whether the outcome is still unknown.
    pub(crate) fn is_unknown(&self) -> bool {
        self.claimed().is_none() && matches!(self.tries.last(), Some(TryOutcome::Unknown(_)) | None)
    }

    /// Returns whether the tries contradict each other: a retry returned a different claim from an earlier
    /// try, or a denial after a grant.
    pub(crate) fn contradicts(&self) -> bool {
        let first =
            if self.concurrent { Some(0) } else { self.tries.iter().position(TryOutcome::is_claimed) };
        let Some(claimed) = self.claimed() else { return false };
        let decided = self.tries[first.unwrap_or(0)..]
            .iter()
            .filter(|result| !matches!(result, TryOutcome::Unknown(_)));
        decided.into_iter().any(|result| result != claimed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use claimgate_shared::Quantity;

    use super::*;

    fn plan(duplicates: u32) -> Plan {
        let one = NonZeroU32::MIN;
        Plan {
            units: 1,
            users: 100,
            per_user: one,
            connections: 1,
            duplicates,
            expect: None,
            patience: Duration::ZERO,
            storm_max: Duration::ZERO,
            codes: false,
            keep: false,
        }
    }

    fn outcome(concurrent: bool, tries: impl Fn(&ClaimId) -> Vec<TryOutcome>) -> ClaimOutcome {
        let call = ClaimCall::new("c".parse().unwrap(), "u".parse().unwrap(), Quantity::ONE).unwrap();
        ClaimOutcome { tries: tries(&call.claim_id()), token: String::new(), concurrent, call }
    }

    fn claimed(id: &ClaimId, sequence: u64) -> TryOutcome {
        TryOutcome::Claimed { id: id.clone(), sequence, units: NonZeroU32::MIN }
    }

    fn denied() -> TryOutcome {
        TryOutcome::Denied { code: "sold_out".to_owned(), limit: Some(Limit::Total) }
    }

    #[test]
    fn the_requested_share_of_users_misbehaves() {
        for share in [0, 10, 50] {
            let users: Vec<_> = (0..100).filter_map(|n| SimulatedUser::nth(&plan(share), n)).collect();
            let of = |behavior| users.iter().filter(|user| user.behavior == behavior).count();
            assert_eq!(of(Behavior::Duplicate), share as usize);
            assert_eq!(of(Behavior::IgnoreAnswer) + of(Behavior::Cut), share as usize);
            assert_eq!(users.iter().filter(|user| user.claims == 2).count(), 10, "users who claim too much");
        }
    }

    #[test]
    fn a_retry_with_a_different_claim_or_a_denial_contradicts() {
        let unknown = || TryOutcome::Unknown("lost".to_owned());
        assert!(!outcome(false, |id| vec![claimed(id, 1), claimed(id, 1)]).contradicts());
        assert!(!outcome(false, |id| vec![unknown(), claimed(id, 1)]).contradicts());
        assert!(
            !outcome(false, |id| vec![denied(), claimed(id, 1)]).contradicts(),
            "a unit was returned in between"
        );
        assert!(outcome(false, |id| vec![claimed(id, 1), claimed(id, 2)]).contradicts());
        assert!(outcome(false, |id| vec![claimed(id, 1), denied()]).contradicts());
        assert!(outcome(true, |id| vec![denied(), claimed(id, 1)]).contradicts());
        assert!(!outcome(true, |_| vec![denied(), denied()]).contradicts());
    }

    #[test]
    fn only_a_claim_without_a_decision_is_unknown() {
        let unknown = || TryOutcome::Unknown("lost".to_owned());
        assert!(outcome(false, |_| vec![unknown()]).is_unknown());
        assert!(outcome(false, |_| vec![denied(), unknown()]).is_unknown());
        assert!(!outcome(false, |id| vec![claimed(id, 1), unknown()]).is_unknown());
        assert!(!outcome(false, |_| vec![unknown(), denied()]).is_unknown());
    }
}
