//! Starting `claimgate serve`: with invalid values, with addresses in use, and with generated secrets.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::postgres::Postgres;
use support::process::{Signal, free_address, signal_pid};
use support::topology::OWN;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, SOON, binary, eventually, only_on};
use tempfile::TempDir;

use crate::command_line::{run, run_against};

#[tokio::test]
async fn an_invalid_setting_stops_startup_with_one_line_naming_it() {
    let sample = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    let sample_key = format!("k1:{sample}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let no_directory = file.path().join("data");
    for (variable, value) in [
        ("CLAIMGATE_LISTEN", "8080"),
        ("CLAIMGATE_LISTEN", "nowhere:x"),
        ("CLAIMGATE_ADMIN_LISTEN", "127.0.0.1:99999"),
        ("CLAIMGATE_DATA_DIR", no_directory.to_str().unwrap()),
        ("CLAIMGATE_REDIS_URL", "http://127.0.0.1:6379"),
        ("CLAIMGATE_REDIS_URL", "redis+sentinel://127.0.0.1:26379"),
        ("CLAIMGATE_REDIS_URL", "redis-cluster://127.0.0.1:7000"),
        ("CLAIMGATE_REDIS_URL", "redis://127.0.0.1:6379\nredis://127.0.0.1:6380"),
        ("CLAIMGATE_DATABASE_URL", "mysql://127.0.0.1/claims"),
        ("CLAIMGATE_ADMIN_TOKEN", "short"),
        ("CLAIMGATE_ADMIN_TOKEN", "\"an-admins-token-that-is-long-enough\""),
        ("CLAIMGATE_ADMIN_TOKEN", "an-admins-token-that-is-\nlong-enough"),
        ("CLAIMGATE_ADMIN_TOKEN", "an admins token that is long enough"),
        ("CLAIMGATE_ADMIN_TOKEN", "an-admins-tökén-that-is-long-enough"),
        ("CLAIMGATE_ADMIN_TOKEN_FILE", "nowhere/admin.token"),
        ("CLAIMGATE_API_TOKENS", "shop"),
        ("CLAIMGATE_API_TOKENS", "shop:short"),
        ("CLAIMGATE_API_TOKENS", "shop: a-back-ends-token-that-is-long-enough"),
        ("CLAIMGATE_API_TOKENS", "\"shop:a-back-ends-token-that-is-long-enough\""),
        (
            "CLAIMGATE_API_TOKENS",
            "shop:a-back-ends-token-that-is-long-enough\nhall:b-back-ends-token-that-is-long-enough",
        ),
        ("CLAIMGATE_API_TOKENS", "admin:a-back-ends-token-that-is-long-enough"),
        ("CLAIMGATE_API_TOKENS", "edge:a-back-ends-token-that-is-long-enough"),
        ("CLAIMGATE_API_TOKENS_FILE", "nowhere/tokens"),
        ("CLAIMGATE_ADMIN_TOKENS", "an-admins-token-without-anything-else"),
        ("CLAIMGATE_ADMIN_TOKENS", "ann:boss:an-admins-token-that-is-long-enough"),
        ("CLAIMGATE_ADMIN_TOKENS", "ann:an-admins-token-that-is-long-enough:admin"),
        ("CLAIMGATE_ADMIN_TOKENS", "ann:admin:short"),
        ("CLAIMGATE_ADMIN_TOKENS", "ann:admin: an-admins-token-that-is-long-enough"),
        ("CLAIMGATE_ADMIN_TOKENS", "ann:admin:an-admins-token-\tthat-is-long-enough"),
        ("CLAIMGATE_ADMIN_TOKENS_FILE", "nowhere/admins"),
        ("CLAIMGATE_EDGE_KEYS", "k1"),
        ("CLAIMGATE_EDGE_KEYS", "k1:c2hvcnQ"),
        ("CLAIMGATE_EDGE_KEYS", sample_key.as_str()),
        ("CLAIMGATE_EDGE_KEYS", "k1:not base64url at all, though it is quite long"),
        ("CLAIMGATE_EDGE_KEYS_FILE", "nowhere/keys"),
        ("CLAIMGATE_USER_JWT_KEY", "c2hvcnQ"),
        ("CLAIMGATE_USER_JWT_KEY", sample),
        ("CLAIMGATE_USER_JWT_KEY_FILE", "nowhere/key"),
        ("CLAIMGATE_REDIS_MAXMEMORY_MIB", "0"),
        ("CLAIMGATE_OUTBOX_MAX", "many"),
        ("CLAIMGATE_CONCURRENCY_MAX", "-1"),
        ("CLAIMGATE_BATCH_MAX", "257"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (listen, admin) = (free_address().to_string(), free_address().to_string());
        let mut environment =
            vec![("CLAIMGATE_LISTEN", listen.as_str()), ("CLAIMGATE_ADMIN_LISTEN", admin.as_str())];
        environment.retain(|(name, _)| *name != variable);
        environment.push((variable, value));
        let serving = run(&["serve"], &environment, directory.path());
        let output = tokio::time::timeout(support::SOON, serving).await;
        let output =
            output.unwrap_or_else(|_| panic!("{variable}={value:?} is accepted, and core serves")).ended(2);
        output.one_line(variable.trim_end_matches("_FILE"));
        let is_secret = variable.contains("KEY") || variable.contains("TOKENS");
        let parts = value.split(':').filter(|part| part.len() > 5);
        let shown = is_secret
            && !variable.ends_with("_FILE")
            && parts.into_iter().any(|part| output.err.contains(part));
        assert!(!shown, "a secret is shown: {output:?}");
    }
}

/// Tokens of an admin and of a back end.
const ADMIN: &str = "an-admins-token-that-is-long-enough";
const SHOP: &str = "a-back-ends-token-that-is-long-enough";

async fn assert_accepts(core: &Core, admin: &str, shop: &str) {
    let client = core.client();
    let campaigns = core.admin_url("/admin/v1/campaigns");
    client.call(Method::GET, &campaigns, admin, &Value::Null).await.expect(200);
    let claims = core.url("/internal/v1/claims/demo.alice.aHSIRPhRB6fDKajWWhFLtQ");
    client.call(Method::GET, &claims, shop, &Value::Null).await.refused(404, "claim_not_found");
}

#[tokio::test]
async fn whitespace_around_a_secret_is_ignored() {
    let files = tempfile::tempdir().unwrap();
    for (before, after) in [("", "\n"), ("\u{feff}", "\r\n"), (" \t", "  "), ("\n", "\n\n")] {
        let file = |name: &str, text: &str| {
            let path = files.path().join(name);
            std::fs::write(&path, format!("{before}{text}{after}")).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let key = "k1:YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l";
        let core = CoreOptions::default()
            .with("CLAIMGATE_ADMIN_TOKEN", format!("{before}{ADMIN}{after}"))
            .with("CLAIMGATE_API_TOKENS", "")
            .with("CLAIMGATE_API_TOKENS_FILE", file("shop", &format!("shop:{SHOP}, hall:{SHOP}-too,")))
            .with("CLAIMGATE_EDGE_KEYS_FILE", file("edge", key))
            .with("CLAIMGATE_OUTBOX_MAX", format!("{before}1000{after}"))
            .start()
            .await;
        assert_accepts(&core, ADMIN, SHOP).await;
    }
}

#[tokio::test]
async fn an_empty_variable_counts_as_unset() {
    let mut options = CoreOptions::default();
    for variable in [
        "CLAIMGATE_ADMIN_TOKEN",
        "CLAIMGATE_ADMIN_TOKEN_FILE",
        "CLAIMGATE_ADMIN_TOKENS",
        "CLAIMGATE_ADMIN_TOKENS_FILE",
        "CLAIMGATE_API_TOKENS_FILE",
        "CLAIMGATE_EDGE_KEYS",
        "CLAIMGATE_EDGE_KEYS_FILE",
        "CLAIMGATE_USER_JWT_KEY",
        "CLAIMGATE_USER_JWT_KEY_FILE",
        "CLAIMGATE_USER_JWT_ISS",
        "CLAIMGATE_USER_JWT_AUD",
        "CLAIMGATE_REDIS_URL",
        "CLAIMGATE_REDIS_URL_FILE",
        "CLAIMGATE_REDIS_SENTINEL_PASSWORD",
        "CLAIMGATE_REDIS_REPLICAS",
        "CLAIMGATE_REDIS_MAXMEMORY_MIB",
        "CLAIMGATE_DATABASE_URL",
        "CLAIMGATE_DATABASE_URL_FILE",
        "CLAIMGATE_OUTBOX_MAX",
        "CLAIMGATE_ARCHIVE_AFTER_S",
        "CLAIMGATE_HOLD_EXTENSION_MAX_S",
        "CLAIMGATE_CONCURRENCY_MAX",
        "CLAIMGATE_BATCH_MAX",
        "CLAIMGATE_DRAIN_S",
        "CLAIMGATE_WEBHOOK_HOSTS",
        "CLAIMGATE_WEBHOOK_RETRY_S",
        "CLAIMGATE_OTLP_URL",
        "CLAIMGATE_TRACE_RATIO",
        "CLAIMGATE_LOG_JSON",
        "RUST_LOG",
    ] {
        options = options.with(variable, "");
    }
    let core = options.start().await;
    core.create("demo", json!({})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    assert!(
        core.log().contains("claimgate is up"),
        "an empty RUST_LOG must not silence the log: {}",
        core.log()
    );
    let (admin, data) = (core.admin_listen().to_string(), core.data_dir());
    let environment = [
        ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
        ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
        ("CLAIMGATE_ADMIN_TOKEN", ""),
        ("CLAIMGATE_ADMIN_TOKEN_FILE", ""),
        ("CLAIMGATE_LISTEN", ""),
    ];
    run(&["campaign", "list"], &environment, Path::new("/")).await.ended(0);
}

#[tokio::test]
async fn an_invalid_credentials_file_does_not_replace_a_valid_one() {
    let files = tempfile::tempdir().unwrap();
    let (admin, shop) = (files.path().join("admin"), files.path().join("shop"));
    std::fs::write(&admin, ADMIN).unwrap();
    std::fs::write(&shop, format!("shop:{SHOP}")).unwrap();
    let core = CoreOptions::default()
        .with("CLAIMGATE_API_TOKENS", "")
        .with("CLAIMGATE_ADMIN_TOKEN_FILE", admin.to_str().unwrap())
        .with("CLAIMGATE_API_TOKENS_FILE", shop.to_str().unwrap())
        .start()
        .await;
    assert_accepts(&core, ADMIN, SHOP).await;
    let other = "another-token-that-is-quite-long-enough";
    let broken = [
        (&shop, format!("shop:{other}\nhall:{SHOP}"), "CLAIMGATE_API_TOKENS"),
        (&shop, format!("'shop:{other}'"), "CLAIMGATE_API_TOKENS"),
        (&shop, format!("shop: {other}"), "CLAIMGATE_API_TOKENS"),
        (&admin, format!("\"{other}\""), "CLAIMGATE_ADMIN_TOKEN"),
        (&admin, String::new(), "CLAIMGATE_ADMIN_TOKEN"),
        (&admin, format!("{other} {other}"), "CLAIMGATE_ADMIN_TOKEN"),
    ];
    for (refusals, (file, text, variable)) in (1..).zip(broken) {
        let before = std::fs::read(file).unwrap();
        std::fs::write(file, &text).unwrap();
        signal_pid(core.pid(), Signal::HUP);
        let refusal = format!("credentials were not reloaded: {variable}: ");
        eventually(SOON, || async {
            let log = core.log();
            holds(
                log.matches("credentials were not reloaded").count() == refusals && log.contains(&refusal),
                || log.clone(),
            )
        })
        .await;
        assert_accepts(&core, ADMIN, SHOP).await;
        assert!(!core.log().contains(other), "a secret is in the log: {text:?}");
        std::fs::write(file, before).unwrap();
    }
}

#[tokio::test]
async fn a_role_with_too_few_connections_is_rejected() {
    let Some(postgres) = available("too few connections", Postgres::start().await) else { return };
    let role = "CREATE ROLE app LOGIN CONNECTION LIMIT 2";
    postgres.run("postgres", &[role, "CREATE DATABASE claimgate OWNER app"]).await;
    let url = postgres.url("claimgate").replace("postgres://claimgate@", "postgres://app@");
    let directory = tempfile::tempdir().unwrap();
    let (listen, admin) = (free_address().to_string(), free_address().to_string());
    let environment = [
        ("CLAIMGATE_LISTEN", listen.as_str()),
        ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
        ("CLAIMGATE_DATABASE_URL", url.as_str()),
        // The database is checked first.
        ("CLAIMGATE_REDIS_URL", "unix:///nowhere"),
    ];
    let output = run(&["serve"], &environment, directory.path()).await.ended(2);
    output.one_line("CLAIMGATE_DATABASE_URL");
    assert!(
        output.err.contains("'app' may have 2 connections") && output.err.contains("fewer than 3"),
        "{output:?}"
    );
}

#[tokio::test]
async fn the_error_names_an_address_in_use() {
    let core = Core::start().await;
    let directory = tempfile::tempdir().unwrap();
    let (taken, free) = (core.listen().to_string(), free_address().to_string());
    for (variable, other) in
        [("CLAIMGATE_LISTEN", "CLAIMGATE_ADMIN_LISTEN"), ("CLAIMGATE_ADMIN_LISTEN", "CLAIMGATE_LISTEN")]
    {
        let output =
            run(&["serve"], &[(variable, taken.as_str()), (other, free.as_str())], directory.path()).await;
        assert!(output.status > 0, "{output:?}");
        output.one_line(variable);
    }
}

#[tokio::test]
async fn secrets_are_generated_once_private_and_never_shown() {
    let core = CoreOptions::default().with("RUST_LOG", "trace").start().await;
    core.create("demo", json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    support::signing::Signed::claim(&core, "demo", "bob", "k").send(&core).await.expect(201);
    run_against(&core, &["token", "--user", "alice"]).await.ended(0);
    core.sql().until("demo", 2).await;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&core.data_dir()), 0o700);
    let names = ["admin.token", "edge.key", "user-jwt.key", "redis.password"];
    let secrets = names.map(|name| core.data_file(name));
    for (name, secret) in names.iter().zip(&secrets) {
        assert_eq!(mode(&core.data_dir().join(name)), 0o600, "{name}");
        let secret = secret.rsplit(':').next().unwrap();
        assert!(secret.len() >= 43, "{name} has {} characters", secret.len());
        assert!(!core.log().contains(secret), "{name} is in the log");
    }
    assert!(!core.log().contains(support::core_client::API_TOKEN), "an API token is in the log");
    assert!(core.log().contains("answered"), "the log has too few lines for this test");
    let mut core = core;
    core.kill();
    let again = core.restart().await;
    assert_eq!(names.map(|name| again.data_file(name)), secrets, "the secrets are generated once");
    again.claim("demo", "alice", "k").await.expect(200);
}

/// A `setpriv` that answers as that of busybox.
const BUSYBOX: &str = "echo 'setpriv: unrecognized option: pdeathsig' >&2; exit 1";

fn write_program(file: &Path, script: &str) {
    fs::write(file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the options of a core that finds only these programs, and their directory.
fn finding_only(programs: &[&str]) -> (CoreOptions, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for name in programs {
        let mut files = std::env::split_paths(&path).map(|place| place.join(name));
        let file = files.find(|file| file.is_file()).unwrap_or_else(|| panic!("no {name}"));
        symlink(file, directory.path().join(name)).unwrap();
    }
    let core = directory.path().join("core");
    let (path, program) = (directory.path().display(), binary::claimgate());
    write_program(&core, &format!("PATH='{path}' exec '{}' \"$@\"", program.display()));
    (CoreOptions::default().program(core), directory)
}

#[tokio::test]
async fn core_exits_if_setpriv_cannot_start_redis() {
    only_on!(OWN, "core starts its own Redis");
    let (options, programs) = finding_only(&["redis-server"]);
    for reason in ["No such file or directory", "unrecognized option: pdeathsig"] {
        let mut core = Core::launch(options.clone()).await;
        let status = core.process().wait(SOON).await;
        let log = core.log();
        assert_eq!(status.code(), Some(3), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");
        for part in ["redis-server", "setpriv", reason, "util-linux"] {
            assert!(log.contains(part), "no {part}: {log}");
        }
        write_program(&programs.path().join("setpriv"), BUSYBOX);
    }
}

#[tokio::test]
async fn the_error_names_the_servers_that_core_does_not_find() {
    only_on!(OWN, "core starts its own Redis");
    let (options, _programs) = finding_only(&["setpriv"]);
    let mut core = Core::launch(options).await;
    let status = core.process().wait(SOON).await;
    let log = core.log();
    assert_eq!((status.code(), log.lines().count()), (Some(3), 1), "{log}");
    for part in ["redis-server", "valkey-server", "CLAIMGATE_REDIS_URL"] {
        assert!(log.contains(part), "no {part}: {log}");
    }
}

#[tokio::test]
async fn a_malformed_rust_log_is_reported_and_not_used() {
    let core = CoreOptions::default().with("RUST_LOG", "off,claimgate_core=loud").start().await;
    core.until_logged(SOON, &["WARN", "RUST_LOG is malformed", "info,sqlx=warn"]).await;
    core.until_logged(SOON, &["INFO", "claimgate is up"]).await;
}

/// As in a container image without ca-certificates.
#[tokio::test]
async fn missing_certificate_authorities_are_logged() {
    let options = CoreOptions::default().with("SSL_CERT_FILE", "/nowhere");
    let core = options.with("CLAIMGATE_WEBHOOK_HOSTS", "hooks.example").start().await;
    core.until_logged(SOON, &["WARN", "no certificate authority", "SSL_CERT_FILE"]).await;
}

/// As while util-linux is replaced. The exit status of setpriv says nothing about Redis' file.
#[tokio::test]
async fn a_setpriv_that_fails_later_does_not_repair_the_file() {
    only_on!(OWN, "core starts its own Redis");
    let (options, programs) = finding_only(&["redis-server", "redis-check-aof", "setpriv"]);
    let core = options.start().await;
    core.create("demo", json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    let [setpriv, kept] = ["setpriv", "kept"].map(|name| programs.path().join(name));
    fs::rename(&setpriv, &kept).unwrap();
    write_program(&setpriv, BUSYBOX);
    signal_pid(core.redis_pid().await, Signal::KILL);
    core.until_logged(SOON, &["ERROR", "through setpriv", "unrecognized option"]).await;
    fs::remove_file(&setpriv).unwrap();
    core.until_logged(SOON, &["ERROR", "through setpriv", "No such file"]).await;
    assert!(!core.log().contains("append-only file"), "{}", core.log());
    fs::rename(&kept, &setpriv).unwrap();
    until_status(SOON, &[200, 201], async || core.claim("demo", "bob", "k").await).await;
    core.claim("demo", "alice", "k").await.expect(200);
}
