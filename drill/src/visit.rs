//! What one user does in the storm, and what the user was told.

use std::num::NonZeroU32;

use claimgate_client::{Answer, ClaimCall, Error};
use claimgate_shared::problem::Limit;
use claimgate_shared::{ClaimId, ClaimReply, UserId};
use serde::Deserialize as _;

use crate::Plan;

/// What a user does with each claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Sends it, and asks again while the outcome is unknown.
    Plain,
    /// Sends it twice at the same time.
    Twice,
    /// Does not hear the first answer, and asks again.
    Unheard,
    /// Cuts the connection while the first try is under way, and asks again.
    Cut,
}

/// One user of the storm.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    /// The user.
    pub(crate) user: UserId,
    /// Claims of one unit, one after the other.
    pub(crate) claims: u32,
    /// How the user sends them.
    pub(crate) manner: Manner,
}

impl Visit {
    /// The `n`th user of the storm that `plan` describes.
    pub(crate) fn nth(plan: &Plan, n: u32) -> Option<Self> {
        /// Prime to 100: neighbours behave differently, and of any 100 in a row each place is taken once.
        const STRIDE: u64 = 37;
        let place = u64::from(n) * STRIDE % 100;
        let share = u64::from(plan.duplicates);
        let manner = match place {
            place if place < share => Manner::Twice,
            place if place >= 100 - share && n.is_multiple_of(2) => Manner::Unheard,
            place if place >= 100 - share => Manner::Cut,
            _ => Manner::Plain,
        };
        let greedy = n % 10 == 3;
        let claims = plan.per_user.get().saturating_add(greedy.into());
        Some(Self { user: format!("u{n}").parse().ok()?, claims, manner })
    }
}

/// What a caller was told about one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// It stands.
    Claimed {
        /// Its id.
        id: ClaimId,
        /// Its place.
        sequence: u64,
        /// Its units.
        units: NonZeroU32,
    },
    /// A rule refuses it.
    Denied {
        /// The problem's code.
        code: String,
        /// The limit that it names.
        limit: Option<Limit>,
    },
    /// Nothing that could be relied on, in time.
    Unknown(String),
}

impl Told {
    /// What an answer, or the lack of one, says.
    pub(crate) fn of(answer: Result<Answer<ClaimReply>, Error>) -> Self {
        match answer.and_then(|answer| answer.read()) {
            Ok(ClaimReply { claim, .. }) => match NonZeroU32::new(claim.quantity.get()) {
                Some(units) => Self::Claimed { id: claim.id, sequence: claim.sequence, units },
                None => Self::Unknown("a claim of no units".to_owned()),
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

/// What became of one claim.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// The user, the key, and the id that they lead to.
    pub(crate) call: ClaimCall,
    /// What was told, in the order of the tries.
    pub(crate) told: Vec<Told>,
    /// Whether the tries were made at the same time.
    pub(crate) together: bool,
}

impl Outcome {
    /// The claim that was acknowledged, if any was.
    pub(crate) fn claimed(&self) -> Option<&Told> {
        self.told.iter().find(|told| told.is_claimed())
    }

    /// Whether it is not known what became of it.
    pub(crate) fn is_unknown(&self) -> bool {
        self.claimed().is_none() && matches!(self.told.last(), Some(Told::Unknown(_)) | None)
    }

    /// Whether a try met another claim than an earlier one, or none where there was one.
    pub(crate) fn contradicts(&self) -> bool {
        let first = if self.together { Some(0) } else { self.told.iter().position(Told::is_claimed) };
        let Some(claimed) = self.claimed() else { return false };
        let decided = self.told[first.unwrap_or(0)..].iter().filter(|told| !matches!(told, Told::Unknown(_)));
        decided.into_iter().any(|told| told != claimed)
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
            keep: false,
        }
    }

    fn outcome(together: bool, told: impl Fn(&ClaimId) -> Vec<Told>) -> Outcome {
        let call = ClaimCall::new("c".parse().unwrap(), "u".parse().unwrap(), Quantity::ONE).unwrap();
        Outcome { told: told(&call.claim_id()), together, call }
    }

    fn claimed(id: &ClaimId, sequence: u64) -> Told {
        Told::Claimed { id: id.clone(), sequence, units: NonZeroU32::MIN }
    }

    fn denied() -> Told {
        Told::Denied { code: "sold_out".to_owned(), limit: Some(Limit::Total) }
    }

    #[test]
    fn of_a_hundred_users_as_many_misbehave_as_were_asked_for() {
        for share in [0, 10, 50] {
            let visits: Vec<_> = (0..100).filter_map(|n| Visit::nth(&plan(share), n)).collect();
            let of = |manner| visits.iter().filter(|visit| visit.manner == manner).count();
            assert_eq!(of(Manner::Twice), share as usize);
            assert_eq!(of(Manner::Unheard) + of(Manner::Cut), share as usize);
            assert_eq!(visits.iter().filter(|visit| visit.claims == 2).count(), 10, "who ask for too much");
        }
    }

    #[test]
    fn a_retry_that_meets_another_claim_or_none_contradicts() {
        let unknown = || Told::Unknown("lost".to_owned());
        assert!(!outcome(false, |id| vec![claimed(id, 1), claimed(id, 1)]).contradicts());
        assert!(!outcome(false, |id| vec![unknown(), claimed(id, 1)]).contradicts());
        assert!(!outcome(false, |id| vec![denied(), claimed(id, 1)]).contradicts(), "units came back");
        assert!(outcome(false, |id| vec![claimed(id, 1), claimed(id, 2)]).contradicts());
        assert!(outcome(false, |id| vec![claimed(id, 1), denied()]).contradicts());
        assert!(outcome(true, |id| vec![denied(), claimed(id, 1)]).contradicts());
        assert!(!outcome(true, |_| vec![denied(), denied()]).contradicts());
    }

    #[test]
    fn only_what_was_never_told_is_unknown() {
        let unknown = || Told::Unknown("lost".to_owned());
        assert!(outcome(false, |_| vec![unknown()]).is_unknown());
        assert!(outcome(false, |_| vec![denied(), unknown()]).is_unknown());
        assert!(!outcome(false, |id| vec![claimed(id, 1), unknown()]).is_unknown());
        assert!(!outcome(false, |_| vec![unknown(), denied()]).is_unknown());
    }
}
