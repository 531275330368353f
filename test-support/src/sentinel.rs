//! A primary with two replicas, watched by three sentinels.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::certificates::Certificates;
use crate::network::{Network, Port};
use crate::process::{Process, Signal, command, free_address};
use crate::redis_server::Kind;
use crate::time_limits::SOON;
use crate::wait::{eventually, holds};
use crate::{RedisServer, RedisView};

/// The name of the monitored service.
pub const SERVICE: &str = "main";
/// Silence after which a sentinel considers a server down; long enough for a busy machine.
const DOWN_AFTER_MS: u32 = 2000;
/// Silence longer than any test, in milliseconds of the system clock: a sentinel considers no server down.
const NEVER_MS: &str = "3600000";
/// Time limit of one failover attempt; the next one starts after twice as long.
const FAILOVER_MS: u32 = 5000;
/// Shorter periods for a sentinel's periodic work, so that tests need not wait.
const PERIODS: [[&str; 2]; 3] = [["INFO-PERIOD", "500"], ["PING-PERIOD", "200"], ["PUBLISH-PERIOD", "300"]];

/// Access settings of sentinels and servers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Access<'a> {
    /// The sentinels' own password.
    pub sentinel_password: Option<&'a str>,
    /// Certificates for servers that accept only TLS. Sentinels also require TLS, except from the test.
    pub tls: Option<&'a Certificates>,
    /// The kind of servers and sentinels.
    pub kind: Kind,
    /// The network between servers and sentinels.
    pub network: Option<&'a Network>,
    /// Additional settings of the servers, which override the set's own.
    pub settings: &'a [(&'a str, &'a str)],
    /// Environment variables of the servers.
    pub environment: &'a [(&'a str, PathBuf)],
}

/// A sentinel on a free address, killed on drop.
#[derive(Debug)]
pub struct Sentinel {
    process: Process,
    /// The address without TLS.
    plain: SocketAddr,
    address: SocketAddr,
    password: Option<String>,
    directory: TempDir,
}

impl Sentinel {
    /// Starts a sentinel that watches `primary`; waits until it answers.
    pub async fn start(primary: SocketAddr, access: Access<'_>) -> Self {
        let (plain, by_tls) = (free_address(), access.tls.map(|_| free_address()));
        let address = by_tls.unwrap_or(plain);
        let mut lines = vec![
            format!("bind {}", plain.ip()),
            format!("port {}", plain.port()),
            "logfile sentinel.log".to_owned(),
            format!("sentinel announce-ip {}", address.ip()),
            format!("sentinel announce-port {}", address.port()),
            format!("sentinel monitor {SERVICE} {} {} 2", primary.ip(), primary.port()),
            format!("sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"),
            format!("sentinel failover-timeout {SERVICE} {FAILOVER_MS}"),
        ];
        let settings = access.tls.map(|certificates| certificates.redis_settings(address));
        lines.extend(settings.into_iter().flatten().map(|(name, value)| format!("{name} {value}")));
        if access.network.is_some() {
            lines.push(format!("bind-source-addr {}", Network::source_of_sentinels()));
        }
        if let Some(password) = access.sentinel_password {
            lines.push(format!("requirepass {password}\nsentinel sentinel-pass {password}"));
        }
        let directory = tempfile::Builder::new().prefix("cgs-").tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("sentinel.conf"), lines.join("\n")).expect("its configuration");
        let process = launch(access.kind, directory.path());
        let password = access.sentinel_password.map(str::to_owned);
        let sentinel = Self { process, plain, address, password, directory };
        let view = sentinel.view().await;
        for [period, ms] in PERIODS {
            view.query::<()>(&["SENTINEL", "DEBUG", period, ms]).await;
        }
        sentinel
    }

    /// Returns the address for core.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends `signal` to its process.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Opens a connection to the sentinel; waits until the sentinel answers.
    pub async fn view(&self) -> RedisView {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let url = format!("redis://{password}{}", self.plain);
        eventually(SOON, || async {
            RedisView::connect(&url).await.map_err(|error| format!("{error}\n{}", self.log()))
        })
        .await
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("sentinel.log")).unwrap_or_default()
    }

    /// Returns the sentinel's view of the primary that it monitors.
    async fn monitored(&self) -> HashMap<String, String> {
        self.view().await.query(&["SENTINEL", "MASTER", SERVICE]).await
    }
}

fn launch(kind: Kind, directory: &Path) -> Process {
    let mut command = command(&kind.program("server"));
    command.args(["sentinel.conf", "--sentinel"]).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process::start(command)
}

