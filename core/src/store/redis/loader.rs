//! Suspending a campaign in Redis, loading it from what SQL holds, and removing it.

use claimgate_shared::{ClaimStatus, Timestamp, UserId};

use super::keys::Keys;
use super::replies::{self, SuspendReply};
use super::scripts::{self, ScriptCall};
use super::server::Session;
use super::state::{self, Identity};
use super::{HashEntry, RedisStore, RedisStoreError};
use crate::domain::campaign::Campaign;
use crate::domain::claim_record::{ClaimRecord, UserCounters};
use crate::domain::high_water_mark::HighWaterMark;

/// The most claims in a user's own record; older ones are kept in `claims`. As in `prelude.lua`.
const INLINE_MAX: usize = 8;
/// Pairs of field and value in one call: Lua's `unpack` ends far above twice that.
const PAIRS_MAX: usize = 1000;

/// A loader of one campaign, for one epoch and under the token of the campaign's row, over one connection: behind another
/// connection may be a server that lacks what was loaded so far.
#[derive(Debug)]
pub struct Loader<'a> {
    store: &'a RedisStore,
    session: Session,
    keys: &'a Keys,
    campaign: &'a Campaign,
    /// The sum of the revisions of the claims loaded so far.
    revisions: u64,
    /// The last user of the claims given so far, with all of theirs: more may follow.
    of_one_user: Option<(UserId, Vec<ClaimRecord>)>,
    users: Pairs,
    claims: Pairs,
    holds: Pairs,
}

type Pairs = Vec<HashEntry>;

/// Why a loader stopped.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A loader with a higher token or another epoch has replaced this one, or the keys were lost.
    #[error("a newer loader is at work")]
    Late,
    /// A call to Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
}

impl<'a> Loader<'a> {
    /// Replaces the keys that were suspended under the campaign's token by empty ones of its epoch.
    ///
    /// # Errors
    /// [`LoadError::Late`] when another token has suspended the keys since, or they are gone.
    pub async fn begin(
        store: &'a RedisStore,
        keys: &'a Keys,
        campaign: &'a Campaign,
    ) -> Result<Self, LoadError> {
        let mut loader = Self::new(store, keys, campaign).await?;
        loader.step("begin", |_| {}).await?;
        Ok(loader)
    }

    /// Lets the keys that were suspended under the campaign's token go on as they are, under its epoch: they are whole, and
    /// SQL has all that they hold.
    ///
    /// # Errors
    /// [`LoadError::Late`] when another token has suspended the keys since, or they are gone.
    pub async fn adopt(
        store: &'a RedisStore,
        keys: &'a Keys,
        campaign: &'a Campaign,
        now: Timestamp,
    ) -> Result<(), LoadError> {
        let mut loader = Self::new(store, keys, campaign).await?;
        loader
            .step("adopt", |call| {
                call.arg(state::admin_state(campaign)).arg(state::rules(campaign, now));
            })
            .await
    }

    async fn new(store: &'a RedisStore, keys: &'a Keys, campaign: &'a Campaign) -> Result<Self, LoadError> {
        let session = store.session(keys.slot).await?;
        let (users, claims, holds) = (vec![], vec![], vec![]);
        Ok(Self { store, session, keys, campaign, revisions: 0, of_one_user: None, users, claims, holds })
    }

