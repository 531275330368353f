//! How core's parts are joined: the one wiring, for `serve` and for tests.

use std::sync::Arc;
use std::time::Duration;

use redis::{Client, RedisError};

use crate::app::App;
use crate::archive::Archive;
use crate::gate::Gate;
use crate::http::auth::Gatekeeper;
use crate::jobs::outbox_relay::Drain;
use crate::ledger::Ledger;
use crate::metrics::PrometheusHandle;
use crate::recovery::Recovery;

/// What an engine is made from.
#[derive(Debug)]
pub struct Settings {
    /// Where Redis is.
    pub redis_url: String,
    /// To SQL.
    pub archive: Archive,
    /// The most events an outbox may hold before new claims are put off.
    pub outbox_max: u64,
    /// How long a campaign stays in Redis after it is over.
    pub archive_after: Duration,
    /// This core's name among the drains.
    pub core_id: String,
    /// The most claims that one call to Redis decides.
    pub batch_max: usize,
    /// Requests handled at once, per listener.
    pub concurrency_max: usize,
    /// Who may call.
    pub gatekeeper: Gatekeeper,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
}

/// One core, without its listeners and its rhythm: nothing happens in it by itself.
#[derive(Debug)]
pub struct Engine {
    /// What handlers work with.
    pub app: App,
    /// Moves events into SQL.
    pub drain: Drain,
}

impl Engine {
    /// Joins the parts; Redis is connected to when first asked. Fails when its address is none.
    pub fn new(settings: Settings) -> Result<Self, RedisError> {
        let archive = settings.archive;
        let client = Client::open(settings.redis_url)?;
        let ledger = Arc::new(Ledger::new(client, archive.clone(), settings.outbox_max));
        let recovery = Arc::new(Recovery::new(Arc::clone(&ledger), archive.clone(), settings.archive_after));
        let drain = Drain {
            ledger: Arc::clone(&ledger),
            archive: archive.clone(),
            campaigns: Arc::clone(&recovery.campaigns),
            recovery: Arc::clone(&recovery),
            consumer: settings.core_id,
        };
        let gate = Gate::new(ledger, settings.batch_max);
        let app = App::new(
            gate,
            archive,
            recovery,
            settings.gatekeeper,
            settings.metrics,
            settings.concurrency_max,
        );
        Ok(Self { app, drain })
    }
}
