//! Files in the packages besides the programs: settings files, manifests and release notes. tests/packages.sh
//! installs and runs the packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;
use support::CoreOptions;
use support::binary;

const CORE_SETTINGS: &str = include_str!("../../packaging/claimgate.env");
const EDGE_SETTINGS: &str = include_str!("../../packaging/edge.env");
const CONFIGURATION: &str = include_str!("../../docs/configuration.md");
const WORKERD: &str = include_str!("../../edge/workerd.capnp");
const MANIFESTS: [(&str, &str); 4] = [
    ("compose.yaml", include_str!("../../compose.yaml")),
    ("packaging/compose/compose.yaml", include_str!("../../packaging/compose/compose.yaml")),
    ("core.yaml", include_str!("../../packaging/kubernetes/core.yaml")),
    ("edge.yaml", include_str!("../../packaging/kubernetes/edge.yaml")),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the settings of a file and their values; all settings are commented out.
fn settings(file: &str) -> Vec<(&str, &str)> {
    let lines = file.lines().filter(|line| !line.is_empty() && !line.starts_with("# ") && *line != "#");
    lines.map(|line| line.strip_prefix('#').and_then(|line| line.split_once('=')).expect(line)).collect()
}

fn names<'a>(settings: &[(&'a str, &str)]) -> BTreeSet<&'a str> {
    settings.iter().map(|(name, _)| *name).collect()
}

/// Returns the words of `text` that look like variables and begin with `prefix`.
fn variables<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let words = text.split(|character: char| !matches!(character, 'A'..='Z' | '0'..='9' | '_'));
    words.filter(|word| word.starts_with(prefix) && word.len() > prefix.len()).collect()
}

/// Returns the section of docs/configuration.md below `heading`.
fn section(heading: &str) -> &'static str {
    let (_, rest) = CONFIGURATION.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split_once("\n## ").map_or(rest, |(section, _)| section)
}

#[test]
fn the_packaged_core_settings_list_all_variables() {
    let listed = names(&settings(CORE_SETTINGS));
    let mut documented = variables(section("Core"), "CLAIMGATE_");
    documented.insert("RUST_LOG");
    assert_eq!(listed, documented);
    let help = Command::new(binary::claimgate()).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let flags = variables(&help, "CLAIMGATE_");
    assert!(flags.len() > 15 && flags.is_subset(&listed), "{flags:?}");
}

#[tokio::test]
async fn core_accepts_every_packaged_default() {
    // The test sets addresses and the data directory, and values of servers and secrets are only examples.
    let examples = ["LISTEN", "DATA_DIR", "_URL", "_FILE"];
    let taken = settings(CORE_SETTINGS)
        .into_iter()
        .filter(|(name, value)| !value.is_empty() && !examples.iter().any(|example| name.ends_with(example)));
    let taken: Vec<_> = taken.collect();
    assert!(taken.len() > 10, "{taken:?}");
    let options =
        taken.iter().fold(CoreOptions::default(), |options, (name, value)| options.with(name, *value));
    let core = options.start().await;
    core.create("demo", json!({"total": 1})).await;
    core.claim("demo", "alice", "k").await.expect(201);
}

