//! Moves campaigns into and out of Redis: loads, imports, evictions, comparison and repair.

mod eviction;
pub mod foreign;
pub mod import;
pub mod reconcile;
pub mod recovery;
pub mod serving;
mod sql_loss;
mod user_ids;
