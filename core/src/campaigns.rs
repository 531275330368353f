//! What this core knows of the register's campaigns: their rules, and how far their sequences have been seen to go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use claimgate_shared::CampaignId;
use tokio::sync::Notify;

use crate::campaign::{Campaign, Reached};
use crate::ledger::keys::Keys;

/// A campaign known to this core.
#[derive(Debug)]
pub struct Known {
    /// Its keys in Redis.
    pub keys: Keys,
    rules: RwLock<Arc<Campaign>>,
    sequence: AtomicU64,
    events: AtomicU64,
    /// When Redis last decided something for this core, in milliseconds since `began`.
    decided_ms: AtomicU64,
    began: Instant,
    /// The version last put into force by this core, and when.
    applied: Mutex<Option<(u64, Instant)>>,
    /// The connection to Redis since which SQL was asked how far the campaign had come.
    checked: AtomicU64,
    /// Whether the campaign was ready when last called upon.
    trusted: AtomicBool,
    trouble: Arc<Notify>,
}

/// After so long the calendar is laid out anew, so that it always reaches far ahead.
const CALENDAR_AGE_MAX: Duration = Duration::from_hours(1);

/// So long after a decision the next one is expected.
const BUSY_MS: u64 = 20;

impl Known {
    fn new(campaign: Campaign, trouble: Arc<Notify>) -> Self {
        Self {
            keys: Keys::of(&campaign.id),
            sequence: AtomicU64::new(campaign.reached.sequence),
            events: AtomicU64::new(campaign.reached.events),
            decided_ms: AtomicU64::new(0),
            began: Instant::now(),
            rules: RwLock::new(Arc::new(campaign)),
            applied: Mutex::default(),
            checked: AtomicU64::new(0),
            trusted: AtomicBool::new(false),
            trouble,
        }
    }

    /// Takes note that the campaign is not ready, and wakes the recovery.
    pub fn distrust(&self) {
        self.trusted.store(false, Ordering::Release);
        self.trouble.notify_one();
    }

    /// Takes note that the campaign is ready.
    pub fn trust(&self) {
        self.trusted.store(true, Ordering::Release);
    }

    /// Whether the campaign was ready when last called upon; one never called upon is not trusted yet.
    pub fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Acquire)
    }

    /// Whether Redis is known to hold the campaign.
    pub fn is_in_redis(&self) -> bool {
        self.is_trusted() && self.campaign().archived.is_none()
    }

    /// The connection to Redis since which SQL was asked how far the campaign had come; 0 for none.
    pub fn checked(&self) -> u64 {
        self.checked.load(Ordering::Acquire)
    }

    /// Takes note that SQL was asked how far the campaign had come since the connection `generation`.
    pub fn set_checked(&self, generation: u64) {
        self.checked.store(generation, Ordering::Release);
    }

    /// The campaign as the register had it when last looked at.
    pub fn campaign(&self) -> Arc<Campaign> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How far the campaign is known to have come, by what Redis has acknowledged to this core and by what SQL has: a
    /// Redis that is behind has lost claims.
    pub fn reached(&self) -> Reached {
        Reached {
            sequence: self.sequence.load(Ordering::Acquire),
            events: self.events.load(Ordering::Acquire),
        }
    }

    /// Takes note that the campaign has come so far.
    pub fn saw(&self, reached: Reached) {
        self.sequence.fetch_max(reached.sequence, Ordering::AcqRel);
        self.events.fetch_max(reached.events, Ordering::AcqRel);
    }

    /// Takes note that Redis has decided claims for this core.
    pub fn decided(&self) {
        self.decided_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Whether Redis has decided claims for this core within the last 20 ms.
    pub fn is_busy(&self) -> bool {
        let decided_ms = self.decided_ms.load(Ordering::Relaxed);
        decided_ms > 0 && self.age_ms() < decided_ms + BUSY_MS
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes note that the rules of `version` are in force in Redis.
    pub fn applied(&self, version: u64) {
        *self.applied.lock().unwrap_or_else(PoisonError::into_inner) = Some((version, Instant::now()));
    }

    /// Whether the rules have to be put into force: newer than what was, or not for long.
    pub fn is_due(&self) -> bool {
        let campaign = self.campaign();
        if campaign.archived.is_some() {
            return false;
        }
        let version = campaign.version;
        let applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        applied.is_none_or(|(last, at)| last < version || at.elapsed() > CALENDAR_AGE_MAX)
    }

    /// Takes in the campaign as the register has it.
    pub(crate) fn learn(&self, campaign: Campaign) {
        self.saw(campaign.reached);
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let order = (campaign.epoch, campaign.version).cmp(&(rules.epoch, rules.version));
        // What is given back after a campaign has left Redis raises neither.
        let given_back = || match (campaign.archived, rules.archived) {
            (Some(now), Some(before)) => now.taken < before.taken,
            _ => false,
        };
        if order.is_gt() || (order.is_eq() && given_back()) {
            *rules = Arc::new(campaign);
        }
    }
}

/// Every campaign known to this core.
#[derive(Debug, Default)]
pub struct Campaigns {
    by_id: RwLock<HashMap<CampaignId, Arc<Known>>>,
    trouble: Arc<Notify>,
}

impl Campaigns {
    /// The campaign `id`, when known.
    pub fn get(&self, id: &CampaignId) -> Option<Arc<Known>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone)
    }

    /// Waits until some campaign is found not to be ready.
    pub async fn trouble(&self) {
        self.trouble.notified().await;
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Known>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).values().map(Arc::clone).collect()
    }

    /// Takes in a campaign as the register has it.
    pub fn learn(&self, campaign: Campaign) -> Arc<Known> {
        let mut by_id = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_id.get(&campaign.id) {
            known.learn(campaign);
            return Arc::clone(known);
        }
        let known = Arc::new(Known::new(campaign.clone(), Arc::clone(&self.trouble)));
        by_id.insert(campaign.id, Arc::clone(&known));
        known
    }
}
