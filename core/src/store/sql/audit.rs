//! The audit: who changed which campaign, and who confirmed or returned which claim, when and how.
//!
//! Campaigns' entries stand in `audit`, claims' in `claim_audit`. Both are numbered together, in the order of commits.

use std::cmp::Reverse;

use claimgate_shared::ids::digest_text;
use claimgate_shared::{CampaignId, ClaimId, ClaimStatus, Timestamp, Version};
use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::numbers::{big, unreadable, unsigned};
use super::pool::Transaction;
use super::{SqlError, SqlStore};
use crate::domain::counters::Epoch;
use crate::domain::event::{ClaimEvent, OutboxEntry};
use crate::step;

/// One change of a campaign or of a claim.
#[derive(Debug)]
pub struct AuditEntry {
    /// Its place among all entries, from 1. Some numbers may be no entry's.
    pub number: u64,
    /// The campaign that was changed, or whose claim or webhook was; `None` for a webhook of all campaigns.
    pub campaign_id: Option<CampaignId>,
    /// The claim that was confirmed or returned; `None` when the campaign was changed.
    pub claim_id: Option<ClaimId>,
    /// The webhook that was changed; `None` for all else.
    pub webhook_id: Option<String>,
    /// The version of the campaign that the change made; `None` for all else.
    pub version: Option<Version>,
    /// When.
    pub at: Timestamp,
    /// The caller's name.
    pub who: String,
    /// `create`, `update`, `add`, `pause`, `resume`, `end` or `import`; of a claim `confirm` or `return`; of a webhook
    /// `webhook_create`, `webhook_delete`, `webhook_enable`, `webhook_disable` or `webhook_rotate_secret`.
    pub what: String,
    /// The rules before it, the claim's status, or the webhook; `None` when it was created.
    pub before: Option<Value>,
    /// The same after it.
    pub after: Value,
}

/// A claim that a caller has confirmed or returned.
#[derive(Debug)]
pub(super) struct ClaimChange<'a> {
    pub campaign: &'a CampaignId,
    pub user: &'a str,
    pub digest: String,
    pub epoch: u64,
    pub revision: u64,
    pub at: Timestamp,
    pub who: &'a str,
    pub before: ClaimStatus,
    pub after: ClaimStatus,
}

impl<'a> ClaimChange<'a> {
    /// What a caller has changed by the script call of `entry`: nothing where it names none.
    pub fn of(campaign: &'a CampaignId, entry: &'a OutboxEntry) -> impl Iterator<Item = Self> {
        let changes = move |who: &'a String| {
            entry.events.iter().map(move |event| Self::of_event(campaign, entry.epoch, event, who))
        };
        entry.by.iter().flat_map(changes)
    }

    fn of_event(campaign: &'a CampaignId, epoch: Epoch, event: &'a ClaimEvent, who: &'a str) -> Self {
        let claim = &event.claim;
        // A claim loses its expiry when it is granted, and by nothing else.
        let was_held = claim.status == ClaimStatus::Granted || claim.expires_at.is_some();
        Self {
            campaign,
            user: event.user.as_str(),
            digest: digest_text(&claim.digest),
            epoch: epoch.get(),
            revision: claim.revision.into(),
            at: event.updated_at,
            who,
            before: if was_held { ClaimStatus::Held } else { ClaimStatus::Granted },
            after: claim.status,
        }
    }

    /// Whether it is a change of the claim of that event.
    pub fn is_of(&self, event: &ClaimEvent) -> bool {
        (self.user, &self.digest) == (event.user.as_str(), &digest_text(&event.claim.digest))
    }

    /// Its columns as [`WRITE_CLAIMS`] takes them.
    fn columns(&self, number: i64) -> impl serde::Serialize {
        let what = if self.after == ClaimStatus::Granted { "confirm" } else { "return" };
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
            self.before.as_str(),
            self.after.as_str(),
        )
    }
}

/// Writes claims' entries; one that is there already stays as it is.
const WRITE_CLAIMS: &str = "INSERT INTO claim_audit \
    (number, campaign_id, user_id, digest, epoch, revision, at, who, what, before, after) \
    SELECT CAST(value->>0 AS BIGINT), value->>1, value->>2, value->>3, CAST(value->>4 AS BIGINT), \
    CAST(value->>5 AS BIGINT), CAST(value->>6 AS BIGINT), value->>7, value->>8, value->>9, value->>10 \
    FROM {rows} WHERE TRUE ON CONFLICT (campaign_id, user_id, digest, epoch, revision) DO NOTHING";

