//! The Rust client for claimgate, with one type per listener.
//!
//! - [`Internal`]: core's internal API, for back ends and admins: claim, confirm, extend, return.
//! - [`Admin`]: core's admin API: campaigns, lists of claims, reconciliation.
//! - [`Edge`]: the edge, with a browser user's token.
//!
//! A claim counts once, however often it is sent: [`ClaimCall`] has its key before the first try, and
//! [`Internal::claim`] and [`Edge::claim`] retry with that key while the outcome is unknown.
//!
//! ```
//! use claimgate_client::{ClaimCall, Internal};
//! use claimgate_shared::{ClaimId, Code, Quantity};
//!
//! /// Claims a ticket for `user`; `None` if the tickets are sold out.
//! async fn ticket(core: &Internal, user: &str) -> Result<Option<ClaimId>, Box<dyn std::error::Error>> {
//!     let mut call = ClaimCall::new("tickets".parse()?, user.parse()?, Quantity::ONE)?;
//!     // Store `call.request()` here. After a crash, `ClaimCall::retry` makes the same claim.
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

pub use admin::{Admin, ChangesFilter, ClaimsFilter, NewCampaign};
pub use answer::Answer;
pub use claim_call::{ClaimCall, random_key};
/// A pass, which lets a user claim from a campaign that requires one.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use claimgate_client::{NamedKey, Pass};
///
/// // A key of the edge's PASS_KEYS.
/// let key: NamedKey = "shop:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA".parse()?;
/// let pass = Pass {
///     user: "alice".parse()?,
///     campaign: "presale".parse()?,
///     expires_at: "2026-12-01T12:00:00Z".parse()?,
///     not_before: None,
///     units: None,
/// };
/// let signed = pass.sign(&key)?; // sent in the header Claimgate-Pass
/// # assert_eq!(signed.split('.').count(), 3);
/// # Ok(())
/// # }
/// ```
pub use claimgate_shared::jwt::Pass;
/// The key that signs passes, with its id: `kid:base64url-key`.
pub use claimgate_shared::signature::NamedKey;
/// Derives users' ids as the edge does, for back ends that claim for them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use claimgate_client::UserIdRule;
///
/// // The edge's USER_ID_KEY, USER_ID_CLAIM and USER_JWT_ISS.
/// let key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA".parse()?;
/// let rule = UserIdRule::hmac("sub", "https://example.eu.auth0.com/", key);
/// let user = rule.user_id("auth0|6512ab")?;
/// assert_eq!(user.as_str(), "VR1TK4_EOYBS0Q3huZcMIdZCV7W7fd9cP4b-A0VjmlHPYacoMs");
/// # Ok(())
/// # }
/// ```
pub use claimgate_shared::user_id::UserIdRule;
pub use edge::Edge;
pub use error::{Error, Problem};
pub use internal::Internal;
pub use retry::{RETRY_TIMEOUT, Retries, retry_until_decided};
