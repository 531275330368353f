//! The connections of a listener: how long each may be idle, and which are closed when there are too many.
//!
//! A connection costs a descriptor and some memory, and anyone who reaches the listener can open thousands. A
//! full listener closes the connections that have been idle longest, but never one with a call in progress.
//! Idle connections, however many, therefore cannot keep claims out.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Sleep, Timer, Write};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::deadlines::{Deadline, Deadlines};

/// Time limit for receiving a request's head, counted from its first byte.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum idle time before a request, including the first one: client pools open connections that they do
/// not need immediately. They keep idle connections for up to 90 s; closing one earlier could lose a request in
/// flight.
const IDLE_TIMEOUT: Duration = Duration::from_secs(100);
/// Time after which the kernel closes a connection whose peer does not respond.
#[cfg(target_os = "linux")]
const PEER_TIMEOUT: Duration = Duration::from_secs(20);
/// The idle time before the kernel's first keepalive probe, and the interval of further probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A full listener closes this fraction (1/32) of its connections in one pass, because finding idle
/// connections requires scanning all.
const CLOSED_SHARE: usize = 32;

/// The connections of one listener.
#[derive(Debug)]
pub struct Connections {
    max: usize,
    open: Mutex<Open>,
    /// Notified when a connection has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    all: BTreeMap<u64, Arc<Activity>>,
    /// Connections that are being closed but have not ended.
    closing: usize,
}

impl Connections {
    /// Creates an empty set of at most `max` connections.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default(), ended: Notify::new() })
    }

    /// Makes the kernel close each connection of `listener` whose peer has disappeared or stops reading,
    /// after about [`PEER_TIMEOUT`].
    pub fn close_dead_peers(listener: &TcpListener) -> io::Result<()> {
        // Accepted connections inherit these options.
        sockopt::set_socket_keepalive(listener, true)?;
        sockopt::set_tcp_keepidle(listener, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(listener, KEEPALIVE_INTERVAL)?;
        // macOS has no such option: there, a connection whose peer stops reading stays open.
        #[cfg(target_os = "linux")]
        sockopt::set_tcp_user_timeout(listener, u32::try_from(PEER_TIMEOUT.as_millis()).unwrap_or(u32::MAX))?;
        Ok(())
    }

    /// Registers a connection. Closes idle connections when the listener is nearly full, and waits while it is full.
    pub async fn open(self: &Arc<Self>) -> OpenConnection {
        loop {
            if let Some(open) = self.try_open() {
                return open;
            }
            self.ended.notified().await;
        }
    }

    fn try_open(self: &Arc<Self>) -> Option<OpenConnection> {
        let mut open = self.open.lock();
        let count = (self.max / CLOSED_SHARE).max(1);
        if open.all.len() - open.closing + count >= self.max {
            open.close_idle(count);
        }
        if open.all.len() >= self.max {
            return None;
        }
        let (id, activity) = (open.next, Arc::new(Activity::begin()));
        open.next += 1;
        open.all.insert(id, Arc::clone(&activity));
        Some(OpenConnection { of: Arc::clone(self), id, activity })
    }
}

impl Open {
    /// Closes the `count` connections without a call in progress that have been idle longest.
    fn close_idle(&mut self, count: usize) {
        let idle = self.all.values().filter(|activity| activity.is_idle());
        let mut idle: Vec<_> = idle.map(|activity| (activity.progress_at(), activity)).collect();
        let count = count.min(idle.len());
        if count < idle.len() {
            idle.select_nth_unstable_by_key(count, |(progress_at, _)| *progress_at);
        }
        for (_, activity) in &idle[..count] {
            activity.close();
        }
        self.closing += count;
        tracing::debug!(count, "closed the connections that had been idle longest");
    }
}

/// A connection that counts as open until dropped.
#[derive(Debug)]
pub struct OpenConnection {
    of: Arc<Connections>,
    id: u64,
    activity: Arc<Activity>,
}

impl OpenConnection {
    /// Returns the connection's recorded progress.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut open = self.of.open.lock();
        open.all.remove(&self.id);
        open.closing -= usize::from(self.activity.is_closing());
        drop(open);
        self.of.ended.notify_one();
    }
}

/// The progress of a connection. Times are in milliseconds since the first connection of the process.
#[derive(Debug)]
pub struct Activity {
    /// When bytes were last read or written.
    progress_at: AtomicU64,
    /// When the first byte of the next request's head arrived; 0 until then.
    head_at: AtomicU64,
    /// Whether a call is in progress.
    is_called: AtomicBool,
    /// Whether the connection is being closed to make room for a new one.
    is_closing: AtomicBool,
    /// Notified when `is_closing` is set.
    closed: Notify,
}

/// A call in progress.
#[derive(Debug)]
pub struct Call<'a>(&'a Activity);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.is_called.store(false, Ordering::Release);
    }
}

/// Time zero of [`Activity`], set 1 ms early so that no recorded time is 0.
static EPOCH: LazyLock<Instant> =
    LazyLock::new(|| Instant::now().checked_sub(Duration::from_millis(1)).unwrap_or_else(Instant::now));

