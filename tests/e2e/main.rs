//! End-to-end tests of claimgate against real processes. All tests form one binary, so that linking happens
//! only once.

// This is all test code, including the functions that are not tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod add;
mod admin;
mod alarm_rules;
mod architecture;
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
mod command_line;
mod command_retries;
mod contention;
mod crash;
mod cursors;
mod dashboard;
mod data_dir;
mod days;
mod doctor;
mod drill;
mod edge;
mod encodings;
mod every_call;
mod examples;
mod extensions;
mod fairness;
mod fast_path;
mod figures;
mod js_client;
mod newcomer;
mod on_postgres;
mod openapi;
mod packages;
mod page;
mod poolers;
mod problems;
mod repeated_calls;
mod report;
mod request_ids;
mod roles;
mod runtimes;
mod rust_client;
mod secret_codes;
mod slow_connections;
mod sold_out;
mod start;
mod threads;
mod topologies;
mod traces;
mod up;
mod up_cluster;
mod up_drill;
mod urls_in_files;
mod user_claims;
mod user_ids;
mod watching;
mod webhook_receivers;
mod webhooks;
