//! Core's configuration: flags and environment variables. An invalid value prevents the start, with one line
//! that names its variable.

mod traces;

use std::ffi::OsString;
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
use url::Url;

use crate::credentials::{Caller, Credentials, Tokens, check_token};
use crate::data_dir;
use crate::group_limits::MemoryLimit;
use crate::redis_address::RedisAddress;
use crate::webhook_hosts::WebhookHosts;
use traces::TraceArgs;
pub use traces::TraceTarget;

/// Default limit of a campaign's events that are pending for SQL; beyond it, new claims are rejected.
pub const OUTBOX_MAX_DEFAULT: u64 = 1_000_000;
/// Default time limit for delivering an event to a webhook.
const WEBHOOK_RETRY: Duration = Duration::from_hours(24);
/// Default time for which a campaign stays in Redis after it has ended.
pub const ARCHIVE_AFTER_DEFAULT: Duration = Duration::from_hours(24);
/// Default time after a claim up to which its hold can be extended.
pub const HOLD_EXTENSION_MAX_DEFAULT: Duration = Duration::from_hours(24);
/// Maximum number of claims that one script call decides.
pub const BATCH_MAX: usize = 256;
/// The longest configurable time that core keeps serving after a signal to stop.
const DRAIN_S_MAX: u64 = 300;
/// The error if replicas are required of core's own Redis.
pub const OWN_REDIS_HAS_NO_REPLICAS: &str =
    "core's own Redis has no replicas; set CLAIMGATE_REDIS_URL to a Redis server with replicas";
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

/// An invalid value of the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct ConfigError {
    variable: &'static str,
    problem: String,
}

fn wrong(variable: &'static str, problem: impl fmt::Display) -> ConfigError {
    ConfigError { variable, problem: problem.to_string() }
}

/// The directory of core's files, where the command line finds the secrets of a core on this machine.
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

