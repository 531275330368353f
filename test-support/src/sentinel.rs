//! Sentinels, and a primary with two replicas that three of them watch.

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
use crate::wait::{SOON, eventually, holds};
use crate::{RedisServer, RedisView};

/// The name of what the sentinels watch.
pub const SERVICE: &str = "main";
/// How long a server is silent before a sentinel takes it for down: not for being slow on a busy machine.
const DOWN_AFTER_MS: u32 = 2000;
/// How long one try of a failover may take; the next one comes after twice as long.
const FAILOVER_MS: u32 = 5000;
/// What a sentinel does every second or ten is done more often, so that a test need not wait for it.
const PERIODS: [[&str; 2]; 3] = [["INFO-PERIOD", "500"], ["PING-PERIOD", "200"], ["PUBLISH-PERIOD", "300"]];

/// What sentinels and servers ask of those who connect.
#[derive(Debug, Clone, Copy, Default)]
pub struct Access<'a> {
    /// The sentinels' own password.
    pub sentinel_password: Option<&'a str>,
    /// The servers speak TLS alone, and the sentinels too but to the test.
    pub tls: Option<&'a Certificates>,
    /// What servers and sentinels are.
    pub kind: Kind,
    /// What lies between all of them.
    pub network: Option<&'a Network>,
    /// Further settings of the servers, which go before the set's own.
    pub settings: &'a [(&'a str, &'a str)],
    /// Variables of the servers.
    pub environment: &'a [(&'a str, PathBuf)],
}

/// A sentinel on a free address, killed on drop.
#[derive(Debug)]
pub struct Sentinel {
    process: Process,
    /// Where it listens without TLS.
    plain: SocketAddr,
    address: SocketAddr,
    password: Option<String>,
    directory: TempDir,
}

impl Sentinel {
    /// A sentinel that watches `primary`; waits until it answers.
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

    /// Where it listens for core.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends its process `signal`.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// A connection to it, once it answers.
    pub async fn view(&self) -> RedisView {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let url = format!("redis://{password}{}", self.plain);
        eventually(SOON, || async {
            RedisView::connect(&url).await.map_err(|error| format!("{error}\n{}", self.log()))
        })
        .await
    }

    /// All that it has written to its log.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("sentinel.log")).unwrap_or_default()
    }

    /// What it says of the primary that it watches.
    async fn told(&self) -> HashMap<String, String> {
        self.view().await.query(&["SENTINEL", "MASTER", SERVICE]).await
    }
}

fn launch(kind: Kind, directory: &Path) -> Process {
    let mut command = command(&kind.program("server"));
    command.args(["sentinel.conf", "--sentinel"]).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process::start(command)
}

/// Speaks as a sentinel that has missed failovers, and takes itself for the one that knows best; gone when dropped.
#[derive(Debug)]
pub struct StaleSentinel {
    address: SocketAddr,
    names: watch::Sender<SocketAddr>,
    accepting: JoinHandle<()>,
}

impl StaleSentinel {
    /// One that names the server at `primary`.
    pub async fn start(primary: SocketAddr) -> Self {
        let address = free_address();
        let listener = TcpListener::bind(address).await.expect("a free address");
        let names = watch::Sender::new(primary);
        let told = names.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(answer(client, told.clone()));
            }
        });
        Self { address, names, accepting }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on it names the server at `primary`.
    pub fn names(&self, primary: SocketAddr) {
        self.names.send_replace(primary);
    }
}

