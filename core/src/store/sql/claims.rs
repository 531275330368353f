//! Reads of claims in SQL: for look-ups, lists and exports, for loads and for comparisons.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use claimgate_shared::ids::{digest_text, parse_digest};
use claimgate_shared::{CampaignId, Claim, ClaimDigest, ClaimId, ClaimStatus, Quantity, Timestamp, UserId};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row as _};

use super::numbers::{big, unreadable, unsigned};
use super::pool::Pool;
use super::{BULK, SqlError, SqlStore, WHOLE, statements};
use crate::domain::claim_record::ClaimRecord;
use crate::step;

/// Claims in one page of a load. Reading it takes some 50 ms.
const LOAD_PAGE: u32 = 10_000;

/// Claims that one page of those of one status looks at. Reading them takes some 50 ms.
const FILTERED_MAX: u32 = 10_000;

/// A claim as SQL has it.
#[derive(Debug)]
pub struct ClaimRow {
    /// The claim.
    pub claim: Claim,
    /// Raised by every change of it.
    pub revision: u64,
    /// The day it counts on, in days since 1970.
    pub day: i64,
    /// When it got its status.
    pub updated_at: Timestamp,
}

/// What SQL holds of a campaign.
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    /// All rows.
    pub claims: u64,
    /// Units granted or held.
    pub taken: u64,
    /// The highest sequence, revoked claims included.
    pub sequence: u64,
    /// The highest sequence of a claim that is not revoked.
    pub sequence_standing: u64,
    /// Rows of revoked claims.
    pub revoked: u64,
    /// Rows of held claims.
    pub held: u64,
    /// The sum of the revisions of all claims that are not revoked: as many as events have reached SQL, each once.
    pub revisions: u64,
}

/// Which of a campaign's claims are listed; by default all.
#[derive(Debug, Clone, Default)]
pub struct ClaimFilter {
    /// Those of this user.
    pub user: Option<UserId>,
    /// Those that stand so.
    pub status: Option<ClaimStatus>,
}

/// A page of claims in the order of their sequence. Of those of one status it may have fewer than were asked for, even none, and
/// another page behind it.
#[derive(Debug)]
pub struct ClaimPage {
    /// The claims.
    pub rows: Vec<ClaimRow>,
    /// The claim after which the next page begins; `None` on the last.
    pub next: Option<ClaimCursor>,
}

/// A place in the list of a campaign's claims. A revoked claim may share its sequence with another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimCursor {
    sequence: u64,
    user: String,
    digest: String,
}

/// A place among a campaign's claims, user by user.
#[derive(Debug, Clone, Default)]
pub struct LoadCursor {
    user: String,
    digest: String,
}

impl ClaimCursor {
    fn of(row: &ClaimRow) -> Self {
        let claim = &row.claim;
        Self {
            sequence: claim.sequence,
            user: claim.user_id.to_string(),
            digest: digest_text(&claim.id.digest),
        }
    }
}

impl fmt::Display for ClaimCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}~{}.{}", self.sequence, self.user, self.digest)
    }
}

impl FromStr for ClaimCursor {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = |text: &str| {
            let (sequence, claim) = text.split_once('~')?;
            let (user, digest) = claim.split_once('.')?;
            Some(Self { sequence: sequence.parse().ok()?, user: user.to_owned(), digest: digest.to_owned() })
        };
        parts(text).ok_or("is not one of ours")
    }
}

impl SqlStore {
    /// A page of a campaign's claims but the revoked, user by user, after the claim `after`; the last page names no next.
    /// For a suspended campaign, whose claims do not change meanwhile.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer.
    pub async fn by_user(
        &self,
        campaign: &CampaignId,
        after: &LoadCursor,
    ) -> Result<(Vec<(UserId, ClaimRecord)>, Option<LoadCursor>), SqlError> {
        step::before("sql:by_user").await;
        let rows = sqlx::query(statements::BY_USER)
            .bind(campaign.as_str())
            .bind(after.user.as_str())
            .bind(after.digest.as_str())
            .bind(i64::from(LOAD_PAGE))
            .fetch_all(&self.pool.within(BULK))
            .await;
        let rows = step::after(rows)?;
        let records = rows.iter().map(read_record).collect::<Result<Vec<_>, _>>()?;
        let next = records
            .last()
            .filter(|_| is_full(rows.len(), LOAD_PAGE))
            .map(|(user, record)| LoadCursor { user: user.to_string(), digest: digest_text(&record.digest) });
        Ok((records, next))
    }

    /// What SQL holds of a campaign, summed up.
    ///
    /// # Errors
    /// [`SqlError::Sql`] when the database does not answer within its longest time limit.
    pub async fn totals(&self, campaign: &CampaignId) -> Result<Totals, SqlError> {
        step::before("sql:totals").await;
        let row =
            sqlx::query(statements::TOTALS).bind(campaign.as_str()).fetch_one(&self.pool.within(WHOLE)).await;
        let row = step::after(row)?;
        Ok(Totals {
            claims: unsigned(row.try_get(0)?)?,
            taken: unsigned(row.try_get(1)?)?,
            sequence: unsigned(row.try_get(2)?)?,
            revoked: unsigned(row.try_get(3)?)?,
            held: unsigned(row.try_get(4)?)?,
            sequence_standing: unsigned(row.try_get(5)?)?,
            revisions: unsigned(row.try_get(6)?)?,
        })
    }

