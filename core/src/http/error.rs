//! Converts the engine's errors to problems (RFC 9457).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use claimgate_shared::{Code, Problem};

use crate::engine::EngineError;
use crate::engine::error::{RecoveryError, StoreError};
use crate::metrics;
use crate::store::redis::RedisStoreError;
use crate::store::sql::{OutboxWriteError, SqlError};

/// A handler's error, serialized by [`super::middleware::Exchange::end`].
#[derive(Debug, Clone)]
pub struct ApiError {
    problem: Problem,
    /// The cause of a 503, for metrics and the log.
    reason: &'static str,
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        Self::because("other", problem)
    }
}

impl ApiError {
    /// Creates an error. A 503 is counted under `reason`, one of the reasons in `metrics`.
    pub fn because(reason: &'static str, problem: Problem) -> Self {
        Self { problem, reason }
    }

    /// Returns the problem's code and, for a 503, its reason.
    pub fn code_and_reason(&self) -> (Code, Option<&'static str>) {
        (self.problem.code, (self.problem.code.status() == 503).then_some(self.reason))
    }

    /// Returns the problem as sent to the request's caller. Every 503 is counted here.
    pub fn into_problem(self, request_id: &str) -> Problem {
        if let (code, Some(reason)) = self.code_and_reason() {
            metrics::unavailable(code.as_str(), reason);
        }
        self.problem.with_request_id(request_id)
    }

    /// Returns a response that carries this error, for any type of body; the body is written later.
    pub fn answer<B: Default>(self) -> Response<B> {
        let mut response = Response::new(B::default());
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.answer()
    }
}

/// A handler's result.
pub type ApiResult<B = Body> = Result<Response<B>, ApiError>;

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        Self::because(reason(&error), problem(error))
    }
}

/// Returns the reason under which a 503 is counted.
fn reason(error: &EngineError) -> &'static str {
    match error {
        EngineError::NotInForce(error) => reason(error),
        EngineError::TooFarBehind => "sql_behind",
        EngineError::LoadingElsewhere => "loading",
        EngineError::QueueFull => "queue_full",
        EngineError::OutboxFull => "outbox_full",
        EngineError::UserIdsDiffer(_) => "user_ids",
        EngineError::Stopping => "stopping",
        EngineError::Store(error) => match &**error {
            StoreError::Redis(error) => redis_reason(error),
            StoreError::Sql(_) => "sql",
        },
        EngineError::NotLoaded(_) => "not_loaded",
        _ => "other",
    }
}

fn redis_reason(error: &RedisStoreError) -> &'static str {
    match error {
        RedisStoreError::NotReady(_) => "not_ready",
        RedisStoreError::OutOfMemory(_) => "out_of_memory",
        RedisStoreError::NotReplicated(_) => "not_replicated",
        RedisStoreError::Unavailable(_) | RedisStoreError::NoPrimary(_) | RedisStoreError::Malformed(_) => {
            "redis"
        }
    }
}

fn not_ended_yet() -> Problem {
    let detail = "the campaign has not ended: end it, or wait for its end, and archive it then";
    Problem::new(Code::CampaignOpen, detail)
}

