//! Campaigns, for admins.

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use claimgate_shared::CampaignId;
use claimgate_shared::admin::{AdminView, Page};
use claimgate_shared::campaign::AdminState;
use claimgate_shared::problem::ProblemFields;

use crate::clock;
use crate::credentials::Caller;
use crate::domain::campaign::Campaign;
use crate::domain::campaign_change::{CampaignPatch, NewCampaign};
use crate::engine::{CampaignStatus, Created};
use crate::http::error::ApiResult;
use crate::http::extract::{Admin, Operator, PathCampaign, Viewer, WithBody, json};
use crate::http::middleware::in_time;
use crate::http::paging::PageQuery;
use crate::http::state::AppState;
use crate::store::sql::Change;

/// What admins see of a campaign.
fn view(status: CampaignStatus) -> AdminView {
    let CampaignStatus { campaign: rules, counters } = status;
    let (taken, now) = counters.map_or_else(|| (0, clock::now()), |now| (now.taken, now.now));
    let mut campaign = rules.view(taken, now);
    if counters.is_none() {
        campaign.remaining = None;
    }
    AdminView {
        campaign,
        hold_seconds: rules.hold_seconds.map(std::num::NonZeroU32::get),
        ready: counters.is_some(),
        taken: counters.map(|now| now.taken),
        sequence: counters.map(|now| now.sequence),
        epoch: rules.epoch.get(),
        backlog: counters.map(|now| now.backlog),
        import_unfinished: rules.unfinished_import.is_some(),
    }
}

/// Answers with the campaign as it is now.
pub(super) async fn answer(
    state: &AppState,
    caller: &Caller,
    status: StatusCode,
    id: &CampaignId,
) -> ApiResult {
    json(status, &view(state.engine(caller).status(id).await?))
}

/// Creates a campaign.
#[utoipa::path(
    post, path = "/admin/v1/campaigns", tag = "admin", request_body = NewCampaign,
    responses(
        (status = 201, description = "Created", body = AdminView),
        (status = 200, description = "An identical one exists", body = AdminView),
        (status = "default", description = "409 campaign_exists and other problems", body = ProblemFields),
    ),
)]
pub async fn create(
    State(state): State<AppState>,
    WithBody(Admin(caller), campaign): WithBody<Admin, Campaign>,
) -> ApiResult {
    let id = campaign.id.clone();
    in_time(async {
        let created = state.engine(&caller).create(campaign, caller.name(), clock::now()).await?;
        let status = if created == Created::New { StatusCode::CREATED } else { StatusCode::OK };
        answer(&state, &caller, status, &id).await
    })
    .await
}

/// Lists campaigns in the order of their ids.
#[utoipa::path(
    get, path = "/admin/v1/campaigns", tag = "admin", params(PageQuery),
    responses(
        (status = 200, description = "A page", body = Page<AdminView>),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn list(State(state): State<AppState>, Viewer(caller): Viewer, uri: Uri) -> ApiResult {
    let query = PageQuery::parse(&uri)?;
    let limit = query.limit()?;
    let page = state.engine(&caller).list(&query.cursor.unwrap_or_default(), limit).await?;
    let items: Vec<_> = page.items.into_iter().map(view).collect();
    json(StatusCode::OK, &Page { items, next_cursor: page.next_cursor })
}

/// Shows a campaign with its live counters.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "The campaign", body = AdminView),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn show(
    State(state): State<AppState>,
    Viewer(caller): Viewer,
    PathCampaign(id): PathCampaign,
) -> ApiResult {
    answer(&state, &caller, StatusCode::OK, &id).await
}

/// Changes name, window, limits or hold.
#[utoipa::path(
    patch, path = "/admin/v1/campaigns/{id}", tag = "admin", params(("id" = CampaignId, Path)),
    request_body = CampaignPatch,
    responses(
        (status = 200, description = "Changed; counts from the next decision on", body = AdminView),
        (status = "default", description = "409 version_conflict and other problems", body = ProblemFields),
    ),
)]
pub async fn update(
    State(state): State<AppState>,
    PathCampaign(id): PathCampaign,
    WithBody(Admin(caller), patch): WithBody<Admin, CampaignPatch>,
) -> ApiResult {
    in_time(async {
        state.engine(&caller).update(&id, patch, caller.name(), clock::now()).await?;
        answer(&state, &caller, StatusCode::OK, &id).await
    })
    .await
}

/// Stops claims until resumed.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/pause", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Paused", body = AdminView),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn pause(
    State(state): State<AppState>,
    Operator(caller): Operator,
    PathCampaign(id): PathCampaign,
) -> ApiResult {
    set_admin_state(&state, &caller, &id, AdminState::Paused, "pause").await
}

/// Lets claims in again.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/resume", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "On", body = AdminView),
        (status = "default", description = "409 campaign_ended and other problems", body = ProblemFields),
    ),
)]
pub async fn resume(
    State(state): State<AppState>,
    Operator(caller): Operator,
    PathCampaign(id): PathCampaign,
) -> ApiResult {
    set_admin_state(&state, &caller, &id, AdminState::On, "resume").await
}

/// Ends a campaign for good.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/end", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Ended", body = AdminView),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn end(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathCampaign(id): PathCampaign,
) -> ApiResult {
    set_admin_state(&state, &caller, &id, AdminState::Ended, "end").await
}

/// Makes sure that a campaign is ready: loads it from SQL if it is not.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/warm-up", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Ready", body = AdminView),
        (status = "default", description = "503 campaign_not_ready while another core is at it, and other problems", body = ProblemFields),
    ),
)]
pub async fn warm_up(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathCampaign(id): PathCampaign,
) -> ApiResult {
    state.engine(&caller).warm_up(&id).await?;
    answer(&state, &caller, StatusCode::OK, &id).await
}

async fn set_admin_state(
    state: &AppState,
    caller: &Caller,
    id: &CampaignId,
    to: AdminState,
    what: &str,
) -> ApiResult {
    let change = Change { who: caller.name(), what, at: clock::now() };
    state.engine(caller).set_admin_state(id, to, change).await?;
    answer(state, caller, StatusCode::OK, id).await
}
