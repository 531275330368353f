//! How many rounds of which length fit into the time of a run, on this machine.
//!
//! Problem: fixtures and servers take as long as they take. On a slow machine, three rounds of every group do not end
//! in time, and a run that is cut off has no figures of its last groups.
//!
//! Idea: each part of a group has a cost that was measured on the reference machine. Times the slowness of this
//! machine, the costs tell in advance how many rounds of which length fit. That is only an estimate, so each further
//! round is decided when it is due: it begins if every later part could still have as many rounds. How much the parts
//! so far took over their estimates corrects the estimates of the later parts.

use std::collections::VecDeque;

/// Rounds and lengths to choose from, best first. A shorter measurement costs a figure less than a missing round does;
/// below 2 s a measurement is mostly warm-up, so rounds go before that.
const PLANS: [Plan; 6] = [
    Plan { rounds: 3, seconds: 3.0 },
    Plan { rounds: 3, seconds: 2.5 },
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
    /// Seconds that each round takes beside its measurements.
    pub round_s: f64,
    /// Measurements of full length in each round. They last as long on every machine, and so does catching up after
    /// them: a slow machine has fewer claims to write.
    pub lengths: f64,
    /// Whether there is never more than one round.
    pub is_once: bool,
}

impl Cost {
    /// A part of as many rounds as the run has.
    pub const fn of(start_s: f64, round_s: f64, lengths: f64) -> Self {
        Self { start_s, round_s, lengths, is_once: false }
    }

    /// A part of one round.
    pub const fn once(round_s: f64) -> Self {
        Self { start_s: 0.0, round_s, lengths: 0.0, is_once: true }
    }

    fn rounds(self, asked: u32) -> u32 {
        if self.is_once { 1 } else { asked }
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

/// Rounds and seconds as the user gave them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// `--rounds`.
    pub rounds: Option<u32>,
    /// `--seconds`.
    pub seconds: Option<f64>,
}

impl Asked {
    /// Rounds that figures are judged by: those of the user, or those of a machine that is fast enough.
    pub fn rounds_wanted(self) -> u32 {
        self.rounds.unwrap_or(PLANS[0].rounds)
    }

    /// The best plan that fits into `time_s`, or the smallest. What the user gave is kept.
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

/// The time of a run, shared out among its parts. Moments are seconds since the run began.
#[derive(Debug)]
pub struct Budget {
    /// When the last part should have ended.
    end_s: f64,
    slowness: f64,
    seconds: f64,
    rounds_wanted: u32,
    /// The user asked for this number of rounds: none is left out.
    is_fixed: bool,
    /// The present part and the later ones.
    parts: VecDeque<Cost>,
    /// The present round, counted from 1; 0 before the first.
    round: u32,
    round_began_s: f64,
    part_began_s: f64,
    /// Seconds that the parts so far have taken, and that they were estimated to take.
    took_s: f64,
    estimated_s: f64,
}

impl Budget {
    /// For `parts`, which are to end by `end_s`.
    pub fn new(parts: Vec<Cost>, asked: Asked, seconds: f64, slowness: f64, now_s: f64, end_s: f64) -> Self {
        Self {
            end_s,
            slowness,
            seconds,
            rounds_wanted: asked.rounds_wanted(),
            is_fixed: asked.rounds.is_some(),
            parts: parts.into(),
            round: 0,
            round_began_s: now_s,
            part_began_s: now_s,
            took_s: 0.0,
            estimated_s: 0.0,
        }
    }

    /// The next round of the present part, counted from 1. `None` ends the part. Each part has a first round, whatever
    /// the time.
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

    /// Whether every later part could have as many rounds if the present one had another.
    fn has_room(&self, now_s: f64) -> bool {
        let round_s = now_s - self.round_began_s;
        let plan = Plan { rounds: self.round + 1, seconds: self.seconds };
        let later_s: f64 = self.parts.iter().skip(1).map(|part| part.seconds(plan, self.slowness)).sum();
        now_s + round_s + later_s * self.correction() <= self.end_s
    }

    /// How much longer the parts so far have taken than estimated.
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

    /// A part whose rounds are measurements only, four of them.
    const PART: Cost = Cost::of(0.0, 0.0, 4.0);

    fn all_parts() -> Vec<Cost> {
        GROUPS.iter().flat_map(|group| group.parts).copied().collect()
    }

    fn plan(slowness: f64) -> Plan {
        Asked::default().plan(&all_parts(), TIME_PLANNED.as_secs_f64(), slowness)
    }

    fn budget(parts: &[Cost], asked: Asked, end_s: f64) -> Budget {
        Budget::new(parts.to_vec(), asked, 1.0, 1.0, 0.0, end_s)
    }

