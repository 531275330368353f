//! What this isolate keeps of campaigns between requests: a snapshot of each, for a moment, in bounded space.

pub mod snapshot;
pub mod store;
