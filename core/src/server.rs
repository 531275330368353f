//! `claimgate serve`: starts Redis, SQL, the jobs and two listeners, and stops them on a signal.

use std::fs::TryLockError;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use axum::{Extension, Router};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::config::{Config, Secrets, TraceTarget};
use crate::doctor::{self, Setup};
use crate::engine::Engine;
use crate::engine::lifecycle::serving::{ServingError, ServingRight};
use crate::engine::live::cores::{CoreRun, ThisCore};
use crate::engine::webhooks::sender::WebhookSender;
use crate::http;
use crate::http::authentication::Authenticator;
use crate::http::listeners::admin_router;
use crate::http::state::AppState;
use crate::http::threads::Threads;
use crate::jobs::live;
use crate::jobs::maintenance::Maintenance;
use crate::jobs::outbox_relay::OutboxRelay;
use crate::jobs::refresher::Refresher;
use crate::jobs::refusals;
use crate::jobs::webhooks::Webhooks;
use crate::metrics::PrometheusHandle;
use crate::redis_address::RedisAddress;
use crate::store::redis::managed::{ManagedRedis, Settings};
use crate::store::redis::{RedisStore, RedisStoreError};
use crate::store::sql::{self, SqlError, SqlStore};
use crate::traces::TraceExport;
use crate::{log, metrics};

/// Time that Redis may take to start and load its file before core logs a warning; core keeps waiting.
const REDIS_WARN_AFTER: Duration = Duration::from_secs(5);
const REDIS_POLL: Duration = Duration::from_millis(5);
const SQL_POLL: Duration = Duration::from_millis(250);
/// Interval at which core records in the database that it serves; a third of the time that a starting core watches
/// for such records.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for stopping the listeners, including 5 s for connections to finish.
const LISTENERS_MAX: Duration = Duration::from_secs(6);
/// Time limits for stopping the jobs, and then for closing the connections to SQL. Including 5 s for Redis,
/// core stops within 14 s even if something hangs.
const JOBS_MAX: Duration = Duration::from_secs(2);
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of HTTP threads. A batch holds claims of one thread only: with more threads, batches get
/// smaller and each claim costs the single-threaded Redis more.
const HTTP_THREADS_MAX: usize = 4;
const STOP_POLL: Duration = Duration::from_millis(5);

