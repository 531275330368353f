//! The edge as deployed: the Worker in wrangler's runtime or in plain workerd, in front of a real core.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::{OnceCell, RwLock};

use crate::client::{Client, Reply, client};
use crate::lossy_proxy::LossyProxy;
use crate::process::{Signal, children_of, free_address};
use crate::topology::from_variable;
use crate::{Core, SOON, eventually, times};

/// The runtime for calls of shared worlds, which outlive the tests that use them.
pub static EXECUTOR: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

/// Write-locked by tests that need the machine and both runtimes for themselves.
pub static EDGE_LOCK: RwLock<()> = RwLock::const_new(());

/// Kills the whole process group and removes a directory when standard input closes, regardless of how the
/// tests end.
const GROUP_SCRIPT: &str =
    r#"directory=$1; shift; "$@" </dev/null & read -r _; sleep 0.2; rm -rf -- "$directory"; kill -KILL 0"#;

/// A program that ends, together with everything it started, when this process ends.
#[derive(Debug)]
pub struct ProcessGroup {
    shell: Child,
}

impl ProcessGroup {
    /// Starts `program` with its output in `log`. Removes `directory` when the program has ended.
    pub fn start(program: &Command, log: &Path, directory: &Path) -> Self {
        let log = File::create(log).unwrap();
        let mut shell = Command::new("setsid");
        shell
            .args(["bash", "-c", GROUP_SCRIPT, "leash"])
            .arg(directory)
            .arg(program.get_program())
            .args(program.get_args())
            .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(root())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Self { shell: shell.spawn().unwrap() }
    }
}

