//! Creates, changes and tests webhooks for admins. A job delivers the events.

pub mod sender;

use claimgate_shared::{CampaignId, Problem, Timestamp};

use self::sender::{DeliveryOutcome, WebhookSender};
use super::campaigns::Campaigns;
use super::error::EngineError;
use crate::domain::free_text;
use crate::domain::webhook::{self, WaitingEvent, Webhook, WebhookEvent};
use crate::store::sql::ChangedBy;

/// Maximum number of webhooks. Each webhook has a task that polls SQL every second.
const WEBHOOKS_MAX: usize = 100;

/// Creates and changes webhooks.
#[derive(Debug)]
pub struct Webhooks {
    pub(super) campaigns: Campaigns,
    /// Sends events to receivers.
    pub sender: WebhookSender,
}

impl Webhooks {
    /// Returns all readable webhooks, in the order of their ids.
    pub async fn list(&self) -> Result<Vec<Webhook>, EngineError> {
        let webhooks = self.campaigns.stores.sql.webhooks().await?;
        let readable = webhooks.into_iter().filter_map(|webhook| {
            webhook.inspect_err(|error| tracing::error!(%error, "a webhook's row cannot be read")).ok()
        });
        Ok(readable.collect())
    }

    /// Returns the webhook `id`.
    pub async fn get(&self, id: &str) -> Result<Webhook, EngineError> {
        self.campaigns.stores.sql.webhook(id).await?.ok_or(EngineError::WebhookNotFound)
    }

    /// Creates a webhook that reports changed claims of one campaign or of all campaigns to `url` from now
    /// on.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a URL that may not be called, or if there are too many webhooks already.
    pub async fn create(
        &self,
        url: &str,
        campaign: Option<CampaignId>,
        who: &str,
        now: Timestamp,
    ) -> Result<Webhook, EngineError> {
        let invalid = |why: String| EngineError::Invalid(Problem::invalid("url", why));
        if !self.sender.is_on() {
            return Err(invalid("no host is listed in CLAIMGATE_WEBHOOK_HOSTS".to_owned()));
        }
        self.sender.check(url).await.map_err(invalid)?;
        free_text::check(url).map_err(|why| invalid(why.to_string()))?;
        if let Some(id) = &campaign {
            self.campaigns.stored(id).await?;
        }
        if self.campaigns.stores.sql.webhooks().await?.len() >= WEBHOOKS_MAX {
            return Err(invalid(format!("there are already {WEBHOOKS_MAX} webhooks, the maximum")));
        }
        let cursor = self.campaigns.stores.sql.feed_end_cursor().await?.to_string();
        let webhook = Webhook {
            id: webhook::new_id().map_err(EngineError::Random)?,
            url: url.to_owned(),
            campaign,
            secret: webhook::new_secret().map_err(EngineError::Random)?,
            old_secret: None,
            disabled_because: None,
            cursor,
            created_at: now,
            delivered: 0,
            delivered_at: None,
            waiting: 0,
            parked: 0,
        };
        self.campaigns.stores.sql.create_webhook(&webhook, ChangedBy { who, at: now }).await?;
        tracing::info!(webhook = webhook.id, who, "a webhook was created");
        Ok(webhook)
    }

    /// Removes a webhook with its undelivered events, and returns the webhook.
    pub async fn delete(&self, id: &str, who: &str, now: Timestamp) -> Result<Webhook, EngineError> {
        let webhook = self.get(id).await?;
        self.campaigns.stores.sql.delete_webhook(&webhook, ChangedBy { who, at: now }).await?;
        tracing::info!(webhook = id, who, "a webhook was removed");
        Ok(webhook)
    }

    /// Enables a webhook, which continues where it stopped.
    pub async fn enable(&self, id: &str, who: &str, now: Timestamp) -> Result<Webhook, EngineError> {
        let webhook = self.get(id).await?;
        self.campaigns.stores.sql.enable_webhook(&webhook, ChangedBy { who, at: now }).await?;
        self.get(id).await
    }

    /// Sets a new secret for a webhook, and returns the webhook with that secret. The previous secret also
    /// signs for a day.
    pub async fn rotate_secret(&self, id: &str, who: &str, now: Timestamp) -> Result<Webhook, EngineError> {
        let webhook = self.get(id).await?;
        let secret = webhook::new_secret().map_err(EngineError::Random)?;
        self.campaigns.stores.sql.rotate_webhook(&webhook, &secret, ChangedBy { who, at: now }).await?;
        Ok(Webhook { secret, ..webhook })
    }

    /// Sends a test event to a webhook, once, whether it is enabled or not.
    pub async fn test(&self, id: &str, now: Timestamp) -> Result<DeliveryOutcome, EngineError> {
        let webhook = self.get(id).await?;
        let event = WebhookEvent::test(id, now).map_err(EngineError::Random)?;
        Ok(self.sender.send(&webhook, &event, now).await)
    }

    /// Returns up to `limit` undelivered events of a webhook, with numbers above `after`.
    pub async fn deliveries(
        &self,
        id: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<WaitingEvent>, EngineError> {
        self.get(id).await?;
        Ok(self.campaigns.stores.sql.waiting_events(id, after, limit).await?)
    }
}
