//! Reads claims in SQL: single claims, lists, exports, loads and comparisons.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use claimgate_shared::ids::{digest_text, parse_digest};
use claimgate_shared::{CampaignId, Claim, ClaimDigest, ClaimId, ClaimStatus, Quantity, Timestamp, UserId};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row as _};

use super::numbers::{to_i64, unreadable, unsigned};
use super::{BULK_MAX, NO_CURSOR, SqlError, SqlStore, WHOLE_CAMPAIGN_MAX, statements};
use crate::domain::claim_record::ClaimRecord;

/// Number of claims in one page of a load. Reading a page takes about 50 ms.
const LOAD_PAGE: u32 = 10_000;

/// Maximum number of claims scanned for one page filtered by status. Reading this number of claims takes
/// about 50 ms.
const FILTERED_MAX: u32 = 10_000;

/// A claim in SQL.
#[derive(Debug)]
pub struct ClaimRow {
    /// The claim.
    pub claim: Claim,
    /// Raised by every change of the claim.
    pub revision: u64,
    /// The day on which the claim counts, in days since 1970.
    pub day: i64,
    /// When the claim entered its current status.
    pub updated_at: Timestamp,
}

/// Sums over all rows of a campaign in SQL.
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    /// The number of rows.
    pub claims: u64,
    /// Units granted or held.
    pub taken: u64,
    /// The highest sequence number, including revoked claims.
    pub sequence: u64,
    /// The highest sequence number of a claim that is not revoked.
    pub sequence_not_revoked: u64,
    /// The number of revoked claims.
    pub revoked: u64,
    /// The number of held claims.
    pub held: u64,
    /// The sum of the revisions of all claims that are not revoked, which equals the number of events that
    /// have reached SQL.
    pub revisions: u64,
}

/// A filter for a list of a campaign's claims. The default matches all claims.
#[derive(Debug, Clone, Default)]
pub struct ClaimFilter {
    /// The user whose claims are listed; `None` for all users.
    pub user: Option<UserId>,
    /// The status of the listed claims; `None` for any status.
    pub status: Option<ClaimStatus>,
}

/// A page of claims, ordered by sequence number. With a status filter, a page may have fewer claims than
/// requested, or no claims, even if more pages follow.
#[derive(Debug)]
pub struct ClaimPage {
    /// The claims.
    pub rows: Vec<ClaimRow>,
    /// The claim after which the next page begins; `None` on the last page.
    pub next: Option<ClaimCursor>,
}

/// A position in the list of a campaign's claims. A revoked claim may share its sequence number with another
/// claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimCursor {
    sequence: u64,
    user: String,
    digest: String,
}

/// A position among a campaign's claims, ordered by user.
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
            let (user, digest) = (user.parse::<UserId>().ok()?, parse_digest(digest).ok()?);
            let sequence = sequence.parse().ok()?;
            Some(Self { sequence, user: user.to_string(), digest: digest_text(&digest) })
        };
        parts(text).ok_or(NO_CURSOR)
    }
}

impl SqlStore {
    /// Returns a page of a campaign's claims, ordered by user, after the claim `after`, and the cursor of the
    /// next page, if any. Revoked claims are left out. The campaign must be suspended, so that its claims do
    /// not change between pages.
    pub async fn by_user(
        &self,
        campaign: &CampaignId,
        after: &LoadCursor,
    ) -> Result<(Vec<(UserId, ClaimRecord)>, Option<LoadCursor>), SqlError> {
        let query = sqlx::query(statements::BY_USER)
            .bind(campaign.as_str())
            .bind(after.user.as_str())
            .bind(after.digest.as_str())
            .bind(i64::from(LOAD_PAGE));
        let rows = self.pool.within(BULK_MAX).all("sql:by_user", query).await?;
        let records = rows.iter().map(read_record).collect::<Result<Vec<_>, _>>()?;
        let next = records
            .last()
            .filter(|_| is_full(rows.len(), LOAD_PAGE))
            .map(|(user, record)| LoadCursor { user: user.to_string(), digest: digest_text(&record.digest) });
        Ok((records, next))
    }

    /// Computes the totals over all rows of a campaign.
    pub async fn totals(&self, campaign: &CampaignId) -> Result<Totals, SqlError> {
        let query = sqlx::query(statements::TOTALS).bind(campaign.as_str());
        let row = self.pool.within(WHOLE_CAMPAIGN_MAX).one("sql:totals", query).await?;
        Ok(Totals {
            claims: unsigned(row.try_get(0)?)?,
            taken: unsigned(row.try_get(1)?)?,
            sequence: unsigned(row.try_get(2)?)?,
            revoked: unsigned(row.try_get(3)?)?,
            held: unsigned(row.try_get(4)?)?,
            sequence_not_revoked: unsigned(row.try_get(5)?)?,
            revisions: unsigned(row.try_get(6)?)?,
        })
    }

    /// Returns the missing sequence numbers as at most `limit` ranges (first, last). Only a loss of claims
    /// leaves such gaps.
    pub(crate) async fn sequence_gaps(
        &self,
        campaign: &CampaignId,
        limit: u32,
    ) -> Result<Vec<(u64, u64)>, SqlError> {
        let query = sqlx::query(statements::GAPS).bind(campaign.as_str()).bind(i64::from(limit));
        let rows = self.pool.within(WHOLE_CAMPAIGN_MAX).all("sql:sequence_gaps", query).await?;
        rows.iter().map(|row| Ok((unsigned(row.try_get(0)?)?, unsigned(row.try_get(1)?)?))).collect()
    }

