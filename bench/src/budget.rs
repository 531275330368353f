//! Chooses how many rounds, and of which length, fit into a run on this machine.
//!
//! Problem: on a slow machine, fixtures and servers take longer. Three rounds of every group take too long,
//! and a run that is aborted lacks the figures of its last groups.
//!
//! Idea: the cost of each part of a group was measured on the reference machine. The costs times this
//! machine's slowness estimate how many rounds fit. The decision about each further round is made when it is
//! due: it begins only if every later part can still have as many rounds. The ratio of actual to estimated
//! time so far corrects the estimates of later parts.

use std::collections::VecDeque;

/// Rounds and lengths to choose from, best first. A shorter measurement harms a figure less than a missing
/// round. But a measurement below 2 s is mostly warm-up, so a plan has fewer rounds before it goes below 2 s.
const PLANS: [Plan; 5] = [
    Plan { rounds: 3, seconds: 2.1 },
    Plan { rounds: 3, seconds: 2.0 },
    Plan { rounds: 2, seconds: 2.0 },
    Plan { rounds: 1, seconds: 2.0 },
    Plan { rounds: 1, seconds: 1.0 },
];

/// Time that a part of a group takes on the reference machine.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Seconds before the first round: servers and fixtures.
    pub start_s: f64,
    /// Seconds of each round besides its measurements.
    pub round_s: f64,
    /// Full-length measurements in each round. Their time is the same on every machine, as is the time until
    /// SQL has all claims: a slow machine has fewer claims to write.
    pub lengths: f64,
    /// Whether the part always has exactly one round.
    pub is_once: bool,
}

impl Cost {
    /// Creates a part with the run's number of rounds.
    pub const fn of(start_s: f64, round_s: f64, lengths: f64) -> Self {
        Self { start_s, round_s, lengths, is_once: false }
    }

    /// Creates a part with one round.
    pub const fn once(round_s: f64) -> Self {
        Self { start_s: 0.0, round_s, lengths: 0.0, is_once: true }
    }

    fn rounds(self, planned: u32) -> u32 {
        if self.is_once { 1 } else { planned }
    }

    /// Seconds on a machine that takes `slowness` times as long as the reference machine.
    fn seconds(self, plan: Plan, slowness: f64) -> f64 {
        let rounds = f64::from(self.rounds(plan.rounds));
        slowness * (self.start_s + rounds * self.round_s) + rounds * self.lengths * plan.seconds
    }
}

/// Rounds of every measurement, and seconds of each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Rounds of every measurement.
    pub rounds: u32,
    /// Seconds of one measurement.
    pub seconds: f64,
}

/// The user's choice of rounds and seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overrides {
    /// `--rounds`.
    pub rounds: Option<u32>,
    /// `--seconds`.
    pub seconds: Option<f64>,
}

impl Overrides {
    /// Returns the number of rounds that every figure should have: the user's, or that of a fast machine.
    pub fn rounds_wanted(self) -> u32 {
        self.rounds.unwrap_or(PLANS[0].rounds)
    }

    /// Returns the best plan that fits into `time_s`, or the smallest. The user's choices override it.
    pub fn plan(self, parts: &[Cost], time_s: f64, slowness: f64) -> Plan {
        let plans = PLANS.map(|plan| Plan {
            rounds: self.rounds.unwrap_or(plan.rounds),
            seconds: self.seconds.unwrap_or(plan.seconds),
        });
        let fits =
            |plan: &&Plan| parts.iter().map(|cost| cost.seconds(**plan, slowness)).sum::<f64>() <= time_s;
        plans.iter().find(fits).copied().unwrap_or(plans[PLANS.len() - 1])
    }
}

/// Divides the time of a run among its parts. Times are in seconds since the run began.
#[derive(Debug)]
pub struct Budget {
    /// When the last part should have ended.
    end_s: f64,
    slowness: f64,
    seconds: f64,
    rounds_wanted: u32,
    /// The user set the number of rounds: all are run.
    is_fixed: bool,
    /// The current part and the later ones.
    parts: VecDeque<Cost>,
    /// The current round, counted from 1; 0 before the first.
    round: u32,
    round_began_s: f64,
    part_began_s: f64,
    /// Actual seconds of the completed parts, and their estimate.
    took_s: f64,
    estimated_s: f64,
}