    /// Plays a whole run on a clock of its own, each piece of work taking `error` times the estimate. Returns when the run
    /// ends, and the rounds of each part.
    fn play(slowness: f64, error: f64) -> (f64, Vec<u32>) {
        let Plan { seconds, .. } = plan(slowness);
        let end_s = TIME_PLANNED.as_secs_f64();
        let mut budget = Budget::new(all_parts(), Asked::default(), seconds, slowness, 0.0, end_s);
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
    fn the_reference_machine_has_three_rounds_of_three_seconds() {
        assert_eq!(plan(1.0), Plan { rounds: 3, seconds: 3.0 });
        assert!(plan(0.5) == plan(1.0), "a fast machine measures no more");
    }

    #[test]
    fn a_slower_machine_has_shorter_measurements_first_and_fewer_rounds_then() {
        let plans: Vec<_> = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0].map(plan).into();
        let size = |plan: &Plan| f64::from(plan.rounds) * plan.seconds;
        assert!(plans.is_sorted_by(|a, b| size(a) >= size(b)), "{plans:?}");
        assert_eq!(plan(100.0), Plan { rounds: 1, seconds: 1.0 });
    }

    #[test]
    fn a_run_ends_in_time_on_machines_of_down_to_half_the_speed_also_where_estimates_are_short() {
        for slowness in [0.5, 1.0, 1.3, 1.6, 2.0, 2.2] {
            for error in [0.7, 1.0, 1.2] {
                let (end_s, rounds) = play(slowness, error);
                assert!(end_s < TIME_MAX.as_secs_f64(), "{slowness} × {error}: {end_s} s, {rounds:?}");
            }
        }
    }

    #[test]
    fn what_the_user_gave_is_kept() {
        let asked = Asked { rounds: Some(5), seconds: None };
        assert_eq!(asked.plan(&[PART], 10.0, 1.0), Plan { rounds: 5, seconds: 1.0 });
        let asked = Asked { rounds: None, seconds: Some(4.0) };
        assert_eq!(asked.plan(&[PART], 40.0, 1.0), Plan { rounds: 2, seconds: 4.0 });

        let mut budget = budget(&[PART], Asked { rounds: Some(2), seconds: None }, 1.0);
        let rounds: Vec<_> = (0..3).map(|at| budget.next_round(f64::from(at) * 100.0)).collect();
        assert_eq!(rounds, [Some(1), Some(2), None], "all rounds that the user asked for, whatever the time");
    }

    #[test]
    fn a_round_begins_only_if_every_later_part_could_have_as_many() {
        let begin = |end_s: f64| {
            let mut budget = budget(&[PART, PART], Asked::default(), end_s);
            assert_eq!(budget.next_round(0.0), Some(1));
            budget.next_round(4.0)
        };
        // The first round, the second, and two of the other part: 4 + 4 + 8 s.
        assert_eq!(begin(16.0), Some(2));
        assert_eq!(begin(15.9), None);
    }

    #[test]
    fn every_part_has_a_first_round_even_when_the_time_is_over() {
        let mut budget = budget(&[PART, PART], Asked::default(), 1.0);
        let rounds: Vec<_> = (0..4).map(|_| budget.next_round(100.0)).collect();
        assert_eq!(rounds, [Some(1), None, Some(1), None]);
    }

    #[test]
    fn a_part_that_took_twice_its_estimate_doubles_the_estimates_of_later_ones() {
        let begin = |part_s: f64| {
            let mut budget = budget(&[Cost::once(4.0), PART, PART], Asked::default(), 28.0);
            assert_eq!(budget.next_round(0.0), Some(1));
            assert_eq!(budget.next_round(part_s), None);
            assert_eq!(budget.next_round(part_s), Some(1));
            budget.next_round(part_s + 4.0)
        };
        // Left after the first part, the first round and the second: 16 s, or 12 s for twice 8 s.
        assert_eq!(begin(4.0), Some(2));
        assert_eq!(begin(8.0), None);
    }

    #[test]
    fn time_that_early_parts_leave_gives_later_ones_more_rounds() {
        let mut budget = budget(&[PART, PART], Asked::default(), 19.0);
        assert_eq!([0.0, 4.0, 8.0].map(|now_s| budget.next_round(now_s)), [Some(1), Some(2), None]);
        assert_eq!(
            [8.0, 11.0, 14.0, 17.0].map(|now_s| budget.next_round(now_s)),
            [Some(1), Some(2), Some(3), None]
        );
    }

    #[test]
    fn a_part_of_one_round_has_one_also_when_more_are_asked_for() {
        let mut budget = budget(&[Cost::once(1.0)], Asked { rounds: Some(5), seconds: None }, 100.0);
        assert_eq!([0.0, 1.0].map(|now_s| budget.next_round(now_s)), [Some(1), None]);
    }
}
