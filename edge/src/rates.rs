//! How often one user and one address may ask: counted by the platform's rate limiters.

use std::net::{IpAddr, Ipv6Addr};

use claimgate_shared::{Code, Problem, UserId};
use worker::Env;

/// The period of the limiters in wrangler.toml, in seconds: after it, whoever was refused may ask again.
pub const PERIOD_S: u32 = 10;

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

/// Refuses an address that asks too often. Who has no address is not counted: on Cloudflare everybody has one.
pub async fn check_address(env: &Env, counted: Counted, address: Option<IpAddr>) -> Result<(), Problem> {
    match address {
        Some(address) => check(env, PER_ADDRESS, counted.key(&network(address))).await,
        None => Ok(()),
    }
}

/// Refuses a user who asks too often.
pub async fn check_user(env: &Env, counted: Counted, user: &UserId) -> Result<(), Problem> {
    check(env, PER_USER, counted.key(user.as_str())).await
}

/// An environment without the limiter has no such limit, and a limiter that fails lets everybody through: core
/// still decides every claim.
async fn check(env: &Env, limiter: &str, key: String) -> Result<(), Problem> {
    let Ok(bound) = env.rate_limiter(limiter) else {
        return Ok(());
    };
    match bound.limit(key).await {
        Ok(outcome) if !outcome.success => {
            Err(Problem::new(Code::RateLimited, "too many requests: wait, then ask again"))
        }
        Ok(_) => Ok(()),
        Err(error) => {
            worker::console_warn!("{limiter} failed, letting through: {error}");
            Ok(())
        }
    }
}

/// The client's address as Cloudflare gives it.
pub fn parse_address(header: Option<&str>) -> Option<IpAddr> {
    let address: IpAddr = header?.trim().parse().ok()?;
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
        ] {
            assert_eq!(network(parse_address(Some(header)).unwrap()), counted, "{header}");
        }
    }

    #[test]
    fn what_is_no_address_is_none() {
        for header in ["", "unknown", "192.0.2.1, 192.0.2.2", "192.0.2.256"] {
            assert_eq!(parse_address(Some(header)), None, "{header}");
        }
        assert_eq!(parse_address(None), None);
    }
}
