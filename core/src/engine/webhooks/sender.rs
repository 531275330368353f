//! Sends one event to one receiver, signed according to Standard Webhooks. The connection goes to exactly the
//! address that was checked.
//!
//! There are no proxies, redirects or reused connections, so that core contacts only hosts on the operator's
//! list.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use bytes::Bytes;
use claimgate_shared::Timestamp;
use claimgate_shared::http::retry_after;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_native_certs::load_native_certs;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::lookup_host;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::clock;
use crate::connect::connect;
use crate::domain::webhook::{Webhook, WebhookEvent};
use crate::webhook_hosts::{Receiver, WebhookHosts};

/// Timeout of one try, from name resolution to the end of the response.
pub const TRY_MAX: Duration = Duration::from_secs(10);
/// Limits on reading a response body, which is discarded.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const ANSWER_READ_MAX: Duration = Duration::from_secs(1);

/// The outcome of one try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver accepted the event.
    Delivered,
    /// The receiver did not accept the event, or the outcome is unknown. Includes the delay that the receiver
    /// requested, if any.
    Failed(String, Option<Duration>),
    /// The receiver answered 410 Gone: it wants no further events.
    Gone,
}

/// Sends events to listed receivers.
#[derive(Clone, Default)]
pub struct WebhookSender {
    hosts: WebhookHosts,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for WebhookSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookSender").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl WebhookSender {
    /// Creates a sender to `hosts`. It trusts this machine's certificate authorities, or the ones in the file
    /// `SSL_CERT_FILE`.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new(hosts: WebhookHosts) -> Result<Self, String> {
        if hosts.is_empty() {
            return Ok(Self::default());
        }
        let found = load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() && hosts.use_tls() {
            tracing::warn!(
                errors = ?found.errors,
                "no certificate authority was found: no webhook is delivered over TLS; install ca-certificates, or set \
                 SSL_CERT_FILE"
            );
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { hosts, tls: Some(TlsConnector::from(Arc::new(config))) })
    }

    /// Returns whether webhooks are enabled.
    pub fn is_on(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Checks the URL of a new webhook: the host must be listed, and at least one of its addresses must be
    /// callable.
    pub async fn check(&self, url: &str) -> Result<(), String> {
        let receiver = Receiver::parse(url)?;
        self.hosts.check(&receiver)?;
        match timeout(TRY_MAX / 10, self.resolve(&receiver)).await {
            Ok(Err(Unreachable::Private)) => Err(Unreachable::Private.to_string()),
            // A name that does not resolve yet may resolve by the time of the first event.
            _ => Ok(()),
        }
    }

    /// Sends `event` to `webhook` once, with the time `now`.
    pub async fn send(&self, webhook: &Webhook, event: &WebhookEvent, now: Timestamp) -> DeliveryOutcome {
        match timeout(TRY_MAX, self.try_send(webhook, event, now)).await {
            Ok(Ok(sent)) => sent,
            Ok(Err(error)) => DeliveryOutcome::Failed(error.to_string(), None),
            Err(_) => DeliveryOutcome::Failed(format!("no answer within {} s", TRY_MAX.as_secs()), None),
        }
    }

    async fn try_send(
        &self,
        webhook: &Webhook,
        event: &WebhookEvent,
        now: Timestamp,
    ) -> Result<DeliveryOutcome, Unreachable> {
        let receiver = Receiver::parse(&webhook.url).map_err(Unreachable::other)?;
        self.hosts.check(&receiver).map_err(Unreachable::other)?;
        let request = request(&receiver, webhook, event, now)?;
        let stream = connect(&self.resolve(&receiver).await?).await?;
        // The request is a single write, so Nagle's algorithm would only delay it.
        stream.set_nodelay(true)?;
        let tls = self.tls.as_ref().filter(|_| !receiver.is_plain);
        let response = match tls {
            Some(tls) => {
                let name = ServerName::try_from(receiver.name()).map_err(Unreachable::other)?;
                exchange(tls.connect(name, stream).await?, request).await?
            }
            None => exchange(stream, request).await?,
        };
        Ok(outcome_of(&response))
    }

    /// Returns the addresses at which a receiver may be called. The list is not empty.
    async fn resolve(&self, receiver: &Receiver) -> Result<Vec<SocketAddr>, Unreachable> {
        let addresses: Vec<_> = lookup_host((receiver.name(), receiver.port)).await?.collect();
        if addresses.is_empty() {
            return Err(Unreachable::other("its name resolves to no address"));
        }
        let callable = self.hosts.callable(addresses);
        if callable.is_empty() { Err(Unreachable::Private) } else { Ok(callable) }
    }
}

#[derive(Debug, thiserror::Error)]
enum Unreachable {
    #[error(
        "its name resolves to a private address, which must be listed itself in CLAIMGATE_WEBHOOK_HOSTS, with this port"
    )]
    Private,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Other(String),
}

impl Unreachable {
    #[allow(clippy::needless_pass_by_value)] // as map_err calls it
    fn other(why: impl ToString) -> Self {
        Self::Other(why.to_string())
    }
}

fn request(
    receiver: &Receiver,
    webhook: &Webhook,
    event: &WebhookEvent,
    now: Timestamp,
) -> Result<Request<Full<Bytes>>, Unreachable> {
    let seconds = now.as_ms() / 1000;
    let signatures = webhook.secrets(now).map(|secret| {
        let signer = standardwebhooks::Webhook::new(secret).map_err(Unreachable::other)?;
        signer.sign(&event.id, seconds, event.body.as_bytes()).map_err(Unreachable::other)
    });
    let signatures = signatures.collect::<Result<Vec<_>, _>>()?.join(" ");
    let url = &receiver.url;
    let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let host = url.port().map_or_else(
        || url.host_str().map(str::to_owned),
        |port| Some(format!("{}:{port}", url.host_str()?)),
    );
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, host.unwrap_or_default())
        .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(USER_AGENT, concat!("claimgate/", env!("CARGO_PKG_VERSION")))
        .header("webhook-id", &event.id)
        .header("webhook-timestamp", seconds)
        .header("webhook-signature", signatures)
        .body(Full::new(Bytes::copy_from_slice(event.body.as_bytes())))
        .map_err(Unreachable::other)
}

/// Sends `request` and returns the head of the response. The body is read and discarded, so that the receiver
/// can finish sending it.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<axum::http::response::Parts, Unreachable> {
    let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await?;
    let exchanged = async {
        let (head, body): (_, Incoming) = sender.send_request(request).await?.into_parts();
        // A longer or slower body is not read to its end: only the status counts.
        let _ = timeout(ANSWER_READ_MAX, Limited::new(body, ANSWER_BYTES_MAX).collect()).await;
        Ok(head)
    };
    // If the connection ends before the response is read, the response still arrives, or the request fails.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        answer = exchanged => answer,
        never = driven => match never {},
    }
}

fn outcome_of(answer: &axum::http::response::Parts) -> DeliveryOutcome {
    match answer.status {
        StatusCode::GONE => DeliveryOutcome::Gone,
        status if status.is_success() => DeliveryOutcome::Delivered,
        status => {
            let after = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let after = after.and_then(|value| retry_after(value, clock::now()));
            DeliveryOutcome::Failed(format!("status {}", status.as_u16()), after)
        }
    }
}
