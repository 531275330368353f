//! The servers behind the URL and the connections to them.

pub(super) mod cluster;
pub mod connections;
mod failover;
pub mod primary;
pub mod sentinel;
pub(super) mod server;
pub mod slot;