/// The last number given. A core of before numbers were drawn may have given some to entries of `audit`.
macro_rules! last_number {
    () => {
        "CASE WHEN number < (SELECT COALESCE(MAX(number), 0) FROM audit) THEN (SELECT MAX(number) FROM audit) \
         ELSE number END"
    };
}

/// The last number: all entries up to it are committed.
const LAST: &str = concat!("SELECT ", last_number!(), " FROM last_audit");

/// Draws `$1` numbers, and returns the last.
const DRAW: &str = concat!("UPDATE last_audit SET number = $1 + ", last_number!(), " RETURNING number");

/// Entries that are numbered in one transaction, within the time of a call.
const NUMBERED_MAX: u32 = 5_000;

/// Numbers entries without a number, the oldest first.
const NUMBER: &str = "UPDATE audit SET number = met.place FROM (SELECT campaign_id AS campaign, version AS made, \
    (SELECT number FROM last_audit) + ROW_NUMBER() OVER (ORDER BY at, campaign_id, version) AS place \
    FROM audit WHERE number IS NULL ORDER BY at, campaign_id, version LIMIT $1) AS met \
    WHERE audit.campaign_id = met.campaign AND audit.version = met.made AND audit.number IS NULL";

/// The three tables of the audit, and the columns that each has beside [`SHARED`].
const TABLES: [(&str, &str); 3] =
    [("audit", "version"), ("claim_audit", "user_id, digest"), ("webhook_audit", "webhook_id")];
const SHARED: &str = "number, campaign_id, at, who, what, before, after";

/// The statement for a page of a table, of one campaign or of all. Each table's own: PostgreSQL would sort a page of both.
fn page((table, own): (&str, &str), campaign: Option<&CampaignId>) -> AssertSqlSafe<String> {
    let condition = if campaign.is_some() { "campaign_id = $4 AND" } else { "" };
    AssertSqlSafe(format!(
        "SELECT {SHARED}, {own} FROM {table} WHERE {condition} number > $1 AND number <= $2 ORDER BY number LIMIT $3"
    ))
}

/// The statement for the last entries of a table.
fn last_of((table, own): (&str, &str)) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "SELECT {SHARED}, {own} FROM {table} WHERE number <= $1 ORDER BY number DESC LIMIT $2"
    ))
}

/// Draws the next number of the audit for an entry that `transaction` writes. Until the commit no other entry can be written.
pub(super) async fn draw_number(transaction: &mut Transaction) -> Result<i64, sqlx::Error> {
    draw(transaction, 1).await
}

/// Draws `count` numbers, and returns the last of them.
async fn draw(transaction: &mut Transaction, count: usize) -> Result<i64, sqlx::Error> {
    sqlx::query(DRAW).bind(big(count as u64)).fetch_one(&mut **transaction).await?.try_get(0)
}

