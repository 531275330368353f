//! Writes outbox entries to SQL: in batches, of one campaign or of several, and one by one for a suspended campaign.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::slice;

use claimgate_shared::ids::digest_text;
use claimgate_shared::{CampaignId, ClaimId, ClaimStatus, Timestamp};
use serde::{Serialize, Serializer};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Row as _};

use super::audit::ClaimChange;
use super::claims::bind_id;
use super::feed_writer::{FeedRow, feed_rows};
use super::numbers::{big, unsigned};
use super::pool::Transaction;
use super::{BULK, SqlError, SqlStore, WHOLE, campaigns, statements};
use crate::domain::counters::Epoch;
use crate::domain::event::{ClaimEvent, OutboxEntry};
use crate::step;

/// Why entries were not written.
#[derive(Debug, thiserror::Error)]
pub enum OutboxWriteError {
    /// The database has no such campaign.
    #[error("the database has no such campaign")]
    NoCampaign,
    /// Entries before them have not been written: another core has them in hand, or the database has lost them.
    #[error("the database lacks events before these")]
    OutOfOrder,
    /// A constraint of the database refuses them: a second claim in one place, or one that exceeds its limit.
    #[error("a constraint of the database refuses these claims: {0}")]
    Constraint(#[source] sqlx::Error),
    /// SQL did not answer; nothing was written.
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

/// The history of claims that are written one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// The history that SQL holds: each claim was within its user's limits when it was decided, whatever these are now.
    Same,
    /// Possibly another history, which may have granted the same units to others.
    Another,
}

/// Which entries may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryOrder {
    /// Those that follow what the database has. A Redis that loses its end then keeps all that came before what SQL has: a unit
    /// that was given back and granted again is never in SQL twice.
    Following,
    /// Any: of a suspended campaign, all of whose entries are about to be written.
    Any,
}

/// A campaign's entries.
pub type Batch<'a> = (&'a CampaignId, &'a [OutboxEntry]);

