//! Core's own clock. It judges no window and no day (Redis' clock does); it dates signatures and computes UTC offsets.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use claimgate_shared::Timestamp;

/// The wall clock, held within what a [`Timestamp`] can be.
pub fn now() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
    Timestamp::default().saturating_add_ms(ms)
}

/// Further than this a clock does not wander by itself between two looks: it was set.
const STEP_MS: i64 = 60_000;

/// Watches core's clock and Redis' for steps, against time that only goes forward: what a clock says for good, such as that
/// a campaign is long over, is believed once it has been steady for a while.
#[derive(Debug)]
pub struct Clocks {
    began: Instant,
    watch: Mutex<Watch>,
}

#[derive(Debug, Default)]
struct Watch {
    /// How far core's clock and Redis' were ahead of time since `began` at the last look, in milliseconds.
    ahead_ms: Option<[i64; 2]>,
    steady_since: Option<Instant>,
}

impl Default for Clocks {
    fn default() -> Self {
        Self { began: Instant::now(), watch: Mutex::default() }
    }
}

impl Clocks {
    /// For how long neither clock is known to have stepped by more than a minute; from the first look on.
    pub fn steady_for(&self, core: Timestamp, redis: Timestamp) -> Duration {
        let at = Instant::now();
        let elapsed_ms = i64::try_from(at.duration_since(self.began).as_millis()).unwrap_or(i64::MAX);
        let ahead_ms = [core.as_ms() - elapsed_ms, redis.as_ms() - elapsed_ms];
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let last_ms = watch.ahead_ms.replace(ahead_ms);
        let stepped = last_ms
            .is_some_and(|last| last.iter().zip(ahead_ms).any(|(last, now)| (now - last).abs() > STEP_MS));
        if stepped {
            tracing::warn!("a clock was set: no campaign is evicted for a while");
            watch.steady_since = None;
        }
        at.duration_since(*watch.steady_since.get_or_insert(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_is_not_steady_until_time_has_passed() {
        let clocks = Clocks::default();
        let at = |ms: i64| Timestamp::default().saturating_add_ms(10_000_000_000 + ms);
        clocks.steady_for(at(0), at(0));
        std::thread::sleep(Duration::from_millis(5));
        let before = clocks.steady_for(at(5), at(5));
        assert!(before >= Duration::from_millis(5), "{before:?}");
        for (core, redis) in [(86_400_000, 10), (86_400_000, -86_400_000), (10, 10)] {
            assert_eq!(clocks.steady_for(at(core), at(redis)), Duration::ZERO, "{core} {redis}");
            assert!(clocks.steady_for(at(core), at(redis)) < before, "only what came after the step counts");
        }
    }
}
