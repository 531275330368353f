//! Looks at campaigns for those who watch: a bounded number a second, whatever their number.
//!
//! Those that something happens on are looked at each second, all others in turn. Up to [`LOOKS_MAX`] campaigns, that is
//! each of them each second; of 10,000 each within 50 s, and from then on each second once claims are made on it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use claimgate_shared::{CampaignId, CampaignState, CampaignView, Timestamp};
use serde::Serialize;

use super::handle::CampaignHandle;
use crate::store::redis::survey::Look;
use crate::store::redis::{RedisStore, RedisStoreError};

/// The most campaigns that are looked at each second: 1 ms of Redis.
const LOOKS_MAX: usize = 250;
/// Of these, those that something happens on.
const BUSY_MAX: usize = 150;
/// The most campaigns that are told of.
const LISTED_MAX: usize = 50;
/// An older look does not say how a campaign is.
const LOOK_AGE_MAX: Duration = Duration::from_secs(4);
/// Of how fast claims came before, so much still counts a second later: what is busy stays listed for a while.
const KEPT: f64 = 0.9;
/// Below this nothing happens.
const QUIET: f64 = 0.01;

/// A campaign as it is at the moment.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveCampaign {
    /// What all callers see; `remaining` is `null` while it is not known, too.
    #[serde(flatten)]
    pub campaign: CampaignView,
    /// Whether claims can be decided; without it the counters are `null`.
    pub ready: bool,
    /// Whether an import of past claims is unfinished: until then nothing is decided.
    pub import_unfinished: bool,
    /// Units taken.
    pub taken: Option<u64>,
    /// Claims granted or held each second, through all cores; `null` until that is known.
    pub claims_per_s: Option<f64>,
    /// Events that wait for SQL.
    pub backlog: Option<u64>,
}

/// All campaigns together.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub claims_per_s: Option<f64>,
    pub outbox_events: u64,
    pub outbox_age: Duration,
}

/// What was seen of campaigns.
#[derive(Debug, Default)]
pub(super) struct CampaignLooks {
    seen: HashMap<CampaignId, Seen>,
    /// Whose turn is yet to come.
    round: Vec<Arc<CampaignHandle>>,
}

#[derive(Debug)]
struct Seen {
    /// The last look that gave something, and when it was taken by this core's clock.
    look: Option<(Look, Instant)>,
    /// Whether it is the last one.
    is_last: bool,
    per_s: Option<f64>,
    /// How fast claims came lately.
    activity: f64,
    /// The campaign's events as this core knew them then.
    events: u64,
}

impl CampaignLooks {
    /// Looks at those of `campaigns` whose turn it is.
    ///
    /// # Errors
    /// When no server of any of them answers.
    pub async fn look(
        &mut self,
        redis: &RedisStore,
        campaigns: &[Arc<CampaignHandle>],
    ) -> Result<(), RedisStoreError> {
        let due = self.due(campaigns);
        let rules: Vec<_> = due.iter().map(|handle| handle.campaign()).collect();
        let targets: Vec<_> = due.iter().zip(&rules).map(|(handle, rules)| handle.target(rules)).collect();
        let looks = redis.survey(&targets).await;
        let looked = Instant::now();
        let found = looks.as_ref().map_or_else(|_| vec![None; due.len()], Clone::clone);
        for (handle, look) in due.iter().zip(found) {
            let events = handle.high_water_mark().events;
            let seen = self.seen.entry(handle.campaign().id.clone()).or_insert_with(Seen::new);
            seen.take(look.map(|look| (look, looked)), events);
        }
        looks.map(drop)
    }

    /// Those that something happens on, the busiest first, then those whose turn it is.
    fn due(&mut self, campaigns: &[Arc<CampaignHandle>]) -> Vec<Arc<CampaignHandle>> {
        if campaigns.len() <= LOOKS_MAX {
            return campaigns.to_vec();
        }
        let stirs = |handle: &&Arc<CampaignHandle>| match self.seen.get(&handle.campaign().id) {
            Some(seen) => seen.activity > QUIET || seen.events != handle.high_water_mark().events,
            None => false,
        };
        let mut due: Vec<_> = campaigns.iter().filter(stirs).map(Arc::clone).collect();
        let activity =
            |handle: &CampaignHandle| self.seen.get(&handle.campaign().id).map_or(0.0, |seen| seen.activity);
        due.sort_by(|one, other| activity(other).total_cmp(&activity(one)));
        due.truncate(BUSY_MAX);
        if self.round.is_empty() {
            self.round = campaigns.to_vec();
            let there: HashSet<_> = campaigns.iter().map(|handle| handle.campaign().id.clone()).collect();
            self.seen.retain(|id, _| there.contains(id));
        }
        let rest = self.round.len().saturating_sub(LOOKS_MAX - due.len());
        let busy: Vec<_> = due.iter().map(Arc::as_ptr).collect();
        due.extend(
            self.round.split_off(rest).into_iter().filter(|handle| !busy.contains(&Arc::as_ptr(handle))),
        );
        due
    }

