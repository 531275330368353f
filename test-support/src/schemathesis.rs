//! Runs schemathesis, which generates valid and invalid calls from openapi.json and checks each response
//! against it.

use std::path::PathBuf;

use tokio::process::Command;

use crate::edge::root;
use crate::redis_server::tools;

/// Returns whether schemathesis is installed; fails the test in CI if it is not.
pub fn is_installed() -> bool {
    let is_installed = program().is_file();
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(is_installed || !must, "no {}: run scripts/setup.sh", program().display());
    is_installed
}

fn directory() -> PathBuf {
    tools().join("openapi")
}

fn program() -> PathBuf {
    directory().join("bin/schemathesis")
}

/// Calls all operations with this tag at `url` with `token`, as schemathesis.toml configures, with webhooks
/// that point to `receiver`. On failure, fails the test with the report. `EXAMPLES` is the number of calls of
/// each operation; `SEED` chooses them.
pub async fn agrees(tag: &str, url: &str, token: &str, receiver: &str) {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let (examples, seed) = (variable("EXAMPLES", "5"), variable("SEED", "1"));
    eprintln!("schemathesis at the {tag} listener: EXAMPLES={examples} SEED={seed}");
    let mut command = Command::new("python3");
    command
        .arg(program())
        .arg("--config-file")
        .arg(root().join("schemathesis.toml"))
        .arg("run")
        .arg(root().join("openapi.json"))
        .args(["--url", url, "--header", &format!("Authorization: Bearer {token}")])
        .args(["--include-tag", tag, "--max-examples", &examples, "--seed", &seed])
        .args(["--generation-database", "none", "--no-color"])
        // The configuration names its hooks relative to this directory.
        .current_dir(root())
        .env("PYTHONPATH", directory())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RECEIVER", receiver)
        .kill_on_drop(true);
    let output = command.output().await.expect("python3");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    let summary = report.rfind("Test cases").map_or("", |at| &report[at..]);
    eprintln!("{summary}");
}
