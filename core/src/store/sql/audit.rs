//! The audit: records who changed each campaign, webhook or the user ids, who confirmed, returned or extended each
//! claim, and when.
//!
//! The entries of all tables share one numbering, in commit order.

use std::cmp::Reverse;

use claimgate_shared::ids::digest_text;
use claimgate_shared::{CampaignId, ClaimStatus, Timestamp, Version};
use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::numbers::{to_i64, unreadable, unsigned};
use super::pool::{Statement, Transaction};
use super::{SqlError, SqlStore};
use crate::domain::audit::AuditItem;
use crate::domain::event::{ClaimEvent, OutboxEntry};

/// A claim that a caller confirmed, returned or extended.
#[derive(Debug)]
pub(super) struct ClaimChange<'a> {
    pub campaign: &'a CampaignId,
    pub user: &'a str,
    pub digest: String,
    pub epoch: u64,
    pub revision: u64,
    pub at: Timestamp,
    pub who: &'a str,
    /// Why the caller returned the claim.
    pub reason: Option<&'a str>,
    pub before: ClaimStatus,
    pub after: ClaimStatus,
    /// If the claim's hold was extended: when it expired before, and when it expires now.
    pub extension: Option<[Timestamp; 2]>,
}

impl<'a> ClaimChange<'a> {
    /// Returns the changes that a caller made in the script call of `entry`. The result is empty if `entry`
    /// names no caller.
    pub fn of(campaign: &'a CampaignId, entry: &'a OutboxEntry) -> impl Iterator<Item = Self> {
        let changes = move |who: &'a String| {
            entry.events.iter().map(move |event| Self::from_event(campaign, entry, event, who))
        };
        entry.by.iter().flat_map(changes)
    }

    fn from_event(
        campaign: &'a CampaignId,
        entry: &'a OutboxEntry,
        event: &'a ClaimEvent,
        who: &'a str,
    ) -> Self {
        let claim = &event.claim;
        // Only a grant clears a claim's expiry.
        let was_held = claim.status == ClaimStatus::Granted || claim.expires_at.is_some();
        Self {
            campaign,
            user: event.user.as_str(),
            digest: digest_text(&claim.digest),
            epoch: entry.epoch.get(),
            revision: claim.revision.into(),
            at: event.updated_at,
            who,
            reason: entry.reason.as_deref(),
            before: if was_held { ClaimStatus::Held } else { ClaimStatus::Granted },
            after: claim.status,
            extension: entry.extended_from.zip(claim.expires_at).map(|(from, to)| [from, to]),
        }
    }

    /// Returns true if this is a change of the event's claim.
    pub fn is_of(&self, event: &ClaimEvent) -> bool {
        (self.user, &self.digest) == (event.user.as_str(), &digest_text(&event.claim.digest))
    }

    /// Returns the columns in the order of `write_claims`.
    fn columns(&self, number: i64) -> impl serde::Serialize {
        let [what, before, after] = if let Some([from, to]) = self.extension {
            ["extend".to_owned(), hold_until(from), hold_until(to)]
        } else {
            let what = if self.after == ClaimStatus::Granted { "confirm" } else { "return" };
            [what, self.before.as_str(), self.after.as_str()].map(str::to_owned)
        };
        (
            number,
            self.campaign.as_str(),
            self.user,
            &self.digest,
            self.epoch,
            self.revision,
            self.at.as_ms(),
            self.who,
            what,
            before,
            after,
            self.reason,
        )
    }
}

/// Returns the state of a held claim for the audit.
fn hold_until(expires_at: Timestamp) -> String {
    json!({ "status": ClaimStatus::Held, "expires_at": expires_at }).to_string()
}

