//! Why the system gave no answer: no decision, which the contract permits, or a failure.

use std::fmt;

use claimgate_core::engine::error::{EngineError, NoDecision, RecoveryError, StoreError};

/// The error of a call on the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Why there was no decision; `None` if the call failed for another reason.
    pub no_decision: Option<NoDecision>,
    text: String,
}

impl Failure {
    /// Returns whether the answer came too late: the call may have taken effect, and is safe to retry.
    pub fn is_unavailable(&self) -> bool {
        self.no_decision == Some(NoDecision::Unavailable)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self { no_decision: error.no_decision(), text: error.to_string() }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<RecoveryError> for Failure {
    fn from(error: RecoveryError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self { no_decision: None, text }
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.text
    }
}
