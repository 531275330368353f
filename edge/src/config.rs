//! The Worker's settings: variables from wrangler.toml and secrets from the platform, read once per isolate.

mod cores;
mod rates;
mod traces;

use claimgate_shared::CampaignId;
use claimgate_shared::signature::NamedKey;
use claimgate_shared::user_id::UserIdRule;

pub use self::cores::CoreAddress;
pub use self::rates::RateConfig;
pub use self::traces::TraceConfig;
use crate::auth::passes::PassKeys;
use crate::auth::{self, Authenticator};
use crate::challenge::{self, Challenges};
use crate::sign_in::{self, SignIn};
use crate::user_ids;
use crate::variables::{ConfigError, ConfigErrors, is_header_name, is_origin, secret};

/// The Worker's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// `CORE_URL`, or `CORES` and the service bindings: the cores' addresses, at least one.
    pub cores: Vec<CoreAddress>,
    /// `EDGE_KEY`: signs requests to core.
    pub edge_key: NamedKey,
    /// The variables `USER_JWT_…`: how user tokens are verified.
    pub authenticator: Authenticator,
    /// `PASS_KEYS`: the keys of passes.
    pub pass_keys: PassKeys,
    /// `USER_ID_CLAIM`, `USER_ID_FORM`, `USER_ID_KEY`: how users' ids are derived from their tokens.
    pub user_ids: UserIdRule,
    /// `OIDC_CLIENT_ID`, `OIDC_SCOPE`, `OIDC_AUDIENCE`, or `SIGN_IN_URL`: how visitors of the page sign in.
    pub sign_in: Option<SignIn>,
    /// `CHALLENGE`, `PASS_SIGNING_KEY` and what belongs to them: the passes that this edge issues.
    pub challenges: Option<Challenges>,
    /// `DEMO`: whether any client may mint a token for any user. For the local environment only.
    pub demo: bool,
    /// `DEFAULT_CAMPAIGN`: the campaign that the page shows if its URL names none.
    pub default_campaign: Option<CampaignId>,
    /// `CORS_ORIGINS`: other origins whose pages may read responses.
    pub cors_origins: Vec<String>,
    /// `CLIENT_ADDRESS`: the source of the client's address.
    pub client_address: ClientAddress,
    /// `RATE_PERIOD_S`, `RATE_ON_FAILURE`: the rate limiters' period, and whether they fail open.
    pub rate_limit: RateConfig,
    /// `OTLP_URL`, `TRACE_RATIO`: where to send traces, and how many; `None` disables tracing.
    pub traces: Option<TraceConfig>,
}

/// The source of the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAddress {
    /// A header, which Cloudflare or a proxy in front of the Worker must set or remove.
    Header(String),
    /// The runtime: the peer address of the connection.
    Peer,
}

impl Config {
    /// Reads all settings with `variable`, which returns `None` for an unset one. `is_bound` returns whether
    /// a service binding exists: if `CORE` does, `CORE_URL` is ignored.
    ///
    /// # Errors
    /// Names all missing or invalid variables; never contains a secret.
    pub async fn read(
        variable: impl Fn(&str) -> Option<String>,
        is_bound: impl Fn(&str) -> bool,
    ) -> Result<Self, ConfigErrors> {
        // An unset variable in a Compose file arrives as `NAME=`.
        let variable =
            |name: &str| variable(name).map(|text| trimmed(&text).to_owned()).filter(|text| !text.is_empty());
        let mut errors = ConfigErrors::default();
        let cores = errors.keep(cores::read(variable, is_bound));
        let edge_key = errors.keep(secret(variable, "EDGE_KEY"));
        let authenticator = auth::settings::authenticator(variable, &mut errors).await;
        let pass_keys = PassKeys::read(variable, &mut errors).await;
        let user_ids = errors.keep(user_ids::read(variable));
        let sign_in = errors.keep(sign_in::read(variable));
        let challenges = errors.keep(challenge::read(variable));
        let demo = errors.keep(demo(variable));
        let default_campaign = errors.keep(default_campaign(variable));
        let cors_origins = errors.keep(cors_origins(variable));
        let client_address = errors.keep(client_address(variable));
        let rate_limit = errors.keep(rates::read(variable));
        let traces = errors.keep(traces::read(variable));
        let read = || {
            Some(Self {
                cores: cores?,
                edge_key: edge_key?,
                authenticator: authenticator?,
                pass_keys: pass_keys?,
                user_ids: user_ids?,
                sign_in: sign_in?,
                challenges: challenges?,
                demo: demo?,
                default_campaign: default_campaign?,
                cors_origins: cors_origins?,
                client_address: client_address?,
                rate_limit: rate_limit?,
                traces: traces?,
            })
        };
        read().ok_or(errors)
    }
}