impl SqlStore {
    /// Writes the entries of each campaign named, once each, in one transaction that holds their rows. What an older epoch
    /// wrote is stored as revoked: its Redis was lost, and its units may have been granted again.
    ///
    /// # Errors
    /// [`OutboxWriteError::NoCampaign`], [`OutboxWriteError::OutOfOrder`], [`OutboxWriteError::Constraint`], or
    /// [`OutboxWriteError::Sql`] when SQL does not answer: nothing was written of any. The same entries can be written
    /// again: what was committed is not changed by them.
    pub async fn write_entries(
        &self,
        batches: &[Batch<'_>],
        order: EntryOrder,
    ) -> Result<(), OutboxWriteError> {
        step::before("sql:write_entries").await;
        let mut transaction = self.pool.within(BULK).begin().await?;
        let locked = self.lock_campaigns(&mut transaction, batches, order).await?;
        let (mut rows, mut changes) = (Vec::new(), Vec::new());
        for (campaign, entries) in batches {
            let Some(Locked { epoch, .. }) = locked.get(campaign.as_str()) else {
                let exists = campaigns::select(&mut transaction, campaign).await?.is_some();
                return Err(if exists { OutboxWriteError::OutOfOrder } else { OutboxWriteError::NoCampaign });
            };
            rows.extend(newest(entries).into_iter().map(|row| row.columns(campaign, *epoch)));
            changes.extend(changes_by_callers(campaign, entries, *epoch));
        }
        self.write_and_commit(transaction, rows, &changes).await
    }

    /// Writes a campaign's `entry`, of the epoch that the campaign is of, as the last thing that `transaction` does.
    pub(super) async fn write_entry_and_commit(
        &self,
        transaction: Transaction,
        campaign: &CampaignId,
        entry: &OutboxEntry,
    ) -> Result<(), OutboxWriteError> {
        let rows = newest(slice::from_ref(entry));
        let rows = rows.into_iter().map(|row| row.columns(campaign, entry.epoch)).collect();
        self.write_and_commit(transaction, rows, &[]).await
    }

    async fn write_and_commit(
        &self,
        mut transaction: Transaction,
        rows: Vec<Columns<'_>>,
        changes: &[ClaimChange<'_>],
    ) -> Result<(), OutboxWriteError> {
        let told = told(&rows);
        self.insert(rows).execute(&mut *transaction).await?;
        self.audit_claims(&mut transaction, changes).await?;
        Ok(self.commit_told(transaction, &told).await?)
    }

    /// Writes a suspended campaign's entries one by one. A claim that the database's constraints refuse is stored as
    /// revoked: it was granted by a Redis that had lost what SQL holds in its place. Returns the number of these.
    pub(crate) async fn salvage(
        &self,
        campaign: &CampaignId,
        entries: &[OutboxEntry],
        history: History,
    ) -> Result<u64, OutboxWriteError> {
        step::before("sql:salvage").await;
        let mut transaction = self.pool.within(WHOLE).begin().await?;
        let mut locked =
            self.lock_campaigns(&mut transaction, &[(campaign, entries)], EntryOrder::Any).await?;
        let locked = locked.remove(campaign.as_str()).ok_or(OutboxWriteError::NoCampaign)?;
        let taken =
            sqlx::query(statements::TAKEN).bind(campaign.as_str()).fetch_one(&mut *transaction).await?;
        let mut taken = unsigned(taken.try_get(0)?)?;
        let mut revoked = Vec::new();
        let mut rows = newest(entries);
        let columns: Vec<_> = rows.iter().map(|row| row.columns(campaign, locked.epoch)).collect();
        let told = told(&columns);
        // Who came first stands.
        rows.sort_unstable_by_key(|row| row.place);
        for row in rows {
            let id = row.event.claim_id(campaign);
            let taken_by_others = taken - standing(&mut transaction, &id).await?;
            // Another history may have used the units up: SQL's own sums decide, not the entry's counters.
            let stands = !exceeds_the_total(&row, taken_by_others)
                && (history == History::Same
                    || !exceeds_a_users_limit(&mut transaction, &locked, &row, &id).await?)
                && self.try_insert(&mut transaction, campaign, locked.epoch, row).await?;
            if !stands {
                let unguarded = Row { limit_at_decision: None, cumulative_taken: None, ..row };
                let columns = unguarded.columns(campaign, Epoch::new(u64::MAX));
                self.insert(vec![columns]).execute(&mut *transaction).await?;
                revoked.push(row.event);
            }
            taken = taken_by_others + standing(&mut transaction, &id).await?;
        }
        // Who changed a claim that never was is in no audit.
        let mut changes: Vec<_> = changes_by_callers(campaign, entries, locked.epoch).collect();
        changes.retain(|change| !revoked.iter().any(|event| change.is_of(event)));
        self.audit_claims(&mut transaction, &changes).await?;
        self.commit_told(transaction, &told).await?;
        Ok(revoked.len() as u64)
    }

    /// Writes a row, unless a constraint of the database refuses it; returns whether it was written.
    async fn try_insert(
        &self,
        transaction: &mut Transaction,
        campaign: &CampaignId,
        epoch: Epoch,
        row: Row<'_>,
    ) -> Result<bool, OutboxWriteError> {
        sqlx::raw_sql("SAVEPOINT attempt").execute(&mut **transaction).await?;
        let written = self.insert(vec![row.columns(campaign, epoch)]).execute(&mut **transaction).await;
        let (stands, end) = match written.map_err(OutboxWriteError::from) {
            Ok(_) => (true, "RELEASE SAVEPOINT attempt"),
            Err(OutboxWriteError::Constraint(_)) => (false, "ROLLBACK TO SAVEPOINT attempt"),
            Err(error) => return Err(error),
        };
        sqlx::raw_sql(end).execute(&mut **transaction).await?;
        Ok(stands)
    }

    /// The statement that writes `rows`, whatever their number: they come as one JSON array. Thousands of parameters
    /// would take SQLite quadratic time.
    fn insert(&self, mut rows: Vec<Columns<'_>>) -> Query<'static, Any, AnyArguments> {
        // Like rows become neighbours. It is stable: within these the users stay in their order, so that each page of the
        // index is visited once.
        rows.sort_by_key(|(group, _)| *group);
        self.with_rows(statements::WRITE, &Groups(&rows), rows.len())
    }

    /// `statement` over `rows`, `count` of them, as one JSON array.
    pub(super) fn with_rows(
        &self,
        statement: &str,
        rows: &(impl Serialize + ?Sized),
        count: usize,
    ) -> Query<'static, Any, AnyArguments> {
        let mut json = Vec::with_capacity(count * ROW_BYTES);
        // Strings, numbers and nulls: nothing in them can fail to be written, in UTF-8.
        let _ = serde_json::to_writer(&mut json, rows);
        let json = String::from_utf8(json).unwrap_or_default();
        sqlx::query(AssertSqlSafe(self.dialect.render(statement))).bind(json)
    }

    /// Locks the rows of campaigns until the transaction ends, and raises their high-water marks to what their entries
    /// show. A campaign that the database does not have is left out, and one whose entries may not be written in `order`.
    async fn lock_campaigns(
        &self,
        transaction: &mut Transaction,
        batches: &[Batch<'_>],
        order: EntryOrder,
    ) -> Result<HashMap<String, Locked>, OutboxWriteError> {
        let marks: Vec<_> = batches.iter().map(|batch| mark(batch, order)).collect();
        let found = self
            .with_rows(statements::RAISE_MARKS, &marks, marks.len())
            .fetch_all(&mut **transaction)
            .await?;
        found.iter().map(|row| Ok((row.try_get(0)?, Locked::of(row)?))).collect()
    }
}

/// What callers have changed by `entries` of a campaign whose epoch is `epoch_now`; what an older one wrote is revoked.
fn changes_by_callers<'a>(
    campaign: &'a CampaignId,
    entries: &'a [OutboxEntry],
    epoch_now: Epoch,
) -> impl Iterator<Item = ClaimChange<'a>> {
    let standing = entries.iter().filter(move |entry| entry.epoch >= epoch_now);
    standing.flat_map(move |entry| ClaimChange::of(campaign, entry))
}

/// A campaign, its newest epoch in a batch, and the sequence and the events that the batch shows for it: the counters of
/// an older epoch say nothing about this one. Last, the events that the database must have for the batch to follow them.
type Mark<'a> = (&'a str, i64, i64, i64, Option<i64>);