/// Runs core until SIGTERM or SIGINT.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let setup = Setup::of(&config);
    let _locks = lock_data_dir(&config)?;
    let metrics = begin_metrics()?;
    let traces = begin_traces(&config).await?;
    let listener = bind("CLAIMGATE_LISTEN", config.listen).await?;
    let admin_listener = bind("CLAIMGATE_ADMIN_LISTEN", config.admin_listen).await?;
    let (mut managed, redis_address) = redis(&config)?;
    let sql = database(&config).await?;
    let engine = Arc::new(engine(&config, sql.clone(), redis_address)?);
    let authenticator = Authenticator::new(config.credentials);
    let hangup = signal(SignalKind::hangup())?;
    tokio::spawn(keep_credentials(authenticator.clone(), config.data_dir.clone(), hangup));
    let run = CoreRun::new(config.core_id.clone()).context("generating this run's number")?;
    let this = ThisCore::starting(run.clone(), name_at(config.listen), engine.refusals.clone());
    let webhooks = Webhooks::new(Arc::clone(&engine), run, config.webhook_retry);
    let relay = OutboxRelay::new(&engine, config.core_id);
    let state = AppState::new(&engine, authenticator, metrics.clone(), config.concurrency_max);

    let (stop_serving, serving) = watch::channel(false);
    let (stop_relaying, relaying) = watch::channel(false);
    let threads = Arc::new(Threads::start(&state, http_threads())?);
    let internal = tokio::spawn(Arc::clone(&threads).serve(listener, serving.clone()));
    let admin = with_page_url(admin_router(state.clone()), config.page_url);
    let admin = tokio::spawn(http::serve(admin_listener, admin, serving.clone()));
    let mut stop = pin!(stop_signal());
    // Redis may take long to load its file: until then core answers that it is alive but not ready.
    let mut refresher = Refresher::new(Arc::clone(&engine), metrics, this.clone());
    let outcome;
    tokio::select! {
        begun = begin(&engine, &mut refresher, managed.is_some(), config.take_over, config.redis_replicas) => {
            let right_to_serve = begun?;
            state.set_serving(true);
            tokio::spawn(log_findings(setup));
            log_addresses(config.listen, config.admin_listen, &config.admin_token_location);
            let refusals =
                tokio::spawn(refusals::write(Arc::clone(&engine), this.run.clone(), relaying.clone()));
            let live = tokio::spawn(live::publish(Arc::clone(&engine), this, serving.clone()));
            let maintenance = tokio::spawn(Maintenance::new(Arc::clone(&engine.recovery)).run(serving.clone()));
            let webhooks = tokio::spawn(webhooks.run(serving.clone()));
            let refresher = tokio::spawn(refresher.run(serving));
            let relay = relay.spawn(relaying)?;
            let ended = tokio::select! {
                stopped = stopped_and_drained(&mut stop, &state, config.drain) => stopped,
                lost = keep_serving(&right_to_serve, &engine) => Err(lost.into()),
            };
            state.stop(ended.is_ok());
            tracing::info!("stopping");
            stop_serving.send_replace(true);
            in_time("the listeners", LISTENERS_MAX, async { tokio::join!(internal, admin) }).await;
            // The relay runs until the last response is sent; remaining entries stay in the outbox until the
            // next start.
            stop_relaying.send_replace(true);
            in_time("the jobs", JOBS_MAX, async {
                let _ = tokio::join!(maintenance, refresher, webhooks, live, refusals);
                while !relay.is_finished() {
                    sleep(STOP_POLL).await;
                }
            })
            .await;
            outcome = ended;
        }
        stopped = &mut stop => outcome = stopped,
    }
    // A connection to SQL may have been opened on any of the threads, so both end together.
    in_time("the connections to SQL and their threads", CLOSE_MAX, async {
        sql.close().await;
        threads.stop().await;
    })
    .await;
    managed.iter_mut().for_each(ManagedRedis::stop);
    end_traces(traces).await;
    outcome
}

/// Adds the address of the claim page, to which the dashboard links.
fn with_page_url(admin: Router, page_url: Option<String>) -> Router {
    match page_url {
        Some(page_url) => admin.layer(Extension(http::PageUrl(page_url))),
        None => admin,
    }
}

fn engine(config: &Config, sql: SqlStore, redis: RedisAddress) -> anyhow::Result<Engine> {
    let webhook_sender = WebhookSender::new(config.webhook_hosts.clone());
    let webhook_sender =
        webhook_sender.map_err(|problem| anyhow::anyhow!("CLAIMGATE_WEBHOOK_HOSTS: {problem}"))?;
    Ok(Engine::builder(sql)
        .outbox_max(config.outbox_max)
        .archive_after(config.archive_after)
        .hold_extension_max(config.hold_extension_max)
        .batch_max(config.batch_max)
        .webhook_sender(webhook_sender)
        .redis_is_own(config.redis_address.is_none())
        .on(redis))
}

fn begin_metrics() -> anyhow::Result<PrometheusHandle> {
    let metrics = metrics::install()?;
    tokio::spawn(log::report_losses());
    Ok(metrics)
}

async fn begin_traces(config: &Config) -> anyhow::Result<Option<TraceExport>> {
    let Some(TraceTarget { url, ratio }) = config.traces.clone() else { return Ok(None) };
    let core_id = config.core_id.clone();
    let begun = spawn_blocking(move || TraceExport::start(&url, ratio, &core_id)).await?;
    begun.map(Some).context("CLAIMGATE_OTLP_URL")
}

async fn end_traces(traces: Option<TraceExport>) {
    if let Some(traces) = traces {
        let _ = spawn_blocking(|| traces.stop()).await;
    }
}

fn log_addresses(listen: SocketAddr, admin: SocketAddr, admin_token_location: &str) {
    tracing::info!(%listen, %admin, "claimgate is up");
    tracing::info!("dashboard: http://{admin}/; the admin token is in {admin_token_location}");
}

