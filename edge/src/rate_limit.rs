//! Rate limits per user and per address, enforced by the platform's rate limiters.

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::thread::LocalKey;

use claimgate_shared::{Code, Problem, UserId};
use wasm_bindgen::{JsCast as _, JsValue, intern};
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{Object, Promise, Reflect};
use worker::{Env, worker_sys};

use crate::config::RateConfig;

thread_local! {
    static PER_USER: Binding = const { Binding::new("RATE_PER_USER") };
    static PER_ADDRESS: Binding = const { Binding::new("RATE_PER_ADDRESS") };
}

/// A binding of an isolate's environment, which never changes.
#[derive(Debug)]
struct Binding {
    name: &'static str,
    /// The bound limiter; `None` without the binding.
    limiter: OnceCell<Option<worker_sys::RateLimiter>>,
}

impl Binding {
    const fn new(name: &'static str) -> Self {
        Self { name, limiter: OnceCell::new() }
    }

    fn limiter(&self, env: &Env) -> Result<Option<worker_sys::RateLimiter>, JsValue> {
        if let Some(limiter) = self.limiter.get() {
            return Ok(limiter.clone());
        }
        let bound = Reflect::get(env, &self.name.into())?;
        // If the binding is not a limiter, each call of it fails.
        let limiter = (!bound.is_undefined()).then(|| bound.unchecked_into());
        Ok(self.limiter.get_or_init(|| limiter).clone())
    }
}

/// The kinds of requests that are counted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    /// Requests to claim.
    Claims,
    /// Reads of a claim.
    Lookups,
    /// Reads of a user's claims from a campaign.
    OwnClaims,
    /// Views of uncached campaigns.
    Campaigns,
    /// Challenges and their solutions.
    Passes,
}

impl LimitScope {
    fn key(self, who: &str) -> String {
        let what = match self {
            Self::Claims => "claims",
            Self::Lookups => "lookups",
            Self::OwnClaims => "own claims",
            Self::Campaigns => "campaigns",
            Self::Passes => "passes",
        };
        format!("{what}:{who}")
    }
}

/// The rate limiters of an environment.
#[derive(Debug)]
pub struct RateLimiter<'a> {
    /// The environment that binds the limiters.
    pub env: &'a Env,
    /// The limiters' period, and whether they fail open.
    pub config: &'a RateConfig,
}

impl RateLimiter<'_> {
    /// Counts a request from `address` in `scope`. Requests without an address share one count: the address
    /// is missing only if `CLIENT_ADDRESS` is wrong or a proxy hides it.
    ///
    /// # Errors
    /// `rate_limited` over the limit; `overloaded` if the limiter fails and is configured to fail closed.
    pub async fn check_address(&self, scope: LimitScope, address: Option<IpAddr>) -> Result<(), Problem> {
        let who = address.map_or_else(|| "unknown".to_owned(), network);
        self.check(&PER_ADDRESS, &scope.key(&who)).await
    }

    /// Counts a request by `user` in `scope`.
    pub async fn check_user(&self, scope: LimitScope, user: &UserId) -> Result<(), Problem> {
        self.check(&PER_USER, &scope.key(user.as_str())).await
    }

    async fn check(&self, binding: &'static LocalKey<Binding>, key: &str) -> Result<(), Problem> {
        let is_within = match binding.with(|binding| binding.limiter(self.env)) {
            Ok(None) => return Ok(()),
            Ok(Some(limiter)) => is_within(&limiter, key).await,
            Err(error) => Err(error),
        };
        match is_within {
            Ok(true) => Ok(()),
            Ok(false) => {
                let period_s = self.config.period_s;
                let detail = format!("too many requests: retry after {period_s} s");
                Err(Problem { retry_after_s: Some(period_s), ..Problem::new(Code::RateLimited, detail) })
            }
            Err(error) => {
                worker::console_warn!("{} failed: {error:?}", binding.with(|binding| binding.name));
                self.config.on_failure()
            }
        }
    }
}

/// Counts a request for `key`. Replaces the worker crate's `limit`, which converts both objects through serde and
/// always expects a promise.
async fn is_within(limiter: &worker_sys::RateLimiter, key: &str) -> Result<bool, JsValue> {
    let counted = Object::new();
    Reflect::set(&counted, &intern("key").into(), &key.into())?;
    let success = |outcome: &JsValue| Reflect::get(outcome, &intern("success").into());
    let outcome = JsValue::from(limiter.limit(counted)?);
    // The limiter for plain workerd returns no promise.
    if let Some(success) = success(&outcome)?.as_bool() {
        return Ok(success);
    }
    let outcome = JsFuture::from(Promise::resolve(&outcome)).await?;
    success(&outcome)?.as_bool().ok_or_else(|| "the outcome has no `success`".into())
}

/// Parses the client's address: a header's value, or workerd's peer with a port. Uses the last item of a
/// list, which the nearest proxy appended; the client may have sent the other items. Returns `None` for a
/// malformed address.
pub fn parse_address(text: Option<&str>) -> Option<IpAddr> {
    let text = text?.rsplit(',').next()?.trim();
    let peer = text.parse::<SocketAddr>().map(|peer| peer.ip());
    let address = peer.or_else(|_| text.parse()).ok()?;
    Some(address.to_canonical())
}

/// Returns the network counted as one client: an IPv4 address, or an IPv6 /64, which one household gets.
fn network(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_counted_by_network() {
        for (header, counted) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
            ("192.0.2.1:39950", "192.0.2.1"),
            ("[::ffff:192.0.2.1]:44548", "192.0.2.1"),
            ("[2001:db8:1:2::1]:40350", "2001:db8:1:2::/64"),
            ("203.0.113.9, 192.0.2.1", "192.0.2.1"),
            ("who knows, 192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(network(parse_address(Some(header)).unwrap()), counted, "{header}");
        }
    }

    #[test]
    fn malformed_addresses_are_not_parsed() {
        for header in ["", "unknown", "192.0.2.1,", "192.0.2.1, x", "192.0.2.256"] {
            assert_eq!(parse_address(Some(header)), None, "{header}");
        }
        assert_eq!(parse_address(None), None);
    }
}
