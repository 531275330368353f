//! Redis and PostgreSQL over TLS: core only talks to servers that prove their identity.

use support::certificates::Certificates;
use support::checker::{Checker, Expect};
use support::only_on;
use support::postgres::Postgres;
use support::process::free_address;
use support::sql::Sql;
use support::storm::ClaimOutcome;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, Servers, eventually};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Contains characters that a URL must escape.
const PASSWORD: &str = "no:log/may@have+this";
const PASSWORD_IN_URL: &str = "no%3Alog%2Fmay%40have%2Bthis";

/// Starts a core that connects to Redis over TLS.
async fn behind_tls(certificates: &Certificates) -> Fixture {
    let address = free_address();
    let server = certificates.redis(address, PASSWORD).await;
    let options = verbose_logging()
        .with("SSL_CERT_FILE", certificates.file("trusted.pem"))
        .with("CLAIMGATE_REDIS_URL", format!("rediss://core:{PASSWORD_IN_URL}@{address}"));
    let mut fixture = Fixture::managed_with(options).await;
    fixture.server = Some(Servers::One(server));
    fixture
}

/// Enables a verbose log, which must not contain the password either.
fn verbose_logging() -> CoreOptions {
    CoreOptions::default().with("RUST_LOG", "debug")
}

fn log_hides_password(core: &Core) {
    for password in [PASSWORD, PASSWORD_IN_URL] {
        assert!(!core.log().contains(password), "the log has the password:\n{}", core.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_survive_redis_restarts_behind_tls() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("TLS: Redis, restarted");
    let Some(certificates) = row.needs(Certificates::make()) else { return };
    let mut fixture = behind_tls(&certificates).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    let clients: String = fixture.redis().await.query(&["CLIENT", "LIST"]).await;
    assert!(clients.contains("user=core"), "core must be connected over TLS: {clients}");
    for round in 1..=3 {
        row.kill();
        fixture.server().kill_and_restart().await;
        checker.decided(SOON, &fixture.core, &format!("after-{round}"), "k").await;
        checker.win(&fixture.core, round * 20..round * 20 + 20).await;
    }
    log_hides_password(&fixture.core);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A reason why core must not trust a server.
#[derive(Debug, Clone, Copy)]
enum Impostor {
    /// The certificate comes from an authority that core does not trust.
    UnknownAuthority,
    /// The certificate comes from core's own authority but for another name.
    OtherName,
}

impl Impostor {
    const ALL: [Self; 2] = [Self::UnknownAuthority, Self::OtherName];

    /// Issues the bad certificate, which takes effect at the next start of the server and of core.
    fn install(self, certificates: &Certificates) {
        let other_names = "DNS:elsewhere.example,IP:127.0.0.99";
        match self {
            Self::UnknownAuthority => certificates.trust("other"),
            Self::OtherName => certificates.certify(other_names).expect("a certificate"),
        }
    }

    fn remove(certificates: &Certificates) {
        certificates.trust("ours");
        certificates.certify(&Certificates::own_names()).expect("a certificate");
    }

    /// Returns the TLS library's error for it.
    fn tls_error(self) -> &'static str {
        match self {
            Self::UnknownAuthority => "invalid peer certificate: UnknownIssuer",
            Self::OtherName => "invalid peer certificate: certificate not valid for name",
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_rejects_a_redis_server_it_cannot_authenticate() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("TLS: Redis with a wrong certificate or password");
    let Some(certificates) = row.needs(Certificates::make()) else { return };
    let mut fixture = behind_tls(&certificates).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    fixture.relayed("demo").await;
    for impostor in Impostor::ALL {
        fixture.core.stop().await;
        row.fault();
        impostor.install(&certificates);
        fixture.server().kill_and_restart().await;
        let waits = logged_waits(&fixture.core);
        fixture.core = fixture.core.launch_again();
        grants_nothing_yet(&fixture, &checker, waits + 1).await;
        Impostor::remove(&certificates);
    }
    // The certificate is right, but core's password is wrong.
    fixture.core.stop().await;
    row.fault();
    fixture.server().kill_and_restart().await;
    let redis = fixture.redis().await;
    redis.query::<()>(&["ACL", "SETUSER", "core", "resetpass", ">another"]).await;
    let waits = logged_waits(&fixture.core);
    fixture.core = fixture.core.launch_again();
    grants_nothing_yet(&fixture, &checker, waits + 1).await;
    redis.query::<()>(&["ACL", "SETUSER", "core", &format!(">{PASSWORD}")]).await;
    fixture.core.ready().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Returns the number of starts that had to wait for Redis.
fn logged_waits(core: &Core) -> usize {
    core.log().matches("still waiting for Redis").count()
}

/// Checks that core runs, has logged `times` times that it waits, and grants no claim.
async fn grants_nothing_yet(fixture: &Fixture, checker: &Checker, times: usize) {
    let (core, redis) = (&fixture.core, fixture.redis().await);
    let before = (redis.counter("demo", "taken").await, fixture.sql.claims("demo").await);
    eventually(SOON, || async { holds(logged_waits(core) == times, || core.log()) }).await;
    assert_eq!(core.get("/readyz").await.status, 503);
    for user in 0..5 {
        assert_eq!(checker.claim(core, &format!("refused-{user}"), "k").await, ClaimOutcome::Unknown);
        let replay = core.once().claim("demo", "u0", "k").await;
        replay.refused(503, "unavailable");
    }
    assert_eq!((redis.counter("demo", "taken").await, fixture.sql.claims("demo").await), before);
    log_hides_password(core);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_connects_to_postgres_only_by_verified_tls() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("TLS: PostgreSQL, restarted, then with a wrong certificate");
    let Some((certificates, mut fixture)) = row.needs(on_postgres().await) else { return };
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
        impostor.install(&certificates);
        fixture.postgres().stop_immediately().await;
        fixture.postgres().start_again().await;
        let mut core = fixture.core.launch_again();
        let ended = core.process().wait(SOON).await;
        let log = core.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(
            !ended.success() && last.contains("opening the database") && last.contains(impostor.tls_error()),
            "{ended}: {log}"
        );
        core.try_claim("demo", "refused", "k", 1).await.expect_err("a core that has ended");
        log_hides_password(&core);
        Impostor::remove(&certificates);
        fixture.postgres().stop_immediately().await;
        fixture.postgres().start_again().await;
        fixture.core = fixture.core.restart().await;
    }
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Starts a core that connects to PostgreSQL over TLS.
async fn on_postgres() -> Result<(Certificates, Fixture), String> {
    let certificates = Certificates::make()?;
    let postgres = certificates.postgres().await?;
    // The test itself uses the socket.
    let sql = Sql::open(&postgres.database("claimgate").await);
    let address = format!("claimgate:{PASSWORD_IN_URL}@{}:{}", free_address().ip(), postgres.port());
    let trusted = certificates.file("trusted.pem");
    let url = format!("postgres://{address}/claimgate?sslmode=verify-full&sslrootcert={trusted}");
    let mut fixture = Fixture::managed_with(verbose_logging().with("CLAIMGATE_DATABASE_URL", url)).await;
    fixture.sql = sql;
    fixture.postgres = Some(postgres);
    Ok((certificates, fixture))
}

/// Returns the number of network connections, and the number of those over TLS.
async fn connections(postgres: &Postgres) -> (i64, i64) {
    let query = "SELECT count(*), count(*) FILTER (WHERE ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                 WHERE client_addr IS NOT NULL";
    sqlx::query_as(query).fetch_one(&postgres.pool("claimgate")).await.expect("connections")
}
