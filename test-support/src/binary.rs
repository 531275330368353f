//! The `claimgate` to test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// `CLAIMGATE_BIN`; else, for a test, the binary of the same profile, built if its source has changed; else, for a program, the
/// binary beside it.
pub fn claimgate() -> PathBuf {
    static CLAIMGATE: LazyLock<PathBuf> = LazyLock::new(find);
    CLAIMGATE.clone()
}

fn find() -> PathBuf {
    if let Some(named) = std::env::var_os("CLAIMGATE_BIN") {
        let named = PathBuf::from(named);
        assert!(named.is_file(), "CLAIMGATE_BIN: no file {}", named.display());
        return named;
    }
    let own = std::env::current_exe().expect("the path of this program");
    let directory = own.parent().expect("a directory that it lies in");
    // Cargo puts test binaries into `<target>/debug/deps`, programs into `<target>/<profile>`.
    if !directory.ends_with("debug/deps") {
        return directory.join("claimgate");
    }
    let target = own.ancestors().nth(3).expect("two directories above");
    build(target);
    target.join("debug/claimgate")
}

/// Takes half a second where nothing has changed. A test never runs a program that is older than its source.
fn build(target: &Path) {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--profile", "test", "--bin", "claimgate", "--target-dir"]).arg(target);
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    // Cargo's word about the tests: ring's build script would run again for it, and all that stands on ring be compiled again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let built = cargo.output().expect("cargo runs");
    assert!(built.status.success(), "{cargo:?}: {}", String::from_utf8_lossy(&built.stderr));
}
