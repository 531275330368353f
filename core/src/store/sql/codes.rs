//! Codes: adds them, assigns code numbers to claims, and reads the codes of claims.
//!
//! A claim gets its code numbers in the transaction that writes its row as granted, under the lock of the campaign's
//! row, and keeps them. Codes are added under the same lock, so a code number never gets a second code.

use std::collections::HashMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};

use claimgate_shared::admin::codes::AddedCodes;
use claimgate_shared::ids::{digest_text, parse_digest};
use claimgate_shared::{CampaignId, ClaimCode, ClaimDigest, UserId, Version};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row as _};

use super::campaigns::{self, Change, number_change, write_rules};
use super::lost_codes::may_have_lost_codes;
use super::numbers::{to_i64, unreadable, unsigned};
use super::pool::{Pool, Transaction};
use super::statements::campaign_columns;
use super::{BULK_MAX, SqlError, SqlStore, WHOLE_CAMPAIGN_MAX, statements};
use crate::domain::campaign::{Campaign, ShownProgress};
use crate::domain::codes::{CODES_AT_ONCE, CodeStock, CodesOfClaim};

/// Number of claims in a page of a load, or of claims that may be without codes.
const CLAIMS_PAGE: u32 = 1000;

/// The codes under given code numbers; `NULL` for a number without a code.
pub(super) const CODES_AT: &str = "SELECT CAST(value->>0 AS BIGINT), (SELECT code FROM codes \
    WHERE campaign_id = $2 AND number = CAST(value->>0 AS BIGINT)) FROM {rows}";
const NUMBERS_OF: &str = "SELECT value->>0, (SELECT number FROM codes \
    WHERE campaign_id = $2 AND code = value->>0) FROM {rows}";
const ADD: &str = "INSERT INTO codes (campaign_id, number, code) \
    SELECT $2, CAST(value->>0 AS BIGINT), value->>1 FROM {rows} WHERE TRUE";

/// A claim's code numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Numbered {
    pub user: UserId,
    pub digest: ClaimDigest,
    pub first: u64,
    pub quantity: u32,
    /// Whether this transaction has assigned them.
    pub is_new: bool,
}

impl Numbered {
    fn numbers(&self) -> Range<u64> {
        self.first..self.first + u64::from(self.quantity)
    }

    /// Returns the claim's codes; `None` if there are not enough yet.
    fn with_codes(&self, codes: &HashMap<u64, ClaimCode>) -> Option<CodesOfClaim> {
        let codes = self.numbers().map(|number| codes.get(&number).cloned()).collect::<Option<_>>()?;
        Some(CodesOfClaim { user: self.user.clone(), digest: self.digest, first: self.first, codes })
    }
}

/// Progress of the upload of a codes file.
pub(crate) struct Upload<'a> {
    /// The version that the campaign had at the upload's last change.
    version: Version,
    /// The last code of the previous chunk.
    last: Option<&'a str>,
    /// Number of codes added since the upload's last change.
    unrecorded: u64,
    /// The codes so far.
    pub counts: AddedCodes,
}

impl fmt::Debug for Upload<'_> {
    /// Leaves out the code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, last: _, unrecorded, counts } = self;
        let mut upload = f.debug_struct("Upload");
        upload.field("version", version).field("unrecorded", unrecorded).field("counts", counts);
        upload.finish_non_exhaustive()
    }
}

impl Upload<'_> {
    /// Begins an upload to a campaign that is now at `version`.
    pub fn begin(version: Version) -> Self {
        Self { version, last: None, unrecorded: 0, counts: AddedCodes::default() }
    }
}

/// The result of adding one chunk of a file.
#[derive(Debug)]
pub(crate) enum AddedChunk {
    /// The codes were added.
    Added,
    /// The codes were added, as a change of the campaign.
    Recorded(Box<Campaign>),
    /// An import has begun; nothing was added.
    ImportUnfinished,
    /// The database has lost the campaign, its version or the previous chunk, or may have lost later data; nothing was
    /// added.
    Forgotten,
}

/// Claims with code numbers, in the order of these numbers.
#[derive(Debug, Default)]
pub(crate) struct CodesPage {
    /// The claims whose codes are all there.
    pub complete: Vec<CodesOfClaim>,
    /// The first code number of the first claim without a code; `None` if there is no such claim.
    pub incomplete_from: Option<u64>,
    /// The code number from which the next page continues; `None` on the last page.
    pub next: Option<u64>,
}

