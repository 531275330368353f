//! Calls to claimgate from Rust: one client for each of its listeners.
//!
//! - [`Internal`]: core, as a back end or an admin: claims, confirms, returns.
//! - [`Admin`]: core's admin API: campaigns, lists of claims, reconciliation.
//! - [`Edge`]: the edge, as a browser's user.
//!
//! A claim is made once, however often it is sent: [`ClaimCall`] holds its key before the first try, and
//! [`Internal::claim`] and [`Edge::claim`] ask again with that key while the outcome is unknown.
//!
//! ```no_run
//! use claimgate_client::{ClaimCall, Internal};
//! use claimgate_shared::{Code, Quantity};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let core = Internal::new("http://127.0.0.1:8080", &std::env::var("SHOP_TOKEN")?)?;
//! let mut call = ClaimCall::new("tickets".parse()?, "alice".parse()?, Quantity::ONE)?;
//! // Store `call.request()` here: after a crash `ClaimCall::again` asks for the same claim.
//! match core.claim(&mut call).await {
//!     Ok(answer) => println!("claim {}", answer.read()?.claim.id),
//!     Err(error) if error.is(Code::SoldOut) => println!("sold out"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
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
pub use retry::{PATIENCE, until_decided};
