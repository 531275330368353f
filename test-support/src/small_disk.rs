//! A small disk in memory that fills up quickly; mounting it needs root.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A mounted disk; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts a disk of this size, with other options of tmpfs after it (`64m`, `64m,nr_inodes=400`); `Err` if this user
    /// lacks permission.
    pub fn mount(size: &str) -> Result<Self, String> {
        let directory =
            tempfile::Builder::new().prefix("cgd-").tempdir().map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "tmpfs"]).arg(directory.path());
        let mounted = mount.output().map_err(|error| format!("mount: {error}"))?;
        if !mounted.status.success() {
            return Err(format!("mount: {}", String::from_utf8_lossy(&mounted.stderr).trim()));
        }
        Ok(Self(directory))
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills the disk completely.
    pub fn fill(&self) {
        let mut ballast = std::fs::File::create(self.path().join("ballast")).expect("a file");
        let page = [1; 4096];
        while std::io::Write::write_all(&mut ballast, &page).is_ok() {}
    }

    /// Frees the disk's space.
    pub fn empty(&self) {
        std::fs::remove_file(self.path().join("ballast")).expect("the ballast");
    }
}

impl SmallDisk {
    /// Remounts the disk read-only. No file on it may be open for writing.
    pub fn make_read_only(&self) {
        let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(self.path()).status();
        assert!(remounted.expect("mount").success(), "the disk is in use");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}
