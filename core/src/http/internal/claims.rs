//! Claims, for the edge and for back ends.

use std::pin::pin;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use claimgate_shared::claim_request::{ClaimFields, ClaimLookup};
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{Attempt, ClaimId, ClaimReply, ClaimRequest, Outcome, http};

use crate::clock;
use crate::credentials::Caller;
use crate::http::error::{ApiError, ApiResult, no_such_claim, unknown_outcome};
use crate::http::extract::{ApiCaller, BackEnd, ClaimCall, PathClaim, REPLAYED, json};
use crate::http::state::AppState;

/// The longest a caller waits for a decision; the edge gives core 2 s in all.
const DECISION_TIMEOUT: Duration = Duration::from_millis(1500);

/// Decides a claim.
#[utoipa::path(
    post, path = "/internal/v1/claims", tag = "internal",
    params(
        ("Claimgate-Attempt" = Option<String>, Header,
            description = "`1` on a claim's very first try: core may then answer sold_out from memory"),
    ),
    request_body = ClaimFields,
    responses(
        (status = 201, description = "Granted, or held", body = ClaimReply),
        (status = 200, description = "The same key asked again: the same claim as it stands", body = ClaimReply),
        (status = "default", description = "A denial or another problem", body = ProblemFields),
    ),
)]
pub async fn claim(State(state): State<AppState>, call: ClaimCall) -> ApiResult {
    answer(&state, call).await
}

/// The path of [`claim`].
pub const CLAIM_PATH: &str = "/internal/v1/claims";

/// Decides a claim; the answer's body may be of any kind.
pub async fn answer<B: From<Vec<u8>>>(state: &AppState, call: ClaimCall) -> ApiResult<B> {
    let ClaimCall { caller, attempt, request } = call;
    caller.may_act_for(&request.user_id)?;
    let (status, reply) = decide(state, &caller, &request, attempt).await?;
    let mut response = json(status, &reply)?;
    if status == StatusCode::OK {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static(http::REPLAYED));
    }
    Ok(response)
}

/// Decides a claim in time: 201 for one that is new, 200 for one that stands already.
pub(super) async fn decide(
    state: &AppState,
    caller: &Caller,
    request: &ClaimRequest,
    attempt: Attempt,
) -> Result<(StatusCode, ClaimReply), ApiError> {
    let decided = pin!(state.engine(caller).claim(request, attempt));
    let decision = state.deadlines().within(DECISION_TIMEOUT, decided).await.ok_or_else(late)??;
    let (remaining, version) = (decision.remaining, decision.version);
    let reply = |claim| ClaimReply { claim, remaining, version };
    match decision.outcome {
        Outcome::Granted(claim) | Outcome::Held(claim) => Ok((StatusCode::CREATED, reply(claim))),
        Outcome::Replayed(claim) => Ok((StatusCode::OK, reply(claim))),
        Outcome::Denied(denial) => Err(denial.problem(version, clock::now()).into()),
    }
}

fn late() -> ApiError {
    ApiError::because("timeout", unknown_outcome())
}

/// Looks a claim up.
#[utoipa::path(
    get, path = "/internal/v1/claims/{claim_id}", tag = "internal",
    params(("claim_id" = ClaimId, Path)),
    responses(
        (status = 200, description = "The claim as it stands, and whether SQL holds it so", body = ClaimLookup),
        (status = "default", description = "404 and other problems", body = ProblemFields),
    ),
)]
pub async fn look_up(
    State(state): State<AppState>,
    ApiCaller(caller): ApiCaller,
    PathClaim(id): PathClaim,
) -> ApiResult {
    // Missing or not yours: the same answer.
    caller.may_act_for(&id.user).map_err(|_| no_such_claim())?;
    let claim = state.engine(&caller).look_up(id).await?;
    json(StatusCode::OK, &ClaimLookup { claim })
}

/// Confirms a held claim.
#[utoipa::path(
    post, path = "/internal/v1/claims/{claim_id}/confirm", tag = "internal",
    params(("claim_id" = ClaimId, Path)),
    responses(
        (status = 200, description = "Granted", body = ClaimLookup),
        (status = "default", description = "409 claim_expired, claim_returned and other problems", body = ProblemFields),
    ),
)]
pub async fn confirm(
    State(state): State<AppState>,
    BackEnd(caller): BackEnd,
    PathClaim(id): PathClaim,
) -> ApiResult {
    let claim = state.engine(&caller).confirm(id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &ClaimLookup { claim })
}

/// Gives a claim's units back.
#[utoipa::path(
    post, path = "/internal/v1/claims/{claim_id}/return", tag = "internal",
    params(("claim_id" = ClaimId, Path)),
    responses(
        (status = 200, description = "Returned; an expired claim stays as it is", body = ClaimLookup),
        (status = "default", description = "404 and other problems", body = ProblemFields),
    ),
)]
pub async fn return_units(
    State(state): State<AppState>,
    BackEnd(caller): BackEnd,
    PathClaim(id): PathClaim,
) -> ApiResult {
    let claim = state.engine(&caller).return_units(id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &ClaimLookup { claim })
}
