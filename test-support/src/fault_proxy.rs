//! A proxy between core and its Redis or PostgreSQL that breaks connections on demand.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::process::free_address;
use crate::rng::Rng;

/// The fault that a call and its connection suffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The request never arrives; the connection closes.
    BeforeRequest,
    /// The request is executed; the reply is lost with the connection.
    AfterRequest,
    /// Only this number of bytes of the reply arrive, then the connection closes.
    MidReply(usize),
    /// The request is executed; then the connection is reset.
    Reset,
    /// The reply arrives late.
    Delay(Duration),
    /// The request never arrives, and the sender gets no error.
    Swallow,
}

/// The fault and the calls that it affects.
#[derive(Debug, Clone)]
struct Fault {
    cut: Cut,
    /// Byte sequences that a call must all contain.
    marks: Vec<Vec<u8>>,
    in_reply: bool,
    left: usize,
}

#[derive(Debug)]
struct Shared {
    fault: Mutex<Option<Fault>>,
    /// Each packet is delayed by a random time up to this maximum.
    slow: Mutex<Option<(Duration, Rng)>>,
    injected: watch::Sender<usize>,
    target: watch::Sender<PathBuf>,
    /// Number of times that the host has vanished, and whether it is unreachable now.
    gone: watch::Sender<(usize, bool)>,
}

/// A TCP proxy to a server on a unix socket. Dropping it closes all its connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl FaultProxy {
    /// Starts a proxy to the server on the socket `target`.
    pub async fn start(target: PathBuf) -> Self {
        let address = free_address();
        let listener = TcpListener::bind(address).await.expect("a free address");
        let shared = Shared {
            fault: Mutex::default(),
            slow: Mutex::default(),
            injected: watch::Sender::new(0),
            target: watch::Sender::new(target),
            gone: watch::Sender::new((0, false)),
        };
        let shared = Arc::new(shared);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// Returns the value for `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Returns the address on which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks the next `times` calls whose request contains `mark`.
    pub fn cut(&self, cut: Cut, mark: &str, times: usize) {
        let marks = vec![mark.as_bytes().to_vec()];
        let fault = Fault { cut, marks, in_reply: false, left: times };
        *self.shared.fault.lock().expect("the fault") = Some(fault);
    }

    /// Delays the next reply that contains all of `marks` by `delay`.
    pub fn delay_reply(&self, marks: &[&str], delay: Duration) {
        let marks = marks.iter().map(|mark| mark.as_bytes().to_vec()).collect();
        let fault = Fault { cut: Cut::Delay(delay), marks, in_reply: true, left: 1 };
        *self.shared.fault.lock().expect("the fault") = Some(fault);
    }

    /// Delays each packet in either direction by up to `max` from now on.
    pub fn slow(&self, max: Duration, rng: Rng) {
        *self.shared.slow.lock().expect("the slowness") = Some((max, rng));
    }

    /// Ends the current fault.
    pub fn mend(&self) {
        *self.shared.fault.lock().expect("the fault") = None;
    }

    /// Returns the number of calls broken so far.
    pub fn injected(&self) -> usize {
        *self.shared.injected.borrow()
    }

    /// Waits until `count` calls have been broken.
    pub async fn until_injected(&self, count: usize) {
        let mut injected = self.shared.injected.subscribe();
        injected.wait_for(|so_far| *so_far >= count).await.expect("the proxy runs");
    }

    /// Simulates a host that vanishes: nothing sent arrives, and no sender gets an error. New connections are
    /// accepted and get no response.
    pub fn vanish(&self) {
        self.shared.gone.send_modify(|(times, gone)| (*times, *gone) = (*times + 1, true));
    }

    /// Simulates a replaced host: new connections reach it, earlier connections never get a response.
    pub fn return_replaced(&self) {
        self.shared.gone.send_modify(|(_, gone)| *gone = false);
    }

    /// Connects new connections to the server at `target`; existing ones stay with the previous server.
    pub fn forward_to(&self, target: PathBuf) {
        self.shared.target.send_if_modified(|now| {
            *now = target;
            false
        });
    }

    /// Connects to the server at `target` from now on and closes all existing connections.
    pub fn point_at(&self, target: PathBuf) {
        self.shared.target.send_replace(target);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        // Connections close when the target changes.
        self.shared.target.send_replace(PathBuf::new());
    }
}

