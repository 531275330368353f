//! Webhooks, and the events that they did not take yet.
//!
//! `holder` and `held_until` are a lease: its holder delivers, and writes only while it is the holder.

use claimgate_shared::{CampaignId, Timestamp};
use serde_json::{Value, json};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::audit::draw_number;
use super::numbers::{big, unreadable, unsigned};
use super::pool::Transaction;
use super::{By, FeedCursor, SqlError, SqlStore, statements};
use crate::domain::webhook::{OLD_SECRET_FOR, WaitingEvent, Webhook, WebhookEvent};
use crate::step;

/// The columns of a [`Webhook`], of all or of the one that a condition names.
const SELECT: &str = "SELECT id, url, campaign_id, secret, old_secret, old_secret_until, enabled, disabled_because, cursor, \
    created_at, delivered, delivered_at, \
    (SELECT COUNT(*) FROM webhook_events WHERE webhook_id = id AND parked = 0) AS waiting, \
    (SELECT COUNT(*) FROM webhook_events WHERE webhook_id = id AND parked = 1) AS parked_count FROM webhooks";

/// What was done for a webhook in one round, for [`SqlStore::advance_webhook`].
#[derive(Debug)]
pub struct Progress<'a> {
    /// The place in the feed behind which nothing is left to be tried first.
    pub cursor: &'a FeedCursor,
    /// How many events it has taken.
    pub delivered: u64,
    /// Events that it did not take, or that have to wait behind others of their claims; in the order of the feed.
    pub waiting: &'a [WaitingEvent],
}

impl SqlStore {
    /// All webhooks, in the order of their ids, or why one of them cannot be read: the others can.
    pub(crate) async fn webhooks(&self) -> Result<Vec<Result<Webhook, SqlError>>, SqlError> {
        step::before("sql:webhooks").await;
        let statement = sqlx::AssertSqlSafe(format!("{SELECT} ORDER BY id"));
        let rows = step::after(sqlx::query(statement).fetch_all(&self.pool).await)?;
        Ok(rows.iter().map(webhook).collect())
    }

    /// The webhook `id`, if there is one.
    pub(crate) async fn webhook(&self, id: &str) -> Result<Option<Webhook>, SqlError> {
        step::before("sql:webhook").await;
        let statement = sqlx::AssertSqlSafe(format!("{SELECT} WHERE id = $1"));
        let row = sqlx::query(statement).bind(id).fetch_optional(&self.pool).await;
        step::after(row)?.as_ref().map(webhook).transpose()
    }

    /// The feed's end: a webhook that is made now is told what comes behind it.
    pub(crate) async fn feed_end_cursor(&self) -> Result<FeedCursor, SqlError> {
        let feed_id =
            sqlx::query("SELECT feed_id FROM feed_position").fetch_one(&self.pool).await?.try_get(0)?;
        let Some(end) = sqlx::query(statements::FEED_END).fetch_optional(&self.pool).await? else {
            return Ok(FeedCursor::begin(feed_id));
        };
        let (number, told): (i64, String) = (end.try_get(0)?, end.try_get(1)?);
        let last = told.rsplit(' ').next().unwrap_or_default();
        Ok(FeedCursor::behind(feed_id, unsigned(number)?, last.to_owned()))
    }

    /// Stores a new webhook.
    pub(crate) async fn create_webhook(&self, webhook: &Webhook, by: By<'_>) -> Result<(), SqlError> {
        step::before("sql:create_webhook").await;
        let mut transaction = self.pool.begin().await?;
        sqlx::query(
            "INSERT INTO webhooks (id, url, campaign_id, secret, enabled, cursor, created_at, delivered, holder, held_until) \
             VALUES ($1, $2, $3, $4, 1, $5, $6, 0, '', 0)",
        )
        .bind(&webhook.id)
        .bind(&webhook.url)
        .bind(webhook.campaign.as_ref().map(CampaignId::as_str))
        .bind(&webhook.secret)
        .bind(&webhook.cursor)
        .bind(by.at.as_ms())
        .execute(&mut *transaction)
        .await?;
        audit(&mut transaction, webhook, by, "webhook_create", None, &state(webhook)).await?;
        step::after(transaction.commit().await)?;
        Ok(())
    }

