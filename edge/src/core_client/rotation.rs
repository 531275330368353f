//! Round-robin selection of cores, skipping cores whose circuit is open.
//!
//! Nothing here does I/O, reads a clock or generates random numbers.

use claimgate_shared::Timestamp;

use super::circuit_breaker::{CallKind, CircuitBreaker, CircuitBreakers};

/// The circuit breakers of the cores, in the order of the configuration, and the next core to call.
#[derive(Debug)]
pub struct Rotation {
    cores: Vec<CircuitBreakers>,
    next: usize,
}

impl Rotation {
    /// Creates a rotation over `count` cores, at least one, starting at index `first`.
    pub fn new(count: usize, first: usize) -> Self {
        Self { cores: (0..count).map(|_| CircuitBreakers::default()).collect(), next: first }
    }

    /// Picks the next core in rotation whose breaker allows a call at `now`. If no breaker does and there are
    /// several cores, picks a core that is being probed. Otherwise returns `None`.
    ///
    /// After a failed call to `failed`, picks a different core. If all other breakers are open, probes a
    /// core: when two cores are restarted one after the other, the first may be back before its pause is
    /// over.
    ///
    /// The caller must call the core and report to its breaker.
    pub fn choose(&mut self, kind: CallKind, failed: Option<usize>, now: Timestamp) -> Option<usize> {
        let count = self.cores.len();
        let Some(failed) = failed.filter(|_| count > 1) else {
            let mut in_turn = (0..count).map(|step| (self.next + step) % count);
            let allowed = in_turn.clone().find(|core| self.cores[*core].of(kind).allows(now));
            let mut probing = || in_turn.find(|core| count > 1 && self.cores[*core].of(kind).is_probing());
            let chosen = allowed.or_else(&mut probing)?;
            self.next = chosen + 1;
            return Some(chosen);
        };
        let mut others = (1..count).map(|step| (failed + step) % count);
        let allowed = others.clone().find(|core| self.cores[*core].of(kind).allows(now));
        allowed.or_else(|| others.next().inspect(|core| self.cores[*core].of(kind).probe(now)))
    }

    /// Returns the circuit breaker of `core` for calls of `kind`.
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

    /// Records failures until the core's circuit opens.
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
    fn the_remaining_cores_share_a_dead_cores_calls_evenly() {
        let mut rotation = Rotation::new(3, 0);
        kill(&mut rotation, 0);
        assert_eq!(chosen(&mut rotation, 4), [1, 2, 1, 2].map(Some));
        kill(&mut rotation, 1);
        assert_eq!(chosen(&mut rotation, 2), [2, 2].map(Some));
        kill(&mut rotation, 2);
        assert_eq!(chosen(&mut rotation, 1), [None]);
        assert_eq!(
            rotation.choose(CallKind::Lookups, None, at(0)),
            Some(0),
            "lookups have their own breakers"
        );
    }

    #[test]
    fn a_retry_uses_a_different_core_and_keeps_the_rotation() {
        let mut rotation = Rotation::new(3, 0);
        assert_eq!(rotation.choose(KIND, None, at(0)), Some(0));
        assert_eq!(rotation.choose(KIND, Some(0), at(0)), Some(1));
        assert_eq!(rotation.choose(KIND, Some(2), at(0)), Some(0));
        assert_eq!(rotation.choose(KIND, None, at(0)), Some(1));
        assert_eq!(Rotation::new(1, 0).choose(KIND, Some(0), at(0)), Some(0), "there is no other core");
    }

    #[test]
    fn a_retry_probes_a_different_core_before_its_pause_is_over() {
        let mut rotation = Rotation::new(3, 0);
        kill(&mut rotation, 0);
        kill(&mut rotation, 2);
        assert_eq!(rotation.choose(KIND, Some(1), at(0)), Some(2));
        assert_eq!(rotation.choose(KIND, Some(2), at(0)), Some(1), "its circuit is closed");
        kill(&mut rotation, 1);
        assert_eq!(chosen(&mut rotation, 2), [2, 2].map(Some), "the other circuits are open");
        rotation.circuit_breaker(2, KIND).record_success();
        assert_eq!(chosen(&mut rotation, 2), [2, 2].map(Some));
        kill(&mut rotation, 2);
        assert_eq!(chosen(&mut rotation, 1), [None]);
    }

    #[test]
    fn only_one_call_at_a_time_probes_a_dead_core() {
        let mut rotation = Rotation::new(2, 0);
        kill(&mut rotation, 0);
        let later = at(500);
        let calls: Vec<_> = (0..4).filter_map(|_| rotation.choose(KIND, None, later)).collect();
        assert_eq!(calls, [0, 1, 1, 1]);
    }
}