/// `claimgate serve`: each flag also has an environment variable.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Address of the internal API
    #[arg(long, env = "CLAIMGATE_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    listen: String,
    /// Address of the admin API and of metrics: keep it private
    #[arg(long, env = "CLAIMGATE_ADMIN_LISTEN", default_value = "127.0.0.1:8081", value_name = "ADDRESS")]
    admin_listen: String,
    /// URL of your own Redis server: redis://, rediss:// or unix:// for one primary,
    /// redis+sentinel://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]/SERVICE[?db=N] or rediss+sentinel:// for the
    /// primary that Sentinel names, redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…] or
    /// rediss+cluster:// for a cluster; without it core runs its own Redis. The URL may also be in a file
    /// named by `CLAIMGATE_REDIS_URL_FILE`
    #[arg(long, env = "CLAIMGATE_REDIS_URL", value_name = "URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// Number of replicas that must have a claim before it is acknowledged. Read only at the first start; then
    /// use `claimgate replication` [default: 0]
    #[arg(long, env = "CLAIMGATE_REDIS_REPLICAS", value_name = "REPLICAS")]
    redis_replicas: Option<String>,
    /// Memory limit of the managed Redis, in MiB [default: half of the available memory]
    #[arg(long, env = "CLAIMGATE_REDIS_MAXMEMORY_MIB", value_name = "MIB")]
    redis_maxmemory_mib: Option<String>,
    /// The database of claims and campaigns (postgres://…); the URL may also be in a file named by
    /// `CLAIMGATE_DATABASE_URL_FILE` [default: a SQLite file in the data directory]
    #[arg(long, env = "CLAIMGATE_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Events that may wait for SQL per campaign before new claims get 503 [default: 1000000]
    #[arg(long, env = "CLAIMGATE_OUTBOX_MAX", value_name = "EVENTS")]
    outbox_max: Option<String>,
    /// Seconds after its end until a campaign is evicted from Redis; its data is then read from SQL [default: 86400]
    #[arg(long, env = "CLAIMGATE_ARCHIVE_AFTER_S", value_name = "SECONDS")]
    archive_after_s: Option<String>,
    /// Seconds after its claim up to which a hold can be extended [default: 86400]
    #[arg(long, env = "CLAIMGATE_HOLD_EXTENSION_MAX_S", value_name = "SECONDS")]
    hold_extension_max_s: Option<String>,
    /// Maximum number of requests handled concurrently; further requests get 503 [default: 4096]
    #[arg(long, env = "CLAIMGATE_CONCURRENCY_MAX", value_name = "REQUESTS")]
    concurrency_max: Option<String>,
    /// Maximum number of claims that one call to Redis decides, 1 to 256 [default: 256]
    #[arg(long, env = "CLAIMGATE_BATCH_MAX", value_name = "CLAIMS")]
    batch_max: Option<String>,
    /// Seconds that core keeps serving after SIGTERM while /readyz already answers 503, so that load
    /// balancers can react; 300 at most [default: 0]
    #[arg(long, env = "CLAIMGATE_DRAIN_S", value_name = "SECONDS")]
    drain_s: Option<String>,
    /// Serve the database with this Redis immediately, although it was last served with a different one; only
    /// safe if no core with that Redis still runs
    #[arg(long)]
    take_over: bool,
    /// Log lines as JSON instead of text
    #[arg(long, env = "CLAIMGATE_LOG_JSON", value_parser = clap::builder::FalseyValueParser::new())]
    pub log_json: bool,
    /// Hosts that webhooks may call, separated by commas: HOST[:PORT] with TLS, http://HOST:PORT without; a private
    /// address must be listed explicitly [default: none, so no webhooks]
    #[arg(long, env = "CLAIMGATE_WEBHOOK_HOSTS", value_name = "HOSTS")]
    webhook_hosts: Option<String>,
    /// Seconds for which delivery of an event is tried before the event is parked [default: 86400]
    #[arg(long, env = "CLAIMGATE_WEBHOOK_RETRY_S", value_name = "SECONDS")]
    webhook_retry_s: Option<String>,
    /// Address of the claim page, http(s)://HOST[:PORT], to which the dashboard links [default: none, so no links]
    #[arg(long, env = "CLAIMGATE_PAGE_URL", value_name = "URL")]
    page_url: Option<String>,
    #[command(flatten)]
    traces: TraceArgs,
    #[command(flatten)]
    data: DataArgs,
}

/// The checked configuration of `serve`.
#[derive(Debug)]
pub struct Config {
    /// The address that the internal API listens on.
    pub listen: SocketAddr,
    /// The address that the admin API and metrics listen on.
    pub admin_listen: SocketAddr,
    /// The absolute path of the data directory.
    pub data_dir: PathBuf,
    /// The address of the operator's Redis; `None` runs a managed one.
    pub redis_address: Option<RedisAddress>,
    /// The initial number of replicas that must have a claim before it is acknowledged.
    pub redis_replicas: u32,
    /// This core's consumer name. A restart keeps the name, so that the relay finds the entries that it has
    /// already read.
    pub core_id: String,
    /// The managed Redis' password.
    pub redis_password: String,
    /// The managed Redis' memory limit, in bytes.
    pub redis_maxmemory_bytes: u64,
    /// The database's URL.
    pub database_url: String,
    /// Maximum number of events in a campaign's outbox.
    pub outbox_max: u64,
    /// Retention of a campaign in Redis after it has ended.
    pub archive_after: Duration,
    /// Time after a claim up to which its hold can be extended.
    pub hold_extension_max: Duration,
    /// Maximum number of requests handled concurrently per listener.
    pub concurrency_max: usize,
    /// Maximum number of claims that one script call decides.
    pub batch_max: usize,
    /// Drain period: core still serves after a signal to stop, but reports that it is not ready.
    pub drain: Duration,
    /// The hosts that webhooks may call.
    pub webhook_hosts: WebhookHosts,
    /// Time limit for delivering an event; after it, the event is parked.
    pub webhook_retry: Duration,
    /// Origin of the claim page, without a trailing slash, for the dashboard's links.
    pub page_url: Option<String>,
    /// The collector of traces; `None` if none are sent.
    pub traces: Option<TraceTarget>,
    /// Whether to serve the database even if it was last served with a different Redis.
    pub take_over: bool,
    /// The credentials of callers.
    pub credentials: Credentials,
    /// A description of the admin token's location; never the token itself.
    pub admin_token_location: String,
}

