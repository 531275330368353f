//! `claimgate doctor`: real faults for each finding, and no findings in a sound setup.

mod disk;
mod redis;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use support::available::available;
use support::clock::Clock;
use support::only_on;
use support::postgres::Postgres;
use support::process::{command, free_address};
use support::process_limit::ProcessLimit;
use support::redis_server::RedisServer;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, binary, eventually};
use tempfile::TempDir;

/// The doctor's exit status and JSON report.
#[derive(Debug)]
struct DoctorReport {
    status: i32,
    value: Value,
}

impl DoctorReport {
    /// Returns the names of the checks with findings of this severity.
    fn found(&self, severity: &str) -> BTreeSet<&str> {
        let findings = self.value["findings"].as_array().unwrap().iter();
        findings
            .filter(|finding| finding["severity"] == severity)
            .map(|finding| finding["check"].as_str().unwrap())
            .collect()
    }

    /// Checks that exactly these checks break a guarantee and that the exit status matches. Each finding must
    /// have a problem and a remedy of one line.
    fn breaks(&self, wanted: &[&str]) -> &Self {
        assert_eq!(self.found("breaks"), wanted.iter().copied().collect(), "{:#}", self.value);
        let status = match (wanted, self.found("unknown").is_empty()) {
            ([], true) => 0,
            ([], false) => 3,
            _ => 1,
        };
        assert_eq!(self.status, status, "{:#}", self.value);
        assert_eq!(self.value["sound"], status == 0);
        for finding in self.value["findings"].as_array().unwrap() {
            for part in ["problem", "remedy"] {
                let text = finding[part].as_str().unwrap();
                assert!(!text.is_empty() && text.lines().count() == 1, "{finding}");
            }
        }
        self
    }

    /// Checks that exactly these checks are warnings. Other `system.` warnings depend on the machine and are
    /// ignored.
    fn warns(&self, wanted: &[&str]) -> &Self {
        let mut found = self.found("warning");
        found.retain(|check| !check.starts_with("system.") || wanted.contains(check));
        assert_eq!(found, wanted.iter().copied().collect(), "{:#}", self.value);
        self
    }

    /// Checks that exactly these checks have an unknown result.
    fn misses(&self, wanted: &[&str]) -> &Self {
        assert_eq!(self.found("unknown"), wanted.iter().copied().collect(), "{:#}", self.value);
        self
    }

    fn notes(&self) -> &Vec<Value> {
        self.value["notes"].as_array().unwrap()
    }
}

/// Runs the doctor on a data directory with these variables, prefixed by the command `before` if it is not
/// empty.
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

async fn doctor(data: &Path, environment: &[(&str, &str)]) -> DoctorReport {
    let output = run(&[], &["--json"], data, environment).await;
    let status = output.status.code().unwrap();
    let value = serde_json::from_slice(&output.stdout);
    DoctorReport { status, value: value.unwrap_or_else(|error| panic!("no JSON ({error}): {output:?}")) }
}

