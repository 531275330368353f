//! The dashboard: a page and its parts, all of them in this binary. It reads `/admin/v1/live` and makes the calls that
//! any admin may make, with the token that it is given.

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::IntoResponse;
use axum::routing::get;

use super::state::AppState;

/// Nothing of others, and nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the dashboard: its path, its type, and what is in it.
macro_rules! file {
    ($path:literal, $name:literal, $kind:literal) => {
        ($path, $kind, include_str!(concat!("../../dashboard/", $name)))
    };
}

const FILES: [(&str, &str, &str); 12] = [
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!("/favicon.svg", "favicon.svg", "image/svg+xml"),
    file!("/dashboard/page.css", "page.css", "text/css; charset=utf-8"),
    file!("/dashboard/page.js", "page.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/messages.js", "messages.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/texts.js", "texts.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/stream.js", "stream.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/campaigns.js", "campaigns.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/actions.js", "actions.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/charts.js", "charts.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/uPlot.iife.min.js", "uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    file!("/dashboard/uPlot.min.css", "uPlot.min.css", "text/css; charset=utf-8"),
];

/// The dashboard's files. They hold nothing secret, and are there before core serves: the page says so then.
pub fn routes() -> Router<AppState> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { answer(kind, text) }))
    })
}

fn answer(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, POLICY), (REFERRER_POLICY, "no-referrer")];
    (headers, text)
}
