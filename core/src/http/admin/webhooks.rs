//! Webhooks: receivers of changed claims.

use axum::http::{StatusCode, Uri};
use claimgate_shared::admin::Page;
use claimgate_shared::{CampaignId, Problem, Timestamp};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::domain::webhook::{WaitingEvent, Webhook};
use crate::engine::webhooks::sender::DeliveryOutcome;
use crate::http::authorization::{Admin, Viewer};
use crate::http::error::ApiResult;
use crate::http::extract::{ParseBody, PathWebhook, WithBody, json};
use crate::http::paging::{page_size, parse_query};

/// `POST /admin/v1/webhooks`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    /// The receiver's URL, with a host and port that `CLAIMGATE_WEBHOOK_HOSTS` lists.
    #[schema(format = "uri", pattern = "^https?://", max_length = 2048)]
    url: String,
    /// Only events of this campaign; of all campaigns if `null` or absent.
    campaign_id: Option<CampaignId>,
}

impl ParseBody for NewWebhook {}

/// A webhook.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WebhookView {
    /// The webhook's id.
    id: String,
    /// The receiver's URL.
    url: String,
    /// The campaign whose events the webhook receives; `null` for all campaigns.
    campaign_id: Option<CampaignId>,
    /// The secret that signs the events; only in the response that generated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// Whether the webhook receives events.
    enabled: bool,
    /// Why the webhook was disabled.
    disabled_because: Option<String>,
    /// When the webhook was created.
    created_at: Timestamp,
    /// Events that the receiver has accepted.
    delivered: u64,
    /// When the receiver accepted the last event.
    delivered_at: Option<Timestamp>,
    /// Events that the receiver has not accepted yet.
    waiting: u64,
    /// Events that are not retried until the webhook is enabled.
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

/// The result of a test.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WebhookTested {
    /// Whether the receiver has accepted the event.
    delivered: bool,
    /// Why the receiver did not accept it.
    error: Option<String>,
}

/// An event that a webhook has not accepted yet.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Delivery {
    /// The event's `webhook-id`.
    event_id: String,
    /// The claim that changed.
    claim_id: String,
    /// `waiting`, or `parked`: no longer retried.
    status: &'static str,
    /// The number of delivery attempts.
    tries: u32,
    /// When delivery was first tried.
    first_at: Timestamp,
    /// When delivery is tried next; `null` if the event is parked.
    next_at: Option<Timestamp>,
    /// The error of the last attempt.
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

/// The query parameters of `listDeliveries`.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeliveriesQuery {
    /// The `next_cursor` of the previous page.
    #[param(pattern = "^[0-9]{1,18}$")]
    cursor: Option<String>,
    /// The maximum number of items on a page.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Creates a webhook, which receives all changes from now on.
#[utoipa::path(
    post, path = "/admin/v1/webhooks", tag = "admin", operation_id = "createWebhook",
    request_body = NewWebhook,
    responses((status = 201, description = "Created; its secret is shown only here", body = WebhookView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["campaign_not_found"]))),
)]
pub async fn create(WithBody(Admin(caller, engine), new): WithBody<Admin, NewWebhook>) -> ApiResult {
    let webhook = engine.webhooks.create(&new.url, new.campaign_id, caller.name(), clock::now()).await?;
    json(StatusCode::CREATED, &WebhookView::with_secret(webhook))
}

/// Lists the webhooks.
#[utoipa::path(
    get, path = "/admin/v1/webhooks", tag = "admin", operation_id = "listWebhooks",
    responses((status = 200, description = "All webhooks", body = Page<WebhookView>)),
    security(("adminToken" = ["viewer"])),
)]
pub async fn list(Viewer(_, engine): Viewer) -> ApiResult {
    let webhooks = engine.webhooks.list().await?;
    let items: Vec<_> = webhooks.into_iter().map(WebhookView::from).collect();
    json(StatusCode::OK, &Page { items, next_cursor: None })
}

/// Shows a webhook.
#[utoipa::path(
    get, path = "/admin/v1/webhooks/{id}", tag = "admin", operation_id = "getWebhook",
    params(("id" = String, Path, pattern = "^wh_[A-Za-z0-9_-]{22}$")),
    responses((status = 200, description = "The webhook", body = WebhookView)),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["webhook_not_found"]))),
)]
pub async fn show(Viewer(_, engine): Viewer, PathWebhook(id): PathWebhook) -> ApiResult {
    json(StatusCode::OK, &WebhookView::from(engine.webhooks.get(&id).await?))
}

