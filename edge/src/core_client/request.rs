//! Requests to core: signed, with a time limit.

use claimgate_shared::http::{JSON, REQUEST_ID_HEADER};
use claimgate_shared::signature::{
    BodyHash, CLIENT_IP_HEADER, CONTENT_SHA256_HEADER, IDEMPOTENCY_KEY_HEADER, KEY_HEADER, PASS_HEADER,
    SIGNATURE_HEADER, SignedParts, TIMESTAMP_HEADER, USER_HEADER, USER_IDS_HEADER,
};
use claimgate_shared::{Attempt, ShownPass};
use wasm_bindgen::{JsValue, intern};
use web_sys::{AbortSignal, Headers, RequestInit, RequestRedirect};

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

    /// Builds the runtime's request to the core at `origin`, aborted after `limit_ms`.
    pub(super) fn raw(
        &self,
        config: &Config,
        origin: &str,
        limit_ms: i64,
    ) -> Result<web_sys::Request, JsValue> {
        let init = RequestInit::new();
        init.set_redirect(RequestRedirect::Manual);
        init.set_headers(self.headers(config)?.as_ref());
        if let Some(body) = self.body {
            init.set_method("POST");
            init.set_body(&body.into());
        }
        // The limit includes reading the response's body.
        let limit = AbortSignal::timeout_with_u32(u32::try_from(limit_ms).unwrap_or_default());
        init.set_signal(Some(&limit));
        let url = format!("{origin}{}", self.path);
        web_sys::Request::new_with_str_and_init(&url, &init)
    }

    fn headers(&self, config: &Config) -> Result<Headers, JsValue> {
        let now = clock::now().map_err(|problem| problem.detail)?;
        let content_type = if self.body.is_some() { JSON } else { "" };
        // A read without a user has no user-id scheme.
        let user_ids =
            if self.user.is_empty() { String::new() } else { config.user_ids.scheme().to_string() };
        let pass = self.pass.map(|shown| shown.to_string()).unwrap_or_default();
        let signed = SignedParts {
            method: if self.body.is_some() { "POST" } else { "GET" },
            path_and_query: self.path,
            content_type,
            body: BodyHash::of(self.body.unwrap_or_default().as_bytes()),
            user: self.user,
            client_ip: self.client_ip,
            idempotency_key: self.idempotency_key,
            attempt: self.attempt,
            user_ids: &user_ids,
            pass: &pass,
        };
        let headers = Headers::new()?;
        let set = |name: &str, value: &str| headers.set(intern(name), value);
        if !content_type.is_empty() {
            set("content-type", content_type)?;
        }
        if self.attempt == Attempt::First {
            set(Attempt::HEADER, Attempt::FIRST)?;
        }
        set(REQUEST_ID_HEADER, self.request_id)?;
        if !self.traceparent.is_empty() {
            set("traceparent", self.traceparent)?;
        }
        set(KEY_HEADER, &config.edge_key.kid)?;
        set(TIMESTAMP_HEADER, &now.as_ms().to_string())?;
        set(USER_HEADER, self.user)?;
        set(CLIENT_IP_HEADER, self.client_ip)?;
        if !user_ids.is_empty() {
            set(USER_IDS_HEADER, &user_ids)?;
        }
        if !pass.is_empty() {
            set(PASS_HEADER, &pass)?;
        }
        if self.body.is_some() {
            set(CONTENT_SHA256_HEADER, &signed.body.to_string())?;
            set(IDEMPOTENCY_KEY_HEADER, self.idempotency_key)?;
        }
        set(SIGNATURE_HEADER, &signed.sign(&config.edge_key, now))?;
        Ok(headers)
    }
}
