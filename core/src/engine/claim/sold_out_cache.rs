//! The sold-out cache: denies claims on a sold-out campaign without calling Redis.
//!
//! The cache denies only by `total`, and only the first try of a user who has no claim of the campaign. Any
//! other request may be a winner's retry, or may exceed another limit first. The cached state, including the
//! users, is at most 100 ms stale: a return, a change or an expiry on any core takes effect within that time.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use claimgate_shared::{Quantity, ShownPass, UserId, Version};
use parking_lot::RwLock;
use tokio::time::{Instant, sleep};

use crate::domain::counters::Epoch;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::StoreError;
use crate::engine::stores::Stores;
use crate::store::redis::scripts::replies::SoldOutReply;

/// Maximum age of the cached state.
const STALE_MAX: Duration = Duration::from_millis(100);
/// Interval between polls of Redis.
const POLL: Duration = Duration::from_millis(25);
/// Polling stops after this time without a denial.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Retention of user names after polling has stopped. A million names take 19 MB.
const NAMES_KEPT: Duration = Duration::from_secs(60);
/// Number of user names that Redis can return for the cost of one denial. The names are read once Redis'
/// denials have cost as much as reading them.
const USERS_PER_DENIAL: u64 = 16;

/// One campaign's sold-out cache.
#[derive(Debug)]
pub struct SoldOutCache {
    hasher: RandomState,
    began: Instant,
    memory: RwLock<Memory>,
    /// End of the cached state's validity, in microseconds since `began`.
    until_us: AtomicU64,
    /// Number of invalidations. A reply to a call that began before the last invalidation is discarded.
    changes: AtomicU64,
    /// Number of denials by Redis since the names were last read.
    denials: AtomicU64,
    /// Whether a claim was denied since this flag was last cleared.
    used: AtomicBool,
    watched: AtomicBool,
    /// Number of polling periods begun.
    watches: AtomicU64,
}

#[derive(Debug, Default)]
struct Memory {
    version: Version,
    /// The largest quantity that the other limits allow a user without claims.
    max_quantity: u64,
    /// Whether a claim without a pass is denied for that.
    requires_pass: bool,
    /// The epoch and sequence up to which `users` is complete; epoch 0 while it is incomplete.
    users_as_of: (Epoch, u64),
    /// The users who have a claim, as hashes; if two users' hashes collide, both are sent to Redis.
    users: HashSet<u64>,
}

impl Default for SoldOutCache {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            began: Instant::now(),
            memory: RwLock::default(),
            until_us: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            denials: AtomicU64::new(0),
            used: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            watches: AtomicU64::new(0),
        }
    }
}

impl SoldOutCache {
    /// Returns the version of the rules that certainly deny `user` at `now` because no units are left; `None`
    /// if Redis has to decide. `pass` is the pass sent with the claim.
    pub fn cached_denial(
        &self,
        user: &UserId,
        quantity: Quantity,
        pass: Option<ShownPass>,
        now: Instant,
    ) -> Option<Version> {
        if self.us_of(now) >= self.until_us.load(Ordering::Acquire) {
            return None;
        }
        let memory = self.memory.read();
        let certain = memory.users_as_of.0 > Epoch::default()
            && u64::from(quantity.get()) <= memory.max_quantity
            && (!memory.requires_pass || pass.is_some_and(|shown| shown.allows(quantity)))
            && !memory.users.contains(&self.hasher.hash_one(user.as_str().as_bytes()));
        if !certain {
            return None;
        }
        self.used.store(true, Ordering::Relaxed);
        Some(memory.version)
    }

    /// Records that Redis has denied this number of claims as sold out. Then polls Redis every [`POLL`] while
    /// the campaign stays sold out and claims are still being denied.
    pub fn record_sold_out(
        self: &Arc<Self>,
        denials: u64,
        stores: &Arc<Stores>,
        handle: &Arc<CampaignHandle>,
    ) {
        self.denials.fetch_add(denials, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        if self.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, stores, handle) = (Arc::clone(self), Arc::clone(stores), Arc::clone(handle));
        let watch = self.watches.fetch_add(1, Ordering::AcqRel) + 1;
        tokio::spawn(async move {
            if let Err(error) = this.watch(&stores, &handle).await {
                tracing::debug!(%error, "sold out, but not cached");
            }
            this.until_us.store(0, Ordering::Release);
            this.watched.store(false, Ordering::Release);
            drop((stores, handle));
            sleep(NAMES_KEPT).await;
            this.free_names(watch);
        });
    }

    /// Frees the names, unless a polling period has begun after the period `watch`.
    fn free_names(&self, watch: u64) {
        let mut memory = self.memory.write();
        if self.watches.load(Ordering::Acquire) == watch {
            // Without names no claim is denied: `cached_denial` reads them under this lock.
            *memory = Memory::default();
        }
    }

