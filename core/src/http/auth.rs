//! Who calls: the edge by its signature, a back end or an admin by a token. Decided before Redis or SQL is touched.

use std::sync::{Arc, PoisonError, RwLock};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use claimgate_shared::signature::{
    CLIENT_IP_HEADER, KEY_HEADER, SIGNATURE_HEADER, SignedParts, TIMESTAMP_HEADER, USER_HEADER,
};
use claimgate_shared::{Attempt, Code, Problem};

use crate::clock;
use crate::credentials::{Caller, Credentials, Role};

/// Authenticates callers, by credentials that can be replaced while calls are made.
#[derive(Debug, Clone)]
pub struct Authenticator(Arc<RwLock<Arc<Credentials>>>);

impl Authenticator {
    /// An authenticator that accepts `credentials`.
    pub fn new(credentials: Credentials) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(credentials))))
    }

    /// Accepts `credentials` instead, from the next call on.
    pub fn replace(&self, credentials: Credentials) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(credentials);
    }

    fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The caller of an internal call, and the attempt that they vouch for; of `parts`, user and client address are filled
    /// in from the headers.
    ///
    /// # Errors
    /// `unauthenticated`, whatever is wrong with the token or the signature.
    pub fn caller(&self, headers: &HeaderMap, parts: SignedParts<'_>) -> Result<(Caller, Attempt), Problem> {
        if headers.contains_key(KEY_HEADER) || headers.contains_key(SIGNATURE_HEADER) {
            return self.edge(headers, parts);
        }
        Ok((self.bearer(headers)?, parts.attempt))
    }

    /// Only an admin of at least the role `needed`; `forbidden` for any other caller.
    pub(crate) fn admin(&self, headers: &HeaderMap, needed: Role) -> Result<Caller, Problem> {
        self.bearer(headers)?.with_role(needed)
    }

    fn bearer(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let token =
            one(headers, AUTHORIZATION.as_str())?.strip_prefix("Bearer ").ok_or_else(unauthenticated)?;
        self.credentials().tokens.caller(token).cloned().ok_or_else(unauthenticated)
    }

    fn edge(&self, headers: &HeaderMap, parts: SignedParts<'_>) -> Result<(Caller, Attempt), Problem> {
        let user = one(headers, USER_HEADER)?;
        let parts = SignedParts { user, client_ip: one(headers, CLIENT_IP_HEADER)?, ..parts };
        let (kid, timestamp) = (one(headers, KEY_HEADER)?, one(headers, TIMESTAMP_HEADER)?);
        let signature = one(headers, SIGNATURE_HEADER)?;
        let keys = &self.credentials().edge_keys;
        let attempt = parts.verify(keys, kid, timestamp, signature, clock::now()).map_err(|error| {
            tracing::debug!(%error, "refused a signature");
            unauthenticated()
        })?;
        let user = match user {
            "" => None,
            user => Some(user.parse().map_err(|_| unauthenticated())?),
        };
        Ok((Caller::Edge(user), attempt))
    }
}

/// The header's one value; empty for none. Two are refused: which of them was meant is not ours to guess.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(""),
        (Some(value), None) => value.to_str().map_err(|_| unauthenticated()),
        _ => Err(unauthenticated()),
    }
}

fn unauthenticated() -> Problem {
    Problem::new(Code::Unauthenticated, "needs a valid signature or token")
}
