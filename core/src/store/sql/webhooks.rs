//! Webhooks in SQL, and their pending events.
//!
//! The columns `holder` and `held_until` are a lease, by the database's clock. Only the lease's holder delivers events, and
//! it writes only while it has the lease.

use std::collections::HashSet;
use std::time::Duration;

use claimgate_shared::{CampaignId, Timestamp};
use serde_json::{Value, json};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::audit::issue_audit_number;
use super::numbers::{to_i64, unreadable, unsigned};
use super::pool::Transaction;
use super::{ChangedBy, FeedCursor, SqlError, SqlStore, statements};
use crate::domain::webhook::{OLD_SECRET_FOR, WaitingEvent, Webhook, WebhookEvent};

/// Selects the columns of a [`Webhook`]; a condition may follow.
const SELECT: &str = "SELECT id, url, campaign_id, secret, old_secret, old_secret_until, enabled, disabled_because, cursor, \
    created_at, delivered, delivered_at, \
    (SELECT COUNT(*) FROM webhook_events WHERE webhook_id = id AND parked = 0) AS waiting, \
    (SELECT COUNT(*) FROM webhook_events WHERE webhook_id = id AND parked = 1) AS parked_count FROM webhooks";

/// The columns of a [`WaitingEvent`].
macro_rules! event_columns {
    () => {
        "number, event_id, claim_id, body, parked, tries, first_at, next_at, last_error"
    };
}

/// The condition that `event` is the claim's first pending event for the webhook `$1`. Later events of the
/// claim must not be sent before the first event.
macro_rules! first_of_claim {
    () => {
        "event.webhook_id = $1 AND event.parked = 0 AND NOT EXISTS (SELECT 1 FROM webhook_events AS earlier \
         WHERE earlier.webhook_id = $1 AND earlier.claim_id = event.claim_id AND earlier.number < event.number \
         AND earlier.parked = 0)"
    };
}

/// The result of one round of deliveries to a webhook, for [`SqlStore::advance_webhook`].
#[derive(Debug)]
pub struct Progress<'a> {
    /// The position in the feed after the last event that was tried or stored as pending.
    pub cursor: &'a FeedCursor,
    /// The number of delivered events.
    pub delivered: u64,
    /// Events that failed, or are queued behind earlier events of their claims, in the order of the feed.
    pub waiting: &'a [WaitingEvent],
}

