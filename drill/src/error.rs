//! Why there is no report.

use claimgate_client::Error;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// A call that everything else depends on failed.
    #[error("{doing}: {error}")]
    Call {
        /// What the call was for.
        doing: &'static str,
        /// What came of it.
        #[source]
        error: Error,
    },
    /// What answers there is not what was named.
    #[error("{0}")]
    Setup(String),
    /// Something took longer than it may.
    #[error("{0}")]
    TooSlow(String),
    /// The caller has stopped it.
    #[error("stopped before the proof was complete")]
    Interrupted,
}

impl DrillError {
    /// Says what a call was for that failed.
    pub(crate) fn at(doing: &'static str) -> impl Fn(Error) -> Self {
        move |error| Self::Call { doing, error }
    }
}
