//! `/admin/v1`: for admins, on a separate listener.

pub mod additions;
pub mod audit;
pub mod campaigns;
pub mod claims;
pub mod codes;
pub mod feed;
pub mod imports;
pub mod live;
pub mod reconciliation;
pub mod replication;
pub mod report;
pub mod user_ids;
pub mod webhooks;
