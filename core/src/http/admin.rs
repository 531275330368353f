//! Campaigns, for admins.

use axum::extract::{Query, Request, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode, Uri};
use claimgate_shared::campaign::Switch;
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{CampaignId, CampaignView, ClaimStatus, Code, Problem, Timestamp};
use serde::{Deserialize, Serialize};

use super::claims::{path_id, undecided};
use super::exchange::{Answer, in_time, json, read_json};
use super::export;
use crate::app::App;
use crate::archive::{Change, Changed, ClaimCursor, ClaimRow};
use crate::campaign::{Campaign, CampaignPatch, NewCampaign, day_text};
use crate::clock;
use crate::ledger::keys::Keys;
use crate::reconcile::Reconciliation;
use crate::recovery::{Recovered, RecoveryError};

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1000;

/// A campaign with what only admins see.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AdminView {
    /// What everybody sees.
    #[serde(flatten)]
    pub campaign: CampaignView,
    /// For how long claims are held before they must be confirmed; `null` grants at once.
    pub hold_seconds: Option<u32>,
    /// Whether claims can be decided; without it the counters are `null`, and so is `remaining`.
    pub ready: bool,
    /// Units taken.
    pub taken: Option<u64>,
    /// The last sequence given.
    pub sequence: Option<u64>,
    /// Raised by every rebuild of the counters.
    pub epoch: u64,
    /// Events that wait for SQL.
    pub backlog: Option<u64>,
}

/// A page of a list.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Page<T> {
    /// The page.
    pub items: Vec<T>,
    /// Where the next page begins; `null` on the last.
    pub next_cursor: Option<String>,
}

/// Which page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// At most so many, 1 to 1000; 100 when left out.
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

impl PageQuery {
    fn parse(uri: &Uri) -> Result<Self, Problem> {
        let Query(query) =
            Query::<Self>::try_from_uri(uri).map_err(|error| Problem::invalid("query", error.body_text()))?;
        Ok(query)
    }

    fn limit(&self) -> Result<u32, Problem> {
        match self.limit.unwrap_or(PAGE_DEFAULT) {
            limit @ 1..=PAGE_MAX => Ok(limit),
            _ => Err(Problem::invalid("limit", "must be from 1 to 1000")),
        }
    }
}

/// A claim in a list.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ClaimItem {
    /// The claim's id.
    pub id: String,
    /// Who claimed.
    pub user_id: String,
    /// Units.
    pub quantity: u32,
    /// Where it stands.
    pub status: ClaimStatus,
    /// Its place.
    pub sequence: u64,
    /// The calendar day it counts on, in the campaign's time zone.
    pub day: String,
    /// When it was decided.
    pub claimed_at: Timestamp,
    /// When it came to stand so.
    pub updated_at: Timestamp,
}

