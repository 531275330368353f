//! A server's name has several addresses, of which the first swallows packets or leads to a replica; or the name cannot be
//! looked up.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use support::checker::{Checker, Expect};
use support::core_client::campaign;
use support::fault_proxy::FaultProxy;
use support::postgres::Postgres;
use support::process::{Signal, command, free_address, own_loopback, with_hosts};
use support::sql::Sql;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, SOON, binary, eventually, only_on, promised};

use tempfile::{NamedTempFile, TempDir};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::time::timeout;

use crate::fixture::{Fixture, ROOMY, socket};
use crate::tally::Row;

/// An address that the resolver sorts before all others of a machine's own: it differs least from 127.0.0.1.
const FIRST: [u8; 4] = [127, 0, 0, 2];

/// Time limit until core calls the next address of PostgreSQL: 0.75 s, and the start of core.
const NEXT_ADDRESS_MAX: Duration = Duration::from_millis(2750);

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
        Self { hosts: hosts_with(second), port: second.port(), _listener: listener, _queued: queued }
    }

    fn hosts(&self) -> PathBuf {
        self.hosts.path().to_owned()
    }
}

/// Writes a file of hosts in which the name `server.test` has the first address and that of `second`.
fn hosts_with(second: SocketAddr) -> NamedTempFile {
    let mut hosts = NamedTempFile::new().expect("a file");
    let first = SocketAddr::from((FIRST, second.port()));
    let lines = format!("127.0.0.1 localhost\n{} server.test\n{} server.test\n", first.ip(), second.ip());
    hosts.write_all(lines.as_bytes()).expect("a file");
    hosts
}

/// Forwards connections to the first address and `port` to the socket `target`.
async fn forward_first(port: u16, target: PathBuf) {
    let listener = TcpListener::bind(SocketAddr::from((FIRST, port))).await.expect("a free address");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let target = target.clone();
            tokio::spawn(async move {
                if let Ok(mut server) = UnixStream::connect(target).await {
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
}

/// Answers connections to the first address and `port` as a PostgreSQL that is starting.
async fn refuse_first(port: u16) {
    const FIELDS: &[u8] = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
    let listener = TcpListener::bind(SocketAddr::from((FIRST, port))).await.expect("a free address");
    let length = u32::try_from(4 + FIELDS.len()).expect("a short message");
    let refusal = [b"E", &length.to_be_bytes()[..], FIELDS].concat();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let refusal = refusal.clone();
            tokio::spawn(async move {
                // The startup message begins with its length.
                let length = client.read_u32().await.unwrap_or(4);
                let mut startup = vec![0; length.saturating_sub(4) as usize];
                if client.read_exact(&mut startup).await.is_ok() {
                    let _ = client.write_all(&refusal).await;
                }
            });
        }
    });
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
    claims_reach_postgresql(row, postgres, sql, name.hosts(), name.port).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_calls_the_next_address_of_postgresql_in_time() {
    let row =
        Row::begin("the first address of PostgreSQL's name swallows packets: the time until the next call");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let postgres = TcpListener::bind(free_address()).await.expect("a free address");
    row.fault();
    let name = Name::of(postgres.local_addr().expect("an address")).await;
    let url = format!("postgres://claimgate@server.test:{}/claimgate?sslmode=disable", name.port);
    let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url);
    let _core = Core::launch(options.with_hosts(name.hosts())).await;
    let began = Instant::now();
    timeout(promised(NEXT_ADDRESS_MAX), postgres.accept())
        .await
        .expect("a call in time")
        .expect("a connection");
    row.passed(1, &format!("called after {:.2?}", began.elapsed()));
}

