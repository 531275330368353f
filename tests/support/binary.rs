//! Where the `claimgate` to test is.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// `CLAIMGATE_BIN`, else the newest of `release/claimgate` and `debug/claimgate` beside the tests' own binary.
pub fn claimgate() -> PathBuf {
    if let Some(named) = std::env::var_os("CLAIMGATE_BIN") {
        let named = PathBuf::from(named);
        assert!(named.is_file(), "CLAIMGATE_BIN: no file {}", named.display());
        return named;
    }
    let target = target_dir();
    let built = ["release", "debug"].map(|profile| target.join(profile).join("claimgate"));
    let newest = built.iter().filter_map(|file| Some((modified(file)?, file))).max();
    let Some((_, file)) = newest else {
        panic!(
            "no claimgate to test: neither {} nor {} is there. Run `cargo build --release --bin claimgate` first \
             (`make test` does), or set CLAIMGATE_BIN",
            built[0].display(),
            built[1].display()
        )
    };
    file.clone()
}

/// Cargo puts test binaries into `<target>/<profile>/deps`.
fn target_dir() -> PathBuf {
    let own = std::env::current_exe().expect("the test's own path");
    own.ancestors().nth(3).map(Path::to_owned).expect("a test binary lies in target/<profile>/deps")
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|found| found.modified()).ok()
}
