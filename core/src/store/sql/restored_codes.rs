//! Restores codes that the database has lost, or has under other code numbers than Redis shows.
//!
//! A code that was shown gets its number back. A code that the database has under this number instead was never shown,
//! and is displaced. A code that was shown may leave another number empty. No claim must wait while a code is left:
//! empty numbers get the displaced codes, and then the last codes of the stock.
//!
//! New claims get numbers after the highest number that was shown. Some numbers before it may belong to no claim any
//! more: the database has lost the claim, and its code was not shown. Their codes are displaced, too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use claimgate_shared::{CampaignId, ClaimCode};
use sqlx::Row as _;

use super::codes::{CODES_AT, add_to_stock, read_codes, write_numbers};
use super::numbers::{to_i64, unsigned};
use super::pool::Transaction;
use super::{BULK_MAX, SqlError, SqlStore, campaigns, statements};
use crate::domain::codes::{CodeStock, CodesOfClaim};

const REMOVE: &str = "DELETE FROM codes WHERE campaign_id = $2 \
    AND number IN (SELECT CAST(value->>0 AS BIGINT) FROM {rows})";

/// Codes and numbers that are free after shown codes got their numbers back.
#[derive(Debug)]
struct Freed {
    /// Codes that were never shown and have no number now.
    displaced: Vec<ClaimCode>,
    /// Numbers that shown codes have left, ascending.
    emptied: Vec<u64>,
}

impl SqlStore {
    /// Restores the codes and code numbers of `claims`, which Redis shows to their owners, as far as the database
    /// has lost them. Returns the number of restored codes.
    pub(crate) async fn restore_codes(
        &self,
        id: &CampaignId,
        claims: &[CodesOfClaim],
    ) -> Result<u64, SqlError> {
        let mut shown: BTreeMap<u64, &str> = claims
            .iter()
            .flat_map(|claim| (claim.first..).zip(claim.codes.iter().map(ClaimCode::as_str)))
            .collect();
        let Some((highest, _)) = shown.last_key_value() else { return Ok(0) };
        let highest = *highest;
        let mut transaction = self.pool.within(BULK_MAX).begin_at("sql:restore_codes").await?;
        let found = campaigns::lock(&mut transaction, id).await?;
        let Some(stock) = found.and_then(|campaign| campaign.codes) else { return Ok(0) };
        let texts: Vec<_> = shown.values().copied().collect();
        let numbers = self.numbers_of(&mut transaction, id, &texts).await?;
        let assigned = stock.assigned.max(highest);
        let mut not_shown = self.codes_between(&mut transaction, id, stock.assigned..=assigned).await?;
        not_shown.retain(|number, _| !shown.contains_key(number));
        shown.retain(|number, code| numbers.get(*code) != Some(number));
        let lost = shown;
        if lost.is_empty() && assigned == stock.assigned {
            return Ok(0);
        }
        let freed = self.put_back(&mut transaction, id, (&lost, not_shown), &numbers).await?;
        // No claim has numbers after `stock.assigned` yet.
        let pending_from = self.pending_from(&mut transaction, id, stock, &freed.emptied).await?;
        let stock = CodeStock { assigned, pending_from, ..stock };
        self.fill(&mut transaction, id, stock, &freed).await?;
        write_numbers(&mut transaction, id, stock).await?;
        transaction.commit().await?;
        Ok(lost.len() as u64)
    }

    /// Returns the codes with numbers after `from`, up to `to`. Without a claim of these numbers in this page of
    /// claims, a code is one of another page, which puts it back, or was never shown.
    async fn codes_between(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        numbers: RangeInclusive<u64>,
    ) -> Result<HashMap<u64, ClaimCode>, SqlError> {
        let (from, to) = numbers.into_inner();
        if from == to {
            return Ok(HashMap::new());
        }
        let query = sqlx::query(
            "SELECT number, code FROM codes WHERE campaign_id = $1 AND number > $2 AND number <= $3",
        );
        let query = query.bind(id.as_str()).bind(to_i64(from)).bind(to_i64(to));
        read_codes(&query.fetch_all(&mut transaction.lease).await?)
    }

