//! All calls, by caller: the single list behind both the listeners and the OpenAPI document.

use axum::middleware::from_fn;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::middleware::limit_answer_time;
use super::state::AppState;
use super::{admin, internal};

/// Returns the calls of the edge and of back ends.
pub fn internal_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(internal::claims::look_up))
        .routes(routes!(internal::claims::confirm))
        .routes(routes!(internal::claims::extend))
        .routes(routes!(internal::claims::return_units))
        .routes(routes!(internal::campaigns::show))
        .routes(routes!(internal::users::show))
        .layer(from_fn(limit_answer_time))
        .routes(routes!(internal::claims::claim))
        .routes(routes!(internal::claim_batches::claim))
        .routes(routes!(internal::refusals::report))
}

/// Returns the calls of admins.
pub fn admin_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(admin::campaigns::list))
        .routes(routes!(admin::campaigns::show))
        .routes(routes!(admin::campaigns::pause))
        .routes(routes!(admin::campaigns::resume))
        .routes(routes!(admin::campaigns::end))
        .routes(routes!(admin::campaigns::archive))
        .routes(routes!(admin::campaigns::unarchive))
        .routes(routes!(admin::claims::list))
        .routes(routes!(admin::audit::list))
        .routes(routes!(admin::live::watch))
        .routes(routes!(admin::replication::accept_loss))
        .routes(routes!(admin::webhooks::show, admin::webhooks::delete))
        .routes(routes!(admin::webhooks::enable))
        .routes(routes!(admin::webhooks::rotate_secret))
        .routes(routes!(admin::webhooks::deliveries))
        .layer(from_fn(limit_answer_time))
        // These calls first wait for a body.
        .routes(routes!(admin::campaigns::create))
        .routes(routes!(admin::campaigns::update))
        .routes(routes!(admin::additions::add))
        .routes(routes!(admin::claims::return_units))
        .routes(routes!(admin::replication::show, admin::replication::change))
        .routes(routes!(admin::user_ids::show, admin::user_ids::change))
        .routes(routes!(admin::webhooks::list, admin::webhooks::create))
        // This call waits for the receiver.
        .routes(routes!(admin::webhooks::test))
        // These calls may read a whole campaign.
        .routes(routes!(admin::campaigns::warm_up))
        .routes(routes!(admin::imports::import))
        .routes(routes!(admin::codes::add, admin::codes::count))
        .routes(routes!(admin::report::show))
        .routes(routes!(admin::reconciliation::compare, admin::reconciliation::repair))
}

/// Returns the calls of admins that may wait long and therefore have separate permits.
pub fn long_poll_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(admin::feed::list))
}