/// Removes white space and byte order marks around a value.
fn trimmed(text: &str) -> &str {
    text.trim_matches(|char: char| char.is_whitespace() || char == '\u{feff}')
}

fn demo(variable: impl Fn(&str) -> Option<String>) -> Result<bool, ConfigError> {
    match variable("DEMO").as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) => Err(ConfigError::new("DEMO", "must be 1, 0 or unset")),
    }
}

fn default_campaign(variable: impl Fn(&str) -> Option<String>) -> Result<Option<CampaignId>, ConfigError> {
    const NAME: &str = "DEFAULT_CAMPAIGN";
    let id = variable(NAME).filter(|text| !text.is_empty()).map(CampaignId::try_from);
    id.transpose().map_err(|why| ConfigError::new(NAME, why))
}

fn cors_origins(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, ConfigError> {
    let list = variable("CORS_ORIGINS").unwrap_or_default();
    let origins = list.split(',').map(str::trim).filter(|origin| !origin.is_empty());
    let form =
        "must be a comma-separated list of http(s)://host[:port], the host in ASCII (xn--…); no wildcard";
    origins
        .map(|origin| browser_origin(origin).ok_or_else(|| ConfigError::new("CORS_ORIGINS", form)))
        .collect()
}

/// Normalizes an origin to the form that browsers send: lower case, without the scheme's default port.
/// Returns `None` if no browser can send it.
fn browser_origin(text: &str) -> Option<String> {
    let origin = text.to_ascii_lowercase();
    let (scheme, authority) = origin.split_once("://")?;
    // The colons of an IPv6 address are inside brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_address = host.starts_with('[') && host.ends_with(']');
    if !is_origin(&origin) || host.is_empty() || !is_address && host.contains([':', '[', ']']) {
        return None;
    }
    let Some(port) = port else { return Some(origin) };
    let number: u16 = port.parse().ok()?;
    match (scheme, number) {
        (_, 0) => None,
        ("https", 443) | ("http", 80) => Some(format!("{scheme}://{host}")),
        _ => Some(format!("{scheme}://{host}:{number}")),
    }
}

fn client_address(variable: impl Fn(&str) -> Option<String>) -> Result<ClientAddress, ConfigError> {
    const NAME: &str = "CLIENT_ADDRESS";
    match variable(NAME).as_deref() {
        None => Ok(ClientAddress::Header("CF-Connecting-IP".to_owned())),
        Some("peer") => Ok(ClientAddress::Peer),
        Some(name) if is_header_name(name) => Ok(ClientAddress::Header(name.to_owned())),
        Some(_) => Err(ConfigError::new(NAME, "must be a header name, or peer")),
    }
}

#[cfg(test)]
mod tests {
    use claimgate_shared::Code;
    use claimgate_shared::jwt::{TokenRules, UserTokens};
    use futures_util::FutureExt as _;

    use super::*;
    use crate::auth::Verifier;

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
        ready(Config::read(set, |_| false))
    }

    /// Returns the settings, for which no key is imported.
    fn ready(read: impl Future<Output = Result<Config, ConfigErrors>>) -> Result<Config, String> {
        read.now_or_never().expect("nothing to wait for").map_err(|error| error.to_string())
    }

    /// Returns the cores' origins and bindings.
    fn cores(config: &Config) -> Vec<(&str, Option<&str>)> {
        config.cores.iter().map(|core| (core.origin.as_str(), core.binding.as_deref())).collect()
    }

    #[test]
    fn unset_variables_have_defaults() {
        let config = read(&[]).unwrap();
        assert_eq!(cores(&config), [("http://127.0.0.1:8080", None)]);
        let Verifier::Secret(UserTokens { rules, .. }) = &config.authenticator.verifier else {
            panic!("{:?}", config.authenticator);
        };
        assert_eq!(*rules, TokenRules::new("claimgate".to_owned(), "claimgate".to_owned()));
        assert!(!config.demo);
        assert_eq!(config.default_campaign, None);
        assert!(config.cors_origins.is_empty());
        assert_eq!(config.client_address, ClientAddress::Header("CF-Connecting-IP".to_owned()));
        assert_eq!(config.rate_limit, RateConfig { period_s: 10, fail_open: true });
        assert_eq!(config.traces, None);
    }

    #[test]
    fn empty_variables_count_as_unset_and_values_are_trimmed() {
        let optional = [
            "USER_JWT_ALG",
            "USER_JWT_ISS",
            "USER_JWT_AUD",
            "USER_JWT_REQUIRE",
            "USER_JWT_LEEWAY_S",
            "USER_JWT_HEADER",
            "USER_JWT_JWKS",
            "USER_JWT_JWKS_URL",
            "PASS_KEYS",
            "USER_ID_CLAIM",
            "USER_ID_FORM",
            "USER_ID_KEY",
            "OIDC_CLIENT_ID",
            "OIDC_SCOPE",
            "OIDC_AUDIENCE",
            "SIGN_IN_URL",
            "CHALLENGE",
            "PASS_SIGNING_KEY",
            "PASS_SECONDS",
            "CHALLENGE_SECONDS",
            "CHALLENGE_ON_FAILURE",
            "ALTCHA_ATTEMPTS",
            "TURNSTILE_SECRET",
            "TURNSTILE_SITE_KEY",
            "TURNSTILE_HOSTNAMES",
            "TURNSTILE_URL",
            "DEMO",
            "CORS_ORIGINS",
            "CLIENT_ADDRESS",
            "RATE_PERIOD_S",
            "RATE_ON_FAILURE",
            "OTLP_URL",
            "TRACE_RATIO",
        ];
        let defaults = format!("{:?}", read(&[]).unwrap());
        for name in optional {
            for empty in ["", " ", "\n", "\u{feff}"] {
                assert_eq!(format!("{:?}", read(&[(name, empty)]).unwrap()), defaults, "{name}={empty:?}");
            }
        }
        let key = format!("\u{feff} k1:{KEY}\r\n");
        assert_eq!(
            format!("{:?}", read(&[("EDGE_KEY", &key), ("RATE_PERIOD_S", " 10 ")]).unwrap()),
            defaults
        );
        for required in ["CORE_URL", "EDGE_KEY", "USER_JWT_KEY"] {
            assert_eq!(read(&[(required, " ")]).unwrap_err(), format!("{required} is not set"));
        }
        for key in [format!("k1:{KEY}\nk2:{KEY}"), format!("\"k1:{KEY}\""), format!("k1: {KEY}")] {
            assert!(read(&[("EDGE_KEY", &key)]).unwrap_err().starts_with("EDGE_KEY "), "{key}");
        }
    }

    #[test]
    fn core_url_may_list_several_cores() {
        let config = read(&[("CORE_URL", "http://a:1, https://b/ ,http://[::1]:8080")]).unwrap();
        let expected = [("http://a:1", None), ("https://b", None), ("http://[::1]:8080", None)];
        assert_eq!(cores(&config), expected);
    }

    #[test]
    fn service_bindings_replace_core_url_and_are_counted_by_cores() {
        let bound = |count: Option<&str>| {
            let variable = |name: &str| match name {
                "EDGE_KEY" => Some(format!("k1:{KEY}")),
                "USER_JWT_KEY" => Some(KEY.to_owned()),
                "CORES" => count.map(str::to_owned),
                _ => None,
            };
            ready(Config::read(variable, |name| ["CORE", "CORE_2", "CORE_3"].contains(&name)))
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
    fn limiters_fail_open_unless_configured_to_fail_closed() {
        assert_eq!(read(&[]).unwrap().rate_limit.on_failure(), Ok(()));
        let closed = read(&[("RATE_ON_FAILURE", "closed"), ("RATE_PERIOD_S", "60")]).unwrap().rate_limit;
        assert_eq!(closed.period_s, 60);
        assert_eq!(closed.on_failure().unwrap_err().code, Code::Overloaded);
    }

    #[test]
    fn traces_are_sent_to_the_collectors_standard_path() {
        let traces = |url, ratio| read(&[("OTLP_URL", url), ("TRACE_RATIO", ratio)]).unwrap().traces.unwrap();
        let target = |url: &str, per_million| TraceConfig { url: url.to_owned(), per_million };
        assert_eq!(traces("http://c:4318/", ""), target("http://c:4318/v1/traces", 10_000));
        for (ratio, per_million) in
            [("1", 1_000_000), ("1.0", 1_000_000), ("0", 0), ("0.5", 500_000), ("0.000001", 1)]
        {
            assert_eq!(traces("https://c", ratio), target("https://c/v1/traces", per_million));
        }
    }

    #[test]
    fn the_client_address_is_from_a_header_or_the_connection() {
        let address = |text| read(&[("CLIENT_ADDRESS", text)]).unwrap().client_address;
        assert_eq!(address("peer"), ClientAddress::Peer);
        assert_eq!(address("X-Real-IP"), ClientAddress::Header("X-Real-IP".to_owned()));
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_variable() {
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
            ("USER_JWT_ALG", "RS256,ES256"),
            ("USER_JWT_ALG", "EdDSA,HS256"),
            ("USER_JWT_AUD", "none"),
            ("USER_JWT_AUD", "a,,b"),
            ("USER_JWT_AUD", "a,none"),
            ("USER_JWT_REQUIRE", "azp"),
            ("USER_JWT_REQUIRE", "azp=a,azp=b"),
            ("USER_JWT_REQUIRE", "iss=https://a.example"),
            ("USER_JWT_LEEWAY_S", "61"),
            ("USER_JWT_LEEWAY_S", "-1"),
            ("USER_JWT_HEADER", "X Token"),
            ("PASS_KEYS", KEY),
            ("PASS_KEYS", "shop:c2hvcnQ"),
            ("PASS_KEYS", &format!("shop:{KEY}")),
            ("DEMO", "true"),
            ("DEFAULT_CAMPAIGN", "the demo"),
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
            ("CORS_ORIGINS", "https://a.example:"),
            ("CORS_ORIGINS", "https://a.example:0"),
            ("CORS_ORIGINS", "https://a.example:65536"),
            ("CORS_ORIGINS", "https://a.example:80:80"),
            ("CORS_ORIGINS", "https://:443"),
            ("CORS_ORIGINS", "https://::1"),
            ("CORS_ORIGINS", "https://münchen.example"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("{name} ")), "{name}={value}: {error}");
            assert!(!error.contains(KEY), "{error}");
        }
    }

    #[test]
    fn all_missing_or_invalid_variables_are_reported_together() {
        let error = read(&[("EDGE_KEY", "unset"), ("USER_JWT_KEY", "unset"), ("DEMO", "yes")]).unwrap_err();
        assert_eq!(error, "EDGE_KEY is not set; USER_JWT_KEY is not set; DEMO must be 1, 0 or unset");
    }

    #[test]
    fn cors_origins_are_normalized_to_the_form_browsers_send() {
        for (written, sent) in [
            ("https://Shop.example", "https://shop.example"),
            ("HTTPS://shop.example:443", "https://shop.example"),
            ("http://shop.example:80", "http://shop.example"),
            ("http://shop.example:443", "http://shop.example:443"),
            ("https://shop.example:08443", "https://shop.example:8443"),
            ("https://[2001:DB8::443]", "https://[2001:db8::443]"),
            ("https://[2001:db8::1]:443", "https://[2001:db8::1]"),
        ] {
            let config = read(&[("CORS_ORIGINS", written)]).unwrap();
            assert_eq!(config.cors_origins, [sent], "{written}");
        }
    }

    #[test]
    fn lists_and_flags_are_parsed() {
        let config = read(&[
            ("CORS_ORIGINS", "https://a.example, http://[::1]:3000,"),
            ("DEMO", "1"),
            ("DEFAULT_CAMPAIGN", "spring"),
        ])
        .unwrap();
        assert_eq!(config.cors_origins, ["https://a.example", "http://[::1]:3000"]);
        assert!(config.demo);
        assert!(!format!("{config:?}").contains(KEY));
        assert_eq!(config.default_campaign.unwrap().as_str(), "spring");
    }
}
