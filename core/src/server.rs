//! `claimgate serve`: starts Redis, SQL, the jobs and two listeners, and stops them on a signal.

use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::config::{Config, Secrets, TraceTarget};
use crate::doctor::{self, Setup};
use crate::engine::Engine;
use crate::engine::cores::ThisCore;
use crate::engine::serving::{Serving, ServingError};
use crate::engine::webhook_sender::WebhookSender;
use crate::http;
use crate::http::auth::Authenticator;
use crate::http::listeners::admin_router;
use crate::http::state::AppState;
use crate::http::threads::Threads;
use crate::jobs::live;
use crate::jobs::maintenance::Maintenance;
use crate::jobs::outbox_relay::OutboxRelay;
use crate::jobs::refresher::Refresher;
use crate::jobs::webhooks::Webhooks;
use crate::metrics;
use crate::redis_address::RedisAddress;
use crate::store::redis::managed::{ManagedRedis, Settings};
use crate::store::redis::{RedisStore, RedisStoreError};
use crate::store::sql::SqlStore;
use crate::traces::TraceExport;

/// How long Redis may take to come up, loading its file included, before core says so; it goes on waiting.
const REDIS_PATIENCE: Duration = Duration::from_secs(5);
const REDIS_POLL: Duration = Duration::from_millis(5);
/// How often core says in the database that it serves; a third of what a starting core listens for.
const RENEW: Duration = Duration::from_secs(1);
/// How long the listeners may take to stop; connections have 5 s of it to finish.
const LISTENERS_MAX: Duration = Duration::from_secs(6);
/// How long the jobs may take to stop, and then the connections to SQL to close. With the 5 s that Redis gets, all that
/// stopping takes is 14 s at most, whatever hangs.
const JOBS_MAX: Duration = Duration::from_secs(2);
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// A batch holds the claims of one thread: the more threads, the smaller the batches, and the more each claim costs Redis,
/// which has one thread itself.
const HTTP_THREADS_MAX: usize = 4;
const STOP_POLL: Duration = Duration::from_millis(5);

/// Runs core until SIGTERM or SIGINT.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let setup = Setup::of(&config);
    let _lock = lock_data_dir(&config)?;
    let metrics = metrics::install()?;
    let traces = begin_traces(&config)?;
    let listener = bind("CLAIMGATE_LISTEN", config.listen).await?;
    let admin_listener = bind("CLAIMGATE_ADMIN_LISTEN", config.admin_listen).await?;
    let (mut managed, redis_address) = redis(&config)?;
    let sql = database(&config).await?;
    let engine = Arc::new(engine(&config, sql.clone(), redis_address)?);
    let authenticator = Authenticator::new(config.credentials);
    let hangup = signal(SignalKind::hangup())?;
    tokio::spawn(keep_credentials(authenticator.clone(), config.data_dir.clone(), hangup));
    let this = ThisCore::starting(config.core_id.clone(), format!("{} {}", host(), config.listen));
    let webhooks = Webhooks::new(Arc::clone(&engine), config.core_id.clone(), config.webhook_retry);
    let relay = OutboxRelay::new(&engine, config.core_id);
    let state = AppState::new(&engine, authenticator, metrics.clone(), config.concurrency_max);

    let (stop_serving, serving) = watch::channel(false);
    let (stop_relaying, relaying) = watch::channel(false);
    let threads = Arc::new(Threads::start(&state, http_threads())?);
    let internal = tokio::spawn(Arc::clone(&threads).serve(listener, serving.clone()));
    let admin = tokio::spawn(http::serve(admin_listener, admin_router(state.clone()), serving.clone()));
    let mut told = pin!(told_to_stop());
    // Redis may have a long file to load: core already answers that it is alive, and not ready.
    let mut refresher = Refresher::new(Arc::clone(&engine), metrics);
    let outcome;
    tokio::select! {
        begun = begin(&engine, &mut refresher, managed.is_some(), config.take_over, config.redis_replicas) => {
            let right = begun?;
            state.set_serving(true);
            tokio::spawn(say_what_is_risky(setup));
            say_where(config.listen, config.admin_listen);
            let live = tokio::spawn(live::tell(Arc::clone(&engine), this.clone(), serving.clone()));
            let maintenance = tokio::spawn(Maintenance::new(Arc::clone(&engine.recovery)).run(serving.clone()));
            let webhooks = tokio::spawn(webhooks.run(serving.clone()));
            let refresher = tokio::spawn(refresher.run(serving));
            let relay = relay.spawn(relaying)?;
            let ended = tokio::select! {
                told = drained(&mut told, &state, config.drain) => told,
                lost = keep(&right, &engine, &this) => Err(lost.into()),
            };
            state.stop(ended.is_ok());
            tracing::info!("stopping");
            stop_serving.send_replace(true);
            in_time("the listeners", LISTENERS_MAX, async { tokio::join!(internal, admin) }).await;
            // Relayed until the last answer is out; what is left then waits in the outbox for the next start.
            stop_relaying.send_replace(true);
            in_time("the jobs", JOBS_MAX, async {
                let _ = tokio::join!(maintenance, refresher, webhooks, live);
                while !relay.is_finished() {
                    sleep(STOP_POLL).await;
                }
            })
            .await;
            outcome = ended;
        }
        stopped = &mut told => outcome = stopped,
    }
    // A connection to SQL may have been made on any of the threads.
    in_time("the connections to SQL and their threads", CLOSE_MAX, async {
        sql.close().await;
        threads.stop().await;
    })
    .await;
    managed.iter_mut().for_each(ManagedRedis::stop);
    end_traces(traces).await;
    outcome
}

