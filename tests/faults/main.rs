//! Fault tests against real processes. Each test ends with the same checker (`test-support/src/checker.rs`)
//! and prints what the system survived.

// All of this is test code, including functions that are not tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod alarms;
mod audited_once;
mod backup;
mod cluster;
mod code_storm;
mod codes;
mod collation;
mod conversion;
mod cores;
mod delayed;
mod delivery;
mod evicted;
mod export;
mod extended;
mod failover_behind_proxy;
mod failovers;
mod feed;
mod fixture;
mod flow;
mod held;
mod idle;
mod import;
mod jobs;
mod keys;
mod killed;
mod layout6;
mod load;
mod lock;
mod log_storm;
mod logs;
mod lost_codes;
mod machine;
mod many_codes;
mod migrations;
mod names;
mod old_refusals;
mod outbox;
mod passes;
mod plans;
mod promotion;
mod random_kills;
mod readiness;
mod rebuild;
mod redis;
mod redis_refuses;
mod registers;
mod replicas;
mod replies;
mod rolling;
mod sentinel;
mod simpler_designs;
mod sql;
mod sql_loss;
mod sql_refuses;
mod storm;
mod strace;
mod tally;
mod tls;
mod torn;
mod unreadable;
mod user_claims_in_both_stores;
mod vanished;
