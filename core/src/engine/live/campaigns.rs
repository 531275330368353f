//! Samples campaigns for live snapshots. The number of samples a second is bounded, regardless of the number
//! of campaigns.
//!
//! Active campaigns are sampled every second, all other campaigns round-robin. Up to [`SAMPLES_MAX`] campaigns
//! are all sampled every second. With 10,000 campaigns, an idle one is sampled within 100 s; once claims are
//! made on it, it is sampled every second.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use claimgate_shared::admin::live::LiveCampaign;
use claimgate_shared::{CampaignId, CampaignState, Timestamp};

use crate::engine::campaign::handle::CampaignHandle;
use crate::store::redis::survey::CampaignSnapshot;
use crate::store::redis::{RedisStore, RedisStoreError};

/// Maximum number of campaigns sampled each second; they take 1 ms of Redis.
const SAMPLES_MAX: usize = 250;
/// Maximum number of active campaigns among the samples of a second.
const ACTIVE_MAX: usize = 150;
/// Maximum number of campaigns listed in a snapshot.
const LISTED_MAX: usize = 50;
/// Maximum age at which a sample still describes the campaign.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(4);
/// Factor by which the activity score decays each second: busy campaigns stay listed for a while.
const DECAY: f64 = 0.9;
/// Activity below which a campaign is idle.
const IDLE_BELOW: f64 = 0.01;

/// Totals over all campaigns.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub claims_per_s: Option<f64>,
    pub outbox_events: u64,
    pub outbox_age: Duration,
}

#[derive(Debug, Default)]
pub(super) struct CampaignSamples {
    samples: HashMap<CampaignId, Sample>,
    /// Campaigns yet to be sampled in this round.
    round: Vec<Arc<CampaignHandle>>,
}

#[derive(Debug)]
struct Sample {
    /// The last snapshot, and the time of this read by this core's clock.
    snapshot: Option<(CampaignSnapshot, Instant)>,
    last_succeeded: bool,
    per_s: Option<f64>,
    /// Recent claims per second, with decay.
    activity: f64,
    /// The campaign's event count at the last sample, as known to this core.
    events: u64,
}

impl CampaignSamples {
    /// Samples the `campaigns` that are due.
    ///
    /// # Errors
    /// If none of the campaigns' servers answers.
    pub async fn take(
        &mut self,
        redis: &RedisStore,
        campaigns: &[Arc<CampaignHandle>],
    ) -> Result<(), RedisStoreError> {
        let due = self.due(campaigns);
        let rules: Vec<_> = due.iter().map(|handle| handle.campaign()).collect();
        let targets: Vec<_> = due.iter().zip(&rules).map(|(handle, rules)| handle.target(rules)).collect();
        let snapshots = redis.survey(&targets).await;
        let read_at = Instant::now();
        let found = snapshots.as_ref().map_or_else(|_| vec![None; due.len()], Clone::clone);
        for (handle, snapshot) in due.iter().zip(found) {
            let events = handle.high_water_mark().events;
            let sample = self.samples.entry(handle.campaign().id.clone()).or_insert_with(Sample::new);
            sample.take(snapshot.map(|snapshot| (snapshot, read_at)), events);
        }
        snapshots.map(drop)
    }

    /// Returns the active campaigns, busiest first, followed by the next campaigns of the round.
    fn due(&mut self, campaigns: &[Arc<CampaignHandle>]) -> Vec<Arc<CampaignHandle>> {
        if campaigns.len() <= SAMPLES_MAX {
            return campaigns.to_vec();
        }
        let is_active = |handle: &&Arc<CampaignHandle>| match self.samples.get(&handle.campaign().id) {
            Some(sample) => sample.activity > IDLE_BELOW || sample.events != handle.high_water_mark().events,
            None => false,
        };
        let mut due: Vec<_> = campaigns.iter().filter(is_active).map(Arc::clone).collect();
        let activity = |handle: &CampaignHandle| {
            self.samples.get(&handle.campaign().id).map_or(0.0, |sample| sample.activity)
        };
        due.sort_by(|one, other| activity(other).total_cmp(&activity(one)));
        due.truncate(ACTIVE_MAX);
        if self.round.is_empty() {
            self.round = campaigns.to_vec();
            let ids: HashSet<_> = campaigns.iter().map(|handle| handle.campaign().id.clone()).collect();
            self.samples.retain(|id, _| ids.contains(id));
        }
        let rest = self.round.len().saturating_sub(SAMPLES_MAX - due.len());
        let busy: Vec<_> = due.iter().map(Arc::as_ptr).collect();
        due.extend(
            self.round.split_off(rest).into_iter().filter(|handle| !busy.contains(&Arc::as_ptr(handle))),
        );
        due
    }

