//! The environment of a test: cores, Redis, SQL, and the final check.

use std::path::PathBuf;

use serde_json::Value;
use support::available::available;
use support::checker::{Checker, Expect, Limits};
use support::clock::Clock;
use support::fault_proxy::FaultProxy;
use support::follower::Follower;
use support::postgres::Postgres;
use support::process::fast_disk;
use support::sql::Sql;
use support::topology::Topology;
use support::{Core, CoreOptions, RedisServer, RedisView, Servers};

use crate::tally::Row;

/// Processes of one installation. Cores are stopped before their servers.
#[derive(Debug)]
pub struct Fixture {
    pub core: Core,
    pub others: Vec<Core>,
    pub proxy: Option<FaultProxy>,
    pub server: Option<Servers>,
    pub postgres: Option<Postgres>,
    pub sql: Sql,
}

/// Limits above the demand of any test here: a probe must not get `sold_out`.
pub const ROOMY: Limits =
    Limits { total: Some(200_000), per_user: Some(5_000), per_user_per_day: Some(5_000) };

impl Fixture {
    /// Starts one core with managed Redis and SQLite, or on other topologies with external servers.
    pub async fn managed() -> Self {
        Self::managed_with(CoreOptions::default()).await
    }

    /// Starts one core like [`Self::managed`], with options.
    pub async fn managed_with(options: CoreOptions) -> Self {
        if Topology::from_env() != Topology::Own {
            return Self::external_with(options).await;
        }
        let core = options.start().await;
        let sql = Sql::in_directory(&core.data_dir());
        Self { core, others: vec![], proxy: None, server: None, postgres: None, sql }
    }

    /// Starts one core like [`Self::managed`], with its Redis on `clock`. A managed Redis inherits core's
    /// environment, so such a core is also on that clock.
    pub async fn managed_on(clock: &Clock) -> Self {
        if Topology::from_env() != Topology::Own {
            return Self::on(Servers::start_on(clock).await, CoreOptions::default()).await;
        }
        Self::managed_with(CoreOptions::default().with_all(&clock.environment())).await
    }

    /// Starts one core on external servers and SQLite.
    pub async fn external() -> Self {
        Self::external_with(CoreOptions::default()).await
    }

    /// Starts one core on external servers without the slow disk: for tests that block SQL, because core
    /// queries SQL after a stall of Redis.
    pub async fn external_on_fast_disk() -> Self {
        let servers = Servers::start_with(&[], &fast_disk()).await;
        Self::on(servers, CoreOptions::default().on_fast_disk()).await
    }

    /// Starts one core on external servers and SQLite, with options.
    pub async fn external_with(options: CoreOptions) -> Self {
        Self::on(Servers::start().await, options).await
    }

    /// Starts one core on `server` and SQLite.
    pub async fn on(server: Servers, options: CoreOptions) -> Self {
        let core = options.with("CLAIMGATE_REDIS_URL", server.url()).start().await;
        let sql = Sql::in_directory(&core.data_dir());
        Self { core, others: vec![], proxy: None, server: Some(server), postgres: None, sql }
    }

