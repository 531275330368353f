//! Keeps the figures of the last hour, so that the dashboard's charts do not begin when the page is opened.
//!
//! All figures come from counters that this core keeps anyway: a sample reads neither Redis nor SQL. Claims that
//! another core has decided are counted once this core knows their sequence, from its own next claim on the campaign or
//! from the campaign's row in SQL. Claims from before this core's first read of the campaign in Redis, imported claims,
//! and refusals of other cores are not counted.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use claimgate_shared::CampaignId;
use claimgate_shared::admin::live::{LiveTrends, TrendSample};
use parking_lot::Mutex;

use super::cores::ThisCore;
use crate::clock;
use crate::engine::campaign::registry::CampaignRegistry;
use crate::engine::health::Health;

/// Interval between two samples.
pub const SAMPLE_PERIOD: Duration = Duration::from_secs(5);
/// Number of samples kept: an hour.
const SAMPLES_MAX: usize = 720;
/// Maximum number of campaigns with own rates. A rate has 4 bytes, so all rates take less than 0.5 MB.
const CAMPAIGNS_MAX: usize = 100;
/// Factor by which a campaign's activity score decays with each sample: a campaign that pauses for a minute stays.
const DECAY: f32 = 0.9;

/// The figures of the last hour.
#[derive(Debug, Default)]
pub struct Trends(Mutex<LastHour>);

#[derive(Debug, Default)]
struct LastHour {
    samples: VecDeque<TrendSample>,
    /// The busiest campaigns.
    campaigns: HashMap<CampaignId, Rates>,
}

/// A campaign's claims per second.
#[derive(Debug, Default)]
struct Rates {
    /// The rates in the newest samples; in earlier samples the campaign was idle or not among the busiest.
    per_s: VecDeque<f32>,
    /// Recent claims per second, with decay.
    activity: f32,
}

/// Takes samples of this core's counters.
#[derive(Debug)]
pub struct Sampler {
    registry: Arc<CampaignRegistry>,
    health: Arc<Health>,
    this: ThisCore,
    /// The time of the last sample, and the number of refused claims at that time.
    last: (Instant, u64),
}

impl Sampler {
    /// Creates a sampler for the core `this`. The first sample counts what happens from now on.
    pub fn new(registry: &Arc<CampaignRegistry>, health: &Arc<Health>, this: ThisCore) -> Self {
        for handle in registry.all() {
            handle.take_new_claims();
        }
        let last = (Instant::now(), this.refused());
        Self { registry: Arc::clone(registry), health: Arc::clone(health), this, last }
    }

    /// Adds a sample of the time since the last one to `trends`.
    pub fn sample(&mut self, trends: &Trends) {
        let now = (Instant::now(), self.this.refused());
        let (last_at, last_refused) = std::mem::replace(&mut self.last, now);
        let passed = now.0 - last_at;
        let (mut claims, mut outbox_events, mut active) = (0, 0, HashMap::new());
        for handle in self.registry.all() {
            let campaign = handle.campaign();
            let new_claims = handle.take_new_claims();
            claims += new_claims;
            if new_claims > 0 {
                active.insert(campaign.id.clone(), per_s(new_claims, passed));
            }
            if campaign.evicted.is_none() {
                outbox_events += handle.backlog();
            }
        }
        let is_up = self.health.redis.is_up();
        let sample = TrendSample {
            at: clock::now(),
            claims_per_s: is_up.then(|| per_s(claims, passed)),
            refusals_per_s: per_s(now.1.saturating_sub(last_refused), passed),
            outbox_events: is_up.then_some(outbox_events),
        };
        trends.record(sample, active);
    }
}

impl Trends {
    /// Returns the figures of the last hour.
    pub fn last_hour(&self) -> LiveTrends {
        let last_hour = self.0.lock();
        let campaigns = last_hour.campaigns.iter();
        LiveTrends {
            samples: last_hour.samples.iter().copied().collect(),
            campaigns: campaigns.map(|(id, rates)| (id.clone(), Vec::from(rates.per_s.clone()))).collect(),
        }
    }