impl SqlStore {
    /// Returns all webhooks, ordered by id. A webhook that cannot be read is an error in the list, and does
    /// not hide other webhooks.
    pub(crate) async fn webhooks(&self) -> Result<Vec<Result<Webhook, SqlError>>, SqlError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!("{SELECT} ORDER BY id")));
        Ok(self.pool.all("sql:webhooks", query).await?.iter().map(webhook).collect())
    }

    pub(crate) async fn webhook(&self, id: &str) -> Result<Option<Webhook>, SqlError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!("{SELECT} WHERE id = $1"))).bind(id);
        self.pool.optional("sql:webhook", query).await?.as_ref().map(webhook).transpose()
    }

    /// Returns the end of the feed, from which a new webhook starts.
    pub(crate) async fn feed_end_cursor(&self) -> Result<FeedCursor, SqlError> {
        let feed_id = sqlx::query("SELECT feed_id FROM feed_position")
            .fetch_one(&mut self.pool.lease().await?)
            .await?
            .try_get(0)?;
        let Some(end) =
            sqlx::query(statements::FEED_END).fetch_optional(&mut self.pool.lease().await?).await?
        else {
            return Ok(FeedCursor::begin(feed_id));
        };
        let (number, claims): (i64, String) = (end.try_get(0)?, end.try_get(1)?);
        let last = claims.rsplit(' ').next().unwrap_or_default();
        Ok(FeedCursor::after(feed_id, unsigned(number)?, last.to_owned()))
    }

    pub(crate) async fn create_webhook(&self, webhook: &Webhook, by: ChangedBy<'_>) -> Result<(), SqlError> {
        let mut transaction = self.pool.begin_at("sql:create_webhook").await?;
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
        .execute(&mut transaction.lease)
        .await?;
        commit_audited(transaction, webhook, by, "webhook_create", None, &state(webhook)).await
    }

    /// Removes a webhook and its pending events.
    pub(crate) async fn delete_webhook(&self, webhook: &Webhook, by: ChangedBy<'_>) -> Result<(), SqlError> {
        let mut transaction = self.pool.begin_at("sql:delete_webhook").await?;
        for statement in
            ["DELETE FROM webhook_events WHERE webhook_id = $1", "DELETE FROM webhooks WHERE id = $1"]
        {
            sqlx::query(statement).bind(&webhook.id).execute(&mut transaction.lease).await?;
        }
        commit_audited(transaction, webhook, by, "webhook_delete", Some(&state(webhook)), &json!({})).await
    }

    /// Enables a webhook, which continues where it stopped. Parked events are retried, with a new retry
    /// period.
    pub(crate) async fn enable_webhook(&self, webhook: &Webhook, by: ChangedBy<'_>) -> Result<(), SqlError> {
        let mut transaction = self.pool.begin_at("sql:enable_webhook").await?;
        sqlx::query("UPDATE webhooks SET enabled = 1, disabled_because = NULL WHERE id = $1")
            .bind(&webhook.id)
            .execute(&mut transaction.lease)
            .await?;
        sqlx::query("UPDATE webhook_events SET parked = 0, tries = 0, first_at = $2, next_at = $2 WHERE webhook_id = $1")
            .bind(&webhook.id)
            .bind(by.at.as_ms())
            .execute(&mut transaction.lease)
            .await?;
        let after = json!({"url": webhook.url, "enabled": true});
        commit_audited(transaction, webhook, by, "webhook_enable", Some(&state(webhook)), &after).await
    }

    /// Sets a new secret for a webhook. The previous secret also signs for 24 hours.
    pub(crate) async fn rotate_webhook(
        &self,
        webhook: &Webhook,
        secret: &str,
        by: ChangedBy<'_>,
    ) -> Result<(), SqlError> {
        let until = by.at.saturating_add_ms(i64::try_from(OLD_SECRET_FOR.as_millis()).unwrap_or(i64::MAX));
        let mut transaction = self.pool.begin_at("sql:rotate_webhook").await?;
        sqlx::query(
            "UPDATE webhooks SET old_secret = secret, old_secret_until = $3, secret = $2 WHERE id = $1",
        )
        .bind(&webhook.id)
        .bind(secret)
        .bind(until.as_ms())
        .execute(&mut transaction.lease)
        .await?;
        let (before, after) = (json!({"secret": "previous"}), json!({"secret": "new"}));
        commit_audited(transaction, webhook, by, "webhook_rotate_secret", Some(&before), &after).await
    }

    /// Acquires or renews the lease of a webhook for `holder`. Returns `None` if another core has the lease, or the
    /// webhook is disabled or deleted. A lease that ends after more than two TTLs counts as ended: the database's clock was
    /// set back, or an earlier version used the clock of a core that was ahead.
    pub(crate) async fn hold_webhook(
        &self,
        id: &str,
        holder: &str,
        ttl: Duration,
    ) -> Result<Option<Webhook>, SqlError> {
        let statement = self.with_database_clock(
            "UPDATE webhooks SET holder = $2, held_until = {now} + $3 WHERE id = $1 AND enabled = 1 \
             AND (holder = $2 OR held_until <= {now} OR held_until > {now} + 2 * $3)",
        );
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 4);
        let query = sqlx::query(statement).bind(id).bind(holder).bind(ttl_ms);
        if self.pool.run("sql:hold_webhook", query).await?.rows_affected() == 0 {
            return Ok(None);
        }
        self.webhook(id).await
    }

    /// Releases the leases of all runs of the core `core`, so that a core that was killed can deliver right
    /// after its restart. Earlier versions used the core's id as the holder.
    pub(crate) async fn end_webhook_leases_of_core(&self, core: &str) -> Result<(), SqlError> {
        let query = sqlx::query(
            "UPDATE webhooks SET held_until = 0 WHERE holder = $1 OR SUBSTR(holder, 1, LENGTH($1) + 1) = $1 || '.'",
        )
        .bind(core);
        self.pool.run("sql:end_webhook_leases_of_core", query).await?;
        Ok(())
    }

    /// Releases the leases of `holder`, so that other cores need not wait until they expire.
    pub(crate) async fn release_webhooks(&self, holder: &str) -> Result<(), SqlError> {
        let query = sqlx::query("UPDATE webhooks SET held_until = 0 WHERE holder = $1").bind(holder);
        self.pool.run("sql:release_webhooks", query).await?;
        Ok(())
    }

    /// Returns up to `limit` pending and parked events of the webhook `id` with numbers above `after`, in
    /// order.
    pub(crate) async fn waiting_events(
        &self,
        id: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<WaitingEvent>, SqlError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            event_columns!(),
            " FROM webhook_events WHERE webhook_id = $1 AND number > $2 ORDER BY number LIMIT $3"
        ))
        .bind(id)
        .bind(after)
        .bind(i64::from(limit));
        self.pool.all("sql:waiting_events", query).await?.iter().map(waiting_event).collect()
    }

    /// Returns up to `limit` events of the webhook `id` that are due at `now`, ordered by due time. Only the
    /// first pending event of each claim can be due.
    pub(crate) async fn due_events(
        &self,
        id: &str,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<WaitingEvent>, SqlError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            event_columns!(),
            " FROM webhook_events AS event WHERE ",
            first_of_claim!(),
            " AND next_at <= $2 ORDER BY next_at, number LIMIT $3"
        ))
        .bind(id)
        .bind(now.as_ms())
        .bind(i64::from(limit));
        self.pool.all("sql:due_events", query).await?.iter().map(waiting_event).collect()
    }

    /// Returns the time at which the next event of the webhook `id` is due; `None` if no event is pending.
    pub(crate) async fn next_event_due(&self, id: &str) -> Result<Option<Timestamp>, SqlError> {
        let query = sqlx::query(concat!(
            "SELECT next_at FROM webhook_events AS event WHERE ",
            first_of_claim!(),
            " ORDER BY next_at LIMIT 1"
        ))
        .bind(id);
        let at =
            self.pool.optional("sql:next_event_due", query).await?.map(|row| row.try_get(0)).transpose()?;
        at.map(Timestamp::from_ms).transpose().map_err(unreadable)
    }

    /// Returns the given claims that have an event pending for the webhook `id`. `claims` must not be empty.
    pub(crate) async fn claims_with_waiting_events(
        &self,
        id: &str,
        claims: &[WebhookEvent],
    ) -> Result<HashSet<String>, SqlError> {
        let parameters: Vec<_> = (2..claims.len() + 2).map(|number| format!("${number}")).collect();
        let statement = format!(
            "SELECT DISTINCT claim_id FROM webhook_events WHERE webhook_id = $1 AND parked = 0 AND claim_id IN ({})",
            parameters.join(", ")
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(id);
        let query = claims.iter().fold(query, |query, event| query.bind(event.claim_id.as_str()));
        let rows = self.pool.all("sql:claims_with_waiting_events", query).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Records the progress of a webhook. Records nothing and returns `false` if `holder` no longer has the
    /// lease.
    pub(crate) async fn advance_webhook(
        &self,
        id: &str,
        holder: &str,
        now: Timestamp,
        progress: Progress<'_>,
    ) -> Result<bool, SqlError> {
        let Progress { cursor, delivered, waiting } = progress;
        let mut transaction = self.pool.begin_at("sql:advance_webhook").await?;
        let moved = sqlx::query(
            "UPDATE webhooks SET cursor = $3, delivered = delivered + $4, \
             delivered_at = CASE WHEN $4 > 0 THEN $5 ELSE delivered_at END WHERE id = $1 AND holder = $2",
        )
        .bind(id)
        .bind(holder)
        .bind(cursor.to_string())
        .bind(to_i64(delivered))
        .bind(now.as_ms())
        .execute(&mut transaction.lease)
        .await?;
        if moved.rows_affected() == 0 {
            return Ok(false);
        }
        for waiting in waiting {
            insert(&mut transaction, id, waiting).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }

    /// Removes a pending event that was delivered. Changes nothing and returns `false` if `holder` no longer
    /// has the lease: the number may then belong to a different event.
    pub(crate) async fn remove_delivered_event(
        &self,
        id: &str,
        holder: &str,
        number: i64,
        now: Timestamp,
    ) -> Result<bool, SqlError> {
        let mut transaction = self.pool.begin_at("sql:remove_delivered_event").await?;
        let counted = sqlx::query(
            "UPDATE webhooks SET delivered = delivered + 1, delivered_at = $3 WHERE id = $1 AND holder = $2",
        )
        .bind(id)
        .bind(holder)
        .bind(now.as_ms())
        .execute(&mut transaction.lease)
        .await?;
        if counted.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query("DELETE FROM webhook_events WHERE webhook_id = $1 AND number = $2")
            .bind(id)
            .bind(number)
            .execute(&mut transaction.lease)
            .await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Records a failed retry of a pending event. Returns `false` if `holder` no longer has the lease.
    pub(crate) async fn reschedule_event(
        &self,
        id: &str,
        holder: &str,
        waiting: &WaitingEvent,
    ) -> Result<bool, SqlError> {
        let query = sqlx::query(
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
        .bind(&waiting.last_error);
        Ok(self.pool.run("sql:reschedule_event", query).await?.rows_affected() > 0)
    }

    /// Disables a webhook, unless `holder` no longer has its lease.
    pub(crate) async fn disable_webhook(
        &self,
        webhook: &Webhook,
        holder: &str,
        why: &str,
        by: ChangedBy<'_>,
    ) -> Result<(), SqlError> {
        let mut transaction = self.pool.begin_at("sql:disable_webhook").await?;
        let disabled = sqlx::query(
            "UPDATE webhooks SET enabled = 0, disabled_because = $3 WHERE id = $1 AND holder = $2 AND enabled = 1",
        )
        .bind(&webhook.id)
        .bind(holder)
        .bind(why)
        .execute(&mut transaction.lease)
        .await?;
        if disabled.rows_affected() == 0 {
            return Ok(());
        }
        let after = json!({"url": webhook.url, "enabled": false, "disabled_because": why});
        commit_audited(transaction, webhook, by, "webhook_disable", Some(&state(webhook)), &after).await
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
    .execute(&mut transaction.lease)
    .await?;
    Ok(())
}

/// Returns the webhook's state that the audit shows.
fn state(webhook: &Webhook) -> Value {
    json!({"url": webhook.url, "enabled": webhook.disabled_because.is_none()})
}

/// Writes an audit entry for a change of a webhook, and commits.
async fn commit_audited(
    mut transaction: Transaction,
    webhook: &Webhook,
    by: ChangedBy<'_>,
    what: &str,
    before: Option<&Value>,
    after: &Value,
) -> Result<(), SqlError> {
    let number = issue_audit_number(&mut transaction).await?;
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
    .execute(&mut transaction.lease)
    .await?;
    Ok(transaction.commit().await?)
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