/// Runs a core on the PostgreSQL that it knows as `server.test`.
async fn claims_reach_postgresql(row: Row, postgres: Postgres, sql: Sql, hosts: PathBuf, port: u16) {
    let url = format!("postgres://claimgate@server.test:{port}/claimgate?sslmode=disable");
    let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url);
    let core = options.with_hosts(hosts).start().await;
    let checker = Checker::create(&core, "demo", ROOMY).await;
    checker.win(&core, 0..50).await;
    let fixture = Fixture { core, others: vec![], proxy: None, server: None, postgres: Some(postgres), sql };
    fixture.relayed("demo").await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// As with a headless service of Kubernetes that has a standby and the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_uses_the_primary_among_the_addresses_of_postgresql() {
    let row = Row::begin("the first address of PostgreSQL's name leads to a standby");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let sql = Sql::open(&postgres.database("claimgate").await);
    let standby = postgres.standby().await.expect("a standby");
    let proxy = FaultProxy::start(postgres.socket()).await;
    row.fault();
    let (hosts, port) = (hosts_with(proxy.address()), proxy.address().port());
    forward_first(port, standby.socket()).await;
    claims_reach_postgresql(row, postgres, sql, hosts.path().to_owned(), port).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_tries_the_next_address_if_postgresql_refuses() {
    let row = Row::begin("the first address of PostgreSQL's name refuses connections");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let sql = Sql::open(&postgres.database("claimgate").await);
    let proxy = FaultProxy::start(postgres.socket()).await;
    row.fault();
    let (hosts, port) = (hosts_with(proxy.address()), proxy.address().port());
    refuse_first(port).await;
    claims_reach_postgresql(row, postgres, sql, hosts.path().to_owned(), port).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_uses_the_next_address_of_redis() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("the first address of Redis' name swallows packets");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(socket(&server)).await;
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
async fn core_uses_the_primary_among_the_addresses_of_redis() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("the first address of Redis' name leads to a replica");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let at = free_address();
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let primary =
        RedisServer::start_with(&[("bind", &ip), ("port", &port), ("protected-mode", "no")], &[]).await;
    let replica = RedisServer::start_with(&[("replicaof", &format!("{ip} {port}"))], &[]).await;
    row.fault();
    let hosts = hosts_with(at);
    forward_first(at.port(), socket(&replica)).await;
    let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", format!("redis://server.test:{port}"));
    let core = options.with_hosts(hosts.path().to_owned()).start().await;
    let checker = Checker::create(&core, "demo", ROOMY).await;
    let view = primary.view().await;
    for round in 0..5 {
        // Core's threads connect again, several at a time.
        view.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        checker.win(&core, round * 20..round * 20 + 20).await;
    }
    Sql::in_directory(&core.data_dir()).until("demo", 100).await;
    assert!(!core.log().contains("is a replica"), "{}", core.log());
    row.passed(101, "connected only to the primary");
}

/// `localhost` resolves to two addresses of one machine. Redis usually listens on only one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_reports_a_replica_at_localhost() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("the first address of localhost refuses connections, the second leads to a replica");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let (ip, port) = (own_loopback().to_string(), free_address().port().to_string());
    let settings = [("bind", ip.as_str()), ("port", &port), ("protected-mode", "no")];
    let replica =
        RedisServer::start_with(&[&settings[..], &[("replicaof", "127.0.0.1 1")]].concat(), &[]).await;
    row.fault();
    let hosts = NamedTempFile::new().expect("a file");
    fs::write(
        &hosts,
        format!("{} localhost\n{ip} localhost\n", FIRST.map(|part| part.to_string()).join(".")),
    )
    .expect("a file");
    let data = TempDir::new().expect("a directory");
    let words = with_hosts(hosts.path());
    let mut doctor = command(words[0].as_ref());
    doctor
        .args(&words[1..])
        .arg(binary::claimgate())
        .args(["doctor", "--json", "--data-dir"])
        .arg(data.path());
    doctor.env("CLAIMGATE_REDIS_URL", format!("redis://localhost:{port}"));
    let output =
        tokio::task::spawn_blocking(move || doctor.output()).await.expect("a task").expect("unshare");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("redis.role") && !out.contains("redis.reachable"), "{out}");
    drop(replica);
    row.passed(1, "reported with its remedy");
}