    /// Returns the busiest of `campaigns` at `now`, at most [`LISTED_MAX`].
    pub fn listed(&self, campaigns: &[Arc<CampaignHandle>], now: Timestamp) -> Vec<LiveCampaign> {
        let rank = |handle: &Arc<CampaignHandle>| {
            let campaign = handle.campaign();
            let sample = self.samples.get(&campaign.id);
            let state = CampaignState::at(now, campaign.admin_state, campaign.window, None);
            let activity = sample.map_or(0.0, |sample| sample.activity);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a rank
            let busy = (activity / IDLE_BELOW) as u64;
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

    /// Returns the number of `campaigns` that are open at `now`. For a campaign without a recent sample, only
    /// the window counts.
    pub fn open(&self, campaigns: &[Arc<CampaignHandle>], now: Timestamp) -> usize {
        let is_open = |handle: &&Arc<CampaignHandle>| {
            let campaign = handle.campaign();
            let snapshot =
                self.samples.get(&campaign.id).and_then(Sample::current).filter(|snapshot| snapshot.ready);
            let remaining = snapshot.and_then(|snapshot| campaign.remaining(snapshot.taken));
            CampaignState::at(now, campaign.admin_state, campaign.window, remaining) == CampaignState::Open
        };
        campaigns.iter().filter(is_open).count()
    }

    fn live(&self, handle: &CampaignHandle, now: Timestamp) -> LiveCampaign {
        let rules = handle.campaign();
        let sample = self.samples.get(&rules.id);
        let snapshot = sample.and_then(Sample::current).filter(|snapshot| snapshot.ready);
        let mut campaign = rules.view(
            snapshot.map_or(0, |snapshot| snapshot.taken),
            snapshot.map_or(now, |snapshot| snapshot.now),
        );
        if snapshot.is_none() {
            campaign.remaining = None;
        }
        LiveCampaign {
            campaign,
            ready: snapshot.is_some(),
            import_unfinished: rules.unfinished_import.is_some(),
            taken: snapshot.map(|snapshot| snapshot.taken),
            claims_per_s: snapshot.and(sample).and_then(|sample| sample.per_s),
            backlog: snapshot.map(|snapshot| snapshot.backlog),
            claims_without_codes: None,
        }
    }

    /// Returns the totals over all campaigns, using the last sample of each campaign.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for sample in self.samples.values() {
            if let Some(per_s) = sample.current().and(sample.per_s) {
                totals.claims_per_s = Some(totals.claims_per_s.unwrap_or(0.0) + per_s);
            }
            if let Some((snapshot, _)) = &sample.snapshot {
                totals.outbox_events += snapshot.backlog;
                let age_ms = snapshot.oldest.map_or(0, |oldest| snapshot.now.as_ms() - oldest.as_ms());
                totals.outbox_age =
                    totals.outbox_age.max(Duration::from_millis(u64::try_from(age_ms).unwrap_or(0)));
            }
        }
        totals
    }
}

impl Sample {
    fn new() -> Self {
        Self { snapshot: None, last_succeeded: false, per_s: None, activity: 0.0, events: 0 }
    }

    /// Records a snapshot; `None` if it could not be read.
    #[allow(clippy::cast_precision_loss)] // for display
    fn take(&mut self, snapshot: Option<(CampaignSnapshot, Instant)>, events: u64) {
        self.per_s = match (&self.snapshot, &snapshot) {
            (Some((before, _)), Some((now, _))) if self.last_succeeded && before.run == now.run => {
                let passed_ms = now.now.as_ms() - before.now.as_ms();
                let claims = now.sequence.saturating_sub(before.sequence);
                (passed_ms > 0).then(|| claims as f64 * 1000.0 / passed_ms as f64)
            }
            _ => None,
        };
        let is_relaying = snapshot.as_ref().is_some_and(|(snapshot, _)| snapshot.backlog > 0);
        let now = self.per_s.unwrap_or(0.0).max(if is_relaying { 2.0 * IDLE_BELOW } else { 0.0 });
        self.activity = now.max(self.activity * DECAY);
        self.last_succeeded = snapshot.is_some();
        self.snapshot = snapshot.or(self.snapshot.take());
        self.events = events;
    }

    /// Returns the last snapshot, if it is recent enough to describe the campaign.
    fn current(&self) -> Option<&CampaignSnapshot> {
        self.snapshot
            .as_ref()
            .filter(|(_, at)| self.last_succeeded && at.elapsed() < SAMPLE_AGE_MAX)
            .map(|(snapshot, _)| snapshot)
    }
}

/// Returns the order in which idle campaigns are listed.
fn order(state: CampaignState) -> u8 {
    match state {
        CampaignState::Open => 0,
        CampaignState::SoldOut => 1,
        CampaignState::Paused => 2,
        CampaignState::Scheduled => 3,
        CampaignState::Ended => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::campaign_change::NewCampaign;
    use crate::engine::campaign::registry::CampaignRegistry;

    fn campaigns(registry: &CampaignRegistry, count: usize) -> Vec<Arc<CampaignHandle>> {
        let campaign = |at| {
            let body = format!(r#"{{"id":"c{at}","name":"x","starts_at":"2026-01-01T00:00:00Z"}}"#);
            let new = NewCampaign::parse(body.as_bytes()).unwrap();
            registry.update(new.created_at(crate::clock::now()).unwrap())
        };
        (0..count).map(campaign).collect()
    }

    #[test]
    fn ten_thousand_campaigns_are_sampled_in_a_hundred_seconds() {
        let registry = CampaignRegistry::default();
        let all = campaigns(&registry, 10_000);
        let mut samples = CampaignSamples::default();
        for handle in &all[..ACTIVE_MAX + 20] {
            let sample = Sample { activity: 1.0, ..Sample::new() };
            samples.samples.insert(handle.campaign().id.clone(), sample);
        }
        let mut found = HashSet::new();
        for _ in 0..100 {
            let due = samples.due(&all);
            assert!(due.len() <= SAMPLES_MAX, "{} samples in a second", due.len());
            found.extend(due.iter().map(|handle| handle.campaign().id.clone()));
        }
        assert_eq!(found.len(), all.len());
    }
}
