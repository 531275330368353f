//! The report, as programs read it.

use std::collections::BTreeMap;

use claimgate_shared::{CampaignId, Timestamp};
use serde::Serialize;

use crate::checks::Check;
use crate::latency::LatencyFigures;
use crate::scratch::Scratch;
use crate::tally::{Tally, Timeline};
use crate::{Installation, Plan};

/// What came of a drill.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether every check passed.
    pub passed: bool,
    /// Where the claims went.
    pub url: String,
    /// `core` or `edge`.
    pub through: &'static str,
    /// The scratch campaign.
    pub campaign_id: CampaignId,
    /// When the drill began.
    pub began_at: Timestamp,
    /// Units to be had.
    pub units: u32,
    /// Users who wanted them.
    pub users: u32,
    /// Users at once.
    pub connections: usize,
    /// How long the storm took, in seconds.
    pub storm_s: f64,
    /// What had to hold.
    pub checks: Vec<Check>,
    /// Tries by what came of them: `granted`, `replayed`, a problem's code, or why there was no answer.
    pub answers: BTreeMap<String, u64>,
    /// How long answers took; `null` when there was none.
    pub latency_ms: Option<LatencyFigures>,
    /// How the storm went.
    pub timeline: Timeline,
}

impl Report {
    pub(crate) fn new(
        installation: &Installation,
        plan: &Plan,
        scratch: &Scratch,
        checks: Vec<Check>,
        tally: Tally,
    ) -> Self {
        Self {
            passed: checks.iter().all(|check| check.passed),
            url: installation.url.clone(),
            through: installation.target.name(),
            campaign_id: scratch.id.clone(),
            began_at: scratch.made_at,
            units: plan.units,
            users: plan.users,
            connections: plan.connections,
            storm_s: tally.lasted().as_secs_f64(),
            checks,
            latency_ms: tally.latency.figures(),
            timeline: tally.timeline(),
            answers: tally.answers,
        }
    }

    /// In one line: whether it held, and what did not.
    pub fn verdict(&self) -> String {
        let failed = self.checks.iter().filter(|check| !check.passed).count();
        match failed {
            0 => format!("passed: all {} checks hold", self.checks.len()),
            failed => format!("FAILED: {failed} of {} checks do not hold", self.checks.len()),
        }
    }
}
