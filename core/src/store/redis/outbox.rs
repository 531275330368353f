//! The outbox: the events that the scripts wrote for SQL, read back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{ClaimStatus, Timestamp};
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamInfoConsumersReply, StreamInfoGroupsReply, StreamReadOptions};
use redis::{AsyncCommands as _, Value};

use super::keys::{Keys, RELAY_GROUP};
use super::slot::Slot;
use super::{RedisStore, RedisStoreError, Required, Session};
use super::{replicas, replies, scripts, state};
use crate::domain::claim_record::{ClaimRecord, be_int, timestamp};
use crate::domain::counters::{Epoch, Generation};
use crate::domain::event::{ClaimEvent, OutboxEntry};

/// The length of an entry's head: epoch, events so far, when it was written, total and units taken.
const HEAD_BYTES: usize = 28;
/// Entries of a campaign committed together: up to 65,536 claims, some 300 ms of SQLite. The more, the fewer pages of the
/// index by user are written more than once: half as many cost a third more.
pub const ENTRIES_MAX: usize = 256;
/// Entries read in one call, which holds up the decisions in Redis for some 2 ms.
const READ_MAX: usize = 64;

/// The result of one read of an outbox.
#[derive(Debug, Default)]
pub struct OutboxBatch {
    /// Entries as core wrote them.
    pub entries: Vec<OutboxEntry>,
    /// Ids of entries that are malformed.
    pub malformed: Vec<String>,
}

/// An entry as Redis sends it: its id, and its fields with their values. Not as a map, which costs more than what is in it.
type Item = (String, Vec<(Vec<u8>, Vec<u8>)>);

impl OutboxBatch {
    fn of(items: Vec<Item>) -> Self {
        let mut read = Self::default();
        // Ids that begin with 0 are sentinels: real ones begin with the time.
        for item in items.into_iter().filter(|(id, _)| !id.starts_with("0-")) {
            match entry(&item) {
                Some(entry) => read.entries.push(entry),
                None => read.malformed.push(item.0),
            }
        }
        read
    }

    /// How many entries it holds, of whatever kind.
    pub fn len(&self) -> usize {
        self.entries.len() + self.malformed.len()
    }

    /// Whether there was nothing to read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When its oldest entry was written; `None` without one.
    pub fn oldest(&self) -> Option<Timestamp> {
        Some(self.entries.first()?.events.first()?.updated_at)
    }

    /// How many events it holds.
    pub fn events(&self) -> usize {
        self.entries.iter().map(|entry| entry.events.len()).sum()
    }
}

fn entry((id, fields): &Item) -> Option<OutboxEntry> {
    let field = |wanted: &str| {
        let found = fields.iter().find(|(name, _)| name == wanted.as_bytes());
        found.map(|(_, value)| value.as_slice())
    };
    let head: &[u8; HEAD_BYTES] = field("head")?.try_into().ok()?;
    let [epoch, count, at, total, taken] =
        [0..5, 5..11, 11..17, 17..22, 22..28].map(|place| be_int(&head[place]));
    let mut events = events(std::str::from_utf8(field("users")?).ok()?, field("claims")?, timestamp(at)?)?;
    guard(&mut events, state::limit(total), taken)?;
    // Entries of before have none. A name is text; whatever else it were, the claim counts.
    let by = field("by").map(|name| String::from_utf8_lossy(name).into_owned());
    let trace = field("traceparent").and_then(|context| String::from_utf8(context.to_vec()).ok());
    Some(OutboxEntry { id: id.clone(), epoch: Epoch::new(epoch), count, events, by, trace })
}

/// The events of an entry: space-separated users, and as many claims in the same order.
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

