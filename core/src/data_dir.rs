//! The data directory. It contains claims, users and secrets, so only core's user may open it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::{geteuid, umask};

/// Name prefixes of the files that claimgate, its Redis, SQLite, `make up` and a new file system create.
const OWN: [&str; 10] = [
    "admin.token",
    "claimgate.sqlite",
    "core.",
    "edge.key",
    "edge.log",
    "edge.vars",
    "lock",
    "lost+found",
    "redis",
    "user-jwt.key",
];
/// Permission bits of group and others.
const OTHERS: u32 = 0o077;
/// The mode bit of a directory that every user may write to, such as `/tmp`.
const STICKY: u32 = 0o1000;
/// Redis' files are two directories deep.
const DEPTH_MAX: u32 = 3;

/// A file or directory that users other than its owner may open.
#[derive(Debug)]
pub struct Exposed {
    /// The path of the file or directory.
    pub path: PathBuf,
    /// The permission bits.
    pub mode: u32,
}

/// Makes files created from now on by this process and its children private to their user.
pub fn keep_new_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Creates the directory if needed, and makes it and claimgate's files in it private. Returns its absolute path.
///
/// # Errors
/// A message if the directory cannot be created, or is open to other users and contains files of other
/// programs, which may rely on that.
pub fn prepare(directory: &Path) -> Result<PathBuf, String> {
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let directory = directory.canonicalize().map_err(failed)?;
    // The database driver takes the path as UTF-8 text.
    if directory.to_str().is_none() {
        return Err(format!("{}: its name is not UTF-8", directory.display()));
    }
    let found = fs::metadata(&directory).map_err(failed)?;
    if found.mode() & OTHERS != 0 && !may_be_closed(&directory, &found).map_err(failed)? {
        return Err(format!(
            "{path} is open to other users (mode {mode:o}) and not used by claimgate only: give it a separate directory, \
             such as {path}/claimgate, or run chmod 700 {path}",
            path = directory.display(),
            mode = found.mode() & 0o7777,
        ));
    }
    for Exposed { path, mode } in exposed(&directory) {
        match fs::set_permissions(&path, Permissions::from_mode(mode & !OTHERS)) {
            Ok(()) => {
                tracing::warn!("{} was open to other users (mode {mode:o}); made private", path.display());
            }
            Err(error) if path == directory => return Err(failed(error)),
            // The file belongs to another user, but no other user can reach it in a private directory.
            Err(error) => {
                tracing::warn!("{} is open to other users (mode {mode:o}): {error}", path.display());
            }
        }
    }
    Ok(directory)
}

/// Returns the exposed paths among the directory itself and claimgate's files in it. Unreadable paths are left out.
pub fn exposed(directory: &Path) -> Vec<Exposed> {
    let mut found = Vec::new();
    check(directory, &mut found);
    scan(directory, DEPTH_MAX, &mut found, is_own);
    found
}

/// Returns whether the directory belongs to core's user and has no other files: making `/tmp` or `/var/lib`
/// private would break the machine.
fn may_be_closed(directory: &Path, found: &Metadata) -> io::Result<bool> {
    if found.uid() != geteuid().as_raw() || found.mode() & STICKY != 0 {
        return Ok(false);
    }
    for entry in fs::read_dir(directory)? {
        if !is_own(&entry?.file_name().to_string_lossy()) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_own(name: &str) -> bool {
    OWN.iter().any(|start| name.starts_with(start))
}

fn scan(directory: &Path, depth: u32, found: &mut Vec<Exposed>, wanted: fn(&str) -> bool) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !wanted(&entry.file_name().to_string_lossy()) {
            continue;
        }
        check(&entry.path(), found);
        if is_directory && depth > 1 {
            scan(&entry.path(), depth - 1, found, |_| true);
        }
    }
}

/// Adds `path` to `found` if it is exposed. Links are not followed, because their targets are not in the directory.
fn check(path: &Path, found: &mut Vec<Exposed>) {
    if let Ok(metadata) = fs::symlink_metadata(path)
        && (metadata.is_file() || metadata.is_dir())
        && metadata.mode() & OTHERS != 0
    {
        found.push(Exposed { path: path.to_owned(), mode: metadata.mode() & 0o7777 });
    }
}
