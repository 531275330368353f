//! The settings of challenges and of the passes that they give.

use claimgate_shared::signature::NamedKey;

use super::altcha::Altcha;
use super::turnstile::{self, Secret, Turnstile};
use super::{Challenges, Kind};
use crate::auth::key_url::KeyUrl;
use crate::auth::passes::{SIGNING_KEY, other_use};
use crate::variables::{ConfigError, secret};

const CHALLENGE: &str = "CHALLENGE";
const PASS_SECONDS: &str = "PASS_SECONDS";
const CHALLENGE_SECONDS: &str = "CHALLENGE_SECONDS";
const ATTEMPTS: &str = "ALTCHA_ATTEMPTS";
const TURNSTILE_SECRET: &str = "TURNSTILE_SECRET";
const SITE_KEY: &str = "TURNSTILE_SITE_KEY";
const HOSTNAMES: &str = "TURNSTILE_HOSTNAMES";
const TURNSTILE_URL: &str = "TURNSTILE_URL";
const ON_FAILURE: &str = "CHALLENGE_ON_FAILURE";

const ALL_KINDS: [&str; 2] = [SIGNING_KEY, PASS_SECONDS];
const ALTCHA_ONLY: [&str; 2] = [CHALLENGE_SECONDS, ATTEMPTS];
const TURNSTILE_ONLY: [&str; 5] = [TURNSTILE_SECRET, SITE_KEY, HOSTNAMES, TURNSTILE_URL, ON_FAILURE];

/// Reads the settings; `None` if this edge issues no passes.
///
/// # Errors
/// Names the variable that is missing, invalid, or without effect.
pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Challenges>, ConfigError> {
    let without_effect = |names: &[&'static str], why: &str| {
        let set = names.iter().find(|name| variable(name).is_some());
        set.map_or(Ok(()), |name| Err(ConfigError::new(name, format!("has no effect {why}"))))
    };
    let kind = match variable(CHALLENGE).as_deref() {
        None => {
            let all = [&ALL_KINDS[..], &ALTCHA_ONLY, &TURNSTILE_ONLY].concat();
            without_effect(&all, "without CHALLENGE")?;
            return Ok(None);
        }
        Some("altcha") => {
            without_effect(&TURNSTILE_ONLY, "with CHALLENGE=altcha")?;
            Kind::Altcha(altcha(&variable)?)
        }
        Some("turnstile") => {
            without_effect(&ALTCHA_ONLY, "with CHALLENGE=turnstile")?;
            Kind::Turnstile(turnstile(&variable)?)
        }
        Some(_) => return Err(ConfigError::new(CHALLENGE, "must be altcha or turnstile")),
    };
    let signing_key: NamedKey = secret(&variable, SIGNING_KEY)?;
    if let Some(other) = other_use(&variable, &signing_key.key) {
        return Err(ConfigError::new(SIGNING_KEY, format!("is the key of {other}: passes need their own")));
    }
    Ok(Some(Challenges { kind, signing_key, pass_s: number(&variable, PASS_SECONDS, 3_600, 300, 86_400)? }))
}

fn altcha(variable: impl Fn(&str) -> Option<String>) -> Result<Altcha, ConfigError> {
    Ok(Altcha {
        valid_s: number(&variable, CHALLENGE_SECONDS, 600, 60, 3_600)?,
        attempts: number(&variable, ATTEMPTS, 1_000, 1, 1_000_000)?,
    })
}

fn turnstile(variable: impl Fn(&str) -> Option<String>) -> Result<Turnstile, ConfigError> {
    let required = |name| variable(name).ok_or_else(|| ConfigError::new(name, "is not set"));
    Ok(Turnstile {
        secret: Secret(required(TURNSTILE_SECRET)?),
        site_key: required(SITE_KEY)?,
        hostnames: hostnames(&required(HOSTNAMES)?)?,
        url: turnstile_url(variable(TURNSTILE_URL).as_deref())?,
        fail_open: match variable(ON_FAILURE).as_deref() {
            None | Some("closed") => false,
            Some("open") => true,
            Some(_) => return Err(ConfigError::new(ON_FAILURE, "must be open or closed")),
        },
    })
}

fn hostnames(list: &str) -> Result<Vec<String>, ConfigError> {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
    };
    let names: Vec<_> = list.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
    if names.iter().all(|name| is_name(name)) {
        return Ok(names);
    }
    Err(ConfigError::new(HOSTNAMES, "must list host names, separated by commas, without scheme and port"))
}

/// Returns the base URL of the service: Cloudflare's, or that of a stand-in on this machine.
fn turnstile_url(stand_in: Option<&str>) -> Result<KeyUrl, ConfigError> {
    let text = stand_in.unwrap_or(turnstile::URL);
    let url = KeyUrl::parse(text.trim_end_matches('/'));
    let url = url.ok().filter(|url| stand_in.is_none() || url.is_loopback());
    url.ok_or_else(|| ConfigError::new(TURNSTILE_URL, "must be on a loopback address: it is for tests"))
}

