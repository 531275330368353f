//! SQL answers but cannot work: a standby, read-only, without connections or space, or shutting down. Core
//! notices within 5 s and reports it, claims continue, and everything is relayed within 5 s of the fault's
//! end.

use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use support::checker::{Checker, Expect};
use support::fault_proxy::FaultProxy;
use support::only_on;
use support::pgbouncer::PgBouncer;
use support::postgres::{Postgres, change_owner};
use support::process::Signal;
use support::small_disk::SmallDisk;
use support::sql::Sql;
use support::topology::OWN;
use support::wait::{holds, reaches};
use support::{Core, CoreOptions, RedisServer, SOON, Servers, eventually, promised};
use tokio::time::{Instant, sleep};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Time limit for core to report that SQL cannot work or works again, and for relaying every claim
/// afterwards.
const REPORT_MAX: Duration = Duration::from_secs(5);
/// Duration of a fault.
const FAULT_TIME: Duration = Duration::from_secs(10);

/// Waits until readiness and metrics report SQL's state and, if it is down, the reason.
async fn until_reported(core: &Core, reason: Option<&str>) {
    let state = if reason.is_none() { "up" } else { "down" };
    eventually(promised(REPORT_MAX), || async {
        let ready = core.get("/readyz").await;
        holds(ready.status == 200 && ready.json()["sql"] == state, || ready.text())?;
        let reported_reason = ready.json()["sql_reason"].as_str().map(str::to_owned);
        holds(reported_reason.as_deref() == reason, || ready.text())?;
        let up: Option<u8> = core.metric("claimgate_up{part=\"sql\"}").await;
        holds(up == Some(u8::from(reason.is_none())), || format!("claimgate_up is {up:?}"))
    })
    .await;
}

/// Waits until SQL has `count` claims, within a short time because the fault has ended.
async fn until_relayed(fixture: &Fixture, count: usize) {
    let over = Instant::now();
    eventually(promised(REPORT_MAX), || async {
        let rows = fixture.sql.claims("demo").await.len();
        reaches(rows, count, "claims in SQL")
    })
    .await;
    crate::tally::say(&format!("relayed {:.1?} after the fault's end", over.elapsed()));
}

/// Checks that a pause, which must reach SQL, gets 503.
async fn pause_is_rejected(core: &Core) {
    core.once().set_admin_state("demo", "pause").await.refused(503, "unavailable");
}

async fn pause_is_in_force(core: &Core) {
    core.set_admin_state("demo", "pause").await.expect(200);
    core.claim("demo", "too-late", "k").await.refused(403, "paused");
    core.set_admin_state("demo", "resume").await.expect(200);
}

