//! What this isolate keeps of campaigns between requests: a snapshot of each, for at most 2 s, in bounded space.
//!
//! No request may wait for a call that another request has made: a runtime cuts such waiting off. So the request that finds
//! a snapshot due has the next one fetched after its own response, and every request uses the snapshot that is there.
//!
//! `snapshot` is one campaign at one moment, `store` holds them, `refresh` fetches them from core.

pub mod refresh;
pub mod snapshot;
pub mod store;
