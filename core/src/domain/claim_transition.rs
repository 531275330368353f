//! Claim transitions that a caller can request.

/// A change to an existing claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimTransition {
    /// A held claim becomes granted.
    Confirm,
    /// The claim is returned, and its units can be claimed again.
    Return,
}

impl ClaimTransition {
    /// Returns the name that `transition.lua` expects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Confirm => "confirm",
            Self::Return => "return",
        }
    }
}
