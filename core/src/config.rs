//! Core's configuration: flags and environment. A wrong value ends the start with one line that names the variable.

mod traces;

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::jwt::{TokenRules, UserTokens};
use claimgate_shared::signature::{NamedKey, SecretKey};
use clap::Args;

use crate::credentials::{Caller, Credentials, TOKEN_CHARS_MIN, Tokens};
use crate::data_dir;
use crate::redis_address::RedisAddress;
use crate::webhook_hosts::WebhookHosts;
use traces::TraceArgs;
pub use traces::TraceTarget;

/// Events that may wait for SQL per campaign before new claims are refused.
pub const OUTBOX_MAX_DEFAULT: u64 = 1_000_000;
/// How long an event of a webhook is tried, in seconds.
const WEBHOOK_RETRY_S: u64 = 86_400;
/// How long a campaign stays in Redis after it is over, unless told otherwise.
pub const ARCHIVE_AFTER_DEFAULT: Duration = Duration::from_hours(24);
/// The most claims that one script call decides.
pub const BATCH_MAX: usize = 256;
/// The longest that core goes on serving when it is told to stop.
const DRAIN_S_MAX: u64 = 300;
/// Why no replica can be required of a Redis that core starts itself.
pub const OWN_REDIS_HAS_NO_REPLICAS: &str =
    "core's own Redis has no replicas; give CLAIMGATE_REDIS_URL the address of servers that have";
/// The variables that name a file with a secret in it.
pub const SECRET_FILES: [&str; 8] = [
    "CLAIMGATE_ADMIN_TOKENS_FILE",
    "CLAIMGATE_ADMIN_TOKEN_FILE",
    "CLAIMGATE_API_TOKENS_FILE",
    "CLAIMGATE_DATABASE_URL_FILE",
    "CLAIMGATE_EDGE_KEYS_FILE",
    "CLAIMGATE_REDIS_SENTINEL_PASSWORD_FILE",
    "CLAIMGATE_REDIS_URL_FILE",
    "CLAIMGATE_USER_JWT_KEY_FILE",
];
const API_TOKENS: &str = "CLAIMGATE_API_TOKENS";
const ADMIN_TOKENS: &str = "CLAIMGATE_ADMIN_TOKENS";

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct ConfigError {
    variable: &'static str,
    problem: String,
}

fn wrong(variable: &'static str, problem: impl fmt::Display) -> ConfigError {
    ConfigError { variable, problem: problem.to_string() }
}

/// Where core keeps its files; also where the command line finds the secrets of a core on this machine.
#[derive(Debug, Clone, Args)]
pub struct DataArgs {
    /// Directory of the managed Redis' file, the SQLite file and generated secrets
    #[arg(
        long,
        env = "CLAIMGATE_DATA_DIR",
        default_value = "./data",
        value_name = "DIRECTORY",
        global = true
    )]
    pub data_dir: PathBuf,
}

