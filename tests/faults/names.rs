//! A server's name has several addresses, of which the first swallows packets.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::checker::{Checker, Expect};
use support::fault_proxy::FaultProxy;
use support::postgres::Postgres;
use support::process::{command, with_hosts};
use support::sql::Sql;
use support::topology::OWN;
use support::{CoreOptions, RedisServer, binary, only_on};

use tempfile::NamedTempFile;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// An address that the resolver sorts before all others of a machine's own: it differs least from 127.0.0.1.
const FIRST: [u8; 4] = [127, 0, 0, 2];

/// The name `server.test`, whose first address swallows packets.
struct Name {
    hosts: NamedTempFile,
    /// The port at both addresses.
    port: u16,
    /// The first address, whose queue of connections is full.
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Name {
    /// Names the server at `second`.
    async fn of(second: SocketAddr) -> Self {
        let first = SocketAddr::from((FIRST, second.port()));
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(first).expect("a free address");
        let listener = socket.listen(1).expect("a listener");
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(Duration::from_secs(1), TcpStream::connect(first)).await {
            queued.push(stream.expect("a connection"));
        }
        let mut hosts = NamedTempFile::new().expect("a file");
        let lines = format!("127.0.0.1 localhost\n{} server.test\n{} server.test\n", first.ip(), second.ip());
        hosts.write_all(lines.as_bytes()).expect("a file");
        Self { hosts, port: second.port(), _listener: listener, _queued: queued }
    }

    fn hosts(&self) -> PathBuf {
        self.hosts.path().to_owned()
    }
}

/// Fails if this user cannot give a process its own file of hosts.
fn require_namespaces() -> Result<(), String> {
    let words = with_hosts(Path::new("/etc/hosts"));
    match command(words[0].as_ref()).args(&words[1..]).arg("true").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_uses_the_next_address_of_postgresql() {
    let row = Row::begin("the first address of PostgreSQL's name swallows packets");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let sql = Sql::open(&postgres.database("claimgate").await);
    let proxy = FaultProxy::start(postgres.socket()).await;
    row.fault();
    let name = Name::of(proxy.address()).await;
    let url = format!("postgres://claimgate@server.test:{}/claimgate?sslmode=disable", name.port);
    let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url);
    let core = options.with_hosts(name.hosts()).start().await;
    let checker = Checker::create(&core, "demo", ROOMY).await;
    checker.win(&core, 0..50).await;
    let fixture = Fixture { core, others: vec![], proxy: None, server: None, postgres: Some(postgres), sql };
    fixture.relayed("demo").await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_uses_the_next_address_of_redis() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("the first address of Redis' name swallows packets");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let server = RedisServer::start().await;
    let url = server.url();
    let socket = Path::new(url.strip_prefix("unix://").expect("a socket"));
    let proxy = FaultProxy::start(socket.to_owned()).await;
    row.fault();
    let name = Name::of(proxy.address()).await;
    let options =
        CoreOptions::default().with("CLAIMGATE_REDIS_URL", format!("redis://server.test:{}", name.port));
    let core = options.with_hosts(name.hosts()).start().await;
    let checker = Checker::create(&core, "demo", ROOMY).await;
    checker.win(&core, 0..50).await;
    Sql::in_directory(&core.data_dir()).until("demo", 50).await;
    row.passed(51, "connected to the next address");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_uses_the_next_address_of_core() {
    let row = Row::begin("the first address of core's name swallows packets");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    row.fault();
    let name = Name::of(fixture.core.admin_listen()).await;
    let words = with_hosts(&name.hosts());
    let mut list = command(words[0].as_ref());
    list.args(&words[1..]).arg(binary::claimgate()).args(["campaign", "list", "--json", "--admin-listen"]);
    list.arg(format!("server.test:{}", name.port));
    list.env("CLAIMGATE_ADMIN_TOKEN", fixture.core.admin_token());
    let output = tokio::task::spawn_blocking(move || list.output()).await.expect("a task").expect("unshare");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("\"demo\""), "{out}\n{err}");
    assert!(!err.contains("no answer"), "the call must not be retried: {err}");
    fixture.judge(row, &checker, Expect::default()).await;
}
