//! A private PostgreSQL cluster on a unix socket, removed when dropped.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tempfile::TempDir;

use crate::process::{Process, Signal, children_of, command, free_address, runs, signal_pid};
use crate::time_limits::{SOON, is_slow};
use crate::wait::eventually;

/// Accounts that may run the server if the tests run as root, which PostgreSQL refuses.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];
const OWNER: &str = "claimgate";

/// A running cluster; dropping the value kills the cluster and removes its files.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    programs: PathBuf,
    directory: TempDir,
    port: u16,
    settings: Vec<(String, String)>,
}

impl Postgres {
    /// Starts a cluster; `Err` explains why this machine cannot.
    pub async fn start() -> Result<Self, String> {
        Self::start_with(&[]).await
    }

    /// Starts a cluster with additional settings (`("listen_addresses", "127.0.0.1")`); `Err` explains why
    /// this machine cannot.
    pub async fn start_with(settings: &[(&str, &str)]) -> Result<Self, String> {
        let programs = programs().ok_or("no initdb in /usr/lib/postgresql or on PATH")?;
        let directory = private()?;
        copy(&template(&programs)?, &directory.path().join("data"))?;
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self::launch_in(directory, programs, settings.collect()).await
    }

    /// Launches the cluster whose files are in `directory`.
    async fn launch_in(
        directory: TempDir,
        programs: PathBuf,
        settings: Vec<(String, String)>,
    ) -> Result<Self, String> {
        let port = free_address().port();
        let process = launch(&programs, directory.path(), port, &settings)?;
        let server = Self { process, programs, directory, port, settings };
        server.answers().await;
        Ok(server)
    }

    /// Starts a hot standby that follows this cluster, with the same settings; `Err` explains why this
    /// machine cannot.
    pub async fn standby(&self) -> Result<Self, String> {
        let directory = private()?;
        let mut copy = as_unprivileged(&self.programs.join("pg_basebackup"))?;
        copy.arg("--host").arg(self.directory.path()).args(["--port", &self.port.to_string()]);
        copy.args(["--username", OWNER, "--checkpoint", "fast", "--no-sync", "--write-recovery-conf"]);
        run(copy.arg("--pgdata").arg(directory.path().join("data")), directory.path())?;
        Self::launch_in(directory, self.programs.clone(), self.settings.clone()).await
    }

    /// Creates an empty database; returns its URL for `CLAIMGATE_DATABASE_URL`.
    pub async fn database(&self, name: &str) -> String {
        let pool = self.pool("postgres");
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(create).execute(&pool).await.expect("CREATE DATABASE");
        pool.close().await;
        self.url(name)
    }

    /// Creates an empty database that sorts strings by an ICU locale, such as `en-US`; returns its URL.
    pub async fn database_sorted(&self, name: &str, locale: &str) -> String {
        let create = format!(
            "CREATE DATABASE {name} ENCODING 'UTF8' LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE '{locale}' TEMPLATE template0"
        );
        self.run("postgres", &[&create]).await;
        self.url(name)
    }

    /// Returns the URL of the database `name`.
    pub fn url(&self, name: &str) -> String {
        format!("postgres://{OWNER}@localhost:{}/{name}?host={}", self.port, self.directory.path().display())
    }