impl Config {
    /// Checks everything, creates the data directory or makes it private, and generates missing secrets.
    pub(crate) fn load(args: &ServeArgs) -> Result<Self, ConfigError> {
        let data_dir =
            data_dir::prepare(&args.data.data_dir).map_err(|problem| wrong("CLAIMGATE_DATA_DIR", problem))?;
        Self::read(args, Secrets::of(&data_dir))
    }

    /// Returns the configuration that [`Self::load`] would return, without creating or changing anything.
    pub(crate) fn load_read_only(args: &ServeArgs) -> Result<Self, ConfigError> {
        Self::read(args, Secrets::read_only(&data_dir(args)))
    }

    fn read(args: &ServeArgs, secrets: Secrets<'_>) -> Result<Self, ConfigError> {
        // Core does not use the key of users' tokens; it is generated here so that edge and command line share one.
        secrets.user_tokens()?;
        // Both URLs may contain a password.
        let redis_url = value_or_file(args.redis_url.as_deref(), "CLAIMGATE_REDIS_URL")?;
        let database = value_or_file(args.database_url.as_deref(), "CLAIMGATE_DATABASE_URL")?;
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
            archive_after: seconds(
                "CLAIMGATE_ARCHIVE_AFTER_S",
                args.archive_after_s.as_deref(),
                ARCHIVE_AFTER_DEFAULT,
            )?,
            hold_extension_max: seconds(
                "CLAIMGATE_HOLD_EXTENSION_MAX_S",
                args.hold_extension_max_s.as_deref(),
                HOLD_EXTENSION_MAX_DEFAULT,
            )?,
            concurrency_max: optional("CLAIMGATE_CONCURRENCY_MAX", args.concurrency_max.as_deref(), 4096)?,
            batch_max: batch_max(args.batch_max.as_deref())?,
            drain: drain(args.drain_s.as_deref())?,
            webhook_hosts: webhook_hosts(args.webhook_hosts.as_deref())?,
            webhook_retry: seconds(
                "CLAIMGATE_WEBHOOK_RETRY_S",
                args.webhook_retry_s.as_deref(),
                WEBHOOK_RETRY,
            )?,
            page_url: args.page_url.as_deref().filter(|text| !text.is_empty()).map(page_url).transpose()?,
            traces: args.traces.target()?,
            take_over: args.take_over,
            credentials: secrets.credentials()?,
            admin_token_location: secrets.admin_token_location()?,
            data_dir: secrets.data_dir.to_owned(),
        })
    }
}

/// Returns the absolute path of the data directory, whether it exists or not.
pub fn data_dir(args: &ServeArgs) -> PathBuf {
    let directory = &args.data.data_dir;
    directory.canonicalize().or_else(|_| std::path::absolute(directory)).unwrap_or_else(|_| directory.clone())
}

fn address(variable: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    let text = trimmed(text);
    text.parse()
        .map_err(|_| wrong(variable, format!("must be address:port, such as 127.0.0.1:8080, not '{text}'")))
}

fn number<T: std::str::FromStr + PartialOrd + From<u8>>(
    variable: &'static str,
    text: &str,
) -> Result<T, ConfigError> {
    match trimmed(text).parse::<T>() {
        Ok(number) if number >= T::from(1) => Ok(number),
        _ => Err(wrong(variable, format!("must be a whole number, at least 1, not '{text}'"))),
    }
}