impl From<ClaimRow> for ClaimItem {
    fn from(row: ClaimRow) -> Self {
        Self {
            id: row.claim.id.to_string(),
            user_id: row.claim.user_id.to_string(),
            quantity: row.claim.quantity.get(),
            status: row.claim.status,
            sequence: row.claim.sequence,
            day: day_text(row.day),
            claimed_at: row.claim.claimed_at,
            updated_at: row.updated_at,
        }
    }
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
pub async fn create(State(app): State<App>, request: Request) -> Answer {
    let (parts, body) = read_json(request).await?;
    let campaign = NewCampaign::parse(&body)?;
    let caller = app.gatekeeper.admin(&parts.headers)?;
    let change = Change { who: caller.name(), what: "create", at: clock::now() };
    let id = campaign.id.clone();
    in_time(async {
        if is_of_another_register(&app, &id).await? {
            return Err(Problem::new(
                Code::CampaignExists,
                "Redis holds a campaign of this id that belongs to another register; it was left as it is",
            )
            .into());
        }
        let found = app.archive.create(&campaign, change).await.map_err(|error| app.sql_failed(&error))?;
        match found {
            None => {
                app.opened(campaign).await.map_err(|error| not_recovered(&app, &error))?;
                json(StatusCode::CREATED, &view(&app, id.as_str()).await?)
            }
            Some(found) if found.same_rules(&campaign) => {
                json(StatusCode::OK, &view(&app, id.as_str()).await?)
            }
            Some(_) => Err(Problem::new(Code::CampaignExists, "another campaign has this id").into()),
        }
    })
    .await
}

/// Whether Redis holds keys of a campaign that SQL does not know.
async fn is_of_another_register(app: &App, id: &CampaignId) -> Result<bool, Problem> {
    let keys = Keys::of(id);
    // SQL is asked last: another core may be creating the campaign at this moment.
    Ok(app.ledger.holds_any(&keys).await.map_err(|error| undecided(&error))?
        && app.archive.campaign(id).await.map_err(|error| app.sql_failed(&error))?.is_none())
}

/// Lists campaigns in the order of their ids.
#[utoipa::path(
    get, path = "/admin/v1/campaigns", tag = "admin", params(PageQuery),
    responses(
        (status = 200, description = "A page", body = Page<AdminView>),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn list(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    app.gatekeeper.admin(&headers)?;
    let query = PageQuery::parse(&uri)?;
    let limit = query.limit()?;
    let after = query.cursor.unwrap_or_default();
    let page = app.archive.campaigns(&after, limit).await.map_err(|error| app.sql_failed(&error))?;
    let next_cursor = page.last.filter(|_| page.is_full);
    let campaigns = page.campaigns;
    let mut items = Vec::with_capacity(campaigns.len());
    for campaign in campaigns {
        items.push(view(&app, campaign.id.as_str()).await?);
    }
    json(StatusCode::OK, &Page { items, next_cursor })
}

/// Shows a campaign with its live counters.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "The campaign", body = AdminView),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn get(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    app.gatekeeper.admin(&headers)?;
    json(StatusCode::OK, &view(&app, path_id(&uri)).await?)
}

/// Changes name, window or limits.
#[utoipa::path(
    patch, path = "/admin/v1/campaigns/{id}", tag = "admin", params(("id" = CampaignId, Path)),
    request_body = CampaignPatch,
    responses(
        (status = 200, description = "Changed; counts from the next decision on", body = AdminView),
        (status = "default", description = "409 version_conflict and other problems", body = ProblemFields),
    ),
)]
pub async fn update(State(app): State<App>, request: Request) -> Answer {
    let (parts, body) = read_json(request).await?;
    let patch = CampaignPatch::parse(&body)?;
    let caller = app.gatekeeper.admin(&parts.headers)?;
    in_time(async {
        let before = app.register(path_id(&parts.uri)).await?;
        if before.version != patch.version {
            return Err(conflict(&before).into());
        }
        let after = patch.apply(&before)?;
        change(&app, caller.name(), "update", &before, after).await
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
pub async fn pause(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    switch(&app, path_id(&uri), &headers, Switch::Paused, "pause").await
}

/// Lets claims in again.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/resume", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "On", body = AdminView),
        (status = "default", description = "409 campaign_ended and other problems", body = ProblemFields),
    ),
)]
pub async fn resume(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    switch(&app, path_id(&uri), &headers, Switch::On, "resume").await
}

/// Ends a campaign for good.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/end", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Ended", body = AdminView),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn end(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    switch(&app, path_id(&uri), &headers, Switch::Ended, "end").await
}

/// Makes sure that a campaign is ready: loads it from SQL if it is not.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/warm-up", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Ready", body = AdminView),
        (status = "default", description = "503 campaign_not_ready while another core is at it, and other problems", body = ProblemFields),
    ),
)]
pub async fn warm_up(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    app.gatekeeper.admin(&headers)?;
    let known = app.known_by_text(path_id(&uri)).await?;
    let recovered = app.recovery.look_after(&known).await;
    app.gate.changed(&known.campaign().id);
    match recovered.map_err(|error| not_recovered(&app, &error))? {
        Recovered::Ready | Recovered::Loaded(_) => json(StatusCode::OK, &view(&app, path_id(&uri)).await?),
        Recovered::Elsewhere => {
            Err(Problem::new(Code::CampaignNotReady, "another core is loading it").into())
        }
    }
}

/// Compares Redis and SQL; changes nothing.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}/reconciliation", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Both sides, and what differs", body = Reconciliation),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn compare(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    app.gatekeeper.admin(&headers)?;
    let known = app.known_by_text(path_id(&uri)).await?;
    let compared = app.reconciler().compare(&known).await.map_err(|error| not_recovered(&app, &error))?;
    json(StatusCode::OK, &compared)
}

/// Puts right what is safe to put right, and says what that was.
#[utoipa::path(
    post, path = "/admin/v1/campaigns/{id}/reconciliation", tag = "admin", params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "Both sides after the repair, and what was done", body = Reconciliation),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn repair(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    app.gatekeeper.admin(&headers)?;
    let known = app.known_by_text(path_id(&uri)).await?;
    let repaired = app.reconciler().repair(&known).await.map_err(|error| not_recovered(&app, &error))?;
    json(StatusCode::OK, &repaired)
}

