//! The one place where the engine's errors become problems (RFC 9457).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use claimgate_shared::{Code, Problem};

use crate::engine::EngineError;
use crate::engine::batcher::BatcherError;
use crate::engine::recovery::RecoveryError;
use crate::engine::sync::SyncError;
use crate::metrics;
use crate::store::redis::RedisStoreError;
use crate::store::sql::{OutboxWriteError, SqlError};

/// A handler's error; [`super::middleware::Exchange::end`] writes it out.
#[derive(Debug, Clone)]
pub struct ApiError {
    problem: Problem,
    /// What is behind a 503, for metrics and the log.
    reason: &'static str,
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        Self::because("other", problem)
    }
}

impl ApiError {
    /// A problem that is a 503 for this reason, one of those in `metrics`.
    pub fn because(reason: &'static str, problem: Problem) -> Self {
        Self { problem, reason }
    }

    /// The problem's code, and, of a 503, what is behind it.
    pub fn code_and_reason(&self) -> (Code, Option<&'static str>) {
        (self.problem.code, (self.problem.code.status() == 503).then_some(self.reason))
    }

    /// The problem as it is told to the caller of the request. Every 503 is counted here.
    pub fn told(self, request_id: &str) -> Problem {
        if let (code, Some(reason)) = self.code_and_reason() {
            metrics::unavailable(code.as_str(), reason);
        }
        self.problem.of_request(request_id)
    }

    /// The answer, in a body of any kind, before it is written out.
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

/// What a handler answers.
pub type ApiResult<B = Body> = Result<Response<B>, ApiError>;

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        Self::because(reason(&error), problem(error))
    }
}

/// What is behind a 503.
fn reason(error: &EngineError) -> &'static str {
    match error {
        EngineError::NotInForce(error) => reason(error),
        EngineError::TooMuchWaits => "sql_behind",
        EngineError::LoadingElsewhere => "loading",
        EngineError::Batcher(BatcherError::Overloaded) => "queue_full",
        EngineError::Batcher(BatcherError::OutboxFull) => "outbox_full",
        EngineError::Batcher(BatcherError::Stopped) => "stopping",
        EngineError::Batcher(BatcherError::Sync(error)) => sync_reason(error),
        EngineError::Sync(error) | EngineError::Recovery(RecoveryError::Sync(error)) => sync_reason(error),
        EngineError::Recovery(RecoveryError::Redis(error)) => redis_reason(error),
        EngineError::Sql(_) | EngineError::Recovery(RecoveryError::Sql(_)) => "sql",
        EngineError::Recovery(_) => "not_loaded",
        _ => "other",
    }
}

