//! What this core knows of the register's campaigns: their rules, and how far their sequences have been seen to go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use claimgate_shared::CampaignId;

use crate::campaign::{Campaign, Reached};
use crate::ledger::keys::Keys;
use crate::notices::Notices;

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
    /// Whether the maintenance has been told that it is in trouble, and has not got over it yet.
    in_trouble: AtomicBool,
    /// Whether the relay has been told of something in the outbox that it has not begun to read yet.
    outbox_told: AtomicBool,
    /// Whether the relay should also look for what a core that is gone has read and left lying.
    leftovers: AtomicBool,
    /// When the next hold falls due as far as is known, in milliseconds since `began`; `u64::MAX` for none.
    hold_due_ms: AtomicU64,
    notices: Arc<Notices>,
}

/// After so long the calendar is laid out anew, so that it always reaches far ahead.
const CALENDAR_AGE_MAX: Duration = Duration::from_hours(1);

/// So long after a decision the next one is expected.
const BUSY_MS: u64 = 20;

/// Two readings of when one and the same hold falls due differ by less.
const EARLIER_MS: u64 = 20;

impl Known {
    fn new(campaign: Campaign, notices: Arc<Notices>) -> Self {
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
            in_trouble: AtomicBool::new(false),
            outbox_told: AtomicBool::new(false),
            leftovers: AtomicBool::new(false),
            hold_due_ms: AtomicU64::new(u64::MAX),
            notices,
        }
    }

    /// Takes note that the campaign is not ready, and tells the maintenance, once until [`Self::looked_after`].
    pub fn distrust(&self) {
        self.trusted.store(false, Ordering::Release);
        self.needs_a_look();
    }

    /// Tells the maintenance to look after the campaign, once until [`Self::looked_after`].
    pub fn needs_a_look(&self) {
        if !self.in_trouble.swap(true, Ordering::AcqRel) {
            self.notices.trouble.put(self.campaign().id.clone());
        }
    }

    /// Takes note that the maintenance is done with it: from now on trouble is told again.
    pub fn looked_after(&self) {
        self.in_trouble.store(false, Ordering::Release);
    }

    /// Takes note that the campaign is ready. What its outbox held before is for the relay to read now.
    pub fn trust(&self) {
        if !self.trusted.swap(true, Ordering::AcqRel) {
            self.has_events();
        }
    }

    /// Tells the relay that the outbox may hold something, once until [`Self::relaying`].
    pub fn has_events(&self) {
        if !self.outbox_told.swap(true, Ordering::AcqRel) {
            self.notices.outbox.put(self.campaign().id.clone());
        }
    }

    /// Tells the relay that entries lie in the outbox which another core may have read before it went away.
    pub fn has_leftovers(&self) {
        self.leftovers.store(true, Ordering::Release);
        self.has_events();
    }

    /// Takes note that the outbox is about to be read: what is written from now on is told again. Whether there may be
    /// leftovers of other cores.
    pub fn relaying(&self) -> bool {
        self.outbox_told.store(false, Ordering::Release);
        self.leftovers.swap(false, Ordering::AcqRel)
    }

    /// Takes note that a hold falls due after `left`, and tells the maintenance if that is earlier than it knows of.
    pub fn hold_due_in(&self, left: Duration) {
        let due_ms = self.age_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        let earlier = |known_ms: u64| (due_ms.saturating_add(EARLIER_MS) < known_ms).then_some(due_ms);
        if self.hold_due_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier).is_ok() {
            self.notices.holds.put(self.campaign().id.clone());
        }
    }

    /// How long until the next hold falls due, as far as is known; zero when one is due.
    pub fn next_hold(&self) -> Option<Duration> {
        match self.hold_due_ms.load(Ordering::Acquire) {
            u64::MAX => None,
            due_ms => Some(Duration::from_millis(due_ms.saturating_sub(self.age_ms()))),
        }
    }

    /// Takes note that due holds are about to be given back: what falls due from now on is told again.
    pub fn sweeping(&self) {
        self.hold_due_ms.store(u64::MAX, Ordering::Release);
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

    /// Takes note that the campaign has come so far. Events not heard of before wait in the outbox.
    pub fn saw(&self, reached: Reached) {
        self.sequence.fetch_max(reached.sequence, Ordering::AcqRel);
        if self.events.fetch_max(reached.events, Ordering::AcqRel) < reached.events {
            self.has_events();
        }
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
    notices: Arc<Notices>,
}

impl Campaigns {
    /// The campaign `id`, when known.
    pub fn get(&self, id: &CampaignId) -> Option<Arc<Known>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone)
    }

    /// What campaigns want done.
    pub fn notices(&self) -> &Notices {
        &self.notices
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
        let known = Arc::new(Known::new(campaign.clone(), Arc::clone(&self.notices)));
        by_id.insert(campaign.id, Arc::clone(&known));
        known
    }
}
