//! claimgate from outside, against real processes: one binary, so that it is linked once.

// Test code throughout, also in functions that are not tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod add;
mod admin;
mod alarms;
mod audit;
mod bad_calls;
mod bad_campaigns;
mod bad_input;
mod capacity;
mod changes;
mod claim_audit;
mod claim_batches;
mod claim_flow;
mod claim_lists;
mod client;
mod command_line;
mod contention;
mod crash;
mod data_dir;
mod days;
mod doctor;
mod drill;
mod edge;
mod edge_core;
mod edge_cores;
mod edge_crowd;
mod edge_drill;
mod edge_future;
mod edge_input;
mod edge_keys;
mod fairness;
mod fast_path;
mod figures;
mod imports;
mod on_postgres;
mod page;
mod problems;
mod roles;
mod runtimes;
mod rust_client;
mod sold_out;
mod threads;
mod topologies;
mod traces;
mod up_cluster;
mod urls_in_files;
mod user_claims;
mod watching;
mod webhook_receivers;
mod webhooks;
