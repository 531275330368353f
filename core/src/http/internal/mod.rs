//! `/internal/v1`: for the edge, which signs, and for back ends, which have API tokens.

pub mod campaigns;
pub mod claim_batches;
pub mod claims;
pub mod users;
