//! The machine: who may read the data directory, where it lies, descriptors, memory.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::report::{Finding, Report};
use super::setup::{Database, Redis, Setup};
use crate::config::{SECRET_FILES, memory_bytes};
use crate::data_dir;

/// Descriptors that a crowd takes: 4,096 requests at once, and as many again for those that come and go.
const DESCRIPTORS_MIN: u64 = 8_192;
/// Of the machine's memory, how many quarters Redis may take: a rewrite of its file and core itself need the rest.
const MEMORY_QUARTERS_MAX: u64 = 3;

/// Numbers of file systems, as `statfs(2)` gives them.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];
const ON_THE_NETWORK: [i64; 6] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400];

pub(super) fn examine(setup: &Setup, report: &mut Report) {
    if setup.data_dir.is_dir() {
        report.findings.extend(open_files(&setup.data_dir));
        if matches!(setup.redis, Redis::Own { .. }) || matches!(setup.database, Database::Sqlite(_)) {
            report.findings.extend(file_system(&setup.data_dir));
        }
    } else {
        report
            .notes
            .push(format!("{} is not there yet: core makes it at its first start", setup.data_dir.display()));
    }
    report.findings.extend(secret_files());
    report.findings.extend(descriptors());
    if let Redis::Own { maxmemory_bytes, .. } = setup.redis {
        report.findings.extend(memory("redis.maxmemory", maxmemory_bytes, memory_bytes()));
    }
}

/// An open file in a closed directory cannot be reached until the directory is opened: a warning, not a breach.
fn open_files(directory: &Path) -> Vec<Finding> {
    let open = data_dir::open(directory);
    let reachable = open.first().is_some_and(|first| first.path == directory);
    let finding = |data_dir::Open { path, mode }: data_dir::Open| {
        let problem = format!("{} is open to other users of this machine (mode {mode:o})", path.display());
        let remedy = format!("chmod go-rwx {}, or restart core, which closes it", path.display());
        if reachable {
            Finding::breaks("data_dir.open", problem, remedy)
        } else {
            Finding::warning("data_dir.open", problem, remedy)
        }
    };
    open.into_iter().map(finding).collect()
}

/// Secrets that the environment keeps in files elsewhere.
fn secret_files() -> Vec<Finding> {
    let files = SECRET_FILES.iter().filter_map(|variable| Some((variable, std::env::var_os(variable)?)));
    files
        .filter_map(|(variable, file)| {
            let mode = fs::metadata(&file).ok()?.mode() & 0o7777;
            (mode & 0o007 != 0).then(|| {
                let file = Path::new(&file).display();
                let problem =
                    format!("{variable}: {file} can be read by every user of this machine (mode {mode:o})");
                Finding::warning("secrets.open", problem, format!("chmod o-rwx {file}"))
            })
        })
        .collect()
}

fn file_system(directory: &Path) -> Option<Finding> {
    let kind = rustix::fs::statfs(directory).ok()?.f_type;
    let shown = directory.display();
    if IN_MEMORY.contains(&kind) {
        let problem = format!("{shown} lies in memory: a restart of the machine loses every claim");
        return Some(Finding::breaks(
            "data_dir.in_memory",
            problem,
            "set CLAIMGATE_DATA_DIR to a directory on a disk",
        ));
    }
    ON_THE_NETWORK.contains(&kind).then(|| {
        let problem =
            format!("{shown} lies on a network file system: its locks and syncs are what claims rest on");
        let remedy = "set CLAIMGATE_DATA_DIR to a local disk, or use PostgreSQL and a Redis of your own";
        Finding::warning("data_dir.network", problem, remedy)
    })
}

fn descriptors() -> Option<Finding> {
    let (_, hard) = rlimit::Resource::NOFILE.get().ok()?;
    (hard < DESCRIPTORS_MIN).then(|| {
        let problem =
            format!("at most {hard} files and connections may be open: a crowd needs {DESCRIPTORS_MIN}");
        Finding::warning(
            "system.descriptors",
            problem,
            "raise the hard limit (LimitNOFILE= in the unit, ulimit -Hn)",
        )
    })
}

/// Whether a Redis with this limit is killed by the kernel before it refuses by itself. 0 is no limit.
pub(super) fn memory(
    check: &'static str,
    maxmemory_bytes: u64,
    machine_bytes: Option<u64>,
) -> Option<Finding> {
    let machine_bytes = machine_bytes?;
    let most = machine_bytes / 4 * MEMORY_QUARTERS_MAX;
    let mib = |bytes: u64| bytes >> 20;
    let problem = match maxmemory_bytes {
        0 => "Redis has no maxmemory: when memory runs out the kernel kills it, where it would have refused"
            .to_owned(),
        bytes if bytes > most => format!(
            "Redis' maxmemory of {} MiB is more than three quarters of the machine's {} MiB: the kernel may kill it before it \
             refuses",
            mib(bytes),
            mib(machine_bytes)
        ),
        _ => return None,
    };
    Some(Finding::warning(check, problem, format!("set it to {} MiB at most", mib(most))))
}
