//! Writes outbox entries to SQL: in batches of one or several campaigns, or claim by claim for a suspended
//! campaign.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::slice;

use claimgate_shared::ids::digest_text;
use claimgate_shared::{CampaignId, ClaimDigest, ClaimId, ClaimStatus, Timestamp};
use serde::{Serialize, Serializer};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Row as _};

use super::audit::ClaimChange;
use super::claims::bind_id;
use super::codes::Numbered;
use super::feed_writer::{FeedRow, feed_rows};
use super::numbers::{to_i64, unsigned};
use super::pool::Transaction;
use super::{BULK_MAX, SqlError, SqlStore, WHOLE_CAMPAIGN_MAX, campaigns, statements};
use crate::domain::codes::{CodeStock, CodesOfClaim};
use crate::domain::counters::Epoch;
use crate::domain::event::{ClaimEvent, OutboxEntry};

/// The reason why entries were not written.
#[derive(Debug, thiserror::Error)]
pub enum OutboxWriteError {
    /// The database has no such campaign.
    #[error("the database has no such campaign")]
    NoCampaign,
    /// Earlier entries are missing: another core is relaying these entries, or the database has lost them.
    #[error("the database lacks earlier events")]
    OutOfOrder,
    /// A constraint of the database is violated: a sequence number is used twice, or a limit is exceeded.
    #[error("a constraint of the database refuses these claims: {0}")]
    Constraint(#[source] sqlx::Error),
    /// SQL is unavailable. The commit may have taken effect.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl From<sqlx::Error> for OutboxWriteError {
    fn from(error: sqlx::Error) -> Self {
        let constraint = error
            .as_database_error()
            .is_some_and(|error| error.is_check_violation() || error.is_unique_violation());
        if constraint { Self::Constraint(error) } else { Self::Sql(error.into()) }
    }
}

/// The history that the claims of a salvage belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// The same history as in SQL. Each claim was within its user's limits at its decision, regardless of the
    /// current limits.
    Same,
    /// Possibly a different history, in which the same units may have been granted to other users.
    Another,
}

/// The order in which entries may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryOrder {
    /// Only entries that directly follow the events in the database. Otherwise, if Redis loses its latest
    /// events, SQL could have both the old and the new claim of a unit that was returned and granted again.
    Following,
    /// Any order. This is for suspended campaigns, whose entries are all about to be written.
    Any,
}

/// A campaign and entries of its outbox.
pub type Batch<'a> = (&'a CampaignId, &'a [OutboxEntry]);

