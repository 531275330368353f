//! All access to Redis: connections, scripts, and the types of the scripts' replies.

mod barrier;
pub mod lease;
pub mod loader;
pub mod managed;
pub mod nodes;
pub mod outbox;
mod replicas;
pub mod scripts;
pub mod survey;
pub mod topology;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use claimgate_shared::{ClaimDigest, Timestamp, UserId};
use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, Value};

pub use self::barrier::{NotReplicated, RequiredReplicas};
use self::scripts::calls::CampaignCall;
use self::scripts::keys::Keys;
use self::scripts::layout_number::{EARLIER_LAYOUT, LAYOUT};
use self::scripts::replies::{LeaseReply, Malformed, Ready};
use self::scripts::state::{CampaignState, Identity};
use self::scripts::{ScriptCall, is_denied, keys, replies, state};
use self::topology::cluster::is_redirect;
use self::topology::connections::Connections;
use self::topology::primary::NoPrimary;
pub use self::topology::server::Session;
use self::topology::slot::Slot;
use crate::domain::campaign::RegisterId;
use crate::domain::claim_record::{self, ClaimRecord, from_layout_6, moved_from_layout_6, taken_ever};
use crate::domain::codes::{CODES_AT_ONCE, CodesOfClaim};
use crate::domain::counters::{Epoch, Generation};
use crate::domain::not_ready::NotReadyReason;
use crate::domain::replica_set::PrimaryView;
use crate::domain::store_fault::{FaultKind, StoreFault};
use crate::redis_address::RedisAddress;

/// The reason why a call to Redis failed.
#[derive(Debug, thiserror::Error)]
pub enum RedisStoreError {
    /// The campaign's counters in Redis cannot be trusted until the campaign is loaded.
    #[error("campaign not ready: {0}")]
    NotReady(NotReadyReason),
    /// Redis is out of memory and refused the call before writing anything.
    #[error("Redis is out of memory")]
    OutOfMemory(#[source] RedisError),
    /// Redis is unreachable, or its reply was lost: the outcome is unknown.
    #[error("Redis is unavailable: {0}")]
    Unavailable(#[from] RedisError),
    /// There is no primary to connect to; nothing was sent.
    #[error("{0}")]
    NoPrimary(NoPrimary),
    /// Redis replied, but not all required replicas confirmed the write: a failover may still lose the write.
    #[error("not replicated: {0}")]
    NotReplicated(#[from] NotReplicated),
    /// The reply does not match any reply of this version's scripts.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl From<NoPrimary> for RedisStoreError {
    fn from(error: NoPrimary) -> Self {
        match error {
            NoPrimary::Unreachable(error) => Self::Unavailable(error),
            other => Self::NoPrimary(other),
        }
    }
}

impl RedisStoreError {
    fn of(error: RedisError) -> Self {
        if error.code() == Some("OOM") { Self::OutOfMemory(error) } else { Self::Unavailable(error) }
    }

    /// Returns the fault of Redis that this error shows.
    pub fn fault(&self) -> StoreFault {
        let kind = match self {
            Self::OutOfMemory(_) => FaultKind::NoSpace,
            Self::NoPrimary(NoPrimary::Replica) => FaultKind::ReadOnly,
            Self::Unavailable(error) => match error.code() {
                Some("READONLY") => FaultKind::ReadOnly,
                Some("LOADING") => FaultKind::Restarting,
                Some("NOREPLICAS") => FaultKind::NoReplicas,
                Some(_) => FaultKind::Refused,
                None => FaultKind::NoAnswer,
            },
            Self::NoPrimary(_) => FaultKind::NoAnswer,
            Self::NotReady(_) | Self::NotReplicated(_) | Self::Malformed(_) => FaultKind::Refused,
        };
        let message = match self {
            Self::OutOfMemory(error) | Self::Unavailable(error) => error.to_string(),
            other => other.to_string(),
        };
        StoreFault { kind, message }
    }

    /// Returns whether Redis did not answer or only redirected the call; the next call may succeed.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unavailable(error) => error.code().is_none() || is_redirect(error),
            Self::NoPrimary(_) => true,
            Self::NotReady(_) | Self::OutOfMemory(_) | Self::NotReplicated(_) | Self::Malformed(_) => false,
        }
    }

    /// Returns whether an idempotent script may succeed on another connection. This is the case if the
    /// connection broke, the reply was truncated, the server lost the script between load and call, or
    /// another node owns the slot.
    pub fn is_worth_resending(&self) -> bool {
        matches!(self, Self::Unavailable(error) if error.is_connection_dropped()
            || error.kind() == ErrorKind::Parse
            || is_redirect(error)
            || scripts::is_missing(error))
    }
}

/// The campaign that a script is called on, and what its keys must contain to be trusted.
#[derive(Debug, Clone, Copy)]
pub struct CallTarget<'a> {
    /// The campaign's keys.
    pub keys: &'a Keys,
    /// The required epoch of the keys.
    pub epoch: Epoch,
    /// The minimum event count; with fewer events, Redis has lost some.
    pub minimum_events: u64,
    /// The required register id of the keys.
    pub register_id: &'a RegisterId,
}

