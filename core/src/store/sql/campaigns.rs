//! Campaigns in SQL, and the audit table of their changes.

use std::fmt;
use std::num::NonZeroU32;

use claimgate_shared::campaign::AdminState;
use claimgate_shared::{CampaignId, Limits, Timestamp, Version, Window};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row as _};

use super::audit::draw_number;
use super::numbers::{big, unreadable, unsigned};
use super::pool::Transaction;
use super::statements::campaign_columns;
use super::{SqlError, SqlStore, statements};
use crate::domain::campaign::{Campaign, Evicted, RegisterId};
use crate::domain::counters::{Epoch, FencingToken};
use crate::domain::high_water_mark::HighWaterMark;
use crate::step;

/// The result of a change.
#[derive(Debug)]
pub enum Changed {
    /// Written; this is the campaign now.
    Done(Campaign),
    /// Not written, since it is so already; this is the campaign.
    AsBefore(Campaign),
    /// Not written: the campaign is at another version; this is the campaign now.
    Conflict(Campaign),
    /// Not written: an import is unfinished. Until it is complete, a campaign can only be ended.
    ImportUnfinished,
    /// Not written: the campaign was ended, for good.
    Ended,
    /// Not written: the database has lost the version that the change was to follow.
    Forgotten,
}

/// A page of campaigns.
#[derive(Debug, Default)]
pub struct CampaignPage {
    /// The campaigns that can be read.
    pub campaigns: Vec<Campaign>,
    /// Ids of the campaigns that this version cannot read.
    pub unreadable: Vec<String>,
    /// The last id of the page, readable or not; `None` when the page is empty.
    pub last: Option<String>,
    /// Whether there may be more.
    pub is_full: bool,
}

/// Who changes a campaign and how, for the audit table.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The caller's name.
    pub who: &'a str,
    /// `create`, `update`, `add`, `pause`, `resume`, `end`, `import` or `restore`.
    pub what: &'a str,
    /// When.
    pub at: Timestamp,
}

