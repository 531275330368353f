//! The server behind all connections of a store. Classifies the server's errors, and detects outdated
//! connections.
//!
//! An error of the server itself, such as "read-only transaction" or "terminating connection", affects every
//! connection opened before it: the server has been replaced, or soon will be. All of these connections are
//! dropped, in every pool.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use sqlx::{AnyConnection, Error, Row as _};
use tokio::time::{Instant, timeout_at};

use super::address;
use crate::domain::store_fault::{FaultKind, StoreFault};

/// The time limit for opening a connection. A caller's own limit may be shorter.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Period after a failed attempt to connect in which further attempts fail immediately. Each attempt would
/// cost the server a process, even if it has no free connection.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// The minimum time left for an attempt to connect. With less time, a failure would say nothing about the
/// server.
const CONNECT_MIN: Duration = Duration::from_millis(250);
/// Period in which SQL counts as down after it refused a statement. The relay retries at shorter intervals.
const FAULT_LASTS: Duration = Duration::from_secs(3);

/// The idle connections of one pool.
pub(super) trait IdleConnections: Send + Sync {
    fn drop_idle(&self);

    /// Drops the connection that was idle for longest. Returns `false` if none is idle.
    fn drop_one_idle(&self) -> bool;
}

/// The state shared by all connections of a store.
#[derive(Debug)]
pub(crate) struct Server {
    url: Arc<str>,
    /// The current generation. Connections of earlier generations are no longer used.
    generation: AtomicU64,
    pools: Mutex<Vec<Weak<dyn IdleConnections>>>,
    connect_failure: Mutex<Option<(Instant, StoreFault)>>,
    fault: Mutex<Option<(Instant, StoreFault)>>,
}

impl Server {
    /// Creates the state for the server at `url`, without connecting.
    pub(crate) fn at(url: &str) -> Self {
        Self {
            url: url.into(),
            generation: AtomicU64::new(0),
            pools: Mutex::default(),
            connect_failure: Mutex::default(),
            fault: Mutex::default(),
        }
    }

    /// Returns true for a SQLite file.
    pub(super) fn is_file(&self) -> bool {
        is_file(&self.url)
    }

