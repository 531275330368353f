//! Why a call did not do what it was to do.

use std::time::Duration;

use claimgate_shared::Code;
use reqwest::StatusCode;
use serde_json::Value;

/// Why a call did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// claimgate refused, or could not decide.
    #[error(transparent)]
    Problem(Box<Problem>),
    /// No answer, or one that is not claimgate's.
    #[error("no answer from {address}: {why}")]
    NoAnswer {
        /// Where it was sent.
        address: String,
        /// What happened instead.
        why: String,
        /// Whether the call was sent, and so may have taken effect; `false` where no connection was made.
        sent: bool,
    },
    /// claimgate did what it was asked to, but its answer lacks what this client knows: it is of another version.
    #[error("an answer that this version cannot read: {0}")]
    Unread(#[from] serde_json::Error),
    /// The client cannot be made of this address or token.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    /// Whether claimgate answered with this code.
    pub fn is(&self, code: Code) -> bool {
        self.problem().is_some_and(|problem| problem.code == code.as_str())
    }

    /// What claimgate said, if it did.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::NoAnswer { .. } | Self::Unread(_) | Self::Setup(_) => None,
        }
    }

    /// Whether this try had no effect. An earlier try of the same call may have had one.
    pub(crate) fn tried_nothing(&self) -> bool {
        matches!(self, Self::NoAnswer { sent: false, .. })
            || self.is(Code::Overloaded)
            || self.problem().is_some_and(|problem| matches!(problem.status.as_u16(), 401 | 429))
    }

    /// How long to wait at least before the same claim, with the same key, is worth asking for again; `None` when only
    /// something else can change the answer.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoAnswer { .. } => Some(Duration::ZERO),
            Self::Problem(problem) if matches!(problem.status.as_u16(), 408 | 429 | 500..) => {
                Some(problem.retry_after.unwrap_or_default())
            }
            Self::Problem(_) | Self::Unread(_) | Self::Setup(_) => None,
        }
    }
}

/// What claimgate says when it refuses or cannot decide (RFC 9457). It may be newer than this client: the code is
/// whatever it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{title} ({code}): {detail}")]
pub struct Problem {
    /// The answer's status.
    pub status: StatusCode,
    /// What went wrong, for programs.
    pub code: String,
    /// What went wrong, for people.
    pub title: String,
    /// This occurrence, for people.
    pub detail: String,
    /// The answer's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// All of its members.
    pub json: Value,
}

impl Problem {
    /// The problem in the body of an answer; `None` when it is none.
    pub(crate) fn of(status: StatusCode, retry_after: Option<Duration>, json: Value) -> Option<Self> {
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
        let json = json!({"code": "some_day", "title": "T", "detail": "D"});
        let retry_after = retry_after_s.map(Duration::from_secs);
        Error::Problem(Box::new(
            Problem::of(StatusCode::from_u16(status).unwrap(), retry_after, json).unwrap(),
        ))
    }

    #[test]
    fn only_what_may_change_by_itself_is_worth_asking_again() {
        assert_eq!(error(503, Some(2)).retry_after(), Some(Duration::from_secs(2)));
        assert_eq!(error(429, None).retry_after(), Some(Duration::ZERO));
        for status in [400, 401, 403, 404, 409, 422] {
            assert_eq!(error(status, Some(2)).retry_after(), None, "{status}");
        }
        let lost = Error::NoAnswer { address: "there".to_owned(), why: "reset".to_owned(), sent: true };
        assert_eq!(lost.retry_after(), Some(Duration::ZERO));
    }

    #[test]
    fn a_code_of_the_future_is_passed_on() {
        assert_eq!(error(409, None).to_string(), "T (some_day): D");
        assert!(!error(409, None).is(Code::SoldOut));
        assert_eq!(Problem::of(StatusCode::BAD_GATEWAY, None, json!({"error": "no"})), None);
    }
}