/// `claimgate serve`: each flag has its variable.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Address of the internal API
    #[arg(long, env = "CLAIMGATE_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    listen: String,
    /// Address of the admin API and of metrics: keep it private
    #[arg(long, env = "CLAIMGATE_ADMIN_LISTEN", default_value = "127.0.0.1:8081", value_name = "ADDRESS")]
    admin_listen: String,
    /// A Redis of your own: redis://, rediss:// or unix:// for one primary,
    /// redis+sentinel://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]/SERVICE[?db=N] or rediss+sentinel:// for the one that
    /// Sentinel names, redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…] or rediss+cluster:// for those of a cluster;
    /// without it core runs one itself. Or a file that holds it, named by `CLAIMGATE_REDIS_URL_FILE`
    #[arg(long, env = "CLAIMGATE_REDIS_URL", value_name = "URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// How many replicas must have a claim before it is acknowledged; the first value only: `claimgate replication` changes
    /// it [default: 0]
    #[arg(long, env = "CLAIMGATE_REDIS_REPLICAS", value_name = "REPLICAS")]
    redis_replicas: Option<String>,
    /// Memory limit of the managed Redis, in MiB [default: half of the machine's]
    #[arg(long, env = "CLAIMGATE_REDIS_MAXMEMORY_MIB", value_name = "MIB")]
    redis_maxmemory_mib: Option<String>,
    /// The database of claims and campaigns (postgres://…), or a file that holds it, named by
    /// `CLAIMGATE_DATABASE_URL_FILE` [default: a SQLite file in the data directory]
    #[arg(long, env = "CLAIMGATE_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Events that may wait for SQL per campaign before new claims get 503 [default: 1000000]
    #[arg(long, env = "CLAIMGATE_OUTBOX_MAX", value_name = "EVENTS")]
    outbox_max: Option<String>,
    /// Seconds after which a campaign that is over is evicted from Redis; SQL answers for it then [default: 86400]
    #[arg(long, env = "CLAIMGATE_ARCHIVE_AFTER_S", value_name = "SECONDS")]
    archive_after_s: Option<String>,
    /// The most requests handled at once; further ones get 503 [default: 4096]
    #[arg(long, env = "CLAIMGATE_CONCURRENCY_MAX", value_name = "REQUESTS")]
    concurrency_max: Option<String>,
    /// The most claims that one call to Redis decides, 1 to 256 [default: 256]
    #[arg(long, env = "CLAIMGATE_BATCH_MAX", value_name = "CLAIMS")]
    batch_max: Option<String>,
    /// Seconds that core goes on serving after SIGTERM while /readyz already answers 503: as long as a balancer needs to see
    /// that, 300 at most [default: 0]
    #[arg(long, env = "CLAIMGATE_DRAIN_S", value_name = "SECONDS")]
    drain_s: Option<String>,
    /// Serve the database with this Redis at once, though it was last served with another one: only when no core with
    /// that one runs any more
    #[arg(long)]
    take_over: bool,
    /// Log lines as JSON instead of text
    #[arg(long, env = "CLAIMGATE_LOG_JSON", value_parser = clap::builder::FalseyValueParser::new())]
    pub log_json: bool,
    /// The hosts that webhooks may call: HOST[:PORT] by TLS, http://HOST:PORT without, with commas between them; a private
    /// address must be listed itself [default: none, so no webhooks]
    #[arg(long, env = "CLAIMGATE_WEBHOOK_HOSTS", value_name = "HOSTS")]
    webhook_hosts: Option<String>,
    /// Seconds that an event is tried before it is parked [default: 86400]
    #[arg(long, env = "CLAIMGATE_WEBHOOK_RETRY_S", value_name = "SECONDS")]
    webhook_retry_s: Option<String>,
    #[command(flatten)]
    traces: TraceArgs,
    #[command(flatten)]
    data: DataArgs,
}

/// Everything `serve` needs, checked.
#[derive(Debug)]
pub struct Config {
    /// The address that the internal API listens on.
    pub listen: SocketAddr,
    /// The address that the admin API and metrics listen on.
    pub admin_listen: SocketAddr,
    /// The data directory, absolute; it exists.
    pub data_dir: PathBuf,
    /// Where the operator's Redis is; `None` runs the managed one.
    pub redis_address: Option<RedisAddress>,
    /// The first value of how many replicas must have a claim before it is acknowledged.
    pub redis_replicas: u32,
    /// This core's consumer name: the same after a restart, so that the relay finds the entries that it had read.
    pub core_id: String,
    /// The managed Redis' password.
    pub redis_password: String,
    /// The managed Redis' memory limit, in bytes.
    pub redis_maxmemory_bytes: u64,
    /// The database's URL.
    pub database_url: String,
    /// The most events that a campaign's outbox may hold.
    pub outbox_max: u64,
    /// How long a campaign stays in Redis after it is over.
    pub archive_after: Duration,
    /// The most requests handled at once per listener.
    pub concurrency_max: usize,
    /// The most claims that one script call decides.
    pub batch_max: usize,
    /// How long core goes on serving when it is told to stop and says that it is not ready.
    pub drain: Duration,
    /// The hosts that webhooks may call.
    pub webhook_hosts: WebhookHosts,
    /// How long an event is tried before it is parked.
    pub webhook_retry: Duration,
    /// Where traces go, if anywhere.
    pub traces: Option<TraceTarget>,
    /// Whether to serve the database whatever Redis it was last served with.
    pub take_over: bool,
    /// The credentials of callers.
    pub credentials: Credentials,
}

