//! What a test stands on: cores, the Redis and the SQL under them, and who judges.

use std::path::PathBuf;

use serde_json::Value;
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

/// Processes that belong together. Cores end before what they stand on.
#[derive(Debug)]
pub struct Fixture {
    pub core: Core,
    pub others: Vec<Core>,
    pub proxy: Option<FaultProxy>,
    pub server: Option<Servers>,
    pub postgres: Option<Postgres>,
    pub sql: Sql,
}

/// Limits that no test here reaches unless it wants to.
pub const ROOMY: Limits =
    Limits { total: Some(100_000), per_user: Some(5_000), per_user_per_day: Some(5_000) };

impl Fixture {
    /// One core with all its own: managed Redis, SQLite; on another topology on servers of the test's.
    pub async fn managed() -> Self {
        Self::managed_with(CoreOptions::default()).await
    }

    /// The same, with options.
    pub async fn managed_with(options: CoreOptions) -> Self {
        if Topology::asked() != Topology::Own {
            return Self::external_with(options).await;
        }
        let core = options.start().await;
        let sql = Sql::in_directory(&core.data_dir());
        Self { core, others: vec![], proxy: None, server: None, postgres: None, sql }
    }

    /// One core on servers of the test's, SQLite.
    pub async fn external() -> Self {
        Self::external_with(CoreOptions::default()).await
    }

    /// The same, apart from the slow disk: for tests in which SQL is held, since after a stall of Redis core asks SQL.
    pub async fn external_on_fast_disk() -> Self {
        let servers = Servers::start_with(&[], &fast_disk()).await;
        Self::on(servers, CoreOptions::default().on_fast_disk()).await
    }

    /// The same, with options.
    pub async fn external_with(options: CoreOptions) -> Self {
        Self::on(Servers::start().await, options).await
    }

    /// One core on `server`, SQLite.
    pub async fn on(server: Servers, options: CoreOptions) -> Self {
        let core = options.with("CLAIMGATE_REDIS_URL", server.url()).start().await;
        let sql = Sql::in_directory(&core.data_dir());
        Self { core, others: vec![], proxy: None, server: Some(server), postgres: None, sql }
    }

    /// One core that reaches its one server through a proxy, SQLite: [`ONE_SERVER`](support::topology::ONE_SERVER).
    pub async fn proxied() -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(socket(&server)).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", proxy.url()).start().await;
        let sql = Sql::in_directory(&core.data_dir());
        let server = Some(Servers::One(server));
        Self { core, others: vec![], proxy: Some(proxy), server, postgres: None, sql }
    }

    /// One core with a managed Redis or one of the test's, on PostgreSQL, whose disk alone may be slow; `Err` where there is
    /// none.
    pub async fn on_postgres(managed: bool) -> Result<Self, String> {
        let postgres = Postgres::start().await?;
        let url = postgres.database("claimgate").await;
        let mut options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url).on_fast_disk();
        let managed = managed && Topology::asked() == Topology::Own;
        let server = if managed { None } else { Some(Servers::start_with(&[], &fast_disk()).await) };
        if let Some(server) = &server {
            options = options.with("CLAIMGATE_REDIS_URL", server.url());
        }
        let core = options.start().await;
        Ok(Self { core, others: vec![], proxy: None, server, postgres: Some(postgres), sql: Sql::open(&url) })
    }

    /// One core on SQLite, and one on PostgreSQL unless there is none.
    pub async fn on_both_databases() -> Vec<Self> {
        let mut fixtures = vec![Self::managed().await];
        match Self::on_postgres(true).await {
            Ok(fixture) => fixtures.push(fixture),
            Err(why) => crate::tally::say(&format!("SKIPPED on PostgreSQL: {why}")),
        }
        fixtures
    }

    /// Two cores on the same servers and one PostgreSQL; where there is one server, the first reaches it through a proxy.
    /// `Err` where there is no PostgreSQL.
    pub async fn two_cores() -> Result<Self, String> {
        let postgres = Postgres::start().await?;
        let url = postgres.database("claimgate").await;
        let server = Servers::start().await;
        let proxy = match &server {
            Servers::One(server) => Some(FaultProxy::start(socket(server)).await),
            _ => None,
        };
        let start = |redis: String| {
            let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url);
            options.with("CLAIMGATE_REDIS_URL", redis).start()
        };
        let core = start(proxy.as_ref().map_or_else(|| server.url(), FaultProxy::url)).await;
        let others = vec![start(server.url()).await];
        Ok(Self { core, others, proxy, server: Some(server), postgres: Some(postgres), sql: Sql::open(&url) })
    }

    /// The Redis under the cores, past them.
    pub async fn redis(&self) -> RedisView {
        match &self.server {
            Some(server) => server.view().await,
            None => self.core.redis().await,
        }
    }

    /// The test's servers.
    pub fn server(&mut self) -> &mut Servers {
        self.server.as_mut().expect("servers of the test's")
    }

    /// Moves the clock of the test's servers, which run on it, by milliseconds from the real time.
    pub async fn move_clock(&self, clock: &Clock, ms: i64) {
        self.server.as_ref().expect("servers of the test's").move_clock(clock, ms).await;
    }

    /// The process ids of all that decide.
    pub async fn redis_pids(&self) -> Vec<u32> {
        match &self.server {
            Some(server) => server.pids(),
            None => vec![self.core.redis_pid().await],
        }
    }

    /// The proxy before the first core's Redis.
    pub fn proxy(&self) -> &FaultProxy {
        self.proxy.as_ref().expect("a proxy")
    }

    /// The private PostgreSQL.
    pub fn postgres(&mut self) -> &mut Postgres {
        self.postgres.as_mut().expect("a PostgreSQL")
    }

    /// The second core.
    pub fn other(&self) -> &Core {
        self.others.first().expect("a second core")
    }

    /// `kill -9` of the first core, and another in its place.
    pub async fn replace_core(&mut self) {
        self.core.kill();
        self.core = self.core.restart().await;
    }

    /// Before the judge, all of it; then the row is survived.
    pub async fn judge(&self, row: Row, checker: &Checker, expect: Expect<'_>) {
        let cores: Vec<&Core> = std::iter::once(&self.core).chain(&self.others).collect();
        let verdict = checker.judge(&cores, &self.sql, &self.redis().await, expect).await;
        let mut follower = Follower::of(checker.campaign());
        follower.to_the_end(&self.core, 1000).await;
        follower.knows(&self.sql.claims(checker.campaign()).await);
        row.survived(checker.asked(), verdict);
    }

    /// Waits until SQL has heard of everything in the outbox.
    pub async fn relayed(&self, campaign: &str) {
        let redis = self.redis().await;
        support::eventually(support::SOON, || async {
            let entries = redis.outbox_entries(campaign).await;
            support::wait::holds(entries == 1, || format!("{entries} entries in the outbox"))
        })
        .await;
    }

    /// The campaign's reconciliation, as the first core tells it.
    pub async fn reconciliation(&self, campaign: &str) -> Value {
        let path = format!("/admin/v1/campaigns/{campaign}/reconciliation");
        self.core.admin_get(&path).await.expect(200).json()
    }
}

/// Where `server` listens.
pub fn socket(server: &RedisServer) -> PathBuf {
    PathBuf::from(server.url().trim_start_matches("unix://"))
}
