//! Batches of claims, for back ends.

use std::collections::HashMap;

use axum::extract::State;
use axum::http::StatusCode;
use claimgate_shared::claim_request::ClaimBatch;
use claimgate_shared::{Attempt, ClaimId, ClaimReply, ClaimRequest, Problem, ShownPass};
use futures_util::future::join_all;
use serde::Serialize;
use utoipa::openapi::schema::{AnyOf, AnyOfBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::claims::decide;
use crate::credentials::Caller;
use crate::http::error::{ApiError, ApiResult};
use crate::http::extract::{BatchCall, json};
use crate::http::state::AppState;

/// The outcomes of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClaimBatchReply {
    /// One result for each claim, in the order of the request.
    results: Vec<ClaimResult>,
}

/// The outcome of one claim, as if the claim had been sent separately.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClaimResult {
    /// The HTTP status.
    #[schema(minimum = 200, maximum = 599)]
    status: u16,
    /// The body.
    body: ClaimResultBody,
}

/// The body of one claim's response.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ClaimResultBody {
    /// The claim was made, now or earlier.
    Reply(ClaimReply),
    /// The claim was denied or failed, or its outcome is unknown.
    Problem(Problem),
}

// Written by hand: for `oneOf`, OpenAPI Generator generates Go code that needs an additional module.
impl PartialSchema for ClaimResultBody {
    fn schema() -> RefOr<Schema> {
        let schemas = ["ClaimReply", "Problem"].map(Ref::from_schema_name);
        Schema::AnyOf(schemas.into_iter().fold(AnyOf::builder(), AnyOfBuilder::item).build()).into()
    }
}

impl ToSchema for ClaimResultBody {}

/// Decides up to 256 claims independently: a denied or malformed claim does not affect other claims. Claims
/// with the same key are decided in order.
#[utoipa::path(
    post, path = "/internal/v1/claims/batch", tag = "internal", operation_id = "createClaims",
    request_body = ClaimBatch,
    responses(
        (status = 200, description = "The outcome of each claim, in the order of the request", body = ClaimBatchReply),
    ),
    security(("apiToken" = []), ("adminToken" = ["admin"])),
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

/// Decides the claims with one key, one after another.
async fn in_order(
    state: &AppState,
    caller: &Caller,
    request_id: &str,
    same: Vec<(usize, &ClaimRequest)>,
) -> Vec<(usize, ClaimResult)> {
    let mut results = Vec::with_capacity(same.len());
    for (at, request) in same {
        let decided = decide(state, caller, request, Attempt::Unknown, Some(ShownPass::UNLIMITED)).await;
        results.push((at, ClaimResult::of(decided, request_id)));
    }
    results
}

impl ClaimResult {
    fn of(decided: Result<(StatusCode, ClaimReply), ApiError>, request_id: &str) -> Self {
        match decided {
            Ok((status, reply)) => Self { status: status.as_u16(), body: ClaimResultBody::Reply(reply) },
            Err(error) => {
                let problem = error.into_problem(request_id);
                Self { status: problem.code.status(), body: ClaimResultBody::Problem(problem) }
            }
        }
    }
}