    /// Removes a webhook, and what it did not take yet.
    pub(crate) async fn delete_webhook(&self, webhook: &Webhook, by: By<'_>) -> Result<(), SqlError> {
        step::before("sql:delete_webhook").await;
        let mut transaction = self.pool.begin().await?;
        for statement in
            ["DELETE FROM webhook_events WHERE webhook_id = $1", "DELETE FROM webhooks WHERE id = $1"]
        {
            sqlx::query(statement).bind(&webhook.id).execute(&mut *transaction).await?;
        }
        audit(&mut transaction, webhook, by, "webhook_delete", Some(&state(webhook)), &json!({})).await?;
        step::after(transaction.commit().await)?;
        Ok(())
    }

    /// Enables a webhook, which goes on where it stopped: parked events are tried again, as if for the first time.
    pub(crate) async fn enable_webhook(&self, webhook: &Webhook, by: By<'_>) -> Result<(), SqlError> {
        step::before("sql:enable_webhook").await;
        let mut transaction = self.pool.begin().await?;
        sqlx::query("UPDATE webhooks SET enabled = 1, disabled_because = NULL WHERE id = $1")
            .bind(&webhook.id)
            .execute(&mut *transaction)
            .await?;
        sqlx::query("UPDATE webhook_events SET parked = 0, tries = 0, first_at = $2, next_at = $2 WHERE webhook_id = $1")
            .bind(&webhook.id)
            .bind(by.at.as_ms())
            .execute(&mut *transaction)
            .await?;
        let after = json!({"url": webhook.url, "enabled": true});
        audit(&mut transaction, webhook, by, "webhook_enable", Some(&state(webhook)), &after).await?;
        step::after(transaction.commit().await)?;
        Ok(())
    }

    /// Gives a webhook another secret; the one of before signs beside it for a day.
    pub(crate) async fn rotate_webhook(
        &self,
        webhook: &Webhook,
        secret: &str,
        by: By<'_>,
    ) -> Result<(), SqlError> {
        step::before("sql:rotate_webhook").await;
        let until = by.at.saturating_add_ms(i64::try_from(OLD_SECRET_FOR.as_millis()).unwrap_or(i64::MAX));
        let mut transaction = self.pool.begin().await?;
        sqlx::query(
            "UPDATE webhooks SET old_secret = secret, old_secret_until = $3, secret = $2 WHERE id = $1",
        )
        .bind(&webhook.id)
        .bind(secret)
        .bind(until.as_ms())
        .execute(&mut *transaction)
        .await?;
        let (before, after) = (json!({"secret": "the one of before"}), json!({"secret": "another"}));
        audit(&mut transaction, webhook, by, "webhook_rotate_secret", Some(&before), &after).await?;
        step::after(transaction.commit().await)?;
        Ok(())
    }

