//! What the edge's two runtimes are told: wrangler.toml for Cloudflare, edge/workerd.capnp for a workerd of one's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::json;
use support::edge::{EXECUTOR, Runtime, TURN, World, root, tool};
use support::process::free_address;

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// A table of wrangler.toml: its keys, and its values as they are written.
type Table = BTreeMap<String, String>;

/// wrangler.toml by its headers; of an array of tables there are several. It uses no more of TOML than this reads.
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

/// The names in .dev.vars.example.
fn secrets() -> Vec<String> {
    let example = text(".dev.vars.example");
    let lines = example.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<_> = lines.filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect();
    assert_eq!(names, ["EDGE_KEY", "USER_JWT_KEY"]);
    names
}

#[test]
fn what_faces_a_crowd_has_limits_is_watched_and_is_no_demo() {
    let tables = wrangler_toml();
    let names: BTreeSet<_> = tables.keys().filter_map(|header| header.split('.').nth(1)).collect();
    assert_eq!(names, BTreeSet::from(["local", "production", "staging", "test"]));
    for environment in ["staging", "production"] {
        let vars = &tables[&format!("env.{environment}.vars")][0];
        assert!(!vars.contains_key("DEMO"), "{environment}");
        assert_eq!(tables[&format!("env.{environment}.observability")][0]["enabled"], "true");
        let limiters = &tables[&format!("env.{environment}.ratelimits")];
        let limiter_names: Vec<_> = limiters.iter().map(|limiter| limiter["name"].as_str()).collect();
        assert_eq!(limiter_names, [r#""RATE_PER_ADDRESS""#, r#""RATE_PER_USER""#], "{environment}");
        let period = vars["RATE_PERIOD_S"].trim_matches('"');
        assert!(["10", "60"].contains(&period), "Cloudflare knows no other");
        for limiter in limiters {
            assert!(limiter["simple"].contains(&format!("period = {period} ")), "{environment}: {limiter:?}");
        }
    }
    let namespaces: Vec<_> =
        tables.values().flatten().filter_map(|table| table.get("namespace_id")).collect();
    let different: BTreeSet<_> = namespaces.iter().collect();
    assert_eq!(different.len(), namespaces.len(), "limiters of one namespace count together");
    for secret in secrets() {
        assert!(tables.values().flatten().all(|table| !table.contains_key(&secret)), "{secret}");
    }
}

#[test]
fn plain_workerd_is_given_all_that_wrangler_has() {
    let capnp = text("edge/workerd.capnp");
    let date = wrangler_toml()[""][0]["compatibility_date"].clone();
    assert!(capnp.contains(&format!("const compatibilityDate :Text = {date};")), "not {date}");
    for file in fs::read_dir(root().join("edge/assets")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let path = if name.starts_with('_') { name.clone() } else { format!("/{name}") };
        let entry = format!(r#"(name = "{path}", text = embed "assets/{name}")"#);
        assert!(capnp.contains(&entry), "edge/workerd.capnp lacks {entry}");
    }
    for secret in secrets() {
        let entry = format!(r#"(name = "{secret}", fromEnvironment = "{secret}")"#);
        assert!(capnp.contains(&entry), "edge/workerd.capnp lacks {entry}");
    }
}

/// Workerd refuses to start where a binding leads to no service.
#[test]
fn the_benchmark_has_every_service_that_the_edge_is_bound_to() {
    let (edge, benchmark) = (text("edge/workerd.capnp"), text("bench/workers.capnp"));
    let bindings = edge.lines().filter_map(|line| line.split_once(", service = \"")?.1.split('"').next());
    let services: BTreeSet<_> = bindings.collect();
    assert!(services.contains("assets"), "none was found: {services:?}");
    for service in services {
        assert!(
            benchmark.contains(&format!("(name = \"{service}\", ")),
            "bench/workers.capnp lacks {service}"
        );
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_modules_of_plain_workerd_pass_their_own_tests() {
    let tested = Command::new(tool("node"))
        .args(["--test", "edge/workerd/rate_limit.test.js"])
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(tested.status.success(), "{}", said(&tested));
}

#[test]
fn plain_workerd_does_not_start_with_a_limit_that_is_none() {
    let started = Command::new(tool("workerd"))
        .args(["serve", "edge/workerd.capnp"])
        .args(["--socket-addr", &format!("http={}", free_address())])
        .env("RATE_PER_USER_LIMIT", "many")
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!started.status.success());
    assert!(said(&started).contains("RATE_PER_USER_LIMIT must be"), "{}", said(&started));
}

/// No proxy stands in front that would set a header, so a header tells nothing.
#[test]
fn plain_workerd_counts_the_peer_unless_told_otherwise() {
    EXECUTOR.block_on(async {
        let _turn = TURN.read().await;
        let limits = [("CLIENT_ADDRESS", ""), ("RATE_PER_ADDRESS_LIMIT", "3"), ("RATE_PERIOD_S", "60")];
        let world = World::start(Runtime::Workerd, "peer", "production", &limits).await;
        world.core.create("peer", json!({})).await;
        let mut replies = vec![];
        for n in 0..4 {
            let request = world.claim_request("peer", &format!("u{n}"));
            replies.push(world.send(request.header("CF-Connecting-IP", format!("192.0.2.{n}"))).await);
        }
        let said = world.passed_on(&replies[0]).concat().to_lowercase();
        assert!(said.contains("x-claimgate-client-ip: 127.0.0.1\r\n"), "{said}");
        let refused = replies.pop().unwrap().refused(429, "rate_limited");
        assert_eq!(refused.header("retry-after"), "60");
        assert!(replies.iter().all(|reply| reply.status == 201));
    });
}

/// A text where a limiter should be: asking it fails.
#[test]
fn a_limiter_that_fails_lets_through_or_not_as_it_is_set() {
    EXECUTOR.block_on(async {
        let _turn = TURN.read().await;
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
