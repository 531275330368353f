//! A PostgreSQL of the test's own: a private cluster on a unix socket, gone when dropped.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tempfile::TempDir;

use crate::process::{Process, Signal, children_of, command, free_address, is_slow, runs, signal_pid};
use crate::wait::{SOON, eventually};

/// Who may start a server when the tests run as root, which PostgreSQL refuses to be.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];
const OWNER: &str = "claimgate";

/// A running cluster; dropping it kills it and removes its files.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    programs: PathBuf,
    directory: TempDir,
    port: u16,
    settings: Vec<(String, String)>,
}

impl Postgres {
    /// Starts one; `Err` says why this machine cannot.
    pub async fn start() -> Result<Self, String> {
        Self::start_with(&[]).await
    }

    /// The same with further settings (`("listen_addresses", "127.0.0.1")`); `Err` says why this machine cannot.
    pub async fn start_with(settings: &[(&str, &str)]) -> Result<Self, String> {
        let programs = programs().ok_or("no initdb in /usr/lib/postgresql or on PATH")?;
        let directory =
            tempfile::Builder::new().prefix("cgp-").tempdir().map_err(|error| error.to_string())?;
        hand_over(directory.path())?;
        let data = directory.path().join("data");
        let mut initdb = as_unprivileged(&programs.join("initdb"))?;
        initdb.args([
            "--no-sync",
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--locale",
            "C",
            "--username",
            OWNER,
        ]);
        let made = initdb.arg("--pgdata").arg(&data).current_dir(directory.path()).output();
        let made = made.map_err(|error| format!("initdb: {error}"))?;
        if !made.status.success() {
            return Err(format!("initdb: {}", String::from_utf8_lossy(&made.stderr).trim()));
        }
        let settings: Vec<_> =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let port = free_address().port();
        let process = launch(&programs, directory.path(), port, &settings)?;
        let server = Self { process, programs, directory, port, settings };
        server.answers().await;
        Ok(server)
    }

    /// A new, empty database; its address for `CLAIMGATE_DATABASE_URL`.
    pub async fn database(&self, name: &str) -> String {
        let pool = self.pool("postgres");
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(create).execute(&pool).await.expect("CREATE DATABASE");
        pool.close().await;
        self.url(name)
    }

    /// The address of the database `name`.
    pub fn url(&self, name: &str) -> String {
        format!("postgres://{OWNER}@localhost:{}/{name}?host={}", self.port, self.directory.path().display())
    }

    /// The unix socket that it listens on.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join(format!(".s.PGSQL.{}", self.port))
    }

    /// The address of a database of its that is reached at `address`.
    pub fn url_at(address: SocketAddr, database: &str) -> String {
        format!("postgres://{OWNER}@{address}/{database}?sslmode=disable")
    }

    /// Where it listens on whatever `listen_addresses` names.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of its programs.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Connections to a database, made when needed.
    pub fn pool(&self, database: &str) -> PgPool {
        let options = PgConnectOptions::new_without_pgpass();
        let options =
            options.socket(self.directory.path()).port(self.port).username(OWNER).database(database);
        PgPoolOptions::new().max_connections(4).connect_lazy_with(options)
    }

    /// Begins to time the statements of a database. The server has to have been started with
    /// `("shared_preload_libraries", "pg_stat_statements")`.
    pub async fn time_statements(&self, database: &str) {
        let done = sqlx::query("CREATE EXTENSION pg_stat_statements").execute(&self.pool(database)).await;
        done.expect("pg_stat_statements");
    }

    /// How long the server has worked on statements of that database with `word` in them, in seconds.
    pub async fn seconds_on(&self, database: &str, word: &str) -> f64 {
        const TIMES: &str = "SELECT coalesce(sum(total_exec_time), 0)::float8 / 1000 FROM pg_stat_statements \
            WHERE query LIKE '%' || $1 || '%' AND query NOT LIKE '%pg_stat_statements%' \
            AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let seconds = sqlx::query_scalar(TIMES).bind(word).fetch_one(&self.pool(database)).await;
        seconds.expect("pg_stat_statements")
    }

    /// SIGSTOP to the server and all that it has forked.
    pub fn freeze(&self) {
        self.to_all(Signal::STOP);
    }

    /// SIGCONT to all of them.
    pub fn thaw(&self) {
        self.to_all(Signal::CONT);
    }

    /// `pg_ctl stop -m immediate`: no checkpoint, no goodbye; waits until it has ended.
    pub async fn stop_immediately(&mut self) {
        self.process.signal(Signal::QUIT);
        self.process.wait(SOON).await;
    }

    /// The same cluster again, after [`Self::stop_immediately`]; waits until it answers.
    pub async fn start_again(&mut self) {
        let launched = launch(&self.programs, self.directory.path(), self.port, &self.settings);
        self.process = launched.expect("PostgreSQL has run before");
        self.answers().await;
    }

    fn to_all(&self, signal: Signal) {
        let server = self.process.pid();
        // The server first, so that it forks nothing meanwhile.
        signal_pid(server, signal);
        for pid in children_of(server) {
            signal_pid(pid, signal);
        }
    }

    async fn answers(&self) {
        let pool = self.pool("postgres");
        eventually(SOON, || async {
            sqlx::query("SELECT 1").execute(&pool).await.map_err(|error| format!("{error}; {}", self.log()))
        })
        .await;
        pool.close().await;
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    /// Killed, a postmaster leaves its children to find out by themselves; asked first, it takes them along.
    fn drop(&mut self) {
        self.thaw();
        let children = children_of(self.process.pid());
        self.process.kill();
        for pid in children.into_iter().filter(|pid| runs(*pid)) {
            signal_pid(pid, Signal::KILL);
        }
    }
}