impl Budget {
    /// Plans `parts` so that they end by `end_s`.
    pub fn new(
        parts: Vec<Cost>,
        overrides: Overrides,
        seconds: f64,
        slowness: f64,
        now_s: f64,
        end_s: f64,
    ) -> Self {
        Self {
            end_s,
            slowness,
            seconds,
            rounds_wanted: overrides.rounds_wanted(),
            is_fixed: overrides.rounds.is_some(),
            parts: parts.into(),
            round: 0,
            round_began_s: now_s,
            part_began_s: now_s,
            took_s: 0.0,
            estimated_s: 0.0,
        }
    }

    /// Returns the number of the current part's next round, counted from 1; `None` ends the part. Every part
    /// has a first round, even if the time limit has expired.
    pub fn next_round(&mut self, now_s: f64) -> Option<u32> {
        let rounds = self.parts.front().map_or(self.rounds_wanted, |part| part.rounds(self.rounds_wanted));
        if self.round == 0 || self.round < rounds && (self.is_fixed || self.has_room(now_s)) {
            self.round += 1;
            self.round_began_s = now_s;
            return Some(self.round);
        }
        self.end_part(now_s);
        None
    }

    /// Drops the parts of a group that failed, so that the last `later` parts are left.
    pub fn drop_parts(&mut self, now_s: f64, later: usize) {
        let failed = self.parts.len().saturating_sub(later);
        self.parts.drain(..failed);
        self.round = 0;
        self.part_began_s = now_s;
    }

    /// Returns whether every later part can still have as many rounds if another round begins now.
    fn has_room(&self, now_s: f64) -> bool {
        let round_s = now_s - self.round_began_s;
        let plan = Plan { rounds: self.round + 1, seconds: self.seconds };
        let later_s: f64 = self.parts.iter().skip(1).map(|part| part.seconds(plan, self.slowness)).sum();
        now_s + round_s + later_s * self.correction() <= self.end_s
    }

    /// Returns the ratio of actual to estimated time of the completed parts.
    fn correction(&self) -> f64 {
        if self.estimated_s > 0.0 { self.took_s / self.estimated_s } else { 1.0 }
    }

    fn end_part(&mut self, now_s: f64) {
        if let Some(part) = self.parts.pop_front() {
            self.took_s += now_s - self.part_began_s;
            let plan = Plan { rounds: self.round, seconds: self.seconds };
            self.estimated_s += part.seconds(plan, self.slowness);
        }
        self.round = 0;
        self.part_began_s = now_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::GROUPS;
    use crate::{TIME_MAX, TIME_PLANNED};

    /// A part that consists of four measurements.
    const PART: Cost = Cost::of(0.0, 0.0, 4.0);

    fn all_parts() -> Vec<Cost> {
        GROUPS.iter().flat_map(|group| group.parts).copied().collect()
    }

    fn plan(slowness: f64) -> Plan {
        Overrides::default().plan(&all_parts(), TIME_PLANNED.as_secs_f64(), slowness)
    }

    fn budget(parts: &[Cost], overrides: Overrides, end_s: f64) -> Budget {
        Budget::new(parts.to_vec(), overrides, 1.0, 1.0, 0.0, end_s)
    }

    /// Simulates a whole run in which all work takes `error` times its estimate. Returns when the run ends,
    /// and the rounds of each part.
    fn play(slowness: f64, error: f64) -> (f64, Vec<u32>) {
        let Plan { seconds, .. } = plan(slowness);
        let end_s = TIME_PLANNED.as_secs_f64();
        let mut budget = Budget::new(all_parts(), Overrides::default(), seconds, slowness, 0.0, end_s);
        let (mut now_s, mut played) = (0.0, Vec::new());
        for part in all_parts() {
            let mut rounds = 0;
            now_s += part.start_s * slowness * error;
            while budget.next_round(now_s).is_some() {
                now_s += (part.round_s * slowness + part.lengths * seconds) * error;
                rounds += 1;
            }
            played.push(rounds);
        }
        (now_s, played)
    }

    #[test]
    fn the_reference_machine_has_three_rounds_of_full_length() {
        assert_eq!(plan(1.0), Plan { rounds: 3, seconds: 2.1 });
        assert!(plan(0.5) == plan(1.0), "a fast machine runs no more rounds");
    }

    #[test]
    fn slow_machines_shorten_measurements_before_dropping_rounds() {
        let plans: Vec<_> = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0].map(plan).into();
        let size = |plan: &Plan| f64::from(plan.rounds) * plan.seconds;
        assert!(plans.is_sorted_by(|a, b| size(a) >= size(b)), "{plans:?}");
        assert_eq!(plan(100.0), Plan { rounds: 1, seconds: 1.0 });
    }

