//! Which of several cores is called: each in turn, past those whose circuit is open.
//!
//! Nothing here does I/O, reads a clock or draws random numbers.

use claimgate_shared::Timestamp;

use super::circuit_breaker::{CallKind, CircuitBreaker, CircuitBreakers};

/// The cores, by their places in the configuration's list, and whose turn it is.
#[derive(Debug)]
pub struct Rotation {
    cores: Vec<CircuitBreakers>,
    next: usize,
}

impl Rotation {
    /// Of `count` cores, at least one, the turn of the one at `first`.
    pub fn new(count: usize, first: usize) -> Self {
        Self { cores: (0..count).map(|_| CircuitBreakers::default()).collect(), next: first }
    }

    /// The core to call at `now`: the one whose turn it is, else the next whose circuit is closed; `None` when all are open.
    /// After `failed` another one, also one whose circuit is open where all others' are: of two cores that are restarted in
    /// turn the first may be back before it is probed. The caller has to call it, and to report to its circuit breaker.
    pub fn choose(&mut self, kind: CallKind, failed: Option<usize>, now: Timestamp) -> Option<usize> {
        let count = self.cores.len();
        let Some(failed) = failed.filter(|_| count > 1) else {
            let mut in_turn = (0..count).map(|step| (self.next + step) % count);
            let chosen = in_turn.find(|core| self.cores[*core].of(kind).allows(now))?;
            self.next = chosen + 1;
            return Some(chosen);
        };
        let mut others = (1..count).map(|step| (failed + step) % count);
        let chosen = others.clone().find(|core| self.cores[*core].of(kind).allows(now));
        chosen.or_else(|| others.next())
    }

    /// The circuit breaker of `core` for calls of `kind`.
    pub fn circuit_breaker(&mut self, core: usize, kind: CallKind) -> &mut CircuitBreaker {
        self.cores[core].of(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: CallKind = CallKind::Claims;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms).unwrap()
    }

    fn chosen(rotation: &mut Rotation, calls: usize) -> Vec<Option<usize>> {
        (0..calls).map(|_| rotation.choose(KIND, None, at(0))).collect()
    }

    /// Fails until its circuit opens.
    fn kill(rotation: &mut Rotation, core: usize) {
        let circuit = rotation.circuit_breaker(core, KIND);
        while circuit.allows(at(0)) {
            circuit.record_failure(at(0), at(0), 1.0);
        }
    }

    #[test]
    fn each_core_is_called_in_turn() {
        let mut rotation = Rotation::new(3, 2);
        assert_eq!(chosen(&mut rotation, 5), [2, 0, 1, 2, 0].map(Some));
        assert_eq!(chosen(&mut Rotation::new(1, 0), 3), [0, 0, 0].map(Some));
    }

    #[test]
    fn those_that_are_left_share_the_calls_of_a_dead_core_evenly() {
        let mut rotation = Rotation::new(3, 0);
        kill(&mut rotation, 0);
        assert_eq!(chosen(&mut rotation, 4), [1, 2, 1, 2].map(Some));
        kill(&mut rotation, 1);
        assert_eq!(chosen(&mut rotation, 2), [2, 2].map(Some));
        kill(&mut rotation, 2);
        assert_eq!(chosen(&mut rotation, 1), [None]);
        assert_eq!(rotation.choose(CallKind::Lookups, None, at(0)), Some(0), "of its own circuits");
    }

    #[test]
    fn a_call_that_failed_is_made_at_another_core_and_takes_no_turn() {
        let mut rotation = Rotation::new(3, 0);
        assert_eq!(rotation.choose(KIND, None, at(0)), Some(0));
        assert_eq!(rotation.choose(KIND, Some(0), at(0)), Some(1));
        assert_eq!(rotation.choose(KIND, Some(2), at(0)), Some(0));
        assert_eq!(rotation.choose(KIND, None, at(0)), Some(1));
        assert_eq!(Rotation::new(1, 0).choose(KIND, Some(0), at(0)), Some(0), "there is no other");
    }

    #[test]
    fn a_call_that_failed_is_made_at_a_core_that_may_be_back_before_it_is_probed() {
        let mut rotation = Rotation::new(3, 0);
        kill(&mut rotation, 0);
        kill(&mut rotation, 2);
        assert_eq!(rotation.choose(KIND, Some(1), at(0)), Some(2));
        assert_eq!(rotation.choose(KIND, Some(2), at(0)), Some(1), "whose circuit is closed");
        rotation.circuit_breaker(2, KIND).record_success();
        kill(&mut rotation, 1);
        assert_eq!(chosen(&mut rotation, 2), [2, 2].map(Some), "it answered, so all calls are made there");
    }

    #[test]
    fn one_call_at_a_time_probes_a_dead_core() {
        let mut rotation = Rotation::new(2, 0);
        kill(&mut rotation, 0);
        let later = at(500);
        let calls: Vec<_> = (0..4).filter_map(|_| rotation.choose(KIND, None, later)).collect();
        assert_eq!(calls, [0, 1, 1, 1]);
    }
}
