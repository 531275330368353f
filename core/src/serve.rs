//! `claimgate serve`, as a recipe: Redis, SQL, the jobs, two listeners, until told to stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::app::App;
use crate::archive::Archive;
use crate::config::{self, Config};
use crate::gate::Gate;
use crate::http;
use crate::http::auth::Gatekeeper;
use crate::jobs::maintenance::Maintenance;
use crate::jobs::outbox_relay::Drain;
use crate::jobs::refresher::Refresher;
use crate::ledger::Ledger;
use crate::ledger::embedded::{Embedded, Settings};
use crate::metrics;
use crate::recovery::Recovery;

/// How long Redis may take to come up, loading its file included, before core says so; it goes on waiting.
const REDIS_PATIENCE: Duration = Duration::from_secs(5);
const REDIS_POLL: Duration = Duration::from_millis(5);
/// How long the listeners may take to stop; connections have 5 s of it to finish.
const LISTENERS_MAX: Duration = Duration::from_secs(6);
/// How long the jobs may take to stop, and then the connections to SQL to close. With the 5 s that Redis gets, all that
/// stopping takes is 14 s at most, whatever hangs.
const JOBS_MAX: Duration = Duration::from_secs(2);
const CLOSE_MAX: Duration = Duration::from_secs(1);
const STOP_POLL: Duration = Duration::from_millis(5);

/// Runs core until SIGTERM or SIGINT.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let _lock = lock_data_dir(&config)?;
    let metrics = metrics::install()?;
    let listener = bind("CLAIMGATE_LISTEN", config.listen).await?;
    let admin_listener = bind("CLAIMGATE_ADMIN_LISTEN", config.admin_listen).await?;
    let (mut embedded, redis_url) = redis(&config)?;
    let archive = Archive::open(&config.database_url)
        .await
        .map_err(|error| anyhow::anyhow!("CLAIMGATE_DATABASE_URL: opening the register: {error}"))?;
    let ledger = Arc::new(Ledger::new(redis::Client::open(redis_url)?, archive.clone(), config.outbox_max));
    let recovery = Arc::new(Recovery {
        ledger: Arc::clone(&ledger),
        archive: archive.clone(),
        campaigns: Arc::default(),
        archive_after: config.archive_after,
    });
    let drain = Drain {
        ledger: Arc::clone(&ledger),
        archive: archive.clone(),
        campaigns: Arc::clone(&recovery.campaigns),
        consumer: config.core_id,
    };
    let gatekeeper = Gatekeeper::new(config.credentials);
    tokio::spawn(keep_credentials(
        gatekeeper.clone(),
        config.data_dir.clone(),
        signal(SignalKind::hangup())?,
    ));
    let gate = Gate::new(ledger, config.batch_max);
    let app =
        App::new(gate, archive.clone(), Arc::clone(&recovery), gatekeeper, metrics, config.concurrency_max);

    let (stop_serving, serving) = watch::channel(false);
    let (stop_draining, draining) = watch::channel(false);
    let internal = tokio::spawn(http::serve(listener, http::internal(app.clone()), serving.clone()));
    let admin = tokio::spawn(http::serve(admin_listener, http::admin(app.clone()), serving.clone()));
    let mut told = pin!(told_to_stop());
    // Redis may have a long file to load: core already answers that it is alive, and not ready.
    let mut refresher = Refresher::new(app.clone());
    tokio::select! {
        begun = begin(&app, &mut refresher, embedded.is_some()) => {
            begun?;
            tracing::info!(listen = %config.listen, admin = %config.admin_listen, "claimgate is up");
            let maintenance = tokio::spawn(Maintenance::new(recovery).run(serving.clone()));
            let refresher = tokio::spawn(refresher.run(serving));
            let drain = drain.spawn(draining)?;
            told.await?;
            tracing::info!("stopping");
            stop_serving.send_replace(true);
            in_time("the listeners", LISTENERS_MAX, async { tokio::join!(internal, admin) }).await;
            // Relayed until the last answer is out; what is left then waits in the outbox for the next start.
            stop_draining.send_replace(true);
            in_time("the jobs", JOBS_MAX, async {
                let _ = tokio::join!(maintenance, refresher);
                while !drain.is_finished() {
                    sleep(STOP_POLL).await;
                }
            })
            .await;
        }
        stopped = &mut told => stopped?,
    }
    in_time("the connections to SQL", CLOSE_MAX, archive.close()).await;
    if let Some(embedded) = &mut embedded {
        embedded.stop();
    }
    Ok(())
}

