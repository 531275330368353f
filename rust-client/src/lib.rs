//! Calls to claimgate from Rust: one client for each of its listeners.
//!
//! - [`Internal`]: core, as a back end or an admin: claims, confirms, returns.
//! - [`Admin`]: core's admin API: campaigns, lists of claims, reconciliation.
//! - [`Edge`]: the edge, as a browser's user.
//!
//! A claim is made once, however often it is sent: [`ClaimCall`] holds its key before the first try, and
//! [`Internal::claim`] and [`Edge::claim`] ask again with that key while the outcome is unknown. So does every other call that
//! is safe to repeat; [`Retries`] say for how long.
//!
//! ```
//! use claimgate_client::{ClaimCall, Internal};
//! use claimgate_shared::{ClaimId, Code, Quantity};
//!
//! /// A ticket for `user`; `None` when there is none left.
//! async fn ticket(core: &Internal, user: &str) -> Result<Option<ClaimId>, Box<dyn std::error::Error>> {
//!     let mut call = ClaimCall::new("tickets".parse()?, user.parse()?, Quantity::ONE)?;
//!     // Store `call.request()` here: after a crash `ClaimCall::again` asks for the same claim.
//!     match core.claim(&mut call).await {
//!         Ok(answer) => Ok(Some(answer.read()?.claim.id)),
//!         Err(error) if error.is(Code::SoldOut) => Ok(None),
//!         Err(error) => Err(error.into()),
//!     }
//! }
//! ```

mod admin;
mod answer;
mod claim_call;
mod edge;
mod error;
mod internal;
mod listener;
mod retry;

pub use admin::{Admin, NewCampaign};
pub use answer::Answer;
pub use claim_call::{ClaimCall, random_key};
pub use edge::Edge;
pub use error::{Error, Problem};
pub use internal::Internal;
pub use retry::{PATIENCE, Retries, until_decided};
