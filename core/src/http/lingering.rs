//! Request bodies that are answered before they were read completely.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::timeout;

/// Limits for discarding an unread body: the number of bytes, and the time.
const BYTES_MAX: usize = claimgate_shared::http::BATCH_BYTES_MAX;
const LINGER: Duration = Duration::from_secs(1);

/// A request's body. When it is dropped, the unread rest is read and discarded while the response is already
/// being sent. If core closed the connection on bytes in flight, the kernel would reset it, and a client that
/// is still sending would not see the response.
#[derive(Debug)]
pub struct Lingering(Option<Incoming>);

impl From<Incoming> for Lingering {
    fn from(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if let Some(body) = self.0.take().filter(|body| !body.is_end_stream()) {
            tokio::spawn(timeout(LINGER, Limited::new(body, BYTES_MAX).collect()));
        }
    }
}