    /// Takes or renews the lease of an enabled webhook until `until`, for `holder`; `None` when another one has it, or there is
    /// nothing to deliver for.
    pub(crate) async fn hold_webhook(
        &self,
        id: &str,
        holder: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Webhook>, SqlError> {
        step::before("sql:hold_webhook").await;
        let held = sqlx::query(
            "UPDATE webhooks SET holder = $2, held_until = $4 \
             WHERE id = $1 AND enabled = 1 AND (holder = $2 OR held_until <= $3)",
        )
        .bind(id)
        .bind(holder)
        .bind(now.as_ms())
        .bind(until.as_ms())
        .execute(&self.pool)
        .await;
        if step::after(held)?.rows_affected() == 0 {
            return Ok(None);
        }
        self.webhook(id).await
    }

    /// Gives the leases of `holder` back: another core need not wait for their end.
    pub(crate) async fn release_webhooks(&self, holder: &str) -> Result<(), SqlError> {
        step::before("sql:release_webhooks").await;
        let released = sqlx::query("UPDATE webhooks SET held_until = 0 WHERE holder = $1")
            .bind(holder)
            .execute(&self.pool)
            .await;
        step::after(released)?;
        Ok(())
    }

    /// Up to `limit` events that the webhook `id` did not take yet, in their order; with `parked` those too.
    pub(crate) async fn waiting_events(
        &self,
        id: &str,
        after: i64,
        limit: u32,
        parked: bool,
    ) -> Result<Vec<WaitingEvent>, SqlError> {
        step::before("sql:waiting_events").await;
        let rows = sqlx::query(
            "SELECT number, event_id, claim_id, body, parked, tries, first_at, next_at, last_error FROM webhook_events \
             WHERE webhook_id = $1 AND number > $2 AND parked <= $3 ORDER BY number LIMIT $4",
        )
        .bind(id)
        .bind(after)
        .bind(i64::from(parked))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await;
        step::after(rows)?.iter().map(waiting_event).collect()
    }

    /// Records what `holder` has done for a webhook; `false` when it holds the lease no more, and nothing was recorded.
    pub(crate) async fn advance_webhook(
        &self,
        id: &str,
        holder: &str,
        now: Timestamp,
        progress: Progress<'_>,
    ) -> Result<bool, SqlError> {
        step::before("sql:advance_webhook").await;
        let Progress { cursor, delivered, waiting } = progress;
        let mut transaction = self.pool.begin().await?;
        let moved = sqlx::query(
            "UPDATE webhooks SET cursor = $3, delivered = delivered + $4, \
             delivered_at = CASE WHEN $4 > 0 THEN $5 ELSE delivered_at END WHERE id = $1 AND holder = $2",
        )
        .bind(id)
        .bind(holder)
        .bind(cursor.to_string())
        .bind(big(delivered))
        .bind(now.as_ms())
        .execute(&mut *transaction)
        .await?;
        if moved.rows_affected() == 0 {
            return Ok(false);
        }
        for waiting in waiting {
            insert(&mut transaction, id, waiting).await?;
        }
        step::after(transaction.commit().await)?;
        Ok(true)
    }

    /// Records that a webhook has taken an event that waited; `false` when `holder` holds the lease no more: the event's number
    /// may be another one's by now.
    pub(crate) async fn took_waiting(
        &self,
        id: &str,
        holder: &str,
        number: i64,
        now: Timestamp,
    ) -> Result<bool, SqlError> {
        step::before("sql:took_waiting").await;
        let mut transaction = self.pool.begin().await?;
        let counted = sqlx::query(
            "UPDATE webhooks SET delivered = delivered + 1, delivered_at = $3 WHERE id = $1 AND holder = $2",
        )
        .bind(id)
        .bind(holder)
        .bind(now.as_ms())
        .execute(&mut *transaction)
        .await?;
        if counted.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query("DELETE FROM webhook_events WHERE webhook_id = $1 AND number = $2")
            .bind(id)
            .bind(number)
            .execute(&mut *transaction)
            .await?;
        step::after(transaction.commit().await)?;
        Ok(true)
    }

    /// Records another try of an event that waits; `false` when `holder` holds the lease no more.
    pub(crate) async fn put_off_waiting(
        &self,
        id: &str,
        holder: &str,
        waiting: &WaitingEvent,
    ) -> Result<bool, SqlError> {
        step::before("sql:put_off_waiting").await;
        let done = sqlx::query(
            "UPDATE webhook_events SET parked = $4, tries = $5, first_at = $6, next_at = $7, last_error = $8 \
             WHERE webhook_id = $1 AND number = $3 AND EXISTS (SELECT 1 FROM webhooks WHERE id = $1 AND holder = $2)",
        )
        .bind(id)
        .bind(holder)
        .bind(waiting.number)
        .bind(i64::from(waiting.parked))
        .bind(i64::from(waiting.tries))
        .bind(waiting.first_at.as_ms())
        .bind(waiting.next_at.as_ms())
        .bind(&waiting.last_error)
        .execute(&self.pool)
        .await;
        Ok(step::after(done)?.rows_affected() > 0)
    }

    /// Disables a webhook for which `holder` delivers; nothing when it does so no more.
    pub(crate) async fn disable_webhook(
        &self,
        webhook: &Webhook,
        holder: &str,
        why: &str,
        by: By<'_>,
    ) -> Result<(), SqlError> {
        step::before("sql:disable_webhook").await;
        let mut transaction = self.pool.begin().await?;
        let disabled = sqlx::query(
            "UPDATE webhooks SET enabled = 0, disabled_because = $3 WHERE id = $1 AND holder = $2 AND enabled = 1",
        )
        .bind(&webhook.id)
        .bind(holder)
        .bind(why)
        .execute(&mut *transaction)
        .await?;
        if disabled.rows_affected() == 0 {
            return Ok(());
        }
        let after = json!({"url": webhook.url, "enabled": false, "disabled_because": why});
        audit(&mut transaction, webhook, by, "webhook_disable", Some(&state(webhook)), &after).await?;
        step::after(transaction.commit().await)?;
        Ok(())
    }
}

async fn insert(transaction: &mut Transaction, id: &str, waiting: &WaitingEvent) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO webhook_events \
         (webhook_id, number, event_id, claim_id, body, parked, tries, first_at, next_at, last_error) \
         SELECT $1, COALESCE(MAX(number), 0) + 1, $2, $3, $4, 0, $5, $6, $7, $8 FROM webhook_events WHERE webhook_id = $1",
    )
    .bind(id)
    .bind(&waiting.event.id)
    .bind(&waiting.event.claim_id)
    .bind(&waiting.event.body)
    .bind(i64::from(waiting.tries))
    .bind(waiting.first_at.as_ms())
    .bind(waiting.next_at.as_ms())
    .bind(&waiting.last_error)
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// What the audit shows of a webhook.
fn state(webhook: &Webhook) -> Value {
    json!({"url": webhook.url, "enabled": webhook.disabled_because.is_none()})
}