impl Config {
    /// Checks everything, makes the data directory or makes it private, and generates the secrets that are missing.
    pub(crate) fn load(args: &ServeArgs) -> Result<Self, ConfigError> {
        let data_dir =
            data_dir::prepare(&args.data.data_dir).map_err(|problem| wrong("CLAIMGATE_DATA_DIR", problem))?;
        Self::read(args, Secrets::of(&data_dir))
    }

    /// The configuration that [`Self::load`] would give, with nothing made or changed.
    pub(crate) fn look(args: &ServeArgs) -> Result<Self, ConfigError> {
        Self::read(args, Secrets::as_they_are(&data_dir(args)))
    }

    fn read(args: &ServeArgs, secrets: Secrets<'_>) -> Result<Self, ConfigError> {
        // The edge's key for users is not core's to use, but made here so that both find the same one.
        secrets.user_tokens()?;
        // Both may hold a password.
        let redis_url = or_of_file(args.redis_url.as_deref(), "CLAIMGATE_REDIS_URL")?;
        let database = or_of_file(args.database_url.as_deref(), "CLAIMGATE_DATABASE_URL")?;
        Ok(Self {
            listen: address("CLAIMGATE_LISTEN", &args.listen)?,
            admin_listen: address("CLAIMGATE_ADMIN_LISTEN", &args.admin_listen)?,
            redis_address: redis_url.as_deref().map(redis_address).transpose()?,
            redis_replicas: redis_replicas(args, redis_url.is_some())?,
            core_id: secrets.generated("core.id", random_text)?,
            redis_password: secrets.generated("redis.password", random_text)?,
            redis_maxmemory_bytes: match &args.redis_maxmemory_mib {
                Some(mib) => number::<u64>("CLAIMGATE_REDIS_MAXMEMORY_MIB", mib)?.saturating_mul(1 << 20),
                None => half_of_memory(),
            },
            database_url: database_url(database.as_deref(), secrets.data_dir)?,
            outbox_max: optional("CLAIMGATE_OUTBOX_MAX", args.outbox_max.as_deref(), OUTBOX_MAX_DEFAULT)?,
            archive_after: Duration::from_secs(optional(
                "CLAIMGATE_ARCHIVE_AFTER_S",
                args.archive_after_s.as_deref(),
                ARCHIVE_AFTER_DEFAULT.as_secs(),
            )?),
            concurrency_max: optional("CLAIMGATE_CONCURRENCY_MAX", args.concurrency_max.as_deref(), 4096)?,
            batch_max: batch_max(args.batch_max.as_deref())?,
            drain: drain(args.drain_s.as_deref())?,
            webhook_hosts: webhook_hosts(args.webhook_hosts.as_deref())?,
            webhook_retry: Duration::from_secs(optional(
                "CLAIMGATE_WEBHOOK_RETRY_S",
                args.webhook_retry_s.as_deref(),
                WEBHOOK_RETRY_S,
            )?),
            traces: args.traces.target()?,
            take_over: args.take_over,
            credentials: secrets.credentials()?,
            data_dir: secrets.data_dir.to_owned(),
        })
    }
}

/// The data directory, absolute, whether it exists or not.
pub fn data_dir(args: &ServeArgs) -> PathBuf {
    let directory = &args.data.data_dir;
    directory.canonicalize().or_else(|_| std::path::absolute(directory)).unwrap_or_else(|_| directory.clone())
}

fn address(variable: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    text.parse()
        .map_err(|_| wrong(variable, format!("must be address:port, such as 127.0.0.1:8080, not '{text}'")))
}

fn number<T: std::str::FromStr + PartialOrd + From<u8>>(
    variable: &'static str,
    text: &str,
) -> Result<T, ConfigError> {
    match text.parse::<T>() {
        Ok(number) if number >= T::from(1) => Ok(number),
        _ => Err(wrong(variable, format!("must be a whole number from 1 on, not '{text}'"))),
    }
}

fn optional<T: std::str::FromStr + PartialOrd + From<u8>>(
    variable: &'static str,
    text: Option<&str>,
    default: T,
) -> Result<T, ConfigError> {
    text.map_or(Ok(default), |text| number(variable, text))
}

fn redis_replicas(args: &ServeArgs, has_redis: bool) -> Result<u32, ConfigError> {
    const VARIABLE: &str = "CLAIMGATE_REDIS_REPLICAS";
    let Some(text) = &args.redis_replicas else { return Ok(0) };
    match text.parse() {
        Ok(replicas) if replicas > 0 && !has_redis => Err(wrong(VARIABLE, OWN_REDIS_HAS_NO_REPLICAS)),
        Ok(replicas) => Ok(replicas),
        Err(_) => Err(wrong(VARIABLE, format!("must be a whole number, not '{text}'"))),
    }
}

