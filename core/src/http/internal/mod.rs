//! `/internal/v1`: for the edge, which signs its requests, and for back ends with API tokens.

pub mod campaigns;
pub mod claim_batches;
pub mod claims;
pub mod refusals;
pub mod users;