    /// Adds a sample, with the claims per second of each campaign that was `active`.
    fn record(&self, sample: TrendSample, active: HashMap<CampaignId, f32>) {
        self.0.lock().record(sample, active);
    }
}

impl LastHour {
    fn record(&mut self, sample: TrendSample, mut active: HashMap<CampaignId, f32>) {
        push(&mut self.samples, sample);
        for (id, rates) in &mut self.campaigns {
            rates.record(active.remove(id).unwrap_or(0.0));
        }
        for (id, per_s) in active {
            self.campaigns.entry(id).or_default().record(per_s);
        }
        self.campaigns.retain(|_, rates| rates.per_s.iter().any(|per_s| *per_s > 0.0));
        self.drop_least_active();
    }

    fn drop_least_active(&mut self) {
        if self.campaigns.len() <= CAMPAIGNS_MAX {
            return;
        }
        let mut ranked: Vec<_> =
            self.campaigns.iter().map(|(id, rates)| (rates.activity, id.clone())).collect();
        ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        for (_, id) in ranked.into_iter().skip(CAMPAIGNS_MAX) {
            self.campaigns.remove(&id);
        }
    }
}

impl Rates {
    fn record(&mut self, per_s: f32) {
        push(&mut self.per_s, per_s);
        self.activity = self.activity * DECAY + per_s;
    }
}

/// Appends a value, and removes the oldest one if there are too many.
fn push<T>(values: &mut VecDeque<T>, value: T) {
    if values.len() == SAMPLES_MAX {
        values.pop_front();
    }
    values.push_back(value);
}

/// Returns the rate of `count` events in `passed`, per second, rounded to two decimals.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // for display
fn per_s(count: u64, passed: Duration) -> f32 {
    let per_s = count as f64 / passed.max(Duration::from_millis(1)).as_secs_f64();
    ((per_s * 100.0).round() / 100.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TrendSample {
        TrendSample { at: clock::now(), claims_per_s: Some(1.0), refusals_per_s: 0.0, outbox_events: None }
    }

    fn id(text: &str) -> CampaignId {
        text.parse().unwrap()
    }

    #[test]
    fn an_hour_of_the_busiest_campaigns_is_kept() {
        let trends = Trends::default();
        let quiet: HashMap<_, _> =
            (0..2 * CAMPAIGNS_MAX).map(|at| (id(&format!("quiet-{at}")), 0.2)).collect();
        trends.record(sample(), HashMap::from([(id("early"), 50.0)]));
        for _ in 0..SAMPLES_MAX {
            trends.record(sample(), quiet.clone());
        }
        trends.record(sample(), HashMap::from([(id("late"), 3.0)]));
        let LiveTrends { samples, campaigns } = trends.last_hour();
        assert_eq!((samples.len(), campaigns.len()), (SAMPLES_MAX, CAMPAIGNS_MAX));
        assert!(campaigns.values().all(|rates| rates.len() <= SAMPLES_MAX));
        assert!(!campaigns.contains_key(&id("early")), "the others have been more active since");
        assert_eq!(campaigns[&id("late")].len(), 1, "it replaces a quiet campaign");
    }

    #[test]
    fn a_campaign_is_forgotten_after_an_hour_without_claims() {
        let trends = Trends::default();
        trends.record(sample(), HashMap::from([(id("once"), 0.2)]));
        for _ in 0..SAMPLES_MAX - 1 {
            trends.record(sample(), HashMap::new());
        }
        let rates = trends.last_hour().campaigns.remove(&id("once")).unwrap();
        assert_eq!((rates.len(), rates.iter().filter(|per_s| **per_s > 0.0).count()), (SAMPLES_MAX, 1));
        trends.record(sample(), HashMap::new());
        assert!(trends.last_hour().campaigns.is_empty());
    }

    #[test]
    fn rates_are_averages_over_the_time_that_has_passed() {
        let rate = |count, passed_ms| per_s(count, Duration::from_millis(passed_ms)).to_string();
        assert_eq!([rate(1, 5_000), rate(1_000, 7_500), rate(0, 0)], ["0.2", "133.33", "0"]);
    }
}
