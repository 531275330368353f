//! Core's in-memory state of each campaign, and notices of pending work on campaigns.

pub mod change_log;
pub mod counted_losses;
pub mod handle;
pub mod notices;
pub mod registry;
