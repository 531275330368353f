//! The `claimgate` binary under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Returns the path of the binary: `CLAIMGATE_BIN` if it is set. A test otherwise uses the binary of its own
/// profile, built if its source changed; a program uses the binary beside it.
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
    let directory = own.parent().expect("the directory of this program");
    // Cargo puts test binaries into `<target>/debug/deps`, programs into `<target>/<profile>`.
    if !directory.ends_with("debug/deps") {
        return directory.join("claimgate");
    }
    let target = own.ancestors().nth(3).expect("two directories above");
    build(target);
    target.join("debug/claimgate")
}

/// Builds the binary, so that a test never runs one older than its source. Takes half a second if nothing
/// changed.
fn build(target: &Path) {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--profile", "test", "--bin", "claimgate", "--target-dir"]).arg(target);
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    // Cargo sets these variables for tests. With these variables set, ring's build script would rerun, and
    // everything that depends on ring would be recompiled.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let built = cargo.output().expect("cargo runs");
    assert!(built.status.success(), "{cargo:?}: {}", String::from_utf8_lossy(&built.stderr));
}
