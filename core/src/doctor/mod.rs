//! What is wrong or risky with a set-up: each finding one line, with what to do. `claimgate doctor` prints them, `serve` logs them.
//!
//! It only looks: nothing is written, to no file, no Redis and no database.

mod belonging;
mod database;
mod redis;
mod system;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::config::Config;
use crate::store::redis::managed;

/// The longest that Redis, or the database, is waited for in all.
const WAIT: Duration = Duration::from_secs(5);
/// Clocks that are further apart than this are a warning, …
const CLOCKS_APART_MS_MAX: u64 = 1_000;
/// … and further than this, windows and signatures are not what they say.
const CLOCKS_BROKEN_MS: u64 = 30_000;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// What is promised does not hold with this.
    Breaks,
    /// It holds; but something may go worse than it need.
    Warning,
}

/// Something to be repaired.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What was looked at, as a name that stays: `redis.appendonly`.
    pub check: &'static str,
    /// What is wrong, and what comes of it.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl Finding {
    fn breaks(check: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Breaks, check, problem: problem.into(), remedy: remedy.into() }
    }

    fn warning(check: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, check, problem: problem.into(), remedy: remedy.into() }
    }

    /// A value of the configuration with which `serve` would not start.
    pub fn of_configuration(error: &impl fmt::Display) -> Self {
        Self::breaks("configuration", error.to_string(), "set it right: core does not start with it")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

/// All that was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// What could not be looked at, and why that is no fault.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether anything promised does not hold.
    pub fn breaks(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Breaks)
    }
}

/// Which Redis there is.
#[derive(Debug)]
enum Redis {
    /// Core's own: where it listens while core runs, and its memory limit in bytes.
    Own { url: Option<String>, maxmemory_bytes: u64 },
    /// That of `CLAIMGATE_REDIS_URL`.
    Given { url: String },
}

/// Where claims are registered.
#[derive(Debug)]
enum Database {
    Sqlite(PathBuf),
    Postgres(String),
}

/// What is looked at: the parts of a configuration that may be risky.
#[derive(Debug)]
pub struct Setup {
    data_dir: PathBuf,
    redis: Redis,
    database: Database,
}

impl Setup {
    /// The set-up that `serve` has, or would have.
    pub fn of(config: &Config) -> Self {
        let redis = match &config.redis_url {
            Some(url) => Redis::Given { url: url.clone() },
            None => Redis::Own {
                url: managed::url(&config.data_dir, &config.redis_password),
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

    /// Where Redis listens; `None` when it is core's own and not running.
    pub fn redis_url(&self) -> Option<&str> {
        match &self.redis {
            Redis::Own { url, .. } => url.as_deref(),
            Redis::Given { url } => Some(url),
        }
    }
}

/// Looks at everything; takes a few milliseconds, and 10 s when neither Redis nor the database answers.
pub async fn examine(setup: &Setup) -> Report {
    let mut report = Report::default();
    system::examine(setup, &mut report);
    redis::examine(&setup.redis, &mut report).await;
    database::examine(&setup.database, &mut report).await;
    report.findings.extend(belonging::examine(setup).await);
    report.findings.sort_by_key(|finding| finding.severity);
    report
}

/// What comes of a clock that shows `theirs_ms`, asked for between `before_ms` and `after_ms` of our own.
fn clocks(
    check: &'static str,
    whose: &str,
    theirs_ms: i64,
    (before_ms, after_ms): (i64, i64),
) -> Option<Finding> {
    // Within the time that the answer took nothing can be told.
    let apart_ms = (before_ms - theirs_ms).max(theirs_ms - after_ms).max(0).unsigned_abs();
    let ahead = if theirs_ms > after_ms { "ahead of" } else { "behind" };
    let seconds = apart_ms / 1000;
    let problem = format!("{whose} clock is {seconds} s {ahead} this machine's");
    let remedy = "synchronise both (chrony, systemd-timesyncd)";
    if apart_ms > CLOCKS_BROKEN_MS {
        Some(Finding::breaks(
            check,
            format!("{problem}: campaigns open and close at another time than they say"),
            remedy,
        ))
    } else if apart_ms > CLOCKS_APART_MS_MAX {
        Some(Finding::warning(check, problem, remedy))
    } else {
        None
    }
}
