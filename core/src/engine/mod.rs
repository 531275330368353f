//! All operations that need both stores: deciding and reading claims, creating and changing campaigns, and
//! keeping Redis and SQL in sync. The engine does not depend on HTTP and starts no periodic work; `jobs` does
//! that.

mod builder;
pub mod campaign;
pub mod campaign_changes;
pub mod campaigns;
pub mod claim;
pub mod demand;
pub mod error;
pub mod feed;
pub mod health;
pub mod lifecycle;
pub mod live;
pub mod measures;
pub mod replication;
pub mod stores;
pub mod user_ids;
pub mod webhooks;

pub use self::builder::{Builder, Engine};
pub use self::error::EngineError;