impl SqlStore {
    /// Writes the entries of all `batches` in one transaction, under the lock of the campaigns' rows. Each
    /// campaign may occur only once. Claims of an older epoch are stored as revoked: their Redis was lost,
    /// and their units may have been granted again. Returns for each batch the codes of its granted claims that have
    /// all of them.
    ///
    /// # Errors
    /// Nothing was written, except that after [`OutboxWriteError::Sql`] all entries may have been written. It
    /// is safe to rewrite the same entries.
    pub async fn write_entries(
        &self,
        batches: &[Batch<'_>],
        order: EntryOrder,
    ) -> Result<Vec<Vec<CodesOfClaim>>, OutboxWriteError> {
        let mut transaction = self.pool.within(BULK_MAX).begin_at("sql:write_entries").await?;
        let mut locked = self.lock_campaigns(&mut transaction, batches, order).await?;
        let (mut rows, mut changes) = (Vec::with_capacity(batches.len()), Vec::new());
        for (campaign, entries) in batches {
            let Some(locked) = locked.get_mut(campaign.as_str()) else {
                let exists = campaigns::select(&mut transaction, campaign).await?.is_some();
                return Err(if exists { OutboxWriteError::OutOfOrder } else { OutboxWriteError::NoCampaign });
            };
            let mut of_campaign = newest(entries);
            self.number(&mut transaction, campaign, locked, &mut of_campaign).await?;
            rows.push((*campaign, *locked, of_campaign));
            changes.extend(changes_by_callers(campaign, entries, locked.epoch));
        }
        self.write_and_commit(transaction, &rows, &changes).await
    }

    /// Writes an `entry` of the campaign's current epoch and commits `transaction`. Call it last.
    pub(super) async fn write_entry_and_commit(
        &self,
        mut transaction: Transaction,
        campaign: &CampaignId,
        entry: &OutboxEntry,
    ) -> Result<(), OutboxWriteError> {
        let mut rows = newest(slice::from_ref(entry));
        let found = campaigns::select(&mut transaction, campaign).await?;
        let stock = found.and_then(|campaign| campaign.codes);
        let mut locked = Locked { epoch: entry.epoch, per_user: None, per_user_per_day: None, stock };
        self.number(&mut transaction, campaign, &mut locked, &mut rows).await?;
        self.write_and_commit(transaction, &[(campaign, locked, rows)], &[]).await?;
        Ok(())
    }

    /// Writes the rows of each campaign, whose granted claims must have code numbers, and commits
    /// `transaction`. Returns the codes of the claims that have all of them.
    async fn write_and_commit(
        &self,
        mut transaction: Transaction,
        campaigns: &[(&CampaignId, Locked, Vec<Row<'_>>)],
        changes: &[ClaimChange<'_>],
    ) -> Result<Vec<Vec<CodesOfClaim>>, OutboxWriteError> {
        let columns = campaigns
            .iter()
            .flat_map(|(campaign, locked, rows)| rows.iter().map(|row| row.columns(campaign, locked.epoch)));
        let columns: Vec<_> = columns.collect();
        let feed = feed_of(&columns);
        self.insert(columns).execute(&mut transaction.lease).await?;
        let mut codes = Vec::with_capacity(campaigns.len());
        for (campaign, locked, rows) in campaigns {
            codes.push(match locked.stock {
                Some(stock) => self.keep_numbers(&mut transaction, campaign, stock, &numbered(rows)).await?,
                None => Vec::new(),
            });
        }
        self.audit_claims(&mut transaction, changes).await?;
        self.commit_with_feed(transaction, &feed).await?;
        Ok(codes)
    }

    /// Assigns the next code numbers to the granted claims of `rows` that have none, in the order of their events. Does
    /// nothing for a campaign without codes.
    async fn number(
        &self,
        transaction: &mut Transaction,
        campaign: &CampaignId,
        locked: &mut Locked,
        rows: &mut [Row<'_>],
    ) -> Result<(), OutboxWriteError> {
        let Some(stock) = &mut locked.stock else { return Ok(()) };
        let is_granted = |row: &&mut Row<'_>| {
            row.event.claim.status == ClaimStatus::Granted
                && row.epoch >= locked.epoch
                && row.first_code.is_none()
        };
        let mut granted: Vec<_> = rows.iter_mut().filter(is_granted).collect();
        granted.sort_unstable_by_key(|row| row.index);
        let keys: Vec<_> = granted.iter().enumerate().map(|(at, row)| row.key(at)).collect();
        let query = self.with_rows(statements::FIRST_CODES, &keys, keys.len()).bind(campaign.as_str());
        let mut found = vec![0; granted.len()];
        for row in query.fetch_all(&mut transaction.lease).await? {
            let at = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or(usize::MAX);
            if let Some(found) = found.get_mut(at) {
                *found = row.try_get::<i64, _>(1)?;
            }
        }
        for (row, first) in granted.into_iter().zip(found) {
            row.was_numbered = first != NEEDS_NUMBERS;
            row.first_code = match first {
                NEEDS_NUMBERS => Some(stock.assign(row.event.claim.quantity)),
                first => u64::try_from(first).ok(),
            };
        }
        Ok(())
    }

    /// Writes a suspended campaign's entries claim by claim. A claim that violates a limit or a constraint is
    /// stored as revoked: the Redis server that granted it had lost claims that SQL has. Returns the number
    /// of revoked claims. `numbers`: the first code numbers of claims whose codes Redis shows.
    pub(crate) async fn salvage(
        &self,
        campaign: &CampaignId,
        entries: &[OutboxEntry],
        history: History,
        numbers: &HashMap<ClaimDigest, u64>,
    ) -> Result<u64, OutboxWriteError> {
        let mut transaction = self.pool.within(WHOLE_CAMPAIGN_MAX).begin_at("sql:salvage").await?;
        let mut locked =
            self.lock_campaigns(&mut transaction, &[(campaign, entries)], EntryOrder::Any).await?;
        let mut locked = locked.remove(campaign.as_str()).ok_or(OutboxWriteError::NoCampaign)?;
        let taken =
            sqlx::query(statements::TAKEN).bind(campaign.as_str()).fetch_one(&mut transaction.lease).await?;
        let mut taken = unsigned(taken.try_get(0)?)?;
        let (mut revoked, mut written) = (Vec::new(), Vec::new());
        let mut rows = newest(entries);
        let columns: Vec<_> = rows.iter().map(|row| row.columns(campaign, locked.epoch)).collect();
        let feed = feed_of(&columns);
        // Earlier claims take precedence.
        rows.sort_unstable_by_key(|row| row.index);
        for mut row in rows {
            row.first_code = numbers.get(&row.event.claim.digest).copied();
            let mut with_numbers = locked;
            self.number(&mut transaction, campaign, &mut with_numbers, slice::from_mut(&mut row)).await?;
            let id = row.event.claim_id(campaign);
            let taken_by_others = taken - units_taken(&mut transaction, &id).await?;
            // The units may have been used up in a different history, so SQL's sums decide, not the counters
            // in the entry.
            let is_written = !exceeds_total(&row, taken_by_others)
                && (history == History::Same
                    || !exceeds_user_limit(&mut transaction, &locked, &row, &id).await?)
                && self.try_insert(&mut transaction, campaign, locked.epoch, row).await?;
            if is_written {
                locked = with_numbers;
                written.push(row);
            } else {
                let unguarded =
                    Row { limit_at_decision: None, cumulative_taken: None, first_code: None, ..row };
                let columns = unguarded.columns(campaign, Epoch::new(u64::MAX));
                self.insert(vec![columns]).execute(&mut transaction.lease).await?;
                revoked.push(row.event);
            }
            taken = taken_by_others + units_taken(&mut transaction, &id).await?;
        }
        if let Some(stock) = locked.stock {
            self.keep_numbers(&mut transaction, campaign, stock, &numbered(&written)).await?;
        }
        // Changes of revoked claims are left out of the audit.
        let mut changes: Vec<_> = changes_by_callers(campaign, entries, locked.epoch).collect();
        changes.retain(|change| !revoked.iter().any(|event| change.is_of(event)));
        self.audit_claims(&mut transaction, &changes).await?;
        self.commit_with_feed(transaction, &feed).await?;
        Ok(revoked.len() as u64)
    }

    /// Writes a row. Returns `false` if it violates a constraint of the database.
    async fn try_insert(
        &self,
        transaction: &mut Transaction,
        campaign: &CampaignId,
        epoch: Epoch,
        row: Row<'_>,
    ) -> Result<bool, OutboxWriteError> {
        sqlx::raw_sql("SAVEPOINT attempt").execute(&mut transaction.lease).await?;
        let written = self.insert(vec![row.columns(campaign, epoch)]).execute(&mut transaction.lease).await;
        let (is_written, end) = match written.map_err(OutboxWriteError::from) {
            Ok(_) => (true, "RELEASE SAVEPOINT attempt"),
            Err(OutboxWriteError::Constraint(_)) => (false, "ROLLBACK TO SAVEPOINT attempt"),
            Err(error) => return Err(error),
        };
        sqlx::raw_sql(end).execute(&mut transaction.lease).await?;
        Ok(is_written)
    }

    /// Returns the statement that writes `rows`. The rows are passed as one JSON array, because SQLite would
    /// take quadratic time for thousands of parameters.
    fn insert(&self, mut rows: Vec<Columns<'_>>) -> Query<'static, Any, AnyArguments> {
        // Rows of the same group become neighbours. The sort is stable: within a group, rows stay ordered by
        // user, so that each page of the index is visited once.
        rows.sort_by_key(|(group, _)| *group);
        self.with_rows(statements::WRITE, &Groups(&rows), rows.len())
    }

    /// Returns `statement` with `rows` bound as one JSON array. `count` is the number of rows.
    pub(super) fn with_rows(
        &self,
        statement: &str,
        rows: &(impl Serialize + ?Sized),
        count: usize,
    ) -> Query<'static, Any, AnyArguments> {
        let mut json = Vec::with_capacity(count * ROW_BYTES);
        // The rows contain only strings, numbers and nulls, which always serialize, and as UTF-8.
        let _ = serde_json::to_writer(&mut json, rows);
        let json = String::from_utf8(json).unwrap_or_default();
        sqlx::query(AssertSqlSafe(self.dialect.render(statement))).bind(json)
    }

    /// Locks the rows of campaigns until the transaction ends, and raises each high-water mark to that of the
    /// campaign's entries. Campaigns that are not in the database, or whose entries violate `order`, are
    /// missing from the result.
    async fn lock_campaigns(
        &self,
        transaction: &mut Transaction,
        batches: &[Batch<'_>],
        order: EntryOrder,
    ) -> Result<HashMap<String, Locked>, OutboxWriteError> {
        let marks: Vec<_> = batches.iter().map(|batch| mark_update(batch, order)).collect();
        let found = self
            .with_rows(statements::RAISE_MARKS, &marks, marks.len())
            .fetch_all(&mut transaction.lease)
            .await?;
        found.iter().map(|row| Ok((row.try_get(0)?, Locked::of(row)?))).collect()
    }
}

/// Returns the changes that callers made in `entries`. Entries of an epoch before `epoch_now` are skipped:
/// their claims are revoked.
fn changes_by_callers<'a>(
    campaign: &'a CampaignId,
    entries: &'a [OutboxEntry],
    epoch_now: Epoch,
) -> impl Iterator<Item = ClaimChange<'a>> {
    let current = entries.iter().filter(move |entry| entry.epoch >= epoch_now);
    current.flat_map(move |entry| ClaimChange::of(campaign, entry))
}

/// The update of a campaign's high-water mark: the campaign, the newest epoch in its batch, and the highest
/// sequence number and event count of this epoch. Last is the event count that the database must have, if the
/// order matters. Counters of older epochs are not comparable.
type MarkUpdate<'a> = (&'a str, i64, i64, i64, Option<i64>);

fn mark_update<'a>((campaign, entries): &Batch<'a>, order: EntryOrder) -> MarkUpdate<'a> {
    let newest = entries.iter().map(|entry| entry.epoch).max().unwrap_or_default();
    let of_newest = || entries.iter().filter(|entry| entry.epoch == newest);
    let sequences = of_newest().flat_map(|entry| &entry.events).map(|event| event.claim.sequence);
    let events = of_newest().map(|entry| entry.count).max().unwrap_or(0);
    let follows = (order == EntryOrder::Following).then(|| to_i64(events_before(of_newest())));
    (campaign.as_str(), to_i64(newest), to_i64(sequences.max().unwrap_or(0)), to_i64(events), follows)
}

