//! Two engines in one process, on one real Redis and one real database: every placement of a pre-emption, a crash or a
//! lost reply among the steps of two protocols, and after each schedule the question whether every promise was kept.
//!
//! A schedule that fails prints itself as a list of steps and as one line that is played again by
//! `INTERLEAVING="..." cargo test -p claimgate-tests --test interleavings replay -- --nocapture`.

// Test code throughout, also in functions that are not tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs)] // a binary of tests: its documentation is read beside the code only

mod explore;
mod initial_state;
mod judge;
mod matrix;
mod node;
mod play;
mod protocol;
mod registry;
mod regressions;
mod schedule;
mod told;
mod track;
mod world;
