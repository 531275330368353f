//! The only way to Redis: scripts, and what their replies mean to the rest of core.

mod barrier;
pub mod calls;
mod cluster;
pub mod connections;
pub mod keys;
pub mod lease;
pub mod loader;
pub mod managed;
pub mod nodes;
pub mod outbox;
pub mod primary;
mod replicas;
pub mod replies;
pub mod scripts;
pub mod sentinel;
mod server;
pub mod slot;
pub mod state;
pub mod survey;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::{Timestamp, UserId};
use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, Value};

pub use self::barrier::{NotReplicated, Required};
use self::calls::CampaignCall;
use self::cluster::is_redirect;
use self::connections::Connections;
use self::keys::Keys;
use self::primary::NoPrimary;
use self::replies::{LeaseReply, Malformed, Ready};
use self::scripts::ScriptCall;
pub use self::server::Session;
use self::slot::Slot;
use self::state::{CampaignState, Identity};
use crate::domain::campaign::RegisterId;
use crate::domain::claim_record::{self, ClaimRecord, taken_ever};
use crate::domain::counters::{Epoch, Generation};
use crate::domain::not_ready::NotReadyReason;
use crate::domain::replica_set::PrimaryView;
use crate::redis_address::RedisAddress;

/// Why Redis gave no answer that counts.
#[derive(Debug, thiserror::Error)]
pub enum RedisStoreError {
    /// The campaign's counters do not count until they are rebuilt.
    #[error("campaign not ready: {0}")]
    NotReady(NotReadyReason),
    /// Redis refused before it wrote anything: it is out of memory.
    #[error("Redis is out of memory")]
    OutOfMemory(#[source] RedisError),
    /// Redis cannot be reached, or its answer was lost: the outcome is unknown.
    #[error("Redis is unavailable: {0}")]
    Unavailable(#[from] RedisError),
    /// There is no primary to connect to: nothing was tried.
    #[error("{0}")]
    NoPrimary(NoPrimary),
    /// Redis has answered, but not every replica that must have what it says is known to have it: it may be lost yet.
    #[error("not replicated: {0}")]
    NotReplicated(#[from] NotReplicated),
    /// An answer that no script of this version gives.
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

    /// Whether no answer came, or none but that another node is to be asked: Redis may give one to the next call.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unavailable(error) => error.code().is_none() || is_redirect(error),
            Self::NoPrimary(_) => true,
            Self::NotReady(_) | Self::OutOfMemory(_) | Self::NotReplicated(_) | Self::Malformed(_) => false,
        }
    }

    /// Whether a script that does the same thing once, however often it is called, may succeed on another connection:
    /// the connection broke, the reply was cut short, the server has lost the script between its being loaded and called, or
    /// another node of the cluster is to be called.
    pub fn is_worth_resending(&self) -> bool {
        matches!(self, Self::Unavailable(error) if error.is_connection_dropped()
            || error.kind() == ErrorKind::Parse
            || is_redirect(error)
            || scripts::is_missing(error))
    }
}

/// The campaign that a script is called on, and what its keys must show to count.
#[derive(Debug, Clone, Copy)]
pub struct CallTarget<'a> {
    /// Its keys.
    pub keys: &'a Keys,
    /// The epoch that the keys must have.
    pub epoch: Epoch,
    /// The minimum event count: with fewer, Redis has lost some.
    pub minimum_events: u64,
    /// The register id that the keys must have.
    pub register_id: &'a RegisterId,
}

impl CallTarget<'_> {
    /// Whose the keys have to be, on that session's server.
    fn identity<'a>(&'a self, session: &'a Session) -> Identity<'a> {
        let (epoch, register_id) = (self.epoch, self.register_id);
        Identity { epoch, register_id, replication_id: &session.replication_id }
    }
}

/// A field of a hash, and its value.
type HashEntry = (Vec<u8>, Vec<u8>);

/// Where a scan of all of a campaign's claims is: first those in their users' records, then those that have moved out.
#[derive(Debug)]
pub struct ClaimScan {
    /// A cursor means something to the server that gave it only.
    session: Session,
    at: ScanPlace,
}

#[derive(Debug, Clone, Copy)]
enum ScanPlace {
    /// At this cursor of the users.
    Users(u64),
    /// At this cursor of the claims that have moved out.
    Moved(u64),
}

/// Held claims, by Redis' own index.
#[derive(Debug, Clone, Copy)]
pub struct HoldState {
    /// The number of held claims.
    pub held: u64,
    /// The number of those that should have been given back.
    pub stranded: u64,
}

