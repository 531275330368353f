//! The live stream of server-sent events, for the dashboard and other clients.

use claimgate_shared::admin::live::LiveSnapshot;
use std::convert::Infallible;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream, StreamExt as _};
use serde::Serialize;

use crate::credentials::{Caller, Role};
use crate::http::authorization::Viewer;
use crate::http::error::ApiError;
use crate::http::state::AppState;

/// The caller, as the first event describes it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Watcher {
    /// The name of the caller's token.
    name: String,
    /// `viewer`, `operator` or `admin`.
    role: &'static str,
    /// The version of this core.
    version: &'static str,
    /// Origin of the claim page; `null` if it is not configured.
    page_url: Option<String>,
}

/// Origin of the claim page, `http(s)://host[:port]`, which the admin listener passes to the dashboard.
#[derive(Debug, Clone)]
pub struct PageUrl(pub String);

impl Watcher {
    fn of(caller: &Caller, page_url: Option<String>) -> Self {
        let role = caller.role().unwrap_or(Role::Viewer);
        let version = env!("CARGO_PKG_VERSION");
        Self { name: caller.name().to_owned(), role: role.as_str(), version, page_url }
    }
}

/// Streams the state of campaigns, outbox, Redis, SQL and cores once a second, as server-sent events.
///
/// The first event, `watcher`, describes the caller, and `trends` has the last hour in this core's memory. Each
/// `snapshot` after them has the complete state. The stream ends when core stops, or when the caller's token is
/// no longer valid.
#[utoipa::path(
    get, path = "/admin/v1/live", tag = "admin", operation_id = "watchLive",
    responses(
        (status = 200, description = "Events: one `watcher`, one `trends`, then one `snapshot` a second with this as its `data`",
            body = LiveSnapshot, content_type = "text/event-stream"),
    ),
    security(("adminToken" = ["viewer"])),
)]
pub async fn watch(
    State(state): State<AppState>,
    Viewer(caller, _): Viewer,
    page_url: Option<Extension<PageUrl>>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let permit = state.watcher_permit()?;
    let watcher = event("watcher", &Watcher::of(&caller, page_url.map(|url| url.0.0)));
    let live = &state.engine(&caller).live;
    let (snapshots, trends) = (live.subscribe(), event("trends", &live.trends.last_hour()));
    let snapshots = stream::unfold((snapshots, state, headers, permit), |mut watch| async move {
        let snapshot = watch.0.next().await?;
        // The token may have been revoked since the stream began.
        watch.1.authenticator().admin(&watch.2, Role::Viewer).ok()?;
        Some((Event::default().event("snapshot").data(&*snapshot), watch))
    });
    Ok(Sse::new(stream::iter([watcher, trends].into_iter().flatten()).chain(snapshots).map(Ok)))
}

/// Returns an event; `None` if `data` cannot be serialized, which does not happen.
fn event(name: &str, data: &impl Serialize) -> Option<Event> {
    let event = Event::default().event(name).json_data(data);
    event.inspect_err(|error| tracing::error!(%error, "cannot serialize an event")).ok()
}
