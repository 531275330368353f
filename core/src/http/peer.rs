//! Whether who has called is still there.

use std::future::pending;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use tokio::net::TcpStream;

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer(Option<Arc<TcpStream>>);

impl Peer {
    /// Of `stream`, by a descriptor of its own: who serves the connection does not look at it while a call is answered. Without a
    /// descriptor left nothing is known of the peer.
    pub fn of(stream: &TcpStream) -> Self {
        let own = stream.as_fd().try_clone_to_owned();
        Self(own.and_then(|own| TcpStream::from_std(own.into())).ok().map(Arc::new))
    }

    /// Waits until it has closed its side: it is gone, or wants no more than the answer to what it has sent. For ever where that
    /// cannot be told, as when it has sent its next call already.
    pub async fn closes(&self) {
        let Some(stream) = &self.0 else { return pending().await };
        if let Ok(1..) = stream.peek(&mut [0]).await {
            pending::<()>().await;
        }
    }
}
