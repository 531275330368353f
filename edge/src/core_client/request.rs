//! Requests to core: signed, with a time limit.

use claimgate_shared::http::{JSON, REQUEST_ID_HEADER};
use claimgate_shared::signature::{
    BodyHash, CLIENT_IP_HEADER, CONTENT_SHA256_HEADER, IDEMPOTENCY_KEY_HEADER, KEY_HEADER, NamedKey,
    PASS_HEADER, SIGNATURE_HEADER, SignedParts, TIMESTAMP_HEADER, USER_HEADER, USER_IDS_HEADER,
};
use claimgate_shared::user_id::UserIdRule;
use claimgate_shared::{Attempt, ShownPass, Timestamp};
use serde::{Serialize, Serializer};
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{AbortSignal, RequestInit, RequestRedirect};
use worker::js_sys;

use super::circuit_breaker::CallKind;
use crate::clock;
use crate::config::Config;

/// A request to core's internal API.
#[derive(Debug, Clone, Copy)]
pub struct CoreRequest<'a> {
    /// The kind of call.
    pub kind: CallKind,
    /// The path on core, with the query if there is one.
    pub path: &'a str,
    /// The JSON body of a `POST`; `None` for a `GET`.
    pub body: Option<&'a str>,
    /// The authenticated user; empty if there is none.
    pub user: &'a str,
    /// The client's address; empty if unknown.
    pub client_ip: &'a str,
    /// The claim's idempotency key; empty for other requests.
    pub idempotency_key: &'a str,
    /// Whether this is a claim's first try, as stated by the client.
    pub attempt: Attempt,
    /// The valid pass that was sent with the claim.
    pub pass: Option<ShownPass>,
    /// The id of the browser's request.
    pub request_id: &'a str,
    /// The trace context for core; empty without tracing.
    pub traceparent: &'a str,
}

/// Builds a `GET` for a path that needs no signature, aborted after `limit_ms`.
pub(super) fn unsigned(url: &str, limit_ms: u32) -> Result<web_sys::Request, JsValue> {
    let init = RequestInit::new();
    init.set_redirect(RequestRedirect::Manual);
    init.set_signal(Some(&AbortSignal::timeout_with_u32(limit_ms)));
    web_sys::Request::new_with_str_and_init(url, &init)
}

impl<'a> CoreRequest<'a> {
    /// Creates a `GET` of `path` without user, address or key. Callers set the fields that apply.
    pub fn new(kind: CallKind, path: &'a str, request_id: &'a str) -> Self {
        let (user, client_ip, idempotency_key) = ("", "", "");
        let (attempt, pass) = (Attempt::Unknown, None);
        let traceparent = "";
        Self {
            kind,
            path,
            body: None,
            user,
            client_ip,
            idempotency_key,
            attempt,
            pass,
            request_id,
            traceparent,
        }
    }

    /// Returns the settings for the runtime's `fetch`, which is aborted after `limit_ms`.
    pub(super) fn init(&self, config: &Config, limit_ms: i64) -> Result<RequestInit, JsValue> {
        let now = clock::now().map_err(|problem| problem.detail)?;
        let settings = self.settings(&config.edge_key, &config.user_ids, now);
        let settings = js_sys::JSON::parse(&settings.map_err(|why| why.to_string())?)?;
        let init: RequestInit = settings.unchecked_into();
        // The limit includes reading the response's body.
        let limit = AbortSignal::timeout_with_u32(u32::try_from(limit_ms).unwrap_or_default());
        init.set_signal(Some(&limit));
        Ok(init)
    }

    /// Returns the settings of the request as JSON, signed at `now`.
    fn settings(&self, key: &NamedKey, user_ids: &UserIdRule, now: Timestamp) -> serde_json::Result<String> {
        let method = if self.body.is_some() { "POST" } else { "GET" };
        let content_type = if self.body.is_some() { JSON } else { "" };
        // A read without a user has no user-id scheme.
        let user_ids = if self.user.is_empty() { String::new() } else { user_ids.scheme().to_string() };
        let pass = self.pass.map(|shown| shown.to_string()).unwrap_or_default();
        let body = BodyHash::of(self.body.unwrap_or_default().as_bytes());
        let signed = SignedParts {
            method,
            path_and_query: self.path,
            content_type,
            body,
            user: self.user,
            client_ip: self.client_ip,
            idempotency_key: self.idempotency_key,
            attempt: self.attempt,
            user_ids: &user_ids,
            pass: &pass,
        };
        let (timestamp, body, signature) = (now.as_ms().to_string(), body.to_string(), signed.sign(key, now));
        let mut headers = vec![
            (REQUEST_ID_HEADER, self.request_id),
            (KEY_HEADER, key.kid.as_str()),
            (TIMESTAMP_HEADER, timestamp.as_str()),
            (USER_HEADER, self.user),
            (CLIENT_IP_HEADER, self.client_ip),
            (SIGNATURE_HEADER, signature.as_str()),
        ];
        let optional = [
            ("content-type", content_type),
            ("traceparent", self.traceparent),
            (USER_IDS_HEADER, user_ids.as_str()),
            (PASS_HEADER, pass.as_str()),
        ];
        headers.extend(optional.into_iter().filter(|(_, value)| !value.is_empty()));
        if self.attempt == Attempt::First {
            headers.push((Attempt::HEADER, Attempt::FIRST));
        }
        if self.body.is_some() {
            headers.push((CONTENT_SHA256_HEADER, body.as_str()));
            headers.push((IDEMPOTENCY_KEY_HEADER, self.idempotency_key));
        }
        let headers = Headers(headers);
        serde_json::to_string(&Settings { method, redirect: "manual", headers, body: self.body })
    }
}

