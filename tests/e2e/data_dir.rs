//! The data directory is readable by the user that core runs as, and by no other.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use support::core_process::CoreOptions;
use support::only_on;
use support::process::{command, free_address};
use support::topology::OWN;
use support::{Core, binary};
use tempfile::TempDir;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn directory() -> TempDir {
    tempfile::Builder::new().prefix("cg-").tempdir().unwrap()
}

/// Everything below `directory` that its group or others have any right to, but for the unix socket's own kind of file.
fn open_to_others(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut look = vec![directory.to_owned()];
    while let Some(path) = look.pop() {
        if mode(&path) & 0o077 != 0 {
            found.insert(path.display().to_string(), format!("{:o}", mode(&path)));
        }
        if path.is_dir() {
            look.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
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
async fn a_data_directory_that_was_open_is_closed_and_all_that_is_made_in_it_is_private() {
    only_on!(OWN, "it looks at the files of core's own Redis");
    let outer = directory();
    let data = outer.path().join("data");
    fs::create_dir(&data).unwrap();
    set_mode(&data, 0o755);
    let core = CoreOptions::default().start_in(outer).await;
    with_claims(&core).await;
    assert_eq!(open_to_others(&data), BTreeMap::new());
    for name in ["claimgate.sqlite", "claimgate.sqlite-wal", "redis/appendonlydir", "redis.sock", "lock"] {
        assert!(data.join(name).exists(), "{name} is not there to be looked at");
    }
}

#[tokio::test]
async fn what_an_earlier_version_left_open_is_closed_at_the_next_start() {
    only_on!(OWN, "it looks at the files of core's own Redis");
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

/// Runs `serve` on `data`, which it is to refuse; its one line.
fn refused(data: &Path) -> String {
    let mut serve = command(&binary::claimgate());
    serve.arg("serve").stdin(Stdio::null());
    serve.env("CLAIMGATE_DATA_DIR", data);
    serve.env("CLAIMGATE_LISTEN", free_address().to_string());
    serve.env("CLAIMGATE_ADMIN_LISTEN", free_address().to_string());
    // A core that is not refused would run for ever.
    let output = std::process::Command::new("timeout")
        .arg("10")
        .arg(serve.get_program())
        .args(serve.get_args())
        .envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_directory_that_is_open_and_not_claimgates_alone_is_refused_as_it_is() {
    let shared = directory();
    fs::write(shared.path().join("holiday.jpg"), "").unwrap();
    let like_tmp = directory();
    for (path, bits, why) in
        [(shared.path(), 0o755, "another's file in it"), (like_tmp.path(), 0o1777, "writable by all")]
    {
        set_mode(path, bits);
        let said = refused(path);
        assert!(said.contains("CLAIMGATE_DATA_DIR") && said.contains("chmod 700"), "{why}: {said}");
        assert_eq!(mode(path), bits, "{why}: it may be open for a reason");
        assert!(!path.join("admin.token").exists(), "{why}: no secret is made in it");
    }
}
