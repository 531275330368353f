//! Spares a dead core, and the browsers that would wait for it: after some calls without an answer none is made but
//! one from time to time, to find out whether core is back.
//!
//! A circuit breaker as in Nygard's "Release It!". Nothing here does I/O, reads a clock or makes randomness.

use claimgate_shared::Timestamp;

use crate::clock::age_ms;

/// So many calls in a row without an answer, and core counts as dead.
const FAILURES_MAX: u32 = 5;
/// The first pause; each probe that brings no answer doubles the next.
const PAUSE_MS_MIN: i64 = 500;
/// Short, since a core that is back is not to wait for its claims.
const PAUSE_MS_MAX: i64 = 2_000;
/// When nobody has asked for so long after a pause, what was before it says nothing any more: of several who ask at once
/// then, all are let through and not one alone.
const LAPSE_MS: i64 = 5_000;
/// A probe that was cut off never says how it went, so after this another one is let through.
const PROBE_MS_MAX: i64 = 2_500;

/// Whether core may be called.
#[derive(Debug, PartialEq, Eq)]
pub enum Breaker {
    /// Every call may be made.
    Closed {
        /// Calls in a row that brought no answer.
        failures: u32,
    },
    /// None may.
    Open {
        /// When the pause began.
        since: Timestamp,
        /// The pause before jitter.
        pause_ms: i64,
        /// The pause.
        jittered_ms: i64,
    },
    /// None may but the one under way.
    Probing {
        /// When that one began.
        since: Timestamp,
        /// The pause before it, without jitter.
        pause_ms: i64,
    },
}

/// What core needs to answer a call. What keeps it from answering one kind says nothing of the others: while SQL does not
/// answer, Redis goes on deciding claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Claims on live campaigns: Redis alone decides them.
    Claims,
    /// Views of live campaigns: of changed rules SQL may be asked, too.
    Views,
    /// Claims that are looked up: SQL is always asked.
    LookUps,
    /// Claims on and views of campaigns that core may have to look for in SQL: not heard of yet, or over.
    Unsure,
}

/// A breaker for each kind of call.
#[derive(Debug, Default)]
pub struct Breakers {
    claims: Breaker,
    views: Breaker,
    look_ups: Breaker,
    unsure: Breaker,
}

impl Breakers {
    /// The breaker of `kind`.
    pub fn of(&mut self, kind: Kind) -> &mut Breaker {
        match kind {
            Kind::Claims => &mut self.claims,
            Kind::Views => &mut self.views,
            Kind::LookUps => &mut self.look_ups,
            Kind::Unsure => &mut self.unsure,
        }
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

impl Breaker {
    /// Whether a call may be made at `now`; the first one after a pause is the probe.
    pub fn lets_through(&mut self, now: Timestamp) -> bool {
        let (waited_ms, wait_ms, pause_ms) = match *self {
            Self::Closed { .. } => return true,
            Self::Open { since, jittered_ms, .. } if age_ms(since, now) >= jittered_ms + LAPSE_MS => {
                *self = Self::default();
                return true;
            }
            Self::Open { since, pause_ms, jittered_ms } => (age_ms(since, now), jittered_ms, pause_ms),
            Self::Probing { since, pause_ms } => (age_ms(since, now), PROBE_MS_MAX, pause_ms),
        };
        let is_probe = waited_ms >= wait_ms;
        if is_probe {
            *self = Self::Probing { since: now, pause_ms };
        }
        is_probe
    }

    /// Core has answered, whatever it said.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// A call that began at `began_at` ended at `now` without an answer of core. `chance`, from 0 to 1, spreads the probes
    /// of many isolates.
    pub fn failed(&mut self, began_at: Timestamp, now: Timestamp, chance: f64) {
        let pause_ms = match self {
            Self::Closed { failures } if *failures + 1 < FAILURES_MAX => {
                *failures += 1;
                return;
            }
            Self::Closed { .. } => PAUSE_MS_MIN,
            // Made before the pause, or before its probe: it says nothing new.
            Self::Open { .. } => return,
            Self::Probing { since, .. } if began_at < *since => return,
            Self::Probing { pause_ms, .. } => (*pause_ms * 2).min(PAUSE_MS_MAX),
        };
        *self = Self::Open { since: now, pause_ms, jittered_ms: jittered(pause_ms, chance) };
    }
}

/// From half of `ms` to all of it.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // two seconds at most
fn jittered(ms: i64, chance: f64) -> i64 {
    (ms as f64 * (0.5 + chance.clamp(0.0, 1.0) / 2.0)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(100_000 + ms).unwrap()
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            assert!(breaker.lets_through(at(0)));
            breaker.failed(at(0), at(0), 1.0);
        }
        breaker
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_only_then() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            for _ in 1..FAILURES_MAX {
                breaker.failed(at(0), at(0), 1.0);
            }
            assert!(breaker.lets_through(at(0)));
            breaker.succeeded();
        }
        assert!(!opened().lets_through(at(499)));
    }