/// Members of `RequestInit`. They leave WebAssembly as one string: to set each member and each header would take a
/// call for each.
#[derive(Debug, Serialize)]
struct Settings<'a> {
    method: &'a str,
    redirect: &'a str,
    headers: Headers<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
}

/// Names and values of headers; an object in JSON.
#[derive(Debug)]
struct Headers<'a>(Vec<(&'a str, &'a str)>);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn key() -> NamedKey {
        "k1:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA".parse().unwrap()
    }

    fn signed_at() -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000).unwrap()
    }

    fn settings(request: CoreRequest<'_>) -> Value {
        let user_ids = UserIdRule::verbatim("sub", "issuer");
        let text = request.settings(&key(), &user_ids, signed_at());
        serde_json::from_str(&text.unwrap()).unwrap()
    }

    fn names(settings: &Value) -> Vec<&str> {
        let mut names: Vec<_> = settings["headers"].as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_claim_has_its_body_and_every_header_that_applies() {
        let claim = CoreRequest {
            body: Some(r#"{"user_id":"alice"}"#),
            user: "alice",
            client_ip: "192.0.2.1",
            idempotency_key: "key-1",
            attempt: Attempt::First,
            pass: Some("shown:1".parse().unwrap()),
            traceparent: "00-trace-span-01",
            ..CoreRequest::new(CallKind::Claims, "/internal/v1/claims", "r-1")
        };
        let settings = settings(claim);
        assert_eq!((&settings["method"], &settings["redirect"]), (&json!("POST"), &json!("manual")));
        assert_eq!(settings["body"], r#"{"user_id":"alice"}"#);
        for (name, value) in [
            ("content-type", "application/json"),
            ("claimgate-attempt", "1"),
            ("x-request-id", "r-1"),
            ("traceparent", "00-trace-span-01"),
            ("x-claimgate-key", "k1"),
            ("x-claimgate-timestamp", "1700000000000"),
            ("x-claimgate-user", "alice"),
            ("x-claimgate-client-ip", "192.0.2.1"),
            ("x-claimgate-pass", "shown:1"),
            ("x-claimgate-idempotency-key", "key-1"),
        ] {
            assert_eq!(settings["headers"][name], value, "{name}");
        }
        assert_eq!(names(&settings).len(), 13);
        let header = |name: &str| settings["headers"][name].as_str().unwrap();
        let body = BodyHash::of(br#"{"user_id":"alice"}"#);
        assert_eq!(header("x-claimgate-content-sha256"), body.to_string());
        let signed = SignedParts {
            method: "POST",
            path_and_query: "/internal/v1/claims",
            content_type: "application/json",
            body,
            user: "alice",
            client_ip: "192.0.2.1",
            idempotency_key: "key-1",
            attempt: Attempt::First,
            user_ids: header("x-claimgate-user-ids"),
            pass: "shown:1",
        };
        let signature = header("x-claimgate-signature");
        let verified = signed.verify(&[key()], "k1", "1700000000000", signature, signed_at());
        assert_eq!(verified.unwrap(), Attempt::First);
    }

    #[test]
    fn a_read_without_a_user_has_no_body_and_an_empty_user() {
        let settings = settings(CoreRequest::new(CallKind::Views, "/internal/v1/campaigns/demo", "r-1"));
        assert_eq!((&settings["method"], settings.get("body")), (&json!("GET"), None));
        assert_eq!(settings["headers"]["x-claimgate-user"], "");
        let expected = [
            "x-claimgate-client-ip",
            "x-claimgate-key",
            "x-claimgate-signature",
            "x-claimgate-timestamp",
            "x-claimgate-user",
            "x-request-id",
        ];
        assert_eq!(names(&settings), expected);
    }
}
