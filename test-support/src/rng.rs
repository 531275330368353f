//! Random numbers from a printed seed, so that `SEED=` repeats a failure.

use std::time::{SystemTime, UNIX_EPOCH};

/// A small generator (splitmix64): the same seed always gives the same numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from a seed.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// Uses `SEED` or the clock as the seed, and prints it with the name of `test`.
    pub fn seeded(test: &str) -> Self {
        let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let seed = given.unwrap_or_else(|| u64::try_from(clock & u128::from(u64::MAX)).unwrap_or(1));
        eprintln!("{test}: SEED={seed}");
        Self(seed)
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `from..=upto`.
    pub fn within(&mut self, from: u64, upto: u64) -> u64 {
        from + self.next_number() % (upto - from + 1)
    }
}