impl SqlStore {
    /// Up to `limit` entries with numbers above `after`, of one campaign or of all, in the order of their numbers.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for an entry that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer in time.
    pub(crate) async fn audit(
        &self,
        campaign: Option<&CampaignId>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, SqlError> {
        self.number_audit().await?;
        step::before("sql:audit").await;
        let last: i64 = step::after(sqlx::query(LAST).fetch_one(&self.pool).await)?.try_get(0)?;
        let rows = async |table| {
            let query = sqlx::query(page(table, campaign)).bind(big(after)).bind(last).bind(i64::from(limit));
            let query = match campaign {
                Some(id) => query.bind(id.as_str()),
                None => query,
            };
            query.fetch_all(&self.pool).await
        };
        let tables = [rows(TABLES[0]).await?, rows(TABLES[1]).await?, rows(TABLES[2]).await?];
        let mut entries = entries_of(&tables)?;
        entries.sort_unstable_by_key(|entry| entry.number);
        entries.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(entries)
    }

    /// The last `limit` entries of all campaigns, the latest first.
    ///
    /// # Errors
    /// As [`Self::audit`].
    pub(crate) async fn last_audit(&self, limit: u32) -> Result<Vec<AuditEntry>, SqlError> {
        self.number_audit().await?;
        step::before("sql:last_audit").await;
        let last: i64 = step::after(sqlx::query(LAST).fetch_one(&self.pool).await)?.try_get(0)?;
        let rows = async |table| {
            let query = sqlx::query(last_of(table)).bind(last).bind(i64::from(limit));
            query.fetch_all(&self.pool).await
        };
        let tables = [rows(TABLES[0]).await?, rows(TABLES[1]).await?, rows(TABLES[2]).await?];
        let mut entries = entries_of(&tables)?;
        entries.sort_unstable_by_key(|entry| Reverse(entry.number));
        entries.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(entries)
    }

    /// Numbers all entries that have no number yet: those of before 0013, and of cores of before it.
    async fn number_audit(&self) -> Result<(), SqlError> {
        let unmet = "SELECT version FROM audit WHERE number IS NULL LIMIT 1";
        while sqlx::query(unmet).fetch_optional(&self.pool).await?.is_some() {
            let mut transaction = self.pool.begin().await?;
            // Draws none, but locks the row that all numbers come from; then makes known which were given.
            draw(&mut transaction, 0).await?;
            sqlx::query(NUMBER).bind(i64::from(NUMBERED_MAX)).execute(&mut *transaction).await?;
            draw(&mut transaction, 0).await?;
            transaction.commit().await?;
        }
        Ok(())
    }

    /// Writes who has confirmed or returned claims, each once. To be called near the end of a transaction: until its commit no
    /// other entry can be written.
    pub(super) async fn audit_claims(
        &self,
        transaction: &mut Transaction,
        changes: &[ClaimChange<'_>],
    ) -> Result<(), sqlx::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let last = draw(transaction, changes.len()).await?;
        let first = last + 1 - big(changes.len() as u64);
        let rows: Vec<_> = (first..).zip(changes).map(|(number, change)| change.columns(number)).collect();
        self.with_rows(WRITE_CLAIMS, &rows, rows.len()).execute(&mut **transaction).await?;
        Ok(())
    }
}

/// The entries of all three tables.
fn entries_of([campaigns, claims, webhooks]: &[Vec<AnyRow>; 3]) -> Result<Vec<AuditEntry>, SqlError> {
    let entries = campaigns.iter().map(of_campaign);
    entries.chain(claims.iter().map(of_claim)).chain(webhooks.iter().map(of_webhook)).collect()
}

fn of_campaign(row: &AnyRow) -> Result<AuditEntry, SqlError> {
    let rules = |text: String| serde_json::from_str(&text).map_err(unreadable);
    Ok(AuditEntry {
        version: Some(Version::new(unsigned(row.try_get("version")?)?)),
        before: row.try_get::<Option<String>, _>("before")?.map(rules).transpose()?,
        after: rules(row.try_get("after")?)?,
        ..of_either(row)?
    })
}

fn of_claim(row: &AnyRow) -> Result<AuditEntry, SqlError> {
    let entry = of_either(row)?;
    let (user, digest): (String, String) = (row.try_get("user_id")?, row.try_get("digest")?);
    let campaign: String = row.try_get("campaign_id")?;
    let id = format!("{campaign}.{user}.{digest}");
    let status = |column| Ok::<_, SqlError>(json!({ "status": row.try_get::<String, _>(column)? }));
    Ok(AuditEntry {
        claim_id: Some(id.parse().map_err(unreadable)?),
        before: Some(status("before")?),
        after: status("after")?,
        ..entry
    })
}

fn of_webhook(row: &AnyRow) -> Result<AuditEntry, SqlError> {
    let state = |text: String| serde_json::from_str(&text).map_err(unreadable);
    Ok(AuditEntry {
        webhook_id: Some(row.try_get("webhook_id")?),
        before: row.try_get::<Option<String>, _>("before")?.map(state).transpose()?,
        after: state(row.try_get("after")?)?,
        ..of_either(row)?
    })
}

/// What all three tables have.
fn of_either(row: &AnyRow) -> Result<AuditEntry, SqlError> {
    let campaign: Option<String> = row.try_get("campaign_id")?;
    Ok(AuditEntry {
        number: unsigned(row.try_get("number")?)?,
        campaign_id: campaign.map(CampaignId::try_from).transpose().map_err(unreadable)?,
        claim_id: None,
        webhook_id: None,
        version: None,
        at: Timestamp::from_ms(row.try_get("at")?).map_err(unreadable)?,
        who: row.try_get("who")?,
        what: row.try_get("what")?,
        before: None,
        after: Value::Null,
    })
}
