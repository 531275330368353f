//! A `claimgate serve` process for a test.

use std::fs::{File, OpenOptions};
use std::io::PipeWriter;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::client::client;
use crate::core_client::{API_TOKEN, CoreClient, campaign};
use crate::process::{self, Process, Signal, command, free_address, runs, with_hosts};
use crate::redis_server::Kind;
use crate::time_limits::SOON;
use crate::topology::Topology;
use crate::wait::{eventually, holds};
use crate::{RedisView, Reply, Servers, Sql, binary};

/// Options of a core; by default the core runs without any configuration.
#[derive(Debug, Default, Clone)]
pub struct CoreOptions {
    environment: Vec<(String, String)>,
    removed: Vec<&'static str>,
    flags: Vec<&'static str>,
    /// `None` runs the binary under test.
    program: Option<PathBuf>,
    /// A program with its arguments that becomes core's program.
    through: &'static [&'static str],
    /// Limit of open files and connections; `None` inherits the test's limit.
    descriptors: Option<u32>,
    /// The file in place of `/etc/hosts`; `None` keeps that.
    hosts: Option<PathBuf>,
    /// `None` chooses a free address.
    listen: Option<SocketAddr>,
    /// `None` chooses a free address.
    admin: Option<SocketAddr>,
    log: LogTarget,
}

/// The standard error of a core.
#[derive(Debug, Default, Clone)]
enum LogTarget {
    /// A file: see [`Core::log`].
    #[default]
    File,
    Pipe(Arc<PipeWriter>),
    Closed,
}

impl CoreOptions {
    /// Sets an environment variable.
    #[must_use]
    pub fn with(mut self, variable: &str, value: impl Into<String>) -> Self {
        self.environment.push((variable.to_owned(), value.into()));
        self
    }

    /// Sets environment variables of core and its own Redis, such as those of a clock.
    #[must_use]
    pub fn with_all(mut self, environment: &[(&str, PathBuf)]) -> Self {
        for (name, value) in environment {
            self = self.with(name, value.to_string_lossy());
        }
        self
    }

    /// Exempts core and its own Redis from the slow disk: for tests of another fault.
    #[must_use]
    pub fn on_fast_disk(self) -> Self {
        self.with_all(&process::fast_disk())
    }

    /// Removes a variable that a core gets by default.
    #[must_use]
    pub fn without(mut self, variable: &'static str) -> Self {
        self.removed.push(variable);
        self
    }

    /// Adds a flag of `serve` that has no variable.
    #[must_use]
    pub fn with_flag(mut self, flag: &'static str) -> Self {
        self.flags.push(flag);
        self
    }

    /// Runs a different `claimgate` binary instead of the one under test.
    #[must_use]
    pub fn program(mut self, program: PathBuf) -> Self {
        self.program = Some(program);
        self
    }

