//! The words of claimgate's contract, as types that cannot hold a wrong value.
//!
//! Edge and core both speak in these. Nothing here does I/O or reads a clock: the time is an argument,
//! so that every rule can be tested at any moment. Builds natively and for `wasm32-unknown-unknown`.

pub mod admin;
pub mod campaign;
pub mod claim;
pub mod claim_request;
pub mod denial;
pub mod http;
pub mod ids;
pub mod jwt;
mod monotonic;
pub mod problem;
pub mod signature;
pub mod time;
pub mod user_claims;
pub mod version;
pub mod window;

pub use campaign::{CampaignState, CampaignView, Limits};
pub use claim::{Claim, ClaimStatus, Quantity};
pub use claim_request::{Attempt, ClaimReply, ClaimRequest, Outcome};
pub use denial::Denial;
pub use ids::{CampaignId, ClaimDigest, ClaimId, IdempotencyKey, UserId};
pub use problem::{Code, Problem};
pub use time::Timestamp;
pub use version::Version;
pub use window::Window;

/// Length-prefixes `field` with 4 bytes, big endian: how every signed or hashed field is fed, so that no two
/// lists of fields share their bytes.
pub(crate) fn feed_field(mut feed: impl FnMut(&[u8]), field: &[u8]) {
    // A field is at most a request's size, far below 4 GiB; one that were not could only fail to verify.
    let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
    feed(&length.to_be_bytes());
    feed(field);
}
