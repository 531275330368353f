//! openapi.json: its content, and that the running listeners conform to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::edge::{Runtime, World, root};
use support::process::free_address;
use support::{Core, CoreOptions, schemathesis};
use tokio::process::Command;

use crate::edge::run;

pub fn document() -> Value {
    serde_json::from_str(&fs::read_to_string(root().join("openapi.json")).unwrap()).unwrap()
}

/// Returns the method and path of each call, and its operation.
pub fn calls(document: &Value) -> Vec<(String, &Value)> {
    let mut calls = Vec::new();
    for (path, members) in document["paths"].as_object().unwrap() {
        for (method, operation) in members.as_object().unwrap().iter().filter(|(name, _)| *name != "servers")
        {
            calls.push((format!("{} {path}", method.to_uppercase()), operation));
        }
    }
    calls
}

/// Calls `visit` with each value of the document and its path.
fn walk(value: &Value, place: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(place, value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, place, visit)),
        Value::Object(members) => {
            members.iter().for_each(|(name, member)| walk(member, &format!("{place}/{name}"), visit));
        }
        _ => {}
    }
}

#[test]
fn every_operation_id_is_unique_and_in_camel_case() {
    let document = document();
    let mut names = BTreeMap::new();
    for (call, operation) in calls(&document) {
        let name = operation["operationId"].as_str().unwrap();
        let is_camel = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric())
            && name.contains(|c: char| c.is_ascii_uppercase());
        assert!(is_camel, "{call}: {name}");
        assert_eq!(names.insert(name, call.clone()), None, "{call}: {name} is also used by a different call");
    }
    assert!(names.contains_key("createCampaign") && names.contains_key("listClaims"), "{names:?}");
}

#[test]
fn every_call_has_its_servers_and_its_roles() {
    let document = document();
    let schemes: BTreeSet<_> =
        document["components"]["securitySchemes"].as_object().unwrap().keys().collect();
    assert_eq!(document["servers"].as_array().unwrap().len(), 3);
    let tags: Vec<_> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    for (call, operation) in calls(&document) {
        let (_, path) = call.split_once(' ').unwrap();
        let servers = document["paths"][path]["servers"].as_array().unwrap();
        assert!(!servers.is_empty(), "{call}");
        assert!(tags.contains(&&operation["tags"][0]), "{call}: {}", operation["tags"]);
        let needs_a_token = path.contains("/v1/") && operation["operationId"] != "getPublicCampaign";
        assert_eq!(operation["security"].is_array(), needs_a_token, "{call}");
        for requirement in operation["security"].as_array().into_iter().flatten() {
            let (scheme, roles) = requirement.as_object().unwrap().iter().next().unwrap();
            assert!(schemes.contains(scheme), "{call}: {scheme}");
            let role = roles[0].as_str().unwrap_or_default();
            assert_eq!(
                ["viewer", "operator", "admin"].contains(&role),
                scheme == "adminToken",
                "{call}: {role}"
            );
        }
    }
    for call in ["POST /v1/campaigns/{id}/claims", "GET /v1/campaigns/{id}", "GET /v1/claims/{claim_id}"] {
        assert!(calls(&document).iter().any(|(name, _)| name == call), "the edge's {call} is missing");
    }
}

#[test]
fn parameters_are_declared_where_they_are_sent() {
    let document = document();
    for (call, operation) in calls(&document) {
        let (_, path) = call.split_once(' ').unwrap();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let in_path = path.contains(&format!("{{{name}}}"));
            assert_eq!(parameter["in"] == "path", in_path, "{call}: {name} is in {}", parameter["in"]);
            assert_eq!(parameter["required"] == true, in_path, "{call}: {name}");
        }
    }
}

#[test]
fn every_problem_has_a_content_type_and_codes() {
    let document = document();
    let known = document["components"]["schemas"]["Code"]["enum"].as_array().unwrap();
    for (call, operation) in calls(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let is_problem = status.parse::<u16>().unwrap_or(u16::MAX) >= 400;
            let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(problem == "#/components/schemas/Problem", is_problem, "{call} {status}");
            let codes = response["x-codes"].as_array().map_or(&[][..], Vec::as_slice);
            assert_eq!(!codes.is_empty(), is_problem, "{call} {status}");
            for code in codes {
                assert!(known.contains(code), "{call}: the schema Code has no {code}");
            }
        }
    }
}