impl SqlStore {
    /// Adds the codes of `chunk` that the campaign lacks; claims that wait for a code get the first
    /// codes. The last chunk is recorded as a change of the campaign, with the codes of the chunks
    /// before it. So is each chunk of which claims get codes: a database that loses codes that were
    /// shown must also lack a version. `shown` as for [`Self::change`].
    ///
    /// # Errors
    /// The codes may have been added. The upload is safe to retry.
    pub(crate) async fn add_codes<'a>(
        &self,
        id: &CampaignId,
        upload: &mut Upload<'a>,
        (chunk, is_last): (&[&'a str], bool),
        change: Change<'_>,
        shown: impl Future<Output = Option<ShownProgress>>,
    ) -> Result<AddedChunk, SqlError> {
        let mut transaction = self.pool.within(BULK_MAX).begin_at("sql:add_codes").await?;
        let found = campaigns::lock(&mut transaction, id).await?;
        let found = found.filter(|campaign| campaign.version >= upload.version);
        let Some((campaign, stock)) = found.and_then(|found| found.codes.map(|stock| (found, stock))) else {
            return Ok(AddedChunk::Forgotten);
        };
        if may_have_lost_codes(&campaign, shown).await {
            return Ok(AddedChunk::Forgotten);
        }
        if campaign.unfinished_import.is_some() {
            return Ok(AddedChunk::ImportUnfinished);
        }
        let queried: Vec<_> = upload.last.iter().chain(chunk).copied().collect();
        let known = self.numbers_of(&mut transaction, id, &queried).await?;
        if upload.last.is_some_and(|last| !known.contains_key(last)) {
            return Ok(AddedChunk::Forgotten);
        }
        let new: Vec<_> = chunk.iter().filter(|code| !known.contains_key(**code)).copied().collect();
        let numbers = self.free_numbers(&mut transaction, id, stock, (&[], new.len())).await?;
        let gives_codes = numbers.iter().any(|number| *number <= stock.assigned);
        self.insert_codes(&mut transaction, id, numbers.into_iter().zip(new.iter().copied())).await?;
        let added = new.len() as u64;
        add_to_stock(&mut transaction, id, to_i64(added)).await?;
        let recorded = if is_last || gives_codes {
            let stocks = [stock.added.saturating_sub(upload.unrecorded), stock.added + added];
            let stocks = stocks.map(|added| CodeStock { added, ..stock });
            Some(record_codes(&mut transaction, &campaign, stocks, change).await?)
        } else {
            None
        };
        transaction.commit().await?;
        upload.counts.added += added;
        upload.counts.already += (chunk.len() - new.len()) as u64;
        upload.last = chunk.last().copied();
        let Some(campaign) = recorded else {
            upload.unrecorded += added;
            return Ok(AddedChunk::Added);
        };
        (upload.unrecorded, upload.version) = (0, campaign.version);
        Ok(AddedChunk::Recorded(Box::new(campaign)))
    }

    /// Returns the number of granted claims with code numbers from `from` and without codes.
    pub(crate) async fn claims_without_codes(&self, id: &CampaignId, from: u64) -> Result<u64, SqlError> {
        let query = sqlx::query(statements::PENDING_CODES).bind(id.as_str()).bind(to_i64(from));
        let row = self.pool.within(WHOLE_CAMPAIGN_MAX).one("sql:claims_without_codes", query).await?;
        unsigned(row.try_get(0)?)
    }

    /// Returns the number of granted claims without codes, of each campaign that has such claims.
    pub(crate) async fn all_claims_without_codes(&self) -> Result<HashMap<CampaignId, u64>, SqlError> {
        let mut waiting = HashMap::new();
        for campaign in self.campaigns_with_pending_codes().await? {
            let from = campaign.codes.and_then(|stock| stock.pending_from).unwrap_or(0);
            let claims = self.claims_without_codes(&campaign.id, from).await?;
            if claims > 0 {
                waiting.insert(campaign.id, claims);
            }
        }
        Ok(waiting)
    }

    /// Counts the claims for which Redis must have codes, and those for which it may: the campaign's `pending_from` is
    /// the code number from which on Redis may lack them.
    pub(crate) async fn claims_with_codes(
        &self,
        id: &CampaignId,
        pending_from: Option<u64>,
    ) -> Result<RangeInclusive<u64>, SqlError> {
        let query = sqlx::query(statements::WITH_CODES).bind(id.as_str());
        let query = query.bind(pending_from.map_or(i64::MAX, to_i64));
        let row = self.pool.within(WHOLE_CAMPAIGN_MAX).one("sql:claims_with_codes", query).await?;
        Ok(unsigned(row.try_get(1)?)?..=unsigned(row.try_get(0)?)?)
    }

    /// Returns the campaigns with claims that may be without codes.
    pub(crate) async fn campaigns_with_pending_codes(&self) -> Result<Vec<Campaign>, SqlError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaigns WHERE codes_pending_from IS NOT NULL ORDER BY id"
        ));
        self.pool.all("sql:campaigns_with_pending_codes", query).await?.iter().map(campaigns::read).collect()
    }

    /// Records that Redis has the codes of all claims with code numbers before `to`. Without `to`, these are all
    /// claims that had code numbers in `campaign`, the state before the codes were read. Changes nothing if the
    /// campaign has been reloaded since.
    pub(crate) async fn set_pending_from(
        &self,
        campaign: &Campaign,
        to: Option<u64>,
    ) -> Result<(), SqlError> {
        let stock = campaign.codes.unwrap_or_default();
        let query = sqlx::query(
            "UPDATE campaigns SET codes_pending_from = COALESCE($1, CASE WHEN codes_assigned > $4 THEN $4 + 1 END) \
             WHERE id = $2 AND codes_pending_from = $3 AND epoch = $5",
        )
        .bind(to.map(to_i64))
        .bind(campaign.id.as_str())
        .bind(stock.pending_from.map(to_i64))
        .bind(to_i64(stock.assigned))
        .bind(to_i64(campaign.epoch));
        self.pool.run("sql:set_pending_from", query).await?;
        Ok(())
    }

    /// Returns a page of the claims with code numbers from `from`, whatever their status, with their codes.
    pub(crate) async fn codes_page(&self, id: &CampaignId, from: u64) -> Result<CodesPage, SqlError> {
        self.numbered_page(statements::NUMBERED, id, from).await
    }

    /// Returns a page of the granted claims with code numbers from `from`, with their codes.
    pub(crate) async fn granted_codes_page(&self, id: &CampaignId, from: u64) -> Result<CodesPage, SqlError> {
        self.numbered_page(statements::GRANTED_NUMBERED, id, from).await
    }

    async fn numbered_page(
        &self,
        statement: &'static str,
        id: &CampaignId,
        from: u64,
    ) -> Result<CodesPage, SqlError> {
        let query = sqlx::query(statement).bind(id.as_str()).bind(to_i64(from)).bind(i64::from(CLAIMS_PAGE));
        let rows = self.pool.within(BULK_MAX).all("sql:codes_page", query).await?;
        let (claims, next) = cut(rows.iter().map(read_numbered).collect::<Result<_, _>>()?);
        let codes = match (claims.first(), claims.last()) {
            (Some(first), Some(last)) => {
                let end = last.numbers().end;
                let query = sqlx::query(
                    "SELECT number, code FROM codes WHERE campaign_id = $1 AND number >= $2 AND number < $3",
                )
                .bind(id.as_str())
                .bind(to_i64(first.first))
                .bind(to_i64(end));
                read_codes(&self.pool.within(BULK_MAX).all("sql:codes_page.codes", query).await?)?
            }
            _ => HashMap::new(),
        };
        let mut page = CodesPage { next, ..CodesPage::default() };
        for claim in &claims {
            match claim.with_codes(&codes) {
                Some(complete) => page.complete.push(complete),
                None => page.incomplete_from = page.incomplete_from.or(Some(claim.first)),
            }
        }
        Ok(page)
    }

    /// Returns the codes of `claims`, of those that are granted and have all of their codes.
    pub(crate) async fn codes_of(
        &self,
        id: &CampaignId,
        claims: &[(UserId, ClaimDigest)],
    ) -> Result<Vec<CodesOfClaim>, SqlError> {
        self.codes_by(&self.pool, statements::NUMBERS_OF_GRANTED, id, claims).await
    }

    /// Returns the codes of `claims`, whatever their status, of those that have all of their codes.
    pub(crate) async fn all_codes_of(
        &self,
        id: &CampaignId,
        claims: &[(UserId, ClaimDigest)],
    ) -> Result<Vec<CodesOfClaim>, SqlError> {
        self.codes_by(&self.pool.within(BULK_MAX), statements::NUMBERS_OF_CLAIMS, id, claims).await
    }

    async fn codes_by(
        &self,
        pool: &Pool,
        statement: &str,
        id: &CampaignId,
        claims: &[(UserId, ClaimDigest)],
    ) -> Result<Vec<CodesOfClaim>, SqlError> {
        let keys: Vec<_> = claims.iter().map(|(user, digest)| (user.as_str(), digest_text(digest))).collect();
        let query = self.with_rows(statement, &keys, keys.len()).bind(id.as_str());
        let rows = pool.all("sql:codes_of", query).await?;
        let mut numbered = Vec::new();
        for row in &rows {
            if row.try_get::<Option<i64>, _>(2)?.is_some() {
                numbered.push(read_numbered(row)?);
            }
        }
        let numbers: Vec<_> = numbered.iter().flat_map(Numbered::numbers).map(|number| [number]).collect();
        let query = self.with_rows(CODES_AT, &numbers, numbers.len()).bind(id.as_str());
        let codes = read_codes(&pool.all("sql:codes_of.codes", query).await?)?;
        Ok(numbered.iter().filter_map(|claim| claim.with_codes(&codes)).collect())
    }

    /// Returns the codes of `claims` that have all of them, and records which claims are without codes.
    /// `stock` is the campaign's stock with the code numbers of these claims. Claims that have waited for
    /// codes are left out: their codes must not be shown before Redis has the version that added them.
    pub(super) async fn keep_numbers(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        mut stock: CodeStock,
        claims: &[Numbered],
    ) -> Result<Vec<CodesOfClaim>, SqlError> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let numbers: Vec<_> = claims.iter().flat_map(Numbered::numbers).map(|number| [number]).collect();
        let query = self.with_rows(CODES_AT, &numbers, numbers.len()).bind(id.as_str());
        let codes = read_codes(&query.fetch_all(&mut transaction.lease).await?)?;
        let mut complete = Vec::with_capacity(claims.len());
        let pending_from = stock.pending_from.unwrap_or(u64::MAX);
        for claim in claims {
            match claim.with_codes(&codes) {
                Some(codes) if claim.is_new || claim.first < pending_from => complete.push(codes),
                Some(_) => {}
                None => {
                    stock.pending_from =
                        Some(stock.pending_from.map_or(claim.first, |from| from.min(claim.first)));
                }
            }
        }
        write_numbers(transaction, id, stock).await?;
        Ok(complete)
    }

    /// Returns the code numbers of those `codes` that the campaign has.
    pub(super) async fn numbers_of(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        codes: &[&str],
    ) -> Result<HashMap<String, u64>, SqlError> {
        let rows: Vec<_> = codes.iter().map(|code| [*code]).collect();
        let query = self.with_rows(NUMBERS_OF, &rows, rows.len()).bind(id.as_str());
        let mut numbers = HashMap::new();
        for row in query.fetch_all(&mut transaction.lease).await? {
            if let Some(number) = row.try_get::<Option<i64>, _>(1)? {
                numbers.insert(row.try_get(0)?, unsigned(number)?);
            }
        }
        Ok(numbers)
    }

    /// Returns `count` code numbers for codes: first those assigned to granted claims, then the numbers of `emptied`
    /// that are assigned to no claim, then new numbers. Within each group they ascend, if `emptied` does.
    pub(super) async fn free_numbers(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        stock: CodeStock,
        (emptied, count): (&[u64], usize),
    ) -> Result<Vec<u64>, SqlError> {
        let mut free = Vec::with_capacity(count);
        let mut next = stock.pending_from;
        while let Some(from) = next.filter(|_| free.len() < count) {
            let claims = sqlx::query(statements::GRANTED_NUMBERED)
                .bind(id.as_str())
                .bind(to_i64(from))
                .bind(i64::from(CLAIMS_PAGE));
            let claims = claims.fetch_all(&mut transaction.lease).await?;
            let (claims, after) = cut(claims.iter().map(read_numbered).collect::<Result<_, _>>()?);
            let numbers: Vec<_> = claims.iter().flat_map(Numbered::numbers).map(|number| [number]).collect();
            let query = self.with_rows(CODES_AT, &numbers, numbers.len()).bind(id.as_str());
            let taken = read_codes(&query.fetch_all(&mut transaction.lease).await?)?;
            free.extend(numbers.iter().map(|[number]| *number).filter(|number| !taken.contains_key(number)));
            next = after;
        }
        let last = sqlx::query("SELECT COALESCE(MAX(number), 0) FROM codes WHERE campaign_id = $1")
            .bind(id.as_str())
            .fetch_one(&mut transaction.lease)
            .await?;
        let last = unsigned(last.try_get(0)?)?.max(stock.assigned);
        free.extend(emptied.iter().copied().filter(|number| (stock.assigned + 1..last).contains(number)));
        free.truncate(count);
        free.extend((last + 1..).take(count - free.len()));
        Ok(free)
    }

    pub(super) async fn insert_codes<'a>(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        codes: impl Iterator<Item = (u64, &'a str)>,
    ) -> Result<(), SqlError> {
        let rows: Vec<_> = codes.collect();
        self.with_rows(ADD, &rows, rows.len()).bind(id.as_str()).execute(&mut transaction.lease).await?;
        Ok(())
    }
}