    /// Returns the current generation. Connections of earlier generations must not be used.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn add(&self, pool: Weak<dyn IdleConnections>) {
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }

    /// Returns an error if a caller with this deadline should not try to connect now.
    ///
    /// # Errors
    /// [`Error::PoolTimedOut`] if the caller has too little time left; the last error right after a failed attempt.
    pub(super) fn may_connect(&self, deadline: Instant) -> Result<(), Error> {
        if let Some((at, fault)) = &*self.connect_failure.lock()
            && at.elapsed() < CONNECT_PAUSE
        {
            return Err(failed(fault.clone()));
        }
        if deadline < Instant::now() + CONNECT_MIN { Err(Error::PoolTimedOut) } else { Ok(()) }
    }

    /// Opens and prepares a connection that can write. Returns it with its generation.
    ///
    /// # Errors
    /// The errors of [`Self::may_connect`]; otherwise the error of the attempt.
    pub(super) async fn connect(&self, deadline: Instant) -> Result<(AnyConnection, u64), Error> {
        self.may_connect(deadline)?;
        let (generation, now) = (self.generation(), Instant::now());
        let made = timeout_at(deadline.min(now + CONNECT_MAX), connect(&self.url)).await;
        // An attempt that ended at its caller's limit is not recorded: the next caller may have more time.
        let made = made.map_err(|_| no_connection())?;
        *self.connect_failure.lock() =
            made.as_ref().err().map(|error| (Instant::now(), self.fault_of(error)));
        if let Err(error) = &made
            && self.ends_sessions(error)
        {
            self.drop_all();
        }
        Ok((made?, generation))
    }

    /// Records the error of a statement. Returns true if its connection can be used again.
    pub(super) fn record_error(&self, error: &Error) -> bool {
        if self.is_at_fault(error) {
            self.record_fault(error);
        }
        if self.ends_sessions(error) {
            self.drop_all();
            return false;
        }
        match error {
            Error::Io(_)
            | Error::Tls(_)
            | Error::Protocol(_)
            | Error::WorkerCrashed
            | Error::PoolTimedOut => false,
            Error::Database(_) => match self.code(error) {
                Code::State(state) => {
                    !["25P03", "25P04", "57P05"].contains(&&*state) && !state.starts_with("58")
                }
                Code::File(code) => ![IO, CORRUPT, CANNOT_OPEN, NOT_A_DATABASE].contains(&code),
                Code::None => true,
            },
            _ => true,
        }
    }

    /// Records that a pool has no connection and cannot open one. Drops an idle connection of another pool to
    /// make room: if the role allows few connections, idle connections for callers must not block the relay.
    pub(super) fn make_room_for_pool(&self, error: &Error) {
        self.record_fault(error);
        for pool in self.all_pools() {
            if pool.drop_one_idle() {
                return;
            }
        }
    }

    /// Returns the fault that the server reported within [`FAULT_LASTS`], if any.
    pub(super) fn recent_fault(&self) -> Option<StoreFault> {
        let fault = self.fault.lock();
        fault.as_ref().filter(|(at, _)| at.elapsed() < FAULT_LASTS).map(|(_, fault)| fault.clone())
    }

    /// Converts an `error` to the fault that it shows.
    pub(crate) fn fault_of(&self, error: &Error) -> StoreFault {
        if let Error::Io(error) = error
            && let Some(fault) = error.get_ref().and_then(|inner| inner.downcast_ref::<StoreFault>())
        {
            return fault.clone();
        }
        let kind = match self.code(error) {
            Code::State(state) => kind_of_state(&state),
            Code::File(code) => kind_of_file(code),
            Code::None if matches!(error, Error::Io(_) | Error::PoolTimedOut | Error::WorkerCrashed) => {
                FaultKind::NoAnswer
            }
            Code::None => FaultKind::Refused,
        };
        let message = match error {
            Error::Database(error) => error.message().to_owned(),
            Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        StoreFault { kind, message }
    }

    /// Returns true if `error` says that the server has no free connection.
    pub(super) fn lacks_connections(&self, error: &Error) -> bool {
        self.fault_of(error).kind == FaultKind::NoConnections
    }

    fn record_fault(&self, error: &Error) {
        *self.fault.lock() = Some((Instant::now(), self.fault_of(error)));
    }

    /// Drops all existing connections: idle connections now, and connections in use when they are put back.
    fn drop_all(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        for pool in self.all_pools() {
            pool.drop_idle();
        }
    }

    fn all_pools(&self) -> Vec<Arc<dyn IdleConnections>> {
        self.pools.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns true if the cause of the error is the server, and not the statement.
    fn is_at_fault(&self, error: &Error) -> bool {
        match self.code(error) {
            Code::State(state) => {
                ["53", "58", "XX"].iter().any(|class| state.starts_with(class))
                    || ["25006", "42501"].contains(&&*state)
            }
            Code::File(code) => {
                [PERMISSION, READ_ONLY, IO, CORRUPT, FULL, CANNOT_OPEN, NOT_A_DATABASE].contains(&code)
            }
            Code::None => false,
        }
    }

    /// Returns true if the error ends all sessions with the server, and not only this session.
    fn ends_sessions(&self, error: &Error) -> bool {
        match self.code(error) {
            Code::State(state) => {
                ["25006", "57P01", "57P02", "57P03"].contains(&&*state) || state.starts_with("08")
            }
            Code::File(_) | Code::None => false,
        }
    }

    fn code(&self, error: &Error) -> Code {
        let Some(code) = error.as_database_error().and_then(sqlx::error::DatabaseError::code) else {
            return Code::None;
        };
        if self.is_file() {
            // The last byte of an extended result code is the primary result code.
            code.parse::<i32>().map_or(Code::None, |code| Code::File(code & 0xff))
        } else {
            Code::State(code.into_owned())
        }
    }
}

/// The code of a database error.
enum Code {
    /// PostgreSQL's SQLSTATE.
    State(String),
    /// SQLite's result code.
    File(i32),
    None,
}

const PERMISSION: i32 = 3;
const BUSY: i32 = 5;
const READ_ONLY: i32 = 8;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANNOT_OPEN: i32 = 14;
const NOT_A_DATABASE: i32 = 26;

fn kind_of_state(state: &str) -> FaultKind {
    match state {
        "25006" => FaultKind::ReadOnly,
        "53300" => FaultKind::NoConnections,
        "53100" | "53200" => FaultKind::NoSpace,
        "57P01" | "57P02" | "57P03" => FaultKind::Restarting,
        state if state.starts_with("08") => FaultKind::NoAnswer,
        _ => FaultKind::Refused,
    }
}

fn kind_of_file(code: i32) -> FaultKind {
    match code {
        READ_ONLY => FaultKind::ReadOnly,
        FULL => FaultKind::NoSpace,
        BUSY => FaultKind::NoAnswer,
        _ => FaultKind::Refused,
    }
}

/// Returns true if SQLite is busy: another writer has locked the file.
pub(super) fn is_busy(code: &str) -> bool {
    code.len() < 5 && code.parse::<i32>().is_ok_and(|code| code & 0xff == BUSY)
}

/// Returns true for the address of a SQLite file.
pub(super) fn is_file(url: &str) -> bool {
    url.starts_with("sqlite:")
}

/// Opens and prepares a connection to a server that accepts writes.
async fn connect(url: &str) -> Result<AnyConnection, Error> {
    let mut connection = open_writable(url).await?;
    prepare(&mut connection).await?;
    Ok(connection)
}

/// Opens a connection to a server that accepts writes, if any address leads to one; otherwise to any server.
pub(super) async fn open(url: &str) -> Result<AnyConnection, Error> {
    match open_writable(url).await {
        Ok(connection) => Ok(connection),
        Err(_) => address::open(url).await,
    }
}

/// Opens a connection to a server that accepts writes. If the first server does not, or refuses the connection,
/// tries each address of its name, as `target_session_attrs=read-write` does in other clients.
pub(super) async fn open_writable(url: &str) -> Result<AnyConnection, Error> {
    let refusal = match address::open(url).await {
        Ok(mut first) => match require_writable(&mut first).await {
            Ok(()) => return Ok(first),
            Err(refusal) => refusal,
        },
        Err(refusal @ Error::Database(_)) => refusal,
        Err(error) => return Err(error),
    };
    let others = address::each_address(url).await;
    let attempts = others.iter().map(|url| async move {
        let mut connection = address::open(url).await?;
        require_writable(&mut connection).await?;
        Ok::<_, Error>(connection)
    });
    let mut attempts: FuturesUnordered<_> = attempts.collect();
    while let Some(attempt) = attempts.next().await {
        if attempt.is_ok() {
            return attempt;
        }
    }
    Err(refusal)
}

/// Rejects a server that does not accept writes. Data on a standby may be outdated.
async fn require_writable(connection: &mut AnyConnection) -> Result<(), Error> {
    if connection.backend_name() == "SQLite" {
        return Ok(());
    }
    let message = match writable(connection).await? {
        Writable::Yes => return Ok(()),
        Writable::ReadOnly => "the server is read-only (default_transaction_read_only): it accepts no writes",
        Writable::Standby => "the server is a standby: it accepts no writes",
    };
    Err(failed(StoreFault { kind: FaultKind::ReadOnly, message: message.to_owned() }))
}

/// Whether PostgreSQL accepts writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writable {
    Yes,
    /// Sessions are read-only by default.
    ReadOnly,
    Standby,
}

