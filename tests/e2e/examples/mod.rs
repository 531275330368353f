//! What the documents show is run as it stands there: each test goes through the examples of one document, in their order.

mod api;
mod clients;
mod deployment;
mod migrating;
mod operations;
mod readme;
mod settings;
mod webhooks;

use std::fs;

use serde_json::Value;
use support::edge::root;
use support::examples::{Examples, documents};

#[test]
fn every_document_with_examples_is_gone_through() {
    let directory = root().join("tests/e2e/examples");
    let sources: String = fs::read_dir(directory)
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let all = documents();
    assert!(all.len() > 15, "{all:?}");
    let left: Vec<_> =
        all.iter().filter(|document| !sources.contains(&format!("Examples::of(\"{document}\")"))).collect();
    assert!(left.is_empty(), "no test goes through the examples of {left:?}");
}

#[test]
fn what_builds_and_tests_is_left_out() {
    const WHY: &str = "it builds, tests or measures all of this, for minutes";
    let leave = |mut document: Examples, starts: &[&str]| {
        for start in starts {
            document.left_out(start, WHY);
        }
        document.end();
    };
    leave(Examples::of("CONTRIBUTING.md"), &["# after a change", "make check"]);
    leave(Examples::of("bench/README.md"), &["make bench"]);
    leave(Examples::of("lab/README.md"), &["make lab"]);
    leave(Examples::of("docs/performance.md"), &["make bench"]);
    leave(
        Examples::of("tests/README.md"),
        &["cargo test", "make test SLOW=1", "CLAIMGATE_TEST_TOPOLOGY=cluster", "INTERLEAVING=\"…\""],
    );
    let mut packages = Examples::of("docs/packages.md");
    for start in [
        "sudo apt install ./claimgate_VERSION",
        "sudo apt install ./claimgate-edge_VERSION",
        "docker load",
        "docker load",
        "kubectl create secret",
    ] {
        packages.left_out(
            start,
            "tests/packages.sh installs and runs the packages; Docker and Kubernetes are not there",
        );
    }
    packages.end();
    let mut architecture = Examples::of("ARCHITECTURE.md");
    architecture.left_out(" browser", "a drawing");
    architecture.left_out("cli, http, jobs", "a drawing");
    architecture.end();
}

/// Checks that an answer has the members that are told of it, each of its kind. `null` may stand for anything, and what an audit
/// tells of before and after is shortened.
fn alike(told: &Value, real: &Value, place: &str) {
    match (told, real) {
        (Value::Null, _) | (_, Value::Null) => {}
        (Value::Object(members), Value::Object(there)) => {
            for (name, value) in members {
                let found = there.get(name).unwrap_or_else(|| panic!("{place}: no {name} in {real}"));
                alike(value, found, &format!("{place}.{name}"));
            }
            let is_shortened = place.contains(".before") || place.contains(".after");
            let untold: Vec<_> = there.keys().filter(|name| !members.contains_key(*name)).collect();
            assert!(is_shortened || untold.is_empty(), "{place}: {untold:?} are not told");
        }
        (Value::Array(items), Value::Array(there)) => {
            let first = there.first().unwrap_or_else(|| panic!("{place}: none in {real}"));
            for item in items {
                alike(item, first, place);
            }
        }
        _ => {
            let is_alike = std::mem::discriminant(told) == std::mem::discriminant(real);
            assert!(is_alike, "{place}: {told} is told, {real} answered");
        }
    }
}