    /// Stores the codes `lost` under their numbers, and removes the codes `not_shown`. `numbers` are the numbers under
    /// which the database has the codes of this page of claims.
    async fn put_back(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        (lost, not_shown): (&BTreeMap<u64, &str>, HashMap<u64, ClaimCode>),
        numbers: &HashMap<String, u64>,
    ) -> Result<Freed, SqlError> {
        let at: Vec<_> = lost.keys().map(|number| [*number]).collect();
        let query = self.with_rows(CODES_AT, &at, at.len()).bind(id.as_str());
        let mut in_the_way = read_codes(&query.fetch_all(&mut transaction.lease).await?)?;
        in_the_way.extend(not_shown);
        let misplaced = lost.values().filter_map(|code| numbers.get(*code).copied());
        let removed: BTreeSet<u64> = in_the_way.keys().copied().chain(misplaced).collect();
        self.remove_codes(transaction, id, removed.iter().copied()).await?;
        self.insert_codes(transaction, id, lost.iter().map(|(number, code)| (*number, *code))).await?;
        let displaced: Vec<_> =
            in_the_way.into_values().filter(|code| !numbers.contains_key(code.as_str())).collect();
        let change = to_i64((lost.len() + displaced.len()) as u64) - to_i64(removed.len() as u64);
        add_to_stock(transaction, id, change).await?;
        let emptied = removed.into_iter().filter(|number| !lost.contains_key(number)).collect();
        Ok(Freed { displaced, emptied })
    }

    /// Returns the campaign's new `pending_from`: the claim that has the first of the `emptied` numbers may be without
    /// a code.
    async fn pending_from(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        stock: CodeStock,
        emptied: &[u64],
    ) -> Result<Option<u64>, SqlError> {
        let Some(first) = emptied.first().filter(|number| **number <= stock.assigned) else {
            return Ok(stock.pending_from);
        };
        let query = sqlx::query(statements::FIRST_CODE_UP_TO).bind(id.as_str()).bind(to_i64(*first));
        let row = query.fetch_one(&mut transaction.lease).await?;
        let of_claim = row.try_get::<Option<i64>, _>(0)?.map_or(Ok(*first), unsigned)?;
        Ok(Some(stock.pending_from.unwrap_or(u64::MAX).min(of_claim)))
    }

    /// Stores the displaced codes under free numbers, those of claims first. If emptied numbers are left, moves the
    /// last codes that no claim has to them.
    async fn fill(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        stock: CodeStock,
        freed: &Freed,
    ) -> Result<(), SqlError> {
        let Freed { displaced, emptied } = freed;
        let mut free = self
            .free_numbers(transaction, id, stock, (emptied, displaced.len() + emptied.len()))
            .await?
            .into_iter();
        let displaced = displaced.iter().map(ClaimCode::as_str).zip(free.by_ref());
        self.insert_codes(transaction, id, displaced.map(|(code, number)| (number, code))).await?;
        let query = sqlx::query(
            "SELECT number, code FROM codes WHERE campaign_id = $1 AND number > $2 ORDER BY number DESC LIMIT $3",
        );
        let query = query.bind(id.as_str()).bind(to_i64(stock.assigned)).bind(to_i64(free.len() as u64));
        let last: BTreeMap<_, _> =
            read_codes(&query.fetch_all(&mut transaction.lease).await?)?.into_iter().collect();
        let moves = free.zip(last.iter().rev()).take_while(|(to, (from, _))| *to < **from);
        let moves: Vec<_> = moves.map(|(to, (from, code))| (*from, (to, code.as_str()))).collect();
        self.remove_codes(transaction, id, moves.iter().map(|(from, _)| *from)).await?;
        self.insert_codes(transaction, id, moves.into_iter().map(|(_, moved)| moved)).await
    }

    async fn remove_codes(
        &self,
        transaction: &mut Transaction,
        id: &CampaignId,
        numbers: impl Iterator<Item = u64>,
    ) -> Result<(), SqlError> {
        let rows: Vec<_> = numbers.map(|number| [number]).collect();
        let query = self.with_rows(REMOVE, &rows, rows.len()).bind(id.as_str());
        query.execute(&mut transaction.lease).await?;
        Ok(())
    }
}
