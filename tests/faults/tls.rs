//! Redis and PostgreSQL behind TLS: core speaks only to servers that prove to be them.

use support::certificates::Certificates;
use support::checker::{Checker, Expect};
use support::only_on;
use support::postgres::Postgres;
use support::process::free_address;
use support::sql::Sql;
use support::storm::Seen;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, Servers, eventually};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Full of what an address has to escape.
const PASSWORD: &str = "no:log/may@have+this";
const PASSWORD_IN_URL: &str = "no%3Alog%2Fmay%40have%2Bthis";

/// A core on a Redis behind TLS.
async fn behind_tls(certificates: &Certificates) -> Fixture {
    let address = free_address();
    let server = certificates.redis(address, PASSWORD).await;
    let options = talkative()
        .with("SSL_CERT_FILE", certificates.file("trusted.pem"))
        .with("CLAIMGATE_REDIS_URL", format!("rediss://core:{PASSWORD_IN_URL}@{address}"));
    let mut fixture = Fixture::managed_with(options).await;
    fixture.server = Some(Servers::One(server));
    fixture
}

/// Even such a log keeps the password.
fn talkative() -> CoreOptions {
    CoreOptions::default().with("RUST_LOG", "debug")
}

fn keeps_the_password(core: &Core) {
    for password in [PASSWORD, PASSWORD_IN_URL] {
        assert!(!core.log().contains(password), "the log has the password:\n{}", core.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_behind_tls() {
    only_on!(OWN, "it brings its own servers");
    let row = Row::begin("TLS: Redis, restarted");
    let certificates = match Certificates::make() {
        Ok(certificates) => certificates,
        Err(why) => return row.skip(&why),
    };
    let mut fixture = behind_tls(&certificates).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    let clients: String = fixture.redis().await.query(&["CLIENT", "LIST"]).await;
    assert!(clients.contains("user=core"), "there is no other way in than TLS: {clients}");
    for round in 1..=3 {
        row.kill();
        fixture.server().kill_and_restart().await;
        eventually(SOON, || async {
            let seen = checker.claim(&fixture.core, &format!("after-{round}"), "k").await;
            holds(seen != Seen::Unknown, || fixture.core.log())
        })
        .await;
        checker.win(&fixture.core, round * 20..round * 20 + 20).await;
    }
    keeps_the_password(&fixture.core);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// What makes a server one that core must not believe.
#[derive(Debug, Clone, Copy)]
enum Impostor {
    /// Its certificate was given by an authority that core does not know.
    Stranger,
    /// Its certificate was given, by core's own authority, to another name.
    Other,
}

impl Impostor {
    const ALL: [Self; 2] = [Self::Stranger, Self::Other];

    /// From the next start of the server, and of core, on.
    fn appear(self, certificates: &Certificates) {
        let other_names = "DNS:elsewhere.example,IP:127.0.0.99";
        match self {
            Self::Stranger => certificates.trust("other"),
            Self::Other => certificates.certify(other_names).expect("a certificate"),
        }
    }

    fn vanish(certificates: &Certificates) {
        certificates.trust("ours");
        certificates.certify(&Certificates::own_names()).expect("a certificate");
    }

    /// What the library says of it.
    fn is_called(self) -> &'static str {
        match self {
            Self::Stranger => "invalid peer certificate: UnknownIssuer",
            Self::Other => "invalid peer certificate: certificate not valid for name",
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_proves_nothing() {
    only_on!(OWN, "it brings its own servers");
    let row = Row::begin("TLS: a Redis whose certificate or password is not right");
    let certificates = match Certificates::make() {
        Ok(certificates) => certificates,
        Err(why) => return row.skip(&why),
    };
    let mut fixture = behind_tls(&certificates).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    for (at, impostor) in Impostor::ALL.into_iter().enumerate() {
        fixture.core.stop().await;
        row.fault();
        impostor.appear(&certificates);
        fixture.server().kill_and_restart().await;
        fixture.core = fixture.core.launch_again();
        grants_nothing(&fixture, &checker, at + 1).await;
        Impostor::vanish(&certificates);
    }
    // With the right certificate, but without what core's password opens.
    fixture.core.stop().await;
    row.fault();
    fixture.server().kill_and_restart().await;
    let redis = fixture.redis().await;
    redis.query::<()>(&["ACL", "SETUSER", "core", "resetpass", ">another"]).await;
    fixture.core = fixture.core.launch_again();
    grants_nothing(&fixture, &checker, 3).await;
    redis.query::<()>(&["ACL", "SETUSER", "core", &format!(">{PASSWORD}")]).await;
    fixture.core.ready().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Core is alive, says that it waits, for the `times`th time in its log, and no claim comes of it.
async fn grants_nothing(fixture: &Fixture, checker: &Checker, times: usize) {
    let (core, redis) = (&fixture.core, fixture.redis().await);
    let before = (redis.counter("demo", "taken").await, fixture.sql.claims("demo").await);
    eventually(SOON, || async {
        let log = core.log();
        holds(log.matches("still waiting for Redis").count() == times, || log.clone())
    })
    .await;
    assert_eq!(core.get("/readyz").await.status, 503);
    for user in 0..5 {
        assert_eq!(checker.claim(core, &format!("refused-{user}"), "k").await, Seen::Unknown);
        let replay = core.once().claim("demo", "u0", "k").await;
        replay.refused(503, "unavailable");
    }
    assert_eq!((redis.counter("demo", "taken").await, fixture.sql.claims("demo").await), before);
    keeps_the_password(core);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_behind_tls() {
    only_on!(OWN, "it brings its own servers");
    let row = Row::begin("TLS: PostgreSQL, restarted, and with a certificate that is not right");
    let (certificates, mut fixture) = match on_postgres().await {
        Ok(made) => made,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    assert_eq!(fixture.sql.claims("demo").await.len(), 20);
    let (open, by_tls) = connections(fixture.postgres()).await;
    assert!(open > 0 && open == by_tls, "{by_tls} of {open} connections by TLS");
    row.kill();
    fixture.postgres().stop_immediately().await;
    checker.win(&fixture.core, 20..40).await;
    fixture.postgres().start_again().await;
    fixture.relayed("demo").await;
    for impostor in Impostor::ALL {
        fixture.core.stop().await;
        row.fault();
        impostor.appear(&certificates);
        fixture.postgres().stop_immediately().await;
        fixture.postgres().start_again().await;
        let mut core = fixture.core.launch_again();
        let ended = core.process().wait(SOON).await;
        let log = core.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(
            !ended.success() && last.contains("opening the database") && last.contains(impostor.is_called()),
            "{ended}: {log}"
        );
        core.try_claim("demo", "refused", "k", 1).await.expect_err("a core that has ended");
        keeps_the_password(&core);
        Impostor::vanish(&certificates);
        fixture.postgres().stop_immediately().await;
        fixture.postgres().start_again().await;
        fixture.core = fixture.core.restart().await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A core on a PostgreSQL behind TLS.
async fn on_postgres() -> Result<(Certificates, Fixture), String> {
    let certificates = Certificates::make()?;
    let postgres = certificates.postgres().await?;
    // The test itself looks past core, by the socket.
    let sql = Sql::open(&postgres.database("claimgate").await);
    let address = format!("claimgate:{PASSWORD_IN_URL}@{}:{}", free_address().ip(), postgres.port());
    let trusted = certificates.file("trusted.pem");
    let url = format!("postgres://{address}/claimgate?sslmode=verify-full&sslrootcert={trusted}");
    let mut fixture = Fixture::managed_with(talkative().with("CLAIMGATE_DATABASE_URL", url)).await;
    fixture.sql = sql;
    fixture.postgres = Some(postgres);
    Ok((certificates, fixture))
}

/// How many come over the network, and how many of them by TLS.
async fn connections(postgres: &Postgres) -> (i64, i64) {
    let query = "SELECT count(*), count(*) FILTER (WHERE ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                 WHERE client_addr IS NOT NULL";
    sqlx::query_as(query).fetch_one(&postgres.pool("claimgate")).await.expect("connections")
}
