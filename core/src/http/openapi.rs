//! The description of both APIs, from the code that serves them.

use axum::http::StatusCode;
use utoipa::OpenApi;

use super::error::ApiResult;
use super::extract::json;
use super::{admin, internal};

#[derive(OpenApi)]
#[openapi(
    info(title = "claimgate core", description = "Decides claims, exactly up to their limits."),
    paths(
        internal::claims::claim,
        internal::claims::look_up,
        internal::claims::confirm,
        internal::claims::return_units,
        internal::campaigns::show,
        admin::campaigns::create,
        admin::campaigns::list,
        admin::campaigns::show,
        admin::campaigns::update,
        admin::campaigns::pause,
        admin::campaigns::resume,
        admin::campaigns::end,
        admin::campaigns::warm_up,
        admin::reconciliation::compare,
        admin::reconciliation::repair,
        admin::claims::list,
    ),
    tags(
        (name = "internal", description = "For the edge (signed) and back ends (API token)"),
        (name = "admin", description = "For admins (admin token), on a listener of its own"),
    )
)]
struct Document;

pub(super) async fn document() -> ApiResult {
    json(StatusCode::OK, &Document::openapi())
}
