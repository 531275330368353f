//! Batches of claims, for back ends.

use std::collections::HashMap;

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::claim_request::ClaimBatch;
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{Attempt, ClaimId, ClaimReply, ClaimRequest, Problem};
use futures_util::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use super::claims::decide;
use crate::credentials::Caller;
use crate::http::error::{ApiError, ApiResult};
use crate::http::extract::{BatchCall, json};
use crate::http::state::AppState;

/// What became of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClaimBatchReply {
    /// One result a claim, in their order.
    results: Vec<ClaimResult>,
}

/// What became of one claim: as if it had been sent alone.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClaimResult {
    /// The HTTP status.
    status: u16,
    /// The body.
    body: ClaimResultBody,
}

/// The body of one claim's answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum ClaimResultBody {
    /// The claim stands.
    Reply(ClaimReply),
    /// It does not, or that is unknown.
    Problem(Problem),
}

/// Decides up to 256 claims, each for itself: one that is refused or malformed takes nothing from the others. Claims of the
/// same key are decided in their order.
#[utoipa::path(
    post, path = "/internal/v1/claims/batch", tag = "internal",
    request_body = ClaimBatch,
    responses(
        (status = 200, description = "Each claim's own outcome, in their order", body = ClaimBatchReply),
        (status = "default", description = "A problem of the whole request: nothing was tried", body = ProblemFields),
    ),
)]
pub async fn claim(State(state): State<AppState>, call: BatchCall) -> ApiResult {
    let BatchCall { caller, request_id, claims } = call;
    let mut retries: HashMap<ClaimId, Vec<(usize, &ClaimRequest)>> = HashMap::new();
    let mut results: Vec<(usize, ClaimResult)> = Vec::with_capacity(claims.len());
    for (at, claim) in claims.iter().enumerate() {
        match claim {
            Ok(request) => retries.entry(request.claim_id()).or_default().push((at, request)),
            Err(problem) => results.push((at, ClaimResult::of(Err(problem.clone().into()), &request_id))),
        }
    }
    let decided = retries.into_values().map(|same| in_order(&state, &caller, &request_id, same));
    results.extend(join_all(decided).await.into_iter().flatten());
    results.sort_unstable_by_key(|(at, _)| *at);
    let results = results.into_iter().map(|(_, result)| result).collect();
    json(StatusCode::OK, &ClaimBatchReply { results })
}

/// Decides the claims of one key, one after another.
async fn in_order(
    state: &AppState,
    caller: &Caller,
    request_id: &str,
    same: Vec<(usize, &ClaimRequest)>,
) -> Vec<(usize, ClaimResult)> {
    let mut results = Vec::with_capacity(same.len());
    for (at, request) in same {
        let decided = decide(state, caller, request, Attempt::Unknown).await;
        results.push((at, ClaimResult::of(decided, request_id)));
    }
    results
}

impl ClaimResult {
    fn of(decided: Result<(StatusCode, ClaimReply), ApiError>, request_id: &str) -> Self {
        match decided {
            Ok((status, reply)) => Self { status: status.as_u16(), body: ClaimResultBody::Reply(reply) },
            Err(error) => {
                let problem = error.told(request_id);
                Self { status: problem.code.status(), body: ClaimResultBody::Problem(problem) }
            }
        }
    }
}