/// The statement that writes entries to a table of claims, `$own` and `$own_value` into a column that only this table
/// has. Existing entries stay unchanged.
macro_rules! write_claims {
    ($table:literal, $own:literal, $own_value:literal) => {
        concat!(
            "INSERT INTO ",
            $table,
            " (number, campaign_id, user_id, digest, epoch, revision, at, who, what, before, after",
            $own,
            ") \
             SELECT CAST(value->>0 AS BIGINT), value->>1, value->>2, value->>3, CAST(value->>4 AS BIGINT), \
             CAST(value->>5 AS BIGINT), CAST(value->>6 AS BIGINT), value->>7, value->>8, value->>9, value->>10",
            $own_value,
            " FROM {rows} WHERE TRUE ON CONFLICT (campaign_id, user_id, digest, epoch, revision) DO NOTHING"
        )
    };
}

/// The last number used. Older versions numbered entries of `audit` without updating `last_audit`.
macro_rules! last_number {
    () => {
        "CASE WHEN number < (SELECT COALESCE(MAX(number), 0) FROM audit) THEN (SELECT MAX(number) FROM audit) \
         ELSE number END"
    };
}

/// Reads the last number. All entries up to this number are committed.
const LAST: &str = concat!("SELECT ", last_number!(), " FROM last_audit");

/// Issues `$1` numbers and returns the last number.
const ISSUE_NUMBERS: &str =
    concat!("UPDATE last_audit SET number = $1 + ", last_number!(), " RETURNING number");

/// Maximum number of entries numbered in one transaction, low enough for the time limit of a call.
const NUMBERED_MAX: u32 = 5_000;

/// Numbers entries that have no number, in order of age.
const NUMBER: &str = "UPDATE audit SET number = met.place FROM (SELECT campaign_id AS campaign, version AS made, \
    (SELECT number FROM last_audit) + ROW_NUMBER() OVER (ORDER BY at, campaign_id, version) AS place \
    FROM audit WHERE number IS NULL ORDER BY at, campaign_id, version LIMIT $1) AS met \
    WHERE audit.campaign_id = met.campaign AND audit.version = met.made AND audit.number IS NULL";

/// The entries of a list.
#[derive(Debug, Clone, Copy)]
pub struct AuditFilter<'a> {
    /// Only the entries of this campaign.
    pub campaign: Option<&'a CampaignId>,
    /// Includes the entries of claims.
    pub claims: bool,
}

/// A table of the audit: its name, its columns besides [`SHARED`], and the function that reads a row.
type Table = (&'static str, &'static str, fn(&AnyRow) -> Result<AuditItem, SqlError>);

/// The tables with claims, one entry or more for each hold.
const CLAIM_TABLES: [Table; 2] = [
    ("claim_audit", ", user_id, digest, reason", claim_entry),
    ("extension_audit", ", user_id, digest", extension_entry),
];
/// All other tables.
const TABLES: [Table; 5] = [
    ("audit", ", version", campaign_entry),
    ("webhook_audit", ", webhook_id", webhook_entry),
    ("user_ids_audit", "", entry),
    ("code_audit", "", entry),
    ("archive_audit", "", entry),
];
const SHARED: &str = "number, campaign_id, at, who, what, before, after";

/// Returns the statement for a page of a table, for one campaign or for all campaigns. PostgreSQL would sort
/// a union of the tables, so each table has its own statement.
fn page((table, own, _): Table, campaign: Option<&CampaignId>) -> AssertSqlSafe<String> {
    let condition = if campaign.is_some() { "campaign_id = $4 AND" } else { "" };
    AssertSqlSafe(format!(
        "SELECT {SHARED}{own} FROM {table} WHERE {condition} number > $1 AND number <= $2 ORDER BY number LIMIT $3"
    ))
}

/// Returns the statement for the last entries of a table.
fn last_of((table, own, _): Table) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "SELECT {SHARED}{own} FROM {table} WHERE number <= $1 ORDER BY number DESC LIMIT $2"
    ))
}

