//! Campaigns, for admins.

use axum::http::{HeaderValue, StatusCode, Uri};
use claimgate_shared::admin::{AdminView, Page};
use claimgate_shared::campaign::AdminState;
use claimgate_shared::{CampaignId, Problem, http};

use crate::clock;
use crate::credentials::Caller;
use crate::domain::campaign_change::{CampaignPatch, NewCampaign};
use crate::engine::Engine;
use crate::engine::campaign_changes::Created;
use crate::engine::campaigns::CampaignStatus;
use crate::http::authorization::{Admin, Operator, Viewer};
use crate::http::error::ApiResult;
use crate::http::extract::{PathCampaign, REPLAYED, WithBody, json};
use crate::http::middleware::in_time;
use crate::http::paging::{PageQuery, page_size, parse_query};
use crate::store::sql::Change;

fn view(status: CampaignStatus) -> AdminView {
    let CampaignStatus { campaign: rules, counters, archive_mark } = status;
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
        archived: archive_mark && rules.ended_at(now).is_some(),
    }
}

/// Returns the campaign's current state with `status`.
pub(super) async fn answer(engine: &Engine, status: StatusCode, id: &CampaignId) -> ApiResult {
    json(status, &view(engine.campaigns.status(id).await?))
}

/// Creates a campaign.
#[utoipa::path(
    post, path = "/admin/v1/campaigns", tag = "admin", operation_id = "createCampaign",
    request_body = NewCampaign,
    responses(
        (status = 201, description = "Created", body = AdminView),
        (status = 200, description = "An identical campaign exists; with `Idempotent-Replayed`", body = AdminView),
    ),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_exists", "codes_missing", "campaign_not_ready"]))),
)]
pub async fn create(WithBody(Admin(caller, engine), new): WithBody<Admin, NewCampaign>) -> ApiResult {
    let id = new.id().clone();
    in_time(async {
        if engine.changes.create(new, caller.name(), clock::now()).await? == Created::New {
            return answer(&engine, StatusCode::CREATED, &id).await;
        }
        let mut response = answer(&engine, StatusCode::OK, &id).await?;
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static(http::REPLAYED));
        Ok(response)
    })
    .await
}

/// Lists campaigns in the order of their ids.
#[utoipa::path(
    get, path = "/admin/v1/campaigns", tag = "admin", operation_id = "listCampaigns",
    params(
        ("limit" = Option<u32>, Query, description = "The maximum number of items on a page.", minimum = 1, maximum = 1000),
        ("cursor" = Option<CampaignId>, Query, description = "The `next_cursor` of the previous page."),
    ),
    responses((status = 200, description = "A page", body = Page<AdminView>)),
    security(("adminToken" = ["viewer"])),
)]
pub async fn list(Viewer(_, engine): Viewer, uri: Uri) -> ApiResult {
    let query: PageQuery = parse_query(&uri)?;
    let limit = page_size(query.limit)?;
    // The cursor is the id of the last campaign on the previous page.
    let after = query.cursor.as_deref().map(str::parse::<CampaignId>).transpose();
    let after =
        after.map_err(|_| Problem::invalid("cursor", "must be the next_cursor of a page of this list"))?;
    let page = engine.campaigns.list(after.as_ref().map_or("", CampaignId::as_str), limit).await?;
    let items: Vec<_> = page.items.into_iter().map(view).collect();
    json(StatusCode::OK, &Page { items, next_cursor: page.next_cursor })
}

/// Shows a campaign with its live counters.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}", tag = "admin", operation_id = "getCampaign",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "The campaign", body = AdminView)),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["campaign_not_found"]))),
)]
pub async fn show(Viewer(_, engine): Viewer, PathCampaign(id): PathCampaign) -> ApiResult {
    answer(&engine, StatusCode::OK, &id).await
}

