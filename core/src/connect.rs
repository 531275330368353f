//! Opens TCP connections to names with several addresses.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The Connection Attempt Delay of RFC 8305, section 5.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to the first of `addresses` that answers. Tries the next one after 250 ms without an answer,
/// or immediately after a failure, and keeps the earlier attempts (RFC 8305, Happy Eyeballs): an address
/// may swallow packets.
///
/// # Errors
/// The error of the last attempt, if all attempts have failed.
pub async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut untried = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "no address");
    loop {
        attempts.extend(untried.next().map(|address| TcpStream::connect(*address)));
        match timeout(NEXT_ADDRESS_AFTER, attempts.next()).await {
            Ok(Some(Ok(stream))) => return Ok(stream),
            Ok(Some(Err(error))) => failure = error,
            Ok(None) => return Err(failure),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// A listener that swallows packets: its queue of connections is full. They last as long as the values.
    async fn swallowing() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut queued = Vec::new();
        let address = listener.local_addr().unwrap();
        while let Ok(stream) = timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        (listener, queued)
    }

    #[tokio::test]
    async fn the_next_address_is_tried_if_one_does_not_answer() {
        let (silent, _queued) = swallowing().await;
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let receiver = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [unused, silent.local_addr().unwrap(), receiver.local_addr().unwrap()];
        let began = Instant::now();
        let stream =
            timeout(Duration::from_secs(60), connect(&addresses)).await.expect("a connection").unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[2]);
        assert!(began.elapsed() >= NEXT_ADDRESS_AFTER, "it was tried after {:?}", began.elapsed());
        assert_eq!(NEXT_ADDRESS_AFTER, Duration::from_millis(250), "the time in docs/webhooks.md");
    }

    #[tokio::test]
    async fn the_last_error_is_returned_when_all_addresses_failed() {
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = connect(&[unused, unused]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect(&[]).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