fn optional<T: std::str::FromStr + PartialOrd + From<u8>>(
    variable: &'static str,
    text: Option<&str>,
    default: T,
) -> Result<T, ConfigError> {
    text.map_or(Ok(default), |text| number(variable, text))
}

fn seconds(variable: &'static str, text: Option<&str>, default: Duration) -> Result<Duration, ConfigError> {
    Ok(Duration::from_secs(optional(variable, text, default.as_secs())?))
}

fn redis_replicas(args: &ServeArgs, has_redis: bool) -> Result<u32, ConfigError> {
    const VARIABLE: &str = "CLAIMGATE_REDIS_REPLICAS";
    let Some(text) = &args.redis_replicas else { return Ok(0) };
    match trimmed(text).parse() {
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
        let seconds = trimmed(text).parse().ok().filter(|seconds| *seconds <= DRAIN_S_MAX);
        seconds.ok_or_else(|| wrong("CLAIMGATE_DRAIN_S", format!("must be 0 to {DRAIN_S_MAX}, not '{text}'")))
    });
    seconds.map(Duration::from_secs)
}

fn webhook_hosts(list: Option<&str>) -> Result<WebhookHosts, ConfigError> {
    list.unwrap_or_default().parse().map_err(|problem: String| wrong("CLAIMGATE_WEBHOOK_HOSTS", problem))
}

fn page_url(text: &str) -> Result<String, ConfigError> {
    let form = || {
        wrong(
            "CLAIMGATE_PAGE_URL",
            "must be http(s)://HOST[:PORT] without a path, such as https://claims.example.com",
        )
    };
    let url = Url::parse(text).map_err(|_| form())?;
    let origin = url.origin().ascii_serialization();
    // A URL with more than an origin is not equal to its origin.
    let is_origin = matches!(url.scheme(), "http" | "https") && url.as_str() == format!("{origin}/");
    if is_origin { Ok(origin) } else { Err(form()) }
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

/// Returns the URL of a SQLite file, which is created if it does not exist.
pub fn sqlite_url(file: &Path) -> String {
    format!("sqlite://{}?mode=rwc", url_path(file))
}

/// Returns the URL of a SQLite file that is only read.
pub fn sqlite_url_to_read(file: &Path) -> String {
    format!("sqlite://{}?mode=ro", url_path(file))
}

/// Returns the path of `file` encoded for a URL, so that names with special characters survive parsing.
fn url_path(file: &Path) -> String {
    let url = std::path::absolute(file).ok().and_then(|file| Url::from_file_path(file).ok());
    url.map_or_else(|| file.display().to_string(), |url| url.path().to_owned())
}

/// Returns `given`, or the content of the file that `NAME_FILE` names; rejects a value of several lines.
fn value_or_file(given: Option<&str>, variable: &'static str) -> Result<Option<String>, ConfigError> {
    let text = match (given, from_file(variable)?) {
        (Some(_), Some(_)) => {
            return Err(wrong(variable, "is set twice, directly and as a file; use one of them"));
        }
        (given, file) => given.map(|text| trimmed(text).to_owned()).or(file),
    };
    one_line(text.as_deref().unwrap_or_default()).map_err(|problem| wrong(variable, problem))?;
    Ok(text)
}

const USER_ID_KEY: &str = "CLAIMGATE_USER_ID_KEY";

/// Reads the key of user ids, which only `claimgate user-id` needs.
pub fn user_id_key() -> Result<SecretKey, ConfigError> {
    optional_user_id_key()?.ok_or_else(|| {
        wrong(USER_ID_KEY, "is not set; set it to the edge's USER_ID_KEY, or set CLAIMGATE_USER_ID_KEY_FILE")
    })
}

/// Reads the key of user ids, if it is set.
pub fn optional_user_id_key() -> Result<Option<SecretKey>, ConfigError> {
    secret(USER_ID_KEY)?.map(|text| text.parse().map_err(|why| wrong(USER_ID_KEY, why))).transpose()
}

/// Reads the key that signs passes, which only `claimgate pass` needs.
pub fn pass_key() -> Result<NamedKey, ConfigError> {
    const VARIABLE: &str = "CLAIMGATE_PASS_KEY";
    let text = secret(VARIABLE)?.ok_or_else(|| {
        wrong(VARIABLE, "is not set; set it to a key of the edge's PASS_KEYS, or set CLAIMGATE_PASS_KEY_FILE")
    })?;
    text.parse().map_err(|why| wrong(VARIABLE, why))
}

/// Reads a secret from `NAME`, or from the file that `NAME_FILE` names.
fn secret(name: &'static str) -> Result<Option<String>, ConfigError> {
    value_or_file(variable(name)?.as_deref(), name)
}

fn from_file(variable: &'static str) -> Result<Option<String>, ConfigError> {
    let Some(file) = env_var(&format!("{variable}_FILE")) else { return Ok(None) };
    match fs::read_to_string(&file) {
        Ok(text) => Ok(Some(trimmed(&text).to_owned())),
        Err(error) => Err(wrong(variable, format!("its file {}: {error}", file.display()))),
    }
}

/// Returns the trimmed value of the variable `name`.
fn variable(name: &'static str) -> Result<Option<String>, ConfigError> {
    let Some(value) = env_var(name) else { return Ok(None) };
    let text = value.to_str().ok_or_else(|| wrong(name, "is not UTF-8"))?;
    Ok(Some(trimmed(text).to_owned()))
}

/// Returns the environment variable `name` unless it is empty: compose files pass an unset variable as `NAME=`.
pub fn env_var(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| value.to_str().is_none_or(|text| !trimmed(text).is_empty()))
}