impl ProcessGroup {
    /// Returns the program's process id.
    pub fn pid(&self) -> u32 {
        children_of(self.shell.id()).first().copied().expect("the program runs")
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Returns the root of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Creates or empties the directory `name` under `target/tests` or `CLAIMGATE_TEST_LOGS`, and returns its
/// path. Logs are kept until the next run; concurrent runs need separate directories.
pub fn emptied(name: &str) -> PathBuf {
    let logs = std::env::var("CLAIMGATE_TEST_LOGS").unwrap_or_else(|_| "target/tests".to_owned());
    let directory = root().join(logs).join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// The runtime of the Worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// `wrangler dev`: Cloudflare's runtime behind a proxy that simulates its network.
    Wrangler,
    /// `workerd serve edge/workerd.capnp`: the self-hosted edge.
    Workerd,
}

impl Runtime {
    const NAMED: [(&'static str, Self); 2] = [("workerd", Self::Workerd), ("wrangler", Self::Wrangler)];

    /// Returns the runtime that `CLAIMGATE_TEST_EDGE` names; workerd by default.
    pub fn from_env() -> Self {
        from_variable("CLAIMGATE_TEST_EDGE", &Self::NAMED)
    }

    /// Translates wrangler.toml's `environment` into variables of workerd. Without a configured header
    /// workerd uses the peer's address, but the tests simulate many addresses.
    fn variables(self, environment: &str) -> Vec<(&'static str, &'static str)> {
        let mut variables = vec![];
        if self == Self::Workerd {
            variables.push(("CLIENT_ADDRESS", "CF-Connecting-IP"));
            match environment {
                "local" => variables.extend([("DEMO", "1"), ("DEFAULT_CAMPAIGN", "demo")]),
                "test" => variables.extend([("RATE_PER_ADDRESS_LIMIT", "0"), ("RATE_PER_USER_LIMIT", "0")]),
                _ => {}
            }
        }
        variables
    }

    fn command(self, edge: &EdgeFiles, environment: &str, variables: &[(&str, &str)]) -> Command {
        match self {
            Self::Wrangler => wrangler(edge, environment, variables),
            Self::Workerd => workerd(edge, variables),
        }
    }

    /// Returns the prefix of this runtime's directories under `target/tests`.
    fn name(self) -> &'static str {
        match self {
            Self::Wrangler => "wrangler",
            Self::Workerd => "workerd",
        }
    }
}

/// A running Worker.
#[derive(Debug)]
pub struct Edge {
    /// The address on which the Worker listens.
    pub listen: SocketAddr,
    log: PathBuf,
    _process: ProcessGroup,
}

/// The address and files of an edge.
#[derive(Debug)]
struct EdgeFiles {
    listen: SocketAddr,
    directory: PathBuf,
    /// workerd's configuration.
    config: PathBuf,
}

impl Edge {
    /// Starts the Worker with `environment` of wrangler.toml; `variables` override or extend it.
    pub async fn start(runtime: Runtime, name: &str, environment: &str, variables: &[(&str, &str)]) -> Self {
        let config = "edge/workerd.capnp".into();
        Self::start_with(config, runtime, name, environment, variables).await
    }

    /// Starts the Worker, in workerd with the configuration `config`.
    pub async fn start_with(
        config: PathBuf,
        runtime: Runtime,
        name: &str,
        environment: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        built().await;
        let directory = emptied(&format!("{}-{name}", runtime.name()));
        let files = EdgeFiles { listen: free_address(), directory, config };
        let mut all = runtime.variables(environment);
        all.extend_from_slice(variables);
        let (listen, log) = (files.listen, files.directory.join("edge.log"));
        let command = runtime.command(&files, environment, &all);
        let process = ProcessGroup::start(&command, &log, &files.directory.join("state"));
        let (client, url) = (client(), format!("http://{listen}/livez"));
        eventually(SOON, || async {
            match client.try_get(&url, "").await {
                Ok(reply) if reply.status == 200 => Ok(()),
                other => Err(format!("{other:?}\n{}", fs::read_to_string(&log).unwrap_or_default())),
            }
        })
        .await;
        Self { listen, log, _process: process }
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns a URL of the edge.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.listen)
    }
}

static BUILT: OnceCell<()> = OnceCell::const_new();

/// Waits until the Worker is built.
pub async fn built() {
    BUILT.get_or_init(build).await;
}

/// Builds the Worker once if needed: otherwise every wrangler would build it at the same time.
async fn build() {
    let script = root().join("scripts/build-worker.sh");
    let built = tokio::process::Command::new(&script).output().await.expect("scripts/build-worker.sh");
    assert!(built.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&built.stderr));
}

fn wrangler(edge: &EdgeFiles, environment: &str, variables: &[(&str, &str)]) -> Command {
    let lines = variables.iter().map(|(name, value)| format!("{name}={value}\n"));
    fs::write(edge.directory.join("vars"), lines.collect::<String>()).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(tool("wrangler"));
    command
        .args(["dev", "--env", environment, "--inspector-port", "0"])
        .args(["--ip", &edge.listen.ip().to_string(), "--port", &edge.listen.port().to_string()])
        .arg("--show-interactive-dev-session=false")
        .arg("--env-file")
        .arg(edge.directory.join("vars"))
        .arg("--persist-to")
        .arg(edge.directory.join("state"))
        .env("PATH", format!("{}:{path}", tool("").display()))
        .env("WRANGLER_SEND_METRICS", "false")
        .env("WRANGLER_SEND_ERROR_REPORTS", "false")
        .env("WRANGLER_HIDE_BANNER", "true")
        .env("CLOUDFLARE_CF_FETCH_ENABLED", "false");
    command
}

/// Configures the cores of `CORE_URL` as external services, which restrict the edge to these addresses.
fn workerd(edge: &EdgeFiles, variables: &[(&str, &str)]) -> Command {
    let cores = variables.iter().rev().find(|(name, _)| *name == "CORE_URL").expect("CORE_URL").1.split(',');
    let mut command = Command::new(tool("workerd"));
    command
        .arg("serve")
        .arg(&edge.config)
        .args(["--socket-addr", &format!("http={}", edge.listen)])
        .env("CORES", cores.clone().count().to_string())
        .envs(variables.iter().copied());
    for (number, core) in (1..).zip(cores) {
        let service = if number == 1 { "core".to_owned() } else { format!("core-{number}") };
        let address = core.strip_prefix("http://").expect("CORE_URL of http");
        command.args(["--external-addr", &format!("{service}={address}")]);
    }
    if let Some((_, url)) = variables.iter().find(|(name, _)| *name == "OTLP_URL") {
        let address = url.strip_prefix("http://").expect("OTLP_URL of http");
        command.args(["--external-addr", &format!("collector={address}")]);
    }
    command
}

/// Returns the path of a program in `node_modules`; with an empty name, of the directory.
pub fn tool(name: &str) -> PathBuf {
    root().join("node_modules/.bin").join(name)
}

/// An edge, the core behind it, and a proxy between them.
#[derive(Debug)]
pub struct World {
    /// The core.
    pub core: Core,
    /// The proxy between edge and core.
    pub proxy: LossyProxy,
    /// The edge.
    pub edge: Edge,
    client: Client,
    _cleanup: ProcessGroup,
}

impl World {
    /// Starts a world with `environment` of wrangler.toml and these variables.
    pub async fn start(runtime: Runtime, name: &str, environment: &str, variables: &[(&str, &str)]) -> Self {
        Self::before(Core::start().await, runtime, name, environment, variables).await
    }