fn mark<'a>((campaign, entries): &Batch<'a>, order: EntryOrder) -> Mark<'a> {
    let newest = entries.iter().map(|entry| entry.epoch).max().unwrap_or_default();
    let of_newest = || entries.iter().filter(|entry| entry.epoch == newest);
    let sequences = of_newest().flat_map(|entry| &entry.events).map(|event| event.claim.sequence);
    let events = of_newest().map(|entry| entry.count).max().unwrap_or(0);
    let follows = (order == EntryOrder::Following).then(|| big(events_before(of_newest())));
    (campaign.as_str(), big(newest), big(sequences.max().unwrap_or(0)), big(events), follows)
}

/// How many events lie before `entries`, in their order, and before the last gap among them.
fn events_before<'a>(entries: impl Iterator<Item = &'a OutboxEntry>) -> u64 {
    let (mut before, mut reached) = (0, 0);
    for entry in entries {
        let first = entry.count.saturating_sub(entry.events.len() as u64);
        if first > reached {
            before = first;
        }
        reached = reached.max(entry.count);
    }
    before
}

/// A campaign whose row a transaction holds.
#[derive(Debug, Clone, Copy)]
struct Locked {
    epoch: Epoch,
    per_user: Option<u64>,
    per_user_per_day: Option<u64>,
}

impl Locked {
    /// As [`statements::RAISE_MARKS`] returns it.
    fn of(row: &AnyRow) -> Result<Self, OutboxWriteError> {
        let limit = |column: usize| row.try_get::<Option<i64>, _>(column)?.map(unsigned).transpose();
        Ok(Self {
            epoch: Epoch::new(unsigned(row.try_get(1)?)?),
            per_user: limit(2)?,
            per_user_per_day: limit(3)?,
        })
    }
}