/// Trims white space and byte order marks: files end with a line break, and some editors write the mark.
fn trimmed(text: &str) -> &str {
    text.trim_matches(|char: char| char.is_whitespace() || char == '\u{feff}')
}

/// Rejects a secret with a line break: no caller could send it, and a URL's parser would ignore the break.
fn one_line(text: &str) -> Result<(), &'static str> {
    if text.chars().any(char::is_control) {
        Err("contains a line break or another control character")
    } else {
        Ok(())
    }
}

/// The secrets, from the environment or else from the data directory, where they are generated once.
#[derive(Debug, Clone, Copy)]
pub struct Secrets<'a> {
    data_dir: &'a Path,
    may_create: bool,
}

impl<'a> Secrets<'a> {
    /// Returns the secrets in `data_dir`, where missing secrets are generated.
    pub fn of(data_dir: &'a Path) -> Self {
        Self { data_dir, may_create: true }
    }

    /// Returns the secrets in `data_dir` without writing: a missing secret gets a valid value that is not stored.
    pub fn read_only(data_dir: &'a Path) -> Self {
        Self { data_dir, may_create: false }
    }

    pub(crate) fn admin_token(self) -> Result<String, ConfigError> {
        const VARIABLE: &str = "CLAIMGATE_ADMIN_TOKEN";
        const FILE: &str = "admin.token";
        if let Some(token) = secret(VARIABLE)? {
            check_token(&token).map_err(|problem| wrong(VARIABLE, problem))?;
            return Ok(token);
        }
        let token = self.generated(FILE, random_text)?;
        let file = self.data_dir.join(FILE);
        check_token(&token)
            .map_err(|problem| wrong("CLAIMGATE_DATA_DIR", format!("{}: {problem}", file.display())))?;
        Ok(token)
    }

    /// Describes where [`Self::admin_token`] is read from.
    fn admin_token_location(self) -> Result<String, ConfigError> {
        const VARIABLE: &str = "CLAIMGATE_ADMIN_TOKEN";
        Ok(match (secret(VARIABLE)?, std::env::var_os(format!("{VARIABLE}_FILE"))) {
            (None, _) => self.data_dir.join("admin.token").display().to_string(),
            (Some(_), Some(file)) => Path::new(&file).display().to_string(),
            (Some(_), None) => VARIABLE.to_owned(),
        })
    }

