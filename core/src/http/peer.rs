//! Detects that a caller has closed its connection.

use std::future::pending;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use tokio::net::TcpStream;

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer(Option<Arc<TcpStream>>);

impl Peer {
    /// Watches `stream` through a separate descriptor, because hyper does not read the connection while a
    /// call is answered. If no descriptor is left, a close is not detected.
    pub fn of(stream: &TcpStream) -> Self {
        let own = stream.as_fd().try_clone_to_owned();
        Self(own.and_then(|own| TcpStream::from_std(own.into())).ok().map(Arc::new))
    }

    /// Waits until the peer closes its side, because it has exited or expects only the current response.
    /// Never returns if a close cannot be detected, for example because the peer has already sent its next
    /// call.
    pub async fn closes(&self) {
        let Some(stream) = &self.0 else { return pending().await };
        if let Ok(1..) = stream.peek(&mut [0]).await {
            pending::<()>().await;
        }
    }
}