fn engine(config: &Config, sql: SqlStore, redis: RedisAddress) -> anyhow::Result<Engine> {
    let webhook_sender = WebhookSender::new(config.webhook_hosts.clone());
    let webhook_sender =
        webhook_sender.map_err(|problem| anyhow::anyhow!("CLAIMGATE_WEBHOOK_HOSTS: {problem}"))?;
    Ok(Engine::builder(sql)
        .outbox_max(config.outbox_max)
        .archive_after(config.archive_after)
        .batch_max(config.batch_max)
        .webhook_sender(webhook_sender)
        .redis_is_own(config.redis_address.is_none())
        .on(redis))
}

fn begin_traces(config: &Config) -> anyhow::Result<Option<TraceExport>> {
    let begin = |to: &TraceTarget| TraceExport::start(&to.url, to.ratio, &config.core_id);
    config.traces.as_ref().map(begin).transpose().context("CLAIMGATE_OTLP_URL")
}

async fn end_traces(traces: Option<TraceExport>) {
    if let Some(traces) = traces {
        let _ = tokio::task::spawn_blocking(|| traces.stop()).await;
    }
}

fn say_where(listen: SocketAddr, admin: SocketAddr) {
    tracing::info!(%listen, %admin, "claimgate is up");
    tracing::info!("dashboard: http://{admin}/");
}

/// This machine's name, for people.
fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| String::new(), |name| name.trim().to_owned())
}

/// As many as the machine runs at once.
fn http_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(HTTP_THREADS_MAX)
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

/// Waits for Redis, claims the database for it, and reads the campaigns.
async fn begin(
    engine: &Engine,
    refresher: &mut Refresher,
    ours: bool,
    take_over: bool,
    redis_replicas: u32,
) -> anyhow::Result<Serving> {
    let (redis, sql) = (&engine.sync.redis, &engine.sync.sql);
    // A SQLite file is in the data directory, which this core has locked: no other core can use it.
    let alone = take_over || sql.is_sqlite();
    let serving = loop {
        wait_for(redis, ours).await?;
        match Serving::claim(Arc::clone(redis), sql.clone(), alone).await {
            Err(ServingError::Redis(error)) if error.is_unreachable() => {
                tracing::debug!(%error, "Redis has gone again; waiting for it");
            }
            claimed => break claimed?,
        }
    };
    engine.begin_replication(redis_replicas).await.context("looking at Redis' replicas")?;
    refresher.refresh().await.context("reading the campaigns")?;
    Ok(serving)
}

