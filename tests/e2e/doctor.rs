//! `claimgate doctor`: each finding provoked for real, and nothing found where nothing is wrong.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use support::clock::Clock;
use support::only_on;
use support::postgres::Postgres;
use support::process::{command, free_address};
use support::redis_server::RedisServer;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, binary, eventually};
use tempfile::TempDir;

/// What the doctor said of a set-up, as JSON.
#[derive(Debug)]
struct Said {
    status: i32,
    value: Value,
}

impl Said {
    /// The names of what it found, of this severity.
    fn found(&self, severity: &str) -> BTreeSet<&str> {
        let findings = self.value["findings"].as_array().unwrap().iter();
        findings
            .filter(|finding| finding["severity"] == severity)
            .map(|finding| finding["check"].as_str().unwrap())
            .collect()
    }

    /// Checks that exactly this breaks a promise, that the exit status says so, and that each finding says what to do.
    fn breaks(&self, wanted: &[&str]) -> &Self {
        assert_eq!(self.found("breaks"), wanted.iter().copied().collect(), "{:#}", self.value);
        assert_eq!(self.status, i32::from(!wanted.is_empty()), "{:#}", self.value);
        assert_eq!(self.value["sound"], wanted.is_empty());
        for finding in self.value["findings"].as_array().unwrap() {
            for part in ["problem", "remedy"] {
                let text = finding[part].as_str().unwrap();
                assert!(!text.is_empty() && text.lines().count() == 1, "{finding}");
            }
        }
        self
    }

    /// Checks that exactly this is a warning, whatever this machine itself may be warned of.
    fn warns(&self, wanted: &[&str]) -> &Self {
        let mut found = self.found("warning");
        found.retain(|check| !check.starts_with("system.") || wanted.contains(check));
        assert_eq!(found, wanted.iter().copied().collect(), "{:#}", self.value);
        self
    }

    fn notes(&self) -> &Vec<Value> {
        self.value["notes"].as_array().unwrap()
    }
}