/// Deletes a webhook and its undelivered events.
#[utoipa::path(
    delete, path = "/admin/v1/webhooks/{id}", tag = "admin", operation_id = "deleteWebhook",
    params(("id" = String, Path, pattern = "^wh_[A-Za-z0-9_-]{22}$")),
    responses((status = 200, description = "The deleted webhook", body = WebhookView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["webhook_not_found"]))),
)]
pub async fn delete(Admin(caller, engine): Admin, PathWebhook(id): PathWebhook) -> ApiResult {
    let webhook = engine.webhooks.delete(&id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &WebhookView::from(webhook))
}

/// Enables a webhook, which continues where it stopped: parked events are retried.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{id}/enable", tag = "admin", operation_id = "enableWebhook",
    params(("id" = String, Path, pattern = "^wh_[A-Za-z0-9_-]{22}$")),
    responses((status = 200, description = "The webhook", body = WebhookView)),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["webhook_not_found"]))),
)]
pub async fn enable(Admin(caller, engine): Admin, PathWebhook(id): PathWebhook) -> ApiResult {
    let webhook = engine.webhooks.enable(&id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &WebhookView::from(webhook))
}

/// Replaces a webhook's secret. The previous one also signs for a day.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{id}/rotate-secret", tag = "admin", operation_id = "rotateWebhookSecret",
    params(("id" = String, Path, pattern = "^wh_[A-Za-z0-9_-]{22}$")),
    responses(
        (status = 200, description = "The webhook with its new secret, which is shown only here", body = WebhookView),
    ),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["webhook_not_found"]))),
)]
pub async fn rotate_secret(Admin(caller, engine): Admin, PathWebhook(id): PathWebhook) -> ApiResult {
    let webhook = engine.webhooks.rotate_secret(&id, caller.name(), clock::now()).await?;
    json(StatusCode::OK, &WebhookView::with_secret(webhook))
}

/// Sends one test event, and reports whether it was accepted.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{id}/test", tag = "admin", operation_id = "testWebhook",
    params(("id" = String, Path, pattern = "^wh_[A-Za-z0-9_-]{22}$")),
    responses(
        (status = 200, description = "Whether the receiver accepted it within 10 s", body = WebhookTested),
    ),
    security(("adminToken" = ["admin"])),
    extensions(("x-codes" = json!(["webhook_not_found"]))),
)]
pub async fn test(Admin(_, engine): Admin, PathWebhook(id): PathWebhook) -> ApiResult {
    let error = match engine.webhooks.test(&id, clock::now()).await? {
        DeliveryOutcome::Delivered => None,
        DeliveryOutcome::Failed(why, _) => Some(why),
        DeliveryOutcome::Gone => Some("status 410".to_owned()),
    };
    json(StatusCode::OK, &WebhookTested { delivered: error.is_none(), error })
}

/// Lists the events that a webhook has not accepted yet, in order.
#[utoipa::path(
    get, path = "/admin/v1/webhooks/{id}/deliveries", tag = "admin", operation_id = "listDeliveries",
    params(("id" = String, Path, pattern = "^wh_[A-Za-z0-9_-]{22}$"), DeliveriesQuery),
    responses((status = 200, description = "A page", body = Page<Delivery>)),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["webhook_not_found"]))),
)]
pub async fn deliveries(Viewer(_, engine): Viewer, PathWebhook(id): PathWebhook, uri: Uri) -> ApiResult {
    let query: DeliveriesQuery = parse_query(&uri)?;
    let limit = page_size(query.limit)?;
    let after = query.cursor.as_deref().unwrap_or("0").parse().ok().filter(|after: &i64| *after >= 0);
    let after =
        after.ok_or_else(|| Problem::invalid("cursor", "must be the next_cursor of a page of this list"))?;
    let events = engine.webhooks.deliveries(&id, after, limit).await?;
    let is_full = events.len() == limit as usize;
    let next_cursor = events.last().filter(|_| is_full).map(|event| event.number.to_string());
    let items: Vec<_> = events.into_iter().map(Delivery::from).collect();
    json(StatusCode::OK, &Page { items, next_cursor })
}
