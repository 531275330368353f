//! The managed Redis, which core runs when it is given no other: on a unix socket, append-only, fsync on every write.
//!
//! A thread of its own starts it, waits for it, and starts it again when it dies. The kernel kills it when that
//! thread dies (`setpriv --pdeathsig`), so it never outlives its core, not even one that was killed.

use std::fs::{self, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::metrics;

/// A unix socket's path ends at 108 bytes, its terminating zero included.
const SOCKET_PATH_BYTES_MAX: usize = 107;
const SOCKET_NAME: &str = "redis.sock";
/// The size from which on the append-only file is rewritten without superseded entries: not in the middle of a stampede.
const REWRITE_MIN: &str = "256mb";
/// The only user of the managed Redis.
pub const REDIS_USER: &str = "claimgate";

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A Redis that ran for this long has started successfully: the back-off begins from its minimum again.
const HEALTHY: Duration = Duration::from_secs(10);
/// How long a stopping Redis may take before it is killed; with fsync on every write nothing is lost by that.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// The exit status of a Redis that does not start: its files or its settings are not in order.
const REFUSED: i32 = 1;
/// How often a running Redis is checked.
const POLL: Duration = Duration::from_millis(20);

/// Why the managed Redis cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ManagedRedisError {
    /// No server program was found.
    #[error(
        "found neither redis-server nor valkey-server: install one (Debian: apt-get install redis-server), \
         or set CLAIMGATE_REDIS_URL to a Redis of your own"
    )]
    NoServer,
    /// Its files or directories cannot be used.
    #[error("{path}: {error}")]
    Files {
        /// The path.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// The data directory's path is too long for a socket, and so is the fallback's, or it is not this user's own.
    #[error("no directory with a path short enough for a unix socket")]
    NoRuntimeDirectory,
}

/// The settings of the managed Redis.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Core's data directory, absolute.
    pub data_dir: PathBuf,
    /// The password of [`REDIS_USER`].
    pub password: String,
    /// `maxmemory`, in bytes.
    pub maxmemory_bytes: u64,
}

/// The managed Redis; it is stopped when this is dropped.
#[derive(Debug)]
pub struct ManagedRedis {
    socket: PathBuf,
    stop: mpsc::Sender<()>,
    supervisor: Option<JoinHandle<()>>,
}

impl ManagedRedis {
    /// Starts the server and its supervisor.
    ///
    /// # Errors
    /// [`ManagedRedisError::NoServer`] when there is no `redis-server`; otherwise when its files cannot be written or
    /// it does not start.
    pub fn start(settings: &Settings) -> Result<Self, ManagedRedisError> {
        let server = find_server().ok_or(ManagedRedisError::NoServer)?;
        let directory = settings.data_dir.join("redis");
        make_directory(&directory)?;
        let socket = socket_path(&settings.data_dir)?;
        end_orphan(&socket);
        let config = config(settings, &directory, &socket);
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

    /// The URL to connect to it.
    pub fn url(&self, password: &str) -> String {
        url_of(&self.socket, password)
    }

    /// Stops the server and waits until it is gone.
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

/// The URL of the managed Redis of the core that runs on `data_dir`; `None` when there is no such directory.
pub fn url(data_dir: &Path, password: &str) -> Option<String> {
    let inside = data_dir.join(SOCKET_NAME);
    let socket = if is_short(&inside) {
        inside
    } else {
        runtime_directory(&fs::metadata(data_dir).ok()?).join(SOCKET_NAME)
    };
    Some(url_of(&socket, password))
}

fn url_of(socket: &Path, password: &str) -> String {
    format!("redis+unix://{}?user={REDIS_USER}&pass={password}", socket.display())
}

fn is_short(socket: &Path) -> bool {
    socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX
}

/// The socket's directory when the data directory's path is too long; `found` is the data directory's metadata.
fn runtime_directory(found: &Metadata) -> PathBuf {
    std::env::temp_dir().join(format!("claimgate-{:x}-{:x}", found.dev(), found.ino()))
}

/// In the data directory, or, when that has too long a path, in a directory of core's own below the temporary one.
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
    // Another user's directory, or a link to it, is not a place for core's socket.
    let ours = found.is_dir() && found.uid() == owner.uid() && found.mode() & 0o777 == 0o700;
    if ours && is_short(&socket) { Ok(socket) } else { Err(ManagedRedisError::NoRuntimeDirectory) }
}

/// Ends a Redis of a killed core on this socket. The kernel does that already; two servers on one append-only file
/// would destroy it, so core checks too.
fn end_orphan(socket: &Path) {
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
            tracing::warn!(pid = pid.as_raw_pid(), "ending the Redis of a core that was killed");
            let _ = kill_process(pid, Signal::KILL);
            let deadline = Instant::now() + SHUTDOWN_GRACE;
            while is_ours() && Instant::now() < deadline {
                thread::sleep(POLL);
            }
        }
    }
    let _ = fs::remove_file(socket);
}

