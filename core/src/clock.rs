//! Core's own clock, which is used for signatures and UTC offsets. Windows and days are judged by Redis'
//! clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use claimgate_shared::Timestamp;
use parking_lot::Mutex;

/// Returns the wall clock, clamped to the range of a [`Timestamp`].
pub fn now() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
    Timestamp::default().saturating_add_ms(ms)
}

/// Largest plausible drift of a clock between two checks; a clock that moved by more was set.
const STEP_MS: i64 = 60_000;

/// Watches core's and Redis' clocks for steps, measured against a monotonic clock. Decisions that trust a
/// clock, such as evicting a campaign that ended long ago, wait until both have been steady for a while.
#[derive(Debug)]
pub struct Clocks {
    began: Instant,
    watch: Mutex<Watch>,
}

#[derive(Debug, Default)]
struct Watch {
    /// The lead of core's and Redis' clocks over the time since `began`, at the last check, in milliseconds.
    ahead_ms: Option<[i64; 2]>,
    steady_since: Option<Instant>,
}

impl Default for Clocks {
    fn default() -> Self {
        Self { began: Instant::now(), watch: Mutex::default() }
    }
}

impl Clocks {
    /// Returns the time for which neither clock has stepped by more than a minute, counted from the first
    /// check.
    pub fn steady_for(&self, core: Timestamp, redis: Timestamp) -> Duration {
        let at = Instant::now();
        let elapsed_ms = i64::try_from(at.duration_since(self.began).as_millis()).unwrap_or(i64::MAX);
        let ahead_ms = [core.as_ms() - elapsed_ms, redis.as_ms() - elapsed_ms];
        let mut watch = self.watch.lock();
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
    fn a_clock_step_restarts_the_steady_period() {
        let clocks = Clocks::default();
        let at = |ms: i64| Timestamp::default().saturating_add_ms(10_000_000_000 + ms);
        clocks.steady_for(at(0), at(0));
        std::thread::sleep(Duration::from_millis(5));
        let before = clocks.steady_for(at(5), at(5));
        assert!(before >= Duration::from_millis(5), "{before:?}");
        for (core, redis) in [(86_400_000, 10), (86_400_000, -86_400_000), (10, 10)] {
            assert_eq!(clocks.steady_for(at(core), at(redis)), Duration::ZERO, "{core} {redis}");
            assert!(clocks.steady_for(at(core), at(redis)) < before, "only time after the step counts");
        }
    }
}