/// Units that the claim `id` has taken, as SQL holds it.
async fn standing(transaction: &mut Transaction, id: &ClaimId) -> Result<u64, OutboxWriteError> {
    let row = bind_id(sqlx::query(statements::STANDING), id).fetch_one(&mut **transaction).await?;
    Ok(unsigned(row.try_get(0)?)?)
}

/// Whether a claim would exceed the total it was decided by, beside what all others have taken.
fn exceeds_the_total(row: &Row<'_>, taken_by_others: u64) -> bool {
    let taken = taken_by_others + u64::from(row.event.claim.quantity);
    row.stands() && row.limit_at_decision.is_some_and(|total| taken > total)
}

/// Whether a claim would exceed what the campaign allows a user now.
async fn exceeds_a_users_limit(
    transaction: &mut Transaction,
    locked: &Locked,
    row: &Row<'_>,
    id: &ClaimId,
) -> Result<bool, OutboxWriteError> {
    if !row.stands() {
        return Ok(false);
    }
    let of_user = bind_id(sqlx::query(statements::TAKEN_BY_USER), id)
        .bind(i64::from(row.event.claim.day))
        .fetch_one(&mut **transaction)
        .await?;
    let quantity = u64::from(row.event.claim.quantity);
    let taken = [unsigned(of_user.try_get(0)?)?, unsigned(of_user.try_get(1)?)?];
    Ok(taken
        .into_iter()
        .zip([locked.per_user, locked.per_user_per_day])
        .any(|(taken, limit)| limit.is_some_and(|limit| taken + quantity > limit)))
}

/// A claim to be written: its last state among the entries, and the guard's numbers from its decision.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    /// The first bytes of the user's id, in whose order ids are: most comparisons end here.
    user_prefix: u64,
    /// The place among the events of the claim's first one.
    place: usize,
    epoch: Epoch,
    event: &'a ClaimEvent,
    limit_at_decision: Option<u64>,
    cumulative_taken: Option<u64>,
}

/// What [`statements::WRITE`] takes once for a group of claims, and what of each of them.
type Columns<'a> = (GroupColumns<'a>, ClaimColumns<'a>);
type GroupColumns<'a> = (u64, u8, u32, Option<u64>, &'a str, &'a str);
type ClaimColumns<'a> = (&'a str, String, u32, u64, i64, Option<i64>, i64, Option<u64>);

/// What the feed tells of `rows`.
fn told<'a>(rows: &[Columns<'a>]) -> Vec<FeedRow<'a>> {
    let claims: Vec<_> = rows.iter().map(|(group, claim)| (group.4, claim.0, claim.1.as_str())).collect();
    feed_rows(&claims)
}

/// Room for a row's JSON, so that megabytes are not copied while it grows.
const ROW_BYTES: usize = 128;
/// The most claims in a group, whose JSON SQLite copies as a whole.
const GROUP_MAX: usize = 256;

/// Rows as [`statements::WRITE`] takes them: neighbours that are alike form a group.
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
    fn of(place: usize, epoch: Epoch, event: &'a ClaimEvent) -> Self {
        let mut prefix = [0; 8];
        let user = event.user.as_str().as_bytes();
        let length = user.len().min(prefix.len());
        prefix[..length].copy_from_slice(&user[..length]);
        Self {
            user_prefix: u64::from_be_bytes(prefix),
            place,
            epoch,
            event,
            limit_at_decision: event.limit_at_decision,
            cumulative_taken: event.cumulative_taken,
        }
    }

    /// The order of claims: by user, then by digest.
    fn by_claim(&self, other: &Self) -> Ordering {
        let rest = |row: &Self| (row.event.user.as_str(), row.event.claim.digest);
        self.user_prefix.cmp(&other.user_prefix).then_with(|| rest(self).cmp(&rest(other)))
    }

    /// Takes the state of a later event of the same claim, if it is a newer one.
    fn follow(&mut self, later: &Self) {
        if (later.epoch, later.event.claim.revision) > (self.epoch, self.event.claim.revision) {
            // The guard's numbers belong together: a new decision brings both, a later state neither.
            let decided = if later.cumulative_taken.is_some() { *later } else { *self };
            let Self { limit_at_decision, cumulative_taken, .. } = decided;
            *self = Self { limit_at_decision, cumulative_taken, place: self.place, ..*later };
        }
    }

    /// Whether the claim takes units.
    fn stands(&self) -> bool {
        matches!(self.event.claim.status, ClaimStatus::Granted | ClaimStatus::Held)
    }

    fn columns(&self, campaign: &'a CampaignId, epoch_now: Epoch) -> Columns<'a> {
        let Self { epoch, event, limit_at_decision, cumulative_taken, .. } = *self;
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
        );
        (group, claim)
    }
}

