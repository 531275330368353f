//! claimgate from outside, against real processes: one binary, so that it is linked once.

// Test code throughout, also in functions that are not tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

#[path = "suite/admin.rs"]
mod admin;
#[path = "suite/bad_calls.rs"]
mod bad_calls;
#[path = "suite/bad_campaigns.rs"]
mod bad_campaigns;
#[path = "suite/bad_input.rs"]
mod bad_input;
#[path = "suite/claim_flow.rs"]
mod claim_flow;
#[path = "suite/command_line.rs"]
mod command_line;
#[path = "suite/contention.rs"]
mod contention;
#[path = "suite/crash.rs"]
mod crash;
#[path = "suite/days.rs"]
mod days;
#[path = "suite/edge.rs"]
mod edge;
#[path = "suite/edge_input.rs"]
mod edge_input;
#[path = "suite/fairness.rs"]
mod fairness;
#[path = "suite/figures.rs"]
mod figures;
#[path = "suite/page.rs"]
mod page;
#[path = "suite/problems.rs"]
mod problems;
#[path = "suite/sold_out.rs"]
mod sold_out;
#[path = "suite/watching.rs"]
mod watching;