/// Gives `path` to the user that the server runs as, which refuses a key file that another user owns.
pub fn hand_over(path: &Path) -> Result<(), String> {
    let Some((_, uid, gid)) = unprivileged()? else { return Ok(()) };
    chown(path, Some(uid), Some(gid)).map_err(|error| format!("{}: {error}", path.display()))
}

fn launch(
    programs: &Path,
    directory: &Path,
    port: u16,
    settings: &[(String, String)],
) -> Result<Process, String> {
    let log = fs::OpenOptions::new().create(true).append(true).open(directory.join("log"));
    let log = log.map_err(|error| error.to_string())?;
    let mut server = as_unprivileged(&programs.join("postgres"))?;
    server.arg("-D").arg(directory.join("data")).arg("-k").arg(directory).args(["-h", "", "-N", "40"]);
    server.arg("-p").arg(port.to_string());
    // What a killed server has written is in the kernel's hands, which outlive it; only the power may not go out. On a slow
    // disk it is to wait for its syncs all the same.
    let fsync = if is_slow() { "fsync=on" } else { "fsync=off" };
    server.args(["-c", fsync, "-c", "shared_buffers=32MB"]).current_dir(directory);
    server.args(settings.iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]));
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(Process::start(server))
}

/// The newest of Debian's versions, or whatever is on PATH.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut directories: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    directories.sort();
    directories.reverse();
    directories.extend(std::env::split_paths(&std::env::var_os("PATH")?));
    directories
        .into_iter()
        .find(|directory| directory.join("initdb").is_file() && directory.join("postgres").is_file())
}

/// Name, user id and group id to run under; `None` when the tests do not run as root.
fn unprivileged() -> Result<Option<(String, u32, u32)>, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let accounts = fs::read_to_string("/etc/passwd").map_err(|error| format!("/etc/passwd: {error}"))?;
    let find = |name: &&str| {
        let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
        let fields: Vec<_> = line.split(':').collect();
        Some(((*name).to_owned(), fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    UNPRIVILEGED
        .iter()
        .find_map(find)
        .map(Some)
        .ok_or_else(|| format!("no account {UNPRIVILEGED:?} to run as"))
}

/// Changing the user takes the order to die with the test away, so it is given again.
fn as_unprivileged(program: &Path) -> Result<Command, String> {
    let Some((_, uid, gid)) = unprivileged()? else { return Ok(command(program)) };
    let mut command = command(Path::new("setpriv"));
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).arg("--clear-groups");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    Ok(command)
}
