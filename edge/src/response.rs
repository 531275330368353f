//! The shape of every response: problem+json with the request's id, and the headers that all responses carry.

use std::borrow::Cow;
use std::cell::RefCell;

use claimgate_shared::http::{JSON, REQUEST_ID_HEADER};
use claimgate_shared::problem::PROBLEM_JSON;
use claimgate_shared::{Code, Problem};
use serde::Serialize;
use wasm_bindgen::{JsValue, intern};
use web_sys::{Headers, ResponseInit};

/// No response built here is a page, so none may be run, framed, sniffed or embedded.
const SECURITY_HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("strict-transport-security", "max-age=31536000"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

type Header = (&'static str, Cow<'static, str>);

/// A response, before the runtime gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    status: u16,
    headers: Vec<Header>,
    body: Vec<u8>,
}

impl Response {
    /// A response without a body; `no-store` until [`with`](Self::with) sets another `cache-control`.
    pub fn empty(status: u16) -> Self {
        Self { status, headers: vec![("cache-control", "no-store".into())], body: Vec::new() }
    }

    /// `value` as JSON.
    ///
    /// # Errors
    /// `unavailable` when `value` cannot be serialized.
    pub fn json(status: u16, value: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value)
            .map_err(|_| Problem::new(Code::Unavailable, "the response could not be serialized"))?;
        Ok(Self::empty(status).with_body(JSON, body))
    }

    /// `problem` as problem+json, with the status and the headers that its code requires.
    pub fn problem(problem: Problem, request_id: &str) -> Self {
        let problem = problem.of_request(request_id);
        // Text and numbers alone: this cannot fail, and the status would still tell the outcome.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let response = Self::empty(problem.code.status()).with_body(PROBLEM_JSON, body);
        let response = match problem.retry_after_s {
            // The two values that nearly all problems have: as literals they are in the cache of header sets.
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

    /// The response with this body, UTF-8, of this media type.
    #[must_use]
    pub fn with_body(mut self, content_type: &'static str, body: Vec<u8>) -> Self {
        self.body = body;
        self.with("content-type", content_type)
    }

    /// The response with this header, replacing another of the same name (lower case).
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.into()));
        self
    }

    /// The response with what all of them carry: the request's id and the security headers.
    #[must_use]
    pub fn finish(self, request_id: &str) -> Self {
        let response = self.with(REQUEST_ID_HEADER, request_id.to_owned());
        SECURITY_HEADERS.iter().fold(response, |response, (name, value)| response.with(name, *value))
    }

    /// Its status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The value of the header `name` (lower case), if it is set.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value.as_ref())
    }

    /// The runtime's own response.
    ///
    /// # Errors
    /// The runtime's error when it refuses a header or the status.
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

/// `headers` as the runtime's own, valid until the next call; a response built from them copies them. Most values are
/// literals and come in few combinations, so each combination is built once and kept: header by header they would cost more
/// than everything else in a refusal. Only values that are not literals are written again, when they differ.
fn raw_headers(headers: &[Header]) -> Result<Headers, JsValue> {
    let set = |raw: &Headers, (name, value): &Header| raw.set(intern(name), value);
    HEADER_SETS.with_borrow_mut(|sets| {
        let is_same_set = |(kept, _): &&mut (Vec<Header>, Headers)| {
            kept.len() == headers.len() && kept.iter().zip(headers).all(|(one, other)| is_same(one, other))
        };
        if let Some((kept, raw)) = sets.iter_mut().find(is_same_set) {
            for (last, header) in kept.iter_mut().zip(headers) {
                // Some, such as Retry-After, often repeat in consecutive responses.
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

/// Whether both have the same name, and the same value or one that is written again. Literals are compared by address.
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
    fn a_refusal_carries_its_request_and_its_headers() {
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
    fn every_response_carries_its_id_and_the_security_headers() {
        let response = Response::empty(200).finish("r-1");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.header("x-request-id"), Some("r-1"));
    }
}
