//! The counts of the storm.

use std::collections::BTreeMap;
use std::time::Duration;

use claimgate_client::{Answer, Error};
use claimgate_shared::ClaimReply;
use serde::Serialize;
use tokio::time::Instant;

use crate::latency::Latency;

/// The outcome of a try whose connection the drill has cut.
pub(crate) const CUT: &str = "cut off by the drill";
const LOST: &str = "no answer";

/// The length of a slice in which responses are counted together, in milliseconds.
const SLICE_MS: u64 = 100;
/// Maximum number of slices in a report; slices of longer storms are merged.
const SLICES_MAX: usize = 60;

/// The counts of the storm.
#[derive(Debug)]
pub(crate) struct Tally {
    began: Instant,
    ended: Option<Instant>,
    /// The latency of the responses.
    pub(crate) latency: Latency,
    /// Tries by outcome.
    pub(crate) answers: BTreeMap<String, u64>,
    slices: Vec<Slice>,
    /// When a claim was last decided or rate-limited by the edge; both show that the installation works.
    pub(crate) last_decided: Instant,
    /// The error of the last undecided try.
    pub(crate) last_undecided: Option<String>,
}

/// The responses over the duration of the storm, in slices.
#[derive(Debug, Serialize)]
pub struct Timeline {
    /// The length of each slice, in seconds.
    pub slice_s: f64,
    /// At most 60 consecutive slices.
    pub slices: Vec<Slice>,
}

/// The responses in one slice of the storm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Slice {
    /// Granted claims and replays.
    pub claimed: u64,
    /// Denials.
    pub denied: u64,
    /// Tries without a decision.
    pub undecided: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        Self {
            began,
            ended: None,
            latency: Latency::default(),
            answers: BTreeMap::new(),
            slices: Vec::new(),
            last_decided: began,
            last_undecided: None,
        }
    }

    /// Counts a try that was sent at `sent`, by its outcome.
    pub(crate) fn count(&mut self, sent: Instant, answer: &Result<Answer<ClaimReply>, Error>) {
        let (what, is_answered) = match answer {
            Ok(answer) if answer.replayed => ("replayed", true),
            Ok(_) => ("granted", true),
            Err(error) => error.problem().map_or((LOST, false), |problem| (problem.code.as_str(), true)),
        };
        *self.answers.entry(what.to_owned()).or_default() += 1;
        if is_answered {
            self.latency.record(sent.elapsed());
        }
        let undecided = answer.as_ref().err().filter(|error| error.retry_after().is_some());
        let is_undecided = undecided.is_some();
        if let Some(error) = undecided {
            self.last_undecided = Some(error.to_string());
        }
        let slice = self.slice();
        match answer {
            Ok(_) => slice.claimed += 1,
            Err(_) if is_undecided => slice.undecided += 1,
            Err(_) => slice.denied += 1,
        }
        if !is_undecided || answer.as_ref().is_err_and(is_rate_limited) {
            self.last_decided = Instant::now();
        }
    }

    /// Counts a try whose connection the drill has cut.
    pub(crate) fn count_cut(&mut self) {
        *self.answers.entry(CUT.to_owned()).or_default() += 1;
        self.slice().undecided += 1;
    }

    pub(crate) fn end(&mut self) {
        self.ended = Some(Instant::now());
    }

    /// Returns how long the storm has taken.
    pub(crate) fn duration(&self) -> Duration {
        self.ended.unwrap_or_else(Instant::now) - self.began
    }

    /// Returns the course of the storm in at most [`SLICES_MAX`] slices.
    pub(crate) fn timeline(&self) -> Timeline {
        let together = self.slices.len().div_ceil(SLICES_MAX).max(1);
        let slices = self.slices.chunks(together).map(|slices| {
            slices.iter().fold(Slice::default(), |sum, slice| Slice {
                claimed: sum.claimed + slice.claimed,
                denied: sum.denied + slice.denied,
                undecided: sum.undecided + slice.undecided,
            })
        });
        let length = Duration::from_millis(SLICE_MS) * u32::try_from(together).unwrap_or(u32::MAX);
        Timeline { slice_s: length.as_secs_f64(), slices: slices.collect() }
    }

    fn slice(&mut self) -> &mut Slice {
        let slice = self.began.elapsed().as_millis() / u128::from(SLICE_MS);
        // No storm is long enough to exceed `u16`.
        let index = usize::from(u16::try_from(slice).unwrap_or(u16::MAX));
        if self.slices.len() <= index {
            self.slices.resize(index + 1, Slice::default());
        }
        &mut self.slices[index]
    }
}

/// Returns whether the edge rejected the request because there were too many.
pub(crate) fn is_rate_limited(error: &Error) -> bool {
    error.problem().is_some_and(|problem| problem.status.as_u16() == 429)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_storm_is_reported_in_at_most_sixty_slices() {
        let mut tally = Tally::new();
        let one = Slice { claimed: 1, denied: 2, undecided: 3 };
        tally.slices = vec![one; 130];
        let timeline = tally.timeline();
        assert_eq!(timeline.slices.len(), 44);
        assert_eq!(timeline.slices[0], Slice { claimed: 3, denied: 6, undecided: 9 });
        assert_eq!(timeline.slices[43], one, "the last slice is the remainder");
        assert!((timeline.slice_s - 0.3).abs() < 1e-9);
    }
}