/// Gives each grant the total it was decided by, and what was taken after it: from `taken`, what is taken after all of
/// them, backwards.
fn guard(events: &mut [ClaimEvent], total: Option<u64>, mut taken: u64) -> Option<()> {
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

/// A separate connection for the relay, so that its large replies hold up no other call. Clones share it.
#[derive(Debug, Clone)]
pub struct OutboxReader {
    session: Session,
    required: Arc<Required>,
    /// This core's name in the consumer group.
    consumer: String,
}

impl OutboxReader {
    /// The generation of the connections to the same server: with the next one another server may be the primary.
    pub fn generation(&self) -> Generation {
        self.session.generation()
    }

    /// Whether calls are still made on connections of that generation.
    pub fn is_current(&self) -> bool {
        self.session.is_current()
    }

    /// Entries of a campaign's outbox that no core has read yet, [`ENTRIES_MAX`] at most. Does not wait for any. After an
    /// error some may have been read.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer, or has lost the consumer group.
    pub async fn read_new(&mut self, keys: &Keys) -> Result<OutboxBatch, RedisStoreError> {
        let mut batch = OutboxBatch::default();
        // Without a list of what is pending, which would have to be written to Redis' log, entry by entry: what is in the
        // outbox was not acknowledged.
        let options = StreamReadOptions::default().group(RELAY_GROUP, &self.consumer).noack().count(READ_MAX);
        loop {
            let read = async |connection: &mut MultiplexedConnection| {
                connection.xread_options(&[keys.outbox.as_str()], &[">"], &options).await
            };
            let streams: Option<Vec<(String, Vec<Item>)>> =
                self.session.ask("redis:outbox.new", read).await.map_err(RedisStoreError::of)?;
            let items = streams.and_then(|streams| streams.into_iter().next()).map(|(_, items)| items);
            let read = OutboxBatch::of(items.unwrap_or_default());
            let was_last = read.len() < READ_MAX;
            batch.entries.extend(read.entries);
            batch.malformed.extend(read.malformed);
            if was_last || batch.len() >= ENTRIES_MAX {
                return self.confirmed(batch).await;
            }
        }
    }

    /// What cores have read. Entries up to the last one that are still in the outbox were not acknowledged.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer, or has lost the consumer group.
    pub async fn progress(&mut self, keys: &Keys) -> Result<Progress, RedisStoreError> {
        let mut both = redis::pipe();
        both.cmd("XINFO").arg("GROUPS").arg(&keys.outbox);
        both.cmd("XINFO").arg("CONSUMERS").arg(&keys.outbox).arg(RELAY_GROUP);
        let ask = async |connection: &mut MultiplexedConnection| both.query_async(connection).await;
        let (groups, cores): (StreamInfoGroupsReply, StreamInfoConsumersReply) =
            self.session.ask("redis:outbox.progress", ask).await.map_err(RedisStoreError::of)?;
        let group = groups.groups.into_iter().find(|group| group.name == RELAY_GROUP);
        let others = cores.consumers.iter().filter(|core| core.name != self.consumer);
        Ok(Progress {
            last: group.map_or_else(|| "0".to_owned(), |group| group.last_delivered_id),
            other_cores: others
                .map(|core| Duration::from_millis(u64::try_from(core.idle).unwrap_or(u64::MAX)))
                .min(),
        })
    }

    /// The first entries up to the id `last`, whichever core has read them.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn read_delivered(&mut self, keys: &Keys, last: &str) -> Result<OutboxBatch, RedisStoreError> {
        let read = async |connection: &mut MultiplexedConnection| {
            // Behind the sentinel, whose id begins with 0.
            connection.xrange_count(&keys.outbox, "1", last, READ_MAX).await
        };
        let items: Vec<Item> =
            self.session.ask("redis:outbox.delivered", read).await.map_err(RedisStoreError::of)?;
        self.confirmed(OutboxBatch::of(items)).await
    }

    /// What was read, once it can be lost no more: SQL must never know of what a promoted replica does not.
    async fn confirmed(&self, batch: OutboxBatch) -> Result<OutboxBatch, RedisStoreError> {
        if self.required.any() && !batch.is_empty() {
            replicas::confirmed(&self.session, &self.required).await?;
        }
        Ok(batch)
    }
}

/// How far an outbox was read.
#[derive(Debug)]
pub struct Progress {
    /// The id of the last entry that a core has read.
    pub last: String,
    /// How long ago a core other than this one has tried to read; `None` if none ever has.
    pub other_cores: Option<Duration>,
}

/// The state of an outbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutboxState {
    /// Entries not yet relayed to SQL.
    pub entries: u64,
    /// When the oldest entry was written.
    pub oldest: Option<Timestamp>,
    /// Malformed entries, moved out of the outbox.
    pub dead_letters: u64,
}

impl RedisStore {
    /// Opens the relay's own connection to the server that has `slot`, under this core's name.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis cannot be reached.
    pub async fn outbox_reader(&self, slot: Slot, consumer: &str) -> Result<OutboxReader, RedisStoreError> {
        let session = self.session(slot).await?.apart().await?;
        Ok(OutboxReader { session, required: Arc::clone(&self.required), consumer: consumer.to_owned() })
    }

    /// Takes `entries` off the outbox of the server that they were read from, after SQL has committed them: on another one
    /// entries of the same ids may be others. Returns the number of events left there.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer: the entries may be gone all the same.
    pub async fn acknowledge(
        &self,
        session: &mut Session,
        keys: &Keys,
        entries: &[OutboxEntry],
    ) -> Result<u64, RedisStoreError> {
        let mut by_events: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for entry in entries {
            by_events.entry(entry.events.len()).or_default().push(&entry.id);
        }
        let mut call = scripts::ACK.call(&keys.all());
        for (events, ids) in by_events {
            call.arg(events).arg(ids.len()).arg(ids);
        }
        Ok(replies::count(&self.run_on(session, "redis:ack", &call).await?)?)
    }

    /// Moves a malformed entry of the server that it was read from to the dead letters; `false` when it was gone.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer: the entry may have been moved all the same.
    pub async fn dead_letter(
        &self,
        session: &mut Session,
        keys: &Keys,
        id: &str,
    ) -> Result<bool, RedisStoreError> {
        let mut call = scripts::DEAD_LETTER.call(&[&keys.outbox, &keys.dead_letters]);
        call.arg(id);
        Ok(replies::count(&self.run_on(session, "redis:dead_letter", &call).await?)? == 1)
    }

