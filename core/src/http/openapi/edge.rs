//! The edge's calls. The edge is a separate program: these functions only declare its contract for the
//! description, which schemathesis checks against a running edge.
#![expect(dead_code, reason = "utoipa describes functions; these have no other use")]

use claimgate_shared::challenge::{Challenge, PassReply, SolvedChallenge};
use claimgate_shared::claim_request::{ClaimLookup, OwnClaimFields};
use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{CampaignId, CampaignView, ClaimId, ClaimReply, IdempotencyKey};

/// Shows a campaign.
#[utoipa::path(
    get, path = "/v1/campaigns/{id}", tag = "edge", operation_id = "getPublicCampaign",
    params(
        ("id" = CampaignId, Path),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of an earlier response"),
    ),
    responses(
        (status = 200, description = "The campaign", body = CampaignView,
            headers(("ETag" = String, description = "Covers everything but `server_time`"))),
        (status = 304, description = "Unchanged since the response with that `ETag`"),
    ),
    extensions(("x-codes" = json!([
        "campaign_not_found", "rate_limited", "campaign_not_ready", "overloaded", "unavailable",
    ]))),
)]
pub(super) fn view_campaign() {}

/// Makes a claim for the user of the token.
#[utoipa::path(
    post, path = "/v1/campaigns/{id}/claims", tag = "edge", operation_id = "createOwnClaim",
    params(
        ("id" = CampaignId, Path),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header,
            description = "The same for every retry; without it each request is a new claim"),
        ("Claimgate-Attempt" = Option<String>, Header,
            description = "`1` only on a claim's first try: edge and core may then reject it from their caches"),
        ("Claimgate-Pass" = Option<String>, Header,
            description = "The user's pass, if the campaign requires one; an invalid pass is ignored, as if no pass was sent"),
    ),
    request_body = OwnClaimFields,
    responses(
        (status = 201, description = "Granted, or held", body = ClaimReply),
        (status = 200, description = "A retry with the same key: the same claim in its current state", body = ClaimReply,
            headers(("Idempotent-Replayed" = String, description = "`true`"))),
    ),
    security(("userToken" = [])),
    extensions(("x-codes" = json!([
        "campaign_not_found", "not_started", "paused", "ended", "pass_required", "sold_out", "user_limit_reached",
        "user_daily_limit_reached", "quantity_out_of_range", "idempotency_key_reused", "rate_limited",
        "campaign_not_ready", "user_ids_differ",
    ]))),
)]
pub(super) fn create_claim() {}

/// Lists the caller's own claims, newest first, with the caller's allowance.
#[utoipa::path(
    get, path = "/v1/campaigns/{id}/claims", tag = "edge", operation_id = "listOwnClaims",
    params(
        ("id" = CampaignId, Path),
        ("limit" = Option<u32>, Query, description = "The maximum number of items on a page.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page.",
            pattern = r"^[0-9]{1,19}\.[A-Za-z0-9_-]{21}[AQgw]$"),
    ),
    responses((status = 200, description = "A page of claims, and the allowance", body = UserClaims)),
    security(("userToken" = [])),
    extensions(("x-codes" = json!(["campaign_not_found", "rate_limited", "campaign_not_ready", "user_ids_differ"]))),
)]
pub(super) fn list_claims() {}

/// Issues a challenge for the caller: who solves it gets a pass for the campaign.
#[utoipa::path(
    get, path = "/v1/campaigns/{id}/challenge", tag = "edge", operation_id = "getChallenge",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "A challenge of this edge's kind", body = Challenge)),
    security(("userToken" = [])),
    extensions(("x-codes" = json!(["not_found", "campaign_not_found", "rate_limited"]))),
)]
pub(super) fn get_challenge() {}

/// Gives the caller a pass for a solved challenge.
#[utoipa::path(
    post, path = "/v1/campaigns/{id}/pass", tag = "edge", operation_id = "createPass",
    params(("id" = CampaignId, Path)),
    request_body = SolvedChallenge,
    responses((status = 200, description = "A pass of the caller for this campaign", body = PassReply)),
    security(("userToken" = [])),
    extensions(("x-codes" = json!(["not_found", "campaign_not_found", "challenge_failed", "rate_limited"]))),
)]
pub(super) fn create_pass() {}

/// Reads one of the caller's claims.
#[utoipa::path(
    get, path = "/v1/claims/{claim_id}", tag = "edge", operation_id = "getOwnClaim",
    params(("claim_id" = ClaimId, Path)),
    responses(
        (status = 200, description = "The claim in its current state, and whether SQL has stored that state", body = ClaimLookup),
    ),
    security(("userToken" = [])),
    extensions(("x-codes" = json!(["claim_not_found", "rate_limited", "campaign_not_ready", "user_ids_differ"]))),
)]
pub(super) fn get_claim() {}
