//! Webhooks: receivers that are told of changed claims.

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use claimgate_shared::admin::Page;
use claimgate_shared::problem::{ProblemFields, parse_json};
use claimgate_shared::{CampaignId, Problem, Timestamp};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::domain::webhook::{WaitingEvent, Webhook};
use crate::engine::webhook_sender::Sent;
use crate::http::error::ApiResult;
use crate::http::extract::{Admin, ParseBody, PathWebhook, Viewer, WithBody, json};
use crate::http::paging::{page_size, parse_query};
use crate::http::state::AppState;

/// `POST /admin/v1/webhooks`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    /// Where events are sent: a host and port that `CLAIMGATE_WEBHOOK_HOSTS` lists.
    url: String,
    /// Of this campaign's claims alone; of all when `null` or left out.
    #[schema(value_type = Option<String>)]
    campaign_id: Option<CampaignId>,
}

impl ParseBody for NewWebhook {
    fn parse_body(body: &[u8]) -> Result<Self, Problem> {
        parse_json(body)
    }
}

/// A webhook.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WebhookView {
    /// Its id.
    id: String,
    /// Where events are sent.
    url: String,
    /// The campaign whose claims it is told of; `null` for all.
    #[schema(value_type = Option<String>)]
    campaign_id: Option<CampaignId>,
    /// What events are signed with; only in the answer that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// Whether it gets events.
    enabled: bool,
    /// Why it gets none.
    disabled_because: Option<String>,
    /// When it was made.
    created_at: Timestamp,
    /// Events that it has taken.
    delivered: u64,
    /// When it took the last one.
    delivered_at: Option<Timestamp>,
    /// Events that it did not take yet.
    waiting: u64,
    /// Events that are tried no more, until it is enabled.
    parked: u64,
}

impl From<Webhook> for WebhookView {
    fn from(webhook: Webhook) -> Self {
        Self {
            id: webhook.id,
            url: webhook.url,
            campaign_id: webhook.campaign,
            secret: None,
            enabled: webhook.disabled_because.is_none(),
            disabled_because: webhook.disabled_because,
            created_at: webhook.created_at,
            delivered: webhook.delivered,
            delivered_at: webhook.delivered_at,
            waiting: webhook.waiting,
            parked: webhook.parked,
        }
    }
}

impl WebhookView {
    fn with_secret(webhook: Webhook) -> Self {
        let secret = Some(webhook.secret.clone());
        Self { secret, ..webhook.into() }
    }
}

/// How a test went.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WebhookTested {
    /// Whether the receiver has taken the event.
    delivered: bool,
    /// Why not.
    error: Option<String>,
}

/// An event that a webhook did not take yet.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Delivery {
    /// The event's `webhook-id`.
    event_id: String,
    /// The claim that it tells of.
    claim_id: String,
    /// `waiting`, or `parked`: tried no more.
    status: &'static str,
    /// How often it was tried.
    tries: u32,
    /// When it was tried first.
    first_at: Timestamp,
    /// When it is tried again; `null` when it is parked.
    next_at: Option<Timestamp>,
    /// What went wrong the last time.
    last_error: String,
}

impl From<WaitingEvent> for Delivery {
    fn from(waiting: WaitingEvent) -> Self {
        Self {
            event_id: waiting.event.id,
            claim_id: waiting.event.claim_id,
            status: if waiting.parked { "parked" } else { "waiting" },
            tries: waiting.tries,
            first_at: waiting.first_at,
            next_at: (!waiting.parked).then_some(waiting.next_at),
            last_error: waiting.last_error,
        }
    }
}

/// Which part of the deliveries.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct DeliveriesQuery {
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// The most items of a page, 1 to 1000; 100 when left out.
    limit: Option<u32>,
}

/// Makes a webhook, which is told of what changes from now on.
#[utoipa::path(
    post, path = "/admin/v1/webhooks", tag = "admin", request_body = NewWebhook,
    responses(
        (status = 201, description = "Made; its secret is shown here alone", body = WebhookView),
        (status = "default", description = "400 for an address that may not be called, 404 campaign_not_found and other \
            problems", body = ProblemFields),
    ),
)]
pub async fn create(
    State(state): State<AppState>,
    WithBody(Admin(caller), new): WithBody<Admin, NewWebhook>,
) -> ApiResult {
    let engine = state.engine(&caller);
    let webhook = engine.create_webhook(&new.url, new.campaign_id, caller.name(), clock::now()).await?;
    json(StatusCode::CREATED, &WebhookView::with_secret(webhook))
}

