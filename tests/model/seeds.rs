//! Seeds that have failed, each with the defect that caused the failure. A seed depends on the choice of
//! operations, so after a change of `operations.rs` a new one must be found, with the mutant that restores
//! the defect.

/// Seed, number of operations, and the defect.
pub const SEEDS: [(u64, u64, &str); 3] =
    // Found by the mutant denial_changes_the_day.
    [
        (15, 600, "a denial changed the user's day when a hold of the same user expired in the same call"),
        (
            1_795_336_412_665,
            300,
            "a sweep that failed without memory kept its lease, and the next one expired nothing",
        ),
        (
            1_795_419_121_109,
            700,
            "the model treated concurrent claims as one call: the first is sent by itself, and its call expires due holds separately",
        ),
    ];
