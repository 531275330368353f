//! Runs `scripts/dev.sh`, the script behind `make up`, `make up-workerd` and `make up-cluster`, with existing
//! builds.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use support::client::{Client, client};
use support::edge::{built, root};
use support::process::{Process, children_of, command, free_address};
use support::wait::holds;
use support::{RedisView, Reply, SOON, binary, claim_body, eventually};
use tempfile::TempDir;

use crate::command_line::{CommandOutput, run};

/// Pause between two tries, because of the edge's rate limit per address.
const PAUSE: Duration = Duration::from_millis(300);

/// A running script and its installation.
pub struct Up {
    /// Process of the script.
    pub process: Process,
    directory: TempDir,
    listen: String,
    admin: String,
    edge: String,
    client: Client,
}

impl Up {
    /// Starts the script with these arguments, and waits until everything is up.
    pub async fn start(arguments: &[&str], server: &str) -> Self {
        built().await;
        let directory = tempfile::Builder::new().prefix("cgu-").tempdir().unwrap();
        // PostgreSQL may run as another user.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).unwrap();
        fs::create_dir(directory.path().join("tmp")).unwrap();
        let [listen, admin, edge] = [(); 3].map(|()| free_address().to_string());
        let output = File::create(directory.path().join("output")).unwrap();
        let mut script = command(&root().join("scripts/dev.sh"));
        script
            .args(arguments)
            .envs(std::env::vars_os())
            .env("SERVER", server)
            .env("CLAIMGATE_BIN", binary::claimgate())
            .env("CLAIMGATE_DATA_DIR", directory.path().join("data"))
            .env("CLAIMGATE_LISTEN", &listen)
            .env("CLAIMGATE_ADMIN_LISTEN", &admin)
            .env("CLAIMGATE_EDGE_LISTEN", &edge)
            .env("TMPDIR", directory.path().join("tmp"))
            // Use a process group as a shell does, because a terminal sends signals to the group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let process = Process::start(script);
        let mut up = Self { process, directory, listen, admin, edge, client: client() };
        eventually(SOON, || {
            assert!(up.process.ended().is_none(), "{}", up.printed());
            let printed = up.printed();
            async move { holds(printed.contains("Ctrl-C stops everything"), || printed) }
        })
        .await;
        up
    }

    /// Returns the output so far.
    pub fn printed(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap()
    }

    /// Returns the word after each `label` in the output.
    pub fn words_after(&self, label: &str) -> Vec<String> {
        let printed = self.printed();
        let words = printed.split(label).skip(1).filter_map(|rest| rest.split_whitespace().next());
        words.map(|word| word.trim_end_matches([',', '.']).to_owned()).collect()
    }

    /// Returns the process id of the first core.
    pub fn first_core(&self) -> u32 {
        let data = format!("CLAIMGATE_DATA_DIR={}", self.directory.path().join("data").display());
        let claimgate = fs::canonicalize(binary::claimgate()).unwrap();
        let is_it = |pid: &u32| {
            let of = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            let has =
                |bytes: &[u8], word: &str| bytes.split(|byte| *byte == 0).any(|is| is == word.as_bytes());
            // workerd has the same variable.
            let is_claimgate = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == claimgate);
            is_claimgate && has(&of("environ"), &data)
        };
        let cores: Vec<_> = self.processes().into_iter().filter(is_it).collect();
        assert_eq!(cores.len(), 1, "{cores:?}");
        cores[0]
    }

    /// Returns the script's process and all its descendants.
    pub fn processes(&self) -> Vec<u32> {
        let mut found = vec![self.process.pid()];
        for at in 0.. {
            let Some(&parent) = found.get(at) else { break };
            found.extend(children_of(parent));
        }
        found
    }

    /// Returns the script's temporary files.
    pub fn temporary(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path().join("tmp")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains("claimgate.")).collect()
    }

    /// Makes a claim on the demo campaign as the page does, including the token.
    async fn claim(&self, user: &str) -> Reply {
        let url = |path: &str| format!("http://{}{path}", self.edge);
        let token = self.client.call(Method::POST, &url("/demo/token"), "", &json!({"user_id": user})).await;
        if token.status != 200 {
            return token;
        }
        let claim = self.client.request(Method::POST, &url("/v1/campaigns/demo/claims")).json(&json!({}));
        let claim = claim.header("Idempotency-Key", "k").bearer_auth(token.json()["token"].as_str().unwrap());
        self.client.send(claim).await.unwrap()
    }

    /// Makes the same claim at the core at `url`.
    pub async fn claim_at(&self, url: &str, user: &str) -> Reply {
        let token = fs::read_to_string(self.directory.path().join("data/admin.token")).unwrap();
        let (url, body) = (format!("{url}/internal/v1/claims"), claim_body("demo", user, "k", 1));
        self.client.call(Method::POST, &url, token.trim(), &body).await
    }

    /// Waits until a claim of `user` is answered with one of these statuses.
    pub async fn until_claim(&self, user: &str, statuses: &[u16]) -> Value {
        eventually(SOON, || async {
            let reply = self.claim(user).await;
            if statuses.contains(&reply.status) {
                return Ok(reply.json());
            }
            tokio::time::sleep(PAUSE).await;
            Err(format!("{} {}", reply.status, reply.text()))
        })
        .await
    }

    /// Waits until the node at `port` reports three healthy primaries and three healthy replicas.
    pub async fn until_six_nodes(&self, port: &str) {
        eventually(SOON, || async {
            let node = RedisView::connect(&format!("redis://127.0.0.1:{port}")).await?;
            let nodes: String = node.try_query(&["CLUSTER", "NODES"]).await?;
            let primaries = nodes.lines().filter(|line| line.contains("master")).count();
            let whole = !nodes.contains("fail") && nodes.lines().count() == 6 && primaries == 3;
            holds(whole, || nodes.clone())
        })
        .await;
    }

    /// Runs a drill through the edge.
    pub async fn drill(&self, arguments: &[&str]) -> CommandOutput {
        let (url, data) = (format!("http://{}", self.edge), self.directory.path().join("data"));
        let environment = [
            ("CLAIMGATE_LISTEN", self.listen.as_str()),
            ("CLAIMGATE_ADMIN_LISTEN", self.admin.as_str()),
            ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
        ];
        run(&[&["drill", &url], arguments].concat(), &environment, self.directory.path()).await
    }
}
