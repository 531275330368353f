//! The Redis server and the database shared by the schedules of one thread. Each schedule uses its own
//! campaign.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use claimgate_core::config::sqlite_url;
use claimgate_core::store::sql::SqlStore;
use support::postgres::Postgres;
use support::sql::Sql;
use support::{RedisServer, RedisView};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::node::TestCore;
use super::receiver::Receiver;

/// The kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Database {
    Sqlite,
    Postgres,
}

/// The servers.
pub struct World {
    pub redis: RedisView,
    pub sql: Sql,
    server: RedisServer,
    /// One connection pool per core.
    stores: [SqlStore; 2],
    receiver: OnceCell<Receiver>,
    campaigns: AtomicUsize,
    _directory: TempDir,
    _postgres: Option<Postgres>,
}

impl World {
    pub async fn start(database: Database) -> Self {
        // Without persistence, because no schedule simulates a power failure.
        let server = RedisServer::start_with(&[("appendonly", "no")], &[]).await;
        let directory = tempfile::Builder::new().prefix("cgi-").tempdir_in(in_memory()).expect("a directory");
        let (url, postgres) = match database {
            Database::Sqlite => (sqlite_url(&directory.path().join("claimgate.sqlite")), None),
            Database::Postgres => {
                let postgres = Postgres::start().await.expect("PostgreSQL");
                (postgres.database("claimgate").await, Some(postgres))
            }
        };
        let store = SqlStore::open(&url).await.expect("SQL opens");
        let stores = [store.reopen(), store];
        Self {
            redis: server.view().await,
            sql: Sql::open(&url),
            server,
            stores,
            receiver: OnceCell::new(),
            campaigns: AtomicUsize::new(0),
            _directory: directory,
            _postgres: postgres,
        }
    }

    /// Starts a core: 0 is A, 1 is B. Webhooks are off until [`Self::receiver`] was called.
    pub fn node(&self, at: usize) -> TestCore {
        let sender = self.receiver.get().map(|receiver| receiver.sender.clone()).unwrap_or_default();
        TestCore::start(&self.server.url(), &self.stores[at], ["core-a", "core-b"][at], sender)
    }

    /// Returns the receiver of all webhooks. Most schedules have none, so the first call starts it.
    pub async fn receiver(&self) -> &Receiver {
        self.receiver.get_or_init(Receiver::start).await
    }

    /// Returns an id that no schedule has used.
    pub fn new_id(&self) -> String {
        format!("c{}", self.campaigns.fetch_add(1, Relaxed))
    }

    /// Removes a campaign from Redis and SQL, and all webhooks, so that the next schedule reads only its own from SQL.
    pub async fn remove(&self, id: &str) {
        for table in ["webhooks", "webhook_audit", "feed"] {
            self.sql.run(format!("DELETE FROM {table}")).await;
        }
        let of_campaign =
            ["claims", "codes", "claim_audit", "extension_audit", "archive_audit", "audit", "additions"]
                .map(|table| format!("{table} WHERE campaign_id"));
        for table in of_campaign.into_iter().chain(["campaigns WHERE id".to_owned()]) {
            self.sql.run(format!("DELETE FROM {table} = '{id}'")).await;
        }
        let _: () = self.redis.query(&["FLUSHALL"]).await;
    }
}

fn in_memory() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}
