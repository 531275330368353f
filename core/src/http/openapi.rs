//! The description of both APIs, from the code that serves them.

use axum::http::StatusCode;
use utoipa::OpenApi;

use super::error::ApiResult;
use super::extract::json;
use super::routes::{admin_routes, internal_routes, waiting_routes};

#[derive(OpenApi)]
#[openapi(
    info(title = "claimgate core", description = "Decides claims, exactly up to their limits."),
    tags(
        (name = "internal", description = "For the edge (signed) and back ends (API token)"),
        (name = "admin", description = "For admins (tokens by role: viewer, operator, admin), on a listener of its own"),
        (name = "health", description = "For supervisors and balancers (no token), on both listeners"),
    ),
    paths(super::listeners::ready)
)]
struct Document;

pub(super) async fn document() -> ApiResult {
    let mut document = Document::openapi();
    document.merge(internal_routes().into_openapi());
    document.merge(admin_routes().into_openapi());
    document.merge(waiting_routes().into_openapi());
    json(StatusCode::OK, &document)
}