#[test]
fn the_packaged_edge_settings_match_the_worker() {
    let mut read: BTreeSet<_> =
        WORKERD.split("fromEnvironment = \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    // The start script derives this variable from CORE_URL.
    assert!(read.remove("CORES"));
    read.extend([
        "CORE_URL",
        "EDGE_KEY_FILE",
        "USER_JWT_KEY_FILE",
        "USER_ID_KEY_FILE",
        "PASS_KEYS_FILE",
        "PASS_SIGNING_KEY_FILE",
        "TURNSTILE_SECRET_FILE",
    ]);
    assert_eq!(names(&settings(EDGE_SETTINGS)), read);
}

#[test]
fn the_packages_have_the_documents_that_settings_name() {
    for (settings, packaged) in [
        (CORE_SETTINGS, include_str!("../../packaging/debian/claimgate.docs")),
        (EDGE_SETTINGS, include_str!("../../packaging/debian/claimgate-edge.docs")),
    ] {
        let words = settings.split_whitespace().map(|word| word.trim_matches(['(', ')', ',', '.', ':']));
        let named: BTreeSet<_> = words.filter(|word| word.starts_with("docs/")).collect();
        assert!(named.contains("docs/configuration.md"), "{named:?}");
        let lists = |document: &str| packaged.lines().any(|line| ["docs/*.md", document].contains(&line));
        for document in named {
            assert!(lists(document) && root().join(document).is_file(), "{document}: {packaged}");
        }
    }
}

#[test]
fn the_manifests_name_existing_variables_only() {
    let (core, edge) = (settings(CORE_SETTINGS), settings(EDGE_SETTINGS));
    let known: BTreeSet<_> = names(&core).union(&names(&edge)).copied().collect();
    for (file, text) in MANIFESTS {
        let mut named = BTreeSet::new();
        for prefix in
            ["CLAIMGATE_", "CORE_", "EDGE_", "USER_JWT_", "USER_ID_", "CLIENT_", "PASS_", "TURNSTILE_"]
        {
            named.extend(variables(text, prefix));
        }
        // Only Compose uses this variable, the tag of the images.
        named.remove("CLAIMGATE_TAG");
        assert!(named.len() > 2 && named.is_subset(&known), "{file}: {named:?}");
    }
}

/// A manifest shows where each secret belongs, at least in a comment.
#[test]
fn the_manifests_name_each_secret() {
    // The compose file runs core with its own Redis.
    let not_in_compose = ["CLAIMGATE_REDIS_URL_FILE", "CLAIMGATE_REDIS_SENTINEL_PASSWORD_FILE"];
    let [_, (_, compose), (_, core), (_, edge)] = MANIFESTS;
    for (manifest, left_out, settings_file) in [
        (compose, &not_in_compose[..], CORE_SETTINGS),
        (compose, &[], EDGE_SETTINGS),
        (core, &[], CORE_SETTINGS),
        (edge, &[], EDGE_SETTINGS),
    ] {
        let secrets = names(&settings(settings_file)).into_iter().filter(|name| name.ends_with("_FILE"));
        for secret in secrets.filter(|secret| !left_out.contains(secret)) {
            assert!(
                variables(manifest, secret.trim_end_matches("FILE")).contains(secret),
                "{secret}: {manifest}"
            );
        }
    }
}

/// `faults::import` checks that the largest import needs less than 1 GiB. Claims continue meanwhile.
#[test]
fn core_gets_more_memory_than_an_import_needs() {
    let (_, core) = MANIFESTS[2];
    let limit = core.split("limits: {memory: ").nth(1).and_then(|rest| rest.split("Mi}").next()).unwrap();
    assert!(limit.parse::<u32>().unwrap() > 1024 + 256, "{limit} MiB");
}

/// A pod can give itself any label, but only administrators of the cluster can label a namespace.
#[test]
fn a_pod_cannot_gain_access_by_labelling_itself() {
    for (file, text) in &MANIFESTS[2..] {
        let policies: Vec<_> =
            text.split("\n---\n").filter(|part| part.contains("\nkind: NetworkPolicy\n")).collect();
        let [policy] = policies[..] else { panic!("{file}: {} network policies", policies.len()) };
        let sources: Vec<_> = policy.split("        - ").skip(1).collect();
        let (ports, sources): (Vec<_>, Vec<_>) =
            sources.into_iter().partition(|part| part.starts_with("{port:"));
        assert_eq!(ports.len(), policy.matches("    - from:\n").count(), "{file}: a source without a port");
        for source in sources {
            let of_this_namespace = source.starts_with("podSelector:\n            matchLabels:\n");
            let of_a_labelled_one = source.starts_with("namespaceSelector:\n            matchLabels: {")
                && source.contains("          podSelector:\n            matchLabels:");
            assert!(of_this_namespace || of_a_labelled_one, "{file}: {source}");
        }
    }
}

/// Runs the start script of the packaged edge, without workerd.
fn edge(variables: &[(&str, &str)]) -> Output {
    let mut edge = Command::new(root().join("packaging/claimgate-edge"));
    edge.env_clear().env("PATH", "/usr/bin:/bin").envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn the_packaged_edge_names_an_invalid_setting() {
    let secrets = [("EDGE_KEY", "k1:a"), ("USER_JWT_KEY", "b")];
    for (wrong, expected) in [
        (vec![], "EDGE_KEY: is not set"),
        (vec![secrets[0]], "USER_JWT_KEY: is not set"),
        (vec![secrets[0], ("EDGE_KEY_FILE", "/nowhere")], "EDGE_KEY: is set twice"),
        // With a key set, the next wrong setting is reported.
        (
            vec![
                secrets[0],
                ("USER_JWT_JWKS_URL", "https://issuer.example/jwks"),
                ("CORE_URL", "https://core"),
            ],
            "CORE_URL: must be http://HOST:PORT",
        ),
        (
            vec![secrets[0], ("USER_JWT_ISS", "https://issuer.example"), ("CORE_URL", "https://core")],
            "CORE_URL: must be http://HOST:PORT",
        ),
        (vec![("EDGE_KEY_FILE", "/nowhere")], "EDGE_KEY: its file /nowhere cannot be read"),
        (
            [&secrets[..], &[("CORE_URL", "https://core")]].concat(),
            "CORE_URL: must be http://HOST:PORT, not 'https://core'",
        ),
        (
            [&secrets[..], &[("CORE_URL", "unix:/a,http://b,,")]].concat(),
            "CORE_URL: must be http://HOST:PORT, not ''",
        ),
        (
            [
                &secrets[..],
                &[(
                    "CORE_URL",
                    "http://1,http://2,http://3,http://4,http://5,http://6,http://7,http://8,http://9",
                )],
            ]
            .concat(),
            "CORE_URL: lists more than 8 cores",
        ),
        ([&secrets[..], &[("OTLP_URL", "collector:4318")]].concat(), "OTLP_URL: must be http://HOST:PORT"),
    ] {
        let output = edge(&wrong);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {error}");
        assert!(
            error.lines().last().unwrap().starts_with(&format!("claimgate-edge: {expected}")),
            "{wrong:?}: {error}"
        );
    }
}

fn release_notes(version: &str, changelog: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file: PathBuf = directory.path().join("CHANGELOG.md");
    fs::write(&file, changelog).unwrap();
    Command::new(root().join("scripts/release-notes.sh")).arg(version).arg(file).output().unwrap()
}

#[test]
fn release_notes_are_the_versions_changelog_section() {
    let changelog = "# Changelog\n\n## Unreleased\n\n## [1.10.0] - 2026-12-01\n\n### Added\n\n- Ten.\n\n## 1.1.0 - 2026-11-01\n\n- One.\n";
    for (version, notes) in [("v1.10.0", "### Added\n\n- Ten.\n"), ("1.1.0", "- One.\n")] {
        let output = release_notes(version, changelog);
        assert_eq!(
            (output.status.success(), String::from_utf8(output.stdout).unwrap().as_str()),
            (true, notes)
        );
    }
    for unknown in ["1.1", "v1.0.0", "Unreleased"] {
        let output = release_notes(unknown, changelog);
        assert!(!output.status.success() && output.stdout.is_empty(), "{unknown}: {output:?}");
    }
}