impl SqlStore {
    /// Writes a new campaign. Returns the one that exists already, if any; then nothing was written.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer. The campaign may have been written all the same.
    pub async fn create(
        &self,
        campaign: &Campaign,
        change: Change<'_>,
    ) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:create").await;
        let mut transaction = self.pool.begin().await?;
        let written = sqlx::query(
            "INSERT INTO campaigns (id, name, starts_at, ends_at, time_zone, total, per_user, per_user_per_day, \
             per_claim, hold_seconds, admin_state, version, epoch, token, register_id, created_at, changed_at, sequence, events) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $16, 0, 0) \
             ON CONFLICT (id) DO NOTHING",
        )
        .bind(campaign.id.as_str())
        .bind(campaign.name.to_string())
        .bind(campaign.window.starts_at().as_ms())
        .bind(campaign.window.ends_at().map(Timestamp::as_ms))
        .bind(campaign.zone.name())
        .bind(campaign.limits.total.map(i64::from))
        .bind(campaign.limits.per_user.map(number))
        .bind(campaign.limits.per_user_per_day.map(number))
        .bind(campaign.limits.per_claim.map(number))
        .bind(campaign.hold_seconds.map(number))
        .bind(admin_state_text(campaign.admin_state))
        .bind(big(campaign.version))
        .bind(big(campaign.epoch))
        .bind(big(campaign.token))
        .bind(campaign.register_id.as_str())
        .bind(change.at.as_ms())
        .execute(&mut *transaction)
        .await?;
        if written.rows_affected() == 0 {
            return select(&mut transaction, &campaign.id).await;
        }
        audit(&mut transaction, None, campaign, change).await?;
        number_change(&mut transaction, &campaign.id).await?;
        step::after(transaction.commit().await)?;
        Ok(None)
    }

    /// Writes the rules of `campaign` in place of those at version `from`; `None` when there is no such campaign. An
    /// evicted campaign that is still over stays evicted; any other evicted one does not. An end gives up an unfinished import.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer. The change may have been written all the same.
    pub async fn change(
        &self,
        from: Version,
        campaign: &Campaign,
        change: Change<'_>,
    ) -> Result<Option<Changed>, SqlError> {
        step::before("sql:change").await;
        let mut transaction = self.pool.begin().await?;
        let Some(before) = lock(&mut transaction, &campaign.id).await? else {
            return Ok(None);
        };
        if before.version != from {
            return Ok(Some(Changed::Conflict(before)));
        }
        if before.unfinished_import.is_some() && campaign.admin_state != AdminState::Ended {
            return Ok(Some(Changed::ImportUnfinished));
        }
        let after = write_rules(&mut transaction, &before, campaign, change).await?;
        number_change(&mut transaction, &after.id).await?;
        step::after(transaction.commit().await)?;
        Ok(Some(Changed::Done(after)))
    }

    /// Pauses, resumes or ends the campaign `id`, at version `least` or whatever later one it is at: whatever changes it
    /// meanwhile comes before or after. `None` when there is no such campaign. One that is in that state already stays as it is, which is
    /// [`Changed::AsBefore`]; an end gives up an unfinished import.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub async fn set_admin_state(
        &self,
        id: &CampaignId,
        least: Version,
        to: AdminState,
        change: Change<'_>,
    ) -> Result<Option<Changed>, SqlError> {
        step::before("sql:set_admin_state").await;
        let mut transaction = self.pool.begin().await?;
        let Some(before) = lock(&mut transaction, id).await? else {
            return Ok(None);
        };
        if before.version < least {
            return Ok(Some(Changed::Forgotten));
        }
        let changes = before.admin_state != to;
        if changes && before.admin_state == AdminState::Ended {
            return Ok(Some(Changed::Ended));
        }
        let needs_all_claims = to == AdminState::On || changes && to == AdminState::Paused;
        if needs_all_claims && before.unfinished_import.is_some() {
            return Ok(Some(Changed::ImportUnfinished));
        }
        if !changes {
            return Ok(Some(Changed::AsBefore(before)));
        }
        let after = Campaign { admin_state: to, version: before.version.next(), ..before.clone() };
        let after = write_rules(&mut transaction, &before, &after, change).await?;
        number_change(&mut transaction, id).await?;
        step::after(transaction.commit().await)?;
        Ok(Some(Changed::Done(after)))
    }

    /// The campaign `id`.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:campaign").await;
        let row = step::after(sqlx::query(SELECT_ONE).bind(id.as_str()).fetch_optional(&self.pool).await)?;
        row.as_ref().map(read).transpose()
    }

    /// Up to `limit` campaigns whose ids come after `after`, in the order of their ids. One that cannot be read does not
    /// hide the others: its id is returned separately, and logged once for as long as it stays unreadable.
    pub(crate) async fn campaigns(&self, after: &str, limit: u32) -> Result<CampaignPage, SqlError> {
        step::before("sql:campaigns").await;
        let rows = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaigns WHERE id > $1 ORDER BY id LIMIT $2"
        ))
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await;
        self.page(&step::after(rows)?, limit)
    }

    /// The page that `rows` are, of at most `limit`.
    pub(super) fn page(&self, rows: &[AnyRow], limit: u32) -> Result<CampaignPage, SqlError> {
        let mut page = CampaignPage::default();
        for row in rows {
            let id: String = row.try_get("id")?;
            let campaign = read(row);
            let error = campaign.as_ref().err().map(|error| error as &dyn fmt::Display);
            self.unreadable.note(&id, error);
            match campaign {
                Ok(campaign) => page.campaigns.push(campaign),
                Err(_) => page.unreadable.push(id.clone()),
            }
            page.last = Some(id);
        }
        page.is_full = u32::try_from(rows.len()).is_ok_and(|rows| rows >= limit);
        Ok(page)
    }

    /// Draws the campaign's next fencing token; `None` when there is no such campaign, or it is evicted. A suspension
    /// under it outranks every earlier one, even one that reaches Redis later.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer. The token may have been drawn all the same.
    pub async fn draw_token(&self, id: &CampaignId) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:draw_token").await;
        let row = sqlx::query(concat!(
            "UPDATE campaigns SET token = token + 1 WHERE id = $1 AND evicted_at IS NULL RETURNING ",
            campaign_columns!()
        ))
        .bind(id.as_str())
        .fetch_optional(&self.pool)
        .await;
        step::after(row)?.as_ref().map(read).transpose()
    }

    /// Raises the epoch of `drawn`, whose token was drawn and has suspended it in Redis, to `to`: whatever an older epoch
    /// still wants to write is stored as revoked from now on. Records the campaign's high-water mark. `None` when another
    /// token has been drawn since.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer. The epoch may have been raised all the same.
    pub async fn raise_epoch(
        &self,
        drawn: &Campaign,
        to: Epoch,
        high_water_mark: HighWaterMark,
    ) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:raise_epoch").await;
        let raise = sqlx::query(concat!(
            "UPDATE campaigns SET epoch = $1, \
             sequence = CASE WHEN $2 > sequence THEN $2 ELSE sequence END, \
             events = CASE WHEN $3 > events THEN $3 ELSE events END \
             WHERE id = $4 AND token = $5 RETURNING ",
            campaign_columns!()
        ))
        .bind(big(to))
        .bind(big(high_water_mark.sequence))
        .bind(big(high_water_mark.events))
        .bind(drawn.id.as_str())
        .bind(big(drawn.token));
        self.numbered(raise).await
    }

    /// As [`Self::raise_epoch`], for keys that go on as they are: only while SQL knows no further than `has`, which is how far
    /// these keys are, is of the epoch of `drawn`, and has refused none of its claims. `None` otherwise: then nothing was changed.
    ///
    /// # Errors
    /// As [`Self::raise_epoch`].
    pub async fn adopt_epoch(
        &self,
        drawn: &Campaign,
        has: HighWaterMark,
    ) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:adopt_epoch").await;
        let mut transaction = self.pool.begin().await?;
        let Some(now) = lock(&mut transaction, &drawn.id).await? else { return Ok(None) };
        // Asked under the lock: whatever has been written is seen here, and nothing more is until the commit.
        let refused = sqlx::query(statements::REFUSED).bind(drawn.id.as_str());
        let has_refused = refused.fetch_optional(&mut *transaction).await?.is_some();
        let is_as_drawn = (now.token, now.epoch) == (drawn.token, drawn.epoch);
        if !is_as_drawn || has_refused || !has.covers(now.high_water_mark) {
            return Ok(None);
        }
        let row = sqlx::query(concat!(
            "UPDATE campaigns SET epoch = $1, sequence = $2, events = $3 WHERE id = $4 RETURNING ",
            campaign_columns!()
        ))
        .bind(big(drawn.epoch.next()))
        .bind(big(has.sequence))
        .bind(big(has.events))
        .bind(drawn.id.as_str())
        .fetch_one(&mut *transaction)
        .await?;
        let adopted = read(&row)?;
        number_change(&mut transaction, &adopted.id).await?;
        step::after(transaction.commit().await)?;
        Ok(Some(adopted))
    }

    /// Records the eviction of `drawn`, whose token was drawn and has suspended it in Redis, and which was relayed then,
    /// and raises its epoch to `to`; `None` when another token has been drawn since, or its rules have changed.
    pub(crate) async fn evict(
        &self,
        drawn: &Campaign,
        to: Epoch,
        evicted: Evicted,
        at: Timestamp,
    ) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:evict").await;
        let evict = sqlx::query(concat!(
            "UPDATE campaigns SET epoch = $1, evicted_at = $2, evicted_taken = $3, evicted_sequence = $4, \
             keys_dropped = 0 WHERE id = $5 AND token = $6 AND version = $7 RETURNING ",
            campaign_columns!()
        ))
        .bind(big(to))
        .bind(at.as_ms())
        .bind(big(evicted.taken))
        .bind(big(evicted.sequence))
        .bind(drawn.id.as_str())
        .bind(big(drawn.token))
        .bind(big(drawn.version));
        self.numbered(evict).await
    }

    /// Makes a change of one row that cores follow; `None` when there is no row that it applies to.
    pub(super) async fn numbered(
        &self,
        change: Query<'_, Any, AnyArguments>,
    ) -> Result<Option<Campaign>, SqlError> {
        let mut transaction = self.pool.begin().await?;
        let Some(row) = change.fetch_optional(&mut *transaction).await? else { return Ok(None) };
        let campaign = read(&row)?;
        number_change(&mut transaction, &campaign.id).await?;
        step::after(transaction.commit().await)?;
        Ok(Some(campaign))
    }

    /// Records that the keys of `evicted` are gone from Redis.
    pub(crate) async fn keys_dropped(&self, evicted: &Campaign) -> Result<(), SqlError> {
        step::before("sql:keys_dropped").await;
        let done = sqlx::query("UPDATE campaigns SET keys_dropped = 1 WHERE id = $1 AND token = $2")
            .bind(evicted.id.as_str())
            .bind(big(evicted.token))
            .execute(&self.pool)
            .await;
        step::after(done)?;
        Ok(())
    }

    /// Up to `limit` evicted campaigns whose keys may still be in Redis.
    pub(crate) async fn keys_to_drop(&self, limit: u32) -> Result<Vec<Campaign>, SqlError> {
        step::before("sql:keys_to_drop").await;
        let rows = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaigns WHERE keys_dropped = 0 AND evicted_at IS NOT NULL ORDER BY id LIMIT $1"
        ))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await;
        step::after(rows)?.iter().map(read).collect()
    }
}

