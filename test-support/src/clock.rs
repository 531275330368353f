//! Wall clocks that a test controls, for any process started with their environment.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::time::Duration;

use futures_util::future::{Either, select};
use tempfile::TempDir;

use crate::process::PRELOAD;

const HOUR_MS: i64 = 3_600_000;
const TICK_MS: i64 = 10;

/// A running wall clock that the test can shift.
#[derive(Debug)]
pub struct Clock(Shim);

impl Clock {
    /// Creates a clock at the real time. Compiles the shim.
    pub fn new() -> Self {
        Self(Shim::holding(0))
    }

    /// Returns the environment variables that make a process use this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        self.0.environment()
    }

    /// Returns the variables of [`Self::environment`] for a process that is exempt from the slow disk: see
    /// [`fast_disk`](crate::process::fast_disk).
    pub fn environment_on_fast_disk(&self) -> [(&'static str, PathBuf); 2] {
        self.0.environment_on_fast_disk()
    }

    /// Sets the clock's offset from the real time, in milliseconds.
    pub fn move_by_ms(&self, ms: i64) {
        self.0.set(ms);
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// A wall clock that stands still until the test moves it. The same seed produces the same times in every
/// run, and a test can hit the edge of a hold, a day or a window exactly.
#[derive(Debug)]
pub struct FrozenClock {
    shim: Shim,
    now_ms: i64,
}

impl FrozenClock {
    /// Creates a clock at an instant, in milliseconds since 1970. Compiles the shim.
    pub fn at(now_ms: i64) -> Self {
        Self { shim: Shim::holding(now_ms), now_ms }
    }

    /// Returns the environment variables that make a process use this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 3] {
        let [preload, file] = self.shim.environment();
        [preload, file, ("CLOCK_SHIM_FROZEN", "1".into())]
    }

    /// Runs the clock from an hour before its instant, ten times as fast, while `what` runs: a cluster node
    /// serves nothing until its clock has advanced by two seconds.
    pub async fn running_behind<T>(&self, what: impl Future<Output = T>) -> T {
        let run = async {
            for tick in 0.. {
                self.shim.set(self.now_ms - HOUR_MS + 10 * TICK_MS * tick);
                tokio::time::sleep(Duration::from_millis(TICK_MS.unsigned_abs())).await;
            }
        };
        let (what, run) = (pin!(what), pin!(run));
        // Move the clock first: a node that has read the later time once serves nothing until its clock
        // reaches that time again.
        let Either::Right((done, _)) = select(run, what).await else { panic!("ticks do not end") };
        self.shim.set(self.now_ms);
        done
    }

    /// Returns the clock's time, in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Moves the clock forwards or backwards.
    pub fn set_ms(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
        self.shim.set(now_ms);
    }
}

/// The compiled `clock_shim.c` and the file from which it reads its number.
#[derive(Debug)]
struct Shim {
    directory: TempDir,
    file: File,
}

impl Shim {
    fn holding(number: i64) -> Self {
        let directory = tempfile::Builder::new().prefix("cgclock-").tempdir().expect("a temporary directory");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clock_shim.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(directory.path().join("clock_shim.so"))
            .arg(source)
            .output()
            .expect("cc runs");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let file = File::create(directory.path().join("number")).expect("the clock's file");
        let shim = Self { directory, file };
        shim.set(number);
        shim
    }

    /// Returns the variables that preload the shim and all libraries of this process.
    fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let [(name, shim), file] = self.environment_on_fast_disk();
        let mut preload = shim.into_os_string();
        if let Some(others) = std::env::var_os(PRELOAD) {
            preload.push(":");
            preload.push(others);
        }
        [(name, preload.into()), file]
    }

    /// Returns the variables that preload only the shim.
    fn environment_on_fast_disk(&self) -> [(&'static str, PathBuf); 2] {
        let path = |name| self.directory.path().join(name);
        [(PRELOAD, path("clock_shim.so")), ("CLOCK_SHIM", path("number"))]
    }

    /// Writes the number with one aligned write of 8 bytes, so that no process reads half of it.
    fn set(&self, number: i64) {
        self.file.write_all_at(&number.to_ne_bytes(), 0).expect("the clock's file");
    }
}
