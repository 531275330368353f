//! Seeds that have failed once, each under the name of what was wrong then. A seed is good for one way of choosing
//! operations: after a change of `operations.rs` they must be found again, with the mutant that brings the defect back.

/// Seed, operations, and what was found with them.
pub const SEEDS: [(u64, u64, &str); 3] =
    // The mutant denial_turns_the_day.
    [
        (15, 600, "a refusal turned the user's day, when a hold of the same user came back in the same call"),
        (
            1_795_336_412_665,
            300,
            "a sweep refused for want of memory kept its lease, and the next one gave nothing back",
        ),
        (
            1_795_419_121_109,
            700,
            "the model took claims made together for one call: the first goes alone, and its call has due holds of its own",
        ),
    ];