/// Issues the next number for an audit entry of `transaction`. Until the commit, no other transaction can
/// write an entry.
pub(super) async fn issue_audit_number(transaction: &mut Transaction) -> Result<i64, sqlx::Error> {
    issue_numbers(transaction, 1).await
}

/// Issues `count` numbers and returns the last number.
async fn issue_numbers(transaction: &mut Transaction, count: usize) -> Result<i64, sqlx::Error> {
    sqlx::query(ISSUE_NUMBERS).bind(to_i64(count as u64)).fetch_one(&mut transaction.lease).await?.try_get(0)
}

impl SqlStore {
    /// Returns up to `limit` entries that match `filter` and have numbers above `after`, ordered by number.
    pub(crate) async fn audit(
        &self,
        filter: AuditFilter<'_>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<AuditItem>, SqlError> {
        let page = |table, last| {
            let query = sqlx::query(page(table, filter.campaign))
                .bind(to_i64(after))
                .bind(last)
                .bind(i64::from(limit));
            filter.campaign.iter().fold(query, |query, id| query.bind(id.as_str()))
        };
        let mut items = self.audited("sql:audit", filter.claims, page).await?;
        items.sort_unstable_by_key(|item| item.number);
        items.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(items)
    }

    /// Returns the last `limit` entries of all campaigns, the latest first.
    pub(crate) async fn last_audit(&self, limit: u32) -> Result<Vec<AuditItem>, SqlError> {
        let page = |table, last| sqlx::query(last_of(table)).bind(last).bind(i64::from(limit));
        let mut items = self.audited("sql:last_audit", true, page).await?;
        items.sort_unstable_by_key(|item| Reverse(item.number));
        items.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(items)
    }

    /// Runs the statement `page` on each table, on those with claims if `claims`, with the last number. Returns all
    /// entries.
    async fn audited<'q>(
        &self,
        step: &'static str,
        claims: bool,
        page: impl Fn(Table, i64) -> Statement<'q>,
    ) -> Result<Vec<AuditItem>, SqlError> {
        self.number_audit().await?;
        let last: i64 = self.pool.one(step, sqlx::query(LAST)).await?.try_get(0)?;
        let mut items = Vec::new();
        for table in TABLES.into_iter().chain(CLAIM_TABLES.into_iter().filter(|_| claims)) {
            let (_, _, item) = table;
            let rows = page(table, last).fetch_all(&mut self.pool.lease().await?).await?;
            for row in &rows {
                items.push(item(row)?);
            }
        }
        Ok(items)
    }

    /// Numbers all entries without a number. Such entries date from before migration 0013, or were written by
    /// older cores.
    async fn number_audit(&self) -> Result<(), SqlError> {
        let unnumbered = "SELECT version FROM audit WHERE number IS NULL LIMIT 1";
        while sqlx::query(unnumbered).fetch_optional(&mut self.pool.lease().await?).await?.is_some() {
            let mut transaction = self.pool.begin().await?;
            // Issuing 0 numbers locks the row of the counter. The second call records the numbers used.
            issue_numbers(&mut transaction, 0).await?;
            sqlx::query(NUMBER).bind(i64::from(NUMBERED_MAX)).execute(&mut transaction.lease).await?;
            issue_numbers(&mut transaction, 0).await?;
            transaction.commit().await?;
        }
        Ok(())
    }

    /// Records that `who` reads codes of the campaign `id`, or of all campaigns.
    pub(crate) async fn audit_codes_read(
        &self,
        id: Option<&CampaignId>,
        who: &str,
        at: Timestamp,
    ) -> Result<(), SqlError> {
        let mut transaction = self.pool.begin_at("sql:audit_codes_read").await?;
        let number = issue_audit_number(&mut transaction).await?;
        sqlx::query(
            "INSERT INTO code_audit (number, campaign_id, at, who, what, after) VALUES ($1, $2, $3, $4, 'codes_read', '{}')",
        )
        .bind(number)
        .bind(id.map(CampaignId::as_str))
        .bind(at.as_ms())
        .bind(who)
        .execute(&mut transaction.lease)
        .await?;
        Ok(transaction.commit().await?)
    }

    /// Records who confirmed, returned or extended claims, each change once. Call it near the end of a
    /// transaction: until the commit, no other transaction can write an entry.
    pub(super) async fn audit_claims(
        &self,
        transaction: &mut Transaction,
        changes: &[ClaimChange<'_>],
    ) -> Result<(), sqlx::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let last = issue_numbers(transaction, changes.len()).await?;
        let first = last + 1 - to_i64(changes.len() as u64);
        let numbered = (first..).zip(changes);
        let (extensions, others): (Vec<_>, Vec<_>) =
            numbered.partition(|(_, change)| change.extension.is_some());
        for (write, of_table) in [
            (write_claims!("claim_audit", ", reason", ", value->>11"), others),
            (write_claims!("extension_audit", "", ""), extensions),
        ] {
            if !of_table.is_empty() {
                let rows: Vec<_> = of_table.iter().map(|(number, change)| change.columns(*number)).collect();
                self.with_rows(write, &rows, rows.len()).execute(&mut transaction.lease).await?;
            }
        }
        Ok(())
    }
}

