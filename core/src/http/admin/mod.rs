//! `/admin/v1`: for admins, on a listener of its own.

pub mod additions;
pub mod audit;
pub mod campaigns;
pub mod claims;
pub mod feed;
pub mod imports;
pub mod live;
pub mod reconciliation;
pub mod replication;
pub mod webhooks;