    /// Returns the unix socket on which the server listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join(format!(".s.PGSQL.{}", self.port))
    }

    /// Returns the URL of `database` at the TCP address `address`.
    pub fn url_at(address: SocketAddr, database: &str) -> String {
        format!("postgres://{OWNER}@{address}/{database}?sslmode=disable")
    }

    /// Returns the port on the addresses that `listen_addresses` names.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the directory of the server's files and socket.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the directory of PostgreSQL's programs.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Returns a lazy connection pool for a database.
    pub fn pool(&self, database: &str) -> PgPool {
        let options = PgConnectOptions::new_without_pgpass();
        let options =
            options.socket(self.directory.path()).port(self.port).username(OWNER).database(database);
        PgPoolOptions::new().max_connections(4).connect_lazy_with(options)
    }

    /// Starts timing the statements of a database. The server must have been started with
    /// `("shared_preload_libraries", "pg_stat_statements")`.
    pub async fn time_statements(&self, database: &str) {
        let done = sqlx::query("CREATE EXTENSION pg_stat_statements").execute(&self.pool(database)).await;
        done.expect("pg_stat_statements");
    }

    /// Returns the time that the server spent on statements that contain `word` in `database`, in seconds.
    pub async fn seconds_on(&self, database: &str, word: &str) -> f64 {
        const TIMES: &str = "SELECT coalesce(sum(total_exec_time), 0)::float8 / 1000 FROM pg_stat_statements \
            WHERE query LIKE '%' || $1 || '%' AND query NOT LIKE '%pg_stat_statements%' \
            AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let seconds = sqlx::query_scalar(TIMES).bind(word).fetch_one(&self.pool(database)).await;
        seconds.expect("pg_stat_statements")
    }

    /// Sends SIGSTOP to the server and all its processes.
    pub fn freeze(&self) {
        self.to_all(Signal::STOP);
    }

    /// Sends SIGCONT to the server and all its processes.
    pub fn thaw(&self) {
        self.to_all(Signal::CONT);
    }

    /// Stops the server as `pg_ctl stop -m immediate` does, without a checkpoint; waits for its exit.
    pub async fn stop_immediately(&mut self) {
        self.process.signal(Signal::QUIT);
        self.process.wait(SOON).await;
    }

    /// Requests a shutdown: `TERM` waits until no connection is left (`pg_ctl stop -m smart`), `INT` does not
    /// (`-m fast`).
    pub fn stop(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until the server has ended.
    pub async fn has_ended(&mut self) {
        self.process.wait(SOON).await;
    }

    /// Runs statements as the superuser, one at a time.
    pub async fn run(&self, database: &str, statements: &[&str]) {
        let pool = self.pool(database);
        for statement in statements {
            let done = sqlx::raw_sql(sqlx::AssertSqlSafe((*statement).to_owned())).execute(&pool).await;
            done.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        pool.close().await;
    }

    /// Restarts a cluster that has ended; waits until the server answers.
    pub async fn start_again(&mut self) {
        let launched = launch(&self.programs, self.directory.path(), self.port, &self.settings);
        self.process = launched.expect("PostgreSQL has run before");
        self.answers().await;
    }

    fn to_all(&self, signal: Signal) {
        let server = self.process.pid();
        // Signal the server first, so that it starts no new children.
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

    /// The id of the server's System V shared memory segment, which is on the seventh line of its lock file;
    /// `None` if the server has ended.
    pub fn shared_memory(&self) -> Option<String> {
        let lock = fs::read_to_string(self.directory.path().join("data/postmaster.pid")).ok()?;
        lock.lines().nth(6)?.split_whitespace().last().map(str::to_owned)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    /// Kills the children too, and removes the shared memory: after SIGKILL the server can do neither.
    fn drop(&mut self) {
        self.thaw();
        let children = children_of(self.process.pid());
        let segment = self.shared_memory();
        self.process.kill();
        for pid in children.into_iter().filter(|pid| runs(*pid)) {
            signal_pid(pid, Signal::KILL);
        }
        // A segment that remains counts against a limit of the machine (`kernel.shmmni`) until it restarts.
        if let Some(segment) = segment {
            let _ = Command::new("ipcrm").args(["-m", &segment]).status();
        }
    }
}

/// Creates a directory that the server can use.
pub(crate) fn private() -> Result<TempDir, String> {
    let directory = tempfile::Builder::new().prefix("cgp-").tempdir().map_err(|error| error.to_string())?;
    change_owner(directory.path())?;
    Ok(directory)
}

/// Returns the files of a fresh cluster, created once for all tests of this checkout, because `initdb` takes
/// half a second.
fn template(programs: &Path) -> Result<PathBuf, String> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/postgres");
    fs::create_dir_all(&made).map_err(|error| error.to_string())?;
    let version = run(command(&programs.join("initdb")).arg("--version"), &made)?;
    let template = made.join(version.trim());
    let lock = File::create(made.join("lock")).and_then(|file| file.lock().map(|()| file));
    let _lock = lock.map_err(|error| error.to_string())?;
    if !template.exists() {
        // Create the cluster where its user may write, then move it in one step.
        let directory = private()?;
        let (data, copied) = (directory.path().join("data"), made.join("copied"));
        let mut initdb = as_unprivileged(&programs.join("initdb"))?;
        initdb.args(["--no-sync", "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]);
        run(initdb.args(["--username", OWNER, "--pgdata"]).arg(&data), directory.path())?;
        let _ = fs::remove_dir_all(&copied);
        copy(&data, &copied)?;
        fs::rename(&copied, &template).map_err(|error| error.to_string())?;
    }
    Ok(template)
}

/// Copies a directory with its owners and modes.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    run(command(Path::new("cp")).arg("-a").arg(from).arg(to), Path::new("/")).map(drop)
}

/// Runs a program and returns its output.
fn run(program: &mut Command, directory: &Path) -> Result<String, String> {
    let ended = program.current_dir(directory).output().map_err(|error| format!("{program:?}: {error}"))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    Err(format!("{program:?}: {}", String::from_utf8_lossy(&ended.stderr).trim()))
}

/// Gives `path` to the user that the server runs as. PostgreSQL refuses a key file owned by another user.
pub fn change_owner(path: &Path) -> Result<(), String> {
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
    // Writes of a killed server survive in the kernel's page cache, so fsync is needed only against a power
    // failure. On the simulated slow disk it stays on.
    let fsync = if is_slow() { "fsync=on" } else { "fsync=off" };
    server.args(["-c", fsync, "-c", "shared_buffers=32MB"]).current_dir(directory);
    // Files in the cluster's directory are removed with the test; a killed server would leave those in
    // /dev/shm.
    server.args(["-c", "dynamic_shared_memory_type=mmap"]);
    server.args(settings.iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]));
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(Process::start(server))
}

/// Returns the programs of Debian's newest version, or those on PATH.
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

/// Returns the name, user id and group id to run as; `None` if the tests do not run as root.
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

/// Runs a program as the unprivileged user. Changing the user clears the parent-death signal, so `setpriv`
/// restores it.
pub(crate) fn as_unprivileged(program: &Path) -> Result<Command, String> {
    let Some((_, uid, gid)) = unprivileged()? else { return Ok(command(program)) };
    let mut command = command(Path::new("setpriv"));
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).arg("--clear-groups");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    Ok(command)
}
