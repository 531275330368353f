//! Claims, for the edge and for back ends.

use std::pin::pin;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use claimgate_shared::claim_request::{ClaimFields, ClaimLookup};
use claimgate_shared::{Attempt, Claim, ClaimId, ClaimReply, ClaimRequest, Outcome, ShownPass, http};

use crate::clock;
use crate::credentials::Caller;
use crate::http::authorization::{ApiCaller, BackEnd};
use crate::http::error::{ApiError, ApiResult, no_such_claim, unknown_outcome};
use crate::http::extract::{ClaimCall, PathClaim, REPLAYED, json};
use crate::http::state::AppState;

/// Time limit of a decision; the edge waits 2 s for core in total.
const DECISION_TIMEOUT: Duration = Duration::from_millis(1500);

/// Decides a claim.
#[utoipa::path(
    post, path = "/internal/v1/claims", tag = "internal", operation_id = "createClaim",
    params(
        ("Claimgate-Attempt" = Option<String>, Header,
            description = "`1` only on a claim's first try: core may then return `sold_out` from its cache"),
    ),
    request_body = ClaimFields,
    responses(
        (status = 201, description = "Granted, or held", body = ClaimReply),
        (status = 200, description = "A retry with the same key: the same claim in its current state", body = ClaimReply,
            headers(("Idempotent-Replayed" = String, description = "`true`"))),
    ),
    security(("apiToken" = []), ("adminToken" = ["admin"]), ("edgeSignature" = [])),
    extensions(("x-codes" = json!([
        "campaign_not_found", "not_started", "paused", "ended", "pass_required", "sold_out", "user_limit_reached",
        "user_daily_limit_reached", "quantity_out_of_range", "idempotency_key_reused",
        "campaign_not_ready", "user_ids_differ",
    ]))),
)]
pub async fn claim(State(state): State<AppState>, call: ClaimCall) -> ApiResult {
    answer(&state, call).await
}

/// Decides a claim, for any type of response body.
pub async fn answer<B: From<Vec<u8>>>(state: &AppState, call: ClaimCall) -> ApiResult<B> {
    let ClaimCall { caller, attempt, pass, request } = call;
    caller.may_act_for(&request.user_id)?;
    let (status, reply) = decide(state, &caller, &request, attempt, pass).await?;
    let mut response = json(status, &reply)?;
    if status == StatusCode::OK {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static(http::REPLAYED));
    }
    Ok(response)
}

/// Decides a claim: 201 for a new one, 200 for a replay. Counts a refused one.
pub(super) async fn decide(
    state: &AppState,
    caller: &Caller,
    request: &ClaimRequest,
    attempt: Attempt,
    pass: Option<ShownPass>,
) -> Result<(StatusCode, ClaimReply), ApiError> {
    let decided = decide_in_time(state, caller, request, attempt, pass).await;
    decided.inspect_err(|error| {
        let (code, _) = error.code_and_reason();
        state.engine(caller).refusals.count(&request.campaign_id, code);
    })
}

/// Decides a claim within [`DECISION_TIMEOUT`].
async fn decide_in_time(
    state: &AppState,
    caller: &Caller,
    request: &ClaimRequest,
    attempt: Attempt,
    pass: Option<ShownPass>,
) -> Result<(StatusCode, ClaimReply), ApiError> {
    let decided = pin!(state.engine(caller).claims.claim(request, attempt, pass, caller.user_ids()));
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

/// Reads a claim.
#[utoipa::path(
    get, path = "/internal/v1/claims/{claim_id}", tag = "internal", operation_id = "getClaim",
    params(("claim_id" = ClaimId, Path)),
    responses(
        (status = 200, description = "The claim in its current state, and whether SQL has stored that state", body = ClaimLookup),
    ),
    security(("apiToken" = []), ("adminToken" = ["viewer"]), ("edgeSignature" = [])),
    extensions(("x-codes" = json!(["claim_not_found", "campaign_not_ready", "user_ids_differ"]))),
)]
pub async fn look_up(ApiCaller(caller, engine): ApiCaller, PathClaim(id): PathClaim) -> ApiResult {
    // A missing claim and another user's claim get the same response.
    caller.may_act_for(&id.user).map_err(|_| no_such_claim())?;
    engine.user_ids.check_read(caller.user_ids())?;
    let mut claim = engine.claims.look_up(id).await?;
    show_codes_to(&caller, [&mut claim]);
    json(StatusCode::OK, &ClaimLookup { claim })
}

/// Empties the codes of `claims`, unless the caller may read codes.
pub(super) fn show_codes_to<'a>(caller: &Caller, claims: impl IntoIterator<Item = &'a mut Claim>) {
    if !caller.may_read_codes() {
        claims.into_iter().filter_map(|claim| claim.codes.as_mut()).for_each(Vec::clear);
    }
}

/// Confirms a held claim.
#[utoipa::path(
    post, path = "/internal/v1/claims/{claim_id}/confirm", tag = "internal", operation_id = "confirmClaim",
    params(("claim_id" = ClaimId, Path)),
    responses((status = 200, description = "Granted", body = ClaimLookup)),
    security(("apiToken" = []), ("adminToken" = ["operator"])),
    extensions(("x-codes" = json!([
        "claim_not_found", "claim_expired", "claim_returned", "claim_revoked", "campaign_not_ready",
    ]))),
)]
pub async fn confirm(BackEnd(caller, engine): BackEnd, PathClaim(id): PathClaim) -> ApiResult {
    let claim = engine.claims.confirm(id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &ClaimLookup { claim })
}

/// Extends the hold of a claim to `hold_seconds` from now.
#[utoipa::path(
    post, path = "/internal/v1/claims/{claim_id}/extend", tag = "internal", operation_id = "extendClaim",
    params(("claim_id" = ClaimId, Path)),
    responses((
        status = 200,
        description = "Held until `expires_at`, which is unchanged if less than 10 s would be gained; a granted claim is unchanged",
        body = ClaimLookup,
    )),
    security(("apiToken" = []), ("adminToken" = ["operator"])),
    extensions(("x-codes" = json!([
        "claim_not_found", "claim_expired", "claim_returned", "claim_revoked", "hold_extended_too_often",
        "campaign_not_ready",
    ]))),
)]
pub async fn extend(BackEnd(caller, engine): BackEnd, PathClaim(id): PathClaim) -> ApiResult {
    let claim = engine.claims.extend(id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &ClaimLookup { claim })
}

/// Returns a claim's units.
#[utoipa::path(
    post, path = "/internal/v1/claims/{claim_id}/return", tag = "internal", operation_id = "returnClaim",
    params(("claim_id" = ClaimId, Path)),
    responses((status = 200, description = "Returned; an expired claim is unchanged", body = ClaimLookup)),
    security(("apiToken" = []), ("adminToken" = ["operator"])),
    extensions(("x-codes" = json!(["claim_not_found", "claim_revoked", "campaign_not_ready"]))),
)]
pub async fn return_units(BackEnd(caller, engine): BackEnd, PathClaim(id): PathClaim) -> ApiResult {
    let claim = engine.claims.return_units(id, caller.name().into(), clock::now()).await?;
    json(StatusCode::OK, &ClaimLookup { claim })
}
