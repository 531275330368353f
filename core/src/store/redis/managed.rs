//! The managed Redis server, which core runs if no Redis address is configured. It uses a unix socket and an
//! append-only file with an fsync on every write.
//!
//! A supervisor thread starts the server, watches it, and restarts it when it dies. The kernel kills the
//! server when that thread dies (`setpriv --pdeathsig`), so the server never outlives core, even if core is
//! killed.

use std::fs::{self, Metadata};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Client, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo, RedisResult};
use rustix::process::{Pid, Signal, kill_process};

use crate::metrics;
use crate::redis_address::RedisAddress;

/// Maximum length of a unix socket's path: 108 bytes with the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
const SOCKET_NAME: &str = "redis.sock";
/// Size from which the append-only file is compacted; large, so that no rewrite happens during a rush of
/// claims.
const REWRITE_MIN: &str = "256mb";
/// The only user of the managed Redis server.
pub const REDIS_USER: &str = "claimgate";

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Uptime after which a start counts as successful and resets the backoff.
const HEALTHY_UPTIME: Duration = Duration::from_secs(10);
/// Timeout after which a Redis server that does not stop is killed. No data is lost, since every write is
/// synced.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Exit status of a Redis server that rejects its files or settings at startup.
const STARTUP_FAILED: i32 = 1;
/// Interval at which the running Redis server is checked.
const POLL: Duration = Duration::from_millis(20);

/// The reason why the managed Redis server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ManagedRedisError {
    /// No server executable was found.
    #[error(
        "found neither redis-server nor valkey-server: install one (Debian: apt-get install redis-server), \
         or set CLAIMGATE_REDIS_URL to your own Redis"
    )]
    NoServer,
    /// `setpriv` is missing or does not start the server.
    #[error(
        "cannot start {} through setpriv: {reason}; install setpriv of util-linux (Debian: apt-get install util-linux; \
         that of busybox lacks --pdeathsig), or set CLAIMGATE_REDIS_URL to your own Redis",
        .server.display()
    )]
    NoSetpriv {
        /// The server's executable.
        server: PathBuf,
        /// The error, or the first line of `setpriv`.
        reason: String,
    },
    /// The server's files or directories are unusable.
    #[error("{path}: {error}")]
    Files {
        /// The path.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// The data directory's path is too long for a socket. The fallback's path is also too long, or the
    /// fallback belongs to another user.
    #[error("no directory with a path short enough for a unix socket")]
    NoRuntimeDirectory,
}

/// The settings of the managed Redis server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Core's data directory, absolute.
    pub data_dir: PathBuf,
    /// The password of [`REDIS_USER`].
    pub password: String,
    /// `maxmemory`, in bytes.
    pub maxmemory_bytes: u64,
}

/// The managed Redis server; dropping this value stops the server.
#[derive(Debug)]
pub struct ManagedRedis {
    socket: PathBuf,
    stop: mpsc::Sender<()>,
    supervisor: Option<JoinHandle<()>>,
}

impl ManagedRedis {
    /// Starts the server and its supervisor.
    pub fn start(settings: &Settings) -> Result<Self, ManagedRedisError> {
        let server = find_server().ok_or(ManagedRedisError::NoServer)?;
        let version = check_setpriv(&server)?;
        let directory = settings.data_dir.join("redis");
        make_directory(&directory)?;
        let socket = socket_path(&settings.data_dir)?;
        kill_orphan(&socket);
        let config = config(settings, &directory, &socket, has_command_log(&version));
        let (stop, stopped) = mpsc::channel();
        let supervisor = thread::Builder::new()
            .name("redis-supervisor".to_owned())
            .spawn({
                let directory = directory.clone();
                move || supervise(&server, &config, &directory, &stopped)
            })
            .map_err(|error| ManagedRedisError::Files { path: directory, error })?;
        Ok(Self { socket, stop, supervisor: Some(supervisor) })
    }

    /// Returns the server's address with user and password.
    pub fn address(&self, password: &str) -> RedisResult<RedisAddress> {
        address_of(self.socket.clone(), password)
    }

    /// Stops the server and waits until the process has ended.
    pub fn stop(&mut self) {
        let _ = self.stop.send(());
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
    }
}

impl Drop for ManagedRedis {
    fn drop(&mut self) {
        self.stop();
    }
}

fn find_server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    ["redis-server", "valkey-server"]
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |directory| directory.join(name)))
        .find(|file| file.is_file())
}

fn make_directory(directory: &Path) -> Result<(), ManagedRedisError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| ManagedRedisError::Files { path: directory.to_owned(), error })
}

