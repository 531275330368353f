//! Everything that needs both stores: claims decided and looked up, campaigns created and changed, and what keeps Redis and
//! SQL in step. It knows no HTTP and starts no periodic work: that is for `jobs`.

pub mod batcher;
mod builder;
mod busiest;
mod campaign_looks;
mod campaigns;
mod change_log;
mod claims;
pub mod cores;
mod error;
mod evicted_answers;
mod eviction;
mod feed;
mod feed_watch;
pub mod foreign;
mod forgotten;
pub mod handle;
pub mod health;
mod imports;
pub mod live;
pub mod live_snapshot;
mod measures;
pub mod notices;
mod queue_state;
pub mod reconcile;
mod reconnect;
pub mod recovery;
pub mod registry;
pub mod replication;
pub mod serving;
pub mod sold_out_cache;
pub mod sync;
pub mod user_claims;
pub mod webhook_sender;
mod webhooks;

pub use self::builder::{Builder, Engine};
pub use self::campaigns::{AddedUnits, CampaignStatus, Created};
pub use self::error::EngineError;
pub use self::imports::Imported;
