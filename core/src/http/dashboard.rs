//! The dashboard: a page and its assets, embedded in this binary. It reads `/admin/v1/live` and makes
//! ordinary admin calls with the token that the user enters.

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::IntoResponse;
use axum::routing::get;

use super::state::AppState;

/// Allows only this origin's files, and nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the dashboard: its path, media type and content.
macro_rules! file {
    ($path:literal, $name:literal, $kind:literal) => {
        ($path, $kind, include_str!(concat!("../../dashboard/", $name)))
    };
}

const FILES: [(&str, &str, &str); 22] = [
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!("/favicon.svg", "favicon.svg", "image/svg+xml"),
    file!("/dashboard/page.css", "page.css", "text/css; charset=utf-8"),
    file!("/dashboard/page.js", "page.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/messages.js", "messages.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/display.js", "display.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/stream.js", "stream.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/campaigns.js", "campaigns.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/actions.js", "actions.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/calls.js", "calls.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/claims.js", "claims.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/codes.js", "codes.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/report.js", "report.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/fields.js", "fields.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/form.js", "form.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/history.js", "history.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/roles.js", "roles.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/folds.js", "folds.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/trends.js", "trends.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/charts.js", "charts.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/uPlot.iife.min.js", "uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/uPlot.min.css", "uPlot.min.css", "text/css; charset=utf-8"),
];

/// Returns the routes of the dashboard's files, which contain no secrets. The files are served even before
/// core is ready; the page then says so.
pub fn routes() -> Router<AppState> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { answer(kind, text) }))
    })
}

fn answer(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, POLICY), (REFERRER_POLICY, "no-referrer")];
    (headers, text)
}