/// The owner of a campaign's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysOwner {
    /// The campaign's register id.
    pub register_id: String,
    /// The fencing token under which the campaign was last suspended or loaded.
    pub token: String,
    /// Whether no claim is decided until it has been loaded again.
    pub suspended: bool,
}

/// The only way to Redis: a connection that all callers share, made when first needed.
#[derive(Debug)]
pub struct RedisStore {
    connections: Connections,
    /// The most events the outbox may hold before new claims are refused.
    outbox_max: u64,
    required: Arc<Required>,
}

impl RedisStore {
    /// A store at `address`; connects when first asked.
    pub fn new(address: impl Into<RedisAddress>, outbox_max: u64) -> Self {
        Self { connections: Connections::new(address.into()), outbox_max, required: Arc::default() }
    }

    /// The same store over a connection of its own, for calls from one thread.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        Self {
            connections: self.connections.another(),
            outbox_max: self.outbox_max,
            required: Arc::clone(&self.required),
        }
    }

    /// What is asked of replicas.
    pub fn required(&self) -> &Required {
        &self.required
    }

    /// Waits until every replica that must have what was said in `session` has it: only then may it be acted on outside of
    /// Redis, or told to a caller.
    async fn confirmed(&self, session: &Session) -> Result<(), NotReplicated> {
        if self.required.any() { replicas::confirmed(session, &self.required).await } else { Ok(()) }
    }

    /// Looks at every primary that answers, and at its replicas.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when none answers.
    pub async fn primaries(&self) -> Result<Vec<PrimaryView>, RedisStoreError> {
        let sessions = self.connections.all().await?;
        let looks = sessions.into_iter().filter_map(|(_, session)| session.ok());
        let looks = looks.map(|session| async move { self.view(&session).await.ok() });
        let looks = join_all(looks).await;
        if looks.iter().any(Option::is_none) {
            // Its slots may have moved, where no call on a campaign has met them.
            self.connections.refresh().await;
        }
        Ok(looks.into_iter().flatten().collect())
    }

    /// A primary and its replicas.
    async fn view(&self, session: &Session) -> Result<PrimaryView, NotReplicated> {
        let replication = self.required.now();
        let set = replication.sets.iter().find(|set| {
            let of_it = set.primary == *session.name;
            of_it || set.members.contains(&*session.name)
        });
        let slot = set.map(|set| Slot::of(&keys::barrier(&set.tag)));
        let (holds_tag, first) = self.connections.slots_of(session, slot);
        let tag = match set {
            Some(set) if holds_tag => set.tag.clone(),
            _ => first.unwrap_or(Slot::FIRST).tag(),
        };
        let version = set.map_or(0, |set| set.version);
        // A member that was promoted is adopted whichever replicas follow it by then.
        if set.is_some_and(|set| set.primary != *session.name) {
            let replicas::Confirmed { version, replicas } = replicas::glance(session, &tag, version).await?;
            let (primary, promoted) = (session.name.to_string(), BTreeSet::new());
            return Ok(PrimaryView { primary, tag, holds_tag, version, replicas, promoted });
        }
        let looked = replicas::look(session, &tag, version).await?;
        let gone =
            set.iter().flat_map(|set| &set.members).filter(|name| !looked.replicas.contains_key(*name));
        let asked =
            gone.map(|name| async { replicas::is_primary(session, name).await.then(|| name.clone()) });
        let promoted = join_all(asked).await.into_iter().flatten().collect();
        let (primary, version, replicas) = (session.name.to_string(), looked.version, looked.replicas);
        Ok(PrimaryView { primary, tag, holds_tag, version, replicas, promoted })
    }

    /// The connection there is to the server that has `slot`, or a new one.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis cannot be reached, or an attempt has failed just before.
    pub async fn session(&self, slot: Slot) -> Result<Session, RedisStoreError> {
        Ok(self.connections.session(slot).await?)
    }

    /// The connection there is to the server that has `slot`, if it is of `generation` still: for what is only right on the
    /// server that was asked before.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when there may be another server by now, and as [`Self::session`].
    pub async fn session_of(&self, slot: Slot, generation: Generation) -> Result<Session, RedisStoreError> {
        let session = self.session(slot).await?;
        if session.generation == generation {
            Ok(session)
        } else {
            Err(RedisError::from((ErrorKind::Io, "the connection was replaced meanwhile")).into())
        }
    }

    /// Waits until a server can be worked with that could not be when this was last called: a connection was made to another
    /// one, or its replicas confirm again what it says. One caller at a time.
    pub async fn usable(&self) {
        self.connections.usable().await;
    }

    /// Where Sentinel names the primary, leaves a server as soon as another one is named. Never returns.
    pub async fn follow_switches(&self) {
        self.connections.follow_switches().await;
    }

    /// Calls a script on a campaign.
    ///
    /// # Errors
    /// When Redis gave no answer that counts; the script may have done its work all the same.
    pub async fn call<C: CampaignCall>(
        &self,
        session: &mut Session,
        target: &CallTarget<'_>,
        call: &C,
    ) -> Result<Ready<C::Reply>, RedisStoreError> {
        let mut invocation = call.script().call(&target.keys.all());
        // A server that was promoted since the campaign was loaded has another replication id: what its predecessor still
        // granted may be in SQL by now.
        invocation.arg(target.identity(session).pack()).arg(target.minimum_events);
        call.arguments(&mut invocation);
        let reply = self.run_on(session, C::NAME, &invocation).await?;
        let reply = call.decode(reply)?;
        self.confirmed(session).await?;
        Ok(reply)
    }

    /// Acquires, renews or releases a lease; `verb` as in `lease.lua`.
    pub(crate) async fn lease(
        &self,
        keys: &[String; 2],
        verb: &str,
        owner: &str,
        length: Duration,
    ) -> Result<LeaseReply, RedisStoreError> {
        let mut call = scripts::LEASE.call(&keys.each_ref().map(String::as_str));
        call.arg(verb).arg(owner).arg(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let name = match verb {
            "acquire" => "redis:lease.acquire",
            "release" => "redis:lease.release",
            _ => "redis:lease.renew",
        };
        Ok(replies::lease(self.run(name, Slot::of(&keys[0]), &call).await?)?)
    }

    /// The most events the outbox may hold before new claims are refused.
    pub fn outbox_max(&self) -> u64 {
        self.outbox_max
    }

    /// Units taken, summed over all users' records.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer: there is no sum of some users alone.
    pub async fn taken_by_users(&self, keys: &Keys) -> Result<u64, RedisStoreError> {
        let mut sum = 0;
        self.each_user(keys, |_, record| sum += taken_ever(record)).await?;
        Ok(sum)
    }

    /// The beginning of a scan of a campaign's claims.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis cannot be reached.
    pub async fn scan_claims(&self, keys: &Keys) -> Result<ClaimScan, RedisStoreError> {
        Ok(ClaimScan { session: self.session(keys.slot).await?, at: ScanPlace::Users(0) })
    }

    /// A page of some thousands of a campaign's claims with their users, and where the next page begins. A claim may come
    /// twice. Complete only for a campaign that is suspended.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer; what cannot be read is left out, no error.
    pub async fn claims_page(
        &self,
        keys: &Keys,
        scan: ClaimScan,
    ) -> Result<(Vec<(UserId, ClaimRecord)>, Option<ClaimScan>), RedisStoreError> {
        let ClaimScan { mut session, at } = scan;
        let (key, cursor) = match at {
            ScanPlace::Users(cursor) => (&keys.users, cursor),
            ScanPlace::Moved(cursor) => (&keys.claims, cursor),
        };
        let (next, page) = self.hash_page(&mut session, "redis:claims_page", key, cursor).await?;
        let page = page.iter().filter(|(field, _)| field != b".");
        let claims = match at {
            ScanPlace::Users(_) => {
                page.flat_map(|(user, record)| claim_record::claims_of(user, record)).collect()
            }
            ScanPlace::Moved(_) => page.filter_map(|(_, moved)| claim_record::moved_claim(moved)).collect(),
        };
        let next = match (at, next) {
            (ScanPlace::Users(_), 0) => Some(ScanPlace::Moved(0)),
            (ScanPlace::Users(_), next) => Some(ScanPlace::Users(next)),
            (ScanPlace::Moved(_), 0) => None,
            (ScanPlace::Moved(_), next) => Some(ScanPlace::Moved(next)),
        };
        Ok((claims, next.map(|at| ClaimScan { session, at })))
    }

    /// Calls `see` with every user's id and record, reading a thousand at a time; with some twice. A user who is added
    /// meanwhile may be left out.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer; `see` has been given some users by then.
    pub async fn each_user(
        &self,
        keys: &Keys,
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), RedisStoreError> {
        let mut session = self.session(keys.slot).await?;
        let mut cursor = 0_u64;
        loop {
            let (next, page) = self.hash_page(&mut session, "redis:each_user", &keys.users, cursor).await?;
            for (user, record) in page.iter().filter(|(user, _)| user != b".") {
                see(user, record);
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Some thousand entries of the hash `key`, and the cursor behind them.
    async fn hash_page(
        &self,
        session: &mut Session,
        name: &'static str,
        key: &str,
        cursor: u64,
    ) -> Result<(u64, Vec<HashEntry>), RedisStoreError> {
        let scan = redis::cmd("HSCAN").arg(key).arg(cursor).arg("COUNT").arg(1000).to_owned();
        let page = self.query_on(session, name, &scan).await?;
        self.confirmed(session).await?;
        Ok(page)
    }

    /// How many claims are held, and how many of them were due before `due_before`.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn hold_state(&self, keys: &Keys, due_before: Timestamp) -> Result<HoldState, RedisStoreError> {
        let all = redis::cmd("ZCOUNT").arg(&keys.holds).arg(1).arg("+inf").to_owned();
        let held = self.query("redis:hold_state.held", keys.slot, &all).await?;
        let due = redis::cmd("ZCOUNT").arg(&keys.holds).arg(1).arg(due_before.as_ms()).to_owned();
        let stranded = self.query("redis:hold_state.due", keys.slot, &due).await?;
        Ok(HoldState { held, stranded })
    }

    /// Whether any of these keys exists, whichever register it belongs to.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn holds_any(&self, keys: &Keys) -> Result<bool, RedisStoreError> {
        Ok(self.query::<u64>("redis:holds_any", keys.slot, redis::cmd("EXISTS").arg(&keys.all())).await? > 0)
    }

    /// A campaign's state as it stands, ready or not; `None` when there is none.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn campaign_state(&self, keys: &Keys) -> Result<Option<CampaignState>, RedisStoreError> {
        let read = redis::cmd("HGET").arg(&keys.users).arg(state::FIELD).to_owned();
        let state: Option<Vec<u8>> = self.query("redis:campaign_state", keys.slot, &read).await?;
        Ok(state.as_deref().and_then(CampaignState::read))
    }

    /// The owner of a campaign's keys; `None` when there are none.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
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

    /// The server's random id, which no other Redis has. A server without one gets one.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer; the server may have been given an id by then.
    pub async fn store_id(&self) -> Result<String, RedisStoreError> {
        let id: Option<String> =
            self.query("redis:store_id", Slot::of(keys::STORE), redis::cmd("GET").arg(keys::STORE)).await?;
        if let Some(id) = id {
            return Ok(id);
        }
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other).map_err(RedisError::from)?;
        self.keep_store_id(&format!("{:032x}", u128::from_be_bytes(bytes))).await?;
        // Another core may have set one first.
        self.query("redis:store_id", Slot::of(keys::STORE), redis::cmd("GET").arg(keys::STORE)).await
    }

    /// Gives the server the id `id`, unless it has one.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn keep_store_id(&self, id: &str) -> Result<(), RedisStoreError> {
        self.query::<Value>(
            "redis:keep_store_id",
            Slot::of(keys::STORE),
            redis::cmd("SET").arg(keys::STORE).arg(id).arg("NX"),
        )
        .await
        .map(drop)
    }

    /// The layout of the keys in this Redis, which is that of this core from now on where none is recorded.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer.
    pub async fn layout(&self) -> Result<String, RedisStoreError> {
        let slot = Slot::of(keys::LAYOUT);
        let first = redis::cmd("SET").arg(keys::LAYOUT).arg(scripts::LAYOUT).arg("NX").to_owned();
        self.query::<Value>("redis:keep_layout", slot, &first).await?;
        self.query("redis:layout", slot, redis::cmd("GET").arg(keys::LAYOUT)).await
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
        let reply = session.ask(name, async |connection| call.send(connection).await).await;
        self.noted(reply, session).await
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
        let reply = session.ask(name, async |connection| command.query_async(connection).await).await;
        self.noted(reply, session).await
    }

    async fn noted<T>(&self, reply: Result<T, RedisError>, session: &Session) -> Result<T, RedisStoreError> {
        if let Err(error) = &reply {
            self.connections.note(error, session).await;
        }
        reply.map_err(RedisStoreError::of)
    }
}
