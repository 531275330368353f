//! Reads and acknowledges the outbox: the events that the scripts wrote for SQL.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{ClaimStatus, Timestamp};
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamInfoConsumersReply, StreamInfoGroupsReply, StreamReadOptions};
use redis::{AsyncCommands as _, Value};

use super::replicas;
use super::scripts::keys::{Keys, RELAY_GROUP};
use super::scripts::{self, replies, state};
use super::topology::slot::Slot;
use super::{RedisStore, RedisStoreError, RequiredReplicas, Session};
use crate::domain::claim_record::{ClaimRecord, be_int, from_layout_6, timestamp};
use crate::domain::codes::{CODES_AT_ONCE, CodesOfClaim};
use crate::domain::counters::{Epoch, Generation};
use crate::domain::event::{ClaimEvent, OutboxEntry, runs};

/// Length of an entry's head: epoch, event count, time of the write, total, units taken.
const HEAD_BYTES: usize = 28;
/// Maximum number of a campaign's entries committed together: up to 65,536 claims, about 300 ms of SQLite.
/// Larger commits rewrite fewer pages of the index by user: halving this number costs a third more.
pub const ENTRIES_MAX: usize = 256;
/// Maximum number of entries read in one call, which blocks Redis for about 2 ms.
const READ_MAX: usize = 64;

/// The result of one read of an outbox.
#[derive(Debug, Default)]
pub struct OutboxBatch {
    /// Well-formed entries.
    pub entries: Vec<OutboxEntry>,
    /// Ids of malformed entries.
    pub malformed: Vec<String>,
}

/// An entry as Redis sends it: its id, and its fields with their values. A list, since building a map would
/// cost more than reading the fields.
type RawEntry = (String, Vec<(Vec<u8>, Vec<u8>)>);

/// The layout of an outbox and of the claims in its entries. Each layout's outbox has its own key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxLayout {
    /// The layout that this core writes.
    Current,
    /// The layout that this core converts.
    Earlier,
}

impl OutboxLayout {
    /// Both layouts, the earlier one first.
    pub const ALL: [Self; 2] = [Self::Earlier, Self::Current];

    /// Returns the key of the outbox of this layout.
    fn key(self, keys: &Keys) -> &str {
        match self {
            Self::Current => &keys.outbox,
            Self::Earlier => &keys.earlier_outbox,
        }
    }

    /// Returns an entry's claims in the current format.
    fn converted(self, claims: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Current => Cow::Borrowed(claims),
            Self::Earlier => Cow::Owned(from_layout_6(claims)),
        }
    }
}

impl OutboxBatch {
    fn parse(items: Vec<RawEntry>, layout: OutboxLayout) -> Self {
        let mut read = Self::default();
        // Ids that begin with 0 are epoch markers; the others begin with the time.
        for item in items.into_iter().filter(|(id, _)| !id.starts_with("0-")) {
            match entry(&item, layout) {
                Some(entry) => read.entries.push(entry),
                None => read.malformed.push(item.0),
            }
        }
        read
    }

    /// Returns the number of entries, including malformed entries.
    pub fn len(&self) -> usize {
        self.entries.len() + self.malformed.len()
    }

    /// Returns whether the batch has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Splits the batch as [`runs`] does, in a campaign with codes into runs of at most [`CODES_AT_ONCE`] units. Malformed
    /// entries are left out.
    pub fn into_runs(self, has_codes: bool) -> Vec<Self> {
        let of_run = |entries| Self { entries, malformed: Vec::new() };
        let units_max = if has_codes { CODES_AT_ONCE } else { u64::MAX };
        runs(self.entries, units_max).into_iter().map(of_run).collect()
    }

    /// Returns when the oldest entry was written; `None` if there is no entry.
    pub fn oldest(&self) -> Option<Timestamp> {
        Some(self.entries.first()?.events.first()?.updated_at)
    }

    /// Returns the units of all claims.
    pub fn units(&self) -> u64 {
        self.entries.iter().map(OutboxEntry::units).sum()
    }

    /// Returns the number of events.
    pub fn events(&self) -> usize {
        self.entries.iter().map(|entry| entry.events.len()).sum()
    }
}

