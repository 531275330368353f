//! The Redis that core runs itself, when it is given none: on a unix socket, append-only, fsync on every write.
//!
//! A thread of its own starts it, waits for it, and starts it again when it dies. The kernel kills it when that
//! thread dies (`setpriv --pdeathsig`), so it never outlives its core, not even one that was killed.

use std::fs::{self, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::metrics;

/// A unix socket's path ends at 108 bytes, its terminating zero included.
const SOCKET_PATH_BYTES_MAX: usize = 107;
const SOCKET_NAME: &str = "redis.sock";
/// The file is written anew, without what is superseded, from this size on: not in the middle of a stampede.
const REWRITE_MIN: &str = "256mb";
/// The one user that core's Redis knows.
pub const REDIS_USER: &str = "claimgate";

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A Redis that ran for so long has not failed to start.
const HEALTHY: Duration = Duration::from_secs(10);
/// How long a stopping Redis may take before it is killed; with fsync on every write nothing is lost by that.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// How often a running Redis is looked at.
const POLL: Duration = Duration::from_millis(20);

/// Why the embedded Redis cannot run.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// Nothing to run.
    #[error(
        "found neither redis-server nor valkey-server: install one (Debian: apt-get install redis-server), \
         or set CLAIMGATE_REDIS_URL to a Redis of your own"
    )]
    NoServer,
    /// Its files or folders.
    #[error("{path}: {error}")]
    Files {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// Too long a path, and nowhere else to go.
    #[error("no folder with a path short enough for a unix socket")]
    NoRuntimeFolder,
}

/// What the embedded Redis is run with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Core's data folder, absolute.
    pub data_dir: PathBuf,
    /// The password of [`REDIS_USER`].
    pub password: String,
    /// `maxmemory`, in bytes.
    pub maxmemory_bytes: u64,
}

/// The embedded Redis, until dropped or stopped.
#[derive(Debug)]
pub struct ManagedRedis {
    socket: PathBuf,
    stop: mpsc::Sender<()>,
    supervisor: Option<JoinHandle<()>>,
}

impl ManagedRedis {
    /// Starts the server and its supervisor.
    pub fn start(settings: &Settings) -> Result<Self, EmbeddedError> {
        let server = find_server().ok_or(EmbeddedError::NoServer)?;
        let folder = settings.data_dir.join("redis");
        make_folder(&folder)?;
        let socket = socket_path(&settings.data_dir)?;
        end_orphan(&socket);
        let config = config(settings, &folder, &socket);
        let (stop, stopped) = mpsc::channel();
        let supervisor = thread::Builder::new()
            .name("redis-supervisor".to_owned())
            .spawn(move || supervise(&server, &config, &stopped))
            .map_err(|error| EmbeddedError::Files { path: folder, error })?;
        Ok(Self { socket, stop, supervisor: Some(supervisor) })
    }

    /// How to connect to it.
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
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|file| file.is_file())
}

fn make_folder(folder: &Path) -> Result<(), EmbeddedError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| EmbeddedError::Files { path: folder.to_owned(), error })
}

/// How to connect to the Redis of the core that runs on this data folder; `None` when that has no socket.
pub fn url(data_dir: &Path, password: &str) -> Option<String> {
    let inside = data_dir.join(SOCKET_NAME);
    let socket = if is_short(&inside) {
        inside
    } else {
        runtime_folder(&fs::metadata(data_dir).ok()?).join(SOCKET_NAME)
    };
    Some(url_of(&socket, password))
}

fn url_of(socket: &Path, password: &str) -> String {
    format!("redis+unix://{}?user={REDIS_USER}&pass={password}", socket.display())
}

fn is_short(socket: &Path) -> bool {
    socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX
}

/// Where the socket is when the data folder has too long a path; `found` is that folder.
fn runtime_folder(found: &Metadata) -> PathBuf {
    std::env::temp_dir().join(format!("claimgate-{:x}-{:x}", found.dev(), found.ino()))
}

/// In the data folder, or, when that has too long a path, in a folder of our own under the temporary one.
fn socket_path(data_dir: &Path) -> Result<PathBuf, EmbeddedError> {
    let inside = data_dir.join(SOCKET_NAME);
    if is_short(&inside) {
        return Ok(inside);
    }
    let owner =
        fs::metadata(data_dir).map_err(|error| EmbeddedError::Files { path: data_dir.to_owned(), error })?;
    let folder = runtime_folder(&owner);
    make_folder(&folder)?;
    let found = fs::symlink_metadata(&folder)
        .map_err(|error| EmbeddedError::Files { path: folder.clone(), error })?;
    let socket = folder.join(SOCKET_NAME);
    // Somebody else's folder, or a link to it, is not a place for our socket.
    let ours = found.is_dir() && found.uid() == owner.uid() && found.mode() & 0o777 == 0o700;
    if ours && is_short(&socket) { Ok(socket) } else { Err(EmbeddedError::NoRuntimeFolder) }
}

/// Ends a Redis of a killed core on this socket. The kernel does that already; two servers on one append-only file
/// would destroy it, so we look.
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
fn config(settings: &Settings, folder: &Path, socket: &Path) -> String {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    let digest = sha2::Sha256::digest(settings.password.as_bytes());
    let hash = digest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let (folder, socket) = (folder.display(), socket.display());
    format!(
        "port 0\nunixsocket \"{socket}\"\nunixsocketperm 700\ndir \"{folder}\"\nlogfile \"{folder}/redis.log\"\n\
         daemonize no\nsave \"\"\nappendonly yes\nappendfsync always\nno-appendfsync-on-rewrite no\n\
         aof-load-truncated yes\nauto-aof-rewrite-min-size {REWRITE_MIN}\nmaxmemory {memory}\nmaxmemory-policy noeviction\n\
         user default off resetpass ~* &* +@all\n\
         user {REDIS_USER} on #{hash} ~cg:* &* +@all -@dangerous -@admin +info +config|get\n",
        memory = settings.maxmemory_bytes,
    )
}

fn supervise(server: &Path, config: &str, stopped: &mpsc::Receiver<()>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let started = Instant::now();
        match start(server, config) {
            Ok(mut child) => {
                metrics::redis_started();
                tracing::info!(pid = child.id(), "Redis started");
                if watch(&mut child, stopped) {
                    return;
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

/// Waits until the server dies (false) or core wants it stopped (true, and it is gone).
fn watch(child: &mut Child, stopped: &mpsc::Receiver<()>) -> bool {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            tracing::error!(%status, "Redis died; starting it again");
            return false;
        }
        match stopped.recv_timeout(POLL) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                end(child);
                return true;
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
