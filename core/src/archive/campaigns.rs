//! Campaigns in SQL, and the record of who changed them.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use claimgate_shared::campaign::Switch;
use claimgate_shared::{CampaignId, Limits, Timestamp, Window};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::pool::Transaction;
use super::{Archive, ArchiveError};
use crate::campaign::{Archived, Campaign, Reached};

/// What became of a change.
#[derive(Debug)]
pub enum Changed {
    /// Written; this is the campaign now.
    Done(Campaign),
    /// It was at another version.
    Conflict(Campaign),
}

/// A page of campaigns.
#[derive(Debug, Default)]
pub struct CampaignPage {
    /// Those that can be read.
    pub campaigns: Vec<Campaign>,
    /// Ids of those that this version cannot read.
    pub unreadable: Vec<String>,
    /// The last id of the page, of whichever; `None` when there is none.
    pub last: Option<String>,
    /// Whether there may be more.
    pub is_full: bool,
}

/// Campaigns that the log has named as unreadable.
#[derive(Debug, Default)]
pub(super) struct Unreadable(Mutex<HashSet<String>>);

impl Unreadable {
    fn note(&self, id: &str, error: Option<&ArchiveError>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) if known.insert(id.to_owned()) => {
                tracing::error!(campaign = id, %error, "this campaign is left alone; the others go on");
            }
            None if known.remove(id) => tracing::info!(campaign = id, "can be read again"),
            _ => {}
        }
    }
}

/// Who changes a campaign and how, for the record.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The caller's name.
    pub who: &'a str,
    /// `create`, `update`, `pause`, `resume` or `end`.
    pub what: &'a str,
    /// When.
    pub at: Timestamp,
}

impl Archive {
    /// Writes a new campaign; `Some` is the one that is there already.
    pub async fn create(
        &self,
        campaign: &Campaign,
        change: Change<'_>,
    ) -> Result<Option<Campaign>, ArchiveError> {
        let mut transaction = self.pool.begin().await?;
        let written = sqlx::query(
            "INSERT INTO campaigns (id, name, starts_at, ends_at, time_zone, total, per_user, per_user_per_day, \
             per_claim, hold_seconds, switch, version, epoch, created_at, changed_at, sequence, events) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14, 0, 0) ON CONFLICT (id) DO NOTHING",
        )
        .bind(campaign.id.as_str())
        .bind(campaign.name.to_string())
        .bind(campaign.window.starts_at().as_ms())
        .bind(campaign.window.ends_at().map(Timestamp::as_ms))
        .bind(campaign.zone.name())
        .bind(campaign.limits.total.map(number))
        .bind(campaign.limits.per_user.map(number))
        .bind(campaign.limits.per_user_per_day.map(number))
        .bind(campaign.limits.per_claim.map(number))
        .bind(campaign.hold_seconds.map(number))
        .bind(switch_text(campaign.switch))
        .bind(big(campaign.version))
        .bind(big(campaign.epoch))
        .bind(change.at.as_ms())
        .execute(&mut *transaction)
        .await?;
        if written.rows_affected() == 0 {
            return select(&mut transaction, &campaign.id).await;
        }
        audit(&mut transaction, None, campaign, change).await?;
        transaction.commit().await?;
        Ok(None)
    }