    /// Reads the claim `id`.
    pub async fn claim(&self, id: &ClaimId) -> Result<Option<ClaimRow>, SqlError> {
        let query = bind_id(sqlx::query(statements::ONE), id);
        self.pool.optional("sql:claim", query).await?.map(|row| read(&id.campaign, &row)).transpose()
    }

    /// Returns the `claims` that SQL lacks, or has in an earlier revision, in the given order. A revoked
    /// claim does not count as missing, because SQL has refused that claim.
    pub(crate) async fn lacking(
        &self,
        campaign: &CampaignId,
        claims: Vec<(UserId, ClaimRecord)>,
    ) -> Result<Vec<(UserId, ClaimRecord)>, SqlError> {
        let identity =
            |(user, record): &(UserId, ClaimRecord)| (user.to_string(), digest_text(&record.digest));
        let keys: Vec<_> = claims.iter().map(identity).collect();
        let query = self.with_rows(statements::REVISIONS, &keys, keys.len()).bind(campaign.as_str());
        let stored = self
            .pool
            .within(BULK_MAX)
            .all("sql:lacking", query)
            .await?
            .iter()
            .map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), unsigned(row.try_get(2)?)?)))
            .collect::<Result<HashMap<(String, String), u64>, SqlError>>()?;
        let lacks = |claim: &(UserId, ClaimRecord)| {
            stored
                .get(&identity(claim))
                .is_none_or(|stored_revision| *stored_revision < u64::from(claim.1.revision))
        };
        Ok(claims.into_iter().filter(lacks).collect())
    }

    /// Returns the same store with the longer time limit of an export.
    pub(crate) fn for_export(&self) -> Self {
        Self { pool: self.pool.within(BULK_MAX), ..self.clone() }
    }

    /// Returns up to `limit` claims that match `filter`, after the position `after`, ordered by sequence
    /// number.
    pub async fn claims(
        &self,
        campaign: &CampaignId,
        filter: &ClaimFilter,
        after: &ClaimCursor,
        limit: u32,
    ) -> Result<ClaimPage, SqlError> {
        // No index covers the status. Without a bound, a page with a rare status would scan the whole
        // campaign.
        let scanned_max = if filter.status.is_some() { limit.max(FILTERED_MAX) } else { limit };
        let statement = if filter.user.is_some() { statements::PAGE_OF_USER } else { statements::PAGE };
        let found = sqlx::query(statement)
            .bind(campaign.as_str())
            .bind(to_i64(after.sequence))
            .bind(after.user.as_str())
            .bind(after.digest.as_str())
            .bind(i64::from(scanned_max));
        let found = filter.user.iter().fold(found, |found, user| found.bind(user.as_str()));
        let rows = self.pool.all("sql:claims", found).await?;
        let mut rows = rows.iter().map(|row| read(campaign, row)).collect::<Result<Vec<_>, _>>()?;
        let mut next = rows.last().filter(|_| is_full(rows.len(), scanned_max)).map(ClaimCursor::of);
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
}

/// Binds the campaign, user and digest of a claim to `$1`, `$2` and `$3`.
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
        codes: None,
    };
    let revision = unsigned(row.try_get("revision")?)?;
    Ok(ClaimRow { claim, revision, day: row.try_get("day")?, updated_at: time(row.try_get("updated_at")?)? })
}

fn read_record(row: &AnyRow) -> Result<(UserId, ClaimRecord), SqlError> {
    let text: Option<&str> = row.try_get(0)?;
    text.and_then(parse_record).ok_or_else(|| unreadable(text.unwrap_or("a claim with a column missing")))
}

/// Parses a claim from a string that [`statements::BY_USER`] returns.
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

/// Parses a claim from a string that the feed's statements return: the string of [`statements::BY_USER`],
/// followed by `updated_at`.
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
            codes: None,
        };
        let updated_at = Timestamp::from_ms(updated_at.parse().ok()?).ok()?;
        Some(ClaimRow { claim, revision: record.revision.into(), day: record.day.into(), updated_at })
    };
    row().ok_or_else(|| unreadable(text))
}

/// Reads the first two columns, which are the same in every statement.
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
    fn only_a_well_formed_text_is_parsed_as_a_claim() {
        let digest = digest_text(&[7; 16]);
        let text = |end: &str| format!("ann {digest} 2 held 1 9 20000 1750000000000 {end}");
        let (user, record) = parse_record(&text("1750000060000")).unwrap();
        let parsed = (user.as_str(), record.digest, record.quantity, record.status, record.sequence);
        assert_eq!(parsed, ("ann", [7; 16], 2, ClaimStatus::Held, 9));
        assert_eq!(record.expires_at.map(Timestamp::as_ms), Some(1_750_000_060_000));
        assert_eq!(parse_record(&text("-")).unwrap().1.expires_at, None);
        for wrong in
            [text("soon"), text("- -"), text("").trim_end().to_owned(), text("-").replace("held", "lost")]
        {
            assert_eq!(parse_record(&wrong), None, "{wrong}");
        }
    }
}
