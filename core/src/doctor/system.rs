//! Checks the machine: the data directory's permissions and file system, limits of the process.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;

use rustix::process::{Resource, getrlimit};

use super::report::{Finding, Report};
use super::setup::{Database, Redis, Setup};
use crate::config::{self, SECRET_FILES};
use crate::data_dir::{self, Exposed};
use crate::group_limits::{MemoryLimit, ProcessLimit};

/// Number of descriptors needed under full load: 4,096 concurrent requests, and as many for connections being
/// opened and closed.
const DESCRIPTORS_MIN: u64 = 8_192;
/// Redis may use this many quarters of the available memory; core and rewrites of Redis' file need the rest.
const MEMORY_QUARTERS_MAX: u64 = 3;

/// Number of further processes and threads that core needs: for Redis' restart and the rewrite of its file, and for
/// connections to SQL.
const PROCESSES_MIN: u64 = 64;

/// With less free space the data directory's disk counts as full: a rewrite of Redis' file needs more.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// With fewer free inodes it counts as full, too: a rewrite, a snapshot and a rotated log need new files.
const FREE_INODES_MIN: u64 = 64;

/// Numbers of file systems, as Linux's `statfs(2)` gives them.
#[cfg(target_os = "linux")]
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];
#[cfg(target_os = "linux")]
const ON_THE_NETWORK: [i64; 6] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400];

pub(super) fn examine(setup: &Setup, report: &mut Report) {
    if setup.data_dir.is_dir() {
        let part = format!("the data directory {}: permissions, file system", setup.data_dir.display());
        report.add(part, exposed_files(&setup.data_dir));
        if matches!(setup.redis, Redis::Own { .. }) || matches!(setup.database, Database::Sqlite(_)) {
            report.findings.extend(file_system(&setup.data_dir));
            report.findings.extend(full_disk(&setup.data_dir));
        }
    } else {
        report.notes.push(format!(
            "{} does not exist yet: core creates it at its first start",
            setup.data_dir.display()
        ));
    }
    report.add("secret files: permissions", secret_files());
    limits(setup, report);
}

/// Checks the limits of this process, and names where each comes from.
fn limits(setup: &Setup, report: &mut Report) {
    if let Some(hard) = getrlimit(Resource::Nofile).maximum {
        report.add(format!("open files: {hard} (hard limit of this process)"), descriptors(hard));
    }
    if let Ok(processors) = thread::available_parallelism() {
        report.add(format!("processors: {processors} (affinity and CPU quota of this process)"), None);
    }
    if let Some(limit) = ProcessLimit::read() {
        let (max, used, file) = (limit.max, limit.used, limit.file.display());
        report
            .add(format!("processes and threads: {max}, of which {used} exist ({file})"), processes(&limit));
    }
    let Some(MemoryLimit { bytes, file }) = MemoryLimit::read() else { return };
    let file = file.display();
    report.add(format!("memory: {} MiB ({file})", bytes >> 20), None);
    if let Redis::Own { maxmemory_bytes, .. } = setup.redis {
        let finding = memory("redis.maxmemory", maxmemory_bytes, bytes, &format!("of {file}"));
        report.add("Redis' memory limit", finding);
    }
}

/// Finds exposed files. In a private directory they cannot be reached, so they are only a warning.
fn exposed_files(directory: &Path) -> Vec<Finding> {
    let exposed = data_dir::exposed(directory);
    let reachable = exposed.first().is_some_and(|first| first.path == directory);
    let finding = |Exposed { path, mode }: Exposed| {
        let problem = format!("{} is open to other users of this machine (mode {mode:o})", path.display());
        let remedy = format!("run chmod go-rwx {}, or restart core, which does the same", path.display());
        if reachable {
            Finding::breaks("data_dir.open", problem, remedy)
        } else {
            Finding::warning("data_dir.open", problem, remedy)
        }
    };
    exposed.into_iter().map(finding).collect()
}

