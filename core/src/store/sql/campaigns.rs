//! Reads and writes campaigns in SQL. Every change writes an audit entry.

use std::fmt;
use std::num::NonZeroU32;

use claimgate_shared::campaign::AdminState;
use claimgate_shared::{CampaignId, Limits, PassRule, Timestamp, Version, Window};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row as _};

use super::audit::issue_audit_number;
use super::lost_codes::may_have_lost_codes;
use super::numbers::{to_i64, unreadable, unsigned};
use super::pool::Transaction;
use super::statements::campaign_columns;
use super::user_ids::{checked_user_ids, pinned_user_ids};
use super::{SqlError, SqlStore, statements};
use crate::domain::campaign::{Campaign, Evicted, Name, RegisterId, ShownProgress};
use crate::domain::codes::CodeStock;
use crate::domain::counters::{Epoch, FencingToken};
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::user_ids::PinnedScheme;

/// The result of a change. Any campaign in the result is in its current state.
#[derive(Debug)]
pub enum Changed {
    /// The change was written.
    Done(Campaign),
    /// Nothing was written: the campaign is in the requested state already.
    Unchanged(Campaign),
    /// Nothing was written: the campaign is at a different version.
    Conflict(Campaign),
    /// Nothing was written: an import is unfinished. Until the import is complete, the campaign can only be
    /// ended.
    ImportUnfinished,
    /// Nothing was written: the campaign has been ended, which is final.
    Ended,
    /// Nothing was written: the campaign has not ended.
    NotEnded,
    /// Nothing was written: the database has lost the version that the change is based on, or may have lost
    /// later data.
    Forgotten,
    /// Nothing was written: the campaign had ended when these user ids were pinned, and the change would open it.
    UserIdsChanged(PinnedScheme),
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
    /// Whether there may be more campaigns.
    pub is_full: bool,
}

/// The audit's description of a change: caller, kind and time.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The caller's name.
    pub who: &'a str,
    /// The kind of change: `create`, `update`, `add`, `codes`, `pause`, `resume`, `end`, `import`, `restore`,
    /// `archive` or `unarchive`.
    pub what: &'a str,
    /// The time of the change.
    pub at: Timestamp,
}

