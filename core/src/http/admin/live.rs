//! What is going on, as server-sent events, for the dashboard and others.

use std::convert::Infallible;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use claimgate_shared::problem::ProblemFields;
use futures_util::stream::{self, Stream, StreamExt as _};
use serde::Serialize;

use crate::credentials::{Caller, Role};
use crate::engine::live_snapshot::LiveSnapshot;
use crate::http::error::ApiError;
use crate::http::extract::Viewer;
use crate::http::state::AppState;

/// Who is told: the first event.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Watcher {
    /// The name of the caller's token.
    name: String,
    /// `viewer`, `operator` or `admin`.
    role: &'static str,
    /// The version of this core.
    version: &'static str,
}

impl Watcher {
    fn of(caller: &Caller) -> Self {
        let role = caller.role().unwrap_or(Role::Viewer);
        let version = env!("CARGO_PKG_VERSION");
        Self { name: caller.name().to_owned(), role: role.as_str(), version }
    }
}

/// Tells once a second how campaigns, outbox, Redis, SQL and cores are, as server-sent events.
///
/// The first event, `watcher`, says who the caller is; each `snapshot` after it has all there is to tell. The stream ends
/// when core stops, and once the caller's token is none any more.
#[utoipa::path(
    get, path = "/admin/v1/live", tag = "admin",
    responses(
        (status = 200, description = "Events: one `watcher`, then a `snapshot` a second, whose `data` is this",
            body = LiveSnapshot, content_type = "text/event-stream"),
        (status = "default", description = "503 overloaded while as many watch as may, and other problems",
            body = ProblemFields),
    ),
)]
pub async fn watch(
    State(state): State<AppState>,
    Viewer(caller): Viewer,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let place = state.watcher_place()?;
    let first = Event::default().event("watcher").json_data(Watcher::of(&caller));
    let first = first.inspect_err(|error| tracing::error!(%error, "cannot write an event")).ok();
    let snapshots = state.engine(&caller).live.subscribe();
    let snapshots = stream::unfold((snapshots, state, headers, place), |mut watch| async move {
        let snapshot = watch.0.next().await?;
        // The token may have been withdrawn meanwhile.
        watch.1.authenticator().admin(&watch.2, Role::Viewer).ok()?;
        Some((Event::default().event("snapshot").data(&*snapshot), watch))
    });
    Ok(Sse::new(stream::iter(first).chain(snapshots).map(Ok)))
}
