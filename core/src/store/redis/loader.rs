//! Suspends campaigns in Redis, loads them from SQL, and removes them.

use claimgate_shared::{ClaimStatus, Timestamp, UserId};

use super::scripts::keys::Keys;
use super::scripts::replies::{self, SuspendReply};
use super::scripts::state::{self, Identity};
use super::scripts::{self, ScriptCall};
use super::topology::server::Session;
use super::{HashEntry, RedisStore, RedisStoreError};
use crate::domain::campaign::Campaign;
use crate::domain::claim_record::{ClaimRecord, UserCounters};
use crate::domain::codes::{CODES_AT_ONCE, CodesOfClaim};
use crate::domain::high_water_mark::HighWaterMark;
use crate::domain::parts::parts;

/// Maximum number of claims in a user's record; older claims are in `claims`. Same value as in `prelude.lua`.
const INLINE_MAX: usize = 8;
/// Field-value pairs per call, well below the argument limit of Lua's `unpack`.
const PAIRS_MAX: usize = 1000;

/// Loads one campaign, for one epoch and under the fencing token in the campaign's row. All calls use one
/// connection: a new connection may reach a server that lacks the records loaded so far.
#[derive(Debug)]
pub struct Loader<'a> {
    store: &'a RedisStore,
    session: Session,
    keys: &'a Keys,
    campaign: &'a Campaign,
    /// Sum of the revisions of the claims loaded so far.
    revisions: u64,
    /// The last user passed in, with the user's claims so far; more claims may follow.
    current_user: Option<(UserId, Vec<ClaimRecord>)>,
    users: Pairs,
    claims: Pairs,
    holds: Pairs,
}

type Pairs = Vec<HashEntry>;

/// The reason why a loader stopped.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A loader with a higher token or another epoch took over, or the keys were lost.
    #[error("a newer loader has taken over")]
    Superseded,
    /// A call to Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
}

impl<'a> Loader<'a> {
    /// Replaces the keys suspended under the campaign's token with empty keys of the new epoch.
    pub async fn begin(
        store: &'a RedisStore,
        keys: &'a Keys,
        campaign: &'a Campaign,
    ) -> Result<Self, LoadError> {
        let mut loader = Self::new(store, keys, campaign).await?;
        let codes = if campaign.codes.is_some() { "codes" } else { "" };
        loader
            .step("begin", |call| {
                call.arg(codes);
            })
            .await?;
        Ok(loader)
    }