/// Runs the doctor, behind `before` if that is any, on a data directory and with some variables.
async fn run(before: &[&str], arguments: &[&str], data: &Path, environment: &[(&str, &str)]) -> Output {
    let program = binary::claimgate();
    let mut command = match before {
        [] => command(&program),
        [first, rest @ ..] => {
            let mut command = command(Path::new(first));
            command.args(rest).arg(program);
            command
        }
    };
    command.arg("doctor").args(arguments).env("CLAIMGATE_DATA_DIR", data).envs(environment.iter().copied());
    command.stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

async fn doctor(data: &Path, environment: &[(&str, &str)]) -> Said {
    let output = run(&[], &["--json"], data, environment).await;
    let status = output.status.code().unwrap();
    let value = serde_json::from_slice(&output.stdout);
    Said { status, value: value.unwrap_or_else(|error| panic!("no JSON ({error}): {output:?}")) }
}

/// On a disk: the temporary directory may lie in memory.
fn directory() -> TempDir {
    private(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

fn private(within: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("cg-").permissions(Permissions::from_mode(0o700)).tempdir_in(within)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Waits until `serve` has said so, too.
async fn serve_says(core: &Core, parts: &[&str]) {
    eventually(SOON, || async {
        let log = core.log();
        holds(
            parts.iter().all(|part| log.lines().any(|line| line.contains("WARN") && line.contains(part))),
            || log.clone(),
        )
    })
    .await;
}

#[tokio::test]
async fn nothing_is_found_where_nothing_is_wrong() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let core = CoreOptions::default().start_in(directory()).await;
    let said = doctor(&core.data_dir(), &[]).await;
    said.breaks(&[]).warns(&[]);
    assert!(said.notes().is_empty(), "all of it was looked at: {:?}", said.notes());
    let plain = run(&[], &[], &core.data_dir(), &[]).await;
    assert_eq!(plain.status.code(), Some(0), "{plain:?}");
    let help = run(&[], &["--help"], &core.data_dir(), &[]).await;
    assert!(String::from_utf8(help.stdout).unwrap().contains("Exit status"));
}

#[tokio::test]
async fn without_a_running_core_the_rest_is_looked_at_and_nothing_is_made() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let outer = directory();
    let nowhere = outer.path().join("data");
    doctor(&nowhere, &[]).await.breaks(&[]).warns(&[]);
    assert!(!nowhere.exists(), "the doctor makes no data directory");

    let mut core = CoreOptions::default().start_in(outer).await;
    core.stop().await;
    let said = doctor(&core.data_dir(), &[]).await;
    said.breaks(&[]).warns(&[]);
    assert_eq!(said.notes().len(), 1, "{:?}", said.notes());
    assert!(said.notes()[0].as_str().unwrap().contains("no core is running"), "{:?}", said.notes());
    fs::write(
        core.data_dir().join("claimgate.sqlite"),
        "no database, but of some length at least".repeat(99),
    )
    .unwrap();
    doctor(&core.data_dir(), &[]).await.breaks(&["database.reachable"]);
}

#[tokio::test]
async fn a_redis_that_loses_or_evicts_is_named_by_the_doctor_and_by_serve() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let careless = [
        ("appendonly", "no"),
        ("appendfsync", "everysec"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("aof-load-truncated", "yes"),
        ("maxmemory-policy", "allkeys-lru"),
    ];
    let server = RedisServer::start_with(&careless, &[]).await;
    let url = server.url();
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url.as_str()).start_in(directory()).await;
    let settings = [
        "redis.aof_load_truncated",
        "redis.appendfsync",
        "redis.appendonly",
        "redis.maxmemory_policy",
        "redis.no_appendfsync_on_rewrite",
    ];
    let environment = [("CLAIMGATE_REDIS_URL", url.as_str())];
    let said = doctor(&core.data_dir(), &environment).await;
    said.breaks(&settings).warns(&["redis.maxmemory", "redis.replicas"]);
    serve_says(
        &core,
        &["appendonly is 'no'", "appendfsync is 'everysec'", "'allkeys-lru'", "no replica follows"],
    )
    .await;

    let plain = run(&[], &[], &core.data_dir(), &environment).await;
    let text = String::from_utf8(plain.stdout).unwrap();
    assert_eq!((plain.status.code(), text.lines().count()), (Some(1), 7), "{text}");
    assert!(text.lines().take(5).all(|line| line.starts_with("breaks: ")), "the worst first: {text}");
}

#[tokio::test]
async fn replicas_that_follow_are_seen_and_a_replica_is_no_primary() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let at = free_address();
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let bounds =
        [("maxmemory", "64mb"), ("bind", ip.as_str()), ("port", port.as_str()), ("protected-mode", "no")];
    let primary = RedisServer::start_with(&bounds, &[]).await;
    let url = primary.url();
    let data = directory();
    let primary_url = [("CLAIMGATE_REDIS_URL", url.as_str())];
    doctor(data.path(), &primary_url).await.breaks(&[]).warns(&["redis.replicas"]);

    let follows = format!("{ip} {port}");
    let replica =
        RedisServer::start_with(&[("maxmemory", "64mb"), ("replicaof", follows.as_str())], &[]).await;
    let view = primary.view().await;
    eventually(SOON, || async {
        let info: String = view.query(&["INFO", "replication"]).await;
        holds(info.contains("state=online"), || info.clone())
    })
    .await;
    doctor(data.path(), &primary_url).await.breaks(&[]).warns(&[]);
    let url = replica.url();
    doctor(data.path(), &[("CLAIMGATE_REDIS_URL", url.as_str())]).await.breaks(&["redis.role"]);
    drop(replica);
    doctor(data.path(), &[("CLAIMGATE_REDIS_URL", url.as_str())]).await.breaks(&["redis.reachable"]);
}

#[tokio::test]
async fn clocks_that_are_apart_are_a_warning_and_then_a_fault() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let clock = Clock::new();
    let server = RedisServer::start_with(&[("maxmemory", "64mb")], &clock.environment()).await;
    let (data, url) = (directory(), server.url());
    let environment = [("CLAIMGATE_REDIS_URL", url.as_str())];
    doctor(data.path(), &environment).await.breaks(&[]).warns(&["redis.replicas"]);
    for ms in [5_000, -5_000] {
        clock.move_by_ms(ms);
        doctor(data.path(), &environment).await.breaks(&[]).warns(&["redis.clock", "redis.replicas"]);
    }
    clock.move_by_ms(-60_000);
    doctor(data.path(), &environment).await.breaks(&["redis.clock"]);
}

#[tokio::test]
async fn every_secret_that_is_too_short_is_named_and_one_that_all_may_read() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let data = directory();
    let short = [("CLAIMGATE_ADMIN_TOKEN", "short"), ("CLAIMGATE_EDGE_KEYS", "k1:c2hvcnQ")];
    let said = doctor(data.path(), &short).await;
    said.breaks(&["configuration"]);
    for (variable, _) in short {
        let named = said.value["findings"].as_array().unwrap().iter();
        let named =
            named.filter(|finding| finding["problem"].as_str().unwrap().starts_with(variable)).count();
        assert_eq!(named, 1, "{variable}: {:#}", said.value);
    }
    assert!(data.path().read_dir().unwrap().next().is_none(), "the doctor makes no secrets");

    let tokens = data.path().join("tokens");
    fs::write(&tokens, "shop:a-token-of-more-than-thirty-two-characters").unwrap();
    let environment = [("CLAIMGATE_API_TOKENS_FILE", tokens.to_str().unwrap())];
    set_mode(&tokens, 0o644);
    doctor(&data.path().join("data"), &environment).await.breaks(&[]).warns(&["secrets.open"]);
    set_mode(&tokens, 0o640);
    doctor(&data.path().join("data"), &environment).await.breaks(&[]).warns(&[]);

    let url = data.path().join("url");
    fs::write(&url, format!("postgres://claimgate:secret@{}/claims", free_address())).unwrap();
    let environment = [("CLAIMGATE_DATABASE_URL_FILE", url.to_str().unwrap())];
    for (mode, warned) in [(0o644, &["secrets.open"][..]), (0o640, &[])] {
        set_mode(&url, mode);
        doctor(&data.path().join("data"), &environment).await.breaks(&["database.reachable"]).warns(warned);
    }
}

