//! docs/deployment.md: the edge as one program, and the settings of Redis.

use support::client::client;
use support::cluster::ClusterSet;
use support::edge::{built, root, token};
use support::examples::{ExampleShell, Examples};
use support::process::{Process, free_address};
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually, only_on};

const CLOUDFLARE: &str = "it needs an account at Cloudflare";
const POOLERS: &str = "tests/e2e/poolers.rs";
const NODES: &str = "10.0.0.1,10.0.0.2,10.0.0.3";

/// The document's examples that are run, in order.
struct Shown {
    compile: String,
    redis: String,
    sentinel: String,
    replicas: String,
    cluster: String,
    key: String,
}

impl Shown {
    fn read() -> Self {
        let mut deployment = Examples::of("docs/deployment.md");
        for start in
            ["npx wrangler vpc", "[[env.production.vpc_services]]", "[env.production]", "npx wrangler secret"]
        {
            deployment.left_out(start, CLOUDFLARE);
        }
        let compile = deployment.next("scripts/setup.sh");
        deployment.left_out(
            "upstream edge",
            "the setup has no nginx, and the document says that the example was not run",
        );
        deployment.run_in("pool_mode = session", POOLERS);
        let shown = Self {
            compile,
            redis: deployment.next("appendonly yes"),
            sentinel: deployment.next("CLAIMGATE_REDIS_URL=redis+sentinel://claimgate:PASSWORD@"),
            replicas: deployment.next("CLAIMGATE_REDIS_REPLICAS=1 CLAIMGATE_REDIS_URL=redis+sentinel://"),
            cluster: deployment.next("CLAIMGATE_REDIS_URL=redis+cluster://"),
            key: deployment.next("echo \"k2:"),
        };
        deployment.end();
        shown
    }
}

#[tokio::test]
async fn the_edge_compiles_to_one_program_as_shown() {
    built().await;
    let core = Core::start().await;
    core.create("demo", serde_json::json!({"total": 10})).await;
    let place = |name: &str| root().join(name).display().to_string();
    let compile = Shown::read().compile;
    let [_set_up, compile, start] = compile.lines().collect::<Vec<_>>()[..] else { panic!("{compile}") };
    let edge = free_address();
    let desk = ExampleShell::of(&core)
        .with("EDGE_KEY", &core.data_file("edge.key"))
        .with("USER_JWT_KEY", &core.data_file("user-jwt.key"))
        .with("CLIENT_ADDRESS", "X-Real-IP")
        .replacing("node_modules/", &format!("{}/", place("node_modules")))
        .replacing("edge/workerd.capnp", &place("edge/workerd.capnp"))
        .replacing("127.0.0.1:8787", &edge.to_string());
    let _ = desk.run(compile).await.ended(0);
    let _ = desk.run("chmod +x claimgate-edge").await.ended(0);
    let _edge = Process::start(desk.shell(&format!("exec {start}")));
    let url = format!("http://{edge}/v1/campaigns/demo/claims");
    let token = token(&core.data_file("user-jwt.key"), "alice");
    eventually(SOON, || async {
        let claim = client().request(reqwest::Method::POST, &url).bearer_auth(&token);
        let claim = claim.header("X-Real-IP", "10.1.2.3").header("Idempotency-Key", "k");
        let reply = client().send(claim.json(&serde_json::json!({}))).await;
        let reply = reply.map_err(|error| format!("{error:#}"))?;
        holds(reply.status < 300, || format!("{reply:?}"))
    })
    .await;
}

#[tokio::test]
async fn doctor_accepts_the_documented_redis_settings() {
    only_on!(OWN, "it starts its own server");
    let text = Shown::read().redis;
    let settings = text.lines().filter(|line| !line.starts_with('#'));
    let settings: Vec<_> = settings.map(|line| line.split_once(' ').unwrap()).collect();
    let server = RedisServer::start_with(&settings, &[]).await;
    let directory = tempfile::tempdir().unwrap();
    let desk = ExampleShell::at(directory.path()).with("CLAIMGATE_REDIS_URL", &server.url());
    // Core is not running yet.
    let output = desk.run("claimgate doctor").await.ended(3);
    assert!(
        !output.out.contains("breaks:") && output.out.contains("checked: the Redis of CLAIMGATE_REDIS_URL"),
        "{output:?}"
    );
}

#[tokio::test]
async fn an_edge_key_generated_as_documented_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let key = ExampleShell::at(directory.path()).run(&Shown::read().key).await.ended(0).out;
    CoreOptions::default().with("CLAIMGATE_EDGE_KEYS", key.trim()).start().await;
}

/// Creates core's ACL user on a server.
async fn make_user(server: &RedisView) {
    let user = ["ACL", "SETUSER", "claimgate", "on", ">PASSWORD", "~cg:*", "+@all", "-@dangerous", "-@admin"];
    let may = ["+info", "+config|get", "+cluster|slots", "+cluster|info", "+cluster|myid"];
    server.query::<()>(&[&user[..], &may[..]].concat()).await;
}

/// Runs an example that starts core on `nodes`, and waits until core is ready.
async fn becomes_ready(example: &str, nodes: &str) {
    let directory = tempfile::Builder::new().prefix("cg-").tempdir().unwrap();
    let (listen, admin) = (free_address(), free_address());
    let desk = ExampleShell::at(directory.path())
        .with("CLAIMGATE_LISTEN", &listen.to_string())
        .with("CLAIMGATE_ADMIN_LISTEN", &admin.to_string())
        .replacing(NODES, nodes);
    assert!(example.contains(NODES), "{example}");
    let _core = Process::start(desk.shell(&format!("exec env {example}")));
    let url = format!("http://{admin}/readyz");
    eventually(SOON, || async {
        let reply = client().try_get(&url, "").await.map_err(|error| format!("{error:#}"))?;
        holds(reply.status == 200, || reply.text())
    })
    .await;
}

/// Returns the part of a URL between its scheme and its path.
fn nodes_of(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap();
    rest.split('/').next().unwrap()
}

#[tokio::test]
async fn core_starts_with_sentinel_as_shown() {
    only_on!(OWN, "it starts its own servers");
    let shown = Shown::read();
    let set = SentinelSet::start(Kind::from_env()).await;
    set.never_fail_over().await;
    for server in 0..3 {
        make_user(&set.view(server).await).await;
    }
    for example in [shown.sentinel, shown.replicas] {
        becomes_ready(&example, nodes_of(&set.url())).await;
    }
}

#[tokio::test]
async fn core_starts_with_a_cluster_as_shown() {
    only_on!(OWN, "it starts its own servers");
    let set = ClusterSet::start_without_failovers(Kind::from_env()).await;
    for node in 0..6 {
        make_user(&set.view(node).await).await;
    }
    becomes_ready(&Shown::read().cluster, nodes_of(&set.url())).await;
}
