//! The feed of changed claims.

use std::time::Duration;

use axum::Extension;
use axum::http::{StatusCode, Uri};
use claimgate_shared::{CampaignId, Claim, Problem, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::clock;
use crate::credentials::Role;
use crate::engine::{Engine, EngineError};
use crate::http::authorization::Viewer;
use crate::http::error::ApiResult;
use crate::http::extract::json;
use crate::http::middleware::in_time;
use crate::http::paging::{optional, page_size, parse_query};
use crate::http::peer::Peer;
use crate::store::sql::{FeedCursor, FeedItem, FeedPage};

/// Maximum time that a call may wait for a change, in seconds.
const WAIT_MAX_S: u32 = 30;

/// Pause before rereading the feed after a commit to a different campaign; commits are frequent.
const REREAD_PAUSE: Duration = Duration::from_millis(100);

/// A part of the feed.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Changes {
    /// The changed claims, in commit order; empty if there are no further changes yet.
    items: Vec<ChangedClaim>,
    /// The value of `after` for the next call.
    next_cursor: String,
}

/// A changed claim, in its current state.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct ChangedClaim {
    /// The cursor after this item: the value of `after` to continue from here.
    cursor: String,
    /// The claim.
    claim: Claim,
    /// Incremented by every change to the claim.
    revision: u64,
    /// When the claim entered its current status.
    updated_at: Timestamp,
}

impl From<FeedPage> for Changes {
    fn from(page: FeedPage) -> Self {
        Self {
            items: page.items.into_iter().map(ChangedClaim::from).collect(),
            next_cursor: page.next.to_string(),
        }
    }
}

impl From<FeedItem> for ChangedClaim {
    fn from(FeedItem { cursor, row }: FeedItem) -> Self {
        let (revision, updated_at) = (row.revision, row.updated_at);
        Self { cursor: cursor.to_string(), claim: row.claim, revision, updated_at }
    }
}

/// The query parameters of the feed.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct ChangesQuery {
    /// The `next_cursor` of the previous call, or the `cursor` of the last item read; if absent, reads from
    /// the beginning.
    #[param(
        pattern = r"^1\.[A-Za-z0-9_-]{1,64}\.(0|[1-9][0-9]{0,18}\.[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{21}[AQgw])$"
    )]
    after: Option<String>,
    /// Only this campaign.
    #[param(value_type = Option<CampaignId>)]
    campaign_id: Option<String>,
    /// The maximum number of items on a page.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// Timeout of the wait for a change, in seconds.
    #[param(minimum = 0, maximum = 30, default = 0)]
    wait_s: Option<u32>,
    /// With the codes of the claims that have them by now. Needs the role admin. The audit records pages with codes.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    codes: bool,
}

impl ChangesQuery {
    fn after(&self) -> Result<Option<FeedCursor>, EngineError> {
        self.after.as_deref().map(str::parse).transpose().map_err(|_| EngineError::CursorInvalid)
    }

    fn wait(&self) -> Result<Duration, Problem> {
        match self.wait_s.unwrap_or(0) {
            seconds @ 0..=WAIT_MAX_S => Ok(Duration::from_secs(seconds.into())),
            _ => Err(Problem::invalid("wait_s", "must be from 0 to 30")),
        }
    }
}

/// Lists changed claims in their current state, in the order in which SQL committed the changes.
///
/// Each change is delivered at least once. A page may have fewer items than `limit` although more follow. A
/// page is empty only if there is no change within `wait_s`, or if the caller closes its side of the
/// connection while waiting.
#[utoipa::path(
    get, path = "/admin/v1/changes", tag = "admin", operation_id = "listChanges", params(ChangesQuery),
    responses((status = 200, description = "A page", body = Changes)),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["campaign_not_found", "cursor_invalid"]))),
)]
pub async fn list(Viewer(caller, engine): Viewer, Extension(peer): Extension<Peer>, uri: Uri) -> ApiResult {
    let query: ChangesQuery = parse_query(&uri)?;
    let limit = page_size(query.limit)?;
    let campaign: Option<CampaignId> = optional("campaign_id", query.campaign_id.as_deref())?;
    let until = Instant::now() + query.wait()?;
    let after = query.after()?;
    let codes_reader = if query.codes { Some(caller.with_role(Role::Admin)?) } else { None };
    let mut pause = Duration::ZERO;
    loop {
        let page = engine.feed.read(campaign.as_ref(), after.as_ref(), limit);
        let mut page = in_time(async { Ok(page.await?) }).await?;
        let left = until.saturating_duration_since(Instant::now());
        if !page.items.is_empty() || left.is_zero() || !has_more(&engine, &peer, &page, left).await? {
            if let Some(reader) = &codes_reader {
                add_codes(&engine, &mut page).await?;
                // The entry precedes the response. Empty pages get none: a follower reads thousands of them a day.
                if has_codes(&page) {
                    engine.claims.audit_codes_read(campaign.as_ref(), reader.name(), clock::now()).await?;
                }
            }
            return json(StatusCode::OK, &Changes::from(page));
        }
        sleep(pause).await;
        pause = REREAD_PAUSE;
    }
}

/// Adds the codes to the granted claims of `page`.
async fn add_codes(engine: &Engine, page: &mut FeedPage) -> Result<(), EngineError> {
    for of_campaign in
        page.items.chunk_by_mut(|one, next| one.row.claim.campaign_id == next.row.claim.campaign_id)
    {
        let id = of_campaign[0].row.claim.campaign_id.clone();
        let rows = of_campaign.iter_mut().map(|item| &mut item.row).collect();
        engine.claims.add_codes_to_rows(&id, rows).await?;
    }
    Ok(())
}

/// Returns whether `page` shows any code.
fn has_codes(page: &FeedPage) -> bool {
    page.items.iter().any(|item| item.row.claim.codes.as_ref().is_some_and(|codes| !codes.is_empty()))
}

/// Waits up to `limit` until there may be entries after `page`. Returns `false` on timeout, or if the caller
/// has disconnected, so that its permit becomes free.
async fn has_more(
    engine: &Engine,
    peer: &Peer,
    page: &FeedPage,
    limit: Duration,
) -> Result<bool, EngineError> {
    tokio::select! {
        has_more = engine.feed.wait_for_more(page, limit) => has_more,
        () = peer.closes() => Ok(false),
    }
}