    /// Writes `campaign` in place of the one at version `from`; `None` when there is none.
    pub async fn change(
        &self,
        from: u64,
        campaign: &Campaign,
        change: Change<'_>,
    ) -> Result<Option<Changed>, ArchiveError> {
        let mut transaction = self.pool.begin().await?;
        // Begins with a write that changes nothing, to hold the row: see the module's head.
        sqlx::query("UPDATE campaigns SET version = version WHERE id = $1")
            .bind(campaign.id.as_str())
            .execute(&mut *transaction)
            .await?;
        let Some(before) = select(&mut transaction, &campaign.id).await? else {
            return Ok(None);
        };
        if before.version != from {
            return Ok(Some(Changed::Conflict(before)));
        }
        let after = Campaign { epoch: before.epoch, changed_at: change.at, ..campaign.clone() };
        sqlx::query(
            "UPDATE campaigns SET archived_at = NULL, name = $1, starts_at = $2, ends_at = $3, total = $4, per_user = $5, \
             per_user_per_day = $6, per_claim = $7, switch = $8, version = $9, changed_at = $10 WHERE id = $11",
        )
        .bind(after.name.to_string())
        .bind(after.window.starts_at().as_ms())
        .bind(after.window.ends_at().map(Timestamp::as_ms))
        .bind(after.limits.total.map(number))
        .bind(after.limits.per_user.map(number))
        .bind(after.limits.per_user_per_day.map(number))
        .bind(after.limits.per_claim.map(number))
        .bind(switch_text(after.switch))
        .bind(big(after.version))
        .bind(change.at.as_ms())
        .bind(after.id.as_str())
        .execute(&mut *transaction)
        .await?;
        audit(&mut transaction, Some(&before), &after, change).await?;
        transaction.commit().await?;
        Ok(Some(Changed::Done(after)))
    }

    /// The campaign `id`.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Option<Campaign>, ArchiveError> {
        let row = sqlx::query(SELECT_ONE).bind(id.as_str()).fetch_optional(&self.pool).await?;
        row.as_ref().map(read).transpose()
    }

    /// Up to `limit` campaigns in the order of their ids, those after `after` first. One that cannot be read stops no
    /// other: it is named apart, and in the log once for as long as it stays so.
    pub async fn campaigns(&self, after: &str, limit: u32) -> Result<CampaignPage, ArchiveError> {
        let rows = sqlx::query("SELECT * FROM campaigns WHERE id > $1 ORDER BY id LIMIT $2")
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await?;
        let mut page = CampaignPage::default();
        for row in &rows {
            let id: String = row.try_get("id")?;
            let campaign = read(row);
            self.unreadable.note(&id, campaign.as_ref().err());
            match campaign {
                Ok(campaign) => page.campaigns.push(campaign),
                Err(_) => page.unreadable.push(id.clone()),
            }
            page.last = Some(id);
        }
        page.is_full = u32::try_from(rows.len()).is_ok_and(|rows| rows >= limit);
        Ok(page)
    }

    /// Raises the campaign's epoch from `from` to `to`, so that whatever an older one still wants to write is stored as
    /// revoked, and notes how far it has been seen to come; `None` when it is not at `from` any more.
    pub async fn raise_epoch(
        &self,
        id: &CampaignId,
        (from, to): (u64, u64),
        reached: Reached,
    ) -> Result<Option<Campaign>, ArchiveError> {
        let row = sqlx::query(
            "UPDATE campaigns SET epoch = $1, archived_at = NULL, \
             sequence = CASE WHEN $2 > sequence THEN $2 ELSE sequence END, \
             events = CASE WHEN $3 > events THEN $3 ELSE events END WHERE id = $4 AND epoch = $5 RETURNING *",
        )
        .bind(big(to))
        .bind(big(reached.sequence))
        .bind(big(reached.events))
        .bind(id.as_str())
        .bind(big(from))
        .fetch_optional(&self.pool)
        .await?;
        row.as_ref().map(read).transpose()
    }

    /// Takes note that a drained campaign leaves Redis, raising its epoch from `from` to `to`; `None` when it is not
    /// at `from` any more.
    pub async fn archive_campaign(
        &self,
        id: &CampaignId,
        (from, to): (u64, u64),
        archived: Archived,
        at: Timestamp,
    ) -> Result<Option<Campaign>, ArchiveError> {
        let row = sqlx::query(
            "UPDATE campaigns SET epoch = $1, archived_at = $2, archived_taken = $3, archived_sequence = $4 \
             WHERE id = $5 AND epoch = $6 RETURNING *",
        )
        .bind(big(to))
        .bind(at.as_ms())
        .bind(big(archived.taken))
        .bind(big(archived.sequence))
        .bind(id.as_str())
        .bind(big(from))
        .fetch_optional(&self.pool)
        .await?;
        row.as_ref().map(read).transpose()
    }
}

const SELECT_ONE: &str = "SELECT * FROM campaigns WHERE id = $1";

