//! A server's name has several addresses, of which the first swallows packets.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use support::CoreOptions;
use support::checker::{Checker, Expect};
use support::fault_proxy::FaultProxy;
use support::postgres::Postgres;
use support::process::command;
use support::sql::Sql;

use tempfile::NamedTempFile;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// An address that the resolver sorts before all others of a machine's own: it differs least from 127.0.0.1.
const FIRST: [u8; 4] = [127, 0, 0, 2];

/// A listener that swallows packets: its queue of connections is full.
struct Swallowing {
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Swallowing {
    async fn at(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(address).expect("a free address");
        let listener = socket.listen(1).expect("a listener");
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
            queued.push(stream.expect("a connection"));
        }
        Self { _listener: listener, _queued: queued }
    }
}

/// Returns PostgreSQL if this machine can give core its own file of hosts.
async fn postgres() -> Result<Postgres, String> {
    let unshared = command("unshare".as_ref()).args(["--mount", "true"]).output();
    match unshared {
        Ok(output) if output.status.success() => Postgres::start().await,
        _ => Err("namespaces are not permitted".to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_uses_the_next_address_of_postgresql() {
    let row = Row::begin("the first address of PostgreSQL's name swallows packets");
    let Some(postgres) = row.needs(postgres().await) else { return };
    let sql = Sql::open(&postgres.database("claimgate").await);
    let proxy = FaultProxy::start(postgres.socket()).await;
    let SocketAddr::V4(second) = proxy.address() else { panic!("{}", proxy.address()) };
    let first = SocketAddr::from((FIRST, second.port()));
    row.fault();
    let _first = Swallowing::at(first).await;
    let mut hosts = NamedTempFile::new().expect("a file");
    write!(hosts, "127.0.0.1 localhost\n{} sql.test\n{} sql.test\n", first.ip(), second.ip())
        .expect("a file");
    let url = format!("postgres://claimgate@sql.test:{}/claimgate?sslmode=disable", second.port());
    let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url);
    let core = options.with_hosts(hosts.path().to_owned()).start().await;
    let checker = Checker::create(&core, "demo", ROOMY).await;
    checker.win(&core, 0..50).await;
    let fixture = Fixture { core, others: vec![], proxy: None, server: None, postgres: Some(postgres), sql };
    fixture.relayed("demo").await;
    fixture.judge(row, &checker, Expect::default()).await;
}
