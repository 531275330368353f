//! How often one user and one address may ask: counted by the platform's rate limiters.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use claimgate_shared::{Code, Problem, UserId};
use worker::Env;
use worker::js_sys::Reflect;

use crate::config::RateConfig;

const PER_USER: &str = "RATE_PER_USER";
const PER_ADDRESS: &str = "RATE_PER_ADDRESS";

/// What is counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Claims made.
    Claims,
    /// Claims looked up.
    LookUps,
    /// Campaigns asked of core.
    Campaigns,
}

impl Counted {
    fn key(self, who: &str) -> String {
        let what = match self {
            Self::Claims => "claims",
            Self::LookUps => "look-ups",
            Self::Campaigns => "campaigns",
        };
        format!("{what}:{who}")
    }
}

/// The environment's limiters.
#[derive(Debug)]
pub struct Rates<'a> {
    /// Where they are bound.
    pub env: &'a Env,
    /// How they are to be taken.
    pub config: &'a RateConfig,
}

impl Rates<'_> {
    /// Refuses an address that asks too often. All whose address cannot be told are counted as one: everybody has one,
    /// unless the setting is wrong or somebody hides it.
    pub async fn check_address(&self, counted: Counted, address: Option<IpAddr>) -> Result<(), Problem> {
        let who = address.map_or_else(|| "unknown".to_owned(), network);
        self.check(PER_ADDRESS, counted.key(&who)).await
    }

    /// Refuses a user who asks too often.
    pub async fn check_user(&self, counted: Counted, user: &UserId) -> Result<(), Problem> {
        self.check(PER_USER, counted.key(user.as_str())).await
    }

    async fn check(&self, limiter: &str, key: String) -> Result<(), Problem> {
        match self.is_within(limiter, key).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let problem = Problem::new(Code::RateLimited, "too many requests: wait, then ask again");
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

/// The client's address as Cloudflare's header gives it, or workerd, which tells its port, too. Of a list the last, which
/// the nearest proxy has written: whoever asks may have written the others.
pub fn parse_address(text: Option<&str>) -> Option<IpAddr> {
    let text = text?.rsplit(',').next()?.trim();
    let peer = text.parse::<SocketAddr>().map(|peer| peer.ip());
    let address = peer.or_else(|_| text.parse()).ok()?;
    Some(address.to_canonical())
}

/// Who is counted as one: an IPv4 address, or the /64 of an IPv6 one, which a single household has to itself.
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