const SELECT_ONE: &str = concat!("SELECT ", campaign_columns!(), " FROM campaigns WHERE id = $1");

pub(super) async fn select(
    transaction: &mut Transaction,
    id: &CampaignId,
) -> Result<Option<Campaign>, SqlError> {
    let row = sqlx::query(SELECT_ONE).bind(id.as_str()).fetch_optional(&mut **transaction).await?;
    row.as_ref().map(read).transpose()
}

/// The campaign `id`, whose row `transaction` holds from now on. Begins with a write that changes nothing: see the module's
/// head.
pub(super) async fn lock(
    transaction: &mut Transaction,
    id: &CampaignId,
) -> Result<Option<Campaign>, SqlError> {
    sqlx::query("UPDATE campaigns SET version = version WHERE id = $1")
        .bind(id.as_str())
        .execute(&mut **transaction)
        .await?;
    select(transaction, id).await
}

/// Writes the rules of `after` in place of those of `before`, and who changed them. Returns the campaign as it is now. An
/// unfinished import that is given up by an end did not wait for holds, as an eviction does: the campaign is loaded again.
pub(super) async fn write_rules(
    transaction: &mut Transaction,
    before: &Campaign,
    after: &Campaign,
    change: Change<'_>,
) -> Result<Campaign, SqlError> {
    let after = Campaign { changed_at: change.at, ..after.clone() };
    let row = sqlx::query(concat!(
        "UPDATE campaigns SET name = $1, starts_at = $2, ends_at = $3, total = $4, per_user = $5, \
         per_user_per_day = $6, per_claim = $7, hold_seconds = $8, admin_state = $9, version = $10, changed_at = $11, \
         evicted_at = CASE WHEN $12 = 1 AND import_digest IS NULL THEN evicted_at END, import_digest = NULL \
         WHERE id = $13 RETURNING ",
        campaign_columns!()
    ))
    .bind(after.name.to_string())
    .bind(after.window.starts_at().as_ms())
    .bind(after.window.ends_at().map(Timestamp::as_ms))
    .bind(after.limits.total.map(i64::from))
    .bind(after.limits.per_user.map(number))
    .bind(after.limits.per_user_per_day.map(number))
    .bind(after.limits.per_claim.map(number))
    .bind(after.hold_seconds.map(number))
    .bind(admin_state_text(after.admin_state))
    .bind(big(after.version))
    .bind(change.at.as_ms())
    .bind(i64::from(after.over_since(change.at).is_some()))
    .bind(after.id.as_str())
    .fetch_one(&mut **transaction)
    .await?;
    let after = read(&row)?;
    audit(transaction, Some(before), &after, change).await?;
    Ok(after)
}

