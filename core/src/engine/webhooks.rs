//! Webhooks: made, changed and tried by admins. Their deliveries are a job.

use claimgate_shared::{CampaignId, Problem, Timestamp};

use super::webhook_sender::Sent;
use super::{Engine, EngineError};
use crate::domain::webhook::{self, WaitingEvent, Webhook, WebhookEvent};
use crate::store::sql::{By, SqlError};

/// The most webhooks: each is a task, and a look at SQL each second.
const WEBHOOKS_MAX: usize = 100;

impl Engine {
    /// All webhooks that can be read, in the order of their ids.
    ///
    /// # Errors
    /// [`EngineError::Sql`].
    pub async fn webhooks(&self) -> Result<Vec<Webhook>, EngineError> {
        let webhooks = self.sync.sql.webhooks().await?;
        let readable = webhooks.into_iter().filter_map(|webhook| {
            webhook.inspect_err(|error| tracing::error!(%error, "a webhook's row cannot be read")).ok()
        });
        Ok(readable.collect())
    }

    /// The webhook `id`.
    ///
    /// # Errors
    /// [`EngineError::WebhookNotFound`], or [`EngineError::Sql`].
    pub async fn webhook(&self, id: &str) -> Result<Webhook, EngineError> {
        self.sync.sql.webhook(id).await?.ok_or(EngineError::WebhookNotFound)
    }

    /// Makes a webhook that tells `url` of the claims of one campaign or of all that change from now on.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for an address that may not be called, [`EngineError::CampaignNotFound`], or
    /// [`EngineError::Sql`].
    pub async fn create_webhook(
        &self,
        url: &str,
        campaign: Option<CampaignId>,
        who: &str,
        now: Timestamp,
    ) -> Result<Webhook, EngineError> {
        let invalid = |why: String| EngineError::Invalid(Problem::invalid("url", why));
        if !self.webhook_sender.is_on() {
            return Err(invalid("no host is listed in CLAIMGATE_WEBHOOK_HOSTS".to_owned()));
        }
        self.webhook_sender.check(url).await.map_err(invalid)?;
        if let Some(id) = &campaign {
            self.campaign(id).await?;
        }
        if self.sync.sql.webhooks().await?.len() >= WEBHOOKS_MAX {
            return Err(invalid(format!("there are {WEBHOOKS_MAX} webhooks already, the most there may be")));
        }
        let cursor = self.sync.sql.feed_end_cursor().await?.to_string();
        let webhook = Webhook {
            id: webhook::new_id().map_err(no_randomness)?,
            url: url.to_owned(),
            campaign,
            secret: webhook::new_secret().map_err(no_randomness)?,
            old_secret: None,
            disabled_because: None,
            cursor,
            created_at: now,
            delivered: 0,
            delivered_at: None,
            waiting: 0,
            parked: 0,
        };
        self.sync.sql.create_webhook(&webhook, By { who, at: now }).await?;
        tracing::info!(webhook = webhook.id, who, "a webhook was made");
        Ok(webhook)
    }

    /// Removes a webhook, with all that it did not take; returns what it was.
    ///
    /// # Errors
    /// As [`Self::webhook`].
    pub async fn delete_webhook(&self, id: &str, who: &str, now: Timestamp) -> Result<Webhook, EngineError> {
        let webhook = self.webhook(id).await?;
        self.sync.sql.delete_webhook(&webhook, By { who, at: now }).await?;
        tracing::info!(webhook = id, who, "a webhook was removed");
        Ok(webhook)
    }

    /// Enables a webhook, which goes on where it stopped.
    ///
    /// # Errors
    /// As [`Self::webhook`].
    pub async fn enable_webhook(&self, id: &str, who: &str, now: Timestamp) -> Result<Webhook, EngineError> {
        let webhook = self.webhook(id).await?;
        self.sync.sql.enable_webhook(&webhook, By { who, at: now }).await?;
        self.webhook(id).await
    }

    /// Gives a webhook another secret, which is returned with it; the one of before signs beside it for a day.
    ///
    /// # Errors
    /// As [`Self::webhook`].
    pub async fn rotate_webhook(&self, id: &str, who: &str, now: Timestamp) -> Result<Webhook, EngineError> {
        let webhook = self.webhook(id).await?;
        let secret = webhook::new_secret().map_err(no_randomness)?;
        self.sync.sql.rotate_webhook(&webhook, &secret, By { who, at: now }).await?;
        Ok(Webhook { secret, ..webhook })
    }

    /// Sends a test event to a webhook, once, whether it is enabled or not.
    ///
    /// # Errors
    /// As [`Self::webhook`].
    pub async fn test_webhook(&self, id: &str, now: Timestamp) -> Result<Sent, EngineError> {
        let webhook = self.webhook(id).await?;
        let event = WebhookEvent::test(id, now).map_err(no_randomness)?;
        Ok(self.webhook_sender.send(&webhook, &event, now).await)
    }

    /// Up to `limit` events that a webhook did not take yet, behind the number `after`.
    ///
    /// # Errors
    /// As [`Self::webhook`].
    pub async fn webhook_deliveries(
        &self,
        id: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<WaitingEvent>, EngineError> {
        self.webhook(id).await?;
        Ok(self.sync.sql.waiting_events(id, after, limit, true).await?)
    }
}

/// Without randomness there is no secret; the system has some sooner or later.
fn no_randomness(error: getrandom::Error) -> EngineError {
    SqlError::Sql(sqlx::Error::Io(std::io::Error::other(error.to_string()))).into()
}
