//! The feed: which claims have changed, for those who follow.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{CampaignId, Claim, Problem, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::engine::{Engine, EngineError};
use crate::http::error::ApiResult;
use crate::http::extract::{Viewer, json};
use crate::http::middleware::in_time;
use crate::http::paging::{page_size, parse_query};
use crate::http::peer::Peer;
use crate::http::state::AppState;
use crate::store::sql::{FeedCursor, FeedItem, FeedPage};

/// The longest that a call may wait for something to come, in seconds.
const WAIT_MAX_S: u32 = 30;

/// How long to wait before the feed is read again where what came was of other campaigns: commits are many.
const PAUSE: Duration = Duration::from_millis(100);

/// A part of the feed.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Changes {
    /// The claims that have changed, in the order of commits. None: there is nothing more yet.
    items: Vec<ChangedClaim>,
    /// The `after` of the next call.
    next_cursor: String,
}

/// A claim that has changed, as it stands.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct ChangedClaim {
    /// The place behind it: the `after` of a call that goes on from here.
    cursor: String,
    /// The claim.
    claim: Claim,
    /// Raised by every change of it.
    revision: u64,
    /// When it got its status.
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

/// Which part of the feed.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
struct ChangesQuery {
    /// The `next_cursor` of the call before, or the `cursor` of the last item read; from the beginning when left out.
    after: Option<String>,
    /// Of this campaign alone.
    #[param(value_type = Option<CampaignId>)]
    campaign_id: Option<String>,
    /// The most items of a page, 1 to 1000; 100 when left out.
    limit: Option<u32>,
    /// How long to wait for something to come, in seconds, 0 to 30; 0 when left out.
    wait_s: Option<u32>,
}

impl ChangesQuery {
    fn campaign(&self) -> Result<Option<CampaignId>, Problem> {
        let id = self.campaign_id.as_deref().map(str::parse).transpose();
        id.map_err(|why| Problem::invalid("campaign_id", why))
    }

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

/// Lists the claims that have changed, each as it stands, in the order in which SQL has committed them.
///
/// Each change is told at least once. A page may have fewer items than `limit` though there are more; it has none only where
/// nothing is left, after `wait_s`, or at once when the caller closes its side of the connection meanwhile.
#[utoipa::path(
    get, path = "/admin/v1/changes", tag = "admin", params(ChangesQuery),
    responses(
        (status = 200, description = "A page", body = Changes),
        (status = "default", description = "404 campaign_not_found, 410 cursor_invalid and other problems; \
            503 overloaded while as many wait as may", body = ProblemFields),
    ),
)]
pub async fn list(
    State(state): State<AppState>,
    Viewer(caller): Viewer,
    Extension(peer): Extension<Peer>,
    uri: Uri,
) -> ApiResult {
    let query: ChangesQuery = parse_query(&uri)?;
    let (limit, campaign) = (page_size(query.limit)?, query.campaign()?);
    let until = Instant::now() + query.wait()?;
    let after = query.after()?;
    let engine = state.engine(&caller);
    let mut pause = Duration::ZERO;
    loop {
        let page = engine.feed(campaign.as_ref(), after.as_ref(), limit);
        let page = in_time(async { Ok(page.await?) }).await?;
        let left = until.saturating_duration_since(Instant::now());
        if !page.items.is_empty() || left.is_zero() || !goes_on(engine, &peer, &page, left).await? {
            return json(StatusCode::OK, &Changes::from(page));
        }
        sleep(pause).await;
        pause = PAUSE;
    }
}

/// Waits until there may be something behind `page`, for `limit` at most; `false` when there is not, or the caller is gone, whose
/// place is for those who are there.
async fn goes_on(
    engine: &Engine,
    peer: &Peer,
    page: &FeedPage,
    limit: Duration,
) -> Result<bool, EngineError> {
    tokio::select! {
        goes_on = engine.feed_goes_on(page, limit) => goes_on,
        () = peer.closes() => Ok(false),
    }
}