/// Parses an entry; `None` if it is malformed.
fn entry((id, fields): &RawEntry, layout: OutboxLayout) -> Option<OutboxEntry> {
    let field = |wanted: &str| {
        let found = fields.iter().find(|(name, _)| name == wanted.as_bytes());
        found.map(|(_, value)| value.as_slice())
    };
    let head: &[u8; HEAD_BYTES] = field("head")?.try_into().ok()?;
    let [epoch, count, at, total, taken] =
        [0..5, 5..11, 11..17, 17..22, 22..28].map(|range| be_int(&head[range]));
    let claims = layout.converted(field("claims")?);
    let mut events = events(std::str::from_utf8(field("users")?).ok()?, &claims, timestamp(at)?)?;
    fill_guards(&mut events, state::limit(total), taken)?;
    let text = |name: &str| field(name).and_then(|text| String::from_utf8(text.to_vec()).ok());
    let extended_from = text("extended_from").and_then(|ms| timestamp(ms.parse().ok()?));
    // Entries of earlier versions have no `by`. A name that is not UTF-8 must not make the entry malformed.
    let by = field(if extended_from.is_some() { "extended_by" } else { "by" });
    let by = by.map(|name| String::from_utf8_lossy(name).into_owned());
    let (epoch, reason, trace) = (Epoch::new(epoch), text("reason"), text("traceparent"));
    Some(OutboxEntry { id: id.clone(), epoch, count, events, by, reason, extended_from, trace })
}

/// Parses the events of an entry: space-separated users, and as many claims in the same order.
fn events(users: &str, claims: &[u8], updated_at: Timestamp) -> Option<Vec<ClaimEvent>> {
    let (claims, []) = claims.as_chunks::<{ ClaimRecord::BYTES }>() else { return None };
    let mut users = users.split(' ');
    let events = claims.iter().map(|claim| {
        Some(ClaimEvent {
            user: users.next()?.parse().ok()?,
            claim: ClaimRecord::read(claim)?,
            updated_at,
            limit_at_decision: None,
            cumulative_taken: None,
        })
    });
    let events = events.collect::<Option<Vec<_>>>()?;
    users.next().is_none().then_some(events)
}

/// Sets the guard values of each grant: the total that applied to the decision, and the units taken after the
/// grant. Works backwards from `taken`, the units taken after all events.
fn fill_guards(events: &mut [ClaimEvent], total: Option<u64>, mut taken: u64) -> Option<()> {
    for event in events.iter_mut().rev() {
        let quantity = u64::from(event.claim.quantity);
        match event.claim.status {
            _ if event.claim.revision == 1 => {
                event.limit_at_decision = total;
                event.cumulative_taken = Some(taken);
                taken = taken.checked_sub(quantity)?;
            }
            ClaimStatus::Returned | ClaimStatus::Expired => taken += quantity,
            ClaimStatus::Granted | ClaimStatus::Held | ClaimStatus::Revoked => {}
        }
    }
    Some(())
}

/// A separate connection for the relay, so that its large replies delay no other call. Clones share the
/// connection.
#[derive(Debug, Clone)]
pub struct OutboxReader {
    session: Session,
    required: Arc<RequiredReplicas>,
    /// This core's name in the consumer group.
    consumer: String,
}

impl OutboxReader {
    /// Returns the connection's generation. A connection of a later generation may lead to a different
    /// server.
    pub fn generation(&self) -> Generation {
        self.session.generation()
    }

    /// Returns whether the connection's generation is still current.
    pub fn is_current(&self) -> bool {
        self.session.is_current()
    }

    /// Reads entries of a campaign's outbox that no core has read yet, at most [`ENTRIES_MAX`]. Does not wait
    /// for entries.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] if Redis is unavailable or has lost the consumer group. Some entries
    /// may then count as read.
    pub async fn read_new(&mut self, keys: &Keys) -> Result<OutboxBatch, RedisStoreError> {
        let mut batch = OutboxBatch::default();
        // `NOACK` spares Redis a log record per entry for its list of pending entries. The list is not
        // needed: every entry still in the outbox is unacknowledged.
        let options = StreamReadOptions::default().group(RELAY_GROUP, &self.consumer).noack().count(READ_MAX);
        loop {
            let read = async |connection: &mut MultiplexedConnection| {
                connection.xread_options(&[keys.outbox.as_str()], &[">"], &options).await
            };
            let streams: Option<Vec<(String, Vec<RawEntry>)>> =
                self.session.query("redis:outbox.new", read).await.map_err(RedisStoreError::of)?;
            let items = streams.and_then(|streams| streams.into_iter().next()).map(|(_, items)| items);
            let read = OutboxBatch::parse(items.unwrap_or_default(), OutboxLayout::Current);
            let was_last = read.len() < READ_MAX;
            batch.entries.extend(read.entries);
            batch.malformed.extend(read.malformed);
            if was_last || batch.len() >= ENTRIES_MAX {
                return self.replicated(batch).await;
            }
        }
    }