    /// The busiest of `campaigns` at `now`, at most [`LISTED_MAX`].
    pub fn listed(&self, campaigns: &[Arc<CampaignHandle>], now: Timestamp) -> Vec<LiveCampaign> {
        let rank = |handle: &Arc<CampaignHandle>| {
            let campaign = handle.campaign();
            let seen = self.seen.get(&campaign.id);
            let state = CampaignState::at(now, campaign.admin_state, campaign.window, None);
            let activity = seen.map_or(0.0, |seen| seen.activity);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a rank
            let busy = (activity / QUIET) as u64;
            (Reverse(busy), order(state), campaign.id.clone())
        };
        let mut all: Vec<_> = campaigns.iter().collect();
        if all.len() > LISTED_MAX {
            all.select_nth_unstable_by_key(LISTED_MAX - 1, |handle| rank(handle));
            all.truncate(LISTED_MAX);
        }
        all.sort_by_cached_key(|handle| rank(handle));
        all.into_iter().map(|handle| self.live(handle, now)).collect()
    }

    /// How many of `campaigns` are open at `now`; one that was not looked at lately by its window alone.
    pub fn open(&self, campaigns: &[Arc<CampaignHandle>], now: Timestamp) -> usize {
        let is_open = |handle: &&Arc<CampaignHandle>| {
            let campaign = handle.campaign();
            let look = self.seen.get(&campaign.id).and_then(Seen::current).filter(|look| look.ready);
            let remaining = look.and_then(|look| campaign.remaining(look.taken));
            CampaignState::at(now, campaign.admin_state, campaign.window, remaining) == CampaignState::Open
        };
        campaigns.iter().filter(is_open).count()
    }

    fn live(&self, handle: &CampaignHandle, now: Timestamp) -> LiveCampaign {
        let rules = handle.campaign();
        let seen = self.seen.get(&rules.id);
        let look = seen.and_then(Seen::current).filter(|look| look.ready);
        let mut campaign = rules.view(look.map_or(0, |look| look.taken), look.map_or(now, |look| look.now));
        if look.is_none() {
            campaign.remaining = None;
        }
        LiveCampaign {
            campaign,
            ready: look.is_some(),
            import_unfinished: rules.unfinished_import.is_some(),
            taken: look.map(|look| look.taken),
            claims_per_s: look.and(seen).and_then(|seen| seen.per_s),
            backlog: look.map(|look| look.backlog),
        }
    }

    /// All campaigns together, each as it was seen last.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for seen in self.seen.values() {
            if let Some(per_s) = seen.current().and(seen.per_s) {
                totals.claims_per_s = Some(totals.claims_per_s.unwrap_or(0.0) + per_s);
            }
            if let Some((look, _)) = &seen.look {
                totals.outbox_events += look.backlog;
                let age_ms = look.oldest.map_or(0, |oldest| look.now.as_ms() - oldest.as_ms());
                totals.outbox_age =
                    totals.outbox_age.max(Duration::from_millis(u64::try_from(age_ms).unwrap_or(0)));
            }
        }
        totals
    }
}

impl Seen {
    fn new() -> Self {
        Self { look: None, is_last: false, per_s: None, activity: 0.0, events: 0 }
    }

    /// Takes in a look; `None` when it gave nothing.
    #[allow(clippy::cast_precision_loss)] // for people
    fn take(&mut self, look: Option<(Look, Instant)>, events: u64) {
        self.per_s = match (&self.look, &look) {
            (Some((before, _)), Some((now, _))) if self.is_last && before.generation == now.generation => {
                let passed_ms = now.now.as_ms() - before.now.as_ms();
                let claims = now.sequence.saturating_sub(before.sequence);
                (passed_ms > 0).then(|| claims as f64 * 1000.0 / passed_ms as f64)
            }
            _ => None,
        };
        let is_relaying = look.as_ref().is_some_and(|(look, _)| look.backlog > 0);
        let now = self.per_s.unwrap_or(0.0).max(if is_relaying { 2.0 * QUIET } else { 0.0 });
        self.activity = now.max(self.activity * KEPT);
        self.is_last = look.is_some();
        self.look = look.or(self.look.take());
        self.events = events;
    }

    /// The last look, while that says how the campaign is.
    fn current(&self) -> Option<&Look> {
        self.look.as_ref().filter(|(_, at)| self.is_last && at.elapsed() < LOOK_AGE_MAX).map(|(look, _)| look)
    }
}

/// Which campaigns come first of those that nothing happens on.
fn order(state: CampaignState) -> u8 {
    match state {
        CampaignState::Open => 0,
        CampaignState::SoldOut => 1,
        CampaignState::Paused => 2,
        CampaignState::Scheduled => 3,
        CampaignState::Ended => 4,
    }
}