impl CallTarget<'_> {
    /// Returns the identity that the keys must have on the server of `session`.
    fn identity<'a>(&'a self, session: &'a Session) -> Identity<'a> {
        let (epoch, register_id) = (self.epoch, self.register_id);
        Identity { epoch, register_id, replication_id: &session.replication_id }
    }
}

/// Number of entries of a hash that one call reads.
const HASH_PAGE: u32 = 1000;
/// Number of claims whose codes one call reads: together they have at most about [`CODES_AT_ONCE`] codes.
const CODES_PAGE: u32 = 100;

/// A field of a hash, and its value.
type HashEntry = (Vec<u8>, Vec<u8>);

/// A scan of all claims of a campaign: first the claims in users' records, then the claims that have moved
/// out of the records, to the campaign's hash of claims.
#[derive(Debug)]
pub struct ClaimScan {
    /// A cursor is valid only on the server that returned it.
    session: Session,
    position: ScanPosition,
    /// Whether the records have the earlier layout.
    is_earlier: bool,
}

#[derive(Debug, Clone, Copy)]
enum ScanPosition {
    /// Cursor in the users' hash.
    Users(u64),
    /// Cursor in the hash of claims that have moved out.
    Moved(u64),
}

/// Counts of held claims, from the index in Redis.
#[derive(Debug, Clone, Copy)]
pub struct HoldState {
    /// The number of held claims.
    pub held: u64,
    /// The number of held claims that are past due and should have expired.
    pub stranded: u64,
}

/// The owner of a campaign's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysOwner {
    /// The campaign's register id.
    pub register_id: String,
    /// The fencing token under which the campaign was last suspended or loaded.
    pub token: String,
    /// Whether decisions are stopped until the campaign is reloaded.
    pub suspended: bool,
}

/// Access to Redis over a shared connection, which is opened on first use.
#[derive(Debug)]
pub struct RedisStore {
    connections: Connections,
    /// Maximum number of events in the outbox; beyond it new claims are rejected.
    outbox_max: u64,
    required: Arc<RequiredReplicas>,
    /// Whether a server has refused to run or load a script for core. If so, [`Self::probe`] checks the commands.
    scripts_denied: Arc<AtomicBool>,
}

impl RedisStore {
    /// Creates a store at `address`, which connects on first use.
    pub fn new(address: impl Into<RedisAddress>, outbox_max: u64) -> Self {
        Self {
            connections: Connections::new(address.into()),
            outbox_max,
            required: Arc::default(),
            scripts_denied: Arc::default(),
        }
    }

