//! Fetching the issuer's key set.

use std::fmt::Display;

use claimgate_shared::jwt::Algorithm;
use serde::Deserialize;
use wasm_bindgen::JsValue;
use web_sys::WorkerGlobalScope;
use worker::Env;
use worker::js_sys::{Object, Reflect};

use super::key_set::KeySet;
use super::key_url::KeyUrl;
use crate::outbound;

const BODY_BYTES_MAX: usize = 64 * 1024;
/// TTL of a response in the cache of Cloudflare's location, so that its isolates share one fetch.
const LOCATION_TTL_S: u32 = 30;

/// The source of the key set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// `USER_JWT_JWKS_URL`.
    Url(KeyUrl),
    /// The `jwks_uri` in the discovery document of `USER_JWT_ISS`.
    Issuer(KeyUrl),
}

/// A fetched key set.
#[derive(Debug)]
pub struct FetchedKeys {
    /// The set, imported.
    pub keys: KeySet,
    /// The `max-age` of the response, in seconds.
    pub max_age_s: Option<u32>,
}

/// Why no key set was fetched, for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {why}")]
pub struct FetchError {
    url: String,
    why: String,
}

impl FetchError {
    fn new(url: &str, why: impl Display) -> Self {
        Self { url: url.to_owned(), why: why.to_string() }
    }
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl KeySource {
    /// Returns the variable that sets the source.
    pub fn variable(&self) -> &'static str {
        match self {
            Self::Url(_) => "USER_JWT_JWKS_URL",
            Self::Issuer(_) => "USER_JWT_ISS",
        }
    }

    fn url(&self) -> &KeyUrl {
        match self {
            Self::Url(url) | Self::Issuer(url) => url,
        }
    }

    /// Fetches the key set. `allowed` lists the algorithms of `USER_JWT_ALG`, if that is set.
    ///
    /// # Errors
    /// The URL that failed, and why.
    pub async fn fetch(&self, env: &Env, allowed: Option<&[Algorithm]>) -> Result<FetchedKeys, FetchError> {
        let fetcher = outbound::fetcher(env, self.url());
        let url = match self {
            Self::Url(url) => url.as_str().to_owned(),
            Self::Issuer(issuer) => {
                let url = issuer.discovery();
                let (document, _) = get(&fetcher, &url).await.map_err(|why| FetchError::new(&url, why))?;
                jwks_uri(&document, issuer).map_err(|why| FetchError::new(&url, why))?
            }
        };
        let (set, max_age_s) = get(&fetcher, &url).await.map_err(|why| FetchError::new(&url, why))?;
        let parsed = KeySet::parse(&set, allowed).map_err(|why| FetchError::new(&url, why))?;
        Ok(FetchedKeys { keys: parsed.imported().await, max_age_s })
    }
}

/// Returns the address of the key set in a discovery document. Only an issuer on this machine may name an
/// address on this machine.
fn jwks_uri(document: &[u8], issuer: &KeyUrl) -> Result<String, String> {
    let document: Discovery =
        serde_json::from_slice(document).map_err(|error| format!("is not a discovery document: {error}"))?;
    if document.issuer != issuer.as_str() {
        return Err(format!("its issuer is {:?}, not USER_JWT_ISS", bounded(&document.issuer)));
    }
    match KeyUrl::parse(&document.jwks_uri) {
        Ok(url) if issuer.is_loopback() || !url.is_loopback() => Ok(document.jwks_uri),
        _ => Err(format!("its jwks_uri {:?} is not https", bounded(&document.jwks_uri))),
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Returns the body at `url` and its `max-age`.
async fn get(fetcher: &WorkerGlobalScope, url: &str) -> Result<(Vec<u8>, Option<u32>), String> {
    let request = request(url).map_err(|error| format!("{error:?}"))?;
    let response = outbound::send(fetcher, &request).await?;
    if response.status() != 200 {
        return Err(format!("status {}", response.status()));
    }
    let cache_control = response.headers().get("cache-control").ok().flatten();
    let body = outbound::body(&response, BODY_BYTES_MAX).await?;
    Ok((body, cache_control.as_deref().and_then(max_age_s)))
}

fn request(url: &str) -> Result<web_sys::Request, JsValue> {
    let init = outbound::bounded_init();
    // Only successful responses: a failure must not last longer than the source's.
    let (cf, ttl) = (Object::new(), Object::new());
    Reflect::set(&ttl, &"200-299".into(), &LOCATION_TTL_S.into())?;
    Reflect::set(&ttl, &"300-599".into(), &0.into())?;
    Reflect::set(&cf, &"cacheTtlByStatus".into(), &ttl)?;
    Reflect::set(&init, &"cf".into(), &cf)?;
    web_sys::Request::new_with_str_and_init(url, &init)
}

/// Returns the `max-age` in `Cache-Control`.
fn max_age_s(cache_control: &str) -> Option<u32> {
    let mut directives = cache_control.split(',').filter_map(|directive| directive.trim().split_once('='));
    directives.find(|(name, _)| name.eq_ignore_ascii_case("max-age"))?.1.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_max_age_is_read_from_cache_control() {
        for (header, seconds) in [
            ("max-age=300", Some(300)),
            ("public, Max-Age=\"86400\", must-revalidate", Some(86_400)),
            ("s-maxage=5", None),
            ("no-store", None),
            ("max-age=-1", None),
            ("max-age=99999999999", None),
        ] {
            assert_eq!(max_age_s(header), seconds, "{header}");
        }
    }

    #[test]
    fn a_discovery_document_names_its_issuer_and_a_safe_address() {
        let read = |document: &str, issuer: &str| {
            jwks_uri(document.as_bytes(), &KeyUrl::parse(issuer).unwrap()).ok()
        };
        let public = r#"{"issuer":"https://a.example/","jwks_uri":"https://keys.example/jwks"}"#;
        assert_eq!(read(public, "https://a.example/").as_deref(), Some("https://keys.example/jwks"));
        assert_eq!(read(public, "https://a.example"), None, "the issuer is compared exactly");
        assert_eq!(read("{}", "https://a.example/"), None);
        for uri in ["http://keys.example/jwks", "https://localhost/jwks", "http://127.0.0.1/jwks", "keys"] {
            let document = format!(r#"{{"issuer":"https://a.example/","jwks_uri":"{uri}"}}"#);
            assert_eq!(read(&document, "https://a.example/"), None, "{uri}");
        }
        let local = r#"{"issuer":"http://127.0.0.1:9","jwks_uri":"http://127.0.0.1:9/jwks"}"#;
        assert_eq!(read(local, "http://127.0.0.1:9").as_deref(), Some("http://127.0.0.1:9/jwks"));
    }
}