/// Returns the event count before `entries`. If the entries have gaps, returns the count before the entry
/// after the last gap.
fn events_before<'a>(entries: impl Iterator<Item = &'a OutboxEntry>) -> u64 {
    let (mut before, mut reached) = (0, 0);
    for entry in entries {
        let first = entry.count_before();
        if first > reached {
            before = first;
        }
        reached = reached.max(entry.count);
    }
    before
}

/// A campaign whose row is locked by a transaction.
#[derive(Debug, Clone, Copy)]
struct Locked {
    epoch: Epoch,
    per_user: Option<u64>,
    per_user_per_day: Option<u64>,
    /// With the code numbers that the transaction has assigned; `None` for a campaign without codes.
    stock: Option<CodeStock>,
}

/// The value that [`statements::FIRST_CODES`] returns for a claim without code numbers.
const NEEDS_NUMBERS: i64 = 0;

impl Locked {
    /// Reads a row that [`statements::RAISE_MARKS`] returns.
    fn of(row: &AnyRow) -> Result<Self, OutboxWriteError> {
        let limit = |column: usize| row.try_get::<Option<i64>, _>(column)?.map(unsigned).transpose();
        Ok(Self {
            epoch: Epoch::new(unsigned(row.try_get(1)?)?),
            per_user: limit(2)?,
            per_user_per_day: limit(3)?,
            stock: campaigns::read_stock(row)?,
        })
    }
}