    /// Starts one core that reaches its only server through a proxy, and SQLite. Needs
    /// [`ONE_SERVER`](support::topology::ONE_SERVER).
    pub async fn proxied() -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(socket(&server)).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", proxy.url()).start().await;
        let sql = Sql::in_directory(&core.data_dir());
        let server = Some(Servers::One(server));
        Self { core, others: vec![], proxy: Some(proxy), server, postgres: None, sql }
    }

    /// Starts one core with managed or external Redis on PostgreSQL. Core and its own Redis are exempt from a
    /// slow disk. `Err` if there is no PostgreSQL.
    pub async fn on_postgres(managed: bool) -> Result<Self, String> {
        Self::on_postgres_with(managed, &fast_disk()).await
    }

    /// Starts one core like [`Self::on_postgres`], with its Redis on `clock`; for core see
    /// [`Self::managed_on`].
    pub async fn on_postgres_with_clock(managed: bool, clock: &Clock) -> Result<Self, String> {
        Self::on_postgres_with(managed, &clock.environment_on_fast_disk()).await
    }

    /// Starts one core like [`Self::on_postgres`], with this environment of its Redis.
    async fn on_postgres_with(managed: bool, environment: &[(&str, PathBuf)]) -> Result<Self, String> {
        let postgres = Postgres::start().await?;
        let url = postgres.database("claimgate").await;
        let mut options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url).on_fast_disk();
        let server = if managed && Topology::from_env() == Topology::Own {
            options = options.with_all(environment);
            None
        } else {
            let server = Servers::start_with(&[], environment).await;
            options = options.with("CLAIMGATE_REDIS_URL", server.url());
            Some(server)
        };
        let core = options.start().await;
        Ok(Self { core, others: vec![], proxy: None, server, postgres: Some(postgres), sql: Sql::open(&url) })
    }

    /// Starts one core on SQLite and, if available, one on PostgreSQL.
    pub async fn on_both_databases() -> Vec<Self> {
        let mut fixtures = vec![Self::managed().await];
        fixtures.extend(available("on PostgreSQL", Self::on_postgres(true).await));
        fixtures
    }

    /// Starts two cores on the same servers and one PostgreSQL. With a single server the first core uses a
    /// proxy. `Err` if there is no PostgreSQL.
    pub async fn two_cores() -> Result<Self, String> {
        Self::two_cores_with(CoreOptions::default()).await
    }

    /// Starts two cores like [`Self::two_cores`], with options.
    pub async fn two_cores_with(options: CoreOptions) -> Result<Self, String> {
        Self::two_cores_on(Servers::start().await, options).await
    }

    /// Starts two cores like [`Self::two_cores`] on `server`, with options.
    pub async fn two_cores_on(server: Servers, options: CoreOptions) -> Result<Self, String> {
        let postgres = Postgres::start().await?;
        let url = postgres.database("claimgate").await;
        let proxy = match &server {
            Servers::One(server) => Some(FaultProxy::start(socket(server)).await),
            _ => None,
        };
        let start = |redis: String| {
            let options = options.clone().with("CLAIMGATE_DATABASE_URL", &url);
            options.with("CLAIMGATE_REDIS_URL", redis).start()
        };
        let core = start(proxy.as_ref().map_or_else(|| server.url(), FaultProxy::url)).await;
        let others = vec![start(server.url()).await];
        Ok(Self { core, others, proxy, server: Some(server), postgres: Some(postgres), sql: Sql::open(&url) })
    }

    /// Opens a connection to the cores' Redis that bypasses them.
    pub async fn redis(&self) -> RedisView {
        match &self.server {
            Some(server) => server.view().await,
            None => self.core.redis().await,
        }
    }

    /// Returns the external servers.
    pub fn server(&mut self) -> &mut Servers {
        self.server.as_mut().expect("external servers")
    }

    /// Sets the offset of the external servers' clock from the real time, in milliseconds.
    pub async fn move_clock(&self, clock: &Clock, ms: i64) {
        self.server.as_ref().expect("external servers").move_clock(clock, ms).await;
    }

    /// Returns the process ids of all primaries.
    pub async fn redis_pids(&self) -> Vec<u32> {
        match &self.server {
            Some(server) => server.pids(),
            None => vec![self.core.redis_pid().await],
        }
    }

    /// Returns the proxy in front of the first core's Redis.
    pub fn proxy(&self) -> &FaultProxy {
        self.proxy.as_ref().expect("a proxy")
    }

    /// Returns the private PostgreSQL.
    pub fn postgres(&mut self) -> &mut Postgres {
        self.postgres.as_mut().expect("a PostgreSQL")
    }

    /// Returns the second core.
    pub fn other(&self) -> &Core {
        self.others.first().expect("a second core")
    }

    /// Kills the first core with SIGKILL and starts another in its place.
    pub async fn replace_core(&mut self) {
        self.core.kill();
        self.core = self.core.restart().await;
    }

    /// Runs the final check on everything, and records that the row was survived.
    pub async fn judge(&self, row: Row, checker: &Checker, expect: Expect<'_>) {
        let cores: Vec<&Core> = std::iter::once(&self.core).chain(&self.others).collect();
        let verdict = checker.judge(&cores, &self.sql, &self.redis().await, expect).await;
        let mut follower = Follower::of(checker.campaign());
        follower.read_all(&self.core, 1000).await;
        follower.matches_sql(&self.sql.claims(checker.campaign()).await);
        row.survived(checker.call_count(), verdict);
    }

    /// Waits until SQL has everything in the outbox.
    pub async fn relayed(&self, campaign: &str) {
        self.redis().await.relayed(campaign, support::SOON).await;
    }

    /// Returns the campaign's reconciliation as the first core reports it.
    pub async fn reconciliation(&self, campaign: &str) -> Value {
        let path = format!("/admin/v1/campaigns/{campaign}/reconciliation");
        self.core.admin_get(&path).await.expect(200).json()
    }
}

/// Returns the socket on which `server` listens.
pub fn socket(server: &RedisServer) -> PathBuf {
    PathBuf::from(server.url().trim_start_matches("unix://"))
}