/// Returns the address of the managed Redis server of the core that uses `data_dir`; `None` if there is no
/// such directory.
pub fn address(data_dir: &Path, password: &str) -> Option<RedisAddress> {
    let inside = data_dir.join(SOCKET_NAME);
    let socket = if is_short(&inside) {
        inside
    } else {
        runtime_directory(&fs::metadata(data_dir).ok()?).join(SOCKET_NAME)
    };
    address_of(socket, password).ok()
}

/// Builds the address of a socket directly, since a URL would require escaping the path.
fn address_of(socket: PathBuf, password: &str) -> RedisResult<RedisAddress> {
    let user = RedisConnectionInfo::default().set_username(REDIS_USER).set_password(password);
    let server = ConnectionAddr::Unix(socket).into_connection_info()?.set_redis_settings(user);
    Ok(Client::open(server)?.into())
}

fn is_short(socket: &Path) -> bool {
    socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX
}

/// Returns the fallback directory of the socket, for a data directory with this `metadata` whose path is too
/// long.
fn runtime_directory(metadata: &Metadata) -> PathBuf {
    std::env::temp_dir().join(format!("claimgate-{:x}-{:x}", metadata.dev(), metadata.ino()))
}

/// Returns the socket's path: in the data directory or, if that path is too long, in a directory of core
/// under the system's temporary directory.
fn socket_path(data_dir: &Path) -> Result<PathBuf, ManagedRedisError> {
    let inside = data_dir.join(SOCKET_NAME);
    if is_short(&inside) {
        return Ok(inside);
    }
    let owner = fs::metadata(data_dir)
        .map_err(|error| ManagedRedisError::Files { path: data_dir.to_owned(), error })?;
    let directory = runtime_directory(&owner);
    make_directory(&directory)?;
    let found = fs::symlink_metadata(&directory)
        .map_err(|error| ManagedRedisError::Files { path: directory.clone(), error })?;
    let socket = directory.join(SOCKET_NAME);
    // The directory must not belong to another user, or be a link.
    let ours = found.is_dir() && found.uid() == owner.uid() && found.mode() & 0o777 == 0o700;
    if ours && is_short(&socket) { Ok(socket) } else { Err(ManagedRedisError::NoRuntimeDirectory) }
}

/// Kills a Redis server that a killed core left on this socket. The kernel normally kills it, but core checks
/// again: two servers on one append-only file would destroy the file.
fn kill_orphan(socket: &Path) {
    let title = format!("-server unixsocket:{}", socket.display());
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        let is_ours = || {
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).trim_end_matches(['\0', ' ']).ends_with(&title)
        };
        if is_ours() {
            tracing::warn!(pid = pid.as_raw_pid(), "killing an orphaned Redis: its core was killed");
            let _ = kill_process(pid, Signal::KILL);
            let deadline = Instant::now() + SHUTDOWN_GRACE;
            while is_ours() && Instant::now() < deadline {
                thread::sleep(POLL);
            }
        }
    }
    let _ = fs::remove_file(socket);
}

/// Returns the server's configuration. The default user cannot log in but has all permissions. Redis replays
/// its append-only file as the default user, and skips commands in a transaction that this user may not run.
/// The logs of slow and of large calls are off: they keep arguments of these calls, such as codes.
fn config(settings: &Settings, directory: &Path, socket: &Path, has_command_log: bool) -> String {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    let digest = sha2::Sha256::digest(settings.password.as_bytes());
    let hash = digest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let (log, directory, socket) = (quoted(&directory.join("redis.log")), quoted(directory), quoted(socket));
    format!(
        "port 0\nunixsocket {socket}\nunixsocketperm 700\ndir {directory}\nlogfile {log}\n\
         daemonize no\nsave \"\"\nappendonly yes\nappendfsync always\nno-appendfsync-on-rewrite no\n\
         aof-load-truncated no\nauto-aof-rewrite-min-size {REWRITE_MIN}\nslowlog-log-slower-than -1\n{command_log}maxmemory {memory}\nmaxmemory-policy noeviction\n\
         user default off resetpass ~* &* +@all\n\
         user {REDIS_USER} on #{hash} ~cg:* &* +@all -@dangerous -@admin +info +config|get\n",
        memory = settings.maxmemory_bytes,
        command_log = if has_command_log { "commandlog-request-larger-than -1\n" } else { "" },
    )
}

/// Returns whether a server that prints this `version` has a log of large calls: Valkey from 8.1 on. Other servers
/// refuse its settings.
fn has_command_log(version: &str) -> bool {
    let numbers = version.strip_prefix("Valkey server v=").unwrap_or_default();
    let mut numbers = numbers.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(8), Some(1))
}