#[tokio::test]
async fn a_data_directory_that_is_open_or_in_memory_is_named() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let mut core = CoreOptions::default().start_in(directory()).await;
    let data = core.data_dir();
    set_mode(&data.join("claimgate.sqlite"), 0o644);
    doctor(&data, &[]).await.breaks(&[]).warns(&["data_dir.open"]);
    set_mode(&data, 0o755);
    doctor(&data, &[]).await.breaks(&["data_dir.open"]);
    core.kill();
    let _again = core.restart().await;
    doctor(&data, &[]).await.breaks(&[]).warns(&[]);

    let shared_memory = Path::new("/dev/shm");
    match private(shared_memory) {
        Ok(in_memory) => {
            doctor(in_memory.path(), &[]).await.breaks(&["data_dir.in_memory"]);
        }
        Err(error) => println!("doctor: a directory in memory SKIPPED: {}: {error}", shared_memory.display()),
    }
}

#[tokio::test]
async fn few_descriptors_and_too_much_memory_for_redis_are_warnings() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let data = directory();
    let few = run(&["prlimit", "--nofile=4096:4096"], &["--json"], data.path(), &[]).await;
    let said =
        Said { status: few.status.code().unwrap(), value: serde_json::from_slice(&few.stdout).unwrap() };
    said.breaks(&[]).warns(&["system.descriptors"]);
    let too_much = [("CLAIMGATE_REDIS_MAXMEMORY_MIB", "1000000000")];
    doctor(data.path(), &too_much).await.breaks(&[]).warns(&["redis.maxmemory"]);
}

#[tokio::test]
async fn a_postgresql_that_may_lose_what_it_committed_is_named() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let careful = match Postgres::start_with(&[("fsync", "on")]).await {
        Ok(careful) => careful,
        Err(why) => return println!("doctor: PostgreSQL SKIPPED: {why}"),
    };
    let url = careful.database("careful").await;
    let core =
        CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url.as_str()).start_in(directory()).await;
    let environment = [("CLAIMGATE_DATABASE_URL", url.as_str())];
    doctor(&core.data_dir(), &environment).await.breaks(&[]).warns(&[]);
    drop(careful);
    doctor(&core.data_dir(), &environment).await.breaks(&["database.reachable"]);
    drop(core);

    let off = [("fsync", "off"), ("synchronous_commit", "off"), ("full_page_writes", "off")];
    let careless = Postgres::start_with(&off).await.unwrap();
    let url = careless.database("careless").await;
    let core =
        CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url.as_str()).start_in(directory()).await;
    let said = doctor(&core.data_dir(), &[("CLAIMGATE_DATABASE_URL", url.as_str())]).await;
    said.breaks(&["database.fsync", "database.full_page_writes", "database.synchronous_commit"]);
    serve_says(&core, &["fsync is off", "synchronous_commit is off", "full_page_writes is off"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_and_a_database_that_do_not_belong_together_are_named() {
    only_on!(OWN, "the doctor looks at each kind of server by itself");
    let (ours, another) = (RedisServer::start().await, RedisServer::start().await);
    let first = CoreOptions::default().with("CLAIMGATE_REDIS_URL", ours.url()).start().await;
    first.create("theirs", serde_json::json!({"total": 5})).await;
    let second = CoreOptions::default().with("CLAIMGATE_REDIS_URL", ours.url()).start().await;
    let said = doctor(&second.data_dir(), &[("CLAIMGATE_REDIS_URL", &ours.url())]).await;
    assert!(said.found("warning").contains("belonging.register"), "{:#}", said.value);
    assert!(!said.found("breaks").contains("belonging.redis"), "{:#}", said.value);
    let said = doctor(&second.data_dir(), &[("CLAIMGATE_REDIS_URL", &another.url())]).await;
    assert!(said.found("breaks").contains("belonging.redis"), "{:#}", said.value);
    let said = doctor(&first.data_dir(), &[("CLAIMGATE_REDIS_URL", &ours.url())]).await;
    assert!(!said.found("warning").contains("belonging.register"), "{:#}", said.value);
}
