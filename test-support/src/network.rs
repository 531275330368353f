//! A network between servers that a test can break. Each server announces an address at which a door stands: who comes
//! through it is known by where it comes from, so that a server can be cut off from the others and not from its callers,
//! and a replica can be kept from what its primary does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::process::free_address;

/// What a door leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Where a server's clients and replicas connect.
    Clients,
    /// Where the nodes of a cluster talk to one another.
    Bus,
}

/// Who opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Server(usize),
    Sentinel,
    /// Core, and all others.
    Caller,
}

/// One connection's way.
#[derive(Debug, Clone, Copy)]
struct Way {
    from: Peer,
    to: usize,
    port: Port,
}

/// What is wrong with the network. What it keeps from arriving arrives once it is mended, unless an end was closed.
#[derive(Debug, Clone, Default)]
struct Trouble {
    /// Cut off from the other servers and the sentinels.
    cut_off: BTreeSet<usize>,
    /// Cut off from callers.
    out_of_reach: BTreeSet<usize>,
    /// Nothing is replicated to these.
    held: BTreeSet<usize>,
    /// What is replicated to these takes so long.
    slow: BTreeMap<usize, Duration>,
    /// No packet of a caller that contains this arrives.
    withheld: Option<&'static [u8]>,
}

/// Gone, with its doors, when dropped.
#[derive(Debug, Default)]
pub struct Network {
    trouble: watch::Sender<Trouble>,
    doors: Mutex<Vec<JoinHandle<()>>>,
}

impl Network {
    /// For the server's setting `bind-source-addr`: the address by which it is known.
    pub fn source_of(server: usize) -> IpAddr {
        Ipv4Addr::new(127, 255, 1, u8::try_from(server).expect("few servers")).into()
    }

    /// The same for all sentinels.
    pub fn source_of_sentinels() -> IpAddr {
        Ipv4Addr::new(127, 255, 2, 1).into()
    }

    /// A door to what this server has at `target`. Returns the address to announce.
    pub async fn door(&self, server: usize, port: Port, target: SocketAddr) -> SocketAddr {
        let address = free_address();
        let listener = TcpListener::bind(address).await.expect("a free address");
        let trouble = self.trouble.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, from)) = listener.accept().await {
                let way = Way { from: Peer::at(from.ip()), to: server, port };
                tokio::spawn(carry(client, target, way, trouble.clone()));
            }
        });
        self.doors.lock().expect("the doors").push(accepting);
        address
    }

    /// Neither other servers nor sentinels hear of this server, nor it of them; callers still do.
    pub fn cut_off(&self, server: usize) {
        self.trouble.send_modify(|now| _ = now.cut_off.insert(server));
    }

    /// No caller hears of this server any more.
    pub fn out_of_reach(&self, server: usize) {
        self.trouble.send_modify(|now| _ = now.out_of_reach.insert(server));
    }

    /// Callers hear of this server again, after [`Self::out_of_reach`].
    pub fn within_reach(&self, server: usize) {
        self.trouble.send_modify(|now| _ = now.out_of_reach.remove(&server));
    }

    /// Nothing that its primary does reaches this server. It stays connected, and may be promoted as it is.
    pub fn hold_replication(&self, server: usize) {
        self.trouble.send_modify(|now| _ = now.held.insert(server));
    }

    /// What its primary does reaches this server later by `delay`.
    pub fn slow_replication(&self, server: usize, delay: Duration) {
        self.trouble.send_modify(|now| _ = now.slow.insert(server, delay));
    }

    /// No packet of a caller in which `mark` occurs arrives.
    pub fn withhold(&self, mark: &'static [u8]) {
        self.trouble.send_modify(|now| now.withheld = Some(mark));
    }

    /// Nothing is wrong any more.
    pub fn mend(&self) {
        self.trouble.send_modify(|now| *now = Trouble::default());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for door in self.doors.get_mut().expect("the doors") {
            door.abort();
        }
    }
}

impl Peer {
    fn at(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) if ip.octets()[..3] == [127, 255, 1] => Self::Server(ip.octets()[3].into()),
            ip if ip == Network::source_of_sentinels() => Self::Sentinel,
            _ => Self::Caller,
        }
    }
}

impl Trouble {
    fn lets_pass(&self, way: Way, packet: &[u8]) -> bool {
        match way.from {
            Peer::Caller => {
                let withheld = |mark: &[u8]| packet.windows(mark.len()).any(|window| window == mark);
                !self.out_of_reach.contains(&way.to) && !self.withheld.is_some_and(withheld)
            }
            Peer::Sentinel => !self.cut_off.contains(&way.to),
            Peer::Server(from) => {
                let apart = self.cut_off.contains(&from) || self.cut_off.contains(&way.to);
                !(apart || way.port == Port::Clients && self.held.contains(&from))
            }
        }
    }

    fn delay(&self, way: Way) -> Option<Duration> {
        match way.from {
            Peer::Server(from) if way.port == Port::Clients => self.slow.get(&from).copied(),
            _ => None,
        }
    }
}

/// Carries a connection until one side closes it, or the network is gone.
async fn carry(mut client: TcpStream, target: SocketAddr, way: Way, trouble: watch::Receiver<Trouble>) {
    let opened = trouble.clone().wait_for(|now| now.lets_pass(way, &[])).await.is_ok();
    let Some(mut server) = connect(target).await.filter(|_| opened) else { return };
    let _ = client.set_nodelay(true);
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    tokio::select! {
        () = pump(from_client, to_server, way, trouble.clone()) => {}
        () = pump(from_server, to_client, way, trouble.clone()) => {}
    }
}

async fn connect(target: SocketAddr) -> Option<TcpStream> {
    let server = TcpStream::connect(target).await.ok()?;
    let _ = server.set_nodelay(true);
    Some(server)
}

/// Also that a side has closed is heard only when the network lets it pass.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    way: Way,
    mut trouble: watch::Receiver<Trouble>,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes).await.unwrap_or(0);
        let passed = trouble.wait_for(|now| now.lets_pass(way, &bytes[..count])).await;
        let Ok(delay) = passed.map(|now| now.delay(way)) else { return };
        if let Some(delay) = delay {
            sleep(delay).await;
        }
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