fn now_ms() -> u64 {
    u64::try_from(EPOCH.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Activity {
    fn begin() -> Self {
        Self {
            progress_at: AtomicU64::new(now_ms()),
            head_at: AtomicU64::new(0),
            is_called: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            closed: Notify::new(),
        }
    }

    fn progress_at(&self) -> u64 {
        self.progress_at.load(Ordering::Relaxed)
    }

    fn is_called(&self) -> bool {
        self.is_called.load(Ordering::Acquire)
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        !self.is_called() && !self.is_closing()
    }

    fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.closed.notify_one();
    }

    /// Begins a call. Until the returned guard is dropped, the connection is not closed to make room.
    pub fn call(&self) -> Call<'_> {
        self.is_called.store(true, Ordering::Release);
        Call(self)
    }

    /// Completes when the connection must close to make room. Never completes if a call is in progress
    /// when the request to close arrives.
    pub async fn closed(&self) {
        self.closed.notified().await;
        if self.is_called() {
            pending::<()>().await;
        }
    }

    fn record_read(&self) {
        let now = now_ms();
        self.progress_at.store(now, Ordering::Relaxed);
        if self.head_at.load(Ordering::Relaxed) == 0 {
            self.head_at.store(now, Ordering::Relaxed);
        }
    }

    fn record_write(&self) {
        self.progress_at.store(now_ms(), Ordering::Relaxed);
    }

    /// Returns when the first byte of the expected head arrived.
    fn head_began(&self) -> Option<Instant> {
        let at = self.head_at.load(Ordering::Relaxed);
        (at > 0).then(|| *EPOCH + Duration::from_millis(at))
    }
}

/// A connection's stream that records its reads and writes.
#[derive(Debug)]
pub struct TrackedStream {
    stream: TokioIo<TcpStream>,
    activity: Arc<Activity>,
}

impl TrackedStream {
    /// Wraps `stream`, recording its progress in `activity`.
    pub fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self { stream: TokioIo::new(stream), activity }
    }

    fn stream(&mut self) -> Pin<&mut TokioIo<TcpStream>> {
        Pin::new(&mut self.stream)
    }

    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = written {
            self.activity.record_write();
        }
        written
    }
}

impl Read for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.stream().poll_read(context, bytes);
        // The end of the stream also counts as a read.
        if let Poll::Ready(Ok(())) = read {
            self.activity.record_read();
        }
        read
    }
}

impl Write for TrackedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write(context, bytes);
        self.written(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write_vectored(context, bytes);
        self.written(written)
    }
}

/// The timer for the request heads of one connection. hyper requests a timer whenever it starts to wait for a
/// head; the wait includes the idle time before the head's first byte.
#[derive(Debug)]
pub struct HeadTimer {
    deadlines: Deadlines,
    activity: Arc<Activity>,
}

impl HeadTimer {
    /// Creates the timer of the connection with `activity`, on the thread of `deadlines`.
    pub fn new(deadlines: Deadlines, activity: Arc<Activity>) -> Self {
        Self { deadlines, activity }
    }

    fn next(&self) -> Pin<Box<dyn Sleep>> {
        self.activity.head_at.store(0, Ordering::Relaxed);
        let deadline = self.deadlines.at(Instant::now() + IDLE_TIMEOUT);
        Box::pin(HeadDeadline { deadline, activity: Arc::clone(&self.activity) })
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        self.next()
    }

    fn sleep_until(&self, _: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.next()
    }
}

/// A future that completes once a head is overdue: no byte has arrived in time, or the rest takes too long.
#[derive(Debug)]
struct HeadDeadline {
    deadline: Deadline,
    activity: Arc<Activity>,
}

impl Future for HeadDeadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(began) = self.activity.head_began() {
            self.deadline.set_due(began + HEAD_TIMEOUT);
        }
        Pin::new(&mut self.deadline).poll(context)
    }
}

impl Sleep for HeadDeadline {}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn open(connections: &Arc<Connections>, count: usize) -> Vec<OpenConnection> {
        (0..count).map(|_| connections.try_open().unwrap()).collect()
    }

    fn closed(connections: &[OpenConnection]) -> Vec<usize> {
        let is_closed = |at: &usize| connections[*at].activity.closed().now_or_never().is_some();
        (0..connections.len()).filter(is_closed).collect()
    }

    #[test]
    fn a_full_listener_closes_the_longest_idle_connections() {
        let connections = Connections::new(64);
        let mut first = open(&connections, 62);
        for (at, connection) in (0..).zip(&first) {
            // The newest connection has been idle longest.
            connection.activity.progress_at.store(1000 - at, Ordering::Relaxed);
        }
        assert_eq!(closed(&first), [0; 0]);
        let more = open(&connections, 2);
        assert_eq!(closed(&first), [60, 61]);
        // The listener is full until the closed connections have ended.
        assert!(connections.try_open().is_none());
        first.truncate(60);
        assert!(connections.try_open().is_some());
        drop((first, more));
        let open = connections.open.lock();
        assert_eq!((open.all.len(), open.closing), (0, 0));
    }

    #[test]
    fn a_connection_with_a_call_in_progress_is_never_closed() {
        let connections = Connections::new(2);
        let open = open(&connections, 2);
        let [_first, second] = [&open[0], &open[1]].map(|open| open.activity.call());
        assert!(connections.open().now_or_never().is_none());
        assert_eq!(closed(&open), [0; 0]);
        drop(second);
        assert!(connections.open().now_or_never().is_none());
        assert_eq!(closed(&open), [1]);
    }

    #[test]
    fn a_call_started_before_eviction_keeps_its_connection() {
        let connections = Connections::new(1);
        let open = open(&connections, 1);
        assert!(connections.try_open().is_none());
        let call = open[0].activity.call();
        assert_eq!(closed(&open), [0; 0]);
        drop(call);
    }

    #[tokio::test]
    async fn a_pending_connection_is_accepted_when_one_ends() {
        let connections = Connections::new(1);
        let first = connections.open().await;
        let other = Arc::clone(&connections);
        let next = tokio::spawn(async move { other.open().await });
        tokio::task::yield_now().await;
        drop(first);
        assert!(!next.await.unwrap().activity.is_closing());
    }
}
