//! Many slow connections without credentials: known key id, fresh timestamp, wrong signature.
//!
//! Each connection sends its head without the final line end. After [`HEAD_S`] it sends that line end and one
//! byte of the body, then nothing. After [`CYCLE_S`], which is core's timeout for a body, the connection is
//! reopened. The connections are spread evenly over that time.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use support::signing::Signed;
use support::times::now_ms;

/// Number of slow connections.
pub const CONNECTIONS: usize = 10_000;
/// Seconds until a connection is reopened.
const CYCLE_S: f64 = 10.0;
/// Seconds to send a head.
const HEAD_S: f64 = 4.0;
/// Number of connections that are opened while one connection sends its head.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // both are small and positive
const OPENED_DURING_HEAD: usize = (HEAD_S / CYCLE_S * CONNECTIONS as f64) as usize;
/// Base64url of 32 bytes that are not a valid signature.
const WRONG_SIGNATURE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// Pause between checks for due connections.
const PAUSE: Duration = Duration::from_millis(1);

/// Slow connections that are reopened until they are stopped.
#[derive(Debug)]
pub struct SlowConnections {
    stop: Arc<AtomicBool>,
    runs: tokio::task::JoinHandle<anyhow::Result<u64>>,
}

impl SlowConnections {
    /// Opens the connections to the core at `address`. All connections are open once this returns. Each
    /// sends `claim` with its own timestamp and a wrong signature.
    pub async fn start(address: SocketAddr, claim: Signed) -> anyhow::Result<Self> {
        let mut connections = Connections { address, claim, all: Vec::with_capacity(CONNECTIONS), opened: 0 };
        let connections =
            tokio::task::spawn_blocking(move || connections.open_all().map(|()| connections)).await??;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Ok(Self { stop, runs: tokio::task::spawn_blocking(move || connections.run(&stopped)) })
    }

    /// Closes the connections. Returns the number of rejected connections.
    ///
    /// # Errors
    /// If a connection got no response, or a different one.
    pub async fn end(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.runs.await?
    }
}

#[derive(Debug)]
struct Connections {
    address: SocketAddr,
    claim: Signed,
    all: Vec<TcpStream>,
    /// Number of reopened connections.
    opened: usize,
}

impl Connections {
    /// Opens each connection for the first time, with a complete head.
    fn open_all(&mut self) -> anyhow::Result<()> {
        for _ in 0..CONNECTIONS {
            let mut stream = self.open()?;
            stream.write_all(self.head().as_bytes())?;
            self.all.push(stream);
        }
        Ok(())
    }

    fn open(&self) -> anyhow::Result<TcpStream> {
        TcpStream::connect(self.address).context("a slow connection")
    }

    fn head(&mut self) -> String {
        self.claim.timestamp = now_ms().to_string();
        self.claim.head(WRONG_SIGNATURE)
    }

    fn run(mut self, stop: &AtomicBool) -> anyhow::Result<u64> {
        let (began, mut rejected) = (Instant::now(), 0);
        while !stop.load(Ordering::Relaxed) {
            while began.elapsed().as_secs_f64() * CONNECTIONS as f64 / CYCLE_S > self.opened as f64 {
                self.renew()?;
                rejected += 1;
            }
            sleep(PAUSE);
        }
        Ok(rejected)
    }

    /// Reopens the next connection, after its rejection, and completes the head of the connection that is
    /// due.
    fn renew(&mut self) -> anyhow::Result<()> {
        let (at, completed) = (self.opened % CONNECTIONS, self.opened.checked_sub(OPENED_DURING_HEAD));
        ensure_rejected(&mut self.all[at])?;
        let head = self.head();
        let mut stream = self.open()?;
        stream.write_all(&head.as_bytes()[..head.len() - 2])?;
        self.all[at] = stream;
        if let Some(completed) = completed {
            self.all[completed % CONNECTIONS].write_all(b"\r\n{").context("completing a slow head")?;
        }
        self.opened += 1;
        Ok(())
    }
}

/// Fails unless the response has arrived and is a 401.
fn ensure_rejected(stream: &mut TcpStream) -> anyhow::Result<()> {
    const REJECTION: &[u8] = b"HTTP/1.1 401";
    let mut response = [0; REJECTION.len()];
    stream.set_nonblocking(true)?;
    match stream.read(&mut response) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            anyhow::bail!("a slow connection has no response")
        }
        read => ensure!(read? == REJECTION.len() && response == *REJECTION, "a slow connection got no 401"),
    }
    Ok(())
}
