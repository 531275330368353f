//! The report.

use std::collections::BTreeMap;

use claimgate_shared::{CampaignId, Timestamp};
use serde::Serialize;

use crate::checks::Check;
use crate::latency::LatencyFigures;
use crate::scratch::Scratch;
use crate::tally::{Tally, Timeline};
use crate::{Installation, Plan};

/// The result of a drill.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether every check passed.
    pub passed: bool,
    /// The URL that the claims were sent to.
    pub url: String,
    /// `core` or `edge`.
    pub through: &'static str,
    /// The scratch campaign.
    pub campaign_id: CampaignId,
    /// When the drill began.
    pub began_at: Timestamp,
    /// Units of the campaign.
    pub units: u32,
    /// Users who claimed.
    pub users: u32,
    /// Users who claimed at the same time.
    pub connections: usize,
    /// Duration of the storm, in seconds.
    pub storm_s: f64,
    /// The checks.
    pub checks: Vec<Check>,
    /// Tries by outcome: `granted`, `replayed`, a problem's code, or why there was no response.
    pub answers: BTreeMap<String, u64>,
    /// Latency of the responses; `null` if there were none.
    pub latency_ms: Option<LatencyFigures>,
    /// The course of the storm.
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
            began_at: scratch.created_at,
            units: plan.units,
            users: plan.users,
            connections: plan.connections,
            storm_s: tally.duration().as_secs_f64(),
            checks,
            latency_ms: tally.latency.figures(),
            timeline: tally.timeline(),
            answers: tally.answers,
        }
    }

    /// Returns one line: whether all checks passed, and how many failed.
    pub fn verdict(&self) -> String {
        let failed = self.checks.iter().filter(|check| !check.passed).count();
        match failed {
            0 => format!("passed: all {} checks", self.checks.len()),
            failed => format!("FAILED: {failed} of {} checks", self.checks.len()),
        }
    }
}