/// Returns the name under which people see a core that listens on `listen`.
fn name_at(listen: SocketAddr) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} {listen}", host.trim())
}

/// Returns the number of HTTP threads: as many as the machine runs in parallel, up to [`HTTP_THREADS_MAX`].
fn http_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(HTTP_THREADS_MAX)
}

async fn bind(variable: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{variable}: {address}"))
}

/// Runs one step of stopping. A step that exceeds `limit` is abandoned and ends with the process.
async fn in_time<T>(what: &str, limit: Duration, step: impl Future<Output = T>) {
    if timeout(limit, step).await.is_err() {
        tracing::warn!("stopping: {what} did not end within {} s; not waiting any longer", limit.as_secs());
    }
}

/// Acquires the right to serve. Keeps trying while the database is unavailable, for example while it restarts.
async fn begin(
    engine: &Engine,
    refresher: &mut Refresher,
    is_managed: bool,
    take_over: bool,
    redis_replicas: u32,
) -> anyhow::Result<ServingRight> {
    let mut warned = false;
    loop {
        match try_begin(engine, refresher, is_managed, take_over, redis_replicas).await {
            Err(error) if error.chain().filter_map(|cause| cause.downcast_ref()).any(sql::is_transient) => {
                if !warned {
                    tracing::warn!(error = format!("{error:#}"), "still waiting for the database");
                    warned = true;
                }
                sleep(SQL_POLL).await;
            }
            begun => return begun,
        }
    }
}

/// Waits for Redis, claims the database for it, and reads the campaigns.
async fn try_begin(
    engine: &Engine,
    refresher: &mut Refresher,
    is_managed: bool,
    take_over: bool,
    redis_replicas: u32,
) -> anyhow::Result<ServingRight> {
    let (redis, sql) = (&engine.stores.redis, &engine.stores.sql);
    // A SQLite file is in the data directory, which this core has locked: no other core can use it.
    let immediately = take_over || sql.is_sqlite();
    let serving = loop {
        wait_for(redis, is_managed).await?;
        match ServingRight::claim(Arc::clone(redis), sql.clone(), immediately).await {
            Err(ServingError::Redis(error)) if error.is_unreachable() => {
                tracing::debug!(%error, "Redis is unavailable again; waiting for it");
            }
            claimed => break claimed?,
        }
    };
    engine.replicas.begin(redis_replicas).await.context("reading Redis' replicas")?;
    refresher.refresh().await.context("reading the campaigns")?;
    Ok(serving)
}

/// Records periodically that this core serves; returns once it may no longer serve.
async fn keep_serving(right_to_serve: &ServingRight, engine: &Engine) -> ServingError {
    loop {
        sleep(RENEW_INTERVAL).await;
        // Other errors are logged by the health checks.
        if let Err(error) = renew(right_to_serve, engine).await
            && error.is_loss()
        {
            return error;
        }
    }
}

async fn renew(right_to_serve: &ServingRight, engine: &Engine) -> Result<(), ServingError> {
    // No other core uses a SQLite file.
    if engine.stores.sql.is_sqlite() {
        right_to_serve.renew_in_redis().await
    } else {
        right_to_serve.renew().await
    }
}

/// Logs the findings of `claimgate doctor`, one line each.
async fn log_findings(setup: Setup) {
    let findings = doctor::examine(&setup).await.findings;
    // A low connection limit was already logged when the database was opened.
    for finding in findings.iter().filter(|finding| finding.check != doctor::FEW_CONNECTIONS) {
        tracing::warn!(check = finding.check, "{finding}");
    }
}

/// The highest limit of open files that macOS accepts (`OPEN_MAX`).
const MACOS_DESCRIPTORS_MAX: u64 = 10_240;

