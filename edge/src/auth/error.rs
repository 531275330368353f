//! Why a token is not accepted.

use claimgate_shared::jwt::{Algorithm, TokenError, TokenRejection};
use claimgate_shared::{Code, Problem};

/// Why a request's user is not known.
#[derive(Debug)]
pub enum AuthError {
    /// The token is invalid.
    Rejected(TokenRejection),
    /// The token could not be checked, through no fault of the user.
    Unchecked(Problem),
}

impl From<TokenRejection> for AuthError {
    fn from(why: TokenRejection) -> Self {
        Self::Rejected(why)
    }
}

impl From<Problem> for AuthError {
    fn from(problem: Problem) -> Self {
        Self::Unchecked(problem)
    }
}

impl AuthError {
    /// Returns the problem for the caller. It names the broken rule, but no value and no setting.
    pub fn into_problem(self) -> Problem {
        match self {
            Self::Rejected(TokenRejection { reason, .. }) => {
                Problem::new(Code::Unauthenticated, format!("the bearer token is invalid: {reason}"))
            }
            Self::Unchecked(problem) => problem,
        }
    }
}

/// Returns the rejection of a token whose algorithm no key verifies.
pub(super) fn wrong_algorithm(algorithm: Algorithm) -> TokenRejection {
    TokenError::Algorithm.found(algorithm.as_str())
}
