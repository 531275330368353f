//! HTTP calls to one of claimgate's listeners. All clients use it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use claimgate_shared::Timestamp;
use claimgate_shared::http::{self, REPLAYED, REPLAYED_HEADER};
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use rustls_native_certs::load_native_certs;
use serde::de::DeserializeOwned;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::Problem;
use crate::{Answer, Error, Retries};

/// Timeout of one try. Longer than the server's timeout for every call except an import.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of connecting, divided evenly among the addresses of a name. Without one, the first address that swallows
/// packets would use all of [`TIMEOUT`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum `Retry-After`, a day. Longer values are capped.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone)]
pub(crate) struct Listener {
    client: Client,
    address: String,
    pub(crate) try_timeout: Duration,
    pub(crate) retries: Retries,
}

impl Listener {
    /// Creates a client for the listener at `address`, such as `http://127.0.0.1:8080` or `https://claims.example.com`.
    pub(crate) fn new(address: &str) -> Result<Self, Error> {
        let invalid =
            |why: &str| Error::Setup(format!("{address}: must be http://HOST:PORT or https://HOST{why}"));
        let url: Url = address.parse().map_err(|_| invalid(""))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(invalid(""));
        }
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(invalid(" without a path"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid(" without a user name"));
        }
        // A redirect would turn the POST of a claim into a GET.
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT);
        let client = client.no_proxy().redirect(Policy::none());
        let client = client.tls_backend_preconfigured(tls(url.scheme() == "https")?).build();
        let client = client.map_err(|error| Error::Setup(error_text(error)))?;
        let address = address.trim_end_matches('/').to_owned();
        Ok(Self { client, address, try_timeout: TIMEOUT, retries: Retries::default() })
    }

    /// Starts a request. `path` begins with a slash and may have a query.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.address)).timeout(self.try_timeout)
    }

    /// Sends an idempotent request, and retries it until its outcome is known.
    pub(crate) async fn send_until_decided<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<Answer<T>, Error> {
        self.retries.until_decided(async || self.send(copy_of(&request)?).await).await
    }

    /// Sends a request once.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<Answer<T>, Error> {
        let response = self.respond(request).await?;
        let replayed = response.headers().get(REPLAYED_HEADER).is_some_and(|value| value == REPLAYED);
        let status = response.status();
        let body = response.bytes().await.map_err(|error| self.not_received(error))?;
        Ok(Answer::new(serde_json::from_slice(&body).map_err(|_| self.not_claimgate(status))?, replayed))
    }

    /// Sends a GET whose response is a string in UTF-8, and retries it until its outcome is known.
    pub(crate) async fn text(&self, request: RequestBuilder) -> Result<Answer<String>, Error> {
        let text = self.retries.until_decided(async || {
            let response = self.respond(copy_of(&request)?).await?;
            response.text().await.map_err(|error| self.not_received(error))
        });
        Ok(Answer::new(text.await?.into(), false))
    }

    /// Returns a response with a status of success, with its body unread.
    async fn respond(&self, request: RequestBuilder) -> Result<Response, Error> {
        let response = request.send().await.map_err(|error| self.not_received(error))?;
        let (status, retry_after) = (response.status(), retry_after(&response));
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await.map_err(|error| self.not_received(error))?;
        let json = serde_json::from_slice(&body).map_err(|_| self.not_claimgate(status))?;
        Err(Problem::from_json(status, retry_after, json)
            .map_or_else(|| self.not_claimgate(status), |problem| Error::Problem(Box::new(problem))))
    }

    fn not_claimgate(&self, status: StatusCode) -> Error {
        self.no_answer(format!("{status}, but not from claimgate"), true)
    }

    fn not_received(&self, error: reqwest::Error) -> Error {
        let sent = !error.is_connect();
        self.no_answer(error_text(error), sent)
    }

    fn no_answer(&self, why: String, sent: bool) -> Error {
        Error::NoAnswer { address: self.address.clone(), why, sent }
    }
}

fn copy_of(request: &RequestBuilder) -> Result<RequestBuilder, Error> {
    request.try_clone().ok_or_else(|| Error::Setup("the body can be sent only once".to_owned()))
}

/// Builds a TLS configuration that trusts this machine's certificate authorities, or the ones in
/// `SSL_CERT_FILE`. The certificates are read only if TLS `is_needed`.
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
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_ms(i64::try_from(since_1970.as_millis()).ok()?).ok()?;
    let after = http::retry_after(response.headers().get(RETRY_AFTER)?.to_str().ok()?, now)?;
    Some(after.min(RETRY_AFTER_MAX))
}

/// Returns the messages of the error and its causes, without the URL.
fn error_text(error: reqwest::Error) -> String {
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
    fn an_address_that_cannot_be_called_is_rejected_immediately() {
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