    /// Returns how far cores have read the outbox. Any entries left up to this position have not been
    /// acknowledged.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] if Redis is unavailable or has lost the consumer group.
    pub async fn progress(&mut self, keys: &Keys) -> Result<Progress, RedisStoreError> {
        let mut both = redis::pipe();
        both.cmd("XINFO").arg("GROUPS").arg(&keys.outbox);
        both.cmd("XINFO").arg("CONSUMERS").arg(&keys.outbox).arg(RELAY_GROUP);
        let read = async |connection: &mut MultiplexedConnection| both.query_async(connection).await;
        let (groups, cores): (StreamInfoGroupsReply, StreamInfoConsumersReply) =
            self.session.query("redis:outbox.progress", read).await.map_err(RedisStoreError::of)?;
        let group = groups.groups.into_iter().find(|group| group.name == RELAY_GROUP);
        let others = cores.consumers.iter().filter(|core| core.name != self.consumer);
        Ok(Progress {
            last: group.map_or_else(|| "0".to_owned(), |group| group.last_delivered_id),
            other_cores: others
                .map(|core| Duration::from_millis(u64::try_from(core.idle).unwrap_or(u64::MAX)))
                .min(),
        })
    }

    /// Reads the first entries up to the id `last`, including entries that a core has already read.
    pub async fn read_delivered(&mut self, keys: &Keys, last: &str) -> Result<OutboxBatch, RedisStoreError> {
        let read = async |connection: &mut MultiplexedConnection| {
            // Starts after the epoch marker, whose id begins with 0.
            connection.xrange_count(&keys.outbox, "1", last, READ_MAX).await
        };
        let items: Vec<RawEntry> =
            self.session.query("redis:outbox.delivered", read).await.map_err(RedisStoreError::of)?;
        self.replicated(OutboxBatch::parse(items, OutboxLayout::Current)).await
    }

    /// Returns `batch` once it is replicated: SQL must never have events that a promoted replica lacks.
    async fn replicated(&self, batch: OutboxBatch) -> Result<OutboxBatch, RedisStoreError> {
        if self.required.any() && !batch.is_empty() {
            replicas::wait_for_replicas(&self.session, &self.required).await?;
        }
        Ok(batch)
    }
}

/// The progress of all cores in reading an outbox.
#[derive(Debug)]
pub struct Progress {
    /// Id of the last entry read by any core.
    pub last: String,
    /// Time since another core last tried to read; `None` if no other core ever has.
    pub other_cores: Option<Duration>,
}

/// The state of an outbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutboxState {
    /// Number of entries not yet relayed to SQL.
    pub entries: u64,
    /// When the oldest entry was written.
    pub oldest: Option<Timestamp>,
    /// Number of malformed entries, moved out of the outbox.
    pub dead_letters: u64,
}

impl RedisStore {
    /// Opens the relay's own connection to the server that has `slot`. `consumer` is this core's name.
    pub async fn outbox_reader(&self, slot: Slot, consumer: &str) -> Result<OutboxReader, RedisStoreError> {
        let session = self.session(slot).await?.with_own_connection().await;
        Ok(OutboxReader { session, required: Arc::clone(&self.required), consumer: consumer.to_owned() })
    }

    /// Removes `entries` from the outbox after SQL has committed them, and stores the `codes` of their
    /// claims. `session` must belong to the server that the entries were read from: a different server may
    /// have different entries under these ids. Returns the number of events left.
    ///
    /// # Errors
    /// The entries may still have been removed.
    pub async fn acknowledge(
        &self,
        session: &mut Session,
        keys: &Keys,
        entries: &[OutboxEntry],
        codes: &[CodesOfClaim],
    ) -> Result<u64, RedisStoreError> {
        let mut by_events: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for entry in entries {
            by_events.entry(entry.events.len()).or_default().push(&entry.id);
        }
        let mut call = scripts::ACK.call(&keys.with_codes());
        call.arg(codes.len());
        for claim in codes {
            call.arg(&claim.digest[..]).arg(claim.packed());
        }
        for (events, ids) in by_events {
            call.arg(events).arg(ids.len()).arg(ids);
        }
        Ok(replies::count(&self.run_on(session, "redis:ack", &call).await?)?)
    }