/// Returns the units that the claim `id` takes in SQL; zero if the claim is missing or no longer in effect.
async fn units_taken(transaction: &mut Transaction, id: &ClaimId) -> Result<u64, OutboxWriteError> {
    let row = bind_id(sqlx::query(statements::STANDING), id).fetch_one(&mut transaction.lease).await?;
    Ok(unsigned(row.try_get(0)?)?)
}

/// Returns true if a claim would exceed the total that applied at its decision, given the units taken by all
/// other claims.
fn exceeds_total(row: &Row<'_>, taken_by_others: u64) -> bool {
    let taken = taken_by_others + u64::from(row.event.claim.quantity);
    row.takes_units() && row.limit_at_decision.is_some_and(|total| taken > total)
}

/// Returns true if a claim would exceed the campaign's current limits for one user.
async fn exceeds_user_limit(
    transaction: &mut Transaction,
    locked: &Locked,
    row: &Row<'_>,
    id: &ClaimId,
) -> Result<bool, OutboxWriteError> {
    if !row.takes_units() {
        return Ok(false);
    }
    let of_user = bind_id(sqlx::query(statements::TAKEN_BY_USER), id)
        .bind(i64::from(row.event.claim.day))
        .fetch_one(&mut transaction.lease)
        .await?;
    let quantity = u64::from(row.event.claim.quantity);
    let taken = [unsigned(of_user.try_get(0)?)?, unsigned(of_user.try_get(1)?)?];
    Ok(taken
        .into_iter()
        .zip([locked.per_user, locked.per_user_per_day])
        .any(|(taken, limit)| limit.is_some_and(|limit| taken + quantity > limit)))
}