    /// Reopens the keys suspended under the campaign's token unchanged, under the new epoch. The keys must be
    /// complete, and SQL must have all of their claims.
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
        Ok(Self { store, session, keys, campaign, revisions: 0, current_user: None, users, claims, holds })
    }

    /// Loads claims grouped by user: a user's claims must be consecutive, even across calls.
    pub async fn claims(&mut self, claims: Vec<(UserId, ClaimRecord)>) -> Result<(), LoadError> {
        for (user, claim) in claims {
            match &mut self.current_user {
                Some((current, claims)) if *current == user => claims.push(claim),
                previous => {
                    if let Some((user, claims)) = previous.replace((user, vec![claim])) {
                        self.user(&user, claims).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn user(&mut self, user: &UserId, mut claims: Vec<ClaimRecord>) -> Result<(), LoadError> {
        claims.sort_unstable_by_key(|claim| claim.sequence);
        let moved_out = claims.len().saturating_sub(INLINE_MAX);
        self.revisions += claims.iter().map(|claim| u64::from(claim.revision)).sum::<u64>();
        for claim in &claims[..moved_out] {
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
        self.users.push((user.as_str().as_bytes().to_vec(), user_record(&claims, moved_out)));
        self.flush(PAIRS_MAX).await
    }

    /// Loads the codes of claims.
    pub async fn codes(&mut self, claims: &[CodesOfClaim]) -> Result<(), LoadError> {
        let parts = parts(claims, CODES_AT_ONCE, |claim| claim.codes.len() as u64);
        for claims in parts.flat_map(|part| part.chunks(PAIRS_MAX)) {
            self.step("codes", |call| {
                for claim in claims {
                    call.arg(&claim.digest[..]).arg(claim.packed());
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Opens the campaign with `taken` units taken. Sequence numbers and event counts continue after
    /// `high_water_mark`.
    ///
    /// # Errors
    /// After [`LoadError::Superseded`] the campaign is not open.
    pub async fn open(
        mut self,
        high_water_mark: HighWaterMark,
        taken: u64,
        now: Timestamp,
    ) -> Result<(), LoadError> {
        if let Some((user, claims)) = self.current_user.take() {
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

    /// Sends the collected records of each kind that has at least `minimum` records.
    async fn flush(&mut self, minimum: usize) -> Result<(), LoadError> {
        let mut kinds = [
            ("users", std::mem::take(&mut self.users)),
            ("claims", std::mem::take(&mut self.claims)),
            ("holds", std::mem::take(&mut self.holds)),
        ];
        for (step, pairs) in &mut kinds {
            while pairs.len() >= minimum {
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
        let mut call = scripts::LOAD.call(&self.keys.of_both_layouts());
        call.arg(identity.pack()).arg(epoch.get()).arg(self.campaign.token.get()).arg(step);
        arguments(&mut call);
        let name = match step {
            "begin" => "redis:load.begin",
            "users" => "redis:load.users",
            "claims" => "redis:load.claims",
            "holds" => "redis:load.holds",
            "codes" => "redis:load.codes",
            "adopt" => "redis:load.adopt",
            _ => "redis:load.open",
        };
        let reply = self.store.run_on(&mut self.session, name, &call).await?;
        match replies::index_of(reply, &["done", "late"]).map_err(RedisStoreError::from)? {
            Ok(0) => Ok(()),
            Ok(_) => Err(LoadError::Superseded),
            Err(why) => Err(RedisStoreError::NotReady(why).into()),
        }
    }
}

/// Packs a user's record without the `moved_out` oldest claims. If `moved_out` is not 0, the record starts
/// with counters of all claims.
fn user_record(claims: &[ClaimRecord], moved_out: usize) -> Vec<u8> {
    let mut record =
        Vec::with_capacity(UserCounters::BYTES + (claims.len() - moved_out) * ClaimRecord::BYTES);
    if moved_out > 0 {
        // Accept any last day: only Redis' clock decides whether a day lies too far in the future.
        UserCounters::of(claims, u32::MAX).write(&mut record);
    }
    for claim in &claims[moved_out..] {
        claim.write(&mut record);
    }
    record
}

impl RedisStore {
    /// Stops all decisions on the campaign of `keys` until the campaign is reloaded. From then on a loader
    /// with a token below `token` gets [`LoadError::Superseded`]. Keys of the earlier layout are suspended as
    /// well.
    ///
    /// # Errors
    /// [`RedisStoreError::NotReady`] if the keys belong to another database, or their layout cannot be
    /// converted. This error changes nothing.
    pub async fn suspend(
        &self,
        keys: &Keys,
        register_id: &str,
        token: &str,
    ) -> Result<SuspendReply, RedisStoreError> {
        let mut call = scripts::SUSPEND.call(&keys.all());
        call.arg(scripts::layout_number::LAYOUT).arg(register_id).arg(token);
        let mut session = self.session(keys.slot).await?;
        let reply = self.run_on(&mut session, "redis:suspend", &call).await?;
        // Nothing is written to these keys until the load, so this wait also covers all reads until then.
        self.wait_for_replicas(&session).await?;
        replies::suspended(reply)?.map_err(RedisStoreError::NotReady)
    }

    /// Removes the keys of a campaign suspended under `token`, except the dead letters. Returns whether all
    /// keys are removed, including after a failover.
    ///
    /// # Errors
    /// The keys may have been removed. After [`RedisStoreError::NotReplicated`] a failover may restore them.
    pub async fn drop_keys(&self, keys: &Keys, token: &str) -> Result<bool, RedisStoreError> {
        let mut call = scripts::DROP.call(&keys.of_both_layouts());
        call.arg(token);
        let mut session = self.session(keys.slot).await?;
        let reply = self.run_on(&mut session, "redis:drop_keys", &call).await?;
        // Once SQL records the eviction, nothing checks for these keys again.
        self.wait_for_replicas(&session).await?;
        Ok(replies::count(&reply)? == 1)
    }
}
