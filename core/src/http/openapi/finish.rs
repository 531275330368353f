//! Adds to the generated document what the macros cannot express.

use std::collections::BTreeMap;

use claimgate_shared::Code;
use claimgate_shared::http;
use claimgate_shared::problem::PROBLEM_JSON;
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// The extension in which a handler lists its problems, except those that all calls of its kind share. In the
/// finished document each response has it, with all problems of its status.
const CODES: &str = "x-codes";

pub(super) fn finished(document: utoipa::openapi::OpenApi) -> Value {
    // The document always serializes to JSON.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    document["servers"] = json!([internal(), admin(), edge()]);
    for (path, calls) in members(&mut document["paths"]) {
        for (_, operation) in members(calls) {
            if let Some(operation) = operation.as_object_mut() {
                parameters_are_not_null(operation);
                name_problems(operation);
            }
        }
        calls["servers"] = servers(path);
    }
    let schemas = &mut document["components"]["schemas"];
    name_items_of_pages(schemas);
    only_presales_have_an_end(&mut schemas["PassRule"]);
    one_kind_of_challenge(&mut schemas["Challenge"]);
    widen_unsigned(&mut document);
    document
}

/// Iterates over the members of an object; any other value has none.
fn members(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value.as_object_mut().into_iter().flatten()
}

fn internal() -> Value {
    server("http://127.0.0.1:8080", "Core's internal listener (`CLAIMGATE_LISTEN`)")
}

fn admin() -> Value {
    server("http://127.0.0.1:8081", "Core's admin listener (`CLAIMGATE_ADMIN_LISTEN`)")
}

fn edge() -> Value {
    server("http://127.0.0.1:8787", "The edge")
}

/// Describes a listener at its default address.
fn server(url: &str, description: &str) -> Value {
    json!({"url": url, "description": description})
}

/// Returns the listeners that serve the path.
fn servers(path: &str) -> Value {
    match path.split('/').nth(1) {
        Some("internal") => json!([internal()]),
        Some("v1") => json!([edge()]),
        Some("readyz") => json!([internal(), admin()]),
        Some("livez") => json!([internal(), admin(), edge()]),
        _ => json!([admin()]),
    }
}

/// Removes `null` from the types of optional parameters: a query cannot express it.
fn parameters_are_not_null(operation: &mut Object) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let schema = &mut parameter["schema"];
        if let Some(kinds) = schema.get_mut("type").filter(|kinds| kinds.is_array()) {
            *kinds = kinds[0].take();
        }
        if let Some(one) = schema.get_mut("oneOf") {
            let one = one[0].take();
            *schema = one;
        }
    }
}

/// Adds a response for each status, with its problems.
fn name_problems(operation: &mut Object) {
    let own = operation.remove(CODES).unwrap_or_else(|| json!([]));
    let Ok(mut codes) = serde_json::from_value::<Vec<Code>>(own) else { return };
    codes.extend(common_codes(operation));
    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in Code::ALL.iter().filter(|code| codes.contains(code)) {
        by_status.entry(code.status()).or_default().push(code.as_str());
    }
    for (status, codes) in by_status {
        operation["responses"][status.to_string()] = problems(status, &codes);
    }
}

/// Returns the problems that any call with authentication, a body or a query can return.
fn common_codes(operation: &Object) -> Vec<Code> {
    let mut codes = Vec::new();
    if let Some(security) = operation.get("security") {
        codes.extend([Code::Unauthenticated, Code::Unavailable, Code::Overloaded]);
        let is_of_users = security[0].get("userToken").is_some();
        codes.extend((!is_of_users).then_some(Code::Forbidden));
    }
    if let Some(body) = operation.get("requestBody") {
        codes.extend([Code::InvalidRequest, Code::PayloadTooLarge, Code::UnsupportedMediaType]);
        let is_json = body["content"].get(http::JSON).is_some();
        codes.extend(is_json.then_some(Code::RequestTimeout));
    }
    let parameters = operation.get("parameters").and_then(Value::as_array);
    let in_query = |parameter: &Value| parameter["in"] == "query";
    if parameters.is_some_and(|parameters| parameters.iter().any(in_query)) {
        codes.push(Code::InvalidRequest);
    }
    codes
}

/// Describes a response with these problems.
fn problems(status: u16, codes: &[&str]) -> Value {
    let problem = json!({"$ref": "#/components/schemas/Problem"});
    let mut response = json!({
        "description": codes.iter().map(|code| format!("`{code}`")).collect::<Vec<_>>().join(", "),
        "content": {PROBLEM_JSON: {"schema": problem}},
        CODES: codes,
    });
    if [429, 503].contains(&status) {
        let seconds = json!({"type": "integer", "format": "int32", "minimum": 0, "maximum": 86400});
        response["headers"]["Retry-After"] = json!({"description": "In seconds", "schema": seconds});
    }
    response
}

/// Replaces the schema of a page's items, which utoipa writes out in full, with a reference.
fn name_items_of_pages(schemas: &mut Value) {
    let named = schemas.clone();
    for (_, page) in members(schemas).filter(|(name, _)| name.starts_with("Page_")) {
        let items = &mut page["properties"]["items"]["items"];
        let name = named.as_object().into_iter().flatten().find(|(_, schema)| *schema == items);
        if let Some((name, _)) = name {
            *items = json!({"$ref": format!("#/components/schemas/{name}")});
        }
    }
}

/// Requires `until` of one form of the rule, and forbids it in the other.
fn only_presales_have_an_end(rule: &mut Value) {
    rule["if"] = json!({"properties": {"required": {"const": "until"}}});
    rule["then"] = json!({"required": ["until"]});
    rule["else"] = json!({"not": {"required": ["until"]}});
}

/// Describes a challenge as an object with one of several members: Go clients of a `oneOf` need another module.
fn one_kind_of_challenge(challenge: &mut Value) {
    let Some(forms) = challenge.as_object_mut().and_then(|schema| schema.remove("oneOf")) else { return };
    let kinds = forms.as_array().into_iter().flatten().filter_map(|form| form["properties"].as_object());
    challenge["properties"] = kinds.flatten().map(|(name, kind)| (name.clone(), kind.clone())).collect();
    challenge["type"] = json!("object");
    (challenge["minProperties"], challenge["maxProperties"]) = (json!(1), json!(1));
}

/// Widens each `u32`: utoipa gives it the format `int32`, which covers only half of its values.
fn widen_unsigned(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(widen_unsigned),
        Value::Object(members) => {
            let is_unsigned = members.get("format").is_some_and(|format| format == "int32")
                && members
                    .get("minimum")
                    .is_some_and(|minimum| !minimum.as_i64().is_some_and(i64::is_negative))
                && !members.contains_key("maximum");
            if is_unsigned {
                members.insert("format".to_owned(), "int64".into());
                members.insert("maximum".to_owned(), u32::MAX.into());
            }
            members.values_mut().for_each(widen_unsigned);
        }
        _ => {}
    }
}
