//! Who may make which call: extractors of the caller, one for each group of callers.
//!
//! The engine can only be reached with a [`Caller`], and only these extractors and those of
//! [`super::extract`] provide one: a handler without authentication does not compile.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::{Extensions, request};
use claimgate_shared::{Code, Problem};

use super::authentication::{Head, unauthenticated};
use super::error::ApiError;
use super::state::AppState;
use crate::credentials::{Caller, Role};
use crate::engine::Engine;

/// The result of authenticating a request's head, stored in its extensions by [`super::middleware::finish`].
pub type Authentication = Result<Head, Problem>;

/// Returns the request's authentication.
pub fn head(extensions: &Extensions) -> Result<&Head, Problem> {
    match extensions.get::<Authentication>() {
        Some(head) => head.as_ref().map_err(Clone::clone),
        None => Err(unauthenticated()),
    }
}

/// Returns the caller authenticated by the request's head.
pub fn caller(parts: &request::Parts) -> Result<Caller, Problem> {
    match head(&parts.extensions)? {
        Head::Authenticated(authenticated) => Ok(authenticated.caller.clone()),
        Head::NeedsBody => Err(unauthenticated()),
    }
}

/// Rejects the edge.
fn reject_edge(caller: Caller) -> Result<Caller, Problem> {
    match caller {
        Caller::Edge(..) => Err(Problem::new(Code::Forbidden, "the edge may only claim and read")),
        caller => Ok(caller),
    }
}

/// Rejects all callers except the edge.
pub fn only_edge(caller: &Caller) -> Result<(), Problem> {
    match caller {
        Caller::Edge(..) => Ok(()),
        _ => Err(Problem::new(Code::Forbidden, "only the edge may make this call")),
    }
}

/// Returns a caller who may claim: the edge, a back end or an admin of the role admin.
pub fn may_claim(caller: Caller) -> Result<Caller, Problem> {
    caller.unless_below(Role::Admin)
}

/// Returns a caller who may send batches of claims: a back end or an admin of the role admin.
pub fn may_claim_batches(caller: Caller) -> Result<Caller, Problem> {
    may_claim(reject_edge(caller)?)
}

/// Declares an extractor for each group of callers. Each also returns the engine, which is only reachable
/// with a caller.
macro_rules! callers {
    ($($(#[$about:meta])* $name:ident = |$caller:ident| $let_in:expr;)+) => {$(
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name(pub Caller, pub Arc<Engine>);

        impl FromRequestParts<AppState> for $name {
            type Rejection = ApiError;
            async fn from_request_parts(parts: &mut request::Parts, state: &AppState) -> Result<Self, ApiError> {
                let $caller = caller(parts)?;
                let caller: Caller = $let_in?;
                let engine = Arc::clone(state.engine(&caller));
                Ok(Self(caller, engine))
            }
        }
    )+};
}

callers! {
    /// The edge, a back end or an admin of any role: for read-only calls without a body.
    ApiCaller = |caller| Ok::<_, Problem>(caller);
    /// A back end or an operator: for calls without a body that the edge may not make.
    BackEnd = |caller| reject_edge(caller)?.unless_below(Role::Operator);
    /// An admin of any role: for calls that only read.
    Viewer = |caller| caller.with_role(Role::Viewer);
    /// An operator, or an admin of the role admin.
    Operator = |caller| caller.with_role(Role::Operator);
    /// An admin of the role admin.
    Admin = |caller| caller.with_role(Role::Admin);
}
