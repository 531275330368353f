//! Two engines in one process, on one real Redis and one real database. Every placement of a pre-emption, a
//! crash or a lost reply among the steps of two protocols is explored. After each schedule all guarantees are
//! checked.
//!
//! A failing schedule is printed as a list of steps, and as a line to replay: `INTERLEAVING="..." cargo test
//! -p claimgate-tests --test interleavings replay -- --nocapture`.

// All of this is test code, including functions that are not tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs)] // a test binary has no published documentation

mod answers;
mod explore;
mod feed_cursors;
mod initial_state;
mod judge;
mod late_codes;
mod lost_imports;
mod matrix;
mod node;
mod play;
mod protocol;
mod receiver;
mod registry;
mod regressions;
mod relays_in_turns;
mod schedule;
mod track;
mod user_ids;
mod world;

// The same allocator as in core's binary; the system's allocator took a tenth of the explorer's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