/// Quotes a path for Redis' configuration. The path may contain any bytes.
fn quoted(path: &Path) -> String {
    let escaped = path.as_os_str().as_bytes().iter().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => char::from(*byte).to_string(),
        other => format!("\\x{other:02x}"),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

fn supervise(server: &Path, config: &str, directory: &Path, stopped: &mpsc::Receiver<()>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let started = Instant::now();
        match start(server, config) {
            Ok(mut child) => {
                metrics::REDIS_STARTS.add(1);
                tracing::info!(pid = child.id(), "Redis started");
                let Some(status) = watch(&mut child, stopped) else { return };
                tracing::error!(%status, "Redis died; restarting it");
                if status.code() == Some(STARTUP_FAILED) {
                    // The status may be that of setpriv, which says nothing about Redis' file.
                    match check_setpriv(server) {
                        Ok(_) => repair(server, directory),
                        Err(error) => tracing::error!(%error, "Redis was not started"),
                    }
                }
            }
            Err(error) => tracing::error!(%error, "cannot start {} through setpriv", server.display()),
        }
        if started.elapsed() > HEALTHY_UPTIME {
            backoff = BACKOFF_MIN;
        }
        if !matches!(stopped.recv_timeout(backoff), Err(mpsc::RecvTimeoutError::Timeout)) {
            return;
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Returns a command that starts the server, and has the kernel kill it when the calling thread ends.
fn through_setpriv(server: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(server);
    command
}

/// Checks that `setpriv` starts the server, which only prints its version. Returns what it prints.
fn check_setpriv(server: &Path) -> Result<String, ManagedRedisError> {
    let reason = match through_setpriv(server).arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            message.lines().next().map_or_else(|| output.status.to_string(), str::to_owned)
        }
        Err(error) => error.to_string(),
    };
    Err(ManagedRedisError::NoSetpriv { server: server.to_owned(), reason })
}

/// Starts the server. It reads its configuration, which contains the password's hash, from a pipe instead of
/// a file. It has its own process group, so that Ctrl-C in a terminal reaches only core, which stops Redis
/// last.
fn start(server: &Path, config: &str) -> io::Result<Child> {
    let mut child = through_setpriv(server)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(config.as_bytes())?;
    }
    Ok(child)
}

/// Truncates a half-written transaction at the end of the append-only file, which remains if Redis is killed
/// during a write. The transaction was not synced, so no caller got a reply. With `aof-load-truncated yes`
/// Redis would itself truncate after the last complete command, possibly inside a transaction. The next start
/// would then run that fragment together with the following transaction.
fn repair(server: &Path, directory: &Path) {
    let program = server.to_string_lossy().replace("-server", "-check-aof");
    let repaired = last_file(&directory.join("appendonlydir")).and_then(|file| repair_file(&program, &file));
    match repaired {
        Ok(output) => tracing::warn!(program, told = output.trim_end(), "repaired Redis' append-only file"),
        Err(error) => tracing::error!(program, %error, "cannot repair Redis' append-only file"),
    }
}

/// Finds the file that the server was writing to: the last file of the manifest. The other files are
/// complete. They must be skipped, since the check of Valkey 9.1 rejects Valkey's own base file, whose header
/// it does not support.
fn last_file(directory: &Path) -> io::Result<PathBuf> {
    let manifest = fs::read_to_string(directory.join("appendonly.aof.manifest"))?;
    let file =
        |line: &str| Some(line.strip_prefix("file ")?.strip_suffix(" type i")?.split(' ').next()?.to_owned());
    let last = manifest.lines().filter_map(file).next_back();
    last.map(|name| directory.join(name)).ok_or_else(|| io::Error::other("the manifest names no file"))
}

/// Runs the repair program that ships with the server, and returns its output.
fn repair_file(program: &str, file: &Path) -> io::Result<String> {
    let mut child = Command::new(program)
        .arg("--fix")
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Confirm the prompt for truncating the file, which appears only if truncation is necessary.
        let _ = stdin.write_all(b"y\n");
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(io::Error::other(text)) }
}

/// Waits until the server dies, and returns its status; `None` if core has requested the stop.
fn watch(child: &mut Child, stopped: &mpsc::Receiver<()>) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        match stopped.recv_timeout(POLL) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                terminate(child);
                return None;
            }
        }
    }
}

/// Stops the server with SIGTERM, then SIGKILL.
fn terminate(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id())
        && let Some(pid) = Pid::from_raw(pid)
    {
        let _ = kill_process(pid, Signal::TERM);
    }
    let deadline = Instant::now() + SHUTDOWN_GRACE;
    while Instant::now() < deadline {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        thread::sleep(POLL);
    }
    let _ = child.kill();
    let _ = child.wait();
}