/// One row for each claim, since one statement may not touch a row twice, in the order of the users.
fn newest(entries: &[OutboxEntry]) -> Vec<Row<'_>> {
    let events = entries.iter().flat_map(|entry| entry.events.iter().map(|event| (entry.epoch, event)));
    let mut rows: Vec<_> =
        events.enumerate().map(|(place, (epoch, event))| Row::of(place, epoch, event)).collect();
    // Stable: the events of one claim stay in their order.
    rows.sort_by(Row::by_claim);
    rows.dedup_by(|later, row| {
        let same = row.by_claim(later) == Ordering::Equal;
        if same {
            row.follow(later);
        }
        same
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::claim_record::ClaimRecord;

    fn event(user: &str, status: ClaimStatus, revision: u8, decided: Option<(u64, u64)>) -> ClaimEvent {
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
        OutboxEntry {
            id: "1-0".to_owned(),
            epoch: Epoch::new(epoch),
            count: 1,
            events,
            by: None,
            trace: None,
        }
    }

    #[test]
    fn one_row_a_claim_in_its_last_state_with_the_numbers_of_its_decision() {
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
    fn rows_come_in_the_order_of_users_and_know_which_came_first() {
        let granted = |user| event(user, ClaimStatus::Granted, 1, Some((10, 1)));
        let users = ["long-user-b", "b", "long-user", "a", "long-user-a"];
        let mut entries = Vec::from(users.map(|user| entry(1, vec![granted(user)])));
        entries.push(entry(1, vec![event("b", ClaimStatus::Returned, 2, None)]));
        let rows: Vec<_> = newest(&entries).iter().map(|row| (row.event.user.as_str(), row.place)).collect();
        assert_eq!(rows, [("a", 3), ("b", 1), ("long-user", 2), ("long-user-a", 4), ("long-user-b", 0)]);
    }

    #[test]
    fn an_older_state_that_comes_later_changes_nothing() {
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
    fn what_a_later_epoch_decides_anew_brings_its_own_numbers() {
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
    fn what_an_older_epoch_wrote_is_stored_as_revoked() {
        let entries = [entry(1, vec![event("a", ClaimStatus::Granted, 1, Some((10, 1)))])];
        let campaign = "demo".parse().unwrap();
        assert_eq!(newest(&entries)[0].columns(&campaign, Epoch::new(1)).0.5, "granted");
        assert_eq!(newest(&entries)[0].columns(&campaign, Epoch::new(2)).0.5, "revoked");
    }

    #[test]
    fn what_claims_have_in_common_is_written_once_for_a_group() {
        let columns = |status, user| {
            ((1, 1, 20_000, None, "demo", status), (user, "d".to_owned(), 1, 1, 5, None, 5, None))
        };
        let rows = [columns("granted", "a"), columns("granted", "b"), columns("held", "c")];
        assert_eq!(
            serde_json::to_string(&Groups(&rows)).unwrap(),
            r#"[[1,1,20000,null,"demo","granted",[["a","d",1,1,5,null,5,null],["b","d",1,1,5,null,5,null]]],"#
                .to_owned() + r#"[1,1,20000,null,"demo","held",[["c","d",1,1,5,null,5,null]]]]"#
        );
        let many = vec![columns("granted", "a"); GROUP_MAX + 1];
        let groups = serde_json::to_value(Groups(&many)).unwrap();
        let sizes: Vec<_> = (0..2).map(|at| groups[at][6].as_array().map(Vec::len)).collect();
        assert_eq!(sizes, [Some(GROUP_MAX), Some(1)]);
    }
}
