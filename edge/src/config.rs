//! The Worker's settings: variables from wrangler.toml, secrets from the platform. Read once per isolate.

use std::fmt::Display;
use std::str::FromStr;

use claimgate_shared::jwt::{Algorithm, TokenRules, UserTokens};
use claimgate_shared::signature::NamedKey;
use claimgate_shared::{Code, Problem};

use crate::auth::{Authenticator, PublicKey};

/// The most cores; a balancer can stand for more.
const CORES_MAX: usize = 8;
/// The first core's service binding; the others' are `CORE_2`, `CORE_3` and so on.
const CORE_BINDING: &str = "CORE";
const RATE_PERIOD_S: u32 = 10;
const RATE_PERIOD_S_MAX: u32 = 3_600;
/// A hundredth.
const TRACE_OF_A_MILLION: u32 = 10_000;

/// The Worker's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// `CORE_URL`, or `CORES` and the service bindings: where the cores are, at least one.
    pub cores: Vec<CoreAddress>,
    /// `EDGE_KEY`: signs requests to core.
    pub edge_key: NamedKey,
    /// `USER_JWT_ALG`, `USER_JWT_KEY`, `USER_JWT_ISS`, `USER_JWT_AUD`: how user tokens are verified.
    pub authenticator: Authenticator,
    /// `DEMO`: whether any client may mint a token for any user. Never outside the local environment.
    pub demo: bool,
    /// `CORS_ORIGINS`: other origins whose pages may read responses.
    pub cors_origins: Vec<String>,
    /// `CLIENT_ADDRESS`: the source of the client's address.
    pub client_address: ClientAddress,
    /// `RATE_PERIOD_S`, `RATE_ON_FAILURE`: the rate limiters' period, and what happens when they fail.
    pub rate_limit: RateConfig,
    /// `OTLP_URL`, `TRACE_RATIO`: where traces go, if anywhere.
    pub traces: Option<TraceConfig>,
}

/// Where traces go, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceConfig {
    /// The collector's address for traces. Through a binding the host is unused.
    pub url: String,
    /// How many of a million requests are traced though the browser does not ask for it.
    pub of_a_million: u32,
}

/// Where a core is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreAddress {
    /// The origin of its internal API, without a trailing slash. Through a binding the host is unused.
    pub origin: String,
    /// The service binding that leads to it; over the network where there is none.
    pub binding: Option<String>,
}

/// The source of the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAddress {
    /// This header, which Cloudflare or a proxy in front of the Worker has to set or remove.
    Header(String),
    /// The runtime: the address at the other end of the connection.
    Peer,
}

/// The rate limiters' settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateConfig {
    /// The limiters' period, in seconds: a refused client may retry after it.
    pub period_s: u32,
    /// Whether a limiter that fails lets every request through; core decides every claim anyway.
    pub fail_open: bool,
}

impl RateConfig {
    /// The result of a limiter that failed.
    ///
    /// # Errors
    /// `overloaded` when the limiters are to fail closed.
    pub fn on_failure(self) -> Result<(), Problem> {
        if self.fail_open {
            return Ok(());
        }
        Err(Problem::new(Code::Overloaded, "nothing was tried: retry"))
    }
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
    /// Reads every setting through `variable`, which returns `None` for those that are unset. `is_bound` tells whether there is
    /// a service binding of a name: where one leads to core, `CORE_URL` is not read.
    ///
    /// # Errors
    /// Names the first variable that is missing or wrong; never contains a secret's value.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
        is_bound: impl Fn(&str) -> bool,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            cores: if is_bound(CORE_BINDING) {
                bound_cores(&variable, is_bound)?
            } else {
                core_urls(&variable)?
            },
            edge_key: secret(&variable, "EDGE_KEY")?,
            authenticator: authenticator(&variable)?,
            demo: demo(&variable)?,
            cors_origins: cors_origins(&variable)?,
            client_address: client_address(&variable)?,
            rate_limit: RateConfig {
                period_s: rate_period_s(&variable)?,
                fail_open: rate_fail_open(&variable)?,
            },
            traces: traces(&variable)?,
        })
    }
}

