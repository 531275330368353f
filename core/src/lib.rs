//! claimgate's core: decides claims in Redis and stores them in SQL through an outbox.
//!
//! `cli`, `http` and `jobs` call `engine`, which calls `store::redis` and `store::sql`; both stores use the
//! types of `domain`. No module imports a module above it; the tests in `tests` check this.

pub mod cli;
pub mod clock;
pub mod config;
mod connect;
pub mod credentials;
pub mod data_dir;
pub mod doctor;
pub mod domain;
pub mod engine;
pub mod group_limits;
pub mod http;
pub mod jobs;
pub mod log;
pub mod metrics;
pub mod nearest;
pub mod redis_address;
pub mod report_page;
pub mod runtime;
mod server;
mod signals;
pub mod step;
pub mod store;
pub mod traces;
pub mod webhook_hosts;
