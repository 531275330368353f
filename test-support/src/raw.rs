//! Raw HTTP, for requests that no client library would send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::core_client::API_TOKEN;

/// Limit of a read. Less than the 100 s after which core closes an idle connection: a test must notice that core leaves
/// a connection open.
const WAIT_MAX: Duration = Duration::from_secs(90);

/// A connection that can send arbitrary bytes.
#[derive(Debug)]
pub struct Raw(TcpStream);

impl Raw {
    /// Connects to `address`.
    pub async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.expect("core listens"))
    }

    /// Sends bytes; returns false if the other side has closed.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.0.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Closes the sending side.
    pub async fn finish(&mut self) {
        let _ = self.0.shutdown().await;
    }

    /// Resets the connection immediately.
    pub fn reset(self) {
        self.0.set_zero_linger().expect("a connection");
    }

    /// Reads until the other side closes or resets; fails the test if neither happens.
    pub async fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let read = timeout(WAIT_MAX, self.0.read_to_end(&mut all)).await;
        assert!(read.is_ok(), "the connection stays open: {}", String::from_utf8_lossy(&all));
        all
    }

    /// Reads once; empty if the other side has closed.
    pub async fn read_some(&mut self) -> Vec<u8> {
        let mut some = vec![0; 65536];
        let count = timeout(WAIT_MAX, self.0.read(&mut some)).await.expect("an answer, or the end");
        some.truncate(count.unwrap_or(0));
        some
    }
}

/// Returns the status of a raw response; `None` if the connection closed without one.
pub fn status(answer: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(answer);
    text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|digits| digits.parse().ok())
}

/// Returns the head and body of a back end's claim; the connection closes after it.
pub fn claim_request(body: &str) -> String {
    format!("{}Content-Length: {}\r\n\r\n{body}", claim_head(), body.len())
}

/// Returns the head of a claim without its body's length.
pub fn claim_head() -> String {
    format!(
        "POST /internal/v1/claims HTTP/1.1\r\nHost: core\r\nConnection: close\r\nAuthorization: Bearer {API_TOKEN}\r\n\
         Content-Type: application/json\r\n"
    )
}