    /// Reads the credentials of callers from the environment and the current secret files.
    pub(crate) fn credentials(self) -> Result<Credentials, ConfigError> {
        Ok(Credentials { tokens: tokens(&self.admin_token()?)?, edge_keys: self.edge_keys()? })
    }

    fn edge_keys(self) -> Result<Vec<NamedKey>, ConfigError> {
        const VARIABLE: &str = "CLAIMGATE_EDGE_KEYS";
        let list = match secret(VARIABLE)? {
            Some(list) => list,
            None => self.generated("edge.key", || Ok(format!("k1:{}", random_text()?)))?,
        };
        list.split(',').map(|item| item.trim().parse().map_err(|error| wrong(VARIABLE, error))).collect()
    }

    /// Returns the key that signs users' tokens and the rules that they must meet.
    pub(crate) fn user_tokens(self) -> Result<UserTokens, ConfigError> {
        const VARIABLE: &str = "CLAIMGATE_USER_JWT_KEY";
        let text = match secret(VARIABLE)? {
            Some(text) => text,
            None => self.generated("user-jwt.key", random_text)?,
        };
        let or_default = |name| Ok(variable(name)?.unwrap_or_else(|| "claimgate".to_owned()));
        Ok(UserTokens {
            key: text.parse::<SecretKey>().map_err(|error| wrong(VARIABLE, error))?,
            rules: TokenRules::new(
                or_default("CLAIMGATE_USER_JWT_ISS")?,
                or_default("CLAIMGATE_USER_JWT_AUD")?,
            ),
        })
    }

    /// Returns an error for each invalid secret.
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

    /// Returns the content of a file in the data directory, generated with `make` if it does not exist. Only
    /// core's user can read the file.
    fn generated(
        self,
        name: &str,
        make: impl FnOnce() -> Result<String, getrandom::Error>,
    ) -> Result<String, ConfigError> {
        let file = self.data_dir.join(name);
        let failed =
            |error: &dyn fmt::Display| wrong("CLAIMGATE_DATA_DIR", format!("{}: {error}", file.display()));
        match fs::read_to_string(&file) {
            Ok(text) if trimmed(&text).is_empty() => {
                return Err(failed(&"is empty: remove the file, and core generates another"));
            }
            Ok(text) => {
                let text = trimmed(&text);
                return one_line(text).map(|()| text.to_owned()).map_err(|problem| failed(&problem));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&error)),
        }
        let text = make().map_err(|error| failed(&error))?;
        if !self.may_create {
            return Ok(text);
        }
        // Written atomically: half a secret would be taken for the whole secret at the next start.
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

/// Reads the tokens of back ends and admins; `admin` is the value of `CLAIMGATE_ADMIN_TOKEN`.
fn tokens(admin: &str) -> Result<Tokens, ConfigError> {
    let mut tokens = Tokens::default();
    tokens.add(Caller::admin(), admin);
    let list = |variable| Ok(secret(variable)?.unwrap_or_default());
    tokens.add_back_ends(&list(API_TOKENS)?).map_err(|error| wrong(API_TOKENS, error))?;
    tokens.add_admins(&list(ADMIN_TOKENS)?).map_err(|error| wrong(ADMIN_TOKENS, error))?;
    Ok(tokens)
}

/// Number of bytes of [`random_text`].
pub(crate) const RANDOM_BYTES: usize = 32;

/// Returns random bytes as base64url.
pub(crate) fn random_text() -> Result<String, getrandom::Error> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Returns half of the available memory in bytes, or 1 GiB if it is unknown.
fn half_of_memory() -> u64 {
    MemoryLimit::read().map_or(1 << 30, |limit| limit.bytes / 2)
}

#[cfg(test)]
mod tests;
