//! Where the `claimgate` to test is.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// `CLAIMGATE_BIN`; else, for tests, the newest of `release/claimgate` and `debug/claimgate` beside their own binary;
/// else, for a program, the one beside it.
pub fn claimgate() -> PathBuf {
    if let Some(named) = std::env::var_os("CLAIMGATE_BIN") {
        let named = PathBuf::from(named);
        assert!(named.is_file(), "CLAIMGATE_BIN: no file {}", named.display());
        return named;
    }
    let built = candidates();
    let newest = built.iter().filter_map(|file| Some((modified(file)?, file))).max();
    let Some((_, file)) = newest else {
        panic!(
            "no claimgate to test: none of {built:?} is there. Run `cargo build --release --bin claimgate` first \
             (`make test` does), or set CLAIMGATE_BIN"
        )
    };
    file.clone()
}

/// Cargo puts test binaries into `<target>/<profile>/deps`, programs into `<target>/<profile>`.
fn candidates() -> Vec<PathBuf> {
    let own = std::env::current_exe().expect("the path of this program");
    let directory = own.parent().expect("a directory that it lies in");
    if !directory.ends_with("deps") {
        return vec![directory.join("claimgate")];
    }
    let target = own.ancestors().nth(3).expect("a test binary lies in target/<profile>/deps");
    ["release", "debug"].map(|profile| target.join(profile).join("claimgate")).into()
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|found| found.modified()).ok()
}