async fn audit(
    transaction: &mut Transaction,
    webhook: &Webhook,
    by: By<'_>,
    what: &str,
    before: Option<&Value>,
    after: &Value,
) -> Result<(), sqlx::Error> {
    let number = draw_number(transaction).await?;
    sqlx::query(
        "INSERT INTO webhook_audit (number, webhook_id, campaign_id, at, who, what, before, after) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(number)
    .bind(&webhook.id)
    .bind(webhook.campaign.as_ref().map(CampaignId::as_str))
    .bind(by.at.as_ms())
    .bind(by.who)
    .bind(what)
    .bind(before.map(ToString::to_string))
    .bind(after.to_string())
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

fn webhook(row: &AnyRow) -> Result<Webhook, SqlError> {
    let campaign: Option<String> = row.try_get("campaign_id")?;
    let time = |ms: Option<i64>| ms.map(Timestamp::from_ms).transpose().map_err(unreadable);
    let old = row.try_get::<Option<String>, _>("old_secret")?.zip(time(row.try_get("old_secret_until")?)?);
    let is_enabled = row.try_get::<i64, _>("enabled")? == 1;
    let because: Option<String> = row.try_get("disabled_because")?;
    Ok(Webhook {
        id: row.try_get("id")?,
        url: row.try_get("url")?,
        campaign: campaign.map(CampaignId::try_from).transpose().map_err(unreadable)?,
        secret: row.try_get("secret")?,
        old_secret: old,
        disabled_because: (!is_enabled).then(|| because.unwrap_or_default()),
        cursor: row.try_get("cursor")?,
        created_at: Timestamp::from_ms(row.try_get("created_at")?).map_err(unreadable)?,
        delivered: unsigned(row.try_get("delivered")?)?,
        delivered_at: time(row.try_get("delivered_at")?)?,
        waiting: unsigned(row.try_get("waiting")?)?,
        parked: unsigned(row.try_get("parked_count")?)?,
    })
}

fn waiting_event(row: &AnyRow) -> Result<WaitingEvent, SqlError> {
    let time = |column| Timestamp::from_ms(row.try_get(column)?).map_err(unreadable);
    Ok(WaitingEvent {
        number: row.try_get("number")?,
        event: WebhookEvent {
            id: row.try_get("event_id")?,
            claim_id: row.try_get("claim_id")?,
            body: row.try_get("body")?,
        },
        parked: row.try_get::<i64, _>("parked")? == 1,
        tries: u32::try_from(row.try_get::<i64, _>("tries")?).map_err(unreadable)?,
        first_at: time("first_at")?,
        next_at: time("next_at")?,
        last_error: row.try_get("last_error")?,
    })
}
