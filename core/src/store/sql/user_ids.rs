//! The scheme of user ids that the database is pinned to, and its audit entries.

use claimgate_shared::user_id::{Form, Scheme};
use claimgate_shared::{CampaignId, Timestamp};
use serde_json::{Value, json};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::audit::issue_audit_number;
use super::numbers::{to_i64, unreadable};
use super::pool::{Lease, Transaction};
use super::{BULK_MAX, ChangedBy, SqlError, SqlStore, WHOLE_CAMPAIGN_MAX, statements};
use crate::domain::counters::ChangeNumber;
use crate::domain::user_ids::PinnedScheme;

const SELECT: &str = "SELECT scheme, since FROM user_ids WHERE one = 1";

/// A campaign that can grant a claim at `$1` or later.
const LIVE: &str = "SELECT id FROM campaigns WHERE admin_state <> 'ended' AND (ends_at IS NULL OR ends_at > $1) ORDER BY id LIMIT 1";

/// The result of changing the pinned scheme.
#[derive(Debug)]
pub enum SchemeSet {
    /// The scheme is pinned.
    Done(PinnedScheme),
    /// Nothing was written: this campaign has not ended.
    Live(CampaignId),
}

/// The result of pinning the first scheme.
#[derive(Debug)]
pub enum SchemePinned {
    /// This scheme is pinned.
    Done(PinnedScheme),
    /// Nothing was written: this campaign has claims under other user ids.
    EarlierClaims(CampaignId),
}

impl SqlStore {
    /// Returns the pinned scheme; `None` before the first claim by an edge.
    pub(crate) async fn user_id_scheme(&self) -> Result<Option<PinnedScheme>, SqlError> {
        let row = self.pool.optional("sql:user_id_scheme", sqlx::query(SELECT)).await?;
        row.as_ref().map(read).transpose()
    }

    /// Pins `scheme` unless a scheme is pinned already. Rejects it if a campaign that has changed after
    /// `checked`, such as a reopened campaign, has claims under other user ids.
    pub(crate) async fn pin_user_ids(
        &self,
        scheme: Scheme,
        checked: ChangeNumber,
        by: ChangedBy<'_>,
    ) -> Result<SchemePinned, SqlError> {
        let mut transaction = self.pool.begin_at("sql:pin_user_ids").await?;
        let number = issue_audit_number(&mut transaction).await?;
        if let Some(before) = pinned_user_ids(&mut transaction).await? {
            return Ok(SchemePinned::Done(before));
        }
        if let Some(campaign) =
            with_other_user_ids(&mut transaction.lease, scheme, checked.next(), by.at).await?
        {
            return Ok(SchemePinned::EarlierClaims(campaign));
        }
        let pinned = PinnedScheme { scheme, since: by.at };
        write_and_commit(transaction, number, None, pinned, by, "user_ids_pin").await?;
        Ok(SchemePinned::Done(pinned))
    }

    /// Pins `lost` again, which the database has lost, and returns the pinned scheme.
    pub(crate) async fn restore_user_ids(
        &self,
        lost: PinnedScheme,
        who: &str,
    ) -> Result<PinnedScheme, SqlError> {
        let mut transaction = self.pool.begin_at("sql:restore_user_ids").await?;
        let number = issue_audit_number(&mut transaction).await?;
        if let Some(before) = pinned_user_ids(&mut transaction).await? {
            return Ok(before);
        }
        write_and_commit(transaction, number, None, lost, ChangedBy { who, at: lost.since }, "user_ids_pin")
            .await?;
        Ok(lost)
    }

    /// Replaces the pinned scheme by `scheme`, if all campaigns have ended.
    pub(crate) async fn set_user_ids(
        &self,
        scheme: Scheme,
        by: ChangedBy<'_>,
    ) -> Result<SchemeSet, SqlError> {
        let mut transaction = self.pool.begin_at("sql:set_user_ids").await?;
        // Every creation or change of a campaign also issues an audit number, so no campaign opens before this commit.
        let number = issue_audit_number(&mut transaction).await?;
        let before = pinned_user_ids(&mut transaction).await?;
        if let Some(pinned) = before.filter(|pinned| pinned.scheme == scheme) {
            return Ok(SchemeSet::Done(pinned));
        }
        let live = sqlx::query(LIVE).bind(by.at.as_ms()).fetch_optional(&mut transaction.lease).await?;
        if let Some(row) = live {
            return Ok(SchemeSet::Live(campaign_id(&row)?));
        }
        let since = before.map_or(by.at, |before| by.at.max(before.since.saturating_add_ms(1)));
        let pinned = PinnedScheme { scheme, since };
        write_and_commit(transaction, number, before, pinned, by, "user_ids_set").await?;
        Ok(SchemeSet::Done(pinned))
    }

