//! claimgate's core: decides claims in Redis, and hands them through an outbox to SQL.
//!
//! `cli`, `http` and `jobs` call the `engine`, which calls `store::redis` and `store::sql`; both stores speak of what
//! `domain` defines. Nothing calls up: `tests` of this crate read the imports.

pub mod cli;
pub mod clock;
pub mod config;
pub mod credentials;
pub mod data_dir;
pub mod doctor;
pub mod domain;
pub mod engine;
pub mod http;
pub mod jobs;
pub mod metrics;
pub mod redis_address;
mod server;
pub mod step;
pub mod store;
pub mod traces;
pub mod webhook_hosts;
