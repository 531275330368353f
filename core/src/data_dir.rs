//! The data directory. It has claims, users and secrets in it: only the user that core runs as may open it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::{geteuid, umask};

/// Prefixes of the names of all files of claimgate, its Redis, SQLite and `make up`, and of what a new file system has.
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
/// Rights of group and others.
const OTHERS: u32 = 0o077;
/// The mode bit of a directory that every user may write to, such as `/tmp`.
const STICKY: u32 = 0o1000;
/// Redis' files are two directories deep.
const DEPTH_MAX: u32 = 3;

/// A file or directory that other users than its owner may open.
#[derive(Debug)]
pub struct Open {
    /// Its path.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
}

/// Makes every file that this process and its children create from now on private to their user.
pub fn keep_new_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Makes the directory if there is none, and makes it and claimgate's files in it private. Returns its absolute path.
///
/// # Errors
/// A message, when it cannot be made, or is open to others and not claimgate's alone: then others may need it as it is.
pub fn prepare(directory: &Path) -> Result<PathBuf, String> {
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let directory = directory.canonicalize().map_err(failed)?;
    let found = fs::metadata(&directory).map_err(failed)?;
    if found.mode() & OTHERS != 0 && !may_be_closed(&directory, &found).map_err(failed)? {
        return Err(format!(
            "{path} is open to other users (mode {mode:o}) and not claimgate's alone: name a directory of its own, such as \
             {path}/claimgate, or chmod 700 {path}",
            path = directory.display(),
            mode = found.mode() & 0o7777,
        ));
    }
    for Open { path, mode } in open(&directory) {
        match fs::set_permissions(&path, Permissions::from_mode(mode & !OTHERS)) {
            Ok(()) => tracing::warn!("{} was open to other users (mode {mode:o}); closed", path.display()),
            Err(error) if path == directory => return Err(failed(error)),
            // Another user's file, then: in a closed directory it is out of reach.
            Err(error) => {
                tracing::warn!("{} is open to other users (mode {mode:o}): {error}", path.display());
            }
        }
    }
    Ok(directory)
}

/// What others may open: the directory itself, and everything of claimgate's in it. What cannot be looked at is left out.
pub fn open(directory: &Path) -> Vec<Open> {
    let mut found = Vec::new();
    note(directory, &mut found);
    look_into(directory, DEPTH_MAX, &mut found, is_own);
    found
}

/// Whether the directory is core's own and has no other files: closing, say, `/tmp` or `/var/lib` would break the machine.
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

fn look_into(directory: &Path, depth: u32, found: &mut Vec<Open>, wanted: fn(&str) -> bool) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !wanted(&entry.file_name().to_string_lossy()) {
            continue;
        }
        note(&entry.path(), found);
        if is_directory && depth > 1 {
            look_into(&entry.path(), depth - 1, found, |_| true);
        }
    }
}

/// Links are not followed: what they lead to is not in the directory.
fn note(path: &Path, found: &mut Vec<Open>) {
    if let Ok(seen) = fs::symlink_metadata(path)
        && (seen.is_file() || seen.is_dir())
        && seen.mode() & OTHERS != 0
    {
        found.push(Open { path: path.to_owned(), mode: seen.mode() & 0o7777 });
    }
}
