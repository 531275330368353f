//! Sentinels, and a primary with two replicas that three of them watch.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use futures_util::future::join_all;
use tempfile::TempDir;

use crate::process::{Process, command, free_address};
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

/// A sentinel on a free address, killed on drop.
#[derive(Debug)]
pub struct Sentinel {
    process: Process,
    address: SocketAddr,
    password: Option<String>,
    directory: TempDir,
}

impl Sentinel {
    /// A sentinel that watches `primary`, with a password of its own if that is any; waits until it answers.
    pub async fn start(primary: SocketAddr, password: Option<&str>) -> Self {
        let address = free_address();
        let directory = tempfile::Builder::new().prefix("cgs-").tempdir().expect("a temporary directory");
        let (ip, port) = (address.ip(), address.port());
        let mut lines = format!("bind {ip}\nport {port}\nlogfile sentinel.log\nsentinel announce-ip {ip}\n");
        let (ip, port) = (primary.ip(), primary.port());
        let _ = write!(lines, "sentinel monitor {SERVICE} {ip} {port} 2\n");
        let _ = write!(lines, "sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n");
        let _ = write!(lines, "sentinel failover-timeout {SERVICE} {FAILOVER_MS}\n");
        if let Some(password) = password {
            let _ = write!(lines, "requirepass {password}\nsentinel sentinel-pass {password}\n");
        }
        std::fs::write(directory.path().join("sentinel.conf"), lines).expect("its configuration");
        let process = launch(directory.path());
        let sentinel = Self { process, address, password: password.map(str::to_owned), directory };
        let view = sentinel.view().await;
        for [period, ms] in PERIODS {
            view.query::<()>(&["SENTINEL", "DEBUG", period, ms]).await;
        }
        sentinel
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// `kill -9`, then the same sentinel again, with what it had written down.
    pub async fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = launch(self.directory.path());
        self.view().await;
    }

    /// A connection to it, once it answers.
    pub async fn view(&self) -> RedisView {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let url = format!("redis://{password}{}", self.address);
        eventually(SOON, || async { RedisView::connect(&url).await }).await
    }

    /// What it says of the primary that it watches.
    async fn told(&self) -> HashMap<String, String> {
        self.view().await.query(&["SENTINEL", "MASTER", SERVICE]).await
    }
}

fn launch(directory: &Path) -> Process {
    let mut command = command(Path::new("redis-server"));
    command.args(["sentinel.conf", "--sentinel"]).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process::start(command)
}

/// A primary, two replicas, and three sentinels.
#[derive(Debug)]
pub struct SentinelSet {
    /// The servers; the first one was the primary at the start.
    pub servers: Vec<RedisServer>,
    /// The sentinels.
    pub sentinels: Vec<Sentinel>,
    addresses: Vec<SocketAddr>,
}

impl SentinelSet {
    /// Without passwords.
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// With a password of the sentinels' own, if that is any. Waits until all know one another.
    pub async fn start_with(password: Option<&str>) -> Self {
        let addresses: Vec<_> = (0..3).map(|_| free_address()).collect();
        let mut servers = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            servers.push(server(*address, (at > 0).then_some(addresses[0])).await);
        }
        let sentinels = join_all((0..3).map(|_| Sentinel::start(addresses[0], password))).await;
        let set = Self { servers, sentinels, addresses };
        set.settled().await;
        set
    }

    /// For `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        self.url_with("", SERVICE)
    }

    /// The same with a user before the sentinels (`user:password@`), for another service.
    pub fn url_with(&self, user: &str, service: &str) -> String {
        let sentinels: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("redis+sentinel://{user}{}/{service}", sentinels.join(","))
    }

    /// The place among the servers of the primary that a sentinel names.
    pub async fn named_by(&self, sentinel: usize) -> usize {
        let told = self.sentinels[sentinel].told().await;
        let is = |address: &SocketAddr| {
            told["ip"] == address.ip().to_string() && told["port"] == address.port().to_string()
        };
        self.addresses.iter().position(is).expect("one of the servers")
    }

    /// A connection to the server at this place, past core.
    pub async fn view(&self, server: usize) -> RedisView {
        self.servers[server].view().await
    }

    /// Asks for a failover, as an operator does, and waits until another server is the primary that all name. Returns its
    /// place.
    pub async fn fail_over(&self) -> usize {
        let before = self.named_by(0).await;
        let sentinel = self.sentinels[0].view().await;
        eventually(SOON, || async {
            sentinel.try_query(&["SENTINEL", "FAILOVER", SERVICE]).await.map(|()| ())
        })
        .await;
        self.promoted_after(before).await
    }

    /// Waits until all sentinels name another server than the one at `before`, and that is a primary. Returns its place.
    pub async fn promoted_after(&self, before: usize) -> usize {
        eventually(2 * SOON, || async {
            let named = join_all((0..self.sentinels.len()).map(|sentinel| self.named_by(sentinel))).await;
            let now = named[0];
            holds(now != before && named.iter().all(|named| *named == now), || format!("{named:?}"))?;
            let info: String = self.view(now).await.query(&["INFO", "replication"]).await;
            holds(info.contains("role:master"), || info.clone()).map(|()| now)
        })
        .await
    }

    /// Waits until each sentinel knows the others and two replicas that follow.
    pub async fn settled(&self) {
        for sentinel in &self.sentinels {
            eventually(2 * SOON, || async {
                let told = sentinel.told().await;
                let counts = (told["num-slaves"].as_str(), told["num-other-sentinels"].as_str());
                holds(counts == ("2", "2") && told["flags"] == "master", || format!("{told:?}"))?;
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

/// A server that is reached by its address too, and announces it: a connection's own may differ on a loopback network.
async fn server(address: SocketAddr, primary: Option<SocketAddr>) -> RedisServer {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let follows = primary.map(|primary| format!("{} {}", primary.ip(), primary.port()));
    let mut settings = vec![
        ("bind", ip.as_str()),
        ("port", port.as_str()),
        ("protected-mode", "no"),
        ("replica-announce-ip", ip.as_str()),
        // A resync begins at once, not after five seconds.
        ("repl-diskless-sync-delay", "0"),
    ];
    settings.extend(follows.as_deref().map(|follows| ("replicaof", follows)));
    RedisServer::start_with(&settings, &[]).await
}