    /// Starts the rest of a world around a running core.
    pub async fn before(
        core: Core,
        runtime: Runtime,
        name: &str,
        environment: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        // A world is never dropped, so its core's directory needs a separate cleanup.
        let mut nothing = Command::new("true");
        nothing.env("LC_ALL", "C");
        let cleanup =
            ProcessGroup::start(&nothing, Path::new("/dev/null"), core.data_dir().parent().unwrap());
        let proxy = LossyProxy::to(core.listen());
        let core_url = format!("http://{}", proxy.listen);
        let (edge_key, user_jwt_key) = (core.data_file("edge.key"), core.data_file("user-jwt.key"));
        let mut all = vec![
            ("CORE_URL", core_url.as_str()),
            ("EDGE_KEY", edge_key.as_str()),
            ("USER_JWT_KEY", user_jwt_key.as_str()),
        ];
        all.extend_from_slice(variables);
        let edge = Edge::start(runtime, name, environment, &all).await;
        Self { core, proxy, edge, client: client(), _cleanup: cleanup }
    }

    /// Restarts core after a kill, and points the proxy to it.
    pub async fn restart_core(&mut self) {
        self.core = self.core.restart().await;
        self.proxy.forward_to(self.core.listen());
    }

    /// Undoes what a failed test left behind, so that the next test fails only for its own reasons.
    pub async fn heal(&mut self) {
        self.proxy.lose_answers(0);
        self.proxy.lose_all_answers(false);
        self.proxy.delay_answers(Duration::ZERO);
        self.core.process().signal(Signal::CONT);
        if self.core.process().ended().is_some() {
            self.restart_core().await;
        }
    }

    /// Starts a request to the edge, for the test to complete.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().expect("a method");
        self.client.request(method, &self.edge.url(path))
    }

    /// Sends `request` and retries it if a retry may help.
    pub async fn send(&self, request: RequestBuilder) -> Reply {
        self.client.send(request).await.expect("an answer of the edge")
    }

    /// Sends `request` once: for tests about availability.
    pub async fn send_once(&self, request: RequestBuilder) -> Reply {
        self.client.once().send(request).await.expect("an answer of the edge")
    }

    /// Starts a claim of one unit by a user with a token, for the test to complete.
    pub fn claim_request(&self, campaign: &str, user: &str) -> RequestBuilder {
        self.claim_request_at(&self.edge, campaign, user)
    }

    /// Returns the same request for a different edge of this core.
    pub fn claim_request_at(&self, edge: &Edge, campaign: &str, user: &str) -> RequestBuilder {
        let url = edge.url(&format!("/v1/campaigns/{campaign}/claims"));
        self.client.request(Method::POST, &url).bearer_auth(self.token(user)).json(&json!({}))
    }

