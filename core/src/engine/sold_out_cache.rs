//! What a core knows by heart once nothing is left: so that a crowd that comes too late costs Redis reply.
//!
//! Only `total` is ever answered from memory, and only to the first try of a user who has no claim of the campaign: anyone
//! else may be a winner asking again, or meet another limit first. Who has one, and that nothing is left, is as Redis said at most
//! 100 ms ago; a return, a change or an expiry on any core is heard of before that.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use claimgate_shared::{Quantity, UserId};
use tokio::time::{Instant, sleep};

use super::handle::CampaignHandle;
use super::sync::{CampaignSync, SyncError};
use crate::domain::counters::Epoch;
use crate::store::redis::scripts::SoldOutReply;

/// How old what Redis said may be.
const HEARD_MAX: Duration = Duration::from_millis(100);
/// How often Redis is asked.
const ASK: Duration = Duration::from_millis(25);
/// When nobody has been refused for so long, Redis is no longer asked.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// When nobody has been refused for so long after that, the names go: a million of them are 19 MB.
const KEPT: Duration = Duration::from_secs(60);
/// Reading one user's name costs Redis about as much as so many parts of a refusal: names are read once the refusals
/// that went to Redis have cost as much.
const USERS_A_REFUSAL: u64 = 16;

/// One campaign's memory of being sold out.
#[derive(Debug)]
pub struct SoldOutCache {
    hasher: RandomState,
    began: Instant,
    memory: RwLock<Memory>,
    /// Until when the memory holds, in microseconds since `began`.
    until_us: AtomicU64,
    /// How often this core has changed something: what Redis was asked before that is not to be relied on.
    changes: AtomicU64,
    /// Refusals that went to Redis since names were last read.
    refusals: AtomicU64,
    /// Whether somebody was refused since this was last asked.
    used: AtomicBool,
    watched: AtomicBool,
    /// How often it was watched.
    watches: AtomicU64,
}

#[derive(Debug, Default)]
struct Memory {
    version: u64,
    /// The most a user without claims may ask for before another limit refuses.
    most: u64,
    /// In which epoch and up to which sequence the users are known; epoch 0 where they are not.
    names_of: (Epoch, u64),
    /// Everyone who has a claim, by a hash: of two users with the same one, both are sent to Redis.
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
    /// The version under which `user` is refused for certain, because nothing is left; `None` when Redis has to tell.
    pub fn cached_denial(&self, user: &UserId, quantity: Quantity) -> Option<u64> {
        if self.now_us() >= self.until_us.load(Ordering::Acquire) {
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

    /// Takes note that Redis has told so many that nothing is left. From now on it is asked again and again, for as long
    /// as that is so and anyone wants to know.
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
                tracing::debug!(%error, "sold out, but not known by heart");
            }
            this.until_us.store(0, Ordering::Release);
            this.watched.store(false, Ordering::Release);
            drop((sync, handle));
            sleep(KEPT).await;
            this.free_names(watch);
        });
    }

    /// Frees the names, unless another watch has begun since the one of that number.
    fn free_names(&self, watch: u64) {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        if self.watches.load(Ordering::Acquire) == watch {
            // Nobody is refused by what is not known: `refuses` asks under this very lock.
            *memory = Memory::default();
        }
    }

    /// Takes note that this core has given something back or changed the rules: Redis has to tell at once.
    pub fn invalidate(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.until_us.store(0, Ordering::Release);
    }

    /// Relies on what Redis said until `until_us`, unless there was a change after the `changes` known when it was asked.
    fn set_valid_until(&self, until_us: u64, changes: u64) {
        self.until_us.store(until_us, Ordering::Release);
        if self.changes.load(Ordering::Acquire) != changes {
            self.until_us.store(0, Ordering::Release);
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    async fn watch(&self, sync: &CampaignSync, handle: &CampaignHandle) -> Result<(), SyncError> {
        let mut used_at = Instant::now();
        while used_at.elapsed() < IDLE_MAX {
            let (asked_us, changes) = (self.now_us(), self.changes.load(Ordering::Acquire));
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

    /// Whether nobody has been granted anything since the users were read. If so, the rules are those of now.
    fn is_current(&self, reply: &SoldOutReply, epoch: Epoch) -> bool {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        (memory.version, memory.most) = (reply.version, reply.most);
        memory.names_of == (epoch, reply.sequence)
    }

    /// Reads who has a claim. Whoever was granted one meanwhile shows in the next sequence, and all are read again.
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
            Memory { version: 1, most: 1, names_of: (Epoch::new(1), users), users: hashes };
        sold_out.until_us.store(u64::MAX, Ordering::Release);
        sold_out
    }

    fn refuses(sold_out: &SoldOutCache, user: &str) -> bool {
        sold_out.cached_denial(&user.parse().unwrap(), Quantity::try_from(1).unwrap()).is_some()
    }

    #[test]
    fn names_go_with_the_last_watch_and_without_them_nobody_is_refused() {
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
