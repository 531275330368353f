//! A wall clock that stands still until the model moves it: the same seed meets the same millisecond every time, and
//! the edge of a hold, a day or a window can be met exactly.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The clock of every process started with its environment.
#[derive(Debug)]
pub struct FrozenClock {
    directory: TempDir,
    file: File,
    now_ms: i64,
}

impl FrozenClock {
    /// Compiles the shim.
    pub fn at(now_ms: i64) -> Self {
        let directory =
            tempfile::Builder::new().prefix("cgfrozen-").tempdir().expect("a temporary directory");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/frozen_clock.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(directory.path().join("frozen_clock.so"))
            .arg(source)
            .output()
            .expect("cc runs");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let file = File::create(directory.path().join("now_ms")).expect("the clock's file");
        let mut clock = Self { directory, file, now_ms };
        clock.set_ms(now_ms);
        clock
    }

    /// The variables that put a process on this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let path = |name| self.directory.path().join(name);
        [("LD_PRELOAD", path("frozen_clock.so")), ("FROZEN_CLOCK", path("now_ms"))]
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Moves it, forwards or back.
    pub fn set_ms(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
        self.file.write_all_at(&now_ms.to_ne_bytes(), 0).expect("the clock's file");
    }
}