fn number(
    variable: impl Fn(&str) -> Option<String>,
    name: &'static str,
    default: u32,
    min: u32,
    max: u32,
) -> Result<u32, ConfigError> {
    let Some(text) = variable(name) else { return Ok(default) };
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| ConfigError::new(name, format!("must be {min} to {max}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "edge:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";

    fn read_from(variables: &[(&str, &str)]) -> Result<Option<Challenges>, String> {
        let variable = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        read(variable).map_err(|error| error.to_string())
    }

    fn with_turnstile(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        let mut variables = vec![
            (CHALLENGE, "turnstile"),
            (SIGNING_KEY, KEY),
            (TURNSTILE_SECRET, "secret"),
            (SITE_KEY, "site"),
            (HOSTNAMES, "Shop.example, www.shop.example"),
        ];
        variables.retain(|(name, _)| more.iter().all(|(other, _)| name != other));
        variables.extend(more.iter().filter(|(_, value)| !value.is_empty()));
        variables
    }

    #[test]
    fn one_kind_of_challenge_is_set() {
        assert!(read_from(&[]).unwrap().is_none());
        let altcha = read_from(&[(CHALLENGE, "altcha"), (SIGNING_KEY, KEY)]).unwrap().unwrap();
        assert_eq!((altcha.pass_s, altcha.signing_key.kid.as_str()), (3_600, "edge"));
        let Kind::Altcha(Altcha { valid_s: 600, attempts: 1_000 }) = altcha.kind else {
            panic!("{altcha:?}")
        };
        let open = [("CHALLENGE_ON_FAILURE", "open"), (TURNSTILE_URL, "http://127.0.0.1:9/v0/")];
        for (variables, fail_open, url) in [
            (with_turnstile(&[]), false, turnstile::URL),
            (with_turnstile(&open), true, "http://127.0.0.1:9/v0"),
        ] {
            let read = read_from(&variables).unwrap().unwrap();
            let Kind::Turnstile(turnstile) = &read.kind else { panic!("{read:?}") };
            assert_eq!(turnstile.hostnames, ["shop.example", "www.shop.example"]);
            assert_eq!((turnstile.fail_open, turnstile.url.as_str()), (fail_open, url));
        }
    }

    #[test]
    fn the_error_names_a_wrong_setting() {
        let altcha = |more| [&[(CHALLENGE, "altcha"), (SIGNING_KEY, KEY)][..], &[more]].concat();
        let key = KEY.split_once(':').unwrap().1;
        for (variables, expected) in [
            (vec![(SIGNING_KEY, KEY)], "PASS_SIGNING_KEY has no effect without CHALLENGE"),
            (vec![(ON_FAILURE, "open")], "CHALLENGE_ON_FAILURE has no effect without CHALLENGE"),
            (vec![(CHALLENGE, "captcha")], "CHALLENGE must be altcha or turnstile"),
            (vec![(CHALLENGE, "altcha")], "PASS_SIGNING_KEY is not set"),
            (
                altcha(("USER_JWT_KEY", key)),
                "PASS_SIGNING_KEY is the key of USER_JWT_KEY: passes need their own",
            ),
            (altcha(("EDGE_KEY", KEY)), "PASS_SIGNING_KEY is the key of EDGE_KEY: passes need their own"),
            (altcha((SITE_KEY, "site")), "TURNSTILE_SITE_KEY has no effect with CHALLENGE=altcha"),
            (altcha((ON_FAILURE, "open")), "CHALLENGE_ON_FAILURE has no effect with CHALLENGE=altcha"),
            (altcha((PASS_SECONDS, "299")), "PASS_SECONDS must be 300 to 86400"),
            (altcha((CHALLENGE_SECONDS, "3601")), "CHALLENGE_SECONDS must be 60 to 3600"),
            (altcha((ATTEMPTS, "0")), "ALTCHA_ATTEMPTS must be 1 to 1000000"),
            (with_turnstile(&[(ATTEMPTS, "5")]), "ALTCHA_ATTEMPTS has no effect with CHALLENGE=turnstile"),
            (with_turnstile(&[(TURNSTILE_SECRET, "")]), "TURNSTILE_SECRET is not set"),
            (with_turnstile(&[(SITE_KEY, "")]), "TURNSTILE_SITE_KEY is not set"),
            (with_turnstile(&[(HOSTNAMES, "")]), "TURNSTILE_HOSTNAMES is not set"),
            (
                with_turnstile(&[(HOSTNAMES, "https://shop.example")]),
                "TURNSTILE_HOSTNAMES must list host names, separated by commas, without scheme and port",
            ),
            (
                with_turnstile(&[(TURNSTILE_URL, "https://turnstile.example")]),
                "TURNSTILE_URL must be on a loopback address: it is for tests",
            ),
            (with_turnstile(&[(ON_FAILURE, "ajar")]), "CHALLENGE_ON_FAILURE must be open or closed"),
        ] {
            assert_eq!(read_from(&variables).unwrap_err(), expected, "{variables:?}");
        }
    }
}