/// A claim to be written: its latest state among the entries, and the guard's numbers from its decision.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    /// The first bytes of the user's id, as a big-endian number, which is enough for most comparisons.
    user_prefix: u64,
    /// The index of the claim's first event.
    index: usize,
    epoch: Epoch,
    event: &'a ClaimEvent,
    limit_at_decision: Option<u64>,
    cumulative_taken: Option<u64>,
    /// The claim's first code number; `None` without codes, or if the claim has none.
    first_code: Option<u64>,
    /// Whether SQL had the claim with its code numbers before.
    was_numbered: bool,
}

/// The columns of a claim for [`statements::WRITE`]: the columns shared by the claim's group, and the claim's
/// own columns.
type Columns<'a> = (GroupColumns<'a>, ClaimColumns<'a>);
type GroupColumns<'a> = (u64, u16, u32, Option<u64>, &'a str, &'a str);
type ClaimColumns<'a> = (&'a str, String, u32, u64, i64, Option<i64>, i64, Option<u64>, Option<u64>);

/// Returns the claims of `rows` that have code numbers.
fn numbered(rows: &[Row<'_>]) -> Vec<Numbered> {
    let of_row = |row: &Row<'_>| {
        let ClaimEvent { user, claim, .. } = row.event;
        let (digest, quantity, is_new) = (claim.digest, claim.quantity, !row.was_numbered);
        row.first_code.map(|first| Numbered { user: user.clone(), digest, first, quantity, is_new })
    };
    rows.iter().filter_map(of_row).collect()
}

/// Returns the feed rows for `rows`.
fn feed_of<'a>(rows: &[Columns<'a>]) -> Vec<FeedRow<'a>> {
    let claims: Vec<_> = rows.iter().map(|(group, claim)| (group.4, claim.0, claim.1.as_str())).collect();
    feed_rows(&claims)
}

/// Estimated size of a row's JSON, for the initial capacity of the buffer.
const ROW_BYTES: usize = 128;
/// Maximum number of claims in a group. SQLite copies the JSON of a whole group.
const GROUP_MAX: usize = 256;

/// Serializes rows for [`statements::WRITE`]. Neighbours with the same shared columns form a group.
struct Groups<'a>(&'a [Columns<'a>]);

impl Serialize for Groups<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let alike = self.0.chunk_by(|one, next| one.0 == next.0);
        let groups = alike.flat_map(|rows| rows.chunks(GROUP_MAX));
        serializer.collect_seq(groups.map(|rows| {
            let (epoch, revision, day, limit, campaign, status) = rows[0].0;
            (epoch, revision, day, limit, campaign, status, ClaimsOf(rows))
        }))
    }
}

/// The claims of a group.
struct ClaimsOf<'a>(&'a [Columns<'a>]);

impl Serialize for ClaimsOf<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(_, claim)| claim))
    }
}

