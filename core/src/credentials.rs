//! Callers, and the credentials that authenticate them.

use claimgate_shared::signature::NamedKey;
use claimgate_shared::{Code, Problem, UserId};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// With the admin token.
    Admin,
    /// With an API token of this name.
    BackEnd(String),
    /// The edge, for this user; `None` without a signed-in user.
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

    /// Whether the caller may act for `user`: back ends and admins for any, the edge for the one it has signed for.
    ///
    /// # Errors
    /// `forbidden` when the edge has signed for another user.
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
    pub fn caller(&self, token: &str) -> Option<&Caller> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let matching = self.0.iter().filter(|(_, stored)| bool::from(stored.ct_eq(&digest)));
        matching.map(|(caller, _)| caller).next_back()
    }
}

/// The credentials of all callers.
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
