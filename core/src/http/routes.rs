//! Every call, by who makes it: the one list of which both the listeners and the OpenAPI document are made.

use axum::middleware::from_fn;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::middleware::answered_in_time;
use super::state::AppState;
use super::{admin, internal};

/// Calls of the edge and of back ends.
pub fn internal_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(internal::claims::look_up))
        .routes(routes!(internal::claims::confirm))
        .routes(routes!(internal::claims::return_units))
        .routes(routes!(internal::campaigns::show))
        .routes(routes!(internal::users::show))
        .layer(from_fn(answered_in_time))
        .routes(routes!(internal::claims::claim))
        .routes(routes!(internal::claim_batches::claim))
}

/// Calls of admins.
pub fn admin_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(admin::campaigns::list))
        .routes(routes!(admin::campaigns::show))
        .routes(routes!(admin::campaigns::pause))
        .routes(routes!(admin::campaigns::resume))
        .routes(routes!(admin::campaigns::end))
        .routes(routes!(admin::claims::list))
        .routes(routes!(admin::audit::list))
        .routes(routes!(admin::live::watch))
        .routes(routes!(admin::replication::accept_loss))
        .routes(routes!(admin::webhooks::show, admin::webhooks::delete))
        .routes(routes!(admin::webhooks::enable))
        .routes(routes!(admin::webhooks::rotate_secret))
        .routes(routes!(admin::webhooks::deliveries))
        .layer(from_fn(answered_in_time))
        // These have a body to wait for first.
        .routes(routes!(admin::campaigns::create))
        .routes(routes!(admin::campaigns::update))
        .routes(routes!(admin::additions::add))
        .routes(routes!(admin::replication::show, admin::replication::change))
        .routes(routes!(admin::webhooks::list, admin::webhooks::create))
        // It waits for the receiver.
        .routes(routes!(admin::webhooks::test))
        // These may go through a whole campaign.
        .routes(routes!(admin::campaigns::warm_up))
        .routes(routes!(admin::imports::import))
        .routes(routes!(admin::reconciliation::compare, admin::reconciliation::repair))
}

/// Calls of admins that may wait for long, on places of their own.
pub fn waiting_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(admin::feed::list))
}