impl Drop for StaleSentinel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers the question for the primary; agrees to all else.
async fn answer(client: TcpStream, named: watch::Receiver<SocketAddr>) {
    let (read, mut write) = client.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(head)) = lines.next_line().await {
        let words: usize = head.trim_start_matches('*').parse().expect("an array");
        let mut command = Vec::new();
        for _ in 0..words {
            // Its length, which is not needed: no word has a line's end in it.
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

/// A primary, two replicas, and three sentinels.
#[derive(Debug)]
pub struct SentinelSet {
    /// The servers; the first one was the primary at the start.
    pub servers: Vec<RedisServer>,
    /// The sentinels.
    pub sentinels: Vec<Sentinel>,
    addresses: Vec<SocketAddr>,
    scheme: &'static str,
}

impl SentinelSet {
    /// Open to all who connect.
    pub async fn start(kind: Kind) -> Self {
        Self::start_with(Access { kind, ..Access::default() }).await
    }

    /// Waits until all know one another.
    pub async fn start_with(access: Access<'_>) -> Self {
        let (mut addresses, mut servers) = (Vec::new(), Vec::new());
        for at in 0..3 {
            let listens = free_address();
            let announced = match access.network {
                Some(network) => network.door(at, Port::Clients, listens).await,
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

    /// For `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        self.url_with("", SERVICE)
    }

    /// The same with a user of the servers (`user:password@`), for any service.
    pub fn url_with(&self, user: &str, service: &str) -> String {
        let sentinels: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("{}://{user}{}/{service}", self.scheme, sentinels.join(","))
    }

    /// Where the server at this place listens.
    pub fn address(&self, server: usize) -> SocketAddr {
        self.addresses[server]
    }

    /// A connection to the server at this place, past core.
    pub async fn view(&self, server: usize) -> RedisView {
        self.servers[server].view().await
    }

    /// The place of the primary that a sentinel names.
    pub async fn named_by(&self, sentinel: &Sentinel) -> usize {
        self.named_in(&sentinel.told().await)
    }

    fn named_in(&self, told: &HashMap<String, String>) -> usize {
        let is = |address: &SocketAddr| {
            told["ip"] == address.ip().to_string() && told["port"] == address.port().to_string()
        };
        self.addresses.iter().position(is).expect("one of the servers")
    }

    /// Has the server at this place write nothing for five seconds. Sentinel cannot demote it before they are over.
    pub async fn pause_writes(&self, server: usize) {
        self.view(server).await.query::<()>(&["CLIENT", "PAUSE", "5000", "WRITE"]).await;
    }

    /// Asks for a failover, as an operator does, and waits until another server is the primary that all name. Returns its
    /// place.
    pub async fn fail_over(&self) -> usize {
        let (asked, before) = (&self.sentinels[0], self.named_by(&self.sentinels[0]).await);
        let view = asked.view().await;
        // A sentinel gives one up whose replica takes too long, and an operator asks again.
        eventually(2 * SOON, || async {
            let told = asked.told().await;
            let is_done = self.named_in(&told) != before;
            if !is_done && !told["flags"].contains("failover_in_progress") {
                view.try_query::<String>(&["SENTINEL", "FAILOVER", SERVICE]).await?;
            }
            holds(is_done, || "under way".to_owned())
        })
        .await;
        self.promoted_after(before).await
    }

    /// Waits until all sentinels name another server than the one at `before`, and that is a primary. Returns its place.
    pub async fn promoted_after(&self, before: usize) -> usize {
        eventually(2 * SOON, || async {
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

    /// Waits until each sentinel knows the others, and two replicas that follow.
    pub async fn settled(&self) {
        for sentinel in &self.sentinels {
            eventually(2 * SOON, || async {
                let told = sentinel.told().await;
                let known = (told["num-slaves"].as_str(), told["num-other-sentinels"].as_str());
                holds(known == ("2", "2") && told["flags"] == "master", || {
                    format!("{told:?}\n{}", sentinel.log())
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

/// Of a server that listens at one address and announces the same or another: on the loopback network its connections may
/// come from anywhere.
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
        // A resync begins at once, not after five seconds.
        ("repl-diskless-sync-delay", "0".to_owned()),
    ]);
    settings.extend(primary.map(|primary| ("replicaof", format!("{} {}", primary.ip(), primary.port()))));
    settings
}
