//! A Redis or a Valkey outside of core, its clock in the test's hands.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use crate::RedisView;
use crate::clock::Clock;
use crate::process::{Process, command};
use crate::wait::{SOON, eventually};

/// Which of the two it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// The machine's `redis-server`.
    #[default]
    Redis,
    /// The `valkey-server` that `scripts/setup.sh` has brought.
    Valkey,
}

impl Kind {
    /// The program `server` or `check-aof`.
    pub(crate) fn program(self, what: &str) -> PathBuf {
        match self {
            Self::Redis => format!("redis-{what}").into(),
            Self::Valkey => {
                let file = tools().join("valkey/bin").join(format!("valkey-{what}"));
                assert!(file.is_file(), "no {}: `scripts/setup.sh` brings it", file.display());
                file
            }
        }
    }
}

/// Where `scripts/tools.sh` has the tools that are kept per user.
fn tools() -> PathBuf {
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
    /// With fsync on every write, on the machine's clock.
    pub async fn start() -> Self {
        Self::start_with(&[], &[]).await
    }

    /// With fsync on every write, on `clock`.
    pub async fn start_on(clock: &Clock) -> Self {
        Self::start_with(&[], &clock.environment()).await
    }

    /// With further settings (`("appendfsync", "everysec")`) and variables.
    pub async fn start_with(settings: &[(&str, &str)], environment: &[(&str, PathBuf)]) -> Self {
        Self::start_as(Kind::asked(), settings, environment).await
    }

    /// One of this kind, with fsync on every write, further settings and variables.
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

    /// `kill -9`, then the same server again on the same files; waits until it answers.
    pub async fn kill_and_restart(&mut self) {
        self.process.kill();
        mend(self.kind, self.directory.path());
        self.process = launch(self.kind, self.directory.path(), &self.settings, &self.environment);
        self.view().await;
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// For `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        format!("unix://{}", self.directory.path().join("redis.sock").display())
    }

    /// A connection past core, once it answers.
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

/// Takes off the append-only file what was half-written when Redis was killed, as an operator would.
fn mend(kind: Kind, directory: &Path) {
    let mut check = command(&kind.program("check-aof"));
    // By the manifest, Valkey's program would take its base file for a broken one.
    let files = std::fs::read_dir(directory.join("appendonlydir")).into_iter().flatten().flatten();
    let increments =
        files.map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let Some(last) = increments.max() else { return };
    check.arg("--fix").arg(last);
    let mut check = check.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("check-aof");
    // One that finds nothing to mend ends without reading its answer.
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
