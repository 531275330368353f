//! Who calls: the edge by its signature, a back end or an admin by a token. Decided before Redis or SQL is touched.

use std::sync::{Arc, PoisonError, RwLock};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use claimgate_shared::signature::{
    CLIENT_IP_HEADER, KEY_HEADER, NamedKey, SIGNATURE_HEADER, SignedParts, TIMESTAMP_HEADER, USER_HEADER,
};
use claimgate_shared::{Attempt, Code, Problem, UserId};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::clock;

/// A caller who is who they say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// With the admin token.
    Admin,
    /// With an API token of this name.
    BackEnd(String),
    /// The edge, for this user; `None` where nobody is signed in.
    Edge(Option<UserId>),
}

impl Caller {
    /// The caller's name in the audit table and in logs.
    pub fn name(&self) -> &str {
        match self {
            Self::Admin => "admin",
            Self::BackEnd(name) => name,
            Self::Edge(_) => "edge",
        }
    }

    /// `forbidden` when the edge has signed for another user than `user`.
    pub fn may_act_for(&self, user: &UserId) -> Result<(), Problem> {
        match self {
            Self::Edge(signed) if signed.as_ref() != Some(user) => {
                Err(Problem::new(Code::Forbidden, "the edge signed for another user"))
            }
            _ => Ok(()),
        }
    }
}

/// The tokens that are let in, as their hashes.
#[derive(Default, Clone)]
pub struct Tokens(Vec<(Caller, [u8; 32])>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

impl Tokens {
    /// Lets `caller` in by `token`.
    pub fn add(&mut self, caller: Caller, token: &str) {
        self.0.push((caller, Sha256::digest(token).into()));
    }

    /// Whose token this is. Looks at all of them, each in constant time.
    fn caller(&self, token: &str) -> Option<&Caller> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let matching = self.0.iter().filter(|(_, known)| bool::from(known.ct_eq(&digest)));
        matching.map(|(caller, _)| caller).next_back()
    }
}

/// What callers are known by.
#[derive(Debug)]
pub struct Credentials {
    /// Back ends' and the admin's.
    pub tokens: Tokens,
    /// Keys the edge may sign with.
    pub edge_keys: Vec<NamedKey>,
}

impl Credentials {
    /// The ids of the keys that the edge may sign with.
    pub fn kids(&self) -> Vec<&str> {
        self.edge_keys.iter().map(|key| key.kid.as_str()).collect()
    }
}

/// Knows everyone who may call, by credentials that can be replaced while calls are made.
#[derive(Debug, Clone)]
pub struct Gatekeeper(Arc<RwLock<Arc<Credentials>>>);

impl Gatekeeper {
    /// Lets in by `credentials`.
    pub fn new(credentials: Credentials) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(credentials))))
    }

    /// Lets in by these from the next call on.
    pub fn replace(&self, credentials: Credentials) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(credentials);
    }

    fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The caller of an internal call, and the attempt that they vouch for; of `parts`, user and client address are filled
    /// in from the headers.
    pub fn caller(&self, headers: &HeaderMap, parts: SignedParts<'_>) -> Result<(Caller, Attempt), Problem> {
        if headers.contains_key(KEY_HEADER) || headers.contains_key(SIGNATURE_HEADER) {
            return self.edge(headers, parts);
        }
        Ok((self.bearer(headers)?, parts.attempt))
    }

    /// The admin, and nobody else.
    pub fn admin(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        match self.bearer(headers)? {
            Caller::Admin => Ok(Caller::Admin),
            _ => Err(Problem::new(Code::Forbidden, "this call needs the admin token")),
        }
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