fn authenticator(variable: impl Fn(&str) -> Option<String>) -> Result<Authenticator, ConfigError> {
    const ALGORITHM: &str = "USER_JWT_ALG";
    const KEY: &str = "USER_JWT_KEY";
    let rules =
        TokenRules { issuer: name(&variable, "USER_JWT_ISS")?, audience: name(&variable, "USER_JWT_AUD")? };
    let algorithm = match variable(ALGORITHM).filter(|text| !text.is_empty()) {
        None => Algorithm::Hs256,
        Some(text) => text.parse().map_err(|why| ConfigError::new(ALGORITHM, why))?,
    };
    if algorithm == Algorithm::Hs256 {
        return Ok(Authenticator::Secret(UserTokens { key: secret(&variable, KEY)?, rules }));
    }
    let pem = variable(KEY).ok_or_else(|| ConfigError::new(KEY, "is not set"))?;
    let key = PublicKey::from_pem(&pem, algorithm).map_err(|why| ConfigError::new(KEY, why))?;
    Ok(Authenticator::PublicKey(key, rules))
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

fn core_urls(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<CoreAddress>, ConfigError> {
    const NAME: &str = "CORE_URL";
    let list = variable(NAME).ok_or_else(|| ConfigError::new(NAME, "is not set"))?;
    let mut cores: Vec<CoreAddress> = Vec::new();
    for text in list.split(',').map(str::trim) {
        let origin = text.strip_suffix('/').unwrap_or(text);
        // The signature covers core's own paths, so no path can be put before them.
        if !is_origin(origin) {
            let form = "must be http(s)://host[:port] without a path, such as http://127.0.0.1:8080, or several of these with \
                        commas between them";
            return Err(ConfigError::new(NAME, form));
        }
        if cores.iter().any(|core| core.origin == origin) {
            return Err(ConfigError::new(NAME, format!("names {origin} twice")));
        }
        cores.push(CoreAddress { origin: origin.to_owned(), binding: None });
    }
    if cores.len() > CORES_MAX {
        return Err(ConfigError::new(NAME, format!("must be {CORES_MAX} cores at most")));
    }
    Ok(cores)
}

fn bound_cores(
    variable: impl Fn(&str) -> Option<String>,
    is_bound: impl Fn(&str) -> bool,
) -> Result<Vec<CoreAddress>, ConfigError> {
    const NAME: &str = "CORES";
    let count = match variable(NAME).as_deref() {
        None | Some("") => 1,
        Some(text) => text
            .parse()
            .ok()
            .filter(|count| (1..=CORES_MAX).contains(count))
            .ok_or_else(|| ConfigError::new(NAME, format!("must be 1 to {CORES_MAX}")))?,
    };
    let address = |number| {
        let binding = if number == 1 { CORE_BINDING.to_owned() } else { format!("{CORE_BINDING}_{number}") };
        if !is_bound(&binding) {
            return Err(ConfigError::new(NAME, format!("is {count}, but there is no binding {binding}")));
        }
        // A request through a binding needs a URL too.
        Ok(CoreAddress { origin: format!("http://core-{number}"), binding: Some(binding) })
    };
    (1..=count).map(address).collect()
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
                    "must be a comma-separated list of http(s)://host[:port]; no wildcard",
                ))
            }
        })
        .collect()
}

fn client_address(variable: impl Fn(&str) -> Option<String>) -> Result<ClientAddress, ConfigError> {
    const NAME: &str = "CLIENT_ADDRESS";
    let is_token = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    match variable(NAME).as_deref() {
        None | Some("") => Ok(ClientAddress::Header("CF-Connecting-IP".to_owned())),
        Some("peer") => Ok(ClientAddress::Peer),
        Some(name) if is_token(name) => Ok(ClientAddress::Header(name.to_owned())),
        Some(_) => Err(ConfigError::new(NAME, "must be the name of a header, or peer")),
    }
}

fn rate_period_s(variable: impl Fn(&str) -> Option<String>) -> Result<u32, ConfigError> {
    const NAME: &str = "RATE_PERIOD_S";
    match variable(NAME).as_deref() {
        None | Some("") => Ok(RATE_PERIOD_S),
        Some(text) => text
            .parse()
            .ok()
            .filter(|seconds| (1..=RATE_PERIOD_S_MAX).contains(seconds))
            .ok_or_else(|| ConfigError::new(NAME, format!("must be 1 to {RATE_PERIOD_S_MAX} seconds"))),
    }
}