/// The limit 4294967295 is valid, but does not fit in a signed 32-bit number.
#[test]
fn every_number_format_holds_its_values() {
    let mut limits = 0;
    walk(&document(), "", &mut |place, schema| {
        let most = schema["maximum"].as_u64();
        limits += u32::from(most == Some(u32::MAX.into()));
        if schema["format"] == "int32" {
            assert!(most.is_some_and(|most| most <= 0x7fff_ffff), "{place}: {schema}");
        }
    });
    assert!(limits > 10, "{limits}");
}

/// Generated Java clients cannot read `null` in place of a `oneOf` of forms, and Go clients need another module for it.
#[test]
fn one_of_expresses_only_that_a_value_may_be_null() {
    walk(&document(), "", &mut |place, schema| {
        if let Some(forms) = schema["oneOf"].as_array() {
            let nulls = forms.iter().filter(|form| form["type"] == "null").count();
            assert_eq!((forms.len(), nulls), (2, 1), "{place}: {schema}");
        }
    });
}

/// Starts a core with the fixtures of `tests/schemathesis_hooks.py`. Returns also the allowed webhook receiver.
async fn core_with_claims() -> (Core, String) {
    let receiver = format!("http://{}", free_address());
    let core = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", &receiver).start().await;
    core.create("demo", json!({"total": 1000, "per_claim": 10})).await;
    let mut coded = campaign("coded", json!({"total": 0}));
    coded["codes"] = json!(true);
    core.create_with(coded).await;
    core.create("paused", json!({"total": 1000})).await;
    core.admin_post("/admin/v1/campaigns/paused/pause").await.expect(200);
    for user in ["anna", "bert"] {
        core.claim("demo", user, "k").await.expect(201);
    }
    core.sql().until("demo", 2).await;
    (core, receiver)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_internal_listener_conforms_to_the_document() {
    if schemathesis::is_installed() {
        let (core, receiver) = core_with_claims().await;
        schemathesis::agrees("internal", &core.url(""), API_TOKEN, &receiver).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_listener_conforms_to_the_document() {
    if schemathesis::is_installed() {
        let (core, receiver) = core_with_claims().await;
        let (url, token) = (core.admin_url(""), core.admin_token());
        schemathesis::agrees("admin", &url, &token, &receiver).await;
        schemathesis::agrees("health", &url, &token, &receiver).await;
    }
}

#[test]
fn the_edge_conforms_to_the_document() {
    if schemathesis::is_installed() {
        run(async {
            let (core, receiver) = core_with_claims().await;
            let world = World::before(core, Runtime::from_env(), "schemathesis", "test", &[]).await;
            schemathesis::agrees("edge", &world.edge.url(""), &world.token("anna"), &receiver).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_clients_take_a_claim_from_hold_to_return() {
    let (Ok(clients), Ok(jar)) = (std::env::var("CLAIMGATE_CLIENTS"), std::env::var("CLAIMGATE_CLIENTS_JAR"))
    else {
        println!("NOT RUN: tests/clients.sh, a part of `make soak`, generates the clients");
        return;
    };
    let core = Core::start().await;
    for (language, program, arguments) in [
        ("java", "java", vec!["-cp".to_owned(), format!("{clients}/classes:{jar}"), "Play".to_owned()]),
        ("go", &format!("{clients}/play"), vec![]),
    ] {
        let mut command = Command::new(program);
        command.args(&arguments).env("ADMIN_URL", core.admin_url("")).env("INTERNAL_URL", core.url(""));
        let played = command.env("TOKEN", core.admin_token()).output().await.expect(program);
        let output = String::from_utf8_lossy(&played.stdout);
        assert!(played.status.success(), "{language}: {output}{}", String::from_utf8_lossy(&played.stderr));
        println!("{}", output.trim_end());
        let left = core.admin_get(&format!("/admin/v1/campaigns/{language}")).await.expect(200).json();
        assert_eq!((&left["taken"], &left["remaining"]), (&json!(0), &json!(u32::MAX)), "{language}: {left}");
    }
}
