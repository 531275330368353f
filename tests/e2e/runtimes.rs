//! Configuration of the edge's two runtimes: wrangler.toml for Cloudflare, edge/workerd.capnp for self-hosted
//! workerd.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::json;
use support::edge::{EDGE_LOCK, EXECUTOR, Runtime, World, root, tool};
use support::process::free_address;

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// A table of wrangler.toml: its keys and unparsed values.
type Table = BTreeMap<String, String>;

/// Parses the subset of TOML that wrangler.toml uses. Returns the tables by header; an array of tables has
/// several tables under one header.
fn wrangler_toml() -> BTreeMap<String, Vec<Table>> {
    let mut tables: BTreeMap<String, Vec<Table>> = BTreeMap::new();
    let mut header = String::new();
    for line in text("wrangler.toml").lines().filter(|line| !line.trim_start().starts_with('#')) {
        if line.starts_with('[') {
            line.trim_matches(['[', ']', ' ']).clone_into(&mut header);
            tables.entry(header.clone()).or_default().push(Table::new());
        } else if let Some((key, value)) = line.split_once('=') {
            let of_header = tables.entry(header.clone()).or_insert_with(|| vec![Table::new()]);
            of_header.last_mut().unwrap().insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    tables
}

/// Returns the names in .dev.vars.example.
fn secrets() -> Vec<String> {
    let example = text(".dev.vars.example");
    let lines = example.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<_> = lines.filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect();
    assert_eq!(names, ["EDGE_KEY", "USER_JWT_KEY"]);
    names
}

#[test]
fn public_environments_have_rate_limits_logs_and_no_demo() {
    let tables = wrangler_toml();
    let names: BTreeSet<_> = tables.keys().filter_map(|header| header.split('.').nth(1)).collect();
    assert_eq!(names, BTreeSet::from(["local", "production", "staging", "test"]));
    for environment in ["staging", "production"] {
        let vars = &tables[&format!("env.{environment}.vars")][0];
        for of_the_demo in ["DEMO", "DEFAULT_CAMPAIGN"] {
            assert!(!vars.contains_key(of_the_demo), "{environment}: {of_the_demo}");
        }
        assert_eq!(tables[&format!("env.{environment}.observability")][0]["enabled"], "true");
        let logs = &tables[&format!("env.{environment}.observability.logs")][0];
        assert_eq!((logs["enabled"].as_str(), logs["invocation_logs"].as_str()), ("true", "false"));
        let limiters = &tables[&format!("env.{environment}.ratelimits")];
        let limiter_names: Vec<_> = limiters.iter().map(|limiter| limiter["name"].as_str()).collect();
        assert_eq!(limiter_names, [r#""RATE_PER_ADDRESS""#, r#""RATE_PER_USER""#], "{environment}");
        let period = vars["RATE_PERIOD_S"].trim_matches('"');
        assert!(["10", "60"].contains(&period), "Cloudflare supports only 10 and 60 s");
        for limiter in limiters {
            assert!(limiter["simple"].contains(&format!("period = {period} ")), "{environment}: {limiter:?}");
        }
    }
    let namespaces: Vec<_> =
        tables.values().flatten().filter_map(|table| table.get("namespace_id")).collect();
    let different: BTreeSet<_> = namespaces.iter().collect();
    assert_eq!(different.len(), namespaces.len(), "limiters with the same namespace share their counts");
    for secret in secrets() {
        assert!(tables.values().flatten().all(|table| !table.contains_key(&secret)), "{secret}");
    }
}

#[test]
fn plain_workerd_has_everything_that_wrangler_has() {
    let capnp = text("edge/workerd.capnp");
    let date = wrangler_toml()[""][0]["compatibility_date"].clone();
    assert!(capnp.contains(&format!("const compatibilityDate :Text = {date};")), "not {date}");
    for directory in ["", "sign-in/", "campaigns/"] {
        for file in fs::read_dir(root().join("edge/assets").join(directory)).unwrap().map(Result::unwrap) {
            let name = format!("{directory}{}", file.file_name().into_string().unwrap());
            // The licence is for those who read the files. A build with listed campaigns writes the list, which the
            // binding "generated" contains.
            if file.path().is_dir() || name.ends_with(".LICENSE") || name == "campaigns/index.html" {
                continue;
            }
            let path = if name.starts_with('_') { name.clone() } else { format!("/{name}") };
            let entry = format!(r#"(name = "{path}", text = embed "assets/{name}")"#);
            assert!(capnp.contains(&entry), "edge/workerd.capnp lacks {entry}");
        }
    }
    for secret in secrets() {
        let entry = format!(r#"(name = "{secret}", fromEnvironment = "{secret}")"#);
        assert!(capnp.contains(&entry), "edge/workerd.capnp lacks {entry}");
    }
}

/// workerd does not start if a binding refers to a service that does not exist.
#[test]
fn the_benchmark_has_every_service_the_edge_binds_to() {
    let (edge, benchmark) = (text("edge/workerd.capnp"), text("bench/workers.capnp"));
    let bindings = edge.lines().filter_map(|line| line.split_once(", service = \"")?.1.split('"').next());
    let services: BTreeSet<_> = bindings.collect();
    assert!(services.contains("assets"), "no bindings were found: {services:?}");
    for service in services {
        assert!(
            benchmark.contains(&format!("(name = \"{service}\", ")),
            "bench/workers.capnp lacks {service}"
        );
    }
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_workerd_modules_pass_their_own_tests() {
    let tested = Command::new(tool("node"))
        .args(["--test", "edge/workerd/rate_limit.test.js"])
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(tested.status.success(), "{}", output_text(&tested));
}

#[test]
fn plain_workerd_does_not_start_with_an_invalid_limit() {
    let started = Command::new(tool("workerd"))
        .args(["serve", "edge/workerd.capnp"])
        .args(["--socket-addr", &format!("http={}", free_address())])
        .env("RATE_PER_USER_LIMIT", "many")
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!started.status.success());
    assert!(output_text(&started).contains("RATE_PER_USER_LIMIT must be"), "{}", output_text(&started));
}

/// Without a proxy in front of workerd, a header with the client's address cannot be trusted.
#[test]
fn plain_workerd_limits_by_peer_address_by_default() {
    EXECUTOR.block_on(async {
        let _turn = EDGE_LOCK.read().await;
        let limits = [("CLIENT_ADDRESS", ""), ("RATE_PER_ADDRESS_LIMIT", "3"), ("RATE_PERIOD_S", "600")];
        let world = World::start(Runtime::Workerd, "peer", "production", &limits).await;
        world.core.create("peer", json!({})).await;
        let mut replies = vec![];
        for n in 0..4 {
            let request = world.claim_request("peer", &format!("u{n}"));
            replies.push(world.send(request.header("CF-Connecting-IP", format!("192.0.2.{n}"))).await);
        }
        let forwarded = world.forwarded(&replies[0]).concat().to_lowercase();
        assert!(forwarded.contains("x-claimgate-client-ip: 127.0.0.1\r\n"), "{forwarded}");
        let refused = replies.pop().unwrap().refused(429, "rate_limited");
        assert_eq!(refused.header("retry-after"), "600");
        assert!(replies.iter().all(|reply| reply.status == 201));
    });
}

/// The binding of the limiter is a string, so that calling it fails.
#[test]
fn a_failing_rate_limiter_allows_or_rejects_as_configured() {
    EXECUTOR.block_on(async {
        let _turn = EDGE_LOCK.read().await;
        for (setting, is_open) in [("open", true), ("closed", false)] {
            let variables = [("RATE_PER_USER", "no limiter"), ("RATE_ON_FAILURE", setting)];
            let name = format!("limiter-{setting}");
            let world = World::start(Runtime::Wrangler, &name, "test", &variables).await;
            world.core.create("limiter", json!({"total": 5})).await;
            if is_open {
                let _ = world.claim("limiter", "alice", "k").await.expect(201);
            } else {
                let refused = world.claim_once("limiter", "alice", "k").await.refused(503, "overloaded");
                assert!(!refused.header("retry-after").is_empty());
                assert_eq!(world.core.campaign("limiter").await["remaining"], 5);
            }
        }
    });
}