pub(super) async fn writable(connection: &mut AnyConnection) -> Result<Writable, Error> {
    let row = sqlx::raw_sql(
        "SELECT CAST(pg_is_in_recovery() AS INTEGER), \
         CASE current_setting('transaction_read_only') WHEN 'on' THEN 1 ELSE 0 END",
    );
    let row = row.fetch_one(connection).await?;
    Ok(match (row.try_get::<i32, _>(0)?, row.try_get::<i32, _>(1)?) {
        (0, 0) => Writable::Yes,
        (0, _) => Writable::ReadOnly,
        _ => Writable::Standby,
    })
}

/// Limits that PostgreSQL enforces if core or the network fails, so that an abandoned transaction does not
/// keep a campaign's row locked. `enable_sort = off` prefers indexes: right after a restore there are no
/// statistics, and each page of a load would otherwise sort all remaining claims. Parameters that the server
/// does not support are left out.
const SERVER_SETTINGS: &str = "SELECT set_config(name, wanted.value, false) FROM (VALUES \
    ('statement_timeout', '60s'), ('lock_timeout', '10s'), ('idle_in_transaction_session_timeout', '5s'), \
    ('client_connection_check_interval', '1s'), ('tcp_user_timeout', '10s'), ('tcp_keepalives_idle', '5'), \
    ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3'), ('enable_sort', 'off'), \
    ('default_transaction_isolation', 'read committed')) AS wanted (parameter, value) \
    JOIN pg_settings ON name = parameter";

/// Settings of SQLite. `temp_store` keeps the pages for rolling back a statement in memory instead of a
/// temporary file. `wal_autocheckpoint` is large (16,384 pages are 64 MiB): users are random, so with rare
/// checkpoints fewer pages are copied twice. Both settings save an eighth of the relay's time. `cache_size`
/// is 16 MiB; reading a page outside this cache takes a system call.
const PRAGMAS: [&str; 7] = [
    "journal_mode = WAL",
    "synchronous = FULL",
    "busy_timeout = 1200",
    "foreign_keys = ON",
    "temp_store = MEMORY",
    "wal_autocheckpoint = 16384",
    "cache_size = -16384",
];

/// Prepares a new connection. PostgreSQL gets limits and planner settings. SQLite gets readers that run
/// concurrently with the writer, commits that survive a power failure, and a lock timeout that is shorter
/// than any caller's limit.
pub async fn prepare(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    if connection.backend_name() != "SQLite" {
        sqlx::raw_sql(SERVER_SETTINGS).execute(&mut *connection).await?;
        return Ok(());
    }
    for pragma in PRAGMAS {
        let statement = sqlx::AssertSqlSafe(format!("PRAGMA {pragma}"));
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    Ok(())
}

fn failed(fault: StoreFault) -> Error {
    Error::Io(io::Error::other(fault))
}

pub(super) fn no_connection() -> Error {
    failed(StoreFault {
        kind: FaultKind::NoAnswer,
        message: "cannot connect within the time limit: the server does not answer, or a pooler in front of it has no free connection".to_owned(),
    })
}
