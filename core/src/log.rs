//! The log of a core, on standard error. A separate thread writes the lines, so core never waits for their
//! reader: a full pipe, a stopped terminal, a journal that restarts. Lines that cannot be written are lost
//! and counted.
//!
//! tracing-appender does the same, but it prints with `println!` when it ends, which panics without a standard output.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::time::sleep;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::{config, metrics};

/// Number of lines, of about 200 bytes each, that wait for their reader.
const QUEUE_LINES: usize = 1024;
/// Timeout of [`Log::flush`].
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// The level if `RUST_LOG` sets none.
const LEVEL_DEFAULT: &str = "info,sqlx=warn";
/// Interval at which [`report_losses`] counts.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

static WRITTEN: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);

/// A message to the thread that writes.
enum Message {
    Line(Vec<u8>),
    /// Asks for an answer once all earlier lines are written or lost.
    Flush(SyncSender<()>),
}

/// The queue of lines.
#[derive(Debug, Clone)]
pub struct Log(SyncSender<Message>);

impl Log {
    /// Starts logging, in JSON or as text; `RUST_LOG` sets the level. Panics are also logged.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(json: bool) -> io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE_LINES);
        thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&messages))?;
        let log = Self(queue);
        let wanted = config::env_var("RUST_LOG").map(|_| EnvFilter::try_from_default_env()).transpose();
        let malformed = wanted.as_ref().err().map(ToString::to_string);
        let wanted = wanted.ok().flatten();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(wanted.unwrap_or_else(|| EnvFilter::new(LEVEL_DEFAULT)))
            .with_writer(log.clone())
            .with_ansi(io::stderr().is_terminal());
        if json {
            subscriber.json().init();
        } else {
            subscriber.init();
        }
        if let Some(error) = malformed {
            tracing::warn!(error, "RUST_LOG is malformed; using {LEVEL_DEFAULT}");
        }
        let of_panics = log.clone();
        panic::set_hook(Box::new(move |panic| {
            tracing::error!("{panic}");
            of_panics.flush();
        }));
        Ok(log)
    }

    /// Writes a line without time and level.
    pub fn say(&self, text: &dyn fmt::Display) {
        self.send(format!("claimgate: {text}\n").into_bytes());
    }

    /// Waits until all lines are written, for at most 1 s, and not at all if the queue is full.
    pub fn flush(&self) {
        let (done, answer) = sync_channel(1);
        if self.0.try_send(Message::Flush(done)).is_ok() {
            let _ = answer.recv_timeout(FLUSH_MAX);
        }
    }

    fn send(&self, line: Vec<u8>) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.0.try_send(Message::Line(line))
        {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Lines<'a>;

    fn make_writer(&'a self) -> Lines<'a> {
        Lines(self)
    }
}

/// Writes to the queue. Each call of `write` is a line.
#[derive(Debug)]
pub struct Lines<'a>(&'a Log);

impl Write for Lines<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.send(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            Message::Line(line) => {
                let count = if StandardError.write_all(&line).is_ok() { &WRITTEN } else { &LOST };
                count.fetch_add(1, Ordering::Relaxed);
            }
            Message::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Standard error, which another process may have set to non-blocking.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        match (&stderr).write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?;
                // `write_all` tries again.
                Err(io::ErrorKind::Interrupted.into())
            }
            result => result,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Counts lost lines, and logs their number once lines are written again.
pub async fn report_losses() {
    let (mut counted, mut reported, mut written) = (0, 0, 0);
    loop {
        sleep(REPORT_INTERVAL).await;
        let lost = LOST.load(Ordering::Relaxed);
        if lost > counted {
            metrics::LOG_LINES_LOST.add(lost - counted);
            (counted, written) = (lost, WRITTEN.load(Ordering::Relaxed));
        } else if lost > reported && WRITTEN.load(Ordering::Relaxed) > written {
            tracing::warn!(lines = lost - reported, "lines of the log were lost");
            reported = lost;
        }
    }
}
