//! Runs the examples in the documents unchanged: each test covers one document, in the order of its examples.

mod api;
mod campaign;
mod challenges;
mod checkout;
mod checkout_faults;
mod clients;
mod deployment;
mod embedding;
mod login;
mod migrating;
mod operating;
mod passes;
mod readme;
mod settings;
mod webhook_setup;

use std::fs;

use serde_json::Value;
use support::edge::root;
use support::examples::{Examples, documents};

#[test]
fn every_document_with_examples_is_tested() {
    let directory = root().join("tests/e2e/examples");
    let sources: String = fs::read_dir(directory)
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let all = documents();
    assert!(all.len() > 15, "{all:?}");
    let left: Vec<_> =
        all.iter().filter(|document| !sources.contains(&format!("Examples::of(\"{document}\")"))).collect();
    assert!(left.is_empty(), "no test covers the examples of {left:?}");
}

#[test]
fn skipped_examples_are_listed_with_a_reason() {
    const WHY: &str = "it builds, tests or measures everything, which takes minutes";
    let leave = |mut document: Examples, starts: &[&str]| {
        for start in starts {
            document.left_out(start, WHY);
        }
        document.end();
    };
    leave(Examples::of("CONTRIBUTING.md"), &["# after a change", "make check"]);
    leave(Examples::of("bench/README.md"), &["make bench"]);
    leave(Examples::of("lab/README.md"), &["make lab"]);
    leave(
        Examples::of("docs/performance.md"),
        &[
            "make bench OPTIONS=\"--only codes",
            "make bench OPTIONS=\"--only edge --rounds",
            "make bench OPTIONS=\"--only tokens",
            "make bench OPTIONS=\"--only edge-passes",
        ],
    );
    leave(
        Examples::of("tests/README.md"),
        &["cargo test", "make test SLOW=1", "CLAIMGATE_TEST_TOPOLOGY=cluster", "INTERLEAVING=\"…\""],
    );
    let mut packages = Examples::of("docs/packages.md");
    for start in [
        "sudo apt install ./claimgate_VERSION",
        "sudo apt install ./claimgate-edge_VERSION",
        "docker compose up",
        "docker build --target demo",
        "docker build --target core",
        "packaging/compose/make-secrets.sh",
        "kubectl create secret",
        "kubectl label namespace",
    ] {
        packages.left_out(
            start,
            "tests/packages.sh and tests/images.sh run the packages and the images; Kubernetes is not available",
        );
    }
    packages.end();
    let mut architecture = Examples::of("ARCHITECTURE.md");
    architecture.left_out(" browser", "a diagram");
    architecture.left_out("cli, http, jobs", "a diagram");
    architecture.end();
}

/// Checks that a response has exactly the members shown, each of the same JSON type. `null` matches anything,
/// and the `before` and `after` of audit entries are shortened.
fn assert_same_shape(shown: &Value, actual: &Value, place: &str) {
    match (shown, actual) {
        (Value::Null, _) | (_, Value::Null) => {}
        (Value::Object(members), Value::Object(there)) => {
            for (name, value) in members {
                let found = there.get(name).unwrap_or_else(|| panic!("{place}: no {name} in {actual}"));
                assert_same_shape(value, found, &format!("{place}.{name}"));
            }
            let is_shortened = place.contains(".before") || place.contains(".after");
            let missing: Vec<_> = there.keys().filter(|name| !members.contains_key(*name)).collect();
            assert!(is_shortened || missing.is_empty(), "{place}: {missing:?} are not shown");
        }
        (Value::Array(items), Value::Array(there)) => {
            let first = there.first().unwrap_or_else(|| panic!("{place}: none in {actual}"));
            for item in items {
                assert_same_shape(item, first, place);
            }
        }
        _ => {
            let is_alike = std::mem::discriminant(shown) == std::mem::discriminant(actual);
            assert!(is_alike, "{place}: {shown} is shown, {actual} was returned");
        }
    }
}