impl SqlStore {
    /// Writes a new campaign. If the id is in use, writes nothing and returns the existing campaign.
    pub async fn create(
        &self,
        campaign: &Campaign,
        change: Change<'_>,
    ) -> Result<Option<Campaign>, SqlError> {
        let mut transaction = self.pool.begin_at("sql:create").await?;
        let written = sqlx::query(
            "INSERT INTO campaigns (id, name, starts_at, ends_at, time_zone, total, per_user, per_user_per_day, \
             per_claim, hold_seconds, pass_required, pass_until, has_codes, admin_state, version, epoch, token, register_id, \
             created_at, changed_at, sequence, events) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $19, 0, 0) \
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
        .bind(campaign.pass.map(pass_text))
        .bind(campaign.pass.and_then(PassRule::until).map(Timestamp::as_ms))
        .bind(i64::from(campaign.codes.is_some()))
        .bind(admin_state_text(campaign.admin_state))
        .bind(to_i64(campaign.version))
        .bind(to_i64(campaign.epoch))
        .bind(to_i64(campaign.token))
        .bind(campaign.register_id.as_str())
        .bind(change.at.as_ms())
        .execute(&mut transaction.lease)
        .await?;
        if written.rows_affected() == 0 {
            return select(&mut transaction, &campaign.id).await;
        }
        audit(&mut transaction, None, campaign, change).await?;
        number_change(&mut transaction, &campaign.id).await?;
        transaction.commit().await?;
        Ok(None)
    }

    /// Replaces the rules at version `from` with those of `campaign`. Returns `None` if there is no such
    /// campaign. An evicted campaign stays evicted only if it is still over. Ending a campaign abandons an
    /// unfinished import. `shown` reads the campaign's progress in Redis, `None` if Redis does not answer.
    pub async fn change(
        &self,
        from: Version,
        campaign: &Campaign,
        change: Change<'_>,
        shown: impl Future<Output = Option<ShownProgress>>,
    ) -> Result<Option<Changed>, SqlError> {
        let mut transaction = self.pool.begin_at("sql:change").await?;
        let Some(before) = lock(&mut transaction, &campaign.id).await? else {
            return Ok(None);
        };
        if before.version != from {
            return Ok(Some(Changed::Conflict(before)));
        }
        if may_have_lost_codes(&before, shown).await {
            return Ok(Some(Changed::Forgotten));
        }
        if before.unfinished_import.is_some() && campaign.admin_state != AdminState::Ended {
            return Ok(Some(Changed::ImportUnfinished));
        }
        let after = write_rules(&mut transaction, &before, campaign, change).await?;
        // The audit entry of these rules keeps other transactions from changing the pinned user-id scheme
        // until the commit.
        if let Some(pinned) = pinned_user_ids(&mut transaction).await?
            && !pinned.allows_window(before.window, after.window)
        {
            return Ok(Some(Changed::UserIdsChanged(pinned)));
        }
        number_change(&mut transaction, &after.id).await?;
        transaction.commit().await?;
        Ok(Some(Changed::Done(after)))
    }

    /// Pauses, resumes or ends the campaign `id`, which must be at version `least` or later; concurrent
    /// changes are serialized. Returns `None` if there is no such campaign, and [`Changed::Unchanged`] if the
    /// campaign is in that state already. Ending a campaign abandons an unfinished import. `shown` as for
    /// [`Self::change`].
    pub async fn set_admin_state(
        &self,
        id: &CampaignId,
        least: Version,
        to: AdminState,
        change: Change<'_>,
        shown: impl Future<Output = Option<ShownProgress>>,
    ) -> Result<Option<Changed>, SqlError> {
        let mut transaction = self.pool.begin_at("sql:set_admin_state").await?;
        let Some(before) = lock(&mut transaction, id).await? else {
            return Ok(None);
        };
        if before.version < least || may_have_lost_codes(&before, shown).await {
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
            return Ok(Some(Changed::Unchanged(before)));
        }
        let after = Campaign { admin_state: to, version: before.version.next(), ..before.clone() };
        let after = write_rules(&mut transaction, &before, &after, change).await?;
        number_change(&mut transaction, id).await?;
        transaction.commit().await?;
        Ok(Some(Changed::Done(after)))
    }

    /// Reads the campaign `id`.
    pub async fn campaign(&self, id: &CampaignId) -> Result<Option<Campaign>, SqlError> {
        let query = sqlx::query(SELECT_ONE).bind(id.as_str());
        self.pool.optional("sql:campaign", query).await?.as_ref().map(read).transpose()
    }

    /// Returns up to `limit` campaigns with ids after `after`, ordered by id. The ids of unreadable campaigns
    /// are returned separately, and each unreadable campaign is logged once.
    pub(crate) async fn campaigns(&self, after: &str, limit: u32) -> Result<CampaignPage, SqlError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaigns WHERE id > $1 ORDER BY id LIMIT $2"
        ))
        .bind(after)
        .bind(i64::from(limit));
        self.page(&self.pool.all("sql:campaigns", query).await?, limit)
    }

    /// Builds a page from at most `limit` `rows`.
    pub(super) fn page(&self, rows: &[AnyRow], limit: u32) -> Result<CampaignPage, SqlError> {
        let mut page = CampaignPage::default();
        for row in rows {
            let id: String = row.try_get("id")?;
            let campaign = read(row);
            let error = campaign.as_ref().err().map(|error| error as &dyn fmt::Display);
            self.unreadable.log_change(&id, error);
            match campaign {
                Ok(campaign) => page.campaigns.push(campaign),
                Err(_) => page.unreadable.push(id.clone()),
            }
            page.last = Some(id);
        }
        page.is_full = u32::try_from(rows.len()).is_ok_and(|rows| rows >= limit);
        Ok(page)
    }

    /// Issues the campaign's next fencing token. Returns `None` if there is no such campaign, or it is
    /// evicted. A suspension under this token outranks all suspensions under earlier tokens, even if they
    /// reach Redis later.
    pub async fn issue_token(&self, id: &CampaignId) -> Result<Option<Campaign>, SqlError> {
        let query = sqlx::query(concat!(
            "UPDATE campaigns SET token = token + 1 WHERE id = $1 AND evicted_at IS NULL RETURNING ",
            campaign_columns!()
        ))
        .bind(id.as_str());
        self.pool.optional("sql:issue_token", query).await?.as_ref().map(read).transpose()
    }

    /// Raises the epoch of `suspended` to `to`, and records the high-water mark. The campaign must be
    /// suspended in Redis under the token of `suspended`, and SQL must have all of its claims, whose user ids are
    /// checked. Claims of an older epoch that arrive later are stored as revoked. Returns `None` if another token
    /// has been issued in the meantime.
    pub async fn raise_epoch(
        &self,
        suspended: &Campaign,
        to: Epoch,
        high_water_mark: HighWaterMark,
    ) -> Result<Option<Campaign>, SqlError> {
        // A scheme that is pinned after this read leaves the campaign unchecked.
        let checked = self.scheme_of_all_claims(&suspended.id).await?;
        let raise = sqlx::query(concat!(
            "UPDATE campaigns SET epoch = $1, checked_user_ids = $6, \
             sequence = CASE WHEN $2 > sequence THEN $2 ELSE sequence END, \
             events = CASE WHEN $3 > events THEN $3 ELSE events END \
             WHERE id = $4 AND token = $5 RETURNING ",
            campaign_columns!()
        ))
        .bind(to_i64(to))
        .bind(to_i64(high_water_mark.sequence))
        .bind(to_i64(high_water_mark.events))
        .bind(suspended.id.as_str())
        .bind(to_i64(suspended.token))
        .bind(checked.map(|scheme| scheme.to_string()));
        self.commit_numbered("sql:raise_epoch", raise).await
    }

    /// Raises the epoch as [`Self::raise_epoch`] does, to adopt the keys in Redis unchanged; `has` is the
    /// keys' high-water mark. Changes nothing and returns `None` if SQL is ahead of `has`, is at a different
    /// epoch than `suspended`, or has refused any claim of the campaign.
    pub async fn raise_epoch_to_adopt(
        &self,
        suspended: &Campaign,
        has: HighWaterMark,
    ) -> Result<Option<Campaign>, SqlError> {
        let mut transaction = self.pool.begin_at("sql:raise_epoch_to_adopt").await?;
        let Some(now) = lock(&mut transaction, &suspended.id).await? else { return Ok(None) };
        // The row lock keeps this read current: no other transaction writes claims until the commit.
        let refused = sqlx::query(statements::REFUSED).bind(suspended.id.as_str());
        let has_refused = refused.fetch_optional(&mut transaction.lease).await?.is_some();
        let is_unchanged = (now.token, now.epoch) == (suspended.token, suspended.epoch);
        if !is_unchanged || has_refused || !has.covers(now.high_water_mark) {
            return Ok(None);
        }
        let row = sqlx::query(concat!(
            "UPDATE campaigns SET epoch = $1, sequence = $2, events = $3 WHERE id = $4 RETURNING ",
            campaign_columns!()
        ))
        .bind(to_i64(suspended.epoch.next()))
        .bind(to_i64(has.sequence))
        .bind(to_i64(has.events))
        .bind(suspended.id.as_str())
        .fetch_one(&mut transaction.lease)
        .await?;
        let adopted = read(&row)?;
        number_change(&mut transaction, &adopted.id).await?;
        transaction.commit().await?;
        Ok(Some(adopted))
    }

    /// Records the eviction of `suspended`, and raises its epoch to `to`. The campaign must be suspended in
    /// Redis under the token of `suspended`, and then relayed. Returns `None` if another token has been
    /// issued, or the rules have been changed, in the meantime.
    pub(crate) async fn evict(
        &self,
        suspended: &Campaign,
        to: Epoch,
        evicted: Evicted,
        at: Timestamp,
    ) -> Result<Option<Campaign>, SqlError> {
        let evict = sqlx::query(concat!(
            "UPDATE campaigns SET epoch = $1, evicted_at = $2, evicted_taken = $3, evicted_sequence = $4, \
             keys_dropped = 0 WHERE id = $5 AND token = $6 AND version = $7 RETURNING ",
            campaign_columns!()
        ))
        .bind(to_i64(to))
        .bind(at.as_ms())
        .bind(to_i64(evicted.taken))
        .bind(to_i64(evicted.sequence))
        .bind(suspended.id.as_str())
        .bind(to_i64(suspended.token))
        .bind(to_i64(suspended.version));
        self.commit_numbered("sql:evict", evict).await
    }

    /// Runs `change`, which updates one campaign, and numbers the change for other cores. Returns `None` if
    /// no row matches.
    pub(super) async fn commit_numbered(
        &self,
        step: &'static str,
        change: Query<'_, Any, AnyArguments>,
    ) -> Result<Option<Campaign>, SqlError> {
        let mut transaction = self.pool.begin_at(step).await?;
        let Some(row) = change.fetch_optional(&mut transaction.lease).await? else { return Ok(None) };
        let campaign = read(&row)?;
        number_change(&mut transaction, &campaign.id).await?;
        transaction.commit().await?;
        Ok(Some(campaign))
    }

    /// Records that the keys of `evicted` have been removed from Redis.
    pub(crate) async fn keys_dropped(&self, evicted: &Campaign) -> Result<(), SqlError> {
        let query = sqlx::query("UPDATE campaigns SET keys_dropped = 1 WHERE id = $1 AND token = $2")
            .bind(evicted.id.as_str())
            .bind(to_i64(evicted.token));
        self.pool.run("sql:keys_dropped", query).await?;
        Ok(())
    }

    /// Returns up to `limit` evicted campaigns whose keys may still be in Redis.
    pub(crate) async fn keys_to_drop(&self, limit: u32) -> Result<Vec<Campaign>, SqlError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaigns WHERE keys_dropped = 0 AND evicted_at IS NOT NULL ORDER BY id LIMIT $1"
        ))
        .bind(i64::from(limit));
        self.pool.all("sql:keys_to_drop", query).await?.iter().map(read).collect()
    }
}

