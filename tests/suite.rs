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
#[path = "suite/data_dir.rs"]
mod data_dir;
#[path = "suite/days.rs"]
mod days;
#[path = "suite/doctor.rs"]
mod doctor;
#[path = "suite/fairness.rs"]
mod fairness;
#[path = "suite/figures.rs"]
mod figures;
#[path = "suite/problems.rs"]
mod problems;
#[path = "suite/runtimes.rs"]
mod runtimes;
#[path = "suite/sold_out.rs"]
mod sold_out;
#[path = "suite/watching.rs"]
mod watching;

// The edge's tests, against both of its runtimes.
#[path = "suite"]
mod wrangler {
    const RUNTIME: support::edge::Runtime = support::edge::Runtime::Wrangler;

    mod edge;
    mod edge_core;
    mod edge_crowd;
    mod edge_future;
    mod edge_input;
    mod edge_keys;
    mod page;
}
#[path = "suite"]
#[allow(clippy::duplicate_mod)]
mod workerd {
    const RUNTIME: support::edge::Runtime = support::edge::Runtime::Workerd;

    mod edge;
    mod edge_core;
    mod edge_crowd;
    mod edge_future;
    mod edge_input;
    mod edge_keys;
    mod page;
}
