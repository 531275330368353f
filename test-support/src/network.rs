//! A network between servers that a test can break. Each server announces the address of a proxy, which
//! identifies peers by their source address. A test can therefore partition a server from other servers but not
//! from callers, and delay or stop replication.

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

/// The port behind a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// The port for a server's clients and replicas.
    Clients,
    /// The port on which the nodes of a cluster talk to each other.
    Bus,
}

/// The peer that opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Server(usize),
    Sentinel,
    /// Core and all other clients.
    Caller,
}

/// The route of one connection.
#[derive(Debug, Clone, Copy)]
struct Route {
    from: Peer,
    to: usize,
    port: Port,
}

/// The faults of the network. Blocked packets arrive once the network is repaired, unless an end was closed.
#[derive(Debug, Clone, Default)]
struct NetworkFaults {
    /// Servers partitioned from other servers and sentinels.
    cut_off: BTreeSet<usize>,
    /// Servers partitioned from callers.
    out_of_reach: BTreeSet<usize>,
    /// Servers to which replication is stopped.
    held: BTreeSet<usize>,
    /// Delays of replication to these servers.
    slow: BTreeMap<usize, Duration>,
    /// Packets from callers that contain these bytes do not arrive.
    withheld: Option<&'static [u8]>,
}

/// Dropping the network closes its proxies.
#[derive(Debug, Default)]
pub struct Network {
    faults: watch::Sender<NetworkFaults>,
    proxies: Mutex<Vec<JoinHandle<()>>>,
}

impl Network {
    /// Returns the address that identifies a server, for its setting `bind-source-addr`.
    pub fn source_of(server: usize) -> IpAddr {
        Ipv4Addr::new(127, 255, 1, u8::try_from(server).expect("few servers")).into()
    }

    /// Returns the address that identifies all sentinels.
    pub fn source_of_sentinels() -> IpAddr {
        Ipv4Addr::new(127, 255, 2, 1).into()
    }

    /// Starts a proxy in front of `target` of this server; returns the address to announce.
    pub async fn proxy(&self, server: usize, port: Port, target: SocketAddr) -> SocketAddr {
        let address = free_address();
        let listener = TcpListener::bind(address).await.expect("a free address");
        let faults = self.faults.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, from)) = listener.accept().await {
                let route = Route { from: Peer::at(from.ip()), to: server, port };
                tokio::spawn(carry(client, target, route, faults.clone()));
            }
        });
        self.proxies.lock().expect("the proxies").push(accepting);
        address
    }

    /// Partitions the server from other servers and sentinels, in both directions; callers still reach it.
    pub fn cut_off(&self, server: usize) {
        self.faults.send_modify(|now| _ = now.cut_off.insert(server));
    }

    /// Partitions the server from callers.
    pub fn out_of_reach(&self, server: usize) {
        self.faults.send_modify(|now| _ = now.out_of_reach.insert(server));
    }

    /// Stops replication to this server, which stays connected and may be promoted in its current state.
    pub fn hold_replication(&self, server: usize) {
        self.faults.send_modify(|now| _ = now.held.insert(server));
    }

    /// Delays replication to this server by `delay`.
    pub fn slow_replication(&self, server: usize, delay: Duration) {
        self.faults.send_modify(|now| _ = now.slow.insert(server, delay));
    }

    /// Blocks packets of callers that contain `mark`.
    pub fn withhold(&self, mark: &'static [u8]) {
        self.faults.send_modify(|now| now.withheld = Some(mark));
    }

    /// Ends all faults.
    pub fn mend(&self) {
        self.faults.send_modify(|now| *now = NetworkFaults::default());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for proxy in self.proxies.get_mut().expect("the proxies") {
            proxy.abort();
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

impl NetworkFaults {
    fn lets_pass(&self, route: Route, packet: &[u8]) -> bool {
        match route.from {
            Peer::Caller => {
                let withheld = |mark: &[u8]| packet.windows(mark.len()).any(|window| window == mark);
                !self.out_of_reach.contains(&route.to) && !self.withheld.is_some_and(withheld)
            }
            Peer::Sentinel => !self.cut_off.contains(&route.to),
            Peer::Server(from) => {
                let apart = self.cut_off.contains(&from) || self.cut_off.contains(&route.to);
                !(apart || route.port == Port::Clients && self.held.contains(&from))
            }
        }
    }

    fn delay(&self, route: Route) -> Option<Duration> {
        match route.from {
            Peer::Server(from) if route.port == Port::Clients => self.slow.get(&from).copied(),
            _ => None,
        }
    }
}

/// Forwards a connection until one side closes it or the network is dropped.
async fn carry(
    mut client: TcpStream,
    target: SocketAddr,
    route: Route,
    faults: watch::Receiver<NetworkFaults>,
) {
    let opened = faults.clone().wait_for(|now| now.lets_pass(route, &[])).await.is_ok();
    let Some(mut server) = connect(target).await.filter(|_| opened) else { return };
    let _ = client.set_nodelay(true);
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    tokio::select! {
        () = pump(from_client, to_server, route, faults.clone()) => {}
        () = pump(from_server, to_client, route, faults.clone()) => {}
    }
}

async fn connect(target: SocketAddr) -> Option<TcpStream> {
    let server = TcpStream::connect(target).await.ok()?;
    let _ = server.set_nodelay(true);
    Some(server)
}

/// Forwards one direction. A closed connection is also reported only when the network allows it.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    route: Route,
    mut faults: watch::Receiver<NetworkFaults>,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes).await.unwrap_or(0);
        let passed = faults.wait_for(|now| now.lets_pass(route, &bytes[..count])).await;
        let Ok(delay) = passed.map(|now| now.delay(route)) else { return };
        if let Some(delay) = delay {
            sleep(delay).await;
        }
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
