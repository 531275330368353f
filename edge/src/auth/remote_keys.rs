//! The key that verifies a token, fetched from its source if it is not known yet.
//!
//! The runtime does not let one request await another's I/O. So a fetch runs in the background of the request
//! that starts it, and every request that needs its result polls for it.

use std::rc::Rc;
use std::time::Duration;

use claimgate_shared::jwt::{Algorithm, SignedToken, TokenError, TokenRules};
use claimgate_shared::{Code, Problem, Timestamp};
use worker::{Context, Delay, Env};

use super::error::{AuthError, wrong_algorithm};
use super::key_cache::{self, Fetch};
use super::key_source::{FetchError, FetchedKeys, KeySource};
use super::public_key::PublicKey;
use crate::background;
use crate::clock;
use crate::log::{self, KeyPurpose};

/// Interval at which a request checks for the result of a fetch.
const POLL: Duration = Duration::from_millis(20);

/// The key set of a source, kept fresh.
#[derive(Debug, Clone)]
pub struct RemoteKeys {
    source: Rc<KeySource>,
    /// The algorithms of `USER_JWT_ALG`, if that is set.
    allowed: Option<Rc<[Algorithm]>>,
}

/// The parts of the runtime that a fetch needs.
#[derive(Debug, Clone, Copy)]
pub struct Runtime<'a> {
    /// The Worker's bindings.
    pub env: &'a Env,
    /// The request's context: it keeps a fetch running after the response.
    pub context: &'a Context,
}

impl RemoteKeys {
    /// Creates the keys of `source`, without fetching them.
    pub fn new(source: KeySource, allowed: Option<Vec<Algorithm>>) -> Self {
        Self { source: Rc::new(source), allowed: allowed.map(Rc::from) }
    }

    /// Returns where the set is published.
    pub fn source(&self) -> &KeySource {
        &self.source
    }

    /// Returns the variable that sets the source, if there are no keys to verify tokens with.
    pub(super) fn variable_without_keys(&self) -> Option<&'static str> {
        let are_known = clock::now().is_ok_and(|now| key_cache::with(|cache| cache.keys(now)).is_some());
        (!are_known).then_some(self.source.variable())
    }

    /// Fetches the set in the background, if it is due.
    pub(super) fn refresh(&self, runtime: Runtime<'_>) {
        if let Ok(now) = clock::now() {
            self.start(key_cache::with(|cache| cache.begin_refresh(now)), runtime);
        }
    }

    /// Returns the key that must verify `token`. Fetches the set if it lacks the key, unless a claim of the
    /// token is wrong anyway.
    ///
    /// # Errors
    /// A rejection if a set fetched a short time ago lacks the key. `unavailable` if the set could not be
    /// fetched.
    pub(super) async fn find(
        &self,
        token: &SignedToken<'_>,
        rules: &TokenRules,
        runtime: Runtime<'_>,
    ) -> Result<Rc<PublicKey>, AuthError> {
        if token.algorithm == Algorithm::Hs256 || !self.allows(token.algorithm) {
            return Err(wrong_algorithm(token.algorithm).into());
        }
        loop {
            let now = clock::now()?;
            if let Some(keys) = key_cache::with(|cache| cache.keys(now)) {
                self.refresh(runtime);
                match keys.find(token) {
                    Ok(key) => return Ok(key),
                    Err(why) if why.reason != TokenError::UnknownKey => return Err(why.into()),
                    Err(why) if key_cache::with(|cache| cache.is_recent(now)) => return Err(why.into()),
                    Err(_) => {}
                }
            }
            token.check(rules, now)?;
            let fetch = key_cache::with(|cache| cache.begin_for_unknown_key(now));
            if fetch.is_none() && !key_cache::with(|cache| cache.is_fetching(now)) {
                return Err(unavailable().into());
            }
            self.start(fetch, runtime);
            Delay::from(POLL).await;
        }
    }

    fn allows(&self, algorithm: Algorithm) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&algorithm))
    }

    /// Fetches the set in the background, if the request has the right to.
    fn start(&self, fetch: Option<Fetch>, runtime: Runtime<'_>) {
        let Some(fetch) = fetch else { return };
        let (keys, env) = (self.clone(), runtime.env.clone());
        background::run(runtime.context, async move {
            let fetched = keys.source.fetch(&env, keys.allowed.as_deref()).await;
            // Without a clock the fetch stays in flight until it counts as aborted.
            let Ok(now) = clock::now() else { return };
            finish(fetch, fetched, now);
        });
    }
}

/// Caches a fetched set, or records the failure. A set without a usable key withdraws all earlier keys, but
/// counts as a failure: no token can be checked, and that is not the users' fault.
fn finish(fetch: Fetch, fetched: Result<FetchedKeys, FetchError>, now: Timestamp) {
    match fetched {
        Ok(FetchedKeys { keys, max_age_s }) => {
            log::keys_ignored(KeyPurpose::User, keys.ignored(), now);
            key_cache::with(|cache| {
                if keys.is_empty() {
                    cache.withdraw();
                    cache.failed(fetch, now);
                } else {
                    cache.succeeded(fetch, keys, max_age_s);
                }
            });
        }
        Err(why) => {
            log::keys_not_fetched(&why, now);
            key_cache::with(|cache| cache.failed(fetch, now));
        }
    }
}

fn unavailable() -> Problem {
    Problem::new(
        Code::Unavailable,
        "the issuer's keys could not be fetched, so the token was not checked: retry",
    )
}