fn rate_fail_open(variable: impl Fn(&str) -> Option<String>) -> Result<bool, ConfigError> {
    match variable("RATE_ON_FAILURE").as_deref() {
        None | Some("" | "open") => Ok(true),
        Some("closed") => Ok(false),
        Some(_) => Err(ConfigError::new("RATE_ON_FAILURE", "must be open or closed")),
    }
}

fn traces(variable: impl Fn(&str) -> Option<String>) -> Result<Option<TraceConfig>, ConfigError> {
    const URL: &str = "OTLP_URL";
    const RATIO: &str = "TRACE_RATIO";
    let of_a_million = match variable(RATIO).as_deref() {
        None | Some("") => TRACE_OF_A_MILLION,
        Some(text) => {
            of_a_million(text).ok_or_else(|| ConfigError::new(RATIO, "must be 0 to 1, such as 0.01"))?
        }
    };
    let Some(url) = variable(URL).filter(|text| !text.is_empty()) else { return Ok(None) };
    let origin = url.strip_suffix('/').unwrap_or(&url);
    if !is_origin(origin) {
        return Err(ConfigError::new(
            URL,
            "must be http(s)://host[:port] without a path, such as http://127.0.0.1:4318",
        ));
    }
    Ok(Some(TraceConfig { url: format!("{origin}/v1/traces"), of_a_million }))
}