    /// Moves a malformed entry to the dead letters, on the server that it was read from. Returns `false` if
    /// the entry was already removed.
    ///
    /// # Errors
    /// The entry may still have been moved.
    pub async fn dead_letter(
        &self,
        session: &mut Session,
        keys: &Keys,
        layout: OutboxLayout,
        id: &str,
    ) -> Result<bool, RedisStoreError> {
        let mut call = scripts::DEAD_LETTER.call(&[layout.key(keys), &keys.dead_letters]);
        call.arg(id);
        Ok(replies::count(&self.run_on(session, "redis:dead_letter", &call).await?)? == 1)
    }

    /// Recreates the lost consumer group of an outbox. All entries still in the outbox are unacknowledged, so
    /// cores reread all of them.
    pub async fn restore_group(&self, keys: &Keys, epoch: Epoch) -> Result<(), RedisStoreError> {
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(&keys.outbox).arg(RELAY_GROUP).arg(format!("0-{epoch}"));
        match self.query::<Value>("redis:restore_group", keys.slot, &command).await {
            // Another core recreated it first.
            Err(RedisStoreError::Unavailable(error)) if error.code() == Some("BUSYGROUP") => Ok(()),
            result => result.map(drop),
        }
    }

    /// Reads entries of a suspended campaign after the id `after`, and returns them with the id of the last
    /// entry; `None` if there are no more entries.
    pub async fn outbox_page(
        &self,
        keys: &Keys,
        layout: OutboxLayout,
        after: &str,
    ) -> Result<Option<(OutboxBatch, String)>, RedisStoreError> {
        let mut command = redis::cmd("XRANGE");
        command.arg(layout.key(keys)).arg(format!("({after}")).arg("+").arg("COUNT").arg(READ_MAX);
        let page: Vec<RawEntry> = self.query("redis:outbox_page", keys.slot, &command).await?;
        let last = page.last().map(|(id, _)| id.clone());
        Ok(last.map(|last| (OutboxBatch::parse(page, layout), last)))
    }

