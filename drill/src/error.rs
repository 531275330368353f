//! Errors that prevent a report.

use claimgate_client::Error;

/// Why a drill ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// A call that the drill depends on failed.
    #[error("{doing}: {error}")]
    Call {
        /// The purpose of the call.
        doing: &'static str,
        /// The call's error.
        #[source]
        error: Error,
    },
    /// The installation is not the expected one, or cannot be used.
    #[error("{0}")]
    Setup(String),
    /// Something took too long.
    #[error("{0}")]
    TooSlow(String),
    /// The caller stopped the drill.
    #[error("stopped before it was complete")]
    Interrupted,
}

impl DrillError {
    /// Converts the error of a call made for the purpose `doing`.
    pub(crate) fn at(doing: &'static str) -> impl Fn(Error) -> Self {
        move |error| Self::Call { doing, error }
    }
}