impl<'a> Row<'a> {
    fn of(index: usize, epoch: Epoch, event: &'a ClaimEvent) -> Self {
        let mut prefix = [0; 8];
        let user = event.user.as_str().as_bytes();
        let length = user.len().min(prefix.len());
        prefix[..length].copy_from_slice(&user[..length]);
        Self {
            user_prefix: u64::from_be_bytes(prefix),
            index,
            epoch,
            event,
            limit_at_decision: event.limit_at_decision,
            cumulative_taken: event.cumulative_taken,
            first_code: None,
            was_numbered: false,
        }
    }

    /// Returns the row's key for [`statements::FIRST_CODES`], with its index `at`.
    fn key(&self, at: usize) -> (usize, &'a str, String, u64, u16, u32) {
        let claim = &self.event.claim;
        let (user, digest) = (self.event.user.as_str(), digest_text(&claim.digest));
        (at, user, digest, self.epoch.get(), claim.revision, claim.quantity)
    }

    /// Compares rows by user, then by digest.
    fn by_claim(&self, other: &Self) -> Ordering {
        let rest = |row: &Self| (row.event.user.as_str(), row.event.claim.digest);
        self.user_prefix.cmp(&other.user_prefix).then_with(|| rest(self).cmp(&rest(other)))
    }

    /// Takes over the state of a later event of the same claim, if the event's epoch and revision are newer.
    fn update_from(&mut self, later: &Self) {
        if (later.epoch, later.event.claim.revision) > (self.epoch, self.event.claim.revision) {
            // The guard's two numbers belong together: a new decision sets both, and any other event sets
            // neither.
            let decided = if later.cumulative_taken.is_some() { *later } else { *self };
            let Self { limit_at_decision, cumulative_taken, .. } = decided;
            *self = Self { limit_at_decision, cumulative_taken, index: self.index, ..*later };
        }
    }

    /// Returns true if the claim takes units.
    fn takes_units(&self) -> bool {
        matches!(self.event.claim.status, ClaimStatus::Granted | ClaimStatus::Held)
    }