    /// Makes the outbox's consumer group again, for one that has lost it. What is in the outbox was not taken off, so all
    /// of it is read again, by whichever core.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn restore_group(&self, keys: &Keys, epoch: Epoch) -> Result<(), RedisStoreError> {
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(&keys.outbox).arg(RELAY_GROUP).arg(format!("0-{epoch}"));
        match self.query::<Value>("redis:restore_group", keys.slot, &command).await {
            // Another core has made it first.
            Err(RedisStoreError::Unavailable(error)) if error.code() == Some("BUSYGROUP") => Ok(()),
            result => result.map(drop),
        }
    }

    /// Entries after the id `after`, whichever core has read them; `None` once there are no more. For a suspended campaign.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn outbox_page(
        &self,
        keys: &Keys,
        after: &str,
    ) -> Result<Option<(OutboxBatch, String)>, RedisStoreError> {
        let mut command = redis::cmd("XRANGE");
        command.arg(&keys.outbox).arg(format!("({after}")).arg("+").arg("COUNT").arg(READ_MAX);
        let page: Vec<Item> = self.query("redis:outbox_page", keys.slot, &command).await?;
        let last = page.last().map(|(id, _)| id.clone());
        Ok(last.map(|last| (OutboxBatch::of(page), last)))
    }

    /// The state of a campaign's outbox.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn outbox_state(&self, keys: &Keys) -> Result<OutboxState, RedisStoreError> {
        let entries: u64 =
            self.query("redis:outbox_state.entries", keys.slot, redis::cmd("XLEN").arg(&keys.outbox)).await?;
        let mut first = redis::cmd("XRANGE");
        // Behind the sentinels, whose ids begin with 0.
        first.arg(&keys.outbox).arg("1").arg("+").arg("COUNT").arg(1);
        let first: Vec<Item> = self.query("redis:outbox_state.oldest", keys.slot, &first).await?;
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
        bytes.extend_from_slice(&[0, 0, 0, 0, 17, 0, 0, 0, quantity, status, revision]);
        bytes.extend_from_slice(&1_700_000_000_000_u64.to_be_bytes()[2..]);
        bytes.extend_from_slice(&[0; 6]);
        bytes.extend_from_slice(&[0, 0x4d, 0]);
        bytes
    }

    fn at() -> Timestamp {
        timestamp(1_700_000_000_000).unwrap()
    }

    #[test]
    fn an_entry_names_who_asked_for_it_and_may_have_fields_that_this_version_does_not_know() {
        let mut fields = vec![("head", vec![0; HEAD_BYTES]), ("users", b"alice".to_vec())];
        fields.push(("claims", claim(1, 2, 1)));
        for (more, by) in
            [(vec![], None), (vec![("by", b"olga".to_vec()), ("later", vec![1])], Some("olga".to_owned()))]
        {
            let fields = fields.iter().cloned().chain(more);
            let fields = fields.map(|(name, bytes)| (name.as_bytes().to_vec(), bytes)).collect();
            let read = entry(&("1-0".to_owned(), fields)).unwrap();
            assert_eq!((read.events.len(), read.by), (1, by));
        }
    }

    #[test]
    fn an_event_reads_as_the_script_packs_it() {
        let event = events("alice", &claim(1, 1, 2), at()).unwrap().remove(0);
        assert_eq!((event.user.as_str(), event.claim.quantity, event.claim.sequence), ("alice", 2, 17));
        assert_eq!((event.claim.status, event.claim.day), (ClaimStatus::Granted, 0x4d00));
    }

    #[test]
    fn users_and_claims_stand_side_by_side() {
        let two = [claim(1, 1, 2), claim(1, 1, 3)].concat();
        assert_eq!(events("a b", &two, at()).unwrap().len(), 2);
        for users in ["", "a", "a b c", "a  b", "a b "] {
            assert!(events(users, &two, at()).is_none(), "{users:?}");
        }
    }

    #[test]
    fn what_was_taken_after_each_grant_is_told_from_the_end() {
        let claims = [claim(4, 2, 5), claim(1, 1, 2), claim(3, 2, 1), claim(2, 1, 3)].concat();
        let mut events = events("a b c d", &claims, at()).unwrap();
        guard(&mut events, Some(100), 34).unwrap();
        let guards: Vec<_> =
            events.iter().map(|event| (event.limit_at_decision, event.cumulative_taken)).collect();
        // The return between the two grants gave one unit back.
        assert_eq!(guards, [(None, None), (Some(100), Some(32)), (None, None), (Some(100), Some(34))]);
        assert!(guard(&mut events, Some(100), 2).is_none(), "more was granted than is taken");
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(users in ".{0,50}", claims in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = events(&users, &claims, at());
        }

        #[test]
        fn a_cut_event_is_no_event(cut in 1_usize..42) {
            prop_assert!(events("alice", &claim(1, 1, 2)[..cut], at()).is_none());
        }
    }
}
