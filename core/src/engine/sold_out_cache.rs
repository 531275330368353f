//! The sold-out cache: refuses claims on a campaign of which nothing is left, so that a late crowd costs Redis nothing.
//!
//! Only `total` refuses from the cache, and only the first try of a user who has no claim of the campaign: any other caller
//! may be a winner asking again, or exceed another limit first. The cached state, users included, is at most 100 ms stale,
//! so a return, a change or an expiry on any core takes effect within that time.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use claimgate_shared::{Quantity, UserId, Version};
use tokio::time::{Instant, sleep};

use super::handle::CampaignHandle;
use super::sync::{CampaignSync, SyncError};
use crate::domain::counters::Epoch;
use crate::store::redis::replies::SoldOutReply;

/// How stale the cached state may be.
const HEARD_MAX: Duration = Duration::from_millis(100);
/// How often Redis is asked.
const ASK: Duration = Duration::from_millis(25);
/// When no claim has been refused for this long, Redis is no longer asked.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// When no claim has been refused for this long after that, the names are freed: a million of them take 19 MB.
const KEPT: Duration = Duration::from_secs(60);
/// One refusal costs Redis about as much as reading this many users' names: names are read once the refusals that went
/// to Redis have cost as much.
const USERS_A_REFUSAL: u64 = 16;

/// One campaign's sold-out cache.
#[derive(Debug)]
pub struct SoldOutCache {
    hasher: RandomState,
    began: Instant,
    memory: RwLock<Memory>,
    /// Until when the cached state is valid, in microseconds since `began`.
    until_us: AtomicU64,
    /// The number of invalidations: a reply to a call that began before the last one is not used.
    changes: AtomicU64,
    /// Refusals that went to Redis since names were last read.
    refusals: AtomicU64,
    /// Whether a claim was refused since this was last read.
    used: AtomicBool,
    watched: AtomicBool,
    /// The number of watches begun.
    watches: AtomicU64,
}

#[derive(Debug, Default)]
struct Memory {
    version: Version,
    /// The largest quantity of a user without claims that no other limit refuses.
    most: u64,
    /// The epoch and sequence up to which `users` is complete; epoch 0 while it is not.
    names_of: (Epoch, u64),
    /// The users who have a claim, by a hash: of two users with the same one, both are sent to Redis.
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
            refusals: AtomicU64::new(0),
            used: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            watches: AtomicU64::new(0),
        }
    }
}

impl SoldOutCache {
    /// The version of the rules that certainly refuse `user` at `now`, because nothing is left; `None` when Redis has to
    /// decide.
    pub fn cached_denial(&self, user: &UserId, quantity: Quantity, now: Instant) -> Option<Version> {
        if self.us_of(now) >= self.until_us.load(Ordering::Acquire) {
            return None;
        }
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        let certain = memory.names_of.0 > Epoch::default()
            && u64::from(quantity.get()) <= memory.most
            && !memory.users.contains(&self.hasher.hash_one(user.as_str().as_bytes()));
        if !certain {
            return None;
        }
        self.used.store(true, Ordering::Relaxed);
        Some(memory.version)
    }

    /// Records that Redis has refused this many claims because nothing is left. Redis is then asked every [`ASK`], for as
    /// long as nothing is left and claims keep being refused.
    pub fn record_sold_out(
        self: &Arc<Self>,
        refusals: u64,
        sync: &Arc<CampaignSync>,
        handle: &Arc<CampaignHandle>,
    ) {
        self.refusals.fetch_add(refusals, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        if self.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, sync, handle) = (Arc::clone(self), Arc::clone(sync), Arc::clone(handle));
        let watch = self.watches.fetch_add(1, Ordering::AcqRel) + 1;
        tokio::spawn(async move {
            if let Err(error) = this.watch(&sync, &handle).await {
                tracing::debug!(%error, "sold out, but not cached");
            }
            this.until_us.store(0, Ordering::Release);
            this.watched.store(false, Ordering::Release);
            drop((sync, handle));
            sleep(KEPT).await;
            this.free_names(watch);
        });
    }

    /// Frees the names, unless another watch has begun since the one numbered `watch`.
    fn free_names(&self, watch: u64) {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        if self.watches.load(Ordering::Acquire) == watch {
            // Without names no claim is refused: `cached_denial` reads them under this very lock.
            *memory = Memory::default();
        }
    }