fn batch_max(text: Option<&str>) -> Result<usize, ConfigError> {
    const VARIABLE: &str = "CLAIMGATE_BATCH_MAX";
    match optional(VARIABLE, text, BATCH_MAX)? {
        claims if claims <= BATCH_MAX => Ok(claims),
        claims => Err(wrong(VARIABLE, format!("must be at most {BATCH_MAX}, not '{claims}'"))),
    }
}

fn drain(text: Option<&str>) -> Result<Duration, ConfigError> {
    let seconds = text.map_or(Ok(0), |text| {
        let seconds = text.parse().ok().filter(|seconds| *seconds <= DRAIN_S_MAX);
        seconds.ok_or_else(|| wrong("CLAIMGATE_DRAIN_S", format!("must be 0 to {DRAIN_S_MAX}, not '{text}'")))
    });
    seconds.map(Duration::from_secs)
}

fn webhook_hosts(list: Option<&str>) -> Result<WebhookHosts, ConfigError> {
    list.unwrap_or_default().parse().map_err(|problem: String| wrong("CLAIMGATE_WEBHOOK_HOSTS", problem))
}

fn redis_address(url: &str) -> Result<RedisAddress, ConfigError> {
    let sentinel_password = secret("CLAIMGATE_REDIS_SENTINEL_PASSWORD")?;
    RedisAddress::parse(url, sentinel_password.as_deref())
        .map_err(|problem| wrong("CLAIMGATE_REDIS_URL", problem))
}

fn database_url(text: Option<&str>, data_dir: &Path) -> Result<String, ConfigError> {
    match text {
        None => Ok(sqlite_url(&data_dir.join("claimgate.sqlite"))),
        Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => Ok(url.to_owned()),
        Some(_) => Err(wrong(
            "CLAIMGATE_DATABASE_URL",
            "must be postgres://…, or unset for SQLite in the data directory",
        )),
    }
}

/// The address of a SQLite file.
pub fn sqlite_url(file: &Path) -> String {
    format!("sqlite://{}?mode=rwc", file.display())
}

/// What is `given`, or what the file holds that `NAME_FILE` names.
fn or_of_file(given: Option<&str>, variable: &'static str) -> Result<Option<String>, ConfigError> {
    match (given, of_file(variable)?) {
        (Some(_), Some(_)) => Err(wrong(variable, "is given twice, as itself and as a file")),
        (given, file) => Ok(given.map(str::to_owned).or(file)),
    }
}

/// A secret from `NAME`, or from the file that `NAME_FILE` names.
fn secret(variable: &'static str) -> Result<Option<String>, ConfigError> {
    or_of_file(std::env::var(variable).ok().as_deref(), variable)
}

fn of_file(variable: &'static str) -> Result<Option<String>, ConfigError> {
    match std::env::var_os(format!("{variable}_FILE")) {
        None => Ok(None),
        Some(file) => fs::read_to_string(&file)
            .map(|text| Some(text.trim_end().to_owned()))
            .map_err(|error| wrong(variable, format!("its file {}: {error}", file.display()))),
    }
}

/// The secrets: from the environment, else from the data directory, where they are generated once.
#[derive(Debug, Clone, Copy)]
pub struct Secrets<'a> {
    data_dir: &'a Path,
    makes: bool,
}

impl<'a> Secrets<'a> {
    /// Secrets in the data directory; one that is missing is generated there.
    pub fn of(data_dir: &'a Path) -> Self {
        Self { data_dir, makes: true }
    }

    /// The same without writing: a missing secret is replaced by a valid one that is not stored.
    pub fn as_they_are(data_dir: &'a Path) -> Self {
        Self { data_dir, makes: false }
    }

    /// The admin token.
    pub(crate) fn admin_token(self) -> Result<String, ConfigError> {
        const VARIABLE: &str = "CLAIMGATE_ADMIN_TOKEN";
        match secret(VARIABLE)? {
            Some(token) if token.len() < TOKEN_CHARS_MIN => {
                Err(wrong(VARIABLE, format!("must be at least {TOKEN_CHARS_MIN} characters")))
            }
            Some(token) => Ok(token),
            None => self.generated("admin.token", random_text),
        }
    }

