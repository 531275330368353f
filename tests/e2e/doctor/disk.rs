//! A disk that is full, read-only or slow.

use std::fs;
use std::process::Command;

use support::CoreOptions;
use support::available::available;
use support::only_on;
use support::redis_server::RedisServer;
use support::small_disk::SmallDisk;
use support::topology::OWN;

use super::{directory, doctor, private, run};

#[tokio::test]
async fn a_full_or_read_only_disk_is_reported() {
    const INODES: usize = 400;
    only_on!(OWN, "it starts its own servers");
    let Some(disk) =
        available("doctor: a disk that is full", SmallDisk::mount(&format!("80m,nr_inodes={INODES}")))
    else {
        return;
    };
    let redis = RedisServer::start_with(&[("maxmemory", "64mb")], &[]).await;
    let url = redis.url();
    let environment = [("CLAIMGATE_REDIS_URL", url.as_str())];
    let mut core = CoreOptions::default()
        .with("CLAIMGATE_REDIS_URL", &url)
        .start_in(private(disk.path()).unwrap())
        .await;
    doctor(&core.data_dir(), &environment).await.breaks(&["data_dir.in_memory"]);
    disk.fill();
    doctor(&core.data_dir(), &environment).await.breaks(&["data_dir.full", "data_dir.in_memory"]);
    disk.empty();
    let files: Vec<_> = (0..INODES)
        .map(|number| disk.path().join(format!("empty{number}")))
        .take_while(|file| fs::File::create(file).is_ok())
        .collect();
    doctor(&core.data_dir(), &environment).await.breaks(&["data_dir.full", "data_dir.in_memory"]);
    for file in &files {
        fs::remove_file(file).unwrap();
    }
    doctor(&core.data_dir(), &environment).await.breaks(&["data_dir.in_memory"]);
    core.stop().await;
    disk.make_read_only();
    let report = doctor(&core.data_dir(), &environment).await;
    report.breaks(&["data_dir.in_memory", "database.read_only"]);
    assert!(report.found("warning").contains("system.disk"), "{:#}", report.value);
    // Core must exit before its disk is unmounted.
    drop(core);
}

/// Returns whether strace may delay the system calls of a program.
fn strace_is_permitted() -> Result<(), String> {
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    match traced.map_err(|error| format!("strace: {error}"))? {
        output if output.status.success() => Ok(()),
        output => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

#[tokio::test]
async fn a_slow_disk_is_a_warning() {
    let Some(()) = available("doctor: a slow disk", strace_is_permitted()) else { return };
    let data = directory();
    let trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"];
    let slow = [&trace[..], &["-e", "inject=fdatasync:delay_enter=60000"]].concat();
    let output = run(&slow, &[], data.path(), &[]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let warning = "syncs slowly (median ";
    for (kind, part) in [("checked: the disk of ", " ms of "), ("warning: the disk of ", warning)] {
        assert!(text.lines().any(|line| line.starts_with(kind) && line.contains(part)), "{part}: {text}");
    }
    assert!(data.path().read_dir().unwrap().next().is_none(), "the doctor removes its file");
}
