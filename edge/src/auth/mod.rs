//! Authentication of users by token (JWT), and verification of passes.
//!
//! `header` finds the token, `settings` and `rules_settings` read the variables. A token signed with a shared
//! secret is verified by the shared crate, any other by a `public_key`: one configured key, or one of a
//! `key_set`. `remote_keys` finds that key in a set that `key_source` fetches and `key_cache` keeps. `passes`
//! verifies passes with the same kinds of keys.

pub mod error;
pub mod header;
pub mod key_cache;
pub mod key_set;
pub mod key_source;
pub mod key_url;
pub mod passes;
pub mod public_key;
pub mod remote_keys;
mod rules_settings;
pub mod settings;

use std::rc::Rc;

use claimgate_shared::jwt::{SignedToken, TokenError, TokenRejection, TokenRules, UserTokens};
use claimgate_shared::user_id::UserIdRule;
use claimgate_shared::{Code, Problem, Timestamp, UserId};

use self::error::{AuthError, wrong_algorithm};
use self::header::TokenHeader;
use self::key_set::KeySet;
use self::public_key::PublicKey;
use self::remote_keys::{RemoteKeys, Runtime};
use crate::log::{self, KeyPurpose};

/// Finds and verifies user tokens.
#[derive(Debug, Clone)]
pub struct Authenticator {
    /// The header that carries the token.
    pub header: TokenHeader,
    /// Verifies the header's token.
    pub verifier: Verifier,
}

/// Verifies a token with the deployment's algorithms, keys and rules.
#[derive(Debug, Clone)]
pub enum Verifier {
    /// `USER_JWT_KEY`, an HS256 secret.
    Secret(UserTokens),
    /// Public keys.
    Public(PublicKeys, TokenRules),
}

/// The public keys of the tokens' issuer.
#[derive(Debug, Clone)]
pub enum PublicKeys {
    /// `USER_JWT_KEY`, the only key. A token's `kid` is ignored.
    One(Rc<PublicKey>),
    /// `USER_JWT_JWKS`.
    Set(KeySet),
    /// `USER_JWT_JWKS_URL`, or discovery from `USER_JWT_ISS`.
    Remote(RemoteKeys),
}

impl Verifier {
    /// Verifies `token` at `now` and returns its user, whose id `user_ids` derives.
    ///
    /// # Errors
    /// The broken rule; the token's claims are checked after the signature. `unavailable` if keys could not
    /// be fetched or used.
    pub async fn user(
        &self,
        token: &str,
        user_ids: &UserIdRule,
        now: Timestamp,
        runtime: Runtime<'_>,
    ) -> Result<UserId, AuthError> {
        let (keys, rules) = match self {
            Self::Secret(tokens) => return Ok(tokens.verify(token, user_ids, now)?),
            Self::Public(keys, rules) => (keys, rules),
        };
        let token = SignedToken::parse(token)?;
        let key = keys.find(&token, rules, runtime).await?;
        match key.has_signed(&token).await {
            Ok(true) => Ok(token.user(rules, user_ids, now)?),
            Ok(false) => Err(TokenRejection::from(TokenError::Signature).into()),
            // The key was imported before, for another of its algorithms.
            Err(error) => {
                log::key_not_imported(KeyPurpose::User, &error, now);
                Err(Problem::new(Code::Unavailable, "the token's key could not be used: retry").into())
            }
        }
    }
}

impl Verifier {
    /// Returns the allowed difference between an issuer's clock and the edge's, in seconds.
    pub fn leeway_s(&self) -> u32 {
        match self {
            Self::Secret(tokens) => tokens.rules.leeway_s,
            Self::Public(_, rules) => rules.leeway_s,
        }
    }

    /// Fetches the keys in the background, if they are due.
    pub fn refresh(&self, runtime: Runtime<'_>) {
        if let Self::Public(PublicKeys::Remote(keys), _) = self {
            keys.refresh(runtime);
        }
    }

    /// Returns the variable to fix if no key is available.
    pub fn without_keys(&self) -> Option<&'static str> {
        match self {
            Self::Public(PublicKeys::Remote(keys), _) => keys.variable_without_keys(),
            Self::Secret(_) | Self::Public(PublicKeys::One(_) | PublicKeys::Set(_), _) => None,
        }
    }
}

impl PublicKeys {
    async fn find(
        &self,
        token: &SignedToken<'_>,
        rules: &TokenRules,
        runtime: Runtime<'_>,
    ) -> Result<Rc<PublicKey>, AuthError> {
        match self {
            Self::One(key) if key.verifies(token.algorithm) => Ok(Rc::clone(key)),
            Self::One(_) => Err(wrong_algorithm(token.algorithm).into()),
            Self::Set(keys) => Ok(keys.find(token)?),
            Self::Remote(keys) => keys.find(token, rules, runtime).await,
        }
    }
}
