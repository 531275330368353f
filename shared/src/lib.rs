//! The types of claimgate's API contract. Invalid values cannot be constructed.
//!
//! Edge and core both use these types. Nothing here does I/O or reads a clock: the time is an argument, so
//! that tests can choose it. Builds natively and for `wasm32-unknown-unknown`.

pub mod admin;
pub mod altcha;
pub mod campaign;
pub mod challenge;
pub mod claim;
pub mod claim_code;
pub mod claim_request;
pub mod denial;
pub mod http;
pub mod ids;
mod json_member;
pub mod jwt;
pub mod limits;
mod monotonic;
pub mod pass;
pub mod problem;
pub mod refusals;
pub mod signature;
pub mod time;
pub mod user_claims;
pub mod user_id;
pub mod version;
pub mod window;

pub use campaign::{CampaignState, CampaignView};
pub use claim::{Claim, ClaimStatus, Quantity};
pub use claim_code::ClaimCode;
pub use claim_request::{Attempt, ClaimReply, ClaimRequest, Outcome};
pub use denial::Denial;
pub use ids::{CampaignId, ClaimDigest, ClaimId, IdempotencyKey, UserId};
pub use limits::Limits;
pub use pass::{PassRule, ShownPass};
pub use problem::{Code, Problem};
pub use time::Timestamp;
pub use version::Version;
pub use window::Window;

/// Feeds `field` to a hash or MAC, after its length as 4 bytes, big endian. The length makes the encoding
/// unambiguous: no two lists of fields produce the same bytes.
pub(crate) fn feed_field(mut feed: impl FnMut(&[u8]), field: &[u8]) {
    // No field exceeds a request's size, far below 4 GiB. A longer one would only fail verification.
    let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
    feed(&length.to_be_bytes());
    feed(field);
}