    /// Loads claims, given user by user: those of one user follow one another, also from call to call.
    ///
    /// # Errors
    /// [`LoadError::Late`] when a newer loader has replaced this one.
    pub async fn claims(&mut self, claims: Vec<(UserId, ClaimRecord)>) -> Result<(), LoadError> {
        for (user, claim) in claims {
            match &mut self.of_one_user {
                Some((same, claims)) if *same == user => claims.push(claim),
                other => {
                    if let Some((user, claims)) = other.replace((user, vec![claim])) {
                        self.user(&user, claims).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Loads all claims of one user.
    async fn user(&mut self, user: &UserId, mut claims: Vec<ClaimRecord>) -> Result<(), LoadError> {
        claims.sort_unstable_by_key(|claim| claim.sequence);
        let apart = claims.len().saturating_sub(INLINE_MAX);
        self.revisions += claims.iter().map(|claim| u64::from(claim.revision)).sum::<u64>();
        for claim in &claims[..apart] {
            let mut record = Vec::with_capacity(ClaimRecord::BYTES + user.as_str().len());
            claim.write(&mut record);
            record.extend_from_slice(user.as_str().as_bytes());
            self.claims.push((claim.digest.to_vec(), record));
        }
        for claim in claims.iter().filter(|claim| claim.status == ClaimStatus::Held) {
            let expires_ms = claim.expires_at.map_or(0, Timestamp::as_ms).to_string();
            let member = [user.as_str().as_bytes(), b".", &claim.digest].concat();
            self.holds.push((expires_ms.into_bytes(), member));
        }
        self.users.push((user.as_str().as_bytes().to_vec(), user_record(&claims, apart)));
        self.flush(PAIRS_MAX).await
    }

    /// Opens the campaign with `taken` units taken; sequences and events continue after `reached`.
    ///
    /// # Errors
    /// [`LoadError::Late`] when a newer loader has replaced this one: the campaign is not opened.
    pub async fn open(
        mut self,
        high_water_mark: HighWaterMark,
        taken: u64,
        now: Timestamp,
    ) -> Result<(), LoadError> {
        if let Some((user, claims)) = self.of_one_user.take() {
            self.user(&user, claims).await?;
        }
        self.flush(1).await?;
        let (campaign, revisions) = (self.campaign, self.revisions);
        self.step("open", |call| {
            call.arg(high_water_mark.sequence).arg(high_water_mark.events).arg(taken).arg(revisions);
            call.arg(state::admin_state(campaign)).arg(state::rules(campaign, now));
        })
        .await
    }

    /// Sends the collected records of each kind that has at least `least` of them.
    async fn flush(&mut self, least: usize) -> Result<(), LoadError> {
        let mut kinds = [
            ("users", std::mem::take(&mut self.users)),
            ("claims", std::mem::take(&mut self.claims)),
            ("holds", std::mem::take(&mut self.holds)),
        ];
        for (step, pairs) in &mut kinds {
            while pairs.len() >= least {
                let rest = pairs.split_off(pairs.len().min(PAIRS_MAX));
                let batch = std::mem::replace(pairs, rest);
                self.step(step, |call| {
                    for (field, value) in &batch {
                        call.arg(&field[..]).arg(&value[..]);
                    }
                })
                .await?;
            }
        }
        [self.users, self.claims, self.holds] = kinds.map(|(_, pairs)| pairs);
        Ok(())
    }

    async fn step(&mut self, step: &str, arguments: impl FnOnce(&mut ScriptCall)) -> Result<(), LoadError> {
        let (epoch, replication_id) = (self.campaign.epoch, &self.session.replication_id);
        let identity = Identity { epoch, register_id: &self.campaign.register_id, replication_id };
        let mut call = scripts::LOAD.call(&self.keys.all());
        call.arg(identity.pack()).arg(epoch.get()).arg(self.campaign.token.get()).arg(step);
        arguments(&mut call);
        let name = match step {
            "begin" => "redis:load.begin",
            "users" => "redis:load.users",
            "claims" => "redis:load.claims",
            "holds" => "redis:load.holds",
            "adopt" => "redis:load.adopt",
            _ => "redis:load.open",
        };
        let reply = self.store.run_on(&mut self.session, name, &call).await?;
        match replies::word(reply, &["done", "late"]).map_err(RedisStoreError::from)? {
            Ok(0) => Ok(()),
            Ok(_) => Err(LoadError::Late),
            Err(why) => Err(RedisStoreError::NotReady(why).into()),
        }
    }
}

/// A user's record: the claims but the `apart` oldest, behind counters of all of them once there are such.
fn user_record(claims: &[ClaimRecord], apart: usize) -> Vec<u8> {
    let mut record = Vec::with_capacity(UserCounters::BYTES + (claims.len() - apart) * ClaimRecord::BYTES);
    if apart > 0 {
        UserCounters::of(claims).write(&mut record);
    }
    for claim in &claims[apart..] {
        claim.write(&mut record);
    }
    record
}

impl RedisStore {
    /// Stops every decision on the campaign of `keys` until it has been loaded again, under the fencing token `token`:
    /// every loader with a lower one is late from now on.
    ///
    /// # Errors
    /// [`RedisStoreError::NotReady`] when the keys belong to another register or layout: nothing was changed.
    pub async fn suspend(
        &self,
        keys: &Keys,
        register_id: &str,
        token: &str,
    ) -> Result<SuspendReply, RedisStoreError> {
        let mut call = scripts::SUSPEND.call(&keys.all());
        call.arg(scripts::LAYOUT).arg(register_id).arg(token);
        let mut session = self.session(keys.slot).await?;
        let reply = self.run_on(&mut session, "redis:suspend", &call).await?;
        // Nothing is written here until the campaign is loaded: what is read from here on was confirmed with this.
        self.confirmed(&session).await?;
        replies::suspended(reply)?.map_err(RedisStoreError::NotReady)
    }

    /// Removes the keys of a campaign that `token` has suspended. Returns whether no key is left, nor will be after a
    /// failover. Dead letters stay.
    ///
    /// # Errors
    /// [`RedisStoreError::Unavailable`] when Redis does not answer, or no replica has done the same yet: some keys may be
    /// gone by then.
    pub async fn drop_keys(&self, keys: &Keys, token: &str) -> Result<bool, RedisStoreError> {
        let mut call = scripts::DROP.call(&keys.all());
        call.arg(token);
        let mut session = self.session(keys.slot).await?;
        let reply = self.run_on(&mut session, "redis:drop_keys", &call).await?;
        // The keys are looked for no more once SQL says that they are gone.
        self.confirmed(&session).await?;
        Ok(replies::count(&reply)? == 1)
    }
}