async fn bind(variable: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{variable}: {address}"))
}

/// One step of stopping: what has not come to its end by then is left behind, and ends with the process.
async fn in_time<T>(what: &str, limit: Duration, step: impl Future<Output = T>) {
    if timeout(limit, step).await.is_err() {
        tracing::warn!("stopping: {what} did not end within {} s; left behind", limit.as_secs());
    }
}

/// Waits for Redis, says what it does not promise if it is not ours, and reads the register.
async fn begin(app: &App, refresher: &mut Refresher, ours: bool) -> anyhow::Result<()> {
    wait_for(&app.ledger, ours).await;
    if !ours {
        // It may be gone again before it was asked: then it is waited for again.
        let shortcomings = loop {
            match app.ledger.shortcomings().await {
                Ok(found) => break found,
                Err(_) => sleep(REDIS_POLL).await,
            }
            wait_for(&app.ledger, ours).await;
        };
        for shortcoming in shortcomings {
            tracing::warn!("not promised with this Redis: {shortcoming}");
        }
    }
    refresher.refresh().await.context("reading the register")
}

/// 2,000 callers at once need as many descriptors, and the usual limit is 1,024.
fn raise_descriptor_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Two cores on one data folder would be two servers on one append-only file.
fn lock_data_dir(config: &Config) -> anyhow::Result<std::fs::File> {
    let path = config.data_dir.join("lock");
    let file = std::fs::File::create(&path).with_context(|| path.display().to_string())?;
    file.try_lock().map_err(|_| {
        anyhow::anyhow!("CLAIMGATE_DATA_DIR: another claimgate is running on {}", config.data_dir.display())
    })?;
    Ok(file)
}

fn redis(config: &Config) -> anyhow::Result<(Option<Embedded>, String)> {
    if let Some(url) = &config.redis_url {
        return Ok((None, url.clone()));
    }
    let embedded = Embedded::start(&Settings {
        data_dir: config.data_dir.clone(),
        password: config.redis_password.clone(),
        maxmemory_bytes: config.redis_maxmemory_bytes,
    })?;
    let url = embedded.url(&config.redis_password);
    Ok((Some(embedded), url))
}

/// Claims are refused until Redis answers anyway; waiting here keeps the first ones from being refused.
async fn wait_for(ledger: &Ledger, ours: bool) {
    let look_at = if ours { "redis/redis.log in the data folder" } else { "CLAIMGATE_REDIS_URL" };
    let started = Instant::now();
    let mut said = false;
    while let Err(error) = ledger.ping().await {
        if started.elapsed() > REDIS_PATIENCE && !said {
            tracing::warn!(%error, "still waiting for Redis; see {look_at}");
            said = true;
        }
        sleep(REDIS_POLL).await;
    }
}

/// Reads the secrets' files anew on each SIGHUP, so that keys are changed with no call refused. Those that are wrong
/// change nothing.
async fn keep_credentials(gatekeeper: Gatekeeper, data_dir: PathBuf, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        match config::credentials(&data_dir) {
            Ok(credentials) => {
                tracing::info!(edge_keys = ?credentials.kids(), "credentials were read anew");
                gatekeeper.replace(credentials);
            }
            Err(error) => tracing::error!("credentials stay as they were: {error}"),
        }
    }
}

async fn told_to_stop() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
