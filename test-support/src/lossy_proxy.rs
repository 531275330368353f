//! A proxy in front of core or the edge that can lose responses.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// A proxy between edge and core, or browser and edge, which forwards bytes, records requests and can lose
/// responses.
#[derive(Debug)]
pub struct LossyProxy {
    /// The address on which the proxy listens.
    pub listen: SocketAddr,
    lossy: Arc<Lossy>,
}

#[derive(Debug)]
struct Lossy {
    core: Mutex<SocketAddr>,
    loses_all: AtomicBool,
    to_lose: AtomicUsize,
    hold: Mutex<Duration>,
    delay: Mutex<Duration>,
    accepted: AtomicUsize,
    requests: Mutex<Vec<Vec<u8>>>,
    reports: Mutex<Stalled>,
    released: Condvar,
}

/// Reports of refusals that the proxy holds back.
#[derive(Debug, Default)]
struct Stalled {
    is_on: bool,
    count: usize,
}

/// Requests on one connection that are not answered yet.
#[derive(Debug, Default)]
struct Unanswered {
    post: AtomicBool,
    report: AtomicBool,
}

impl LossyProxy {
    /// Starts a proxy in front of `core`.
    pub fn to(core: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = listener.local_addr().unwrap();
        let lossy = Arc::new(Lossy {
            core: Mutex::new(core),
            loses_all: AtomicBool::new(false),
            to_lose: AtomicUsize::new(0),
            hold: Mutex::default(),
            delay: Mutex::default(),
            accepted: AtomicUsize::new(0),
            requests: Mutex::default(),
            reports: Mutex::default(),
            released: Condvar::new(),
        });
        let carrier = Arc::clone(&lossy);
        thread::spawn(move || {
            for edge in listener.incoming().flatten() {
                carrier.accepted.fetch_add(1, Ordering::SeqCst);
                let carrier = Arc::clone(&carrier);
                thread::spawn(move || carrier.carry(&edge));
            }
        });
        Self { listen, lossy }
    }

    /// Forwards to `core` from now on.
    pub fn forward_to(&self, core: SocketAddr) {
        *self.lossy.core.lock().unwrap() = core;
    }

    /// Loses the next `count` responses to POST requests other than reports of refusals: core processes the
    /// requests, but the caller gets no response.
    pub fn lose_answers(&self, count: usize) {
        self.lossy.to_lose.store(count, Ordering::SeqCst);
    }

    /// Delays lost responses by `hold` before the connection closes.
    pub fn hold_before_losing(&self, hold: Duration) {
        *self.lossy.hold.lock().unwrap() = hold;
    }

    /// Delays every response by `delay`.
    pub fn delay_answers(&self, delay: Duration) {
        *self.lossy.delay.lock().unwrap() = delay;
    }

    /// Returns the number of connections accepted.
    pub fn accepted(&self) -> usize {
        self.lossy.accepted.load(Ordering::SeqCst)
    }

    /// Loses every response to a POST request while `yes` is set.
    pub fn lose_all_answers(&self, yes: bool) {
        self.lossy.loses_all.store(yes, Ordering::SeqCst);
    }

    /// Holds reports of refusals back while `yes` is set, then forwards them.
    pub fn stall_reports(&self, yes: bool) {
        *self.lossy.reports.lock().unwrap() = Stalled { is_on: yes, count: 0 };
        self.lossy.released.notify_all();
    }

    /// Returns the number of reports that are held back.
    pub fn stalled_reports(&self) -> usize {
        self.lossy.reports.lock().unwrap().count
    }

    /// Returns the recorded requests that contain `needle`.
    pub fn requests_with(&self, needle: &str) -> Vec<String> {
        let requests = self.lossy.requests.lock().unwrap();
        requests
            .iter()
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .filter(|text| text.contains(needle))
            .collect()
    }
}

impl Lossy {
    fn carry(self: &Arc<Self>, edge: &TcpStream) {
        let Ok(core) = TcpStream::connect(*self.core.lock().unwrap()) else { return };
        let _ = (edge.set_nodelay(true), core.set_nodelay(true));
        let unanswered = Arc::new(Unanswered::default());
        let there = {
            let (lossy, edge, core) =
                (Arc::clone(self), edge.try_clone().unwrap(), core.try_clone().unwrap());
            let unanswered = Arc::clone(&unanswered);
            thread::spawn(move || lossy.there(&edge, &core, &unanswered))
        };
        self.back(edge, &core, &unanswered);
        let _ = (edge.shutdown(Shutdown::Both), core.shutdown(Shutdown::Both));
        let _ = there.join();
    }

    fn there(&self, mut edge: &TcpStream, mut core: &TcpStream, unanswered: &Unanswered) {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = edge.read(&mut bytes) {
            let head = bytes[..count].split(|byte| *byte == b'\r').next().unwrap_or_default();
            if head.starts_with(b"POST ") {
                unanswered.post.store(true, Ordering::SeqCst);
                // Edges report refusals at any time.
                unanswered.report.store(head.ends_with(b"/refusals HTTP/1.1"), Ordering::SeqCst);
            }
            let is_report = head.starts_with(b"POST ") && head.ends_with(b"/refusals HTTP/1.1");
            self.requests.lock().unwrap().push(bytes[..count].to_vec());
            if is_report {
                self.wait_while_stalled();
            }
            if core.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = core.shutdown(Shutdown::Both);
    }

    fn back(&self, mut edge: &TcpStream, mut core: &TcpStream, unanswered: &Unanswered) {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = core.read(&mut bytes) {
            if self.is_to_be_lost(unanswered) {
                thread::sleep(*self.hold.lock().unwrap());
                break;
            }
            let delay = *self.delay.lock().unwrap();
            thread::sleep(delay);
            if edge.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
    }

    fn wait_while_stalled(&self) {
        let mut reports = self.reports.lock().unwrap();
        if reports.is_on {
            reports.count += 1;
            drop(self.released.wait_while(reports, |reports| reports.is_on).unwrap());
        }
    }

    /// Returns whether the response that has just begun is to be lost.
    fn is_to_be_lost(&self, unanswered: &Unanswered) -> bool {
        let is_post = unanswered.post.swap(false, Ordering::SeqCst);
        let is_report = unanswered.report.swap(false, Ordering::SeqCst);
        let fewer = |count: usize| count.checked_sub(1);
        let loses_one = || self.to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok();
        is_post && (self.loses_all.load(Ordering::SeqCst) || !is_report && loses_one())
    }
}