    #[test]
    fn runs_end_in_time_down_to_half_the_reference_speed() {
        for slowness in [0.5, 1.0, 1.3, 1.6, 2.0, 2.2] {
            for error in [0.7, 1.0, 1.2] {
                let (end_s, rounds) = play(slowness, error);
                assert!(end_s < TIME_MAX.as_secs_f64(), "{slowness} × {error}: {end_s} s, {rounds:?}");
            }
        }
    }

    #[test]
    fn the_users_options_override_the_plan() {
        let overrides = Overrides { rounds: Some(5), seconds: None };
        assert_eq!(overrides.plan(&[PART], 10.0, 1.0), Plan { rounds: 5, seconds: 1.0 });
        let overrides = Overrides { rounds: None, seconds: Some(4.0) };
        assert_eq!(overrides.plan(&[PART], 40.0, 1.0), Plan { rounds: 2, seconds: 4.0 });

        let mut budget = budget(&[PART], Overrides { rounds: Some(2), seconds: None }, 1.0);
        let rounds: Vec<_> = (0..3).map(|at| budget.next_round(f64::from(at) * 100.0)).collect();
        assert_eq!(
            rounds,
            [Some(1), Some(2), None],
            "all rounds that the user requested, even if the time limit has expired"
        );
    }

    #[test]
    fn a_round_needs_time_for_as_many_rounds_of_later_parts() {
        let second_round = |end_s: f64| {
            let mut budget = budget(&[PART, PART], Overrides::default(), end_s);
            assert_eq!(budget.next_round(0.0), Some(1));
            budget.next_round(4.0)
        };
        // The first round, the second, and two of the other part: 4 + 4 + 8 s.
        assert_eq!(second_round(16.0), Some(2));
        assert_eq!(second_round(15.9), None);
    }

    #[test]
    fn every_part_has_a_first_round_even_if_time_is_over() {
        let mut budget = budget(&[PART, PART], Overrides::default(), 1.0);
        let rounds: Vec<_> = (0..4).map(|_| budget.next_round(100.0)).collect();
        assert_eq!(rounds, [Some(1), None, Some(1), None]);
    }

    #[test]
    fn an_overrun_scales_the_estimates_of_later_parts() {
        let second_round = |part_s: f64| {
            let mut budget = budget(&[Cost::once(4.0), PART, PART], Overrides::default(), 28.0);
            assert_eq!(budget.next_round(0.0), Some(1));
            assert_eq!(budget.next_round(part_s), None);
            assert_eq!(budget.next_round(part_s), Some(1));
            budget.next_round(part_s + 4.0)
        };
        // Two rounds leave 16 s or 12 s; the third part needs 8 s, or 16 s after the correction.
        assert_eq!(second_round(4.0), Some(2));
        assert_eq!(second_round(8.0), None);
    }

    #[test]
    fn time_saved_by_early_parts_gives_later_parts_more_rounds() {
        let mut budget = budget(&[PART, PART], Overrides::default(), 19.0);
        assert_eq!([0.0, 4.0, 8.0].map(|now_s| budget.next_round(now_s)), [Some(1), Some(2), None]);
        assert_eq!(
            [8.0, 11.0, 14.0, 17.0].map(|now_s| budget.next_round(now_s)),
            [Some(1), Some(2), Some(3), None]
        );
    }

    #[test]
    fn a_single_round_part_ignores_the_requested_rounds() {
        let mut budget = budget(&[Cost::once(1.0)], Overrides { rounds: Some(5), seconds: None }, 100.0);
        assert_eq!([0.0, 1.0].map(|now_s| budget.next_round(now_s)), [Some(1), None]);
    }
}
