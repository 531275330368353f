//! `make up-cluster` as its user meets it: the script behind it, with what was built before.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use support::client::{Client, client};
use support::edge::{EDGE_READY, built, root};
use support::process::{Process, Signal, children_of, command, free_address, runs, signal_group, signal_pid};
use support::wait::holds;
use support::{RedisView, Reply, SOON, binary, claim_body, eventually, heavy};
use tempfile::TempDir;

/// Between two tries at the edge, which limits how often one address may ask.
const PAUSE: Duration = Duration::from_millis(300);

/// The script at work.
struct Up {
    process: Process,
    directory: TempDir,
    edge: String,
    client: Client,
}

impl Up {
    /// Starts it, and waits until it says that all is there.
    async fn start() -> Self {
        built().await;
        let directory = tempfile::Builder::new().prefix("cgu-").tempdir().unwrap();
        // PostgreSQL may have to be another user.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).unwrap();
        fs::create_dir(directory.path().join("tmp")).unwrap();
        let edge = free_address().to_string();
        let output = File::create(directory.path().join("output")).unwrap();
        let mut script = command(&root().join("scripts/dev.sh"));
        script
            .args(["wrangler", "cluster"])
            .envs(std::env::vars_os())
            .env("CLAIMGATE_BIN", binary::claimgate())
            .env("CLAIMGATE_DATA_DIR", directory.path().join("data"))
            .env("CLAIMGATE_LISTEN", free_address().to_string())
            .env("CLAIMGATE_ADMIN_LISTEN", free_address().to_string())
            .env("CLAIMGATE_EDGE_LISTEN", &edge)
            .env("TMPDIR", directory.path().join("tmp"))
            // As a shell starts it: what a terminal sends goes to the group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let mut up = Self { process: Process::start(script), directory, edge, client: client() };
        eventually(EDGE_READY, || {
            assert!(up.process.ended().is_none(), "{}", up.said());
            let said = up.said();
            async move { holds(said.contains("Ctrl-C stops it all"), || said) }
        })
        .await;
        up
    }

    /// All that it has printed.
    fn said(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap()
    }

    /// The words that it has printed right behind each `label`.
    fn told(&self, label: &str) -> Vec<String> {
        let said = self.said();
        let words = said.split(label).skip(1).filter_map(|rest| rest.split_whitespace().next());
        words.map(|word| word.trim_end_matches([',', '.']).to_owned()).collect()
    }

    /// The process of the core that was started first.
    fn first_core(&self) -> u32 {
        let data = format!("CLAIMGATE_DATA_DIR={}", self.directory.path().join("data").display());
        let claimgate = fs::canonicalize(binary::claimgate()).unwrap();
        let is_it = |pid: &u32| {
            let of = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            let has =
                |bytes: &[u8], word: &str| bytes.split(|byte| *byte == 0).any(|is| is == word.as_bytes());
            // workerd's has the same variable.
            let is_claimgate = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == claimgate);
            is_claimgate && has(&of("environ"), &data)
        };
        let cores: Vec<_> = self.processes().into_iter().filter(is_it).collect();
        assert_eq!(cores.len(), 1, "{cores:?}");
        cores[0]
    }

    /// All that it has started, and what those have.
    fn processes(&self) -> Vec<u32> {
        let mut found = vec![self.process.pid()];
        for at in 0.. {
            let Some(&parent) = found.get(at) else { break };
            found.extend(children_of(parent));
        }
        found
    }

    /// What lies in its directory for temporary files.
    fn temporary(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path().join("tmp")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains("claimgate.")).collect()
    }

    /// A claim on the demo campaign as the page makes it, token and all.
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

    /// The same claim, asked for at the core at `url`.
    async fn claim_at(&self, url: &str, user: &str) -> Reply {
        let token = fs::read_to_string(self.directory.path().join("data/admin.token")).unwrap();
        let (url, body) = (format!("{url}/internal/v1/claims"), claim_body("demo", user, "k", 1));
        self.client.call(Method::POST, &url, token.trim(), &body).await
    }

    /// Waits until a claim of `user` is answered with one of these statuses.
    async fn claims(&self, user: &str, statuses: &[u16]) -> Value {
        eventually(3 * SOON, || async {
            let reply = self.claim(user).await;
            if statuses.contains(&reply.status) {
                return Ok(reply.json());
            }
            tokio::time::sleep(PAUSE).await;
            Err(format!("{} {}", reply.status, reply.text()))
        })
        .await
    }

    /// Waits until the node at `port` knows three primaries and three replicas, none of which has failed.
    async fn six_nodes(&self, port: &str) {
        eventually(2 * SOON, || async {
            let node = RedisView::connect(&format!("redis://127.0.0.1:{port}")).await?;
            let nodes: String = node.try_query(&["CLUSTER", "NODES"]).await?;
            let primaries = nodes.lines().filter(|line| line.contains("master")).count();
            let whole = !nodes.contains("fail") && nodes.lines().count() == 6 && primaries == 3;
            holds(whole, || nodes.clone())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up_cluster_survives_a_primary_and_leaves_nothing_behind() {
    let _machine = heavy().await;
    let mut up = Up::start().await;
    let ports = up.told("node at port ");
    assert_eq!(ports.len(), 6, "{}", up.said());
    up.six_nodes(&ports[0]).await;

    let alice = up.claims("alice", &[201]).await;
    let second = up.told("second core      ").remove(0);
    let replay = up.claim_at(&second, "alice").await.expect(200).json();
    assert!(alice["claim"]["id"].is_string(), "{alice}");
    assert_eq!(alice["claim"]["id"], replay["claim"]["id"], "both cores are of one installation");

    let primary = up.told("kill -9 ").remove(0).parse().unwrap();
    signal_pid(primary, Signal::KILL);
    // Decided already where the answer to an earlier try was lost.
    up.claims("bob", &[200, 201]).await;
    eventually(SOON, || async { holds(up.said().contains("is started again"), || up.said()) }).await;
    for port in &ports {
        up.six_nodes(port).await;
    }

    let before = up.processes();
    signal_pid(up.first_core(), Signal::KILL);
    up.claims("carol", &[200, 201]).await;
    assert!(up.said().contains("the other one goes on"), "{}", up.said());
    // Six nodes, PostgreSQL, two cores, wrangler and the script.
    assert!(before.len() >= 11, "{before:?}");
    signal_group(up.process.pid(), Signal::INT);
    let status = up.process.wait(2 * SOON).await;
    assert!(status.success(), "{status}: {}", up.said());
    let left: Vec<_> = before.into_iter().filter(|pid| runs(*pid)).collect();
    assert!(left.is_empty() && up.temporary().is_empty(), "{left:?}, {:?}", up.temporary());
}