impl Shared {
    async fn packet(&self) {
        let wait = self.slow.lock().expect("the slowness").as_mut().map(|(max, rng)| {
            let max_us = u64::try_from(max.as_micros()).expect("a short time");
            Duration::from_micros(rng.within(0, max_us))
        });
        if let Some(wait) = wait {
            sleep(wait).await;
        }
    }

    /// Returns the cut for a chunk if a fault is armed for this direction and the chunk contains its marks.
    fn caught(&self, bytes: &[u8], in_reply: bool) -> Option<Cut> {
        let mut fault = self.fault.lock().expect("the fault");
        let armed = fault.as_mut().filter(|fault| fault.left > 0 && fault.in_reply == in_reply)?;
        let has = |mark: &Vec<u8>| bytes.windows(mark.len()).any(|window| window == mark);
        if !armed.marks.iter().all(has) {
            return None;
        }
        armed.left -= 1;
        let cut = armed.cut;
        drop(fault);
        self.injected.send_modify(|count| *count += 1);
        Some(cut)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut target = shared.target.subscribe();
            let mut gone = shared.gone.subscribe();
            let to = target.borrow_and_update().clone();
            let (times, is_gone) = *gone.borrow_and_update();
            if is_gone {
                return silence(client, target).await;
            }
            // There is no server: the client's connection closes immediately, as with a dead host.
            let Ok(mut server) = UnixStream::connect(to).await else { return };
            let mut client = client;
            let _ = client.set_nodelay(true);
            tokio::select! {
                () = carry(&mut client, &mut server, &shared) => return,
                _ = target.changed() => return,
                _ = gone.wait_for(|(now, _)| *now > times) => {}
            }
            // The server's side also stays open, so the server does not notice that the client is gone.
            silence(client, target).await;
            drop(server);
        });
    }
}

/// Reads everything the client sends without answering.
async fn silence(mut client: TcpStream, mut target: watch::Receiver<PathBuf>) {
    let mut bytes = vec![0; 64 * 1024];
    let swallow = async { while client.read(&mut bytes).await.is_ok_and(|count| count > 0) {} };
    tokio::select! {
        () = swallow => {}
        _ = target.changed() => {}
    }
}

/// Forwards both directions until one direction ends or the fault ends the connection.
async fn carry(client: &mut TcpStream, server: &mut UnixStream, shared: &Shared) {
    let reset = {
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        // Set when a request has matched, so that its reply suffers the fault.
        let pending = Mutex::new(None);
        let reset = Mutex::new(false);
        tokio::select! {
            () = requests(&mut from_client, &mut to_server, shared, &pending) => {}
            () = replies(&mut from_server, &mut to_client, shared, &pending, &reset) => {}
        }
        reset.into_inner().unwrap_or(false)
    };
    if reset {
        let _ = client.set_zero_linger();
    }
}

async fn requests(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    shared: &Shared,
    pending: &Mutex<Option<Cut>>,
) {
    let mut bytes = vec![0; 256 * 1024];
    while let Ok(count) = from.read(&mut bytes).await {
        if count == 0 {
            return;
        }
        match shared.caught(&bytes[..count], false) {
            Some(Cut::BeforeRequest) => return,
            Some(Cut::Swallow) => continue,
            Some(cut) => *pending.lock().expect("the cut") = Some(cut),
            None => {}
        }
        shared.packet().await;
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

async fn replies(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    shared: &Shared,
    pending: &Mutex<Option<Cut>>,
    reset: &Mutex<bool>,
) {
    let mut bytes = vec![0; 256 * 1024];
    while let Ok(count) = from.read(&mut bytes).await {
        if count == 0 {
            return;
        }
        let caught = pending.lock().expect("the cut").take();
        let caught = caught.or_else(|| shared.caught(&bytes[..count], true));
        match caught {
            Some(Cut::MidReply(arrive)) => {
                let _ = to.write_all(&bytes[..arrive.min(count)]).await;
                return;
            }
            Some(Cut::Reset) => {
                *reset.lock().expect("the reset") = true;
                return;
            }
            Some(Cut::Delay(delay)) => sleep(delay).await,
            Some(_) => return,
            None => {}
        }
        shared.packet().await;
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