/// Records periodically that this core serves; returns once it may not serve any more.
async fn keep(right: &Serving, engine: &Engine, this: &ThisCore) -> ServingError {
    loop {
        sleep(RENEW).await;
        // The health checks log what else failed.
        if let Err(error) = renew(right, engine, this).await
            && error.is_loss()
        {
            return error;
        }
    }
}

async fn renew(right: &Serving, engine: &Engine, this: &ThisCore) -> Result<(), ServingError> {
    // No other core uses this database, and none is shown beside this one.
    if engine.sync.sql.is_sqlite() {
        return right.renew_in_redis().await;
    }
    // Beside each other: what people see of this core must not hold up its right to serve.
    let (renewed, recorded) = tokio::join!(right.renew(), engine.record_core(this));
    if let Err(error) = recorded {
        tracing::debug!(%error, "this core is not recorded");
    }
    renewed
}

/// Logs what `claimgate doctor` finds, one line each.
async fn say_what_is_risky(setup: Setup) {
    for finding in doctor::examine(&setup).await.findings {
        tracing::warn!(check = finding.check, "{finding}");
    }
}

/// 2,000 callers at once need as many descriptors, and the usual limit is 1,024.
fn raise_descriptor_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Locks the data directory: two cores on one would be two Redis servers on one append-only file.
fn lock_data_dir(config: &Config) -> anyhow::Result<std::fs::File> {
    let path = config.data_dir.join("lock");
    let file = std::fs::File::create(&path).with_context(|| path.display().to_string())?;
    file.try_lock().map_err(|_| {
        anyhow::anyhow!("CLAIMGATE_DATA_DIR: another claimgate is running on {}", config.data_dir.display())
    })?;
    Ok(file)
}

async fn database(config: &Config) -> anyhow::Result<SqlStore> {
    SqlStore::open(&config.database_url)
        .await
        .map_err(|error| anyhow::anyhow!("CLAIMGATE_DATABASE_URL: opening the database: {error}"))
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
    let address = RedisAddress::parse(&managed.url(&config.redis_password), None);
    Ok((
        Some(managed),
        address.map_err(|problem| anyhow::anyhow!("the address of core's own Redis {problem}"))?,
    ))
}

/// Claims are refused until Redis answers anyway; waiting here keeps the first ones from being refused. An address that
/// leads to no primary is not waited for: it is a mistake until core has served there, and may be a failover later.
async fn wait_for(redis: &RedisStore, ours: bool) -> Result<(), ServingError> {
    let look_at = if ours { "redis/redis.log in the data directory" } else { "CLAIMGATE_REDIS_URL" };
    let started = Instant::now();
    let mut said = false;
    while let Err(error) = redis.ping().await {
        if let RedisStoreError::NoPrimary(wrong) = &error
            && let Some(remedy) = wrong.remedy()
        {
            return Err(ServingError::NoPrimary(wrong.clone(), remedy));
        }
        if started.elapsed() > REDIS_PATIENCE && !said {
            tracing::warn!(%error, "still waiting for Redis; see {look_at}");
            said = true;
        }
        sleep(REDIS_POLL).await;
    }
    Ok(())
}

/// Reads the secrets' files again on each SIGHUP, so that keys are changed with no call refused. Invalid ones
/// change nothing.
async fn keep_credentials(authenticator: Authenticator, data_dir: PathBuf, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        match Secrets::of(&data_dir).credentials() {
            Ok(credentials) => {
                tracing::info!(edge_keys = ?credentials.kids(), "credentials were read again");
                authenticator.replace(credentials);
            }
            Err(error) => tracing::error!("credentials stay as they were: {error}"),
        }
    }
}

/// Waits until core is `told` to stop, and then until those who ask `/readyz` have seen that it will. A second signal ends
/// that.
async fn drained(
    told: impl Future<Output = anyhow::Result<()>>,
    state: &AppState,
    patience: Duration,
) -> anyhow::Result<()> {
    told.await?;
    state.leave();
    if !patience.is_zero() {
        tracing::info!("not ready any more; going on for {} s", patience.as_secs());
        tokio::select! {
            () = sleep(patience) => {}
            told = told_to_stop() => told?,
        }
    }
    Ok(())
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