fn problem(error: EngineError) -> Problem {
    match error {
        EngineError::CampaignNotFound => no_such_campaign(),
        EngineError::ClaimNotFound => no_such_claim(),
        EngineError::WebhookNotFound => Problem::new(Code::WebhookNotFound, "there is no such webhook"),
        EngineError::CampaignExists(differs) => Problem::new(
            Code::CampaignExists,
            format!("a campaign with this id already exists and differs in: {}", differs.join(", ")),
        ),
        EngineError::OtherDatabase => Problem::new(
            Code::CampaignExists,
            "Redis has a campaign with this id that belongs to another database; it was not changed",
        ),
        EngineError::VersionConflict(version) => {
            let problem = Problem::new(
                Code::VersionConflict,
                format!("the campaign is now at version {version}; read it and send the change again"),
            );
            with(problem, |extensions| extensions.version = Some(version))
        }
        EngineError::CampaignEnded => {
            Problem::new(Code::CampaignEnded, "the campaign has ended and can no longer be changed")
        }
        EngineError::CampaignOpen => Problem::new(
            Code::CampaignOpen,
            "past claims can only be imported while the campaign is scheduled or paused",
        ),
        EngineError::CampaignNotEndedYet => not_ended_yet(),
        EngineError::CampaignNotEnded(campaign) => Problem::new(
            Code::CampaignOpen,
            format!(
                "the campaign {campaign} has not ended: user ids change only once all campaigns have ended"
            ),
        ),
        EngineError::UserIdsDiffer(why) => Problem::new(Code::UserIdsDiffer, why.to_string()),
        EngineError::ImportUnfinished => Problem::new(
            Code::ImportUnfinished,
            "an import is unfinished: send the same file again to complete it, or end the campaign to abandon it",
        ),
        EngineError::ImportRefused(error) => import_refused(&error),
        EngineError::NotInForce(error) => not_in_force(problem(*error)),
        EngineError::TooFarBehind => Problem::new(
            Code::Overloaded,
            "too many claims are pending for SQL, so this user's claims cannot be listed; try again",
        ),
        EngineError::CursorInvalid => Problem::new(
            Code::CursorInvalid,
            "the cursor belongs to a different feed or is beyond this feed's end; start without a cursor to read all claims again",
        ),
        EngineError::ClaimStands(claim) => claim_stands(claim),
        EngineError::ExtendedTooOften(claim) => extended_too_often(claim),
        EngineError::LoadingElsewhere => {
            Problem::new(Code::CampaignNotReady, "another core is loading the campaign")
        }
        EngineError::Invalid(problem) => problem,
        EngineError::QueueFull => {
            Problem::new(Code::Overloaded, "too many claims are queued; the request was not processed")
        }
        EngineError::OutboxFull => Problem::new(
            Code::Overloaded,
            "too many events are pending for SQL; the request was not processed",
        ),
        EngineError::Stopping => unknown_outcome(),
        EngineError::Random(_) => {
            Problem::new(Code::Unavailable, "the system provides no random numbers; nothing was changed")
        }
        EngineError::Store(error) => not_answered(&error),
        EngineError::NotLoaded(error) => not_loaded(&error),
    }
}

fn claim_stands(claim: Box<claimgate_shared::Claim>) -> Problem {
    let code = match claim.status {
        claimgate_shared::ClaimStatus::Expired => Code::ClaimExpired,
        claimgate_shared::ClaimStatus::Returned => Code::ClaimReturned,
        _ => Code::ClaimRevoked,
    };
    let problem = Problem::new(code, format!("the claim is {}", claim.status.as_str()));
    with(problem, |extensions| extensions.claim = Some(claim))
}

fn extended_too_often(claim: Box<claimgate_shared::Claim>) -> Problem {
    let detail = "the hold was extended the maximum number of times; confirm the claim before it expires";
    with(Problem::new(Code::HoldExtendedTooOften, detail), |extensions| extensions.claim = Some(claim))
}

fn with(mut problem: Problem, set: impl FnOnce(&mut claimgate_shared::problem::Extensions)) -> Problem {
    set(&mut problem.extensions);
    problem
}

/// Returns the problem for a campaign id that does not exist.
pub fn no_such_campaign() -> Problem {
    Problem::new(Code::CampaignNotFound, "there is no such campaign")
}

/// Returns the problem for a claim that does not exist or belongs to another user; the caller cannot tell the
/// two apart.
pub fn no_such_claim() -> Problem {
    Problem::new(Code::ClaimNotFound, "there is no such claim, or it is not yours")
}

/// Returns the problem for a claim whose decision did not arrive in time.
pub fn unknown_outcome() -> Problem {
    Problem::new(Code::Unavailable, "the outcome is unknown; retry with the same key")
}

