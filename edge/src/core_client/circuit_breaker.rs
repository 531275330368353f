//! Stops calls to a core that does not respond: after several consecutive failures the circuit opens, and
//! single probes check from time to time whether core is back. Neither core nor browsers wait for doomed
//! calls.
//!
//! The circuit breaker of Nygard's "Release It!". Nothing here does I/O, reads a clock or generates random numbers.

use claimgate_shared::Timestamp;

use crate::clock::age_ms;

/// The circuit opens after this many consecutive failed calls.
const FAILURES_MAX: u32 = 5;
/// The first pause. Each failed probe doubles the next pause.
const PAUSE_MS_MIN: i64 = 500;
/// The longest pause. It is short because claims wait for it after core is back.
const PAUSE_MS_MAX: i64 = 2_000;
/// If no call was made for this long after a pause, the earlier failures are out of date. The circuit closes,
/// so that several calls that arrive together are all allowed, not only one probe.
const STALE_MS: i64 = 5_000;
/// A probe that was aborted never reports its result, so a new probe is allowed after this time.
const PROBE_MS_MAX: i64 = 2_500;

/// The state of a circuit: whether core may be called.
#[derive(Debug, PartialEq, Eq)]
pub enum CircuitBreaker {
    /// All calls are allowed.
    Closed {
        /// Consecutive failed calls.
        failures: u32,
    },
    /// No call is allowed until the pause is over.
    Open {
        /// When the pause began.
        opened_at: Timestamp,
        /// The pause before jitter, in milliseconds.
        pause_ms: i64,
        /// The pause with jitter, in milliseconds.
        jittered_ms: i64,
    },
    /// One probe is in flight, and no other call is allowed.
    HalfOpen {
        /// When the probe began.
        probe_began_at: Timestamp,
        /// The pause before the probe, without jitter, in milliseconds.
        pause_ms: i64,
    },
}

/// Kinds of calls, by what core needs to answer them. They fail independently: while SQL is unavailable,
/// Redis still decides claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// Claims on live campaigns: only Redis is needed.
    Claims,
    /// Views of live campaigns: Redis, and SQL if the rules have changed.
    Views,
    /// Reads of claims: mostly SQL.
    Lookups,
    /// Claims and views that core may have to read from SQL: of campaigns that are not cached yet, or over.
    /// And reports of refused claims, which core writes to SQL.
    MayNeedSql,
}

/// A circuit breaker for each kind of call.
#[derive(Debug, Default)]
pub struct CircuitBreakers {
    claims: CircuitBreaker,
    views: CircuitBreaker,
    lookups: CircuitBreaker,
    may_need_sql: CircuitBreaker,
}

