//! The description of both APIs, from the code that serves them.

use axum::http::StatusCode;
use utoipa::OpenApi;

use super::exchange::{Answer, json};
use super::{admin, claims};

#[derive(OpenApi)]
#[openapi(
    info(title = "claimgate core", description = "Decides claims, exactly up to their limits."),
    paths(
        claims::claim,
        claims::look_up,
        claims::confirm,
        claims::give_back,
        claims::campaign,
        admin::create,
        admin::list,
        admin::get,
        admin::update,
        admin::pause,
        admin::resume,
        admin::end,
        admin::warm_up,
        admin::compare,
        admin::repair,
        admin::claims,
    ),
    tags(
        (name = "internal", description = "For the edge (signed) and back ends (API token)"),
        (name = "admin", description = "For admins (admin token), on a listener of its own"),
    )
)]
struct Document;

pub(super) async fn document() -> Answer {
    json(StatusCode::OK, &Document::openapi())
}