/// Starts a core on the database `url`; the fixture keeps its PostgreSQL.
async fn core_on(url: String, postgres: Postgres, sql: Sql) -> Fixture {
    let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url).on_fast_disk().start().await;
    Fixture { core, others: vec![], proxy: None, server: None, postgres: Some(postgres), sql }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_sql_is_a_standby() {
    let row = Row::begin("SQL read-only: its address points to a hot standby for ten seconds");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let sql = Sql::open(&postgres.database("claimgate").await);
    let proxy = FaultProxy::start(postgres.socket()).await;
    let primary = postgres.socket();
    let fixture = core_on(Postgres::url_at(proxy.address(), "claimgate"), postgres, sql).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    until_relayed(&fixture, 10).await;
    let standby = fixture.postgres.as_ref().expect("a PostgreSQL").standby().await.expect("a standby");
    row.fault();
    let moved = Instant::now();
    proxy.point_at(standby.socket());
    checker.win(&fixture.core, 10..60).await;
    until_reported(&fixture.core, Some("read_only")).await;
    fixture.core.until_logged(promised(REPORT_MAX), &["part=\"sql\"", "standby"]).await;
    // Not a limit: the fault lasts so long.
    while moved.elapsed() < FAULT_TIME {
        pause_is_rejected(&fixture.core).await;
        sleep(Duration::from_millis(500)).await;
    }
    until_reported(&fixture.core, Some("read_only")).await;
    checker.win(&fixture.core, 60..110).await;
    // Connections to the standby stay open, as behind a balancer that only redirects new ones.
    proxy.forward_to(primary);
    until_relayed(&fixture, 110).await;
    until_reported(&fixture.core, None).await;
    pause_is_in_force(&fixture.core).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A pooler may hand out a session that a different client has made read-only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_became_read_only_is_closed() {
    let row = Row::begin("SQL read-only: one session");
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let postgres = fixture.postgres.as_ref().expect("a PostgreSQL");
    postgres
        .run(
            "claimgate",
            &["CREATE FUNCTION read_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               PERFORM set_config('default_transaction_read_only', 'on', false); RETURN NULL; END $$",
              "CREATE TRIGGER read_only AFTER INSERT ON claims FOR EACH STATEMENT EXECUTE FUNCTION read_only()"],
        )
        .await;
    checker.win(&fixture.core, 0..1).await;
    until_relayed(&fixture, 1).await;
    postgres.run("claimgate", &["DROP TRIGGER read_only ON claims"]).await;
    row.fault();
    checker.win(&fixture.core, 1..20).await;
    until_relayed(&fixture, 20).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Runs a fault in which SQL refuses writes from `begin` to `end`. Core reports the reason without a claim,
/// claims continue, and all claims are relayed afterwards.
async fn refuses<T>(
    row: Row,
    fixture: Fixture,
    reason: &str,
    logged: &[&str],
    begin: impl AsyncFnOnce(&Fixture) -> T,
    end: impl AsyncFnOnce(&Fixture, T),
) {
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    until_relayed(&fixture, 10).await;
    row.fault();
    let fault = begin(&fixture).await;
    until_reported(&fixture.core, Some(reason)).await;
    fixture.core.until_logged(promised(REPORT_MAX), logged).await;
    checker.win(&fixture.core, 10..60).await;
    pause_is_rejected(&fixture.core).await;
    end(&fixture, fault).await;
    until_relayed(&fixture, 60).await;
    until_reported(&fixture.core, None).await;
    pause_is_in_force(&fixture.core).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Hosted databases do this when their disk is nearly full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_sql_is_read_only() {
    let row = Row::begin("SQL read-only: default_transaction_read_only on the whole server");
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    let alter = async |fixture: &Fixture, change: &str| {
        let alter = format!("ALTER SYSTEM {change}");
        let postgres = fixture.postgres.as_ref().expect("a PostgreSQL");
        postgres.run("postgres", &[alter.as_str(), "SELECT pg_reload_conf()"]).await;
    };
    let begin = async |fixture: &Fixture| alter(fixture, "SET default_transaction_read_only = on").await;
    let end = async |fixture: &Fixture, ()| alter(fixture, "RESET default_transaction_read_only").await;
    refuses(row, fixture, "read_only", &[], begin, end).await;
}

/// Creates a database whose owner `app` may open `connections` connections, and returns its URL.
async fn with_connections(postgres: &Postgres, connections: u32) -> String {
    let create = format!("CREATE ROLE app LOGIN CONNECTION LIMIT {connections}");
    postgres.run("postgres", &[create.as_str(), "CREATE DATABASE claimgate OWNER app"]).await;
    postgres.url("claimgate").replace("postgres://claimgate@", "postgres://app@")
}

/// Opens as many connections as possible, as another client of the role.
async fn take_all(url: &str) -> Vec<PgConnection> {
    let options: PgConnectOptions = url.parse().expect("an address");
    let mut taken = Vec::new();
    while let Ok(connection) = PgConnection::connect_with(&options).await {
        taken.push(connection);
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_keeps_working_with_three_role_connections() {
    let row = Row::begin("SQL out of connections: the role may open three");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let url = with_connections(&postgres, 3).await;
    let sql = Sql::open(&postgres.url("claimgate"));
    let fixture = core_on(url, postgres, sql).await;
    fixture.core.until_logged(promised(REPORT_MAX), &["WARN", "3 connections", "17"]).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    for round in 0..5 {
        row.fault();
        let once = fixture.core.once();
        let crowd = (0..16).map(|_| once.admin_get("/admin/v1/campaigns"));
        let replies = futures_util::future::join_all(crowd).await;
        assert!(replies.iter().all(|reply| [200, 503].contains(&reply.status)), "{replies:?}");
        checker.win(&fixture.core, round * 10..round * 10 + 10).await;
        until_relayed(&fixture, (round + 1) * 10).await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Instead of returning an error, a pooler makes clients wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_keeps_working_behind_a_pool_of_three() {
    let row = Row::begin("SQL out of connections: the pooler has three");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let settings = [
        ("pool_mode", "session"),
        ("default_pool_size", "3"),
        ("ignore_startup_parameters", "extra_float_digits"),
    ];
    let Some(bouncer) = row.needs(PgBouncer::start(&postgres, &settings).await) else { return };
    let sql = Sql::open(&postgres.database("claimgate").await);
    let fixture = core_on(bouncer.url("claimgate"), postgres, sql).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let once = fixture.core.once();
    row.fault();
    let crowd = (0..16).map(|_| once.admin_get("/admin/v1/campaigns"));
    let replies = futures_util::future::join_all(crowd).await;
    assert!(replies.iter().all(|reply| [200, 503].contains(&reply.status)), "{replies:?}");
    checker.win(&fixture.core, 0..10).await;
    eventually(promised(2 * REPORT_MAX), || async {
        let rows = fixture.sql.claims("demo").await.len();
        reaches(rows, 10, "claims in SQL")
    })
    .await;
    fixture.judge(row, &checker, Expect::default()).await;
    // Drop core and the pooler before the server behind them.
    drop((fixture.core, bouncer));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_another_client_uses_all_connections() {
    let row = Row::begin("SQL out of connections: another client uses all connections");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let url = with_connections(&postgres, ALL).await;
    let sql = Sql::open(&postgres.url("claimgate"));
    let fixture = core_on(url.clone(), postgres, sql).await;
    let begin = async |fixture: &Fixture| {
        let postgres = fixture.postgres.as_ref().expect("a PostgreSQL");
        let mut taken = take_all(&url).await;
        let begun = Instant::now();
        // One of core's sessions may take a while to end.
        while taken.len() < usize::try_from(ALL).expect("a few") {
            assert!(begun.elapsed() < SOON, "the other client has only {} connections", taken.len());
            postgres.run("postgres", &[TERMINATE_CORES]).await;
            taken.extend(take_all(&url).await);
        }
        taken
    };
    let logged = ["part=\"sql\"", "too many connections for role"];
    refuses(row, fixture, "no_connections", &logged, begin, async |_: &Fixture, taken| drop(taken)).await;
}

/// The role's connection limit, which the other client uses up.
const ALL: u32 = 20;
/// Ends core's sessions, which have run statements, unlike those of the other client.
const TERMINATE_CORES: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE usename = 'app' AND query <> ''";

/// Simulates a wrong change of rights. The heartbeat still writes its own table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_core_may_not_insert_them() {
    let row = Row::begin("SQL refuses: core's role may not insert claims");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let url = with_connections(&postgres, ALL).await;
    let sql = Sql::open(&postgres.url("claimgate"));
    let fixture = core_on(url, postgres, sql).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    until_relayed(&fixture, 10).await;
    let postgres = fixture.postgres.as_ref().expect("a PostgreSQL");
    row.fault();
    postgres.run("claimgate", &["REVOKE INSERT ON claims FROM app"]).await;
    checker.win(&fixture.core, 10..60).await;
    until_reported(&fixture.core, Some("refused")).await;
    fixture.core.until_logged(promised(REPORT_MAX), &["part=\"sql\"", "permission denied"]).await;
    checker.win(&fixture.core, 60..110).await;
    postgres.run("claimgate", &["GRANT INSERT ON claims TO app"]).await;
    until_relayed(&fixture, 110).await;
    until_reported(&fixture.core, None).await;
    pause_is_in_force(&fixture.core).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Makes claims until they need more space than there is, and core reports that; returns the number of users.
async fn win_until_the_disk_is_full(fixture: &Fixture, checker: &Checker, from: usize) -> usize {
    const ROUND: usize = 100;
    let mut users = from;
    loop {
        checker.win(&fixture.core, users..users + ROUND).await;
        users += ROUND;
        let is_full = eventually(SOON, || async {
            let rows = fixture.sql.claims("demo").await.len();
            let ready = fixture.core.get("/readyz").await;
            let is_full = rows < users && ready.json()["sql_reason"] == "no_space";
            holds(is_full || rows == users, || {
                format!("{rows} of {users} claims are in SQL: {}", ready.text())
            })
            .map(|()| is_full)
        })
        .await;
        if is_full {
            return users;
        }
        assert!(users < from + 100 * ROUND, "the disk is not full after {users} claims");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_the_postgres_disk_is_full() {
    let row = Row::begin("SQL out of disk: PostgreSQL's tables");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let Some(disk) = row.needs(SmallDisk::mount("64m")) else { return };
    change_owner(disk.path()).expect("the server's directory");
    let space = format!("CREATE TABLESPACE small LOCATION '{}'", disk.path().display());
    postgres.run("postgres", &[&space, "CREATE DATABASE claimgate TABLESPACE small"]).await;
    let (url, sql) = (postgres.url("claimgate"), Sql::open(&postgres.url("claimgate")));
    let fixture = core_on(url, postgres, sql).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    until_relayed(&fixture, 10).await;
    row.fault();
    disk.fill();
    let users = win_until_the_disk_is_full(&fixture, &checker, 10).await;
    until_reported(&fixture.core, Some("no_space")).await;
    fixture.core.until_logged(promised(REPORT_MAX), &["part=\"sql\"", "No space left on device"]).await;
    sleep(Duration::from_secs(3)).await;
    until_reported(&fixture.core, Some("no_space")).await;
    disk.empty();
    until_relayed(&fixture, users).await;
    until_reported(&fixture.core, None).await;
    fixture.judge(row, &checker, Expect::default()).await;
    // Drop the fixture before its disk.
    drop(fixture);
    drop(disk);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_the_sqlite_disk_is_full() {
    only_on!(OWN, "it starts its own server");
    let row = Row::begin("SQL out of disk: SQLite's file");
    let Some(disk) = row.needs(SmallDisk::mount("4m")) else { return };
    let server = RedisServer::start().await;
    let directory = tempfile::Builder::new().prefix("cg-").tempdir_in(disk.path()).expect("a directory");
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url()).start_in(directory).await;
    let sql = Sql::in_directory(&core.data_dir());
    let server = Some(Servers::One(server));
    let fixture = Fixture { core, others: vec![], proxy: None, server, postgres: None, sql };
    let (begin, end) = (async |_: &Fixture| disk.fill(), async |_: &Fixture, ()| disk.empty());
    refuses(row, fixture, "no_space", &["part=\"sql\"", "disk is full"], begin, end).await;
}

/// Shuts PostgreSQL down with `signal`, waits until it has ended, and restarts it.
async fn survives_a_shutdown(row: Row, signal: Signal) {
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    until_relayed(&fixture, 10).await;
    // Reopen the pool: open connections of the test would delay PostgreSQL's shutdown.
    fixture.sql = Sql::open(&fixture.postgres().url("claimgate"));
    row.fault();
    fixture.postgres().stop(signal);
    eventually(promised(REPORT_MAX), || async {
        let ready = fixture.core.get("/readyz").await;
        holds(ready.json()["sql"] == "down", || ready.text())
    })
    .await;
    checker.win(&fixture.core, 10..60).await;
    fixture.postgres().has_ended().await;
    fixture.postgres().start_again().await;
    until_relayed(&fixture, 60).await;
    until_reported(&fixture.core, None).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_disconnects_for_a_smart_postgres_shutdown() {
    survives_a_shutdown(Row::begin("SQL shuts down: PostgreSQL, smart"), Signal::TERM).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_survives_a_fast_postgres_shutdown() {
    survives_a_shutdown(Row::begin("SQL shuts down: PostgreSQL, fast"), Signal::INT).await;
}