    /// Invalidates the cached state: this core has returned units or changed the rules, so Redis has to
    /// decide.
    pub fn invalidate(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.until_us.store(0, Ordering::Release);
    }

    /// Marks the cached state as valid until `until_us`, unless it was invalidated after `changes` was read.
    fn set_valid_until(&self, until_us: u64, changes: u64) {
        self.until_us.store(until_us, Ordering::Release);
        if self.changes.load(Ordering::Acquire) != changes {
            self.until_us.store(0, Ordering::Release);
        }
    }

    /// Returns `at` in microseconds since the cache began.
    fn us_of(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    async fn watch(&self, stores: &Stores, handle: &CampaignHandle) -> Result<(), StoreError> {
        let mut used_at = Instant::now();
        while used_at.elapsed() < IDLE_MAX {
            let (asked_us, changes) = (self.us_of(Instant::now()), self.changes.load(Ordering::Acquire));
            let epoch = handle.campaign().epoch;
            let Some(reply) = stores.sold_out(handle).await? else { return Ok(()) };
            if handle.campaign().epoch != epoch {
                continue;
            }
            if self.is_current(&reply, epoch) {
                let lasts_us = u64::try_from(STALE_MAX.min(reply.valid_for).as_micros()).unwrap_or(0);
                self.set_valid_until(asked_us + lasts_us, changes);
            } else {
                self.until_us.store(0, Ordering::Release);
                if self.denials.load(Ordering::Relaxed) * USERS_PER_DENIAL >= reply.sequence {
                    self.read_users(stores, handle, (epoch, reply.sequence)).await?;
                    continue;
                }
            }
            sleep(POLL).await;
            if self.used.swap(false, Ordering::Relaxed) {
                used_at = Instant::now();
            }
        }
        Ok(())
    }

    /// Updates the cached rules. Returns `true` if no claim has been granted since the users were read.
    fn is_current(&self, reply: &SoldOutReply, epoch: Epoch) -> bool {
        let mut memory = self.memory.write();
        memory.version = reply.version;
        (memory.max_quantity, memory.requires_pass) = (reply.max_quantity, reply.requires_pass);
        memory.users_as_of == (epoch, reply.sequence)
    }

    /// Reads the users who have a claim. If a claim is granted in the meantime, the sequence rises, and all
    /// users are reread.
    async fn read_users(
        &self,
        stores: &Stores,
        handle: &CampaignHandle,
        users_as_of: (Epoch, u64),
    ) -> Result<(), StoreError> {
        self.denials.store(0, Ordering::Relaxed);
        let mut users = HashSet::new();
        let read = |user: &[u8], _: &[u8]| {
            users.insert(self.hasher.hash_one(user));
        };
        stores.redis.each_user(&handle.keys, read).await?;
        let mut memory = self.memory.write();
        (memory.users_as_of, memory.users) = (users_as_of, users);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sold_out_with(users: u64) -> SoldOutCache {
        let sold_out = SoldOutCache::default();
        let hashes = (0..users).map(|user| sold_out.hasher.hash_one(format!("u{user}").as_bytes())).collect();
        *sold_out.memory.write() = Memory {
            version: Version::FIRST,
            max_quantity: 1,
            requires_pass: false,
            users_as_of: (Epoch::new(1), users),
            users: hashes,
        };
        sold_out.until_us.store(u64::MAX, Ordering::Release);
        sold_out
    }

    fn denies(sold_out: &SoldOutCache, user: &str) -> bool {
        denies_with(sold_out, user, None)
    }

    fn denies_with(sold_out: &SoldOutCache, user: &str, pass: Option<ShownPass>) -> bool {
        sold_out.cached_denial(&user.parse().unwrap(), Quantity::ONE, pass, Instant::now()).is_some()
    }

    #[test]
    fn a_claim_without_a_required_pass_is_decided_by_redis() {
        let sold_out = sold_out_with(10);
        sold_out.memory.write().requires_pass = true;
        assert!(!denies(&sold_out, "late"), "its denial is pass_required");
        assert!(denies_with(&sold_out, "late", Some(ShownPass::UNLIMITED)));
    }

    #[test]
    fn names_are_freed_with_the_last_watch() {
        let sold_out = sold_out_with(10_000);
        sold_out.watches.store(2, Ordering::Release);
        assert!(denies(&sold_out, "late") && !denies(&sold_out, "u7"));
        sold_out.free_names(1);
        assert!(denies(&sold_out, "late"), "another watch had begun");
        sold_out.free_names(2);
        assert_eq!(sold_out.memory.read().users.capacity(), 0, "the names are freed");
        assert!(!denies(&sold_out, "late") && !denies(&sold_out, "u7"), "now Redis has to decide");
    }
}