/// The default user cannot log in, but may do everything: Redis loads its append-only file in that user's name, and
/// what the user may not do is dropped from the file's transactions.
fn config(settings: &Settings, directory: &Path, socket: &Path) -> String {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    let digest = sha2::Sha256::digest(settings.password.as_bytes());
    let hash = digest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let (directory, socket) = (directory.display(), socket.display());
    format!(
        "port 0\nunixsocket \"{socket}\"\nunixsocketperm 700\ndir \"{directory}\"\nlogfile \"{directory}/redis.log\"\n\
         daemonize no\nsave \"\"\nappendonly yes\nappendfsync always\nno-appendfsync-on-rewrite no\n\
         aof-load-truncated no\nauto-aof-rewrite-min-size {REWRITE_MIN}\nmaxmemory {memory}\nmaxmemory-policy noeviction\n\
         user default off resetpass ~* &* +@all\n\
         user {REDIS_USER} on #{hash} ~cg:* &* +@all -@dangerous -@admin +info +config|get\n",
        memory = settings.maxmemory_bytes,
    )
}

fn supervise(server: &Path, config: &str, directory: &Path, stopped: &mpsc::Receiver<()>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let started = Instant::now();
        match start(server, config) {
            Ok(mut child) => {
                metrics::redis_started();
                tracing::info!(pid = child.id(), "Redis started");
                let Some(status) = watch(&mut child, stopped) else { return };
                tracing::error!(%status, "Redis died; starting it again");
                if status.code() == Some(REFUSED) {
                    mend(server, directory);
                }
            }
            Err(error) => tracing::error!(%error, "cannot start {}", server.display()),
        }
        if started.elapsed() > HEALTHY {
            backoff = BACKOFF_MIN;
        }
        if !matches!(stopped.recv_timeout(backoff), Err(mpsc::RecvTimeoutError::Timeout)) {
            return;
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// The configuration goes in through a pipe: it holds the password's hash, and needs no file. In a process group of its
/// own, so that a terminal's Ctrl-C reaches core alone: Redis goes when core has no more use for it.
fn start(server: &Path, config: &str) -> io::Result<Child> {
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(server)
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

/// Takes off the append-only file what a Redis that was killed in the middle of a write has left half-written. It was not
/// synced, so no caller was told of it. With `aof-load-truncated yes` Redis would do so itself, but behind the last whole
/// command: in the middle of a transaction, whose first half it would run with the next one at the start after.
fn mend(server: &Path, directory: &Path) {
    let program = server.to_string_lossy().replace("-server", "-check-aof");
    let checked = last_file(&directory.join("appendonlydir")).and_then(|file| check_file(&program, &file));
    match checked {
        Ok(told) => tracing::warn!(program, told = told.trim_end(), "mended Redis' append-only file"),
        Err(error) => tracing::error!(program, %error, "cannot mend Redis' append-only file"),
    }
}

/// The file that the server was writing to, the last one of the manifest. The others are whole, and the check of Valkey 9.1
/// takes its own base file, which begins with its own name, for a broken one.
fn last_file(directory: &Path) -> io::Result<PathBuf> {
    let manifest = fs::read_to_string(directory.join("appendonly.aof.manifest"))?;
    let file =
        |line: &str| Some(line.strip_prefix("file ")?.strip_suffix(" type i")?.split(' ').next()?.to_owned());
    let last = manifest.lines().filter_map(file).next_back();
    last.map(|name| directory.join(name)).ok_or_else(|| io::Error::other("the manifest names no file"))
}

/// Runs the program that comes with the server and knows its files; what it tells.
fn check_file(program: &str, file: &Path) -> io::Result<String> {
    let mut child = Command::new(program)
        .arg("--fix")
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Whether the file may be cut: not asked where nothing has to be.
        let _ = stdin.write_all(b"y\n");
    }
    let output = child.wait_with_output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(told) } else { Err(io::Error::other(told)) }
}

/// Waits until the server dies, or until core asks for it to be stopped and it has ended (`None`).
fn watch(child: &mut Child, stopped: &mpsc::Receiver<()>) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        match stopped.recv_timeout(POLL) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                end(child);
                return None;
            }
        }
    }
}

fn end(child: &mut Child) {
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