    /// Starts core through another program, such as `env --ignore-signal=CHLD`.
    #[must_use]
    pub fn through(mut self, words: &'static [&'static str]) -> Self {
        self.through = words;
        self
    }

    /// Limits the number of open files and connections.
    #[must_use]
    pub fn with_descriptors(mut self, descriptors: u32) -> Self {
        self.descriptors = Some(descriptors);
        self
    }

    /// Gives core its own `/etc/hosts`. Needs root.
    #[must_use]
    pub fn with_hosts(mut self, hosts: PathBuf) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// Sets the address of the internal API, which a restart keeps.
    #[must_use]
    pub fn listen_at(mut self, listen: SocketAddr) -> Self {
        self.listen = Some(listen);
        self
    }

    /// Sets the address of the admin API, which a restart keeps.
    #[must_use]
    pub fn admin_at(mut self, admin: SocketAddr) -> Self {
        self.admin = Some(admin);
        self
    }

    /// Writes the log to a pipe.
    #[must_use]
    pub fn log_to(mut self, pipe: PipeWriter) -> Self {
        self.log = LogTarget::Pipe(Arc::new(pipe));
        self
    }

    /// Closes standard input, output and error, as the shell does with `<&- >&- 2>&-`.
    #[must_use]
    pub fn without_standard_streams(mut self) -> Self {
        self.log = LogTarget::Closed;
        self
    }

    /// Returns the command that becomes the program with its limits.
    fn command(&self) -> Command {
        let program = self.program.clone().unwrap_or_else(binary::claimgate);
        let mut wrapper = vec![];
        if let Some(hosts) = &self.hosts {
            wrapper.extend(with_hosts(hosts));
        }
        if let Some(descriptors) = self.descriptors {
            wrapper.extend(["prlimit".to_owned(), format!("--nofile={descriptors}:{descriptors}")]);
        }
        wrapper.extend(self.through.iter().map(|word| (*word).to_owned()));
        if matches!(self.log, LogTarget::Closed) {
            wrapper.extend(["sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"].map(str::to_owned));
        }
        match wrapper.split_first() {
            None => command(&program),
            Some((first, arguments)) => {
                let mut command = command(Path::new(first));
                command.args(arguments).arg(program);
                command
            }
        }
    }

    /// Starts a core in a fresh data directory and waits until it is ready.
    pub async fn start(self) -> Core {
        let core = Core::launch(self).await;
        core.ready().await;
        core
    }

    /// Starts a core in a directory that the test has prepared, with `data` as its data directory, and waits
    /// until it is ready.
    pub async fn start_in(self, directory: TempDir) -> Core {
        let core = Core::launch_in(Arc::new(directory), self).await;
        core.ready().await;
        core
    }

    /// Starts the servers for this core; `None` if core runs its own Redis or the test names a different one.
    async fn servers(&self) -> Option<Arc<Servers>> {
        let named = self.environment.iter().any(|(name, _)| name == "CLAIMGATE_REDIS_URL");
        if named || Topology::from_env() == Topology::Own {
            None
        } else {
            Some(Arc::new(Servers::start().await))
        }
    }
}

