//! Errors of calls to claimgate.

use std::time::Duration;

use claimgate_shared::Code;
use reqwest::StatusCode;
use serde_json::Value;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// claimgate returned a problem.
    #[error(transparent)]
    Problem(Box<Problem>),
    /// No response, or one not from claimgate. The call may have taken effect.
    #[error("no answer from {address}: {why}")]
    NoAnswer {
        /// The address that was called.
        address: String,
        /// The reason.
        why: String,
        /// True if the call was sent and may have taken effect; false if no connection was made.
        sent: bool,
    },
    /// The call succeeded, but claimgate has a different version and this client cannot parse its response.
    #[error("the call succeeded, but this version cannot read the response: {0}")]
    Unread(#[from] serde_json::Error),
    /// Nothing was sent: the client could not be created, or the system's random number generator failed for
    /// a key.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    /// Returns whether claimgate returned this code.
    pub fn is(&self, code: Code) -> bool {
        self.problem().is_some_and(|problem| problem.code == code.as_str())
    }

    /// Returns claimgate's problem, if there is one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::NoAnswer { .. } | Self::Unread(_) | Self::Setup(_) => None,
        }
    }

    /// Returns whether claimgate did not process this call. An earlier call may still have taken effect.
    pub(crate) fn was_not_processed(&self) -> bool {
        matches!(self, Self::NoAnswer { sent: false, .. })
            || self.is(Code::Overloaded)
            || self.is(Code::NotConfigured)
            || self.is(Code::UserIdsDiffer)
            || self.problem().is_some_and(|problem| matches!(problem.status.as_u16(), 401 | 429))
    }

    /// Returns the minimum wait before a retry with the same key; `None` if a retry cannot help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoAnswer { .. } => Some(Duration::ZERO),
            Self::Problem(_) if self.is(Code::NotConfigured) || self.is(Code::UserIdsDiffer) => None,
            Self::Problem(problem) if matches!(problem.status.as_u16(), 408 | 429 | 500..) => {
                Some(problem.retry_after.unwrap_or_default())
            }
            Self::Problem(_) | Self::Unread(_) | Self::Setup(_) => None,
        }
    }
}

/// A problem returned by claimgate (RFC 9457). The code is a string, since a newer claimgate may have new
/// codes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{title} ({code}): {detail}")]
pub struct Problem {
    /// The response's status.
    pub status: StatusCode,
    /// The kind of problem, for programs.
    pub code: String,
    /// The kind of problem, for people.
    pub title: String,
    /// A description of this occurrence, for people.
    pub detail: String,
    /// The response's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// All members, as received.
    pub json: Value,
}

impl Problem {
    /// Parses the problem in a response's body; `None` if it is not a problem.
    pub(crate) fn from_json(status: StatusCode, retry_after: Option<Duration>, json: Value) -> Option<Self> {
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        let (code, title, detail) = (text("code")?, text("title")?, text("detail")?);
        Some(Self { status, code, title, detail, retry_after, json })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(status: u16, retry_after_s: Option<u64>) -> Error {
        let json = json!({"code": "new_code", "title": "T", "detail": "D"});
        let retry_after = retry_after_s.map(Duration::from_secs);
        Error::Problem(Box::new(
            Problem::from_json(StatusCode::from_u16(status).unwrap(), retry_after, json).unwrap(),
        ))
    }

    #[test]
    fn only_transient_errors_are_worth_a_retry() {
        assert_eq!(error(503, Some(2)).retry_after(), Some(Duration::from_secs(2)));
        assert_eq!(error(429, None).retry_after(), Some(Duration::ZERO));
        for status in [400, 401, 403, 404, 409, 422] {
            assert_eq!(error(status, Some(2)).retry_after(), None, "{status}");
        }
        let lost = Error::NoAnswer { address: "there".to_owned(), why: "reset".to_owned(), sent: true };
        assert_eq!(lost.retry_after(), Some(Duration::ZERO));
        for code in [Code::NotConfigured, Code::UserIdsDiffer] {
            let json = json!({"code": code.as_str(), "title": "T", "detail": "D"});
            let problem = Problem::from_json(StatusCode::SERVICE_UNAVAILABLE, None, json).unwrap();
            assert_eq!(Error::Problem(Box::new(problem)).retry_after(), None, "{code:?}");
        }
    }

    #[test]
    fn an_unknown_code_is_passed_on() {
        assert_eq!(error(409, None).to_string(), "T (new_code): D");
        assert!(!error(409, None).is(Code::SoldOut));
        assert_eq!(Problem::from_json(StatusCode::BAD_GATEWAY, None, json!({"error": "no"})), None);
    }
}