fn campaign_entry(row: &AnyRow) -> Result<AuditItem, SqlError> {
    let version = Version::new(unsigned(row.try_get("version")?)?);
    Ok(AuditItem { version: Some(version), ..shared_columns(row, parse_state)? })
}

fn claim_entry(row: &AnyRow) -> Result<AuditItem, SqlError> {
    let item = shared_columns(row, |status| Ok(json!({ "status": status })))?;
    of_claim(row, AuditItem { reason: row.try_get("reason")?, ..item })
}

fn extension_entry(row: &AnyRow) -> Result<AuditItem, SqlError> {
    of_claim(row, entry(row)?)
}

/// Adds the claim's id to its entry.
fn of_claim(row: &AnyRow, item: AuditItem) -> Result<AuditItem, SqlError> {
    let (user, digest): (String, String) = (row.try_get("user_id")?, row.try_get("digest")?);
    let campaign: String = row.try_get("campaign_id")?;
    let id = format!("{campaign}.{user}.{digest}");
    Ok(AuditItem { claim_id: Some(id.parse().map_err(unreadable)?), ..item })
}

fn webhook_entry(row: &AnyRow) -> Result<AuditItem, SqlError> {
    Ok(AuditItem { webhook_id: Some(row.try_get("webhook_id")?), ..shared_columns(row, parse_state)? })
}

/// Reads the shared columns of an entry whose states are JSON.
fn entry(row: &AnyRow) -> Result<AuditItem, SqlError> {
    shared_columns(row, parse_state)
}

/// Parses the rules of a campaign, the state of a webhook or hold, or user ids.
fn parse_state(text: &str) -> Result<Value, SqlError> {
    serde_json::from_str(text).map_err(unreadable)
}

/// Reads the columns shared by all tables. `state` parses the states before and after the change.
fn shared_columns(row: &AnyRow, state: fn(&str) -> Result<Value, SqlError>) -> Result<AuditItem, SqlError> {
    let campaign: Option<String> = row.try_get("campaign_id")?;
    Ok(AuditItem {
        number: unsigned(row.try_get("number")?)?,
        at: Timestamp::from_ms(row.try_get("at")?).map_err(unreadable)?,
        who: row.try_get("who")?,
        what: row.try_get("what")?,
        campaign_id: campaign.map(CampaignId::try_from).transpose().map_err(unreadable)?,
        claim_id: None,
        webhook_id: None,
        version: None,
        reason: None,
        before: row.try_get::<Option<String>, _>("before")?.as_deref().map(state).transpose()?,
        after: state(&row.try_get::<String, _>("after")?)?,
    })
}
