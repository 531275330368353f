//! A control group that limits the number of processes and threads; it needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::id;
use std::sync::atomic::{AtomicUsize, Ordering};

const GROUPS: &str = "/sys/fs/cgroup";

/// A control group, removed when dropped. Its processes move to the group above.
#[derive(Debug)]
pub struct ProcessLimit(PathBuf);

impl ProcessLimit {
    /// Creates a group without a limit; `Err` if this user or machine has no such groups.
    pub fn create() -> Result<Self, String> {
        static CREATED: AtomicUsize = AtomicUsize::new(0);
        let version_1 = Path::new(GROUPS).join("pids");
        let above = if version_1.is_dir() { version_1 } else { PathBuf::from(GROUPS) };
        // Version 2 has the files of a controller only once it is enabled for the groups below.
        let _ = fs::write(above.join("cgroup.subtree_control"), "+pids");
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let group = above.join(format!("claimgate-test-{}-{number}", id()));
        fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        let group = Self(group);
        if group.file("pids.max").exists() { Ok(group) } else { Err("no limits of processes".to_owned()) }
    }

    /// Returns the file to which a process id is written to move the process into the group.
    pub fn members(&self) -> PathBuf {
        self.file("cgroup.procs")
    }

    /// Moves a process with its threads into the group.
    pub fn add(&self, pid: u32) {
        fs::write(self.members(), pid.to_string()).expect("a process id");
    }

    /// Sets the maximum number of processes and threads: a number, or `max`.
    pub fn set(&self, max: &str) {
        fs::write(self.file("pids.max"), max).expect("a limit");
    }

    /// Allows no process or thread besides the present ones, not even after some of them have ended.
    pub fn close(&self) {
        self.set("1");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for ProcessLimit {
    fn drop(&mut self) {
        let above = self.0.parent().map(|above| above.join("cgroup.procs"));
        for pid in fs::read_to_string(self.members()).unwrap_or_default().lines() {
            let _ = above.as_ref().map(|above| fs::write(above, pid));
        }
        let _ = fs::remove_dir(&self.0);
    }
}
