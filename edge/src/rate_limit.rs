//! Rate limits per user and per address, counted by the platform's rate limiters.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use claimgate_shared::{Code, Problem, UserId};
use worker::Env;
use worker::js_sys::Reflect;

use crate::config::RateConfig;

const PER_USER: &str = "RATE_PER_USER";
const PER_ADDRESS: &str = "RATE_PER_ADDRESS";

/// What a limit applies to; each scope has counts of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    /// Requests to claim.
    Claims,
    /// Reads of a claim.
    Lookups,
    /// Reads of all claims that a user has of a campaign.
    OwnClaims,
    /// Views of campaigns that are not cached.
    Campaigns,
}

impl LimitScope {
    fn key(self, who: &str) -> String {
        let what = match self {
            Self::Claims => "claims",
            Self::Lookups => "look-ups",
            Self::OwnClaims => "own claims",
            Self::Campaigns => "campaigns",
        };
        format!("{what}:{who}")
    }
}

/// The rate limiters of an environment.
#[derive(Debug)]
pub struct RateLimiter<'a> {
    /// The environment that binds them.
    pub env: &'a Env,
    /// Their period, and what happens when they fail.
    pub config: &'a RateConfig,
}

impl RateLimiter<'_> {
    /// Counts a request of `address` in `scope`. All requests without an address share one count: every client has one,
    /// unless `CLIENT_ADDRESS` is wrong or a proxy hides it.
    ///
    /// # Errors
    /// `rate_limited` over the limit; `overloaded` when the limiter fails and is configured to fail closed.
    pub async fn check_address(&self, scope: LimitScope, address: Option<IpAddr>) -> Result<(), Problem> {
        let who = address.map_or_else(|| "unknown".to_owned(), network);
        self.check(PER_ADDRESS, scope.key(&who)).await
    }

    /// Counts a request of `user` in `scope`.
    ///
    /// # Errors
    /// As [`check_address`](Self::check_address).
    pub async fn check_user(&self, scope: LimitScope, user: &UserId) -> Result<(), Problem> {
        self.check(PER_USER, scope.key(user.as_str())).await
    }

    async fn check(&self, limiter: &str, key: String) -> Result<(), Problem> {
        match self.is_within(limiter, key).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let problem = Problem::new(Code::RateLimited, "too many requests: wait, then retry");
                Err(Problem { retry_after_s: Some(self.config.period_s), ..problem })
            }
            Err(error) => {
                worker::console_warn!("{limiter} failed: {error}");
                self.config.on_failure()
            }
        }
    }

    async fn is_within(&self, limiter: &str, key: String) -> worker::Result<bool> {
        // An environment without the limiter has no such limit.
        if Reflect::get(self.env, &limiter.into()).is_ok_and(|bound| bound.is_undefined()) {
            return Ok(true);
        }
        Ok(self.env.rate_limiter(limiter)?.limit(key).await?.success)
    }
}

/// The client's address in `text`: what Cloudflare's header holds, or what workerd gives, with a port. Of a list it is the
/// last, which the nearest proxy has appended: the client may have sent the others. `None` when it is not an address.
pub fn parse_address(text: Option<&str>) -> Option<IpAddr> {
    let text = text?.rsplit(',').next()?.trim();
    let peer = text.parse::<SocketAddr>().map(|peer| peer.ip());
    let address = peer.or_else(|_| text.parse()).ok()?;
    Some(address.to_canonical())
}

/// What is counted as one client: an IPv4 address, or the /64 of an IPv6 one, which is what a household gets.
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
    fn what_is_no_address_is_none() {
        for header in ["", "unknown", "192.0.2.1,", "192.0.2.1, x", "192.0.2.256"] {
            assert_eq!(parse_address(Some(header)), None, "{header}");
        }
        assert_eq!(parse_address(None), None);
    }
}
