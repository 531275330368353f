//! The data directory is accessible only to the user that core runs as.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use support::core_process::CoreOptions;
use support::only_on;
use support::process::{children_of, command, free_address};
use support::topology::OWN;
use support::{Core, binary};
use tempfile::TempDir;

use crate::command_line::run_against;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn directory() -> TempDir {
    tempfile::Builder::new().prefix("cg-").tempdir().unwrap()
}

/// Returns all files below `directory` that are accessible to the group or to others.
fn open_to_others(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        // At its start, core removes the file with which it has measured the disk.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            found.insert(path.display().to_string(), format!("{mode:o}"));
        }
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

async fn with_claims(core: &Core) {
    core.create("demo", json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.sql().until("demo", 1).await;
}

#[tokio::test]
async fn a_world_readable_directory_and_new_files_become_private() {
    only_on!(OWN, "it checks the files of core's own Redis");
    let outer = directory();
    let data = outer.path().join("data");
    fs::create_dir(&data).unwrap();
    set_mode(&data, 0o755);
    let core = CoreOptions::default().start_in(outer).await;
    with_claims(&core).await;
    assert_eq!(open_to_others(&data), BTreeMap::new());
    for name in ["claimgate.sqlite", "claimgate.sqlite-wal", "redis/appendonlydir", "redis.sock", "lock"] {
        assert!(data.join(name).exists(), "{name} is missing");
    }
}

/// Directory names with a special meaning in a URL, in Redis' configuration or in a shell.
const NAMES: [&str; 7] = [
    "a%20b",
    "a%2Fb%00",
    "what?mode=ro#x",
    " tab\tand \"quotes\" and 'more' ",
    "back\\slash\\x41",
    "line\nend",
    "日本 {x} &;|~",
];

#[tokio::test]
async fn a_directory_with_any_name_works_for_redis_and_sqlite() {
    only_on!(OWN, "it checks the files of core's own Redis");
    for name in NAMES {
        let outer = directory();
        let inner = tempfile::Builder::new().prefix(name).suffix(name).tempdir_in(outer.path()).unwrap();
        let mut core = CoreOptions::default().start_in(inner).await;
        with_claims(&core).await;
        core.redis().await.counter("demo", "taken").await;
        core.stop().await;
        let core = core.restart().await;
        core.claim("demo", "alice", "k").await.expect(200);
        for file in ["claimgate.sqlite", "redis/appendonlydir", "redis/redis.log", "redis.sock"] {
            assert!(core.data_dir().join(file).exists(), "{name:?}: {file} is elsewhere");
        }
        let beside: Vec<_> =
            fs::read_dir(outer.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(beside.len(), 1, "{name:?}: {beside:?}");
        let doctor = run_against(&core, &["doctor", "--json"]).await;
        let unreachable =
            ["database.reachable", "redis.reachable"].iter().find(|check| doctor.out.contains(**check));
        assert_eq!(unreachable, None, "{name:?}: {doctor:?}");
    }
}

/// A unix socket's path has at most 107 bytes.
#[tokio::test]
async fn the_socket_of_a_directory_with_a_long_path_is_below_tmpdir() {
    only_on!(OWN, "it checks the files of core's own Redis");
    let outer = directory();
    let inner = tempfile::Builder::new().prefix(&"x".repeat(150)).tempdir_in(outer.path()).unwrap();
    let tmp = outer.path().join("tmp");
    let options = CoreOptions::default().with("TMPDIR", tmp.to_str().unwrap());
    let mut core = options.start_in(inner).await;
    with_claims(&core).await;
    core.kill();
    let core = core.restart().await;
    core.claim("demo", "alice", "k").await.expect(200);
    assert!(!core.data_dir().join("redis.sock").exists());
    let below: Vec<_> = fs::read_dir(&tmp).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(below.len() == 1 && below[0].join("redis.sock").exists(), "{below:?}");
    assert_eq!(open_to_others(&tmp), BTreeMap::new());
}

#[test]
fn a_directory_name_that_is_not_utf8_is_rejected() {
    let outer = directory();
    let data = outer.path().join(std::ffi::OsStr::from_bytes(b"a\xffb"));
    assert!(serve_refuses(&data).contains("is not UTF-8"));
}

#[tokio::test]
async fn readable_files_of_an_old_version_become_private_at_start() {
    only_on!(OWN, "it checks the files of core's own Redis");
    let mut core = Core::start().await;
    with_claims(&core).await;
    core.stop().await;
    let data = core.data_dir();
    let opened = ["", "admin.token", "claimgate.sqlite", "redis", "redis/appendonlydir"];
    for name in opened {
        set_mode(&data.join(name), if data.join(name).is_dir() { 0o755 } else { 0o644 });
    }
    let again = core.restart().await;
    assert_eq!(open_to_others(&data), BTreeMap::new());
    assert!(again.log().contains("admin.token was open to other users (mode 644)"), "{}", again.log());
    again.claim("demo", "alice", "k").await.expect(200);
}

/// Runs `serve`, checks that it rejects `data` as wrong configuration, and returns its error line.
fn serve_refuses(data: &Path) -> String {
    serve_exits(data, 2)
}

/// Runs `serve`, checks that it exits with `status`, and returns its error line.
fn serve_exits(data: &Path, status: i32) -> String {
    let mut serve = command(&binary::claimgate());
    serve.arg("serve").stdin(Stdio::null());
    serve.env("CLAIMGATE_DATA_DIR", data);
    serve.env("CLAIMGATE_LISTEN", free_address().to_string());
    serve.env("CLAIMGATE_ADMIN_LISTEN", free_address().to_string());
    // A core that accepts the directory would run forever.
    let output = std::process::Command::new("timeout")
        .arg("10")
        .arg(serve.get_program())
        .args(serve.get_args())
        .envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

/// Otherwise two Redis servers would write one append-only file.
#[tokio::test]
async fn a_second_core_is_rejected_even_without_the_lock_file() {
    let core = Core::start().await;
    with_claims(&core).await;
    let processes = |core: &Core| children_of(core.pid());
    let before = processes(&core);
    for removed in [false, true] {
        if removed {
            fs::remove_file(core.data_dir().join("lock")).unwrap();
        }
        let message = serve_exits(&core.data_dir(), 3);
        assert!(message.contains("another claimgate is running"), "{message}");
        assert_eq!(processes(&core), before, "its Redis still runs");
        core.claim("demo", "alice", "k").await.expect(200);
    }
}

#[test]
fn a_shared_world_readable_directory_is_rejected_unchanged() {
    let shared = directory();
    fs::write(shared.path().join("holiday.jpg"), "").unwrap();
    let like_tmp = directory();
    for (path, bits, why) in
        [(shared.path(), 0o755, "a foreign file in it"), (like_tmp.path(), 0o1777, "writable by all")]
    {
        set_mode(path, bits);
        let message = serve_refuses(path);
        assert!(message.contains("CLAIMGATE_DATA_DIR") && message.contains("chmod 700"), "{why}: {message}");
        assert_eq!(mode(path), bits, "{why}: the mode is not changed");
        assert!(!path.join("admin.token").exists(), "{why}: no secret is created in it");
    }
}