/// Returns the problem for an import whose claims violate the database's constraints. A retry may not help.
fn import_refused(error: &OutboxWriteError) -> Problem {
    tracing::error!(%error, "the database refused claims of an import");
    Problem::new(
        Code::ImportUnfinished,
        "the database refused claims from this file (core's log says why), so the import is unfinished. It is not retried \
         automatically: send the same file again, or end the campaign",
    )
}

/// Returns the problem for a change that SQL has and Redis may not have yet. The detail of `why` would
/// misstate the outcome, so it is replaced.
fn not_in_force(why: Problem) -> Problem {
    let detail = "the change is stored. If it is not in force yet, it comes into force automatically; sending it again does \
                  not apply it twice";
    Problem { detail: detail.to_owned(), ..why }
}

/// Returns the problem for a call that failed because a store is unavailable.
fn not_answered(error: &StoreError) -> Problem {
    // Only at debug level: a line for each request would let anyone fill the log. The health checks log once
    // that a store is unavailable, and the store logs which campaign it cannot read.
    tracing::debug!(%error, "a store is unavailable");
    match error {
        StoreError::Redis(RedisStoreError::NotReady(_)) => {
            Problem::new(Code::CampaignNotReady, "the campaign's counters are being rebuilt")
        }
        StoreError::Redis(RedisStoreError::OutOfMemory(_)) => {
            Problem::new(Code::Overloaded, "Redis is out of memory; the request was not processed")
        }
        StoreError::Redis(_) => unknown_outcome(),
        StoreError::Sql(SqlError::Unreadable(_)) => {
            Problem::new(Code::Unavailable, "the database contains data that this version cannot read")
        }
        StoreError::Sql(_) => Problem::new(Code::Unavailable, "the database is unavailable"),
    }
}

/// Returns the problem for a campaign that cannot be loaded although both stores are available.
fn not_loaded(error: &RecoveryError) -> Problem {
    tracing::warn!(%error, "the campaign cannot be loaded");
    Problem::new(Code::CampaignNotReady, "the campaign cannot be loaded yet; core retries automatically")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redis::{ErrorKind, RedisError};

    use super::*;
    use crate::store::redis::loader::LoadError;

    fn redis() -> RedisStoreError {
        RedisError::from((ErrorKind::Io, "broken pipe")).into()
    }

    fn sql() -> SqlError {
        SqlError::timed_out()
    }

    /// Covers every error type through which an unavailable store reaches a caller.
    #[test]
    fn an_unavailable_store_is_reported_the_same_everywhere() {
        let reported = |error: EngineError| ApiError::from(error).code_and_reason();
        let in_a_batch = |error: StoreError| EngineError::Store(Arc::new(error));
        for error in [
            redis().into(),
            StoreError::from(redis()).into(),
            in_a_batch(redis().into()),
            RecoveryError::from(redis()).into(),
            RecoveryError::from(LoadError::Redis(redis())).into(),
            EngineError::NotInForce(Box::new(redis().into())),
        ] {
            assert_eq!(reported(error), (Code::Unavailable, Some("redis")));
        }
        for error in [
            sql().into(),
            StoreError::from(sql()).into(),
            in_a_batch(sql().into()),
            RecoveryError::from(sql()).into(),
            RecoveryError::from(OutboxWriteError::Sql(sql())).into(),
            EngineError::NotInForce(Box::new(sql().into())),
        ] {
            assert_eq!(reported(error), (Code::Unavailable, Some("sql")));
        }
    }

    #[test]
    fn a_failed_load_with_both_stores_up_is_reported_as_not_ready() {
        for error in [RecoveryError::Superseded, RecoveryError::Layout, OutboxWriteError::NoCampaign.into()] {
            let reported = ApiError::from(EngineError::from(error)).code_and_reason();
            assert_eq!(reported, (Code::CampaignNotReady, Some("not_loaded")));
        }
    }
}
