//! An installation in which every address is an IPv6 address.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};

use serde_json::json;
use support::available::{available, say};
use support::postgres::Postgres;
use support::sql::Sql;
use support::topology::OWN;
use support::{CoreOptions, RedisServer, only_on};

use crate::command_line::{run, run_against};
use crate::doctor;

/// Returns addresses on which no process listens; `Err` if this machine has no IPv6.
fn free_addresses() -> io::Result<[SocketAddr; 3]> {
    let probe = || TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
    // All are bound at the same time, so that no two have the same port.
    let probes = [probe()?, probe()?, probe()?];
    Ok(probes.map(|probe| probe.local_addr().unwrap()))
}

#[tokio::test]
async fn an_installation_works_with_ipv6_addresses_only() {
    only_on!(OWN, "it starts its own servers");
    // CI may run in a container without IPv6.
    let Ok([listen, admin, redis_at]) = free_addresses() else {
        return say("SKIPPED an installation on IPv6: this machine has none");
    };
    let postgres = Postgres::start_with(&[("listen_addresses", "::1"), ("fsync", "on")]).await;
    let Some(postgres) = available("PostgreSQL on IPv6", postgres) else { return };
    let sql = Sql::open(&postgres.database("claimgate").await);
    let database = Postgres::url_at((Ipv6Addr::LOCALHOST, postgres.port()).into(), "claimgate");
    let port = redis_at.port().to_string();
    let settings = [("bind", "::1"), ("port", &port), ("protected-mode", "no"), ("maxmemory", "64mb")];
    let _server = RedisServer::start_with(&settings, &[]).await;
    let redis = format!("redis://{redis_at}");
    let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &database);
    let options = options.with("CLAIMGATE_REDIS_URL", &redis).listen_at(listen).admin_at(admin);
    let core = options.start_in(doctor::directory()).await;
    core.create("demo", json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    sql.until("demo", 1).await;
    let campaigns = run_against(&core, &["campaign", "list", "--json"]).await.ended(0);
    assert_eq!(campaigns.json()[0]["id"], "demo", "{campaigns:?}");
    let (listen, data) = (listen.to_string(), core.data_dir());
    let environment = [
        ("CLAIMGATE_LISTEN", listen.as_str()),
        ("CLAIMGATE_DATABASE_URL", &database),
        ("CLAIMGATE_REDIS_URL", &redis),
        ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
    ];
    run(&["doctor"], &environment, &data).await.ended(0);
}
