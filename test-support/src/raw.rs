//! HTTP by hand, for what no client library would send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::core_client::API_TOKEN;

/// The longest a server may keep a connection that sends nothing useful.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// A connection on which anything can be sent.
#[derive(Debug)]
pub struct Raw(TcpStream);

impl Raw {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.expect("core listens"))
    }

    /// Sends bytes; false when the other side has closed.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.0.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Ends the sending side.
    pub async fn finish(&mut self) {
        let _ = self.0.shutdown().await;
    }

    /// Goes away at once, without a word of farewell.
    pub fn reset(self) {
        self.0.set_zero_linger().expect("a connection");
    }

    /// Everything until the other side closes or resets; fails the test when it does neither.
    pub async fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let read = timeout(WAIT_MAX, self.0.read_to_end(&mut all)).await;
        assert!(read.is_ok(), "the connection stays open: {}", String::from_utf8_lossy(&all));
        all
    }

    /// One read, of whatever comes first; empty when the other side has closed.
    pub async fn read_some(&mut self) -> Vec<u8> {
        let mut some = vec![0; 65536];
        let count = timeout(WAIT_MAX, self.0.read(&mut some)).await.expect("an answer, or the end");
        some.truncate(count.unwrap_or(0));
        some
    }
}

/// The status of an answer read raw; `None` when the connection was closed without one.
pub fn status(answer: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(answer);
    text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|digits| digits.parse().ok())
}

/// A claim's head and body as the back end sends it, the connection to be closed after it.
pub fn claim_request(body: &str) -> String {
    format!("{}Content-Length: {}\r\n\r\n{body}", claim_head(), body.len())
}

/// A claim's head without what says how long its body is.
pub fn claim_head() -> String {
    format!(
        "POST /internal/v1/claims HTTP/1.1\r\nHost: core\r\nConnection: close\r\nAuthorization: Bearer {API_TOKEN}\r\n\
         Content-Type: application/json\r\n"
    )
}