/// Creates a directory on disk, because the temporary directory may be in memory.
pub fn directory() -> TempDir {
    private(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

fn private(within: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("cg-").permissions(Permissions::from_mode(0o700)).tempdir_in(within)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Waits until `serve` has logged the same warnings as doctor.
async fn serve_says(core: &Core, parts: &[&str]) {
    for part in parts {
        core.until_logged(SOON, &["WARN", part]).await;
    }
}

#[tokio::test]
async fn a_sound_setup_has_no_findings() {
    only_on!(OWN, "it starts its own servers");
    let core = CoreOptions::default().start_in(directory()).await;
    let listen = core.listen().to_string();
    let there = [("CLAIMGATE_LISTEN", listen.as_str())];
    let report = doctor(&core.data_dir(), &there).await;
    report.breaks(&[]).warns(&[]).misses(&[]);
    assert!(report.notes().is_empty(), "everything was examined: {:?}", report.notes());
    let plain = run(&[], &[], &core.data_dir(), &there).await;
    assert_eq!(plain.status.code(), Some(0), "{plain:?}");
    let text = String::from_utf8(plain.stdout).unwrap();
    for part in [
        &listen,
        "core's own Redis",
        "claimgate.sqlite",
        "belong together",
        "data directory",
        "the disk of ",
        "setting and secret",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with("checked: ") && line.contains(part)),
            "{part}: {text}"
        );
    }
    let help = run(&[], &["--help"], &core.data_dir(), &[]).await;
    assert!(String::from_utf8(help.stdout).unwrap().contains("Exit status"));
}

#[tokio::test]
async fn the_doctor_names_where_each_limit_comes_from() {
    let data = directory();
    // The first processor that this test may use.
    let script = "ulimit -n 900
        first=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/self/status)
        exec taskset --cpu-list \"$first\" \"$0\" \"$@\"";
    let limited = ["sh", "-c", script];
    let output = run(&limited, &[], data.path(), &[]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let warning = "warning: the limit of open files and connections is 900";
    for (kind, part) in [
        ("checked: ", "open files: 900 (hard limit of this process)"),
        ("checked: ", "processors: 1 (affinity and CPU quota of this process)"),
        ("checked: memory: ", " MiB (/"),
        (warning, "LimitNOFILE="),
    ] {
        assert!(text.lines().any(|line| line.starts_with(kind) && line.contains(part)), "{part}: {text}");
    }
}

#[tokio::test]
async fn few_processes_are_a_warning() {
    let Some(limit) = available("doctor: few processes", ProcessLimit::create()) else { return };
    limit.set("60");
    let join = format!("echo $$ >{} && exec \"$0\" \"$@\"", limit.members().display());
    let output = run(&["sh", "-c", &join], &[], directory().path(), &[]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["checked: processes and threads: 60, of which ", "warning: ", "TasksMax="] {
        assert!(text.lines().any(|line| line.contains(part)), "{part}: {text}");
    }
}

#[tokio::test]
async fn winners_without_codes_are_a_warning() {
    only_on!(OWN, "it starts its own servers");
    let core = CoreOptions::default().start_in(directory()).await;
    let there = [("CLAIMGATE_LISTEN", &*core.listen().to_string())];
    core.run_out_of_codes("demo").await;
    let report = doctor(&core.data_dir(), &there).await;
    report.breaks(&[]).warns(&["database.codes"]).misses(&[]);
    assert!(
        report.value.to_string().contains("granted claims of campaign demo without codes: 1"),
        "{:#}",
        report.value
    );
    core.add_codes("demo", "B\n").await.expect(200);
    doctor(&core.data_dir(), &there).await.breaks(&[]).warns(&[]).misses(&[]);
}

#[tokio::test]
async fn doctor_runs_its_other_checks_without_core() {
    only_on!(OWN, "it starts its own servers");
    let outer = directory();
    let nowhere = outer.path().join("data");
    doctor(&nowhere, &[]).await.breaks(&[]).warns(&[]).misses(&["core.ready", "redis.running"]);
    assert!(!nowhere.exists(), "the doctor creates no data directory");

    let mut core = CoreOptions::default().start_in(outer).await;
    let listen = core.listen().to_string();
    core.stop().await;
    let there = [("CLAIMGATE_LISTEN", listen.as_str())];
    let report = doctor(&core.data_dir(), &there).await;
    report.breaks(&[]).warns(&[]).misses(&["core.ready", "redis.running"]);
    let plain = run(&[], &[], &core.data_dir(), &there).await;
    let text = String::from_utf8(plain.stdout).unwrap();
    assert_eq!(plain.status.code(), Some(3), "{text}");
    assert!(text.contains(&format!("core at {listen} is not running")), "{text}");
    assert!(!text.contains("no problem was found"), "{text}");
    fs::write(
        core.data_dir().join("claimgate.sqlite"),
        "no database, but of some length at least".repeat(99),
    )
    .unwrap();
    doctor(&core.data_dir(), &[]).await.breaks(&["database.reachable"]);
}

#[tokio::test]
async fn doctor_and_serve_report_redis_settings_that_lose_data() {
    only_on!(OWN, "it starts its own servers");
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
    let report = doctor(&core.data_dir(), &environment).await;
    report.breaks(&settings).warns(&["redis.maxmemory", "redis.replicas"]);
    serve_says(
        &core,
        &["appendonly is 'no'", "appendfsync is 'everysec'", "'allkeys-lru'", "has no replica"],
    )
    .await;

    let plain = run(&[], &[], &core.data_dir(), &environment).await;
    let text = String::from_utf8(plain.stdout).unwrap();
    // The disk may be slow at this moment.
    let is_finding = |line: &&str| {
        (line.starts_with("breaks: ") || line.starts_with("warning: ")) && !line.contains("syncs slowly")
    };
    let findings = text.lines().filter(is_finding).count();
    assert_eq!((plain.status.code(), findings), (Some(1), 7), "{text}");
    assert!(
        text.lines().take(5).all(|line| line.starts_with("breaks: ")),
        "the most severe findings first: {text}"
    );
}

#[tokio::test]
async fn replicas_are_found_and_not_accepted_as_a_primary() {
    only_on!(OWN, "it starts its own servers");
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
async fn clock_skew_is_a_warning_and_then_an_error() {
    only_on!(OWN, "it starts its own servers");
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
async fn short_and_world_readable_secrets_are_reported() {
    only_on!(OWN, "it starts its own servers");
    let data = directory();
    let short = [("CLAIMGATE_ADMIN_TOKEN", "short"), ("CLAIMGATE_EDGE_KEYS", "k1:c2hvcnQ")];
    let report = doctor(data.path(), &short).await;
    report.breaks(&["configuration"]);
    for (variable, _) in short {
        let named = report.value["findings"].as_array().unwrap().iter();
        let named =
            named.filter(|finding| finding["problem"].as_str().unwrap().starts_with(variable)).count();
        assert_eq!(named, 1, "{variable}: {:#}", report.value);
    }
    assert!(data.path().read_dir().unwrap().next().is_none(), "the doctor creates no secrets");

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
async fn a_world_readable_or_in_memory_data_directory_is_reported() {
    only_on!(OWN, "it starts its own servers");
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
async fn few_descriptors_or_too_much_redis_memory_is_a_warning() {
    only_on!(OWN, "it starts its own servers");
    let data = directory();
    let few = run(&["prlimit", "--nofile=4096:4096"], &["--json"], data.path(), &[]).await;
    let report = DoctorReport {
        status: few.status.code().unwrap(),
        value: serde_json::from_slice(&few.stdout).unwrap(),
    };
    report.breaks(&[]).warns(&["system.descriptors"]);
    let too_much = [("CLAIMGATE_REDIS_MAXMEMORY_MIB", "1000000000")];
    doctor(data.path(), &too_much).await.breaks(&[]).warns(&["redis.maxmemory"]);
}

#[tokio::test]
async fn postgres_settings_that_may_lose_commits_are_reported() {
    only_on!(OWN, "it starts its own servers");
    let careful = Postgres::start_with(&[("fsync", "on")]).await;
    let Some(careful) = available("doctor: PostgreSQL", careful) else { return };
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
    let report = doctor(&core.data_dir(), &[("CLAIMGATE_DATABASE_URL", url.as_str())]).await;
    report.breaks(&["database.fsync", "database.full_page_writes", "database.synchronous_commit"]);
    serve_says(&core, &["fsync is off", "synchronous_commit is off", "full_page_writes is off"]).await;
}

/// Simulates a move to an image with another libc or ICU.
#[tokio::test]
async fn a_collation_that_changed_below_the_database_is_reported() {
    only_on!(OWN, "it starts its own servers");
    let postgres = Postgres::start_with(&[("fsync", "on")]).await;
    let Some(postgres) = available("doctor: PostgreSQL", postgres) else { return };
    let url = postgres.database_sorted("sorted", "en-US").await;
    let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url).start_in(directory()).await;
    let examined = async || doctor(&core.data_dir(), &[("CLAIMGATE_DATABASE_URL", &url)]).await;
    examined().await.breaks(&[]).warns(&[]);
    let earlier = "UPDATE pg_database SET datcollversion = '1' WHERE datname = 'sorted'";
    postgres.run("postgres", &[earlier]).await;
    // Core has given all ids the collation C.
    examined().await.breaks(&[]).warns(&[]);
    postgres.run("sorted", &["ALTER TABLE cores ALTER id TYPE TEXT COLLATE \"default\""]).await;
    examined().await.breaks(&["database.collation"]);
}

#[tokio::test]
async fn read_only_sql_and_too_few_connections_are_reported() {
    only_on!(OWN, "it starts its own servers");
    let primary = Postgres::start_with(&[("fsync", "on")]).await;
    let Some(primary) = available("doctor: PostgreSQL", primary) else { return };
    let url = primary.database("claimgate").await;
    let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url).start_in(directory()).await;
    let data = core.data_dir();
    let doctor_on = async |url: &str| doctor(&data, &[("CLAIMGATE_DATABASE_URL", url)]).await;
    let standby = primary.standby().await.unwrap();
    doctor_on(&standby.url("claimgate")).await.breaks(&["database.read_only"]).warns(&[]);
    primary.run("postgres", &["ALTER DATABASE claimgate SET default_transaction_read_only = on"]).await;
    doctor_on(&url).await.breaks(&["database.read_only"]).warns(&[]);
    primary.run("postgres", &["ALTER DATABASE claimgate RESET default_transaction_read_only"]).await;
    doctor_on(&url).await.breaks(&[]).warns(&[]);
    primary
        .run("postgres", &["CREATE ROLE app LOGIN CONNECTION LIMIT 16", "GRANT pg_read_all_data TO app"])
        .await;
    let few = url.replace("postgres://claimgate@", "postgres://app@");
    doctor_on(&few).await.breaks(&[]).warns(&["database.connections"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_belonging_to_a_different_database_is_reported() {
    only_on!(OWN, "it starts its own servers");
    let (ours, another) = (RedisServer::start().await, RedisServer::start().await);
    let first = CoreOptions::default().with("CLAIMGATE_REDIS_URL", ours.url()).start().await;
    first.create("theirs", serde_json::json!({"total": 5})).await;
    let second = CoreOptions::default().with("CLAIMGATE_REDIS_URL", ours.url()).start().await;
    let report = doctor(&second.data_dir(), &[("CLAIMGATE_REDIS_URL", &ours.url())]).await;
    assert!(report.found("warning").contains("belonging.register"), "{:#}", report.value);
    assert!(!report.found("breaks").contains("belonging.redis"), "{:#}", report.value);
    let report = doctor(&second.data_dir(), &[("CLAIMGATE_REDIS_URL", &another.url())]).await;
    assert!(report.found("breaks").contains("belonging.redis"), "{:#}", report.value);
    let report = doctor(&first.data_dir(), &[("CLAIMGATE_REDIS_URL", &ours.url())]).await;
    assert!(!report.found("warning").contains("belonging.register"), "{:#}", report.value);
}