/// A fake sentinel that has missed failovers but claims the highest configuration epoch; stopped when
/// dropped.
#[derive(Debug)]
pub struct StaleSentinel {
    address: SocketAddr,
    names: watch::Sender<SocketAddr>,
    accepting: JoinHandle<()>,
}

impl StaleSentinel {
    /// Starts a fake sentinel that names the server at `primary`.
    pub async fn start(primary: SocketAddr) -> Self {
        let address = free_address();
        let listener = TcpListener::bind(address).await.expect("a free address");
        let names = watch::Sender::new(primary);
        let monitored = names.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(answer(client, monitored.clone()));
            }
        });
        Self { address, names, accepting }
    }

    /// Returns the address on which the sentinel listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Names the server at `primary` from now on.
    pub fn names(&self, primary: SocketAddr) {
        self.names.send_replace(primary);
    }
}

impl Drop for StaleSentinel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers the query for the primary, and acknowledges everything else.
async fn answer(client: TcpStream, named: watch::Receiver<SocketAddr>) {
    let (read, mut write) = client.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(head)) = lines.next_line().await {
        let words: usize = head.trim_start_matches('*').parse().expect("an array");
        let mut command = Vec::new();
        for _ in 0..words {
            // Skip the word's length, because no word contains a line break.
            let _ = lines.next_line().await;
            command.extend(lines.next_line().await.ok().flatten());
        }
        let reply = if command.first().is_some_and(|word| word == "SENTINEL") {
            let primary = *named.borrow();
            let (ip, port) = (primary.ip().to_string(), primary.port().to_string());
            let words = ["name", SERVICE, "ip", &ip, "port", &port, "config-epoch", "1000000"];
            let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
            format!("*{}\r\n{}", words.len(), words.concat())
        } else {
            "+OK\r\n".to_owned()
        };
        if write.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A primary, two replicas and three sentinels.
#[derive(Debug)]
pub struct SentinelSet {
    /// The servers; the first one is the initial primary.
    pub servers: Vec<RedisServer>,
    /// The sentinels.
    pub sentinels: Vec<Sentinel>,
    addresses: Vec<SocketAddr>,
    scheme: &'static str,
}

impl SentinelSet {
    /// Starts a set without passwords.
    pub async fn start(kind: Kind) -> Self {
        Self::start_with(Access { kind, ..Access::default() }).await
    }

    /// Starts a set with access settings; waits until servers and sentinels have found each other.
    pub async fn start_with(access: Access<'_>) -> Self {
        let (mut addresses, mut servers) = (Vec::new(), Vec::new());
        for at in 0..3 {
            let listens = free_address();
            let announced = match access.network {
                Some(network) => network.proxy(at, Port::Clients, listens).await,
                None => listens,
            };
            addresses.push(announced);
            let mut settings = settings(listens, announced, (at > 0).then_some(addresses[0]), access.tls);
            if access.network.is_some() {
                settings.push(("bind-source-addr", Network::source_of(at).to_string()));
            }
            let settings = settings.iter().map(|(name, value)| (*name, value.as_str()));
            let settings: Vec<_> = settings.chain(access.settings.iter().copied()).collect();
            servers.push(RedisServer::start_as(access.kind, &settings, access.environment).await);
        }
        let sentinels = join_all((0..3).map(|_| Sentinel::start(addresses[0], access))).await;
        let scheme = if access.tls.is_some() { "rediss+sentinel" } else { "redis+sentinel" };
        let set = Self { servers, sentinels, addresses, scheme };
        set.settled().await;
        set
    }

    /// Returns the value for `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        self.url_with("", SERVICE)
    }

    /// Returns the URL with credentials of the servers (`user:password@`), for any service.
    pub fn url_with(&self, user: &str, service: &str) -> String {
        let sentinels: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("{}://{user}{}/{service}", self.scheme, sentinels.join(","))
    }

    /// Returns the address that server `server` announces.
    pub fn address(&self, server: usize) -> SocketAddr {
        self.addresses[server]
    }

    /// Opens a connection to a server, bypassing core.
    pub async fn view(&self, server: usize) -> RedisView {
        self.servers[server].view().await
    }

    /// Returns the index of the primary that a sentinel names.
    pub async fn named_by(&self, sentinel: &Sentinel) -> usize {
        self.index_in(&sentinel.monitored().await)
    }

    fn index_in(&self, monitored: &HashMap<String, String>) -> usize {
        let is = |address: &SocketAddr| {
            monitored["ip"] == address.ip().to_string() && monitored["port"] == address.port().to_string()
        };
        self.addresses.iter().position(is).expect("one of the servers")
    }

    /// Pauses the server's writes for five seconds. During the pause Sentinel cannot demote the server.
    pub async fn pause_writes(&self, server: usize) {
        self.view(server).await.query::<()>(&["CLIENT", "PAUSE", "5000", "WRITE"]).await;
    }

    /// Requests a failover, as an operator does, and waits until all sentinels name a different primary;
    /// returns its index. The old primary may be dead.
    pub async fn fail_over(&self) -> usize {
        let before = self.named_by(&self.sentinels[0]).await;
        // A sentinel aborts a failover whose replica takes too long; the request is then sent again.
        eventually(SOON, || async {
            let named = self.request_fail_over(before).await?;
            holds(named != before, || "in progress".to_owned())
        })
        .await;
        self.promoted_after(before).await
    }

    /// Requests a failover from the server `from` of the first sentinel, unless one is in progress or over; returns the
    /// index of the primary that this sentinel names.
    ///
    /// # Errors
    /// If no replica can be promoted.
    pub async fn request_fail_over(&self, from: usize) -> Result<usize, String> {
        let monitored = self.sentinels[0].monitored().await;
        let named = self.index_in(&monitored);
        if named == from && !monitored["flags"].contains("failover_in_progress") {
            let view = self.sentinels[0].view().await;
            view.try_query::<String>(&["SENTINEL", "FAILOVER", SERVICE]).await?;
        }
        Ok(named)
    }

    /// Waits until all sentinels name the same server other than `before`, and that server is a primary;
    /// returns its index.
    pub async fn promoted_after(&self, before: usize) -> usize {
        eventually(SOON, || async {
            let named = join_all(self.sentinels.iter().map(|sentinel| self.named_by(sentinel))).await;
            let now = named[0];
            holds(now != before && named.iter().all(|named| *named == now), || {
                format!("{named:?}\n{}", self.sentinels[0].log())
            })?;
            let info: String = self.view(now).await.query(&["INFO", "replication"]).await;
            holds(info.contains("role:master"), || info.clone()).map(|()| now)
        })
        .await
    }

    /// Prevents all failovers but those of [`Self::fail_over`], for tests that do not test the detection of a failure.
    pub async fn never_fail_over(&self) {
        for sentinel in &self.sentinels {
            let set = ["SENTINEL", "SET", SERVICE, "down-after-milliseconds", NEVER_MS];
            sentinel.view().await.query::<()>(&set).await;
        }
    }

    /// Waits until each sentinel reports the other sentinels and two replicas that follow.
    pub async fn settled(&self) {
        for sentinel in &self.sentinels {
            eventually(SOON, || async {
                let monitored = sentinel.monitored().await;
                let known = (monitored["num-slaves"].as_str(), monitored["num-other-sentinels"].as_str());
                holds(known == ("2", "2") && monitored["flags"] == "master", || {
                    format!("{monitored:?}\n{}", sentinel.log())
                })?;
                let replicas: Vec<HashMap<String, String>> =
                    sentinel.view().await.query(&["SENTINEL", "REPLICAS", SERVICE]).await;
                let follow = replicas
                    .iter()
                    .all(|replica| replica["flags"] == "slave" && replica["master-link-status"] == "ok");
                holds(follow, || format!("{replicas:?}"))
            })
            .await;
        }
    }
}

/// Returns the settings of a server that listens on one address and announces the same or a different one.
/// Protected mode is off, since connections may come from any loopback address.
fn settings(
    listens: SocketAddr,
    announced: SocketAddr,
    primary: Option<SocketAddr>,
    tls: Option<&Certificates>,
) -> Vec<(&'static str, String)> {
    let mut settings = match tls {
        Some(certificates) => certificates.redis_settings(listens),
        None => vec![("bind", listens.ip().to_string()), ("port", listens.port().to_string())],
    };
    settings.extend([
        ("protected-mode", "no".to_owned()),
        ("replica-announce-ip", announced.ip().to_string()),
        ("replica-announce-port", announced.port().to_string()),
        // A resync starts immediately instead of after five seconds.
        ("repl-diskless-sync-delay", "0".to_owned()),
    ]);
    settings.extend(primary.map(|primary| ("replicaof", format!("{} {}", primary.ip(), primary.port()))));
    settings
}
