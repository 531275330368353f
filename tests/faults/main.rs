//! claimgate under every fault of the list, against real processes; each test ends before the one judge
//! (`test-support/src/checker.rs`), and says what it survived.

// Test code throughout, also in functions that are not tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

mod alarms;
mod at_rest;
mod backup;
mod claim_audit;
mod cluster;
mod cores;
mod delayed;
mod delivery;
mod evicted;
mod export;
mod failover;
mod failovers;
mod feed;
mod fixture;
mod flow;
mod forgotten;
mod import;
mod jobs;
mod keys;
mod killed;
mod load;
mod lock;
mod logs;
mod machine;
mod migrations;
mod outbox;
mod plans;
mod promotion;
mod readiness;
mod rebuild;
mod redis;
mod registers;
mod regressions;
mod replicas;
mod replies;
mod rolling;
mod sentinel;
mod sql;
mod storm;
mod strace;
mod tally;
mod tls;
mod torn;
mod unreadable;
mod user_claims;
mod vanished;