    /// The credentials of callers, from the environment and the secrets' files as they are now.
    pub(crate) fn credentials(self) -> Result<Credentials, ConfigError> {
        Ok(Credentials { tokens: tokens(&self.admin_token()?)?, edge_keys: self.edge_keys()? })
    }

    fn edge_keys(self) -> Result<Vec<NamedKey>, ConfigError> {
        const VARIABLE: &str = "CLAIMGATE_EDGE_KEYS";
        let list = match secret(VARIABLE)? {
            Some(list) => list,
            None => self.generated("edge.key", || Ok(format!("k1:{}", random_text()?)))?,
        };
        list.split(',').map(|item| item.parse().map_err(|error| wrong(VARIABLE, error))).collect()
    }

    /// What user tokens are signed with and must say.
    pub(crate) fn user_tokens(self) -> Result<UserTokens, ConfigError> {
        const VARIABLE: &str = "CLAIMGATE_USER_JWT_KEY";
        let text = match secret(VARIABLE)? {
            Some(text) => text,
            None => self.generated("user-jwt.key", random_text)?,
        };
        let or_default = |variable| std::env::var(variable).unwrap_or_else(|_| "claimgate".to_owned());
        Ok(UserTokens {
            key: text.parse::<SecretKey>().map_err(|error| wrong(VARIABLE, error))?,
            rules: TokenRules {
                issuer: or_default("CLAIMGATE_USER_JWT_ISS"),
                audience: or_default("CLAIMGATE_USER_JWT_AUD"),
            },
        })
    }

    /// What is wrong with each of them.
    pub fn problems(self) -> Vec<ConfigError> {
        let admin_token = self.admin_token();
        let checked = [
            tokens(admin_token.as_deref().unwrap_or_default()).map(drop),
            admin_token.map(drop),
            self.edge_keys().map(drop),
            self.user_tokens().map(drop),
        ];
        checked.into_iter().filter_map(Result::err).collect()
    }

    /// The text of a file in the data directory, generated with `make` when there is none; only core's user can read it.
    fn generated(
        self,
        name: &str,
        make: impl FnOnce() -> Result<String, getrandom::Error>,
    ) -> Result<String, ConfigError> {
        let file = self.data_dir.join(name);
        let failed =
            |error: &dyn fmt::Display| wrong("CLAIMGATE_DATA_DIR", format!("{}: {error}", file.display()));
        match fs::read_to_string(&file) {
            Ok(text) => return Ok(text.trim_end().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&error)),
        }
        let text = make().map_err(|error| failed(&error))?;
        if !self.makes {
            return Ok(text);
        }
        // Written whole or not at all: half a secret would be read as one at the next start.
        let draft = self.data_dir.join(format!("{name}.new"));
        let write = || {
            let mut handle =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            handle.write_all(text.as_bytes())?;
            handle.sync_all()?;
            fs::rename(&draft, &file)
        };
        write().map_err(|error: std::io::Error| failed(&error))?;
        Ok(text)
    }
}

/// The tokens of back ends and admins, where `CLAIMGATE_ADMIN_TOKEN` is `admin`.
fn tokens(admin: &str) -> Result<Tokens, ConfigError> {
    let mut tokens = Tokens::default();
    tokens.add(Caller::admin(), admin);
    let list = |variable| Ok(secret(variable)?.unwrap_or_default());
    tokens.add_back_ends(&list(API_TOKENS)?).map_err(|error| wrong(API_TOKENS, error))?;
    tokens.add_admins(&list(ADMIN_TOKENS)?).map_err(|error| wrong(ADMIN_TOKENS, error))?;
    Ok(tokens)
}

/// 32 random bytes as base64url.
fn random_text() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Half of the machine's memory, in bytes; 1 GiB where it cannot be told.
fn half_of_memory() -> u64 {
    memory_bytes().map_or(1 << 30, |bytes| bytes / 2)
}

/// The memory that there is, in bytes: the machine's, or the container's where that is less.
pub fn memory_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = info.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limits = limits.iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    total_kib.map(|kib| kib * 1024).into_iter().chain(limits).min()
}

#[cfg(test)]
mod tests;
