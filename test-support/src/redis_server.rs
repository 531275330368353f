//! A Redis outside of core, its clock in the test's hands; and that clock.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::RedisView;
use crate::process::{Process, command};
use crate::times::now_ms;
use crate::wait::{SOON, eventually};

/// A wall clock that the test can move, under any process started with it.
#[derive(Debug)]
pub struct Clock {
    directory: TempDir,
}

impl Clock {
    /// Compiles the shim.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("cgclock-").tempdir().expect("a temporary directory");
        let clock = Self { directory };
        clock.move_by_ms(0);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clock_shim.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(clock.library())
            .arg(source)
            .output();
        let compiled = compiled.expect("cc runs");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        clock
    }

    /// The variables that put a process on this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.library()), ("CLOCK_SHIM", self.file())]
    }

    /// Moves it from the real time by milliseconds.
    pub fn move_by_ms(&self, ms: i64) {
        let next = self.directory.path().join("next");
        std::fs::write(&next, ms.to_string()).expect("the clock's file");
        // In one step: a file half written would be a third time.
        std::fs::rename(next, self.file()).expect("the clock's file");
    }

    /// Sets it to an instant, from where it goes on.
    pub fn set_ms(&self, instant_ms: i64) {
        self.move_by_ms(instant_ms - now_ms());
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("clock_shim.so")
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("moved_ms")
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// A `redis-server` on a unix socket, killed on drop.
#[derive(Debug)]
pub struct RedisServer {
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
        let directory = tempfile::Builder::new().prefix("cgr-").tempdir().expect("a temporary directory");
        let settings: Vec<_> =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let process = launch(directory.path(), &settings, &environment);
        let server = Self { process, directory, settings, environment };
        server.view().await;
        server
    }

    /// `kill -9`, then the same server again on the same files; waits until it answers.
    pub async fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = launch(self.directory.path(), &self.settings, &self.environment);
        self.view().await;
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

fn launch(directory: &Path, settings: &[(String, String)], environment: &[(String, PathBuf)]) -> Process {
    let mut command = command(Path::new("redis-server"));
    command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    command.args([
        "--maxmemory-policy",
        "noeviction",
        "--unixsocket",
        "redis.sock",
        "--logfile",
        "redis.log",
    ]);
    for (name, value) in settings {
        command.arg(format!("--{name}")).arg(value);
    }
    command.envs(environment.iter().map(|(name, value)| (name, value))).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process::start(command)
}