pub(super) async fn audit(
    transaction: &mut Transaction,
    before: Option<&Campaign>,
    after: &Campaign,
    change: Change<'_>,
) -> Result<(), SqlError> {
    let number = draw_number(transaction).await?;
    sqlx::query(
        "INSERT INTO audit (campaign_id, version, at, who, what, before, after, number) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(after.id.as_str())
    .bind(big(after.version))
    .bind(change.at.as_ms())
    .bind(change.who)
    .bind(change.what)
    .bind(before.map(rules_json))
    .bind(rules_json(after))
    .bind(number)
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

fn rules_json(campaign: &Campaign) -> String {
    serde_json::json!({
        "name": campaign.name, "starts_at": campaign.window.starts_at(), "ends_at": campaign.window.ends_at(),
        "time_zone": campaign.zone.name(), "limits": campaign.limits, "hold_seconds": campaign.hold_seconds,
        "admin_state": campaign.admin_state,
    })
    .to_string()
}

pub(super) fn read(row: &AnyRow) -> Result<Campaign, SqlError> {
    let time = |ms: i64| Timestamp::from_ms(ms).map_err(unreadable);
    let limit = |column: &str| -> Result<Option<NonZeroU32>, SqlError> {
        let number: Option<i64> = row.try_get(column)?;
        number.map(|n| u32::try_from(n).and_then(NonZeroU32::try_from).map_err(unreadable)).transpose()
    };
    let ends_at: Option<i64> = row.try_get("ends_at")?;
    let total: Option<i64> = row.try_get("total")?;
    Ok(Campaign {
        id: row.try_get::<String, _>("id")?.try_into().map_err(unreadable)?,
        name: row.try_get::<String, _>("name")?.try_into().map_err(unreadable)?,
        window: Window::new(time(row.try_get("starts_at")?)?, ends_at.map(time).transpose()?)
            .map_err(unreadable)?,
        zone: row.try_get::<String, _>("time_zone")?.try_into().map_err(unreadable)?,
        limits: Limits {
            total: total.map(|total| u32::try_from(total).map_err(unreadable)).transpose()?,
            per_user: limit("per_user")?,
            per_user_per_day: limit("per_user_per_day")?,
            per_claim: limit("per_claim")?,
        },
        hold_seconds: limit("hold_seconds")?,
        admin_state: admin_state_of(&row.try_get::<String, _>("admin_state")?)?,
        version: Version::new(unsigned(row.try_get("version")?)?),
        epoch: Epoch::new(unsigned(row.try_get("epoch")?)?),
        token: FencingToken::new(unsigned(row.try_get("token")?)?),
        register_id: RegisterId::from(row.try_get::<String, _>("register_id")?),
        high_water_mark: HighWaterMark {
            sequence: unsigned(row.try_get("sequence")?)?,
            events: unsigned(row.try_get("events")?)?,
        },
        changed_at: time(row.try_get("changed_at")?)?,
        evicted: evicted(row)?,
        unfinished_import: row.try_get("import_digest")?,
    })
}

fn number(limit: NonZeroU32) -> i64 {
    i64::from(limit.get())
}

fn admin_state_text(admin_state: AdminState) -> &'static str {
    match admin_state {
        AdminState::On => "on",
        AdminState::Paused => "paused",
        AdminState::Ended => "ended",
    }
}

fn admin_state_of(text: &str) -> Result<AdminState, SqlError> {
    match text {
        "on" => Ok(AdminState::On),
        "paused" => Ok(AdminState::Paused),
        "ended" => Ok(AdminState::Ended),
        other => Err(unreadable(other)),
    }
}

fn evicted(row: &AnyRow) -> Result<Option<Evicted>, SqlError> {
    if row.try_get::<Option<i64>, _>("evicted_at")?.is_none() {
        return Ok(None);
    }
    let taken = unsigned(row.try_get("evicted_taken")?)?;
    Ok(Some(Evicted { taken, sequence: unsigned(row.try_get("evicted_sequence")?)? }))
}

/// Gives a campaign that `transaction` has changed the next number. To be called last before the commit: until then no
/// other campaign's change can be committed.
pub(super) async fn number_change(
    transaction: &mut Transaction,
    campaign: &CampaignId,
) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE last_change SET number = number + 1").execute(&mut **transaction).await?;
    sqlx::query("UPDATE campaigns SET change_number = (SELECT number FROM last_change) WHERE id = $1")
        .bind(campaign.as_str())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}
