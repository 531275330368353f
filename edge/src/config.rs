//! What an environment sets: variables from wrangler.toml, secrets from the platform. Read once per isolate.

use std::fmt::Display;
use std::str::FromStr;

use claimgate_shared::signature::NamedKey;
use claimgate_shared::user_token::UserTokens;

/// The Worker's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// `CORE_URL`: where core's internal API is, without a slash at the end.
    pub core_url: String,
    /// `EDGE_KEY`: what requests to core are signed with.
    pub edge_key: NamedKey,
    /// `USER_JWT_KEY`, `USER_JWT_ISS`, `USER_JWT_AUD`: how users prove who they are.
    pub user_tokens: UserTokens,
    /// `DEMO`: whether anybody may mint a token for any user. Never outside the local environment.
    pub demo: bool,
    /// `CORS_ORIGINS`: the other origins whose pages may call.
    pub cors_origins: Vec<String>,
}

/// A variable that is missing or wrong; for the log, never for a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {problem}")]
pub struct ConfigError {
    variable: &'static str,
    problem: String,
}

impl ConfigError {
    fn new(variable: &'static str, problem: impl Display) -> Self {
        Self { variable, problem: problem.to_string() }
    }
}

impl Config {
    /// Reads every setting through `variable`, which knows nothing of those that are unset.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Ok(Self {
            core_url: core_url(&variable)?,
            edge_key: secret(&variable, "EDGE_KEY")?,
            user_tokens: UserTokens {
                key: secret(&variable, "USER_JWT_KEY")?,
                issuer: name(&variable, "USER_JWT_ISS")?,
                audience: name(&variable, "USER_JWT_AUD")?,
            },
            demo: demo(&variable)?,
            cors_origins: cors_origins(&variable)?,
        })
    }
}

fn secret<T: FromStr<Err: Display>>(
    variable: impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<T, ConfigError> {
    let text = variable(name).ok_or_else(|| ConfigError::new(name, "is not set"))?;
    text.trim().parse().map_err(|why| ConfigError::new(name, why))
}

fn name(variable: impl Fn(&str) -> Option<String>, name: &'static str) -> Result<String, ConfigError> {
    match variable(name) {
        None => Ok("claimgate".to_owned()),
        Some(text) if text.is_empty() => Err(ConfigError::new(name, "must not be empty")),
        Some(text) => Ok(text),
    }
}

fn demo(variable: impl Fn(&str) -> Option<String>) -> Result<bool, ConfigError> {
    match variable("DEMO").as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) => Err(ConfigError::new("DEMO", "must be 1, 0 or unset")),
    }
}

fn core_url(variable: impl Fn(&str) -> Option<String>) -> Result<String, ConfigError> {
    const NAME: &str = "CORE_URL";
    let text = variable(NAME).ok_or_else(|| ConfigError::new(NAME, "is not set"))?;
    let url = text.strip_suffix('/').unwrap_or(&text);
    // The signature covers core's own paths, so nothing can be put before them.
    if is_origin(url) {
        Ok(url.to_owned())
    } else {
        Err(ConfigError::new(
            NAME,
            "must be http(s)://host[:port] without a path, such as http://127.0.0.1:8080",
        ))
    }
}

fn cors_origins(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, ConfigError> {
    let list = variable("CORS_ORIGINS").unwrap_or_default();
    let origins = list.split(',').map(str::trim).filter(|origin| !origin.is_empty());
    origins
        .map(|origin| {
            if is_origin(origin) {
                Ok(origin.to_owned())
            } else {
                Err(ConfigError::new(
                    "CORS_ORIGINS",
                    "must be a comma list of http(s)://host[:port]; no wildcard",
                ))
            }
        })
        .collect()
}

fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    host.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l";

    fn read(changed: &[(&str, &str)]) -> Result<Config, String> {
        let edge_key = format!("k1:{KEY}");
        let set = |name: &str| match changed.iter().find(|(changed, _)| *changed == name) {
            Some((_, "unset")) => None,
            Some((_, value)) => Some((*value).to_owned()),
            None => match name {
                "CORE_URL" => Some("http://127.0.0.1:8080/".to_owned()),
                "EDGE_KEY" => Some(edge_key.clone()),
                "USER_JWT_KEY" => Some(KEY.to_owned()),
                _ => None,
            },
        };
        Config::read(set).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let config = read(&[]).unwrap();
        assert_eq!(config.core_url, "http://127.0.0.1:8080");
        assert_eq!(config.user_tokens.issuer, "claimgate");
        assert_eq!(config.user_tokens.audience, "claimgate");
        assert!(!config.demo);
        assert!(config.cors_origins.is_empty());
    }

    #[test]
    fn a_wrong_value_names_its_variable() {
        for (name, value) in [
            ("CORE_URL", "unset"),
            ("CORE_URL", "core:8080"),
            ("CORE_URL", "https://core.example/base"),
            ("CORE_URL", "https://"),
            ("EDGE_KEY", "unset"),
            ("EDGE_KEY", KEY),
            ("EDGE_KEY", "k1:c2hvcnQ"),
            ("USER_JWT_KEY", "unset"),
            ("USER_JWT_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
            ("USER_JWT_ISS", ""),
            ("USER_JWT_AUD", ""),
            ("DEMO", "true"),
            ("CORS_ORIGINS", "*"),
            ("CORS_ORIGINS", "https://a.example, b.example"),
            ("CORS_ORIGINS", "https://a.example/path"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("{name} ")), "{name}={value}: {error}");
            assert!(!error.contains(KEY), "{error}");
        }
    }

    #[test]
    fn lists_and_flags_are_read() {
        let config =
            read(&[("CORS_ORIGINS", "https://a.example, http://[::1]:3000,"), ("DEMO", "1")]).unwrap();
        assert_eq!(config.cors_origins, ["https://a.example", "http://[::1]:3000"]);
        assert!(config.demo);
        assert!(!format!("{config:?}").contains(KEY));
    }
}