    /// Returns a campaign that has not ended at `now` and has claims under user ids that `scheme` does not admit.
    pub(crate) async fn campaign_with_other_user_ids(
        &self,
        scheme: Scheme,
        now: Timestamp,
    ) -> Result<Option<CampaignId>, SqlError> {
        let mut lease = self.pool.within(BULK_MAX).lease().await?;
        with_other_user_ids(&mut lease, scheme, ChangeNumber::default(), now).await
    }

    /// Returns whether `campaign` has claims under user ids that `scheme`, by HMAC, does not admit.
    pub(crate) async fn has_other_user_ids(
        &self,
        campaign: &CampaignId,
        scheme: Scheme,
    ) -> Result<bool, SqlError> {
        let mut lease = self.pool.within(WHOLE_CAMPAIGN_MAX).lease().await?;
        let query = sqlx::query(statements::OTHER_USER_ID)
            .bind(campaign.as_str())
            .bind(scheme.id_prefix())
            .bind(i64::try_from(Scheme::HMAC_ID_CHARACTERS).unwrap_or(i64::MAX));
        Ok(query.fetch_optional(&mut lease).await?.is_some())
    }

    /// Returns the pinned scheme if it is by HMAC and admits the user ids of all claims of `campaign`.
    pub(super) async fn scheme_of_all_claims(
        &self,
        campaign: &CampaignId,
    ) -> Result<Option<Scheme>, SqlError> {
        let mut lease = self.pool.lease().await?;
        let row = sqlx::query(SELECT).fetch_optional(&mut lease).await?;
        drop(lease);
        let pinned = row.as_ref().map(read).transpose()?.map(|pinned| pinned.scheme);
        let Some(scheme) = pinned.filter(|scheme| scheme.form() == Form::Hmac) else { return Ok(None) };
        let has_others = self.has_other_user_ids(campaign, scheme).await?;
        Ok((!has_others).then_some(scheme))
    }
}

/// Reads the scheme that all claims of a campaign had at its last load.
pub(super) fn checked_user_ids(row: &AnyRow) -> Result<Option<Scheme>, SqlError> {
    let scheme: Option<String> = row.try_get("checked_user_ids")?;
    scheme.map(|scheme| scheme.parse().map_err(unreadable)).transpose()
}

/// Returns a campaign that has not ended at `now`, has changed at `from` or later, and has claims under user ids that
/// `scheme` does not admit.
async fn with_other_user_ids(
    lease: &mut Lease,
    scheme: Scheme,
    from: ChangeNumber,
    now: Timestamp,
) -> Result<Option<CampaignId>, SqlError> {
    let Form::Hmac = scheme.form() else { return Ok(None) };
    let query = sqlx::query(statements::OTHER_USER_IDS)
        .bind(now.as_ms())
        .bind(scheme.id_prefix())
        .bind(i64::try_from(Scheme::HMAC_ID_CHARACTERS).unwrap_or(i64::MAX))
        .bind(to_i64(from));
    query.fetch_optional(lease).await?.as_ref().map(campaign_id).transpose()
}

/// Returns the pinned scheme. It stays pinned until the end of `transaction` if that has issued an audit number.
pub(super) async fn pinned_user_ids(transaction: &mut Transaction) -> Result<Option<PinnedScheme>, SqlError> {
    let row = sqlx::query(SELECT).fetch_optional(&mut transaction.lease).await?;
    row.as_ref().map(read).transpose()
}

async fn write_and_commit(
    mut transaction: Transaction,
    number: i64,
    before: Option<PinnedScheme>,
    pinned: PinnedScheme,
    by: ChangedBy<'_>,
    what: &str,
) -> Result<(), SqlError> {
    sqlx::query(
        "INSERT INTO user_ids (one, scheme, since) VALUES (1, $1, $2) \
         ON CONFLICT (one) DO UPDATE SET scheme = excluded.scheme, since = excluded.since",
    )
    .bind(pinned.scheme.to_string())
    .bind(pinned.since.as_ms())
    .execute(&mut transaction.lease)
    .await?;
    sqlx::query(
        "INSERT INTO user_ids_audit (number, at, who, what, before, after) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(number)
    .bind(by.at.as_ms())
    .bind(by.who)
    .bind(what)
    .bind(before.map(|before| state(before).to_string()))
    .bind(state(pinned).to_string())
    .execute(&mut transaction.lease)
    .await?;
    Ok(transaction.commit().await?)
}

/// Returns the state that the audit shows.
fn state(pinned: PinnedScheme) -> Value {
    json!({ "user_ids": pinned.scheme })
}

fn read(row: &AnyRow) -> Result<PinnedScheme, SqlError> {
    Ok(PinnedScheme {
        scheme: row.try_get::<&str, _>(0)?.parse().map_err(unreadable)?,
        since: Timestamp::from_ms(row.try_get(1)?).map_err(unreadable)?,
    })
}

fn campaign_id(row: &AnyRow) -> Result<CampaignId, SqlError> {
    row.try_get::<String, _>(0)?.try_into().map_err(unreadable)
}
