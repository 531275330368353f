//! Measures how fast the disks of core's own Redis and of SQLite sync a few bytes.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::report::{Finding, Report};
use super::setup::{Database, Redis, Setup, WAIT};
use crate::config::{RANDOM_BYTES, random_text};

const CHECK: &str = "system.disk";
const SYNCS_MAX: usize = 15;
/// No sync but the first begins later than this.
const MEASURE_MAX: Duration = Duration::from_secs(1);
/// A slower median is a warning: each call to Redis waits for a sync.
const MEDIAN_MAX: Duration = Duration::from_millis(50);
/// A slower single sync is a warning: a call to Redis times out after a second.
const SLOWEST_MAX: Duration = Duration::from_millis(500);
const BYTES: &[u8] = b"claimgate doctor";
/// Beginning of the temporary file's name, which is that of core's own files: the data directory may contain these. The
/// rest is random, since several processes may measure at the same time.
const PROBE_PREFIX: &str = "core.doctor";
/// Age from which a temporary file is a leftover of a process that ended during a sync. No measurement takes as long.
const LEFTOVER_AGE: Duration = Duration::from_secs(60);

const OF_REDIS: &str =
    "claims wait for syncs of Redis' file, and get 503 if Redis does not answer for a second";
const OF_SQLITE: &str = "claims reach SQL late, and admins' changes get 503 during a long sync";
/// A measurement is a moment: other programs may be writing.
const REMEDY: &str = "use a local disk with fast syncs, such as an SSD, and keep other programs' writes off it; if the \
                      machine was busy, run `claimgate doctor` again";
const REMEDY_OF_FAILURE: &str = "check the disk's free space, its mount options and the kernel's log";

/// A disk whose syncs delay core.
#[derive(Debug)]
struct Disk {
    /// The directory on this disk whose files are synced.
    directory: PathBuf,
    /// The consequence of slow syncs.
    consequence: &'static str,
}

impl Disk {
    /// Returns the disks of core's own Redis and of SQLite; a disk of both only once.
    fn all(setup: &Setup) -> Vec<Self> {
        let files = setup.data_dir.join("redis");
        // Redis' directory may be a separate mount. Before the first start it does not exist.
        let files = if files.is_dir() { files } else { setup.data_dir.clone() };
        let redis = matches!(setup.redis, Redis::Own { .. })
            .then_some(Self { directory: files, consequence: OF_REDIS });
        let sqlite = matches!(setup.database, Database::Sqlite(_))
            .then(|| Self { directory: setup.data_dir.clone(), consequence: OF_SQLITE });
        let mut disks: Vec<_> = redis.into_iter().chain(sqlite).collect();
        disks.retain(|disk| disk.directory.is_dir());
        disks.dedup_by_key(|disk| fs::metadata(&disk.directory).map(|found| found.dev()).ok());
        disks
    }

    fn finding(&self, measured: impl fmt::Display) -> Finding {
        let directory = self.directory.display();
        let problem = format!("the disk of {directory} syncs slowly ({measured}): {}", self.consequence);
        Finding::warning(CHECK, problem, REMEDY)
    }

    fn failure(&self, error: &io::Error) -> Finding {
        let problem =
            format!("syncs of the disk of {} could not be measured: {error}", self.directory.display());
        Finding::warning(CHECK, problem, REMEDY_OF_FAILURE)
    }
}

/// The durations of some syncs.
#[derive(Debug)]
struct Syncs {
    count: usize,
    median: Duration,
    slowest: Duration,
}

impl Syncs {
    fn measure(directory: &Path) -> io::Result<Self> {
        let mut file = ProbeFile::create(directory)?;
        let began = Instant::now();
        // At least one sync, even if this thread has not run for a while.
        let mut durations = vec![file.sync()?];
        while durations.len() < SYNCS_MAX && began.elapsed() < MEASURE_MAX {
            durations.push(file.sync()?);
        }
        Ok(Self::of(durations))
    }

    fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        let count = durations.len();
        let at = |index: usize| durations.get(index).copied().unwrap_or_default();
        Self { count, median: at(count / 2), slowest: at(count.saturating_sub(1)) }
    }

    fn are_slow(&self) -> bool {
        self.median > MEDIAN_MAX || self.slowest > SLOWEST_MAX
    }
}

impl fmt::Display for Syncs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let (median, slowest, count) = (ms(self.median), ms(self.slowest), self.count);
        write!(f, "median {median:.1} ms, slowest {slowest:.1} ms of {count} syncs")
    }
}

/// A temporary file. It keeps its name while it is measured, because some file systems do not sync files without a
/// name.
#[derive(Debug)]
struct ProbeFile {
    path: PathBuf,
    file: File,
}