/// A running core. Dropping it kills its process and removes its data directory.
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
    /// Starts a core with SQLite and a Redis server, which core runs itself except on [other
    /// topologies](Topology); waits until it is ready.
    pub async fn start() -> Self {
        CoreOptions::default().start().await
    }

    /// Launches a core in a fresh data directory without waiting.
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
        let mut command = options.command();
        command
            .arg("serve")
            .args(&options.flags)
            .env("CLAIMGATE_LISTEN", listen.to_string())
            .env("CLAIMGATE_ADMIN_LISTEN", admin.to_string())
            .env("CLAIMGATE_DATA_DIR", directory.path().join("data"))
            .env("CLAIMGATE_API_TOKENS", format!("shop:{API_TOKEN}"))
            .envs(servers.iter().map(|servers| ("CLAIMGATE_REDIS_URL", servers.url())))
            .envs(path_without_redis(directory.path()))
            .envs(options.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(directory.path());
        for variable in &options.removed {
            command.env_remove(variable);
        }
        command
            // A new process group, as a shell would create, because a terminal sends signals to the group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log_file(directory.path()));
        match &options.log {
            LogTarget::Pipe(pipe) => command.stderr(pipe.try_clone().expect("a pipe")),
            LogTarget::File | LogTarget::Closed => command.stderr(log_file(directory.path())),
        };
        let process = Process::start(command);
        let data_dir = directory.path().join("data");
        let client = CoreClient { client: client(), listen, admin, data_dir };
        Self { process, options, servers, directory, client }
    }

    /// Waits until `/readyz` answers 200; core waits up to 30 s for a replaced Redis. Fails if core exits.
    pub async fn ready(&self) {
        assert!(self.ready_unless_ended().await, "core has exited:\n{}", self.log());
    }

    /// Waits until core is ready, and launches it again each time it exits because of a store, as a supervisor does: at
    /// its start, core waits only 5 s for a database that is recovering.
    pub async fn supervise(&mut self) {
        while !self.ready_unless_ended().await {
            let status = self.process.wait(SOON).await;
            assert_eq!(status.code(), Some(UNAVAILABLE), "core ended with {status}:\n{}", self.log());
            *self = self.launch_again();
        }
    }

    /// Waits until `/readyz` answers 200; returns `false` if core exits before.
    async fn ready_unless_ended(&self) -> bool {
        eventually(SOON, || async {
            match self.client().once().try_get(&self.admin_url("/readyz"), "").await {
                Ok(reply) if reply.status == 200 => Ok(true),
                _ if !runs(self.pid()) => Ok(false),
                Ok(reply) => Err(format!("/readyz answers {}: {}", reply.status, reply.text())),
                Err(error) => Err(format!("{error:#}\n{}", self.log())),
            }
        })
        .await
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Launches another core on the same data directory with the same options, without waiting. The core gets
    /// new addresses unless the options set them.
    #[must_use]
    pub fn launch_again(&self) -> Self {
        let (servers, directory) = (self.servers.clone(), Arc::clone(&self.directory));
        Self::launch_on(servers, directory, self.options.clone())
    }

    /// Launches the binary under test on the same data directory, regardless of the previous program.
    #[must_use]
    pub fn launch_tested(&self) -> Self {
        let options = CoreOptions { program: None, ..self.options.clone() };
        Self::launch_on(self.servers.clone(), Arc::clone(&self.directory), options)
    }

    /// Starts another core on the same data directory and waits until it is ready: for use after
    /// [`Core::kill`] or [`Core::stop`].
    pub async fn restart(&self) -> Self {
        let core = self.launch_again();
        core.ready().await;
        core
    }

    /// Sends SIGTERM, waits for the exit and checks that it succeeded.
    pub async fn stop(&mut self) {
        self.process.signal(Signal::TERM);
        let status = self.process.wait(SOON).await;
        assert!(status.success(), "core ended with {status} on SIGTERM:\n{}", self.log());
    }

    /// Returns the process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the path of the log.
    pub fn log_path(&self) -> PathBuf {
        log_path(self.directory.path())
    }

    /// Returns the complete log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until one line of the log contains all of `parts`.
    pub async fn until_logged(&self, within: Duration, parts: &[&str]) {
        eventually(within, || async {
            let log = self.log();
            holds(log.lines().any(|line| parts.iter().all(|part| line.contains(part))), || log.clone())
        })
        .await;
    }

    /// Returns the SQLite database.
    pub fn sql(&self) -> Sql {
        Sql::in_directory(&self.data_dir())
    }

    /// Opens a connection to core's Redis; waits until Redis answers.
    pub async fn redis(&self) -> RedisView {
        if let Some(servers) = &self.servers {
            return servers.view().await;
        }
        let socket =
            reqwest::Url::from_file_path(self.data_dir().join("redis.sock")).expect("an absolute path");
        let password = self.data_file("redis.password");
        let url = format!("redis+unix://{}?user=claimgate&pass={password}", socket.path());
        eventually(SOON, || async { RedisView::connect(&url).await }).await
    }

    /// Creates the campaign `id` with a single code, which a returned claim has used up. Returns the id of a claim that
    /// waits for a code.
    pub async fn run_out_of_codes(&self, id: &str) -> String {
        let mut body = campaign(id, json!({"total": 0}));
        body["codes"] = json!(true);
        self.create_with(body).await;
        self.add_codes(id, "A\n").await.expect(200);
        self.patch(id, json!({"limits": {"total": 1}})).await.expect(200);
        let claim_id = |reply: &Reply| reply.json()["claim"]["id"].as_str().expect("an id").to_owned();
        let returned = claim_id(&self.claim(id, "first", "k").await);
        let redis = self.redis().await;
        redis.relayed(id, SOON).await;
        self.transition(&returned, "return").await.expect(200);
        let waits = claim_id(&self.claim(id, "second", "k").await.expect(201));
        redis.relayed(id, SOON).await;
        waits
    }

    /// Returns the process id of the Redis that core runs.
    pub async fn redis_pid(&self) -> u32 {
        let pid = self.redis().await.pid().await;
        assert!(process::runs(pid), "Redis says it is process {pid}");
        pid
    }

    /// Returns the resident memory, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// Returns the peak of the resident memory, in KiB.
    pub fn peak_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    fn memory_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("core runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
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

/// Exit status of a core or a command because a store did not answer.
pub const UNAVAILABLE: i32 = 3;
/// Slightly longer than core's own deadline for a decision.
pub const DECISION: Duration = Duration::from_secs(3);

/// Returns the PATH of a core that must run Valkey, because core prefers `redis-server` if it finds one.
fn path_without_redis(directory: &Path) -> Option<(&'static str, PathBuf)> {
    if Kind::from_env() == Kind::Redis {
        return None;
    }
    let programs = directory.join("programs");
    if std::fs::create_dir(&programs).is_ok() {
        let path = std::env::var_os("PATH").expect("a PATH");
        // Programs through which cores are started.
        let starters = ["setpriv", "env", "sh", "prlimit", "unshare", "mount"].map(|name| {
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