    /// The sequences that no claim has, as at most `limit` ranges (first, last): gaps that a loss has left.
    pub(crate) async fn sequence_gaps(
        &self,
        campaign: &CampaignId,
        limit: u32,
    ) -> Result<Vec<(u64, u64)>, SqlError> {
        step::before("sql:sequence_gaps").await;
        let rows = sqlx::query(statements::GAPS)
            .bind(campaign.as_str())
            .bind(i64::from(limit))
            .fetch_all(&self.pool.within(WHOLE))
            .await;
        let rows = step::after(rows)?;
        rows.iter().map(|row| Ok((unsigned(row.try_get(0)?)?, unsigned(row.try_get(1)?)?))).collect()
    }

    /// The claim `id` as SQL has it.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer.
    pub async fn claim(&self, id: &ClaimId) -> Result<Option<ClaimRow>, SqlError> {
        step::before("sql:claim").await;
        let row = bind_id(sqlx::query(statements::ONE), id).fetch_optional(&self.pool).await;
        step::after(row)?.map(|row| read(&id.campaign, &row)).transpose()
    }

    /// Which of these claims of a campaign SQL lacks, or has an earlier revision of, in their order. A revoked claim is not
    /// missing: SQL has refused it.
    pub(crate) async fn lacking(
        &self,
        campaign: &CampaignId,
        claims: Vec<(UserId, ClaimRecord)>,
    ) -> Result<Vec<(UserId, ClaimRecord)>, SqlError> {
        let identity =
            |(user, record): &(UserId, ClaimRecord)| (user.to_string(), digest_text(&record.digest));
        let asked: Vec<_> = claims.iter().map(identity).collect();
        step::before("sql:lacking").await;
        let stored = self
            .with_rows(statements::REVISIONS, &asked, asked.len())
            .bind(campaign.as_str())
            .fetch_all(&self.pool.within(BULK))
            .await;
        let stored = step::after(stored)?
            .iter()
            .map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), unsigned(row.try_get(2)?)?)))
            .collect::<Result<HashMap<(String, String), u64>, SqlError>>()?;
        let lacks = |claim: &(UserId, ClaimRecord)| {
            stored.get(&identity(claim)).is_none_or(|there| *there < u64::from(claim.1.revision))
        };
        Ok(claims.into_iter().filter(lacks).collect())
    }

    /// Up to `limit` claims of a campaign after the place `after`, for a caller that waits.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer.
    pub async fn claims(
        &self,
        campaign: &CampaignId,
        filter: &ClaimFilter,
        after: &ClaimCursor,
        limit: u32,
    ) -> Result<ClaimPage, SqlError> {
        page(&self.pool, campaign, filter, after, limit).await
    }

    /// Up to `limit` claims of a campaign after the place `after`, as one part of an export.
    pub(crate) async fn export_page(
        &self,
        campaign: &CampaignId,
        filter: &ClaimFilter,
        after: &ClaimCursor,
        limit: u32,
    ) -> Result<ClaimPage, SqlError> {
        page(&self.pool.within(BULK), campaign, filter, after, limit).await
    }
}

/// Up to `limit` of the claims that `filter` names after the place `after`, in the order of their sequence.
async fn page(
    pool: &Pool,
    campaign: &CampaignId,
    filter: &ClaimFilter,
    after: &ClaimCursor,
    limit: u32,
) -> Result<ClaimPage, SqlError> {
    // No index knows the status: without a bound, a page of a rare one would be the whole campaign.
    let looked_at = if filter.status.is_some() { limit.max(FILTERED_MAX) } else { limit };
    step::before("sql:claims").await;
    let statement = if filter.user.is_some() { statements::PAGE_OF_USER } else { statements::PAGE };
    let found = sqlx::query(statement)
        .bind(campaign.as_str())
        .bind(big(after.sequence))
        .bind(after.user.as_str())
        .bind(after.digest.as_str())
        .bind(i64::from(looked_at));
    let found = match &filter.user {
        Some(user) => found.bind(user.as_str()),
        None => found,
    };
    let rows = step::after(found.fetch_all(pool).await)?;
    let mut rows = rows.iter().map(|row| read(campaign, row)).collect::<Result<Vec<_>, _>>()?;
    let mut next = rows.last().filter(|_| is_full(rows.len(), looked_at)).map(ClaimCursor::of);
    if let Some(status) = filter.status {
        rows.retain(|row| row.claim.status == status);
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if rows.len() > limit {
        rows.truncate(limit);
        next = rows.last().map(ClaimCursor::of);
    }
    Ok(ClaimPage { rows, next })
}

/// Binds `$1` to `$3`: campaign, user and digest of a claim.
pub(super) fn bind_id(
    query: Query<'static, Any, AnyArguments>,
    id: &ClaimId,
) -> Query<'static, Any, AnyArguments> {
    query.bind(id.campaign.to_string()).bind(id.user.to_string()).bind(digest_text(&id.digest))
}