    /// Returns an unsent claim with a key and without a mark.
    pub fn keyed_request(&self, campaign: &str, user: &str, key: &str) -> RequestBuilder {
        self.claim_request(campaign, user).header("Idempotency-Key", key)
    }

    /// Returns an unsent claim with a key, marked as a first try.
    pub fn first_try_request(&self, campaign: &str, user: &str, key: &str) -> RequestBuilder {
        self.keyed_request(campaign, user, key).header("Claimgate-Attempt", "1")
    }

    /// Sends a claim with a key and without a mark: it may be a retry.
    pub async fn claim(&self, campaign: &str, user: &str, key: &str) -> Reply {
        self.send(self.keyed_request(campaign, user, key)).await
    }

    /// Sends the same claim once: for tests about availability.
    pub async fn claim_once(&self, campaign: &str, user: &str, key: &str) -> Reply {
        self.send_once(self.keyed_request(campaign, user, key)).await
    }

    /// Sends a claim with a key, marked as a first try.
    pub async fn first_try(&self, campaign: &str, user: &str, key: &str) -> Reply {
        self.send(self.first_try_request(campaign, user, key)).await
    }

    /// Returns an unsent request for a campaign.
    pub fn view_request(&self, campaign: &str) -> RequestBuilder {
        self.request("GET", &format!("/v1/campaigns/{campaign}"))
    }

    /// Returns the campaign as the edge shows it.
    pub async fn view(&self, campaign: &str) -> Reply {
        self.send(self.view_request(campaign)).await
    }

    /// Waits until the edge shows the campaign in `state`.
    pub async fn until_edge_shows(&self, campaign: &str, state: &str) {
        eventually(SOON, || async {
            let seen = self.view(campaign).await.expect(200).json();
            crate::wait::holds(seen["state"] == state, || format!("{campaign} is {}", seen["state"]))
        })
        .await;
    }

    /// Returns an unsent lookup of a user's claim.
    pub fn look_up_request(&self, claim_id: &str, user: &str) -> RequestBuilder {
        self.request("GET", &format!("/v1/claims/{claim_id}")).bearer_auth(self.token(user))
    }

    /// Looks up a user's claim through the edge.
    pub async fn look_up(&self, claim_id: &str, user: &str) -> Reply {
        self.send(self.look_up_request(claim_id, user)).await
    }

    /// Returns a token for `user` that is valid for ten minutes.
    pub fn token(&self, user: &str) -> String {
        token(&self.core.data_file("user-jwt.key"), user)
    }

    /// Returns a token with arbitrary content, signed with HS256 and the right key.
    pub fn token_of(&self, header: &Value, payload: &Value) -> String {
        signed(&self.core.data_file("user-jwt.key"), header, payload)
    }

    /// Returns the requests that the edge sent to core for the request that `reply` answers.
    pub fn forwarded(&self, reply: &Reply) -> Vec<String> {
        self.proxy.requests_with(reply.header("x-request-id"))
    }
}

/// Returns the payload of a valid token.
pub fn payload(user: &str) -> Value {
    json!({"iss": "claimgate", "aud": "claimgate", "sub": user, "exp": times::now_ms() / 1000 + 600})
}

/// Returns a token for `user`, signed with the edge's `USER_JWT_KEY` and valid for ten minutes.
pub fn token(user_jwt_key: &str, user: &str) -> String {
    signed(user_jwt_key, &json!({"alg": "HS256", "typ": "JWT"}), &payload(user))
}

/// Returns a token with arbitrary content, signed with HS256 and the edge's `USER_JWT_KEY`.
pub fn signed(user_jwt_key: &str, header: &Value, payload: &Value) -> String {
    let key = URL_SAFE_NO_PAD.decode(user_jwt_key).expect("base64url");
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let text = format!("{}.{}", part(header), part(payload));
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes any key");
    mac.update(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}
