//! A `claimgate serve` of the test's own.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::client::client;
use crate::core_client::{API_TOKEN, CoreClient};
use crate::process::{self, Process, Signal, command, free_address};
use crate::redis_server::Kind;
use crate::topology::Topology;
use crate::wait::{SOON, eventually};
use crate::{RedisView, Servers, Sql, binary};

/// What a core is started with; by default all that it would do by itself.
#[derive(Debug, Default, Clone)]
pub struct CoreOptions {
    environment: Vec<(String, String)>,
    flags: Vec<&'static str>,
    /// `None`: the one that is tested.
    program: Option<PathBuf>,
    /// `None`: a free address.
    listen: Option<SocketAddr>,
    /// `None`: a free address.
    admin: Option<SocketAddr>,
}

impl CoreOptions {
    /// With a variable set.
    #[must_use]
    pub fn with(mut self, variable: &str, value: impl Into<String>) -> Self {
        self.environment.push((variable.to_owned(), value.into()));
        self
    }

    /// Apart from the slow disk, as is the Redis that it runs: for tests of another fault.
    #[must_use]
    pub fn on_fast_disk(mut self) -> Self {
        for (name, value) in process::fast_disk() {
            self = self.with(name, value.to_string_lossy());
        }
        self
    }

    /// With a flag of `serve` that no variable stands for.
    #[must_use]
    pub fn with_flag(mut self, flag: &'static str) -> Self {
        self.flags.push(flag);
        self
    }

    /// Another `claimgate` than the one that is tested.
    #[must_use]
    pub fn program(mut self, program: PathBuf) -> Self {
        self.program = Some(program);
        self
    }

    /// With the internal API at `listen`, after a restart too.
    #[must_use]
    pub fn listen_at(mut self, listen: SocketAddr) -> Self {
        self.listen = Some(listen);
        self
    }

    /// With the admin API at `admin`, after a restart too.
    #[must_use]
    pub fn admin_at(mut self, admin: SocketAddr) -> Self {
        self.admin = Some(admin);
        self
    }

    /// Starts a core in a fresh data directory and waits until it is ready.
    pub async fn start(self) -> Core {
        let core = Core::launch(self).await;
        core.ready().await;
        core
    }

    /// Starts a core in a directory that the test has prepared, its data directory `data` in it, and waits until it is ready.
    pub async fn start_in(self, directory: TempDir) -> Core {
        let core = Core::launch_in(Arc::new(directory), self).await;
        core.ready().await;
        core
    }

    /// The servers to start for it: none where core runs its own, or the test names others.
    async fn servers(&self) -> Option<Arc<Servers>> {
        let named = self.environment.iter().any(|(name, _)| name == "CLAIMGATE_REDIS_URL");
        if named || Topology::asked() == Topology::Own {
            None
        } else {
            Some(Arc::new(Servers::start().await))
        }
    }
}

/// A running core. Its process ends, and its data directory goes, when this is dropped.
#[derive(Debug)]
pub struct Core {
    process: Process,
    options: CoreOptions,
    servers: Option<Arc<Servers>>,
    directory: Arc<TempDir>,
    client: CoreClient,
}

impl Deref for Core {
    type Target = CoreClient;

    fn deref(&self) -> &CoreClient {
        &self.client
    }
}

impl Core {
    /// A core with SQLite and a Redis, its own but on [another topology](Topology), ready.
    pub async fn start() -> Self {
        CoreOptions::default().start().await
    }

    /// A core in a fresh data directory, just launched.
    pub async fn launch(options: CoreOptions) -> Self {
        let directory = tempfile::Builder::new().prefix("cg-").tempdir().expect("a temporary directory");
        Self::launch_in(Arc::new(directory), options).await
    }

    async fn launch_in(directory: Arc<TempDir>, options: CoreOptions) -> Self {
        let servers = options.servers().await;
        Self::launch_on(servers, directory, options)
    }