    #[test]
    fn a_pause_ends_with_one_probe() {
        let mut breaker = opened();
        assert!(breaker.lets_through(at(500)));
        assert!(!breaker.lets_through(at(500)));
        breaker.succeeded();
        assert!(breaker.lets_through(at(501)) && breaker.lets_through(at(501)));
    }

    #[test]
    fn pauses_double_up_to_their_longest() {
        let mut breaker = opened();
        let mut now_ms = 0;
        for pause_ms in [500, 1_000, 2_000, 2_000] {
            assert!(!breaker.lets_through(at(now_ms + pause_ms - 1)), "{pause_ms}");
            now_ms += pause_ms;
            assert!(breaker.lets_through(at(now_ms)), "{pause_ms}");
            breaker.failed(at(now_ms), at(now_ms), 1.0);
        }
    }

    #[test]
    fn calls_from_before_the_pause_do_not_lengthen_it() {
        let mut breaker = opened();
        for _ in 0..50 {
            breaker.failed(at(400), at(400), 1.0);
        }
        assert!(breaker.lets_through(at(500)));
        breaker.failed(at(499), at(600), 1.0);
        assert!(!breaker.lets_through(at(601)), "the probe is still under way");
        breaker.succeeded();
        assert!(breaker.lets_through(at(602)));
    }

    #[test]
    fn a_pause_that_nobody_has_asked_after_is_forgotten() {
        let mut breaker = opened();
        assert!(breaker.lets_through(at(5_499)) && !breaker.lets_through(at(5_499)), "one probe");
        let mut breaker = opened();
        assert!(breaker.lets_through(at(5_500)) && breaker.lets_through(at(5_500)));
        breaker.failed(at(5_500), at(5_500), 1.0);
        assert!(breaker.lets_through(at(5_501)), "all begins anew");
    }

    #[test]
    fn a_probe_that_is_cut_off_does_not_keep_core_dead() {
        let mut breaker = opened();
        assert!(breaker.lets_through(at(500)));
        assert!(!breaker.lets_through(at(2_999)));
        assert!(breaker.lets_through(at(3_000)));
    }

    #[test]
    fn one_kinds_failures_are_not_the_others() {
        const KINDS: [Kind; 4] = [Kind::Claims, Kind::Views, Kind::LookUps, Kind::Unsure];
        for failing in KINDS {
            let mut breakers = Breakers::default();
            for _ in 0..FAILURES_MAX {
                breakers.of(failing).failed(at(0), at(0), 1.0);
            }
            for kind in KINDS {
                assert_eq!(breakers.of(kind).lets_through(at(1)), kind != failing, "{failing:?} {kind:?}");
            }
        }
    }

    #[test]
    fn chance_spreads_the_probes() {
        for (chance, jittered_ms) in [(0.0, 250), (0.5, 375), (1.0, 500)] {
            assert_eq!(jittered(500, chance), jittered_ms);
        }
    }

    #[test]
    fn a_clock_set_back_ends_the_pause() {
        assert!(opened().lets_through(at(-50_000)));
    }
}