async fn select(transaction: &mut Transaction, id: &CampaignId) -> Result<Option<Campaign>, ArchiveError> {
    let row = sqlx::query(SELECT_ONE).bind(id.as_str()).fetch_optional(&mut **transaction).await?;
    row.as_ref().map(read).transpose()
}

async fn audit(
    transaction: &mut Transaction,
    before: Option<&Campaign>,
    after: &Campaign,
    change: Change<'_>,
) -> Result<(), ArchiveError> {
    sqlx::query(
        "INSERT INTO audit (campaign_id, version, at, who, what, before, after) VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(after.id.as_str())
    .bind(big(after.version))
    .bind(change.at.as_ms())
    .bind(change.who)
    .bind(change.what)
    .bind(before.map(rules_json))
    .bind(rules_json(after))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

fn rules_json(campaign: &Campaign) -> String {
    serde_json::json!({
        "name": campaign.name, "starts_at": campaign.window.starts_at(), "ends_at": campaign.window.ends_at(),
        "time_zone": campaign.zone.name(), "limits": campaign.limits, "hold_seconds": campaign.hold_seconds,
        "switch": campaign.switch,
    })
    .to_string()
}

pub(super) fn read(row: &AnyRow) -> Result<Campaign, ArchiveError> {
    let time = |ms: i64| Timestamp::from_ms(ms).map_err(unreadable);
    let limit = |column: &str| -> Result<Option<NonZeroU32>, ArchiveError> {
        let number: Option<i64> = row.try_get(column)?;
        number.map(|n| u32::try_from(n).and_then(NonZeroU32::try_from).map_err(unreadable)).transpose()
    };
    let ends_at: Option<i64> = row.try_get("ends_at")?;
    Ok(Campaign {
        id: row.try_get::<String, _>("id")?.try_into().map_err(unreadable)?,
        name: row.try_get::<String, _>("name")?.try_into().map_err(unreadable)?,
        window: Window::new(time(row.try_get("starts_at")?)?, ends_at.map(time).transpose()?)
            .map_err(unreadable)?,
        zone: row.try_get::<String, _>("time_zone")?.try_into().map_err(unreadable)?,
        limits: Limits {
            total: limit("total")?,
            per_user: limit("per_user")?,
            per_user_per_day: limit("per_user_per_day")?,
            per_claim: limit("per_claim")?,
        },
        hold_seconds: limit("hold_seconds")?,
        switch: switch(&row.try_get::<String, _>("switch")?)?,
        version: unsigned(row.try_get("version")?)?,
        epoch: unsigned(row.try_get("epoch")?)?,
        reached: Reached {
            sequence: unsigned(row.try_get("sequence")?)?,
            events: unsigned(row.try_get("events")?)?,
        },
        changed_at: time(row.try_get("changed_at")?)?,
        archived: archived(row)?,
    })
}

pub(super) fn unreadable(error: impl std::fmt::Display) -> ArchiveError {
    ArchiveError::Unreadable(error.to_string())
}

pub(super) fn unsigned(number: i64) -> Result<u64, ArchiveError> {
    u64::try_from(number).map_err(unreadable)
}

/// SQL's integers are signed; what is counted here stays far below 2^63.
pub(super) fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(limit: NonZeroU32) -> i64 {
    i64::from(limit.get())
}

fn switch_text(switch: Switch) -> &'static str {
    match switch {
        Switch::On => "on",
        Switch::Paused => "paused",
        Switch::Ended => "ended",
    }
}

fn switch(text: &str) -> Result<Switch, ArchiveError> {
    match text {
        "on" => Ok(Switch::On),
        "paused" => Ok(Switch::Paused),
        "ended" => Ok(Switch::Ended),
        other => Err(unreadable(other)),
    }
}

fn archived(row: &AnyRow) -> Result<Option<Archived>, ArchiveError> {
    if row.try_get::<Option<i64>, _>("archived_at")?.is_none() {
        return Ok(None);
    }
    let taken = unsigned(row.try_get("archived_taken")?)?;
    Ok(Some(Archived { taken, sequence: unsigned(row.try_get("archived_sequence")?)? }))
}