    fn columns(&self, campaign: &'a CampaignId, epoch_now: Epoch) -> Columns<'a> {
        let Self { epoch, event, limit_at_decision, cumulative_taken, first_code, .. } = *self;
        let claim = &event.claim;
        let status = if epoch < epoch_now { ClaimStatus::Revoked } else { claim.status };
        let group =
            (epoch.get(), claim.revision, claim.day, limit_at_decision, campaign.as_str(), status.as_str());
        let claim = (
            event.user.as_str(),
            digest_text(&claim.digest),
            claim.quantity,
            claim.sequence,
            claim.claimed_at.as_ms(),
            claim.expires_at.map(Timestamp::as_ms),
            event.updated_at.as_ms(),
            cumulative_taken,
            first_code,
        );
        (group, claim)
    }
}

/// Returns one row for each claim, ordered by user. A statement must not write the same row twice.
fn newest(entries: &[OutboxEntry]) -> Vec<Row<'_>> {
    let events = entries.iter().flat_map(|entry| entry.events.iter().map(|event| (entry.epoch, event)));
    let mut rows: Vec<_> =
        events.enumerate().map(|(index, (epoch, event))| Row::of(index, epoch, event)).collect();
    // The sort is stable, so the events of one claim stay in order.
    rows.sort_by(Row::by_claim);
    rows.dedup_by(|later, row| {
        let same = row.by_claim(later) == Ordering::Equal;
        if same {
            row.update_from(later);
        }
        same
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::claim_record::ClaimRecord;

    fn event(user: &str, status: ClaimStatus, revision: u16, decided: Option<(u64, u64)>) -> ClaimEvent {
        let at = Timestamp::default();
        let claim = ClaimRecord {
            digest: [1; 16],
            status,
            revision,
            quantity: 1,
            sequence: 1,
            claimed_at: at,
            expires_at: None,
            day: 0,
        };
        ClaimEvent {
            user: user.parse().unwrap(),
            claim,
            updated_at: at,
            limit_at_decision: decided.map(|(limit, _)| limit),
            cumulative_taken: decided.map(|(_, taken)| taken),
        }
    }

    fn entry(epoch: u64, events: Vec<ClaimEvent>) -> OutboxEntry {
        OutboxEntry::new("1-0".to_owned(), Epoch::new(epoch), 1, events)
    }

    #[test]
    fn each_claim_has_one_row_with_its_latest_state() {
        let entries = [
            entry(
                1,
                vec![
                    event("a", ClaimStatus::Held, 1, Some((10, 4))),
                    event("b", ClaimStatus::Granted, 1, Some((10, 5))),
                ],
            ),
            entry(1, vec![event("a", ClaimStatus::Granted, 2, None)]),
        ];
        let rows = newest(&entries);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].event.claim.status, rows[0].event.claim.revision), (ClaimStatus::Granted, 2));
        assert_eq!((rows[0].limit_at_decision, rows[0].cumulative_taken), (Some(10), Some(4)));
        assert_eq!(rows[1].event.user.as_str(), "b");
    }

    #[test]
    fn rows_are_ordered_by_user_and_keep_their_event_index() {
        let granted = |user| event(user, ClaimStatus::Granted, 1, Some((10, 1)));
        let users = ["long-user-b", "b", "long-user", "a", "long-user-a"];
        let mut entries = Vec::from(users.map(|user| entry(1, vec![granted(user)])));
        entries.push(entry(1, vec![event("b", ClaimStatus::Returned, 2, None)]));
        let rows: Vec<_> = newest(&entries).iter().map(|row| (row.event.user.as_str(), row.index)).collect();
        assert_eq!(rows, [("a", 3), ("b", 1), ("long-user", 2), ("long-user-a", 4), ("long-user-b", 0)]);
    }

    #[test]
    fn an_older_state_that_arrives_later_is_ignored() {
        let entries = [
            entry(2, vec![event("a", ClaimStatus::Returned, 3, None)]),
            entry(2, vec![event("a", ClaimStatus::Granted, 2, None)]),
            entry(1, vec![event("a", ClaimStatus::Granted, 9, Some((10, 1)))]),
        ];
        let rows = newest(&entries);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].epoch.get(), rows[0].event.claim.status), (2, ClaimStatus::Returned));
    }

    #[test]
    fn a_new_decision_in_a_later_epoch_sets_both_guard_numbers() {
        let entries = [
            entry(1, vec![event("a", ClaimStatus::Granted, 1, Some((10, 1)))]),
            entry(2, vec![event("a", ClaimStatus::Granted, 1, Some((20, 7)))]),
        ];
        let rows = newest(&entries);
        assert_eq!(
            (rows[0].epoch.get(), rows[0].limit_at_decision, rows[0].cumulative_taken),
            (2, Some(20), Some(7))
        );
    }

    #[test]
    fn claims_of_an_older_epoch_are_stored_as_revoked() {
        let entries = [entry(1, vec![event("a", ClaimStatus::Granted, 1, Some((10, 1)))])];
        let campaign = "demo".parse().unwrap();
        assert_eq!(newest(&entries)[0].columns(&campaign, Epoch::new(1)).0.5, "granted");
        assert_eq!(newest(&entries)[0].columns(&campaign, Epoch::new(2)).0.5, "revoked");
    }

    #[test]
    fn shared_columns_are_written_once_for_each_group() {
        let columns = |status, user| {
            ((1, 1, 20_000, None, "demo", status), (user, "d".to_owned(), 1, 1, 5, None, 5, None, None))
        };
        let rows = [columns("granted", "a"), columns("granted", "b"), columns("held", "c")];
        assert_eq!(
            serde_json::to_string(&Groups(&rows)).unwrap(),
            r#"[[1,1,20000,null,"demo","granted",[["a","d",1,1,5,null,5,null,null],["b","d",1,1,5,null,5,null,null]]],"#
                .to_owned() + r#"[1,1,20000,null,"demo","held",[["c","d",1,1,5,null,5,null,null]]]]"#
        );
        let many = vec![columns("granted", "a"); GROUP_MAX + 1];
        let groups = serde_json::to_value(Groups(&many)).unwrap();
        let sizes: Vec<_> = (0..2).map(|at| groups[at][6].as_array().map(Vec::len)).collect();
        assert_eq!(sizes, [Some(GROUP_MAX), Some(1)]);
    }
}