fn not_recovered(app: &App, error: &RecoveryError) -> Problem {
    match error {
        RecoveryError::Archive(error) => app.sql_failed(error),
        RecoveryError::Ledger(error) => undecided(error),
        error => {
            tracing::warn!(%error, "not recovered");
            Problem::new(
                Code::CampaignNotReady,
                "the campaign cannot be loaded yet; it is tried again by itself",
            )
        }
    }
}

/// Lists a campaign's claims in the order of their sequence; `Accept: text/csv` streams all of them.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}/claims", tag = "admin",
    params(("id" = CampaignId, Path), PageQuery),
    responses(
        (status = 200, description = "A page as SQL has it", content(
            (Page<ClaimItem> = "application/json"), (String = "text/csv"),
        )),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn claims(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Answer {
    app.gatekeeper.admin(&headers)?;
    let campaign = app.register(path_id(&uri)).await?;
    let query = PageQuery::parse(&uri)?;
    let after = query
        .cursor
        .as_deref()
        .map_or_else(|| Ok(ClaimCursor::default()), str::parse)
        .map_err(|why| Problem::invalid("cursor", why))?;
    let limit = query.limit()?;
    if headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/csv"))
    {
        return Ok(export::csv(&app, campaign.id, after));
    }
    let page =
        app.archive.claims(&campaign.id, &after, limit).await.map_err(|error| app.sql_failed(&error))?;
    let items: Vec<ClaimItem> = page.rows.into_iter().map(ClaimItem::from).collect();
    json(StatusCode::OK, &Page { items, next_cursor: page.next.map(|next| next.to_string()) })
}

async fn switch(app: &App, id: &str, headers: &HeaderMap, to: Switch, what: &str) -> Answer {
    let caller = app.gatekeeper.admin(headers)?;
    let before = app.register(id).await?;
    if before.switch == Switch::Ended && to != Switch::Ended {
        return Err(Problem::new(Code::CampaignEnded, "an ended campaign stays ended").into());
    }
    let version = if before.switch == to { before.version } else { before.version + 1 };
    let after = Campaign { switch: to, version, ..before.clone() };
    change(app, caller.name(), what, &before, after).await
}

/// Writes a change to SQL, then to Redis, where it counts from the next decision on.
async fn change(app: &App, who: &str, what: &str, before: &Campaign, after: Campaign) -> Answer {
    let changed = if after.version == before.version {
        after
    } else {
        let change = Change { who, what, at: clock::now() };
        let written = app.archive.change(before.version, &after, change).await;
        match written.map_err(|error| app.sql_failed(&error))? {
            Some(Changed::Done(campaign)) => campaign,
            Some(Changed::Conflict(now)) => return Err(conflict(&now).into()),
            None => return Err(App::no_such_campaign().into()),
        }
    };
    let id = changed.id.clone();
    app.changed(changed).await.map_err(|error| undecided(&error))?;
    json(StatusCode::OK, &view(app, id.as_str()).await?)
}

fn conflict(now: &Campaign) -> Problem {
    let mut problem =
        Problem::new(Code::VersionConflict, format!("the campaign is at version {}", now.version));
    problem.members.version = Some(now.version);
    problem
}

/// The campaign with its live counters, or, while these cannot be had, without.
async fn view(app: &App, id: &str) -> Result<AdminView, Problem> {
    let known = app.known_by_text(id).await?;
    let counters = match app.find(&known, None).await {
        Ok((counters, _)) => Some(counters),
        Err(error) => {
            tracing::warn!(%error, campaign = id, "no live counters");
            None
        }
    };
    // Redis may already decide by rules that another core has set.
    let rules = app.at_least(&known, counters.map_or(0, |now| now.version)).await?;
    let mut campaign =
        rules.view(counters.map_or(0, |now| now.taken), counters.map_or_else(clock::now, |now| now.now));
    if counters.is_none() {
        campaign.remaining = None;
    }
    Ok(AdminView {
        campaign,
        hold_seconds: rules.hold_seconds.map(std::num::NonZeroU32::get),
        ready: counters.is_some(),
        taken: counters.map(|now| now.taken),
        sequence: counters.map(|now| now.sequence),
        epoch: rules.epoch,
        backlog: counters.map(|now| now.backlog),
    })
}