/// Lists the webhooks.
#[utoipa::path(
    get, path = "/admin/v1/webhooks", tag = "admin",
    responses(
        (status = 200, description = "All of them", body = Page<WebhookView>),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn list(State(state): State<AppState>, Viewer(caller): Viewer) -> ApiResult {
    let webhooks = state.engine(&caller).webhooks().await?;
    let items: Vec<_> = webhooks.into_iter().map(WebhookView::from).collect();
    json(StatusCode::OK, &Page { items, next_cursor: None })
}

/// Shows a webhook.
#[utoipa::path(
    get, path = "/admin/v1/webhooks/{id}", tag = "admin", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The webhook", body = WebhookView),
        (status = "default", description = "404 webhook_not_found and other problems", body = ProblemFields),
    ),
)]
pub async fn show(
    State(state): State<AppState>,
    Viewer(caller): Viewer,
    PathWebhook(id): PathWebhook,
) -> ApiResult {
    json(StatusCode::OK, &WebhookView::from(state.engine(&caller).webhook(&id).await?))
}

/// Removes a webhook, with what it did not take.
#[utoipa::path(
    delete, path = "/admin/v1/webhooks/{id}", tag = "admin", params(("id" = String, Path)),
    responses(
        (status = 200, description = "What it was", body = WebhookView),
        (status = "default", description = "404 webhook_not_found and other problems", body = ProblemFields),
    ),
)]
pub async fn delete(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathWebhook(id): PathWebhook,
) -> ApiResult {
    let webhook = state.engine(&caller).delete_webhook(&id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &WebhookView::from(webhook))
}

/// Enables a webhook, which goes on where it stopped: parked events are tried again.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{id}/enable", tag = "admin", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The webhook", body = WebhookView),
        (status = "default", description = "404 webhook_not_found and other problems", body = ProblemFields),
    ),
)]
pub async fn enable(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathWebhook(id): PathWebhook,
) -> ApiResult {
    let webhook = state.engine(&caller).enable_webhook(&id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &WebhookView::from(webhook))
}

/// Gives a webhook another secret. The one of before signs beside it for a day.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{id}/rotate-secret", tag = "admin", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The webhook with its new secret, which is shown here alone", body = WebhookView),
        (status = "default", description = "404 webhook_not_found and other problems", body = ProblemFields),
    ),
)]
pub async fn rotate_secret(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathWebhook(id): PathWebhook,
) -> ApiResult {
    let webhook = state.engine(&caller).rotate_webhook(&id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &WebhookView::with_secret(webhook))
}

/// Sends a test event, once, and tells how that went.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{id}/test", tag = "admin", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Whether the receiver has taken it, within 10 s", body = WebhookTested),
        (status = "default", description = "404 webhook_not_found and other problems", body = ProblemFields),
    ),
)]
pub async fn test(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathWebhook(id): PathWebhook,
) -> ApiResult {
    let error = match state.engine(&caller).test_webhook(&id, clock::now()).await? {
        Sent::Delivered => None,
        Sent::Failed(why, _) => Some(why),
        Sent::Gone => Some("status 410".to_owned()),
    };
    json(StatusCode::OK, &WebhookTested { delivered: error.is_none(), error })
}

/// Lists the events that a webhook did not take yet, in their order.
#[utoipa::path(
    get, path = "/admin/v1/webhooks/{id}/deliveries", tag = "admin",
    params(("id" = String, Path), DeliveriesQuery),
    responses(
        (status = 200, description = "A page", body = Page<Delivery>),
        (status = "default", description = "404 webhook_not_found and other problems", body = ProblemFields),
    ),
)]
pub async fn deliveries(
    State(state): State<AppState>,
    Viewer(caller): Viewer,
    PathWebhook(id): PathWebhook,
    uri: Uri,
) -> ApiResult {
    let query: DeliveriesQuery = parse_query(&uri)?;
    let limit = page_size(query.limit)?;
    let after = query.cursor.as_deref().unwrap_or("0").parse::<i64>();
    let after = after.map_err(|_| Problem::invalid("cursor", "must be a next_cursor"))?;
    let events = state.engine(&caller).webhook_deliveries(&id, after, limit).await?;
    let is_full = events.len() == limit as usize;
    let next_cursor = events.last().filter(|_| is_full).map(|event| event.number.to_string());
    let items: Vec<_> = events.into_iter().map(Delivery::from).collect();
    json(StatusCode::OK, &Page { items, next_cursor })
}