/// Records a change of the campaign's stock from `before` to `after`. Returns the campaign at its new version.
async fn record_codes(
    transaction: &mut Transaction,
    campaign: &Campaign,
    [before, after]: [CodeStock; 2],
    change: Change<'_>,
) -> Result<Campaign, SqlError> {
    let with = |stock, version| Campaign { codes: Some(stock), version, ..campaign.clone() };
    let (before, after) = (with(before, campaign.version), with(after, campaign.version.next()));
    let after = write_rules(transaction, &before, &after, change).await?;
    number_change(transaction, &campaign.id).await?;
    Ok(after)
}

/// Writes the highest assigned number, and from which number on claims may be without codes.
pub(super) async fn write_numbers(
    transaction: &mut Transaction,
    id: &CampaignId,
    stock: CodeStock,
) -> Result<(), SqlError> {
    sqlx::query("UPDATE campaigns SET codes_assigned = $1, codes_pending_from = $2 WHERE id = $3")
        .bind(to_i64(stock.assigned))
        .bind(stock.pending_from.map(to_i64))
        .bind(id.as_str())
        .execute(&mut transaction.lease)
        .await?;
    Ok(())
}

pub(super) async fn add_to_stock(
    transaction: &mut Transaction,
    id: &CampaignId,
    change: i64,
) -> Result<(), SqlError> {
    let query: Query<'_, Any, AnyArguments> =
        sqlx::query("UPDATE campaigns SET codes_added = codes_added + $1 WHERE id = $2");
    query.bind(change).bind(id.as_str()).execute(&mut transaction.lease).await?;
    Ok(())
}