impl ProbeFile {
    fn create(directory: &Path) -> io::Result<Self> {
        remove_leftovers(directory);
        let name = random_text().map_err(|error| io::Error::other(error.to_string()))?;
        let path = directory.join(format!("{PROBE_PREFIX}.{name}"));
        // A new file only: another user may have placed a link if the directory is open.
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file })
    }

    /// Appends a few bytes and syncs them, as Redis does with its append-only file.
    fn sync(&mut self) -> io::Result<Duration> {
        self.file.write_all(BYTES)?;
        let began = Instant::now();
        self.file.sync_data()?;
        Ok(began.elapsed())
    }
}

impl Drop for ProbeFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns whether `name` is that of a temporary file of this check, and of no other file.
fn is_probe(name: &str) -> bool {
    let random = name.strip_prefix(PROBE_PREFIX).and_then(|rest| rest.strip_prefix('.'));
    random.is_some_and(|random| URL_SAFE_NO_PAD.decode(random).is_ok_and(|bytes| bytes.len() == RANDOM_BYTES))
}

/// Removes the temporary files of processes that have ended, as far as possible.
fn remove_leftovers(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_probe = entry.file_name().to_str().is_some_and(is_probe);
        let modified = || entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = || modified().and_then(|at| at.elapsed().ok());
        if is_probe && age().is_some_and(|age| age > LEFTOVER_AGE) {
            // Another process may have removed the file already.
            let _ = fs::remove_file(entry.path());
        }
    }
}

pub(super) async fn examine(setup: &Setup, report: &mut Report) {
    for disk in Disk::all(setup) {
        let part = format!("the disk of {}", disk.directory.display());
        match timeout(WAIT, measure(disk.directory.clone())).await {
            Ok(Ok(syncs)) => {
                let finding = syncs.are_slow().then(|| disk.finding(&syncs));
                report.add(format!("{part}: {syncs}"), finding);
            }
            Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
                report.notes.push(format!("{part}: syncs were not measured: {error}"));
            }
            Ok(Err(error)) => report.findings.push(disk.failure(&error)),
            Err(_) => {
                report.findings.push(disk.finding(format!("no result within {} s", WAIT.as_secs())));
            }
        }
    }
}

/// Measures in a separate thread: a runtime that ends waits for its own threads, even during a sync that hangs. The
/// kernel may still delay the end of the process until the sync is complete.
async fn measure(directory: PathBuf) -> io::Result<Syncs> {
    let (done, syncs) = oneshot::channel();
    thread::Builder::new().name("disk".to_owned()).spawn(move || {
        let _ = done.send(Syncs::measure(&directory));
    })?;
    syncs.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn slow(milliseconds: &[u64]) -> bool {
        Syncs::of(milliseconds.iter().copied().map(Duration::from_millis).collect()).are_slow()
    }

    #[test]
    fn a_slow_median_or_one_very_slow_sync_is_reported() {
        assert!(!slow(&[50, 1, 500]));
        assert!(slow(&[1, 51, 60]));
        assert!(slow(&[1, 1, 501]));
    }

    #[test]
    fn a_measurement_names_its_figures_and_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let other = format!("{PROBE_PREFIX}-report.txt");
        for name in [format!("{PROBE_PREFIX}.{}", random_text().unwrap()), other.clone()] {
            let old = File::create(directory.path().join(name)).unwrap();
            old.set_modified(SystemTime::now() - 2 * LEFTOVER_AGE).unwrap();
        }
        let syncs = Syncs::measure(directory.path()).unwrap();
        assert!((1..=SYNCS_MAX).contains(&syncs.count) && syncs.median <= syncs.slowest, "{syncs:?}");
        let left: Vec<_> =
            directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [other.as_str()], "it removes a file of a killed process, and no other");
        let syncs = Syncs::of([2, 1, 4].map(Duration::from_millis).to_vec());
        assert_eq!(syncs.to_string(), "median 2.0 ms, slowest 4.0 ms of 3 syncs");
    }

    #[test]
    fn two_processes_measure_at_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = [(); 2].map(|()| ProbeFile::create(directory.path()).unwrap());
        assert_eq!(directory.path().read_dir().unwrap().count(), 2, "neither removes the other's file");
        for file in &mut files {
            file.sync().unwrap();
        }
    }

    #[test]
    fn redis_and_sqlite_on_one_disk_are_measured_once() {
        let directory = tempfile::tempdir().unwrap();
        let setup = |database| Setup {
            data_dir: directory.path().to_owned(),
            redis: Redis::Own { address: None, maxmemory_bytes: 0 },
            database,
        };
        let sqlite = setup(Database::Sqlite(directory.path().join("claimgate.sqlite")));
        let disks = Disk::all(&sqlite);
        assert_eq!(disks.len(), 1, "{disks:?}");
        assert_eq!(disks[0].consequence, OF_REDIS);
        fs::create_dir(directory.path().join("redis")).unwrap();
        let postgres = setup(Database::Postgres(String::new()));
        assert_eq!(Disk::all(&postgres)[0].directory, directory.path().join("redis"));
    }
}
