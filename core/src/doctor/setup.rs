//! The set-up that the doctor checks.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::Config;
use crate::redis_address::RedisAddress;
use crate::store::redis::managed;

/// Time limit for each disk, for all checks of Redis together, for all checks of the database, and for comparing these
/// two.
pub(super) const WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) enum Redis {
    /// Core's own Redis: its address while core runs, and its memory limit in bytes.
    Own { address: Option<RedisAddress>, maxmemory_bytes: u64 },
    /// The Redis of `CLAIMGATE_REDIS_URL`.
    Given { address: RedisAddress },
}

#[derive(Debug)]
pub(super) enum Database {
    Sqlite(PathBuf),
    Postgres(String),
}

/// The parts of a configuration that are checked.
#[derive(Debug)]
pub struct Setup {
    pub(super) data_dir: PathBuf,
    pub(super) redis: Redis,
    pub(super) database: Database,
}

impl Setup {
    /// Returns the set-up of `serve` with this configuration.
    pub fn of(config: &Config) -> Self {
        let redis = match &config.redis_address {
            Some(address) => Redis::Given { address: address.clone() },
            None => Redis::Own {
                address: managed::address(&config.data_dir, &config.redis_password),
                maxmemory_bytes: config.redis_maxmemory_bytes,
            },
        };
        let database = if config.database_url.starts_with("sqlite:") {
            Database::Sqlite(config.data_dir.join("claimgate.sqlite"))
        } else {
            Database::Postgres(config.database_url.clone())
        };
        Self { data_dir: config.data_dir.clone(), redis, database }
    }

    /// Returns the address of Redis; `None` if core's own Redis is not running.
    pub fn redis_address(&self) -> Option<&RedisAddress> {
        match &self.redis {
            Redis::Own { address, .. } => address.as_ref(),
            Redis::Given { address } => Some(address),
        }
    }
}