/// Waits for a request to `receiver`, which must begin with `line`.
async fn until_called(receiver: &TcpListener, line: &str) {
    let (mut stream, _) =
        timeout(SOON, receiver.accept()).await.expect("a connection").expect("a connection");
    let mut head = vec![0; line.len()];
    timeout(SOON, stream.read_exact(&mut head)).await.expect("a request").expect("a request");
    assert_eq!(String::from_utf8_lossy(&head), line);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_sent_to_the_next_address_of_its_receiver() {
    let row = Row::begin("the first address of a receiver's name swallows packets");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let receiver = TcpListener::bind(free_address()).await.expect("a free address");
    row.fault();
    let name = Name::of(receiver.local_addr().expect("an address")).await;
    let (first, url) = (Ipv4Addr::from(FIRST), format!("http://server.test:{}", name.port));
    // Each private address of the name must be listed.
    let hosts = format!("{url},http://{first}:{},http://{}", name.port, receiver.local_addr().unwrap());
    let options = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", hosts);
    let core = options.with_hosts(name.hosts()).start().await;
    let webhook = json!({"url": format!("{url}/")});
    core.admin(Method::POST, "/admin/v1/webhooks", &webhook).await.expect(201);
    core.create("demo", json!({})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    until_called(&receiver, "POST / HTTP/1.1").await;
    row.passed(1, "sent to the next address");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_are_sent_to_the_next_address_of_the_collector() {
    let row = Row::begin("the first address of the collector's name swallows packets");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let collector = TcpListener::bind(free_address()).await.expect("a free address");
    row.fault();
    let name = Name::of(collector.local_addr().expect("an address")).await;
    let url = format!("http://server.test:{}", name.port);
    let options = CoreOptions::default().with("CLAIMGATE_OTLP_URL", url).with("CLAIMGATE_TRACE_RATIO", "1");
    let core = options.with_hosts(name.hosts()).start().await;
    core.create("demo", json!({})).await;
    until_called(&collector, "POST /v1/traces HTTP/1.1").await;
    row.passed(1, "sent to the next address");
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

/// A resolver that answers no query, and the files that name it to a core.
struct SilentResolver {
    _socket: UdpSocket,
    directory: TempDir,
}

impl SilentResolver {
    fn start() -> Result<Self, String> {
        let address = own_loopback();
        let socket = UdpSocket::bind((address, 53)).map_err(|error| format!("port 53: {error}"))?;
        let directory = tempfile::tempdir().expect("a directory");
        let settings = format!("nameserver {address}\noptions timeout:30 attempts:1\n");
        fs::write(directory.path().join("resolv.conf"), settings).expect("a file");
        let resolver = Self { _socket: socket, directory };
        let program = format!(
            "#!/bin/sh\nmount --bind '{}' /etc/resolv.conf && exec '{}' \"$@\"\n",
            resolver.directory.path().join("resolv.conf").display(),
            binary::claimgate().display()
        );
        fs::write(resolver.program(), program).expect("a file");
        fs::set_permissions(resolver.program(), Permissions::from_mode(0o755)).expect("a program");
        Ok(resolver)
    }

    /// Returns the program that runs core with this resolver, in a mount namespace.
    fn program(&self) -> PathBuf {
        self.directory.path().join("core")
    }

    fn hosts(&self) -> PathBuf {
        self.directory.path().join("hosts")
    }

    /// Makes the system know `server.test`, or ask the resolver for it.
    fn knows(&self, address: Option<SocketAddr>) {
        let line = address.map_or_else(String::new, |address| format!("{} server.test\n", address.ip()));
        fs::write(self.hosts(), format!("127.0.0.1 localhost\n{line}")).expect("a file");
    }
}

/// Waits until core reports whether SQL works.
async fn until_sql_is(core: &Core, state: &str) {
    eventually(promised(Duration::from_secs(5)), || async {
        let ready = core.get("/readyz").await;
        holds(ready.json()["sql"] == state, || ready.text())
    })
    .await;
}

/// A lookup that hangs occupies a thread for 30 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_no_name_can_be_looked_up() {
    const THREADS_MAX: usize = 100;
    const STOP_MAX: Duration = Duration::from_secs(15);
    let row = Row::begin("the resolver answers no query");
    let Some(()) = row.needs(require_namespaces()) else { return };
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let Some(resolver) = row.needs(SilentResolver::start()) else { return };
    let sql = Sql::open(&postgres.database("claimgate").await);
    let proxy = FaultProxy::start(postgres.socket()).await;
    resolver.knows(Some(proxy.address()));
    let (port, unused) = (proxy.address().port(), free_address());
    let receiver = format!("http://server.test:{}", unused.port());
    let url = format!("postgres://claimgate@server.test:{port}/claimgate?sslmode=disable");
    let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url).program(resolver.program());
    let options = options.with("CLAIMGATE_WEBHOOK_HOSTS", format!("{receiver},http://{unused}"));
    let mut core = options.with_hosts(resolver.hosts()).start().await;
    core.admin(Method::POST, "/admin/v1/webhooks", &json!({"url": format!("{receiver}/")})).await.expect(201);
    let mut coded = campaign("coded", json!({"total": 0}));
    coded["codes"] = json!(true);
    core.create_with(coded).await;
    core.create("demo", json!({})).await;
    row.fault();
    resolver.knows(None);
    let (began, mut claims, mut threads, mut repeats) = (Instant::now(), 0, 0, 0);
    while began.elapsed() < Duration::from_secs(20) {
        repeats += core.claim("demo", &format!("u{claims}"), "k").await.expect(201).repeats;
        claims += 1;
        let tasks = fs::read_dir(format!("/proc/{}/task", core.pid())).expect("core runs");
        threads = threads.max(tasks.count());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Redis may stall now and then. If it stalled every claim, the loop would have time for few of them.
    let repeats = usize::try_from(repeats).expect("a count");
    assert!(repeats * 10 <= claims, "{repeats} repeats of {claims} claims");
    assert!(threads < THREADS_MAX, "{threads} threads");
    until_sql_is(&core, "down").await;
    let added = core.once().add_codes("coded", "A\n").await;
    assert!([200, 503].contains(&added.status), "{}", added.text());
    resolver.knows(Some(proxy.address()));
    until_sql_is(&core, "up").await;
    sql.until("demo", claims).await;
    resolver.knows(None);
    until_sql_is(&core, "down").await;
    core.process().signal(Signal::TERM);
    let status = core.process().wait(promised(STOP_MAX)).await;
    assert!(status.success(), "{status}: {}", core.log());
    row.passed(claims, &format!("claims were decided, with {threads} threads at most"));
}
