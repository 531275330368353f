//! The isolate's cache of campaigns: a snapshot of each, used for at most 2 s, in bounded memory.
//!
//! The runtime does not let a request await I/O that a different request started. Therefore, a request that
//! finds a snapshot due for refresh starts the refresh in the background, and every request uses the current
//! snapshot.
//!
//! `snapshot` is a campaign at one point in time, `store` holds the snapshots, `refresh` fetches them from
//! core.

pub mod refresh;
pub mod snapshot;
pub mod store;