    fn launch_on(servers: Option<Arc<Servers>>, directory: Arc<TempDir>, options: CoreOptions) -> Self {
        let listen = options.listen.unwrap_or_else(free_address);
        let admin = options.admin.unwrap_or_else(free_address);
        let mut command = command(&options.program.clone().unwrap_or_else(binary::claimgate));
        command
            .arg("serve")
            .args(&options.flags)
            .env("CLAIMGATE_LISTEN", listen.to_string())
            .env("CLAIMGATE_ADMIN_LISTEN", admin.to_string())
            .env("CLAIMGATE_DATA_DIR", directory.path().join("data"))
            .env("CLAIMGATE_API_TOKENS", format!("shop:{API_TOKEN}"))
            .envs(servers.iter().map(|servers| ("CLAIMGATE_REDIS_URL", servers.url())))
            .envs(valkey_alone(directory.path()))
            .envs(options.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(directory.path())
            // As a shell starts it: what a terminal sends goes to the group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log_file(directory.path()))
            .stderr(log_file(directory.path()));
        let process = Process::start(command);
        let data_dir = directory.path().join("data");
        let client = CoreClient { client: client(), listen, admin, data_dir };
        Self { process, options, servers, directory, client }
    }

    /// Waits until `/readyz` says so: a replaced Redis is waited for for 30 s.
    pub async fn ready(&self) {
        eventually(2 * SOON, || async {
            match self.client().once().try_get(&self.admin_url("/readyz"), "").await {
                Ok(reply) if reply.status == 200 => Ok(()),
                Ok(reply) => Err(format!("/readyz answers {}: {}", reply.status, reply.text())),
                Err(error) => Err(format!("{error:#}\n{}", self.log())),
            }
        })
        .await;
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Another core on the same data directory, with the same options, on addresses of its own unless the options name
    /// them; not yet ready.
    #[must_use]
    pub fn launch_again(&self) -> Self {
        let (servers, directory) = (self.servers.clone(), Arc::clone(&self.directory));
        Self::launch_on(servers, directory, self.options.clone())
    }

    /// The same of the program that is tested, whatever ran before.
    #[must_use]
    pub fn launch_tested(&self) -> Self {
        let options = CoreOptions { program: None, ..self.options.clone() };
        Self::launch_on(self.servers.clone(), Arc::clone(&self.directory), options)
    }

    /// Another core on the same data directory, ready: for after [`Core::kill`] or [`Core::stop`].
    pub async fn restart(&self) -> Self {
        let core = self.launch_again();
        core.ready().await;
        core
    }

    /// SIGTERM; waits until it has ended, and checks that it ended well.
    pub async fn stop(&mut self) {
        self.process.signal(Signal::TERM);
        let status = self.process.wait(SOON).await;
        assert!(status.success(), "core ended with {status} on SIGTERM:\n{}", self.log());
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// All that it has written to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(log_path(self.directory.path())).unwrap_or_default()
    }

    /// Its SQLite file.
    pub fn sql(&self) -> Sql {
        Sql::in_directory(&self.data_dir())
    }

    /// Its Redis, once that answers.
    pub async fn redis(&self) -> RedisView {
        if let Some(servers) = &self.servers {
            return servers.view().await;
        }
        let socket = self.data_dir().join("redis.sock");
        let url = format!(
            "redis+unix://{}?user=claimgate&pass={}",
            socket.display(),
            self.data_file("redis.password")
        );
        eventually(SOON, || async { RedisView::connect(&url).await }).await
    }

    /// The process id of the Redis that it runs.
    pub async fn redis_pid(&self) -> u32 {
        let pid = self.redis().await.pid().await;
        assert!(process::runs(pid), "Redis says it is process {pid}");
        pid
    }

    /// Resident memory, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("core runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<_> = log.lines().rev().take(20).collect();
            eprintln!("--- the end of core's log ---");
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
    }
}

/// The longest that core itself waits for a decision, and a little.
pub const DECISION: Duration = Duration::from_secs(3);

/// The PATH of a core that is to run a Valkey: it takes a Redis where it finds one.
fn valkey_alone(directory: &Path) -> Option<(&'static str, PathBuf)> {
    if Kind::asked() == Kind::Redis {
        return None;
    }
    let programs = directory.join("programs");
    if std::fs::create_dir(&programs).is_ok() {
        let path = std::env::var_os("PATH").expect("a PATH");
        // What every process is started through.
        let starters = ["setpriv", "env"].map(|name| {
            let mut places = std::env::split_paths(&path).map(|place| place.join(name));
            places.find(|file| file.is_file()).expect(name)
        });
        let valkey = ["server", "check-aof"].map(|what| Kind::Valkey.program(what));
        for program in valkey.iter().chain(&starters) {
            let link = programs.join(program.file_name().expect("a name"));
            std::os::unix::fs::symlink(program, link).expect("a link");
        }
    }
    Some(("PATH", programs))
}

fn log_path(directory: &Path) -> PathBuf {
    directory.join("core.log")
}

fn log_file(directory: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(log_path(directory)).expect("a log file")
}