/// Raises the limit of open files: the usual one is 1,024, and each connection needs a descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let current = if cfg!(target_os = "macos") {
        limit.maximum.min(Some(MACOS_DESCRIPTORS_MAX)).or(Some(MACOS_DESCRIPTORS_MAX)).max(limit.current)
    } else {
        limit.maximum
    };
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Locks the data directory: two cores in one directory would run two Redis servers on one append-only file.
/// The directory itself is locked as well, in case the file `lock` is removed. The locks last as long as the
/// returned files.
fn lock_data_dir(config: &Config) -> anyhow::Result<[std::fs::File; 2]> {
    let path = config.data_dir.join("lock");
    let file = std::fs::File::create(&path).with_context(|| path.display().to_string())?;
    let directory =
        std::fs::File::open(&config.data_dir).with_context(|| config.data_dir.display().to_string())?;
    let in_use = || {
        anyhow::anyhow!("CLAIMGATE_DATA_DIR: another claimgate is running on {}", config.data_dir.display())
    };
    file.try_lock().map_err(|_| in_use())?;
    // Not every file system can lock a directory, such as NFS.
    match directory.try_lock() {
        Err(TryLockError::WouldBlock) => Err(in_use()),
        Ok(()) | Err(TryLockError::Error(_)) => Ok([file, directory]),
    }
}

async fn database(config: &Config) -> anyhow::Result<SqlStore> {
    SqlStore::open(&config.database_url).await.map_err(|error| match error {
        SqlError::UnsuitableDatabase(_) => anyhow::Error::new(error).context("CLAIMGATE_DATABASE_URL"),
        // The message already contains the cause.
        error => anyhow::anyhow!("CLAIMGATE_DATABASE_URL: opening the database: {error}"),
    })
}

fn redis(config: &Config) -> anyhow::Result<(Option<ManagedRedis>, RedisAddress)> {
    if let Some(address) = &config.redis_address {
        return Ok((None, address.clone()));
    }
    let managed = ManagedRedis::start(&Settings {
        data_dir: config.data_dir.clone(),
        password: config.redis_password.clone(),
        maxmemory_bytes: config.redis_maxmemory_bytes,
    })?;
    let address = managed.address(&config.redis_password).context("the address of core's own Redis")?;
    Ok((Some(managed), address))
}

/// Waits until Redis answers, so that the first claims are not rejected. Fails immediately if the address does
/// not lead to a primary: at startup this is a configuration mistake, whereas later it could be a failover.
async fn wait_for(redis: &RedisStore, is_managed: bool) -> Result<(), ServingError> {
    let place_to_check =
        if is_managed { "redis/redis.log in the data directory" } else { "CLAIMGATE_REDIS_URL" };
    let started = Instant::now();
    let mut warned = false;
    while let Err(error) = redis.probe().await.outcome {
        if let RedisStoreError::NoPrimary(wrong) = &error
            && let Some(remedy) = wrong.remedy()
        {
            return Err(ServingError::NoPrimary(wrong.clone(), remedy));
        }
        if started.elapsed() > REDIS_WARN_AFTER && !warned {
            tracing::warn!(%error, "still waiting for Redis; check {place_to_check}");
            warned = true;
        }
        sleep(REDIS_POLL).await;
    }
    Ok(())
}

/// Reloads the secret files on each SIGHUP, so that keys can be rotated without rejecting a call. Invalid
/// files change nothing.
async fn keep_credentials(authenticator: Authenticator, data_dir: PathBuf, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        match Secrets::of(&data_dir).credentials() {
            Ok(credentials) => {
                tracing::info!(edge_keys = ?credentials.kids(), "credentials were reloaded");
                authenticator.replace(credentials);
            }
            Err(error) => tracing::error!("credentials were not reloaded: {error}"),
        }
    }
}

/// Waits for the signal to `stop`, then keeps serving for `drain_time`, while `/readyz` already reports that
/// core is not ready. A second signal ends the wait.
async fn stopped_and_drained(
    stop: impl Future<Output = anyhow::Result<()>>,
    state: &AppState,
    drain_time: Duration,
) -> anyhow::Result<()> {
    stop.await?;
    state.drain();
    if !drain_time.is_zero() {
        tracing::info!("no longer ready; serving for another {} s", drain_time.as_secs());
        tokio::select! {
            () = sleep(drain_time) => {}
            stopped = stop_signal() => stopped?,
        }
    }
    Ok(())
}

/// Waits for SIGTERM or SIGINT.
async fn stop_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