/// Changes a campaign's name, window, limits or hold.
#[utoipa::path(
    patch, path = "/admin/v1/campaigns/{id}", tag = "admin", operation_id = "updateCampaign",
    params(("id" = CampaignId, Path)),
    request_body = CampaignPatch,
    responses((status = 200, description = "Changed, in force from the next decision on", body = AdminView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!([
        "campaign_not_found", "version_conflict", "campaign_ended", "import_unfinished", "codes_missing",
        "campaign_not_ready",
    ]))),
)]
pub async fn update(
    PathCampaign(id): PathCampaign,
    WithBody(Admin(caller, engine), patch): WithBody<Admin, CampaignPatch>,
) -> ApiResult {
    in_time(async {
        engine.changes.update(&id, patch, caller.name(), clock::now()).await?;
        answer(&engine, StatusCode::OK, &id).await
    })
    .await
}

/// Pauses a campaign: claims are denied until it is resumed.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/pause", tag = "admin", operation_id = "pauseCampaign",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "Paused", body = AdminView)),
    security(("adminToken" = ["operator"])),
    extensions(("x-codes" = json!(["campaign_not_found", "campaign_ended", "campaign_not_ready"]))),
)]
pub async fn pause(Operator(caller, engine): Operator, PathCampaign(id): PathCampaign) -> ApiResult {
    set_admin_state(&engine, &caller, &id, AdminState::Paused, "pause").await
}

/// Resumes a paused campaign.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/resume", tag = "admin", operation_id = "resumeCampaign",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "On", body = AdminView)),
    security(("adminToken" = ["operator"])),
    extensions(("x-codes" = json!([
        "campaign_not_found", "campaign_ended", "import_unfinished", "campaign_not_ready",
    ]))),
)]
pub async fn resume(Operator(caller, engine): Operator, PathCampaign(id): PathCampaign) -> ApiResult {
    set_admin_state(&engine, &caller, &id, AdminState::On, "resume").await
}

/// Ends a campaign permanently.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/end", tag = "admin", operation_id = "endCampaign",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "Ended", body = AdminView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_not_found", "campaign_not_ready"]))),
)]
pub async fn end(Admin(caller, engine): Admin, PathCampaign(id): PathCampaign) -> ApiResult {
    set_admin_state(&engine, &caller, &id, AdminState::Ended, "end").await
}

/// Archives an ended campaign: lists for people leave it out. It keeps its claims, and can be read by its id.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/archive", tag = "admin", operation_id = "archiveCampaign",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "Archived", body = AdminView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_not_found", "campaign_open"]))),
)]
pub async fn archive(Admin(caller, engine): Admin, PathCampaign(id): PathCampaign) -> ApiResult {
    set_archived(&engine, &caller, &id, true, "archive").await
}

/// Lists an archived campaign again.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/unarchive", tag = "admin", operation_id = "unarchiveCampaign",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "Not archived", body = AdminView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_not_found"]))),
)]
pub async fn unarchive(Admin(caller, engine): Admin, PathCampaign(id): PathCampaign) -> ApiResult {
    set_archived(&engine, &caller, &id, false, "unarchive").await
}

async fn set_archived(
    engine: &Engine,
    caller: &Caller,
    id: &CampaignId,
    archived: bool,
    what: &str,
) -> ApiResult {
    let change = Change { who: caller.name(), what, at: clock::now() };
    engine.changes.set_archived(id, archived, change).await?;
    answer(engine, StatusCode::OK, id).await
}

/// Loads a campaign from SQL unless it is ready already.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/warm-up", tag = "admin", operation_id = "warmUpCampaign",
    params(("id" = CampaignId, Path)),
    responses((status = 200, description = "Ready", body = AdminView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_not_found", "import_unfinished", "campaign_not_ready"]))),
)]
pub async fn warm_up(Admin(_, engine): Admin, PathCampaign(id): PathCampaign) -> ApiResult {
    engine.changes.warm_up(&id).await?;
    answer(&engine, StatusCode::OK, &id).await
}

async fn set_admin_state(
    engine: &Engine,
    caller: &Caller,
    id: &CampaignId,
    to: AdminState,
    what: &str,
) -> ApiResult {
    let change = Change { who: caller.name(), what, at: clock::now() };
    engine.changes.set_admin_state(id, to, change).await?;
    answer(engine, StatusCode::OK, id).await
}