const SELECT_ONE: &str = concat!("SELECT ", campaign_columns!(), " FROM campaigns WHERE id = $1");

pub(super) async fn select(
    transaction: &mut Transaction,
    id: &CampaignId,
) -> Result<Option<Campaign>, SqlError> {
    let row = sqlx::query(SELECT_ONE).bind(id.as_str()).fetch_optional(&mut transaction.lease).await?;
    row.as_ref().map(read).transpose()
}

/// Locks the row of the campaign `id` until the end of `transaction`, and returns the campaign. The first
/// statement is a write that changes nothing, to lock the row; see the documentation of `sql`.
pub(super) async fn lock(
    transaction: &mut Transaction,
    id: &CampaignId,
) -> Result<Option<Campaign>, SqlError> {
    sqlx::query("UPDATE campaigns SET version = version WHERE id = $1")
        .bind(id.as_str())
        .execute(&mut transaction.lease)
        .await?;
    select(transaction, id).await
}

/// Replaces the rules of `before` with those of `after`, and writes the audit entry. Returns the updated
/// campaign. A campaign that has not ended any more is no longer archived. Ending a campaign abandons its
/// unfinished import. An import, unlike an eviction, does not wait for holds to end, so the campaign is then reloaded.
pub(super) async fn write_rules(
    transaction: &mut Transaction,
    before: &Campaign,
    after: &Campaign,
    change: Change<'_>,
) -> Result<Campaign, SqlError> {
    let after = Campaign { changed_at: change.at, ..after.clone() };
    let row = sqlx::query(concat!(
        "UPDATE campaigns SET name = $1, starts_at = $2, ends_at = $3, total = $4, per_user = $5, \
         per_user_per_day = $6, per_claim = $7, hold_seconds = $8, pass_required = $9, pass_until = $10, \
         admin_state = $11, version = $12, changed_at = $13, \
         evicted_at = CASE WHEN $14 = 1 AND import_digest IS NULL THEN evicted_at END, import_digest = NULL, \
         archived_at = CASE WHEN $14 = 1 THEN archived_at END \
         WHERE id = $15 RETURNING ",
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
    .bind(after.pass.map(pass_text))
    .bind(after.pass.and_then(PassRule::until).map(Timestamp::as_ms))
    .bind(admin_state_text(after.admin_state))
    .bind(to_i64(after.version))
    .bind(change.at.as_ms())
    .bind(i64::from(after.ended_at(change.at).is_some()))
    .bind(after.id.as_str())
    .fetch_one(&mut transaction.lease)
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
    let number = issue_audit_number(transaction).await?;
    sqlx::query(
        "INSERT INTO audit (campaign_id, version, at, who, what, before, after, number) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(after.id.as_str())
    .bind(to_i64(after.version))
    .bind(change.at.as_ms())
    .bind(change.who)
    .bind(change.what)
    .bind(before.map(rules_json))
    .bind(rules_json(after))
    .bind(number)
    .execute(&mut transaction.lease)
    .await?;
    Ok(())
}

fn rules_json(campaign: &Campaign) -> String {
    serde_json::json!({
        "name": campaign.name, "starts_at": campaign.window.starts_at(), "ends_at": campaign.window.ends_at(),
        "time_zone": campaign.zone.name(), "limits": campaign.limits, "hold_seconds": campaign.hold_seconds,
        "pass": campaign.pass, "codes": campaign.codes.map(|stock| stock.added),
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
        name: Name::stored(row.try_get("name")?),
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
        pass: pass(row)?,
        codes: read_stock(row)?,
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
        archived: row.try_get::<Option<i64>, _>("archived_at")?.is_some(),
        checked_user_ids: checked_user_ids(row)?,
    })
}

/// Reads the columns of a campaign's codes; `None` for a campaign without codes.
pub(super) fn read_stock(row: &AnyRow) -> Result<Option<CodeStock>, SqlError> {
    let pending_from: Option<i64> = row.try_get("codes_pending_from")?;
    let stock = CodeStock {
        added: unsigned(row.try_get("codes_added")?)?,
        assigned: unsigned(row.try_get("codes_assigned")?)?,
        pending_from: pending_from.map(unsigned).transpose()?,
    };
    Ok((row.try_get::<i64, _>("has_codes")? == 1).then_some(stock))
}

fn number(limit: NonZeroU32) -> i64 {
    i64::from(limit.get())
}

fn pass_text(rule: PassRule) -> &'static str {
    match rule {
        PassRule::Always => "always",
        PassRule::Until { .. } => "until",
    }
}

fn pass(row: &AnyRow) -> Result<Option<PassRule>, SqlError> {
    let until: Option<i64> = row.try_get("pass_until")?;
    match (row.try_get::<Option<String>, _>("pass_required")?.as_deref(), until) {
        (None, _) => Ok(None),
        (Some("always"), _) => Ok(Some(PassRule::Always)),
        (Some("until"), Some(ms)) => {
            Ok(Some(PassRule::Until { until: Timestamp::from_ms(ms).map_err(unreadable)? }))
        }
        (Some(other), _) => Err(unreadable(format!("pass_required {other}"))),
    }
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

/// Assigns the next change number to a campaign's change in `transaction`. Call it last: until the commit, no
/// change of any other campaign can be committed.
pub(super) async fn number_change(
    transaction: &mut Transaction,
    campaign: &CampaignId,
) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE last_change SET number = number + 1").execute(&mut transaction.lease).await?;
    sqlx::query("UPDATE campaigns SET change_number = (SELECT number FROM last_change) WHERE id = $1")
        .bind(campaign.as_str())
        .execute(&mut transaction.lease)
        .await?;
    Ok(())
}