    /// Returns the same store with a separate connection, for calls from one thread.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        Self {
            connections: self.connections.another(),
            outbox_max: self.outbox_max,
            required: Arc::clone(&self.required),
            scripts_denied: Arc::clone(&self.scripts_denied),
        }
    }

    /// Returns the replicas that must confirm writes.
    pub fn required_replicas(&self) -> &RequiredReplicas {
        &self.required
    }

    /// Waits until every required replica has everything that the server of `session` has replied so far.
    /// Only then may core act on a reply outside of Redis, or return it to a caller.
    async fn wait_for_replicas(&self, session: &Session) -> Result<(), NotReplicated> {
        if self.required.any() { replicas::wait_for_replicas(session, &self.required).await } else { Ok(()) }
    }

    /// Checks every primary that answers, and its replicas.
    ///
    /// # Errors
    /// If the single server is unavailable, or no node of the cluster has ever answered. If all nodes of a
    /// known cluster are unavailable, the list is empty.
    pub async fn primaries(&self) -> Result<Vec<PrimaryView>, RedisStoreError> {
        let sessions = self.connections.all().await?;
        let views = sessions.into_iter().filter_map(|(_, session)| session.ok());
        let views = views.map(|session| async move { self.view(&session).await.ok() });
        let views = join_all(views).await;
        if views.iter().any(Option::is_none) {
            // Slots may have moved without any call on a campaign having detected it.
            self.connections.refresh().await;
        }
        Ok(views.into_iter().flatten().collect())
    }

    /// Checks one primary and its replicas.
    async fn view(&self, session: &Session) -> Result<PrimaryView, NotReplicated> {
        let replication = self.required.current();
        let set = replication.sets.iter().find(|set| {
            let is_primary = set.primary == *session.name;
            is_primary || set.members.contains(&*session.name)
        });
        let slot = set.map(|set| Slot::of(&keys::barrier(&set.tag)));
        let (holds_tag, first) = self.connections.slots_of(session, slot);
        let tag = match set {
            Some(set) if holds_tag => set.tag.clone(),
            _ => first.unwrap_or(Slot::FIRST).tag(),
        };
        let version = set.map_or(0, |set| set.version);
        // A promoted member is adopted regardless of its own replicas, so there is no need to wait for them.
        if set.is_some_and(|set| set.primary != *session.name) {
            let replicas::ReplicaStatus { version, replicas } =
                replicas::list(session, &tag, version).await?;
            let (primary, promoted) = (session.name.to_string(), BTreeSet::new());
            return Ok(PrimaryView { primary, tag, holds_tag, version, replicas, promoted });
        }
        let status = replicas::check(session, &tag, version).await?;
        let disconnected =
            set.iter().flat_map(|set| &set.members).filter(|name| !status.replicas.contains_key(*name));
        let promoted = disconnected
            .map(|name| async { replicas::is_primary(session, name).await.then(|| name.clone()) });
        let promoted = join_all(promoted).await.into_iter().flatten().collect();
        let (primary, version, replicas) = (session.name.to_string(), status.version, status.replicas);
        Ok(PrimaryView { primary, tag, holds_tag, version, replicas, promoted })
    }

    /// Returns the existing connection to the server that has `slot`, or a new one.
    ///
    /// # Errors
    /// If the last connection attempt has just failed: its error, without a new attempt.
    pub async fn session(&self, slot: Slot) -> Result<Session, RedisStoreError> {
        Ok(self.connections.session(slot).await?)
    }

    /// Returns the connection to the server that has `slot`, if the connection is still of `generation`. Used
    /// for calls that are valid only on the server of an earlier call.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] if the connection may now lead to a different server.
    pub async fn session_of(&self, slot: Slot, generation: Generation) -> Result<Session, RedisStoreError> {
        let session = self.session(slot).await?;
        if session.generation == generation {
            Ok(session)
        } else {
            Err(RedisError::from((ErrorKind::Io, "the connection was replaced in the meantime")).into())
        }
    }

    /// Waits until a server has become usable since the last call: a connection to another server was made,
    /// or replicas confirm writes again. One caller at a time.
    pub async fn wait_until_usable(&self) {
        self.connections.wait_until_usable().await;
    }

    /// Abandons the connected server as soon as Sentinel, if used, is about to replace it or names another primary.
    /// Never returns.
    pub async fn follow_failovers(&self) {
        self.connections.follow_failovers().await;
    }

    /// Calls a script on a campaign.
    ///
    /// # Errors
    /// The script may still have taken effect.
    pub async fn call<C: CampaignCall>(
        &self,
        session: &mut Session,
        target: &CallTarget<'_>,
        call: &C,
    ) -> Result<Ready<C::Reply>, RedisStoreError> {
        let mut invocation = if C::USES_CODES {
            call.script().call(&target.keys.with_codes())
        } else {
            call.script().call(&target.keys.all())
        };
        // A server that was promoted after the load has a different replication id. It may lack grants of its
        // predecessor that SQL has.
        invocation.arg(target.identity(session).pack()).arg(target.minimum_events);
        call.arguments(&mut invocation);
        let reply = self.run_on(session, C::NAME, &invocation).await?;
        let reply = call.decode(reply)?;
        self.wait_for_replicas(session).await?;
        Ok(reply)
    }

    /// Acquires, renews or releases a lease. `verb` is as in `lease.lua`.
    pub(crate) async fn lease(
        &self,
        keys: &[String; 2],
        verb: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<LeaseReply, RedisStoreError> {
        let mut call = scripts::LEASE.call(&keys.each_ref().map(String::as_str));
        call.arg(verb).arg(owner).arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let name = match verb {
            "acquire" => "redis:lease.acquire",
            "release" => "redis:lease.release",
            _ => "redis:lease.renew",
        };
        Ok(replies::lease(self.run(name, Slot::of(&keys[0]), &call).await?)?)
    }

    /// Returns the maximum number of events in the outbox, beyond which new claims are rejected.
    pub fn outbox_max(&self) -> u64 {
        self.outbox_max
    }

    /// Adds up the units taken in all users' records.
    pub async fn taken_by_users(&self, keys: &Keys) -> Result<u64, RedisStoreError> {
        let mut sum = 0;
        self.each_user(keys, |_, record| sum += taken_ever(record)).await?;
        Ok(sum)
    }

    /// Starts a scan of a suspended campaign's claims, whose records have this layout.
    pub async fn scan_claims(&self, keys: &Keys, layout: u32) -> Result<ClaimScan, RedisStoreError> {
        let is_earlier = layout == EARLIER_LAYOUT;
        Ok(ClaimScan {
            session: self.session(keys.slot).await?,
            position: ScanPosition::Users(0),
            is_earlier,
        })
    }

    /// Returns a page of a few thousand claims with their users, and the scan of the next page. A claim may
    /// appear twice; unreadable claims are skipped. The result is complete only if the campaign is suspended.
    pub async fn claims_page(
        &self,
        keys: &Keys,
        scan: ClaimScan,
    ) -> Result<(Vec<(UserId, ClaimRecord)>, Option<ClaimScan>), RedisStoreError> {
        let ClaimScan { mut session, position, is_earlier } = scan;
        let (key, cursor) = match position {
            ScanPosition::Users(cursor) => (&keys.users, cursor),
            ScanPosition::Moved(cursor) => (&keys.claims, cursor),
        };
        let (next, page) =
            self.hash_page(&mut session, "redis:claims_page", (key, cursor, HASH_PAGE)).await?;
        let page = page.iter().filter(|(field, _)| field != b".");
        let claims = match position {
            ScanPosition::Users(_) if is_earlier => page
                .flat_map(|(user, record)| claim_record::claims_of(user, &from_layout_6(record)))
                .collect(),
            ScanPosition::Users(_) => {
                page.flat_map(|(user, record)| claim_record::claims_of(user, record)).collect()
            }
            ScanPosition::Moved(_) if is_earlier => {
                page.filter_map(|(_, moved)| claim_record::moved_claim(&moved_from_layout_6(moved))).collect()
            }
            ScanPosition::Moved(_) => {
                page.filter_map(|(_, moved)| claim_record::moved_claim(moved)).collect()
            }
        };
        let next = match (position, next) {
            (ScanPosition::Users(_), 0) => Some(ScanPosition::Moved(0)),
            (ScanPosition::Users(_), next) => Some(ScanPosition::Users(next)),
            (ScanPosition::Moved(_), 0) => None,
            (ScanPosition::Moved(_), next) => Some(ScanPosition::Moved(next)),
        };
        Ok((claims, next.map(|position| ClaimScan { session, position, is_earlier })))
    }

    /// Calls `visit` with every user's id and record, reading a thousand at a time. A user may be visited
    /// twice; a user added during the scan may be missed.
    ///
    /// # Errors
    /// `visit` may already have been called for some users.
    pub async fn each_user(
        &self,
        keys: &Keys,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), RedisStoreError> {
        let mut session = self.session(keys.slot).await?;
        let mut cursor = 0_u64;
        loop {
            let (next, page) =
                self.hash_page(&mut session, "redis:each_user", (&keys.users, cursor, HASH_PAGE)).await?;
            for (user, record) in page.iter().filter(|(user, _)| user != b".") {
                visit(user, record);
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Reads about `count` entries of the hash `key`. Returns the next cursor and the entries.
    async fn hash_page(
        &self,
        session: &mut Session,
        name: &'static str,
        (key, cursor, count): (&str, u64, u32),
    ) -> Result<(u64, Vec<HashEntry>), RedisStoreError> {
        let scan = redis::cmd("HSCAN").arg(key).arg(cursor).arg("COUNT").arg(count).to_owned();
        let page = self.query_on(session, name, &scan).await?;
        self.wait_for_replicas(session).await?;
        Ok(page)
    }

    /// Returns about a thousand claims with codes of a suspended campaign, fewer if they have many codes, and the
    /// cursor of the next page; a scan begins and ends with 0. A claim may appear twice; unreadable codes are skipped.
    pub async fn codes_page(
        &self,
        session: &mut Session,
        keys: &Keys,
        cursor: u64,
    ) -> Result<(u64, Vec<CodesOfClaim>), RedisStoreError> {
        let (mut next, mut claims, mut codes) = (cursor, Vec::new(), 0);
        loop {
            let at = (&*keys.codes, next, CODES_PAGE);
            let (after, page) = self.hash_page(session, "redis:codes_page", at).await?;
            next = after;
            for claim in page.iter().filter_map(|(digest, packed)| CodesOfClaim::unpack(digest, packed)) {
                codes += claim.codes.len() as u64;
                claims.push(claim);
            }
            if next == 0 || claims.len() >= HASH_PAGE as usize || codes >= CODES_AT_ONCE {
                return Ok((next, claims));
            }
        }
    }

    /// Returns the first code numbers of those claims of a suspended campaign that have codes.
    pub async fn first_codes(
        &self,
        keys: &Keys,
        digests: &[ClaimDigest],
    ) -> Result<HashMap<ClaimDigest, u64>, RedisStoreError> {
        if digests.is_empty() {
            return Ok(HashMap::new());
        }
        let mut read = redis::cmd("HMGET");
        read.arg(&keys.codes);
        for digest in digests {
            read.arg(&digest[..]);
        }
        let found: Vec<Option<Vec<u8>>> = self.query("redis:first_codes", keys.slot, &read).await?;
        let codes = digests.iter().zip(found);
        let codes = codes.filter_map(|(digest, packed)| CodesOfClaim::unpack(digest, &packed?));
        Ok(codes.map(|claim| (claim.digest, claim.first)).collect())
    }

    /// Counts the claims whose codes may be shown.
    pub async fn codes_count(&self, keys: &Keys) -> Result<u64, RedisStoreError> {
        let all = redis::cmd("HLEN").arg(&keys.codes).to_owned();
        let fields: u64 = self.query("redis:codes_count", keys.slot, &all).await?;
        // One field is the epoch marker.
        Ok(fields.saturating_sub(1))
    }

    /// Counts the held claims, and how many of them expired before `due_before`.
    pub async fn hold_state(&self, keys: &Keys, due_before: Timestamp) -> Result<HoldState, RedisStoreError> {
        let all = redis::cmd("ZCOUNT").arg(&keys.holds).arg(1).arg("+inf").to_owned();
        let held = self.query("redis:hold_state.held", keys.slot, &all).await?;
        let due = redis::cmd("ZCOUNT").arg(&keys.holds).arg(1).arg(due_before.as_ms()).to_owned();
        let stranded = self.query("redis:hold_state.due", keys.slot, &due).await?;
        Ok(HoldState { held, stranded })
    }

    /// Returns whether any of these keys exists, regardless of the database that it belongs to.
    pub async fn has_keys(&self, keys: &Keys) -> Result<bool, RedisStoreError> {
        Ok(self.query::<u64>("redis:has_keys", keys.slot, redis::cmd("EXISTS").arg(&keys.all())).await? > 0)
    }

    /// Reads a campaign's state, even if the campaign is not ready; `None` if Redis has no state.
    pub async fn campaign_state(&self, keys: &Keys) -> Result<Option<CampaignState>, RedisStoreError> {
        let read = redis::cmd("HGET").arg(&keys.users).arg(state::FIELD).to_owned();
        let state: Option<Vec<u8>> = self.query("redis:campaign_state", keys.slot, &read).await?;
        Ok(state.as_deref().and_then(CampaignState::read))
    }

    /// Reads the owner of a campaign's keys; `None` if there are no keys.
    pub async fn owner(&self, keys: &Keys) -> Result<Option<KeysOwner>, RedisStoreError> {
        let fields =
            redis::cmd("HMGET").arg(&keys.campaign).arg(&["register_id", "token", "phase"]).to_owned();
        let [register_id, token, phase]: [Option<String>; 3] =
            self.query("redis:keys_owner", keys.slot, &fields).await?;
        Ok(register_id.zip(token).zip(phase).map(|((register_id, token), phase)| KeysOwner {
            register_id,
            token,
            suspended: phase == "suspended",
        }))
    }

    /// Returns the random id that identifies this Redis; creates it if it is missing.
    ///
    /// # Errors
    /// The id may still have been created.
    pub async fn store_id(&self) -> Result<String, RedisStoreError> {
        let id: Option<String> =
            self.query("redis:store_id", Slot::of(keys::STORE), redis::cmd("GET").arg(keys::STORE)).await?;
        if let Some(id) = id {
            return Ok(id);
        }
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other).map_err(RedisError::from)?;
        self.set_store_id_if_missing(&format!("{:032x}", u128::from_be_bytes(bytes))).await?;
        // Another core may have set an id first.
        self.query("redis:store_id", Slot::of(keys::STORE), redis::cmd("GET").arg(keys::STORE)).await
    }

    /// Sets the id of this Redis, unless it has an id.
    pub async fn set_store_id_if_missing(&self, id: &str) -> Result<(), RedisStoreError> {
        self.query::<Value>(
            "redis:set_store_id_if_missing",
            Slot::of(keys::STORE),
            redis::cmd("SET").arg(keys::STORE).arg(id).arg("NX"),
        )
        .await
        .map(drop)
    }

    /// Returns the recorded layout of the keys in this Redis; `None` if none is recorded.
    pub async fn layout(&self) -> Result<Option<String>, RedisStoreError> {
        self.query("redis:layout", Slot::of(keys::LAYOUT_KEY), redis::cmd("GET").arg(keys::LAYOUT_KEY)).await
    }

    /// Records the layout of this core if none is recorded or this core converts the recorded one. Returns
    /// the layout in force.
    pub async fn keep_layout(&self) -> Result<String, RedisStoreError> {
        let mut call = scripts::KEEP_LAYOUT.call(&[keys::LAYOUT_KEY]);
        call.arg(LAYOUT).arg(EARLIER_LAYOUT);
        Ok(replies::layout(self.run("redis:keep_layout", Slot::of(keys::LAYOUT_KEY), &call).await?)?)
    }

    async fn run(&self, name: &'static str, slot: Slot, call: &ScriptCall) -> Result<Value, RedisStoreError> {
        self.run_on(&mut self.connections.session(slot).await?, name, call).await
    }

    async fn run_on(
        &self,
        session: &mut Session,
        name: &'static str,
        call: &ScriptCall,
    ) -> Result<Value, RedisStoreError> {
        let reply = session.query(name, async |connection| call.send(connection).await).await;
        if reply.as_ref().is_err_and(is_denied) {
            self.scripts_denied.store(true, Ordering::Relaxed);
        }
        self.record_error(reply, session).await
    }

    async fn query<T: redis::FromRedisValue>(
        &self,
        name: &'static str,
        slot: Slot,
        command: &redis::Cmd,
    ) -> Result<T, RedisStoreError> {
        self.query_on(&mut self.connections.session(slot).await?, name, command).await
    }

    async fn query_on<T: redis::FromRedisValue>(
        &self,
        session: &mut Session,
        name: &'static str,
        command: &redis::Cmd,
    ) -> Result<T, RedisStoreError> {
        let reply = session.query(name, async |connection| command.query_async(connection).await).await;
        self.record_error(reply, session).await
    }

    /// Returns the reply unchanged. If it is an error that shows a broken or demoted server, ends the
    /// session's generation.
    async fn record_error<T>(
        &self,
        reply: Result<T, RedisError>,
        session: &Session,
    ) -> Result<T, RedisStoreError> {
        if let Err(error) = &reply {
            self.connections.note_error(error, session).await;
        }
        reply.map_err(RedisStoreError::of)
    }
}
