//! Responses: problem+json with the request id, and the headers common to all responses.

use std::borrow::Cow;
use std::cell::RefCell;

use claimgate_shared::http::{JSON, REQUEST_ID_HEADER};
use claimgate_shared::problem::PROBLEM_JSON;
use claimgate_shared::{Code, Problem};
use serde::Serialize;
use wasm_bindgen::{JsValue, intern};
use web_sys::{Headers, ResponseInit};

/// No response built here is a page, so none may run scripts, be framed, sniffed or embedded.
const SECURITY_HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("strict-transport-security", "max-age=31536000"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

type Header = (&'static str, Cow<'static, str>);

/// A response before conversion to the runtime's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    status: u16,
    headers: Vec<Header>,
    body: Vec<u8>,
}

impl Response {
    /// Returns a response without a body; `no-store` unless [`with`](Self::with) replaces `cache-control`.
    pub fn empty(status: u16) -> Self {
        Self { status, headers: vec![("cache-control", "no-store".into())], body: Vec::new() }
    }

    /// Returns a response with `value` as JSON.
    ///
    /// # Errors
    /// `unavailable` if `value` cannot be serialized.
    pub fn json(status: u16, value: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value)
            .map_err(|_| Problem::new(Code::Unavailable, "the response could not be serialized"))?;
        Ok(Self::empty(status).with_body(JSON, body))
    }

    /// Returns a response with `problem` as problem+json, and the status and headers of its code.
    pub fn problem(problem: Problem, request_id: &str) -> Self {
        let problem = problem.with_request_id(request_id);
        // A problem has only strings and numbers, so serialization cannot fail. If it did, the status would
        // still be right.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let response = Self::empty(problem.code.status()).with_body(PROBLEM_JSON, body);
        let response = match problem.retry_after_s {
            // Nearly all problems have one of these two values. As literals they hit the cache of header
            // sets.
            Some(1) => response.with("retry-after", "1"),
            Some(2) => response.with("retry-after", "2"),
            Some(seconds) => response.with("retry-after", seconds.to_string()),
            None => response,
        };
        match problem.code {
            Code::Unauthenticated => response.with("www-authenticate", "Bearer"),
            _ => response,
        }
    }

    /// Sets the body, in UTF-8, and its media type.
    #[must_use]
    pub fn with_body(mut self, content_type: &'static str, body: Vec<u8>) -> Self {
        self.body = body;
        self.with("content-type", content_type)
    }

    /// Sets the header `name` (lower case), replacing an existing one.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.into()));
        self
    }

    /// Adds the headers common to all responses: the request id and the security headers.
    #[must_use]
    pub fn finish(self, request_id: &str) -> Self {
        let response = self.with(REQUEST_ID_HEADER, request_id.to_owned());
        SECURITY_HEADERS.iter().fold(response, |response, (name, value)| response.with(name, *value))
    }

    /// Returns the status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the value of the header `name` (lower case), if set.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value.as_ref())
    }

    /// Converts to the runtime's response.
    ///
    /// # Errors
    /// The runtime's error if it rejects a header or the status.
    pub fn into_raw(self) -> Result<web_sys::Response, JsValue> {
        let init = ResponseInit::new();
        init.set_status(self.status);
        init.set_headers(raw_headers(&self.headers)?.as_ref());
        let body = std::str::from_utf8(&self.body).ok().filter(|text| !text.is_empty());
        web_sys::Response::new_with_opt_str_and_init(body, &init)
    }
}

thread_local! {
    static HEADER_SETS: RefCell<Vec<(Vec<Header>, Headers)>> = const { RefCell::new(Vec::new()) };
}

/// Converts `headers` to the runtime's type. The result is valid until the next call; a response copies it.
///
/// Most values are literals in few combinations, so each combination is built once and cached. Setting the
/// headers one by one would cost more than the rest of a rejection. Only changed non-literal values are set
/// again.
fn raw_headers(headers: &[Header]) -> Result<Headers, JsValue> {
    let set = |raw: &Headers, (name, value): &Header| raw.set(intern(name), value);
    HEADER_SETS.with_borrow_mut(|sets| {
        let is_same_set = |(kept, _): &&mut (Vec<Header>, Headers)| {
            kept.len() == headers.len() && kept.iter().zip(headers).all(|(one, other)| is_same(one, other))
        };
        if let Some((kept, raw)) = sets.iter_mut().find(is_same_set) {
            for (last, header) in kept.iter_mut().zip(headers) {
                // Some values, such as Retry-After, often repeat in consecutive responses.
                if matches!(&header.1, Cow::Owned(value) if *value != last.1) {
                    set(raw, header)?;
                    last.1.clone_from(&header.1);
                }
            }
            return Ok(raw.clone());
        }
        let raw = Headers::new()?;
        headers.iter().try_for_each(|header| set(&raw, header))?;
        sets.push((headers.to_vec(), raw.clone()));
        Ok(raw)
    })
}

/// Returns whether two headers have the same name, and the same literal or both non-literal values. Literals
/// are compared by address.
fn is_same((name, value): &Header, (other_name, other_value): &Header) -> bool {
    std::ptr::eq(*name, *other_name)
        && match (value, other_value) {
            (Cow::Borrowed(value), Cow::Borrowed(other)) => std::ptr::eq(*value, *other),
            (Cow::Owned(_), Cow::Owned(_)) => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_carries_the_request_id_and_code_specific_headers() {
        for (code, name, value) in [
            (Code::Unauthenticated, "www-authenticate", Some("Bearer")),
            (Code::RateLimited, "retry-after", Some("1")),
            (Code::Unavailable, "retry-after", Some("1")),
            (Code::SoldOut, "retry-after", None),
        ] {
            let response = Response::problem(Problem::new(code, "why"), "r-1");
            assert_eq!(response.status, code.status());
            assert_eq!(response.header(name), value, "{code:?}");
            assert_eq!(response.header("content-type"), Some(PROBLEM_JSON));
            assert_eq!(response.header("cache-control"), Some("no-store"));
            let problem: Problem = serde_json::from_slice(&response.body).unwrap();
            assert_eq!((problem.code, problem.instance.as_str()), (code, "r-1"));
        }
    }

    #[test]
    fn every_response_has_a_request_id_and_security_headers() {
        let response = Response::empty(200).finish("r-1");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.header("x-request-id"), Some("r-1"));
    }
}
