//! The edge as it runs: the Worker in wrangler's runtime or in plain workerd, in front of a real core.

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
use crate::process::{Signal, free_address};
use crate::topology::asked;
use crate::{Core, eventually, times};

/// wrangler starts within seconds, but not when the whole machine is busy.
pub const EDGE_READY: Duration = Duration::from_secs(120);

/// Worlds outlive the tests that share them, so their calls need a runtime that does too.
pub static EXECUTOR: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

/// Held for writing by who wants the machine, and both runtimes, for itself.
pub static TURN: RwLock<()> = RwLock::const_new(());

/// Ends the whole process group, and removes a directory, when its standard input ends: nothing stays behind, however
/// the tests end.
const LEASH: &str =
    r#"directory=$1; shift; "$@" </dev/null & read -r _; sleep 0.2; rm -rf -- "$directory"; kill -KILL 0"#;

/// A program that dies with this process, and everything it has started.
#[derive(Debug)]
pub struct Leashed {
    shell: Child,
}

impl Leashed {
    /// Starts `program`, its output going to `log`; `directory` is removed when it is over.
    pub fn start(program: &Command, log: &Path, directory: &Path) -> Self {
        let log = File::create(log).unwrap();
        let mut shell = Command::new("setsid");
        shell
            .args(["bash", "-c", LEASH, "leash"])
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

impl Drop for Leashed {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// The checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A directory of this name under `target/tests`, emptied: logs are kept until the next run.
pub fn emptied(name: &str) -> PathBuf {
    let directory = root().join("target/tests").join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// What runs the Worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// `wrangler dev`: Cloudflare's runtime behind a proxy that stands for its network.
    Wrangler,
    /// `workerd serve edge/workerd.capnp`: as one hosts it oneself.
    Workerd,
}

impl Runtime {
    const NAMED: [(&'static str, Self); 2] = [("workerd", Self::Workerd), ("wrangler", Self::Wrangler)];

    /// The one that `CLAIMGATE_TEST_EDGE` names; plain workerd without it.
    pub fn asked() -> Self {
        asked("CLAIMGATE_TEST_EDGE", &Self::NAMED)
    }

    /// What wrangler.toml says of `environment`, in variables of the other runtime. There the peer's address counts
    /// unless a header is named; the tests speak for many addresses.
    fn variables(self, environment: &str) -> Vec<(&'static str, &'static str)> {
        let mut variables = vec![];
        if self == Self::Workerd {
            variables.push(("CLIENT_ADDRESS", "CF-Connecting-IP"));
            match environment {
                "local" => variables.push(("DEMO", "1")),
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

    /// The name of its directories under `target/tests`.
    fn name(self) -> &'static str {
        match self {
            Self::Wrangler => "wrangler",
            Self::Workerd => "workerd",
        }
    }
}

/// A Worker that runs.
#[derive(Debug)]
pub struct Edge {
    /// Where it listens.
    pub listen: SocketAddr,
    log: PathBuf,
    _process: Leashed,
}

/// Where an edge listens, and keeps its files.
#[derive(Debug)]
struct EdgeFiles {
    listen: SocketAddr,
    directory: PathBuf,
}

impl Edge {
    /// The Worker as `environment` of wrangler.toml has it, with these variables instead of its own or besides them.
    pub async fn start(runtime: Runtime, name: &str, environment: &str, variables: &[(&str, &str)]) -> Self {
        built().await;
        let directory = emptied(&format!("{}-{name}", runtime.name()));
        let files = EdgeFiles { listen: free_address(), directory };
        let mut all = runtime.variables(environment);
        all.extend_from_slice(variables);
        let (listen, log) = (files.listen, files.directory.join("edge.log"));
        let command = runtime.command(&files, environment, &all);
        let process = Leashed::start(&command, &log, &files.directory.join("state"));
        let (client, url) = (client(), format!("http://{listen}/livez"));
        eventually(EDGE_READY, || async {
            match client.try_get(&url, "").await {
                Ok(reply) if reply.status == 200 => Ok(()),
                other => Err(format!("{other:?}\n{}", fs::read_to_string(&log).unwrap_or_default())),
            }
        })
        .await;
        Self { listen, log, _process: process }
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A URL of the edge.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.listen)
    }
}

static BUILT: OnceCell<()> = OnceCell::const_new();

/// Waits until the Worker is built.
pub async fn built() {
    BUILT.get_or_init(build).await;
}

/// Builds the Worker where that was not done, once: every wrangler would do it by itself, all of them at the same time.
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

/// The cores of `CORE_URL` are external services here, which no other address can be reached through.
fn workerd(edge: &EdgeFiles, variables: &[(&str, &str)]) -> Command {
    let cores = variables.iter().rev().find(|(name, _)| *name == "CORE_URL").expect("CORE_URL").1.split(',');
    let mut command = Command::new(tool("workerd"));
    command
        .args(["serve", "edge/workerd.capnp"])
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

/// A program of `node_modules`, or with no name their directory.
pub fn tool(name: &str) -> PathBuf {
    root().join("node_modules/.bin").join(name)
}

/// An edge, the core behind it, and the proxy between them.
#[derive(Debug)]
pub struct World {
    /// The core.
    pub core: Core,
    /// Between the edge and core.
    pub proxy: LossyProxy,
    /// The edge.
    pub edge: Edge,
    client: Client,
    _broom: Leashed,
}

impl World {
    /// A world with the Worker as `environment` has it, and these variables.
    pub async fn start(runtime: Runtime, name: &str, environment: &str, variables: &[(&str, &str)]) -> Self {
        Self::before(Core::start().await, runtime, name, environment, variables).await
    }

    /// The same before a core that runs.
    pub async fn before(
        core: Core,
        runtime: Runtime,
        name: &str,
        environment: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        // A world is never dropped, so the core's directory is not removed with it.
        let mut nothing = Command::new("true");
        nothing.env("LC_ALL", "C");
        let broom = Leashed::start(&nothing, Path::new("/dev/null"), core.data_dir().parent().unwrap());
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
        Self { core, proxy, edge, client: client(), _broom: broom }
    }

    /// `kill -9` of core, and its return.
    pub async fn restart_core(&mut self) {
        self.core = self.core.restart().await;
        self.proxy.lead_to(self.core.listen());
    }

    /// Ends what a test that failed has left behind, so that the next one fails only for reasons of its own.
    pub async fn heal(&mut self) {
        self.proxy.lose_answers(0);
        self.proxy.lose_all_answers(false);
        self.proxy.delay_answers(Duration::ZERO);
        self.core.process().signal(Signal::CONT);
        if self.core.process().ended().is_some() {
            self.restart_core().await;
        }
    }

    /// A request to the edge, to be filled in.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().expect("a method");
        self.client.request(method, &self.edge.url(path))
    }

    /// Sends it, and repeats it where that may help.
    pub async fn send(&self, request: RequestBuilder) -> Reply {
        self.client.send(request).await.expect("an answer of the edge")
    }

    /// Sends it, and takes the first answer: for tests about availability.
    pub async fn send_once(&self, request: RequestBuilder) -> Reply {
        self.client.once().send(request).await.expect("an answer of the edge")
    }

    /// A claim of one unit to be filled in, of a user with a token.
    pub fn claim_request(&self, campaign: &str, user: &str) -> RequestBuilder {
        self.claim_request_at(&self.edge, campaign, user)
    }

    /// The same at another edge of this world's core.
    pub fn claim_request_at(&self, edge: &Edge, campaign: &str, user: &str) -> RequestBuilder {
        let url = edge.url(&format!("/v1/campaigns/{campaign}/claims"));
        self.client.request(Method::POST, &url).bearer_auth(self.token(user)).json(&json!({}))
    }

    /// A claim with a key, unmarked, to be sent.
    pub fn keyed_request(&self, campaign: &str, user: &str, key: &str) -> RequestBuilder {
        self.claim_request(campaign, user).header("Idempotency-Key", key)
    }

    /// A claim with a key, marked as its first try, to be sent.
    pub fn first_try_request(&self, campaign: &str, user: &str, key: &str) -> RequestBuilder {
        self.keyed_request(campaign, user, key).header("Claimgate-Attempt", "1")
    }

    /// A claim with a key that is not marked: it may be a retry.
    pub async fn claim(&self, campaign: &str, user: &str, key: &str) -> Reply {
        self.send(self.keyed_request(campaign, user, key)).await
    }

    /// The same claim, asked for once: for tests about availability.
    pub async fn claim_once(&self, campaign: &str, user: &str, key: &str) -> Reply {
        self.send_once(self.keyed_request(campaign, user, key)).await
    }

    /// A claim with a key, marked as its first try.
    pub async fn first_try(&self, campaign: &str, user: &str, key: &str) -> Reply {
        self.send(self.first_try_request(campaign, user, key)).await
    }

    /// A view of a campaign, to be sent.
    pub fn view_request(&self, campaign: &str) -> RequestBuilder {
        self.request("GET", &format!("/v1/campaigns/{campaign}"))
    }

    /// The campaign as the edge shows it.
    pub async fn view(&self, campaign: &str) -> Reply {
        self.send(self.view_request(campaign)).await
    }

    /// Waits until the edge has seen the campaign in `state`.
    pub async fn until_seen(&self, campaign: &str, state: &str) {
        eventually(crate::SOON, || async {
            let seen = self.view(campaign).await.expect(200).json();
            crate::wait::holds(seen["state"] == state, || format!("{campaign} is {}", seen["state"]))
        })
        .await;
    }

    /// A look-up of a claim of the user's, to be sent.
    pub fn look_up_request(&self, claim_id: &str, user: &str) -> RequestBuilder {
        self.request("GET", &format!("/v1/claims/{claim_id}")).bearer_auth(self.token(user))
    }

    /// A claim of the user's, looked up through the edge.
    pub async fn look_up(&self, claim_id: &str, user: &str) -> Reply {
        self.send(self.look_up_request(claim_id, user)).await
    }

    /// A token for `user`, good for ten minutes.
    pub fn token(&self, user: &str) -> String {
        token(&self.core.data_file("user-jwt.key"), user)
    }

    /// A token that says anything, signed with HS256 and the right key.
    pub fn token_of(&self, header: &Value, payload: &Value) -> String {
        signed(&self.core.data_file("user-jwt.key"), header, payload)
    }

    /// What the edge sent to core for the request that `reply` answers.
    pub fn passed_on(&self, reply: &Reply) -> Vec<String> {
        self.proxy.said(reply.header("x-request-id"))
    }
}

/// What a good token says.
pub fn payload(user: &str) -> Value {
    json!({"iss": "claimgate", "aud": "claimgate", "sub": user, "exp": times::now_ms() / 1000 + 600})
}

/// A token for `user` by the edge's `USER_JWT_KEY`, good for ten minutes.
pub fn token(user_jwt_key: &str, user: &str) -> String {
    signed(user_jwt_key, &json!({"alg": "HS256", "typ": "JWT"}), &payload(user))
}

fn signed(user_jwt_key: &str, header: &Value, payload: &Value) -> String {
    let key = URL_SAFE_NO_PAD.decode(user_jwt_key).expect("base64url");
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let text = format!("{}.{}", part(header), part(payload));
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes any key");
    mac.update(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}