impl CircuitBreakers {
    /// Returns the circuit breaker for calls of `kind`.
    pub fn of(&mut self, kind: CallKind) -> &mut CircuitBreaker {
        match kind {
            CallKind::Claims => &mut self.claims,
            CallKind::Views => &mut self.views,
            CallKind::Lookups => &mut self.lookups,
            CallKind::MayNeedSql => &mut self.may_need_sql,
        }
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

impl CircuitBreaker {
    /// Returns whether a call is allowed at `now`. The first one after a pause is the probe, so an allowed
    /// caller must make the call and report it with [`record_success`](Self::record_success) or
    /// [`record_failure`](Self::record_failure).
    pub fn allows(&mut self, now: Timestamp) -> bool {
        let (elapsed_ms, wait_ms, pause_ms) = match *self {
            Self::Closed { .. } => return true,
            Self::Open { opened_at, jittered_ms, .. } if age_ms(opened_at, now) >= jittered_ms + STALE_MS => {
                *self = Self::default();
                return true;
            }
            Self::Open { opened_at, pause_ms, jittered_ms } => {
                (age_ms(opened_at, now), jittered_ms, pause_ms)
            }
            Self::HalfOpen { probe_began_at, pause_ms } => {
                (age_ms(probe_began_at, now), PROBE_MS_MAX, pause_ms)
            }
        };
        let is_probe = elapsed_ms >= wait_ms;
        if is_probe {
            *self = Self::HalfOpen { probe_began_at: now, pause_ms };
        }
        is_probe
    }

    /// Starts a probe at `now` even if the pause is not over. The caller must report the result as for any
    /// call.
    pub fn probe(&mut self, now: Timestamp) {
        if let Self::Open { pause_ms, .. } = *self {
            *self = Self::HalfOpen { probe_began_at: now, pause_ms };
        }
    }

    /// Returns whether a probe is in flight.
    pub fn is_probing(&self) -> bool {
        matches!(self, Self::HalfOpen { .. })
    }

    /// Records that core responded, even with a problem, and closes the circuit.
    pub fn record_success(&mut self) {
        *self = Self::default();
    }

    /// Records that a call that began at `began_at` failed at `now`. `jitter`, from 0 to 1, shortens the
    /// pause by up to half, so that isolates do not all probe at the same moment.
    pub fn record_failure(&mut self, began_at: Timestamp, now: Timestamp, jitter: f64) {
        let pause_ms = match self {
            Self::Closed { failures } if *failures + 1 < FAILURES_MAX => {
                *failures += 1;
                return;
            }
            Self::Closed { .. } => PAUSE_MS_MIN,
            // The call began before the pause, or before the probe: ignore it.
            Self::Open { .. } => return,
            Self::HalfOpen { probe_began_at, .. } if began_at < *probe_began_at => return,
            Self::HalfOpen { pause_ms, .. } => (*pause_ms * 2).min(PAUSE_MS_MAX),
        };
        *self = Self::Open { opened_at: now, pause_ms, jittered_ms: jittered(pause_ms, jitter) };
    }
}

/// Returns `ms` scaled to between half (`jitter` 0) and all of it (`jitter` 1).
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // two seconds at most
fn jittered(ms: i64, jitter: f64) -> i64 {
    (ms as f64 * (0.5 + jitter.clamp(0.0, 1.0) / 2.0)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(100_000 + ms).unwrap()
    }

    fn opened() -> CircuitBreaker {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..FAILURES_MAX {
            assert!(breaker.allows(at(0)));
            breaker.record_failure(at(0), at(0), 1.0);
        }
        breaker
    }

    #[test]
    fn only_consecutive_failures_open_the_circuit() {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..100 {
            for _ in 1..FAILURES_MAX {
                breaker.record_failure(at(0), at(0), 1.0);
            }
            assert!(breaker.allows(at(0)));
            breaker.record_success();
        }
        assert!(!opened().allows(at(499)));
    }

    #[test]
    fn a_pause_ends_with_one_probe() {
        let mut breaker = opened();
        assert!(breaker.allows(at(500)));
        assert!(!breaker.allows(at(500)));
        breaker.record_success();
        assert!(breaker.allows(at(501)) && breaker.allows(at(501)));
    }

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut breaker = opened();
        let mut now_ms = 0;
        for pause_ms in [500, 1_000, 2_000, 2_000] {
            assert!(!breaker.allows(at(now_ms + pause_ms - 1)), "{pause_ms}");
            now_ms += pause_ms;
            assert!(breaker.allows(at(now_ms)), "{pause_ms}");
            breaker.record_failure(at(now_ms), at(now_ms), 1.0);
        }
    }

    #[test]
    fn calls_begun_before_the_pause_do_not_extend_it() {
        let mut breaker = opened();
        for _ in 0..50 {
            breaker.record_failure(at(400), at(400), 1.0);
        }
        assert!(breaker.allows(at(500)));
        breaker.record_failure(at(499), at(600), 1.0);
        assert!(!breaker.allows(at(601)), "the probe is still in flight");
        breaker.record_success();
        assert!(breaker.allows(at(602)));
    }

    #[test]
    fn failures_are_forgotten_if_no_call_follows_the_pause() {
        let mut breaker = opened();
        assert!(breaker.allows(at(5_499)) && !breaker.allows(at(5_499)), "one probe");
        let mut breaker = opened();
        assert!(breaker.allows(at(5_500)) && breaker.allows(at(5_500)));
        breaker.record_failure(at(5_500), at(5_500), 1.0);
        assert!(breaker.allows(at(5_501)), "failures are counted from zero again");
    }

    #[test]
    fn a_lost_probe_is_replaced_by_a_new_probe() {
        let mut breaker = opened();
        assert!(breaker.allows(at(500)));
        assert!(!breaker.allows(at(2_999)));
        assert!(breaker.allows(at(3_000)));
    }

    #[test]
    fn failures_of_one_kind_do_not_open_other_circuits() {
        const KINDS: [CallKind; 4] =
            [CallKind::Claims, CallKind::Views, CallKind::Lookups, CallKind::MayNeedSql];
        for failing in KINDS {
            let mut breakers = CircuitBreakers::default();
            for _ in 0..FAILURES_MAX {
                breakers.of(failing).record_failure(at(0), at(0), 1.0);
            }
            for kind in KINDS {
                assert_eq!(breakers.of(kind).allows(at(1)), kind != failing, "{failing:?} {kind:?}");
            }
        }
    }

    #[test]
    fn jitter_spreads_the_probes() {
        for (jitter, jittered_ms) in [(0.0, 250), (0.5, 375), (1.0, 500)] {
            assert_eq!(jittered(500, jitter), jittered_ms);
        }
    }

    #[test]
    fn a_backward_clock_step_ends_the_pause() {
        assert!(opened().allows(at(-50_000)));
    }
}
