//! Seeds that have failed once, each under the name of what was wrong then.

/// Seed, operations, and what was found with them.
pub const SEEDS: [(u64, u64, &str); 0] = [];