pub(super) fn read(campaign: &CampaignId, row: &AnyRow) -> Result<ClaimRow, SqlError> {
    let time = |ms: i64| Timestamp::from_ms(ms).map_err(unreadable);
    let (user, digest) = user_and_digest(row)?;
    let id = ClaimId { campaign: campaign.clone(), user, digest };
    let quantity = u32::try_from(row.try_get::<i64, _>("quantity")?).map_err(unreadable)?;
    let expires_at: Option<i64> = row.try_get("expires_at")?;
    let claim = Claim {
        campaign_id: id.campaign.clone(),
        user_id: id.user.clone(),
        id,
        quantity: Quantity::try_from(quantity).map_err(unreadable)?,
        status: status(&row.try_get::<String, _>("status")?)?,
        sequence: unsigned(row.try_get("sequence")?)?,
        claimed_at: time(row.try_get("claimed_at")?)?,
        expires_at: expires_at.map(time).transpose()?,
        persisted: None,
    };
    let revision = unsigned(row.try_get("revision")?)?;
    Ok(ClaimRow { claim, revision, day: row.try_get("day")?, updated_at: time(row.try_get("updated_at")?)? })
}

fn read_record(row: &AnyRow) -> Result<(UserId, ClaimRecord), SqlError> {
    let text: Option<&str> = row.try_get(0)?;
    text.and_then(parse_record).ok_or_else(|| unreadable(text.unwrap_or("a claim with a column missing")))
}

/// A claim as [`statements::BY_USER`] returns it.
fn parse_record(text: &str) -> Option<(UserId, ClaimRecord)> {
    let mut columns = text.split(' ');
    let user = columns.next()?.parse().ok()?;
    let time = |ms: &str| Timestamp::from_ms(ms.parse().ok()?).ok();
    let record = ClaimRecord {
        digest: parse_digest(columns.next()?).ok()?,
        quantity: columns.next()?.parse().ok()?,
        status: status(columns.next()?).ok()?,
        revision: columns.next()?.parse().ok()?,
        sequence: columns.next()?.parse().ok()?,
        day: columns.next()?.parse().ok()?,
        claimed_at: time(columns.next()?)?,
        expires_at: match columns.next()? {
            "-" => None,
            ms => Some(time(ms)?),
        },
    };
    columns.next().is_none().then_some((user, record))
}

/// A claim as the feed's statements return it: as [`statements::BY_USER`], and when it got its status.
pub(super) fn parse_row(campaign: &CampaignId, text: &str) -> Result<ClaimRow, SqlError> {
    let row = || {
        let (text, updated_at) = text.rsplit_once(' ')?;
        let (user_id, record) = parse_record(text)?;
        let id = ClaimId { campaign: campaign.clone(), user: user_id.clone(), digest: record.digest };
        let claim = Claim {
            id,
            campaign_id: campaign.clone(),
            user_id,
            quantity: Quantity::try_from(record.quantity).ok()?,
            status: record.status,
            sequence: record.sequence,
            claimed_at: record.claimed_at,
            expires_at: record.expires_at,
            persisted: None,
        };
        let updated_at = Timestamp::from_ms(updated_at.parse().ok()?).ok()?;
        Some(ClaimRow { claim, revision: record.revision.into(), day: record.day.into(), updated_at })
    };
    row().ok_or_else(|| unreadable(text))
}

/// The first two columns of every row.
fn user_and_digest(row: &AnyRow) -> Result<(UserId, ClaimDigest), SqlError> {
    let user = row.try_get::<&str, _>(0)?.parse().map_err(unreadable)?;
    Ok((user, parse_digest(row.try_get(1)?).map_err(unreadable)?))
}

fn is_full(rows: usize, limit: u32) -> bool {
    u32::try_from(rows).is_ok_and(|rows| rows >= limit)
}

fn status(text: &str) -> Result<ClaimStatus, SqlError> {
    text.parse().map_err(|_| unreadable(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_comes_as_one_text_and_nothing_else_is_one() {
        let digest = digest_text(&[7; 16]);
        let text = |end: &str| format!("ann {digest} 2 held 1 9 20000 1750000000000 {end}");
        let (user, record) = parse_record(&text("1750000060000")).unwrap();
        let told = (user.as_str(), record.digest, record.quantity, record.status, record.sequence);
        assert_eq!(told, ("ann", [7; 16], 2, ClaimStatus::Held, 9));
        assert_eq!(record.expires_at.map(Timestamp::as_ms), Some(1_750_000_060_000));
        assert_eq!(parse_record(&text("-")).unwrap().1.expires_at, None);
        for wrong in
            [text("soon"), text("- -"), text("").trim_end().to_owned(), text("-").replace("held", "lost")]
        {
            assert_eq!(parse_record(&wrong), None, "{wrong}");
        }
    }
}
