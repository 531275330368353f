//! The tests' support library: real processes, real calls, and direct access to Redis and SQL.

// `reply.expect(201)` is a complete statement: most tests only check the status.
#![allow(clippy::return_self_not_must_use)]
// This is test code: a failure here is a failed test, reported by a panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::missing_panics_doc
)]

pub mod available;
pub mod binary;
pub mod browser;
pub mod certificates;
pub mod checker;
pub mod client;
pub mod clock;
pub mod clocked;
pub mod cluster;
pub mod core_client;
pub mod core_process;
pub mod edge;
pub mod events;
pub mod examples;
pub mod fault_proxy;
pub mod follower;
pub mod inspect;
pub mod issuer;
pub mod lossy_proxy;
pub mod network;
pub mod pair;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod process_limit;
pub mod promotion;
pub mod pulse;
pub mod raw;
pub mod redis_server;
pub mod rng;
pub mod schemathesis;
pub mod sentinel;
pub mod servers;
pub mod signing;
pub mod small_disk;
pub mod sql;
pub mod stalls;
pub mod stand_in;
pub mod storm;
pub mod stripe;
pub mod time_limits;
pub mod times;
pub mod topology;
pub mod turnstile;
pub mod wait;
pub mod watched;

pub use client::Reply;
pub use core_client::claim_body;
pub use core_process::{Core, CoreOptions};
pub use inspect::{RedisView, Snapshot};
pub use redis_server::RedisServer;
pub use servers::Servers;
pub use sql::{Sql, SqlClaim};
pub use time_limits::{SOON, promised};
pub use wait::{eventually, heavy, undisturbed};