    /// Reads the state of a campaign's outbox.
    pub async fn outbox_state(&self, keys: &Keys) -> Result<OutboxState, RedisStoreError> {
        let entries: u64 =
            self.query("redis:outbox_state.entries", keys.slot, redis::cmd("XLEN").arg(&keys.outbox)).await?;
        let mut first = redis::cmd("XRANGE");
        // Starts after the epoch marker, whose id begins with 0.
        first.arg(&keys.outbox).arg("1").arg("+").arg("COUNT").arg(1);
        let first: Vec<RawEntry> = self.query("redis:outbox_state.oldest", keys.slot, &first).await?;
        let oldest = first.first().and_then(|(id, _)| timestamp(id.split('-').next()?.parse().ok()?));
        let dead_letters = self
            .query("redis:outbox_state.dead_letters", keys.slot, redis::cmd("XLEN").arg(&keys.dead_letters))
            .await?;
        Ok(OutboxState { entries: entries.saturating_sub(1), oldest, dead_letters })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(status: u8, revision: u8, quantity: u8) -> Vec<u8> {
        let mut bytes = vec![7; 16];
        bytes.extend_from_slice(&[0, 0, 0, 0, 17, 0, 0, 0, quantity, status, 0, revision]);
        bytes.extend_from_slice(&1_700_000_000_000_u64.to_be_bytes()[2..]);
        bytes.extend_from_slice(&[0; 6]);
        bytes.extend_from_slice(&[0, 0x4d, 0]);
        bytes
    }

    fn at() -> Timestamp {
        timestamp(1_700_000_000_000).unwrap()
    }

    #[test]
    fn an_entry_names_its_caller_and_unknown_fields_are_ignored() {
        let mut fields = vec![("head", vec![0; HEAD_BYTES]), ("users", b"alice".to_vec())];
        fields.push(("claims", claim(1, 2, 1)));
        let named = vec![("by", b"olga".to_vec()), ("reason", b"refunded".to_vec()), ("later", vec![1])];
        for (further, by, reason) in [(vec![], None, None), (named, Some("olga"), Some("refunded"))] {
            let fields = fields.iter().cloned().chain(further);
            let fields = fields.map(|(name, bytes)| (name.as_bytes().to_vec(), bytes)).collect();
            let read = entry(&("1-0".to_owned(), fields), OutboxLayout::Current).unwrap();
            assert_eq!((read.events.len(), read.extended_from), (1, None));
            assert_eq!((read.by.as_deref(), read.reason.as_deref()), (by, reason));
        }
    }

    #[test]
    fn an_extension_names_its_caller_and_the_former_expiry() {
        let fields = [
            ("head", vec![0; HEAD_BYTES]),
            ("users", b"alice".to_vec()),
            ("claims", claim(2, 2, 1)),
            ("extended_by", b"shop".to_vec()),
            ("extended_from", b"1700000000000".to_vec()),
        ];
        let fields = fields.map(|(name, bytes)| (name.as_bytes().to_vec(), bytes)).to_vec();
        let read = entry(&("1-0".to_owned(), fields), OutboxLayout::Current).unwrap();
        assert_eq!((read.by.as_deref(), read.extended_from), (Some("shop"), Some(at())));
    }

    #[test]
    fn runs_leave_malformed_entries_out() {
        let entry = |count| OutboxEntry::new(format!("1-{count}"), Epoch::new(1), count, Vec::new());
        let batch = OutboxBatch { entries: vec![entry(1), entry(3)], malformed: vec!["1-9".to_owned()] };
        assert_eq!(batch.len(), 3);
        assert_eq!(batch.into_runs(true).iter().map(OutboxBatch::len).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn an_entry_of_layout_6_has_shorter_claims() {
        let mut of_layout_6 = claim(2, 1, 3);
        assert_eq!(of_layout_6.remove(26), 0, "the high byte of the revision");
        let mut head = vec![0; HEAD_BYTES];
        head[HEAD_BYTES - 1] = 9;
        let fields = [("head", head), ("users", b"alice bob".to_vec()), ("claims", of_layout_6.repeat(2))];
        let item = ("1-0".to_owned(), fields.map(|(name, bytes)| (name.as_bytes().to_vec(), bytes)).to_vec());
        let events = entry(&item, OutboxLayout::Earlier).unwrap().events;
        assert_eq!(events.iter().map(|event| event.claim.quantity).collect::<Vec<_>>(), [3, 3]);
        assert!(events.iter().all(|event| event.claim.revision == 1 && event.claim.day == 0x4d00));
        assert!(entry(&item, OutboxLayout::Current).is_none(), "the layouts differ");
    }

    #[test]
    fn an_event_packed_as_by_the_script_is_parsed() {
        let event = events("alice", &claim(1, 1, 2), at()).unwrap().remove(0);
        assert_eq!((event.user.as_str(), event.claim.quantity, event.claim.sequence), ("alice", 2, 17));
        assert_eq!((event.claim.status, event.claim.day), (ClaimStatus::Granted, 0x4d00));
    }

    #[test]
    fn an_entry_has_as_many_users_as_claims() {
        let two = [claim(1, 1, 2), claim(1, 1, 3)].concat();
        assert_eq!(events("a b", &two, at()).unwrap().len(), 2);
        for users in ["", "a", "a b c", "a  b", "a b "] {
            assert!(events(users, &two, at()).is_none(), "{users:?}");
        }
    }

    #[test]
    fn units_taken_after_each_grant_are_computed_backwards() {
        let claims = [claim(4, 2, 5), claim(1, 1, 2), claim(3, 2, 1), claim(2, 1, 3)].concat();
        let mut events = events("a b c d", &claims, at()).unwrap();
        fill_guards(&mut events, Some(100), 34).unwrap();
        let guards: Vec<_> =
            events.iter().map(|event| (event.limit_at_decision, event.cumulative_taken)).collect();
        // The return between the two grants released one unit.
        assert_eq!(guards, [(None, None), (Some(100), Some(32)), (None, None), (Some(100), Some(34))]);
        assert!(fill_guards(&mut events, Some(100), 2).is_none(), "more was granted than is taken");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(users in ".{0,50}", claims in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = events(&users, &claims, at());
        }

        #[test]
        fn a_truncated_event_is_malformed(cut in 1_usize..43) {
            prop_assert!(events("alice", &claim(1, 1, 2)[..cut], at()).is_none());
        }
    }
}