/// The share `text`, 0 to 1 with six decimals at most. The parser of floating-point numbers would be a twentieth of the Worker.
fn of_a_million(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if decimals.is_empty() || decimals.len() > 6 {
        return None;
    }
    let digit = |at| decimals.chars().nth(at).map_or(Some(0), |digit| digit.to_digit(10));
    let millionths = (0..6).try_fold(0, |number, at| Some(number * 10 + digit(at)?))?;
    match whole {
        "0" => Some(millionths),
        "1" if millionths == 0 => Some(1_000_000),
        _ => None,
    }
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
        Config::read(set, |_| false).map_err(|error| error.to_string())
    }

    /// The cores' origins and bindings.
    fn cores(config: &Config) -> Vec<(&str, Option<&str>)> {
        config.cores.iter().map(|core| (core.origin.as_str(), core.binding.as_deref())).collect()
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let config = read(&[]).unwrap();
        assert_eq!(cores(&config), [("http://127.0.0.1:8080", None)]);
        let Authenticator::Secret(UserTokens { rules, .. }) = config.authenticator else {
            panic!("{:?}", config.authenticator);
        };
        assert_eq!((rules.issuer.as_str(), rules.audience.as_str()), ("claimgate", "claimgate"));
        assert!(!config.demo);
        assert!(config.cors_origins.is_empty());
        assert_eq!(config.client_address, ClientAddress::Header("CF-Connecting-IP".to_owned()));
        assert_eq!(config.rate_limit, RateConfig { period_s: 10, fail_open: true });
        assert_eq!(config.traces, None);
    }

    #[test]
    fn several_cores_are_listed_with_commas() {
        let config = read(&[("CORE_URL", "http://a:1, https://b/ ,http://[::1]:8080")]).unwrap();
        let expected = [("http://a:1", None), ("https://b", None), ("http://[::1]:8080", None)];
        assert_eq!(cores(&config), expected);
    }

    #[test]
    fn bindings_need_no_url_and_are_as_many_as_are_said_to_be() {
        let bound = |count: Option<&str>| {
            let variable = |name: &str| match name {
                "EDGE_KEY" => Some(format!("k1:{KEY}")),
                "USER_JWT_KEY" => Some(KEY.to_owned()),
                "CORES" => count.map(str::to_owned),
                _ => None,
            };
            let config = Config::read(variable, |name| ["CORE", "CORE_2", "CORE_3"].contains(&name));
            config.map_err(|error| error.to_string())
        };
        assert_eq!(cores(&bound(None).unwrap()), [("http://core-1", Some("CORE"))]);
        let expected = [("http://core-1", Some("CORE")), ("http://core-2", Some("CORE_2"))];
        assert_eq!(cores(&bound(Some("2")).unwrap()), expected);
        assert_eq!(bound(Some("4")).unwrap_err(), "CORES is 4, but there is no binding CORE_4");
        for wrong in ["0", "9", "two"] {
            assert_eq!(bound(Some(wrong)).unwrap_err(), "CORES must be 1 to 8");
        }
    }

    #[test]
    fn limiters_fail_open_unless_they_are_to_fail_closed() {
        assert_eq!(read(&[]).unwrap().rate_limit.on_failure(), Ok(()));
        let closed = read(&[("RATE_ON_FAILURE", "closed"), ("RATE_PERIOD_S", "60")]).unwrap().rate_limit;
        assert_eq!(closed.period_s, 60);
        assert_eq!(closed.on_failure().unwrap_err().code, Code::Overloaded);
    }

    #[test]
    fn traces_go_to_the_collectors_own_path() {
        let traces = |url, ratio| read(&[("OTLP_URL", url), ("TRACE_RATIO", ratio)]).unwrap().traces.unwrap();
        let target = |url: &str, of_a_million| TraceConfig { url: url.to_owned(), of_a_million };
        assert_eq!(traces("http://c:4318/", ""), target("http://c:4318/v1/traces", 10_000));
        for (share, of_a_million) in
            [("1", 1_000_000), ("1.0", 1_000_000), ("0", 0), ("0.5", 500_000), ("0.000001", 1)]
        {
            assert_eq!(traces("https://c", share), target("https://c/v1/traces", of_a_million));
        }
    }

    #[test]
    fn the_address_is_the_proxys_word_or_the_peers() {
        let address = |text| read(&[("CLIENT_ADDRESS", text)]).unwrap().client_address;
        assert_eq!(address("peer"), ClientAddress::Peer);
        assert_eq!(address("X-Real-IP"), ClientAddress::Header("X-Real-IP".to_owned()));
    }

    #[test]
    fn a_wrong_value_names_its_variable() {
        for (name, value) in [
            ("CORE_URL", "unset"),
            ("CORE_URL", "core:8080"),
            ("CORE_URL", "https://core.example/base"),
            ("CORE_URL", "https://"),
            ("CORE_URL", ""),
            ("CORE_URL", "http://a,"),
            ("CORE_URL", "http://a,,http://b"),
            ("CORE_URL", "http://a http://b"),
            ("CORE_URL", "http://a,http://a/"),
            ("CORE_URL", "http://1,http://2,http://3,http://4,http://5,http://6,http://7,http://8,http://9"),
            ("EDGE_KEY", "unset"),
            ("EDGE_KEY", KEY),
            ("EDGE_KEY", "k1:c2hvcnQ"),
            ("USER_JWT_KEY", "unset"),
            ("USER_JWT_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
            ("USER_JWT_ALG", "none"),
            ("USER_JWT_ALG", "RS256"),
            ("USER_JWT_ISS", ""),
            ("USER_JWT_AUD", ""),
            ("DEMO", "true"),
            ("CLIENT_ADDRESS", "X Real IP"),
            ("RATE_PERIOD_S", "0"),
            ("RATE_PERIOD_S", "ten"),
            ("RATE_ON_FAILURE", "ajar"),
            ("OTLP_URL", "127.0.0.1:4318"),
            ("OTLP_URL", "http://127.0.0.1:4318/v1/traces"),
            ("TRACE_RATIO", "all"),
            ("TRACE_RATIO", "1.1"),
            ("TRACE_RATIO", "-0"),
            ("TRACE_RATIO", "0."),
            ("TRACE_RATIO", "0.+1"),
            ("TRACE_RATIO", "0.0000001"),
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
    fn a_secret_is_no_public_key() {
        for algorithm in ["ES256", "EdDSA"] {
            let error = read(&[("USER_JWT_ALG", algorithm)]).unwrap_err();
            assert!(error.starts_with("USER_JWT_KEY ") && !error.contains(KEY), "{error}");
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