/// Cuts a page of claims, in the order of their code numbers, where it has [`CODES_AT_ONCE`] numbers. Returns the rest
/// of the page, and the code number from which the next page continues; `None` on the last page.
fn cut(mut claims: Vec<Numbered>) -> (Vec<Numbered>, Option<u64>) {
    let is_last = claims.len() < CLAIMS_PAGE as usize;
    let end = claims.first().map_or(0, |first| first.first + CODES_AT_ONCE);
    let count = claims.iter().take_while(|claim| claim.numbers().end <= end).count();
    let is_whole = count == claims.len();
    claims.truncate(count.max(1));
    let next = claims.last().filter(|_| !(is_last && is_whole)).map(|last| last.first + 1);
    (claims, next)
}

/// Reads user, digest, first code number and quantity.
fn read_numbered(row: &AnyRow) -> Result<Numbered, SqlError> {
    Ok(Numbered {
        user: row.try_get::<&str, _>(0)?.parse().map_err(unreadable)?,
        digest: parse_digest(row.try_get(1)?).map_err(unreadable)?,
        first: unsigned(row.try_get(2)?)?,
        quantity: u32::try_from(row.try_get::<i64, _>(3)?).map_err(unreadable)?,
        is_new: false,
    })
}

/// Reads code numbers and codes; rows without a code are left out.
pub(super) fn read_codes(rows: &[AnyRow]) -> Result<HashMap<u64, ClaimCode>, SqlError> {
    let mut codes = HashMap::with_capacity(rows.len());
    for row in rows {
        if let Some(code) = row.try_get::<Option<String>, _>(1)? {
            codes.insert(unsigned(row.try_get(0)?)?, code.try_into().map_err(unreadable)?);
        }
    }
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of a page of `count` claims after the cut, and where the next page begins.
    fn cut_of(count: u64, quantity: u32) -> (usize, Option<u64>) {
        let claim = |index| Numbered {
            user: "ann".parse().unwrap(),
            digest: [7; 16],
            first: 1 + index * u64::from(quantity),
            quantity,
            is_new: false,
        };
        let (claims, next) = cut((0..count).map(claim).collect());
        (claims.len(), next)
    }

    #[test]
    fn a_page_has_a_bounded_number_of_codes() {
        assert_eq!(cut_of(0, 1), (0, None));
        assert_eq!(cut_of(999, 1), (999, None));
        assert_eq!(cut_of(1000, 1), (1000, Some(1001)));
        assert_eq!(cut_of(100, 1000), (100, None));
        assert_eq!(cut_of(101, 1000), (100, Some(99_002)));
        assert_eq!(cut_of(1000, 1000), (100, Some(99_002)));
    }
}
