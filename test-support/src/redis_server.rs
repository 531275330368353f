//! A Redis or Valkey server that core does not run itself, on a clock that the test controls.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use crate::RedisView;
use crate::clock::Clock;
use crate::process::{Process, command};
use crate::time_limits::SOON;
use crate::wait::eventually;

/// The kind of server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// The installed `redis-server`.
    #[default]
    Redis,
    /// The `valkey-server` that `scripts/setup.sh` installs.
    Valkey,
}

impl Kind {
    /// Returns the path of the program `server` or `check-aof`.
    pub(crate) fn program(self, what: &str) -> PathBuf {
        match self {
            Self::Redis => format!("redis-{what}").into(),
            Self::Valkey => {
                let file = tools().join("valkey/bin").join(format!("valkey-{what}"));
                assert!(file.is_file(), "no {}: `scripts/setup.sh` installs it", file.display());
                file
            }
        }
    }
}

/// Returns the directory of the per-user tools that `scripts/tools.sh` installs.
pub(crate) fn tools() -> PathBuf {
    let directory = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || directory("XDG_CACHE_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache")));
    directory("CLAIMGATE_TOOLS")
        .or_else(|| Some(cache()?.join("claimgate")))
        .expect("the user has a home directory")
}

/// A server on a unix socket, killed on drop.
#[derive(Debug)]
pub struct RedisServer {
    kind: Kind,
    process: Process,
    directory: TempDir,
    settings: Vec<(String, String)>,
    environment: Vec<(String, PathBuf)>,
}

impl RedisServer {
    /// Starts a server with fsync on every write, on the system clock.
    pub async fn start() -> Self {
        Self::start_with(&[], &[]).await
    }

    /// Starts a server with fsync on every write, on `clock`.
    pub async fn start_on(clock: &Clock) -> Self {
        Self::start_with(&[], &clock.environment()).await
    }

    /// Starts a server with additional settings (`("appendfsync", "everysec")`) and variables.
    pub async fn start_with(settings: &[(&str, &str)], environment: &[(&str, PathBuf)]) -> Self {
        Self::start_as(Kind::from_env(), settings, environment).await
    }

    /// Starts a server of this kind with fsync on every write, additional settings and variables.
    pub async fn start_as(kind: Kind, settings: &[(&str, &str)], environment: &[(&str, PathBuf)]) -> Self {
        let directory = tempfile::Builder::new().prefix("cgr-").tempdir().expect("a temporary directory");
        let settings: Vec<_> =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let process = launch(kind, directory.path(), &settings, &environment);
        let server = Self { kind, process, directory, settings, environment };
        server.view().await;
        server
    }

    /// Sends SIGKILL, then restarts the server on the same files; waits until the server answers.
    pub async fn kill_and_restart(&mut self) {
        self.process.kill();
        mend(self.kind, self.directory.path());
        self.process = launch(self.kind, self.directory.path(), &self.settings, &self.environment);
        self.view().await;
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns the value for `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        format!("unix://{}", self.directory.path().join("redis.sock").display())
    }

    /// Opens a connection that bypasses core; waits until the server answers.
    pub async fn view(&self) -> RedisView {
        let url = self.url();
        eventually(SOON, || async {
            let view = RedisView::connect(&url).await?;
            let pong: Result<String, String> = view.try_query(&["PING"]).await;
            pong.map(|_| view)
        })
        .await
    }
}

/// Truncates the half-written end of the append-only file after a kill, as an operator would.
fn mend(kind: Kind, directory: &Path) {
    let mut check = command(&kind.program("check-aof"));
    // Given the manifest, Valkey's program would report its base file as broken.
    let files = std::fs::read_dir(directory.join("appendonlydir")).into_iter().flatten().flatten();
    let increments =
        files.map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let Some(last) = increments.max() else { return };
    check.arg("--fix").arg(last);
    let mut check = check.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("check-aof");
    // The program exits without reading its input if there is nothing to repair.
    let _ = check.stdin.take().expect("its input").write_all(b"y\n");
    check.wait().expect("it ends");
}

fn launch(
    kind: Kind,
    directory: &Path,
    settings: &[(String, String)],
    environment: &[(String, PathBuf)],
) -> Process {
    let mut command = command(&kind.program("server"));
    command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    command.args([
        "--maxmemory-policy",
        "noeviction",
        "--unixsocket",
        "redis.sock",
        "--logfile",
        "redis.log",
        "--aof-load-truncated",
        "no",
    ]);
    for (name, value) in settings {
        command.arg(format!("--{name}")).arg(value);
    }
    command.envs(environment.iter().map(|(name, value)| (name, value))).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process::start(command)
}