/// Finds files of secrets, named by environment variables, that every user can read.
fn secret_files() -> Vec<Finding> {
    let files = SECRET_FILES.iter().filter_map(|variable| Some((variable, config::env_var(variable)?)));
    files
        .filter_map(|(variable, file)| {
            let mode = fs::metadata(&file).ok()?.mode() & 0o7777;
            (mode & 0o007 != 0).then(|| {
                let file = Path::new(&file).display();
                let problem =
                    format!("{variable}: {file} can be read by every user of this machine (mode {mode:o})");
                Finding::warning("secrets.open", problem, format!("run chmod o-rwx {file}"))
            })
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn file_system(_: &Path) -> Option<Finding> {
    None
}

#[cfg(target_os = "linux")]
fn file_system(directory: &Path) -> Option<Finding> {
    let kind = rustix::fs::statfs(directory).ok()?.f_type;
    let shown = directory.display();
    if IN_MEMORY.contains(&kind) {
        let problem =
            format!("{shown} is on a file system in memory: a restart of the machine loses every claim");
        return Some(Finding::breaks(
            "data_dir.in_memory",
            problem,
            "set CLAIMGATE_DATA_DIR to a directory on a disk",
        ));
    }
    ON_THE_NETWORK.contains(&kind).then(|| {
        let problem = format!("{shown} is on a network file system: claims depend on its locks and syncs");
        let remedy = "set CLAIMGATE_DATA_DIR to a local disk, or use PostgreSQL and a Redis of your own";
        Finding::warning("data_dir.network", problem, remedy)
    })
}

fn full_disk(directory: &Path) -> Option<Finding> {
    let disk = rustix::fs::statvfs(directory).ok()?;
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    // Some file systems have no fixed number of inodes, and report 0.
    let lacks_inodes = disk.f_files > 0 && disk.f_favail < FREE_INODES_MIN;
    let (left, remedy) = if free_bytes < FREE_BYTES_MIN {
        (format!("{} MiB", free_bytes >> 20), "free disk space")
    } else if lacks_inodes {
        (format!("{} inodes", disk.f_favail), "remove files from this disk")
    } else {
        return None;
    };
    let directory = directory.display();
    let problem = format!(
        "the disk of {directory} has {left} left: once it is full, no claim is decided, or none reaches SQL"
    );
    Some(Finding::breaks("data_dir.full", problem, remedy))
}

fn descriptors(hard: u64) -> Option<Finding> {
    (hard < DESCRIPTORS_MIN).then(|| {
        let problem =
            format!("the limit of open files and connections is {hard}: full load needs {DESCRIPTORS_MIN}");
        Finding::warning(
            "system.descriptors",
            problem,
            "raise the hard limit (LimitNOFILE= in the unit, ulimit -Hn)",
        )
    })
}

fn processes(limit: &ProcessLimit) -> Option<Finding> {
    let left = limit.left();
    (left < PROCESSES_MIN).then(|| {
        let problem = format!(
            "{left} more processes and threads are allowed ({}): without one, Redis cannot be restarted, and its file \
             cannot be rewritten",
            limit.file.display()
        );
        Finding::warning("system.processes", problem, "raise the limit (TasksMax=, --pids-limit, podPidsLimit)")
    })
}

/// Finds a memory limit at which the kernel may kill Redis before Redis refuses writes. 0 is no limit.
/// `available_bytes` are those of `source`.
pub(super) fn memory(
    check: &'static str,
    maxmemory_bytes: u64,
    available_bytes: u64,
    source: &str,
) -> Option<Finding> {
    let most = available_bytes / 4 * MEMORY_QUARTERS_MAX;
    let mib = |bytes: u64| bytes >> 20;
    let problem = match maxmemory_bytes {
        0 => "Redis has no maxmemory: if memory runs out, the kernel kills Redis before Redis refuses writes"
            .to_owned(),
        bytes if bytes > most => format!(
            "Redis' maxmemory of {} MiB is more than three quarters of the {} MiB {source}: the kernel may kill Redis \
             before Redis refuses writes",
            mib(bytes),
            mib(available_bytes)
        ),
        _ => return None,
    };
    Some(Finding::warning(check, problem, format!("set maxmemory to {} MiB at most", mib(most))))
}