    /// Invalidates the cached state: this core has given units back or changed the rules, so Redis has to decide.
    pub fn invalidate(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.until_us.store(0, Ordering::Release);
    }

    /// Makes the cached state valid until `until_us`, unless it was invalidated since there were `changes` invalidations.
    fn set_valid_until(&self, until_us: u64, changes: u64) {
        self.until_us.store(until_us, Ordering::Release);
        if self.changes.load(Ordering::Acquire) != changes {
            self.until_us.store(0, Ordering::Release);
        }
    }

    /// `at` in microseconds since the cache began.
    fn us_of(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    async fn watch(&self, sync: &CampaignSync, handle: &CampaignHandle) -> Result<(), SyncError> {
        let mut used_at = Instant::now();
        while used_at.elapsed() < IDLE_MAX {
            let (asked_us, changes) = (self.us_of(Instant::now()), self.changes.load(Ordering::Acquire));
            let epoch = handle.campaign().epoch;
            let Some(reply) = sync.sold_out(handle).await? else { return Ok(()) };
            if handle.campaign().epoch != epoch {
                continue;
            }
            if self.is_current(&reply, epoch) {
                let lasts_us = u64::try_from(HEARD_MAX.min(reply.valid_for).as_micros()).unwrap_or(0);
                self.set_valid_until(asked_us + lasts_us, changes);
            } else {
                self.until_us.store(0, Ordering::Release);
                if self.refusals.load(Ordering::Relaxed) * USERS_A_REFUSAL >= reply.sequence {
                    self.read_users(sync, handle, (epoch, reply.sequence)).await?;
                    continue;
                }
            }
            sleep(ASK).await;
            if self.used.swap(false, Ordering::Relaxed) {
                used_at = Instant::now();
            }
        }
        Ok(())
    }

    /// Whether no claim has been granted since the users were read. If so, the cached rules are current too.
    fn is_current(&self, reply: &SoldOutReply, epoch: Epoch) -> bool {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        (memory.version, memory.most) = (reply.version, reply.most);
        memory.names_of == (epoch, reply.sequence)
    }

    /// Reads the users who have a claim. A grant meanwhile shows in the next sequence, and then all are read again.
    async fn read_users(
        &self,
        sync: &CampaignSync,
        handle: &CampaignHandle,
        names_of: (Epoch, u64),
    ) -> Result<(), SyncError> {
        self.refusals.store(0, Ordering::Relaxed);
        let mut users = HashSet::new();
        let read = |user: &[u8], _: &[u8]| {
            users.insert(self.hasher.hash_one(user));
        };
        sync.redis.each_user(&handle.keys, read).await?;
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        (memory.names_of, memory.users) = (names_of, users);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sold_out_with(users: u64) -> SoldOutCache {
        let sold_out = SoldOutCache::default();
        let hashes = (0..users).map(|user| sold_out.hasher.hash_one(format!("u{user}").as_bytes())).collect();
        *sold_out.memory.write().unwrap() =
            Memory { version: Version::FIRST, most: 1, names_of: (Epoch::new(1), users), users: hashes };
        sold_out.until_us.store(u64::MAX, Ordering::Release);
        sold_out
    }

    fn refuses(sold_out: &SoldOutCache, user: &str) -> bool {
        sold_out
            .cached_denial(&user.parse().unwrap(), Quantity::try_from(1).unwrap(), Instant::now())
            .is_some()
    }

    #[test]
    fn names_go_with_the_last_watch_and_without_them_no_claim_is_refused() {
        let sold_out = sold_out_with(10_000);
        sold_out.watches.store(2, Ordering::Release);
        assert!(refuses(&sold_out, "late") && !refuses(&sold_out, "u7"));
        sold_out.free_names(1);
        assert!(refuses(&sold_out, "late"), "another watch had begun");
        sold_out.free_names(2);
        assert_eq!(sold_out.memory.read().unwrap().users.capacity(), 0, "the names are freed");
        assert!(!refuses(&sold_out, "late") && !refuses(&sold_out, "u7"), "now Redis has to tell");
    }
}
