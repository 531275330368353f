//! A proxy before core or the edge that can lose the answers it carries.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What lies between the edge and core, or a browser and the edge. It carries bytes, keeps those of the asking side,
/// and can lose the answers.
#[derive(Debug)]
pub struct LossyProxy {
    /// Where the edge finds it.
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
    said: Mutex<Vec<Vec<u8>>>,
}

impl LossyProxy {
    /// A proxy before `core`.
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
            said: Mutex::default(),
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

    /// Leads to another core from now on.
    pub fn lead_to(&self, core: SocketAddr) {
        *self.lossy.core.lock().unwrap() = core;
    }

    /// Loses the next `count` answers to what is posted: it is decided, but no answer arrives.
    pub fn lose_answers(&self, count: usize) {
        self.lossy.to_lose.store(count, Ordering::SeqCst);
    }

    /// From now on an answer that is lost is held back for `hold` first.
    pub fn hold_before_losing(&self, hold: Duration) {
        *self.lossy.hold.lock().unwrap() = hold;
    }

    /// From now on every answer comes later by `delay`.
    pub fn delay_answers(&self, delay: Duration) {
        *self.lossy.delay.lock().unwrap() = delay;
    }

    /// Connections that were made to it.
    pub fn accepted(&self) -> usize {
        self.lossy.accepted.load(Ordering::SeqCst)
    }

    /// Loses every answer to a claim, until told not to.
    pub fn lose_all_answers(&self, yes: bool) {
        self.lossy.loses_all.store(yes, Ordering::SeqCst);
    }

    /// What the edge sent to core with this in it.
    pub fn said(&self, needle: &str) -> Vec<String> {
        let said = self.lossy.said.lock().unwrap();
        said.iter()
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .filter(|text| text.contains(needle))
            .collect()
    }
}

impl Lossy {
    fn carry(self: &Arc<Self>, edge: &TcpStream) {
        let Ok(core) = TcpStream::connect(*self.core.lock().unwrap()) else { return };
        let _ = (edge.set_nodelay(true), core.set_nodelay(true));
        let claim_asked = Arc::new(AtomicBool::new(false));
        let there = {
            let (lossy, edge, core) =
                (Arc::clone(self), edge.try_clone().unwrap(), core.try_clone().unwrap());
            let claim_asked = Arc::clone(&claim_asked);
            thread::spawn(move || lossy.there(&edge, &core, &claim_asked))
        };
        self.back(edge, &core, &claim_asked);
        let _ = (edge.shutdown(Shutdown::Both), core.shutdown(Shutdown::Both));
        let _ = there.join();
    }

    fn there(&self, mut edge: &TcpStream, mut core: &TcpStream, claim_asked: &AtomicBool) {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = edge.read(&mut bytes) {
            if bytes[..count].starts_with(b"POST ") {
                claim_asked.store(true, Ordering::SeqCst);
            }
            self.said.lock().unwrap().push(bytes[..count].to_vec());
            if core.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = core.shutdown(Shutdown::Both);
    }

    fn back(&self, mut edge: &TcpStream, mut core: &TcpStream, claim_asked: &AtomicBool) {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = core.read(&mut bytes) {
            if claim_asked.swap(false, Ordering::SeqCst) && self.is_to_be_lost() {
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

    fn is_to_be_lost(&self) -> bool {
        let fewer = |count: usize| count.checked_sub(1);
        self.loses_all.load(Ordering::SeqCst)
            || self.to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok()
    }
}
