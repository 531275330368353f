//! One of claimgate's listeners, and the one way to call it.

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::http::{REPLAYED, REPLAYED_HEADER};
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use rustls_native_certs::load_native_certs;
use serde::de::DeserializeOwned;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::Problem;
use crate::{Answer, Error, Retries};

/// The longest wait for an answer: longer than claimgate takes for any call but an import.
const WAIT: Duration = Duration::from_secs(10);

/// The longest `Retry-After` that is believed, in seconds: a day.
const RETRY_AFTER_MAX_S: u64 = 86_400;

/// A listener.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    client: Client,
    address: String,
    pub(crate) retries: Retries,
}

impl Listener {
    /// The listener at `address`, such as `http://127.0.0.1:8080` or `https://claims.example.com`.
    pub(crate) fn new(address: &str) -> Result<Self, Error> {
        let wrong =
            |why: &str| Error::Setup(format!("{address}: must be http://HOST:PORT or https://HOST{why}"));
        let url: Url = address.parse().map_err(|_| wrong(""))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(wrong(""));
        }
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(wrong(" with nothing behind it"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(" without a user"));
        }
        // A redirect would make a look-up of a claim.
        let client = Client::builder().timeout(WAIT).no_proxy().redirect(Policy::none());
        let client = client.tls_backend_preconfigured(tls(url.scheme() == "https")?).build();
        let client = client.map_err(|error| Error::Setup(told(error)))?;
        let address = address.trim_end_matches('/').to_owned();
        Ok(Self { client, address, retries: Retries::default() })
    }

    /// A request to be filled in; `path` begins with a slash and may have a query.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.address))
    }

    /// Sends `request`, which is safe to repeat, until its outcome is known.
    pub(crate) async fn send_until_decided<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<Answer<T>, Error> {
        let again = || request.try_clone().ok_or_else(|| Error::Setup("a body that is read once".to_owned()));
        self.retries.until_decided(async || self.send(again()?).await).await
    }

    /// Sends `request` once and reads the answer.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<Answer<T>, Error> {
        let response = request.send().await.map_err(|error| self.not_received(error))?;
        let (status, retry_after) = (response.status(), retry_after(&response));
        let replayed = response.headers().get(REPLAYED_HEADER).is_some_and(|value| value == REPLAYED);
        let body = response.bytes().await.map_err(|error| self.not_received(error))?;
        let foreign = || self.no_answer(format!("it answers {status}, but not as claimgate does"), true);
        let json = serde_json::from_slice(&body).map_err(|_| foreign())?;
        if status.is_success() {
            return Ok(Answer::new(json, replayed));
        }
        Err(Problem::of(status, retry_after, json)
            .map_or_else(foreign, |problem| Error::Problem(Box::new(problem))))
    }

    fn not_received(&self, error: reqwest::Error) -> Error {
        let sent = !error.is_connect();
        self.no_answer(told(error), sent)
    }

    fn no_answer(&self, why: String, sent: bool) -> Error {
        Error::NoAnswer { address: self.address.clone(), why, sent }
    }
}

/// TLS that trusts this machine's certificate authorities, or those in the file that `SSL_CERT_FILE` names. They are read only
/// where TLS `is_needed`.
fn tls(is_needed: bool) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    if is_needed {
        roots.add_parsable_certificates(load_native_certs().certs);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions();
    let config = config.map_err(|error| Error::Setup(format!("TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds: u64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds.min(RETRY_AFTER_MAX_S)))
}

/// An error with its causes, without the address that it was about.
fn told(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_called_is_refused_at_once() {
        for good in [
            "http://127.0.0.1:8080",
            "http://core.internal/",
            "http://[::1]:8787",
            "https://claims.example.com",
        ] {
            assert!(Listener::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1:8080",
            "ftp://claims.example.com",
            "http://",
            "http://h/v1",
            "http://h/?a=b",
            "http://u:p@h",
        ] {
            let error = Listener::new(bad).unwrap_err().to_string();
            assert!(error.contains("must be http://HOST:PORT"), "{bad}: {error}");
        }
    }
}