fn sync_reason(error: &SyncError) -> &'static str {
    match error {
        SyncError::Redis(error) => redis_reason(error),
        SyncError::Sql(_) => "sql",
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

fn problem(error: EngineError) -> Problem {
    match error {
        EngineError::CampaignNotFound => no_such_campaign(),
        EngineError::ClaimNotFound => no_such_claim(),
        EngineError::WebhookNotFound => Problem::new(Code::WebhookNotFound, "there is no such webhook"),
        EngineError::CampaignExists => Problem::new(Code::CampaignExists, "another campaign has this id"),
        EngineError::OfAnotherRegister => Problem::new(
            Code::CampaignExists,
            "Redis holds a campaign of this id that belongs to another register; it was left as it is",
        ),
        EngineError::VersionConflict(version) => {
            let problem =
                Problem::new(Code::VersionConflict, format!("the campaign is at version {version}"));
            with(problem, |extensions| extensions.version = Some(version))
        }
        EngineError::CampaignEnded => Problem::new(Code::CampaignEnded, "an ended campaign stays ended"),
        EngineError::CampaignOpen => {
            Problem::new(Code::CampaignOpen, "past claims are imported while it is scheduled or paused")
        }
        EngineError::ImportUnfinished => Problem::new(
            Code::ImportUnfinished,
            "an import is unfinished: the same file again completes it, and no other one; an end gives it up",
        ),
        EngineError::ImportRefused(error) => import_refused(&error),
        EngineError::NotInForce(error) => not_in_force(problem(*error)),
        EngineError::TooMuchWaits => {
            Problem::new(Code::Overloaded, "too many claims wait for SQL to tell this user's; ask again")
        }
        EngineError::CursorInvalid => Problem::new(
            Code::CursorInvalid,
            "it is of another feed or beyond this one's end: begin without a cursor, and all claims are told again",
        ),
        EngineError::ClaimStands(claim) => {
            let code = match claim.status {
                claimgate_shared::ClaimStatus::Expired => Code::ClaimExpired,
                claimgate_shared::ClaimStatus::Returned => Code::ClaimReturned,
                _ => Code::ClaimRevoked,
            };
            let problem = Problem::new(code, format!("the claim is {}", claim.status.as_str()));
            with(problem, |extensions| extensions.claim = Some(claim))
        }
        EngineError::LoadingElsewhere => Problem::new(Code::CampaignNotReady, "another core is loading it"),
        EngineError::Invalid(problem) => problem,
        EngineError::Batcher(BatcherError::Overloaded) => {
            Problem::new(Code::Overloaded, "too many claims are waiting; nothing was tried")
        }
        EngineError::Batcher(BatcherError::OutboxFull) => {
            Problem::new(Code::Overloaded, "too many events wait for SQL; nothing was tried")
        }
        EngineError::Batcher(BatcherError::Sync(error)) => undecided(&error),
        EngineError::Batcher(BatcherError::Stopped) => unknown_outcome(),
        EngineError::Sql(error) => sql_failed(&error),
        EngineError::Sync(error) => undecided(&error),
        EngineError::Recovery(error) => not_recovered(error),
    }
}

fn with(mut problem: Problem, set: impl FnOnce(&mut claimgate_shared::problem::Extensions)) -> Problem {
    set(&mut problem.extensions);
    problem
}

/// For ids that lead nowhere.
pub fn no_such_campaign() -> Problem {
    Problem::new(Code::CampaignNotFound, "there is no such campaign")
}

/// For claims that do not exist, or belong to another user: the same answer.
pub fn no_such_claim() -> Problem {
    Problem::new(Code::ClaimNotFound, "there is no such claim, or it is not yours")
}

/// For claims whose decision did not arrive in time.
pub fn unknown_outcome() -> Problem {
    Problem::new(Code::Unavailable, "the outcome is unknown: ask again with the same key")
}

/// For an import whose claims the database's own guards refuse. No later try is known to go better.
fn import_refused(error: &OutboxWriteError) -> Problem {
    tracing::error!(%error, "the database refuses claims of an import");
    Problem::new(
        Code::ImportUnfinished,
        "the database refuses claims of this file (the log says why), so the import is unfinished; it is not tried again \
         automatically: send the same file again, or end the campaign",
    )
}

/// For a change that SQL has, whatever kept Redis from taking it: what `why` says of the outcome is not so.
fn not_in_force(why: Problem) -> Problem {
    let detail = "the change is stored, and comes into force automatically if it is not in force yet; sent again, it is not \
                  made twice";
    Problem { detail: detail.to_owned(), ..why }
}

/// While a call on a campaign gives no answer.
fn undecided(error: &SyncError) -> Problem {
    // One line a request would let anyone fill the log; the health checks say it once.
    tracing::debug!(%error, "no decision");
    match error {
        SyncError::Redis(RedisStoreError::NotReady(_)) => {
            Problem::new(Code::CampaignNotReady, "the campaign's counters are being rebuilt")
        }
        SyncError::Redis(RedisStoreError::OutOfMemory(_)) => {
            Problem::new(Code::Overloaded, "out of memory; nothing was tried")
        }
        SyncError::Redis(_) | SyncError::Sql(_) => unknown_outcome(),
    }
}

/// While SQL does not answer.
fn sql_failed(error: &SqlError) -> Problem {
    // One line a request would let anyone fill the log: the health checks say once that SQL is away, and the store
    // which campaign cannot be read.
    tracing::debug!(%error, "SQL did not answer");
    let detail = match error {
        SqlError::Unreadable(_) => "the database holds what this version cannot read",
        _ => "the database does not answer",
    };
    Problem::new(Code::Unavailable, detail)
}

fn not_recovered(error: RecoveryError) -> Problem {
    match error {
        RecoveryError::Sql(error) => sql_failed(&error),
        RecoveryError::Sync(error) => undecided(&error),
        RecoveryError::Redis(error) => undecided(&error.into()),
        error => {
            tracing::warn!(%error, "not recovered");
            Problem::new(
                Code::CampaignNotReady,
                "the campaign cannot be loaded yet; it is tried again automatically",
            )
        }
    }
}
