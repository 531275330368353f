//! Every answer's shape: problem+json with the request's id, and the headers that all answers carry.

use std::borrow::Cow;
use std::cell::RefCell;

use claimgate_shared::problem::PROBLEM_JSON;
use claimgate_shared::{Code, Problem};
use serde::Serialize;
use wasm_bindgen::{JsValue, intern};
use web_sys::{Headers, Response, ResponseInit};

/// The request's id: made here for every request, sent to core, answered to the client.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

const JSON: &str = "application/json";

/// Nothing answered here is a page: nothing may be run, framed, sniffed or embedded.
const SECURITY: [(&str, &str); 6] = [
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("strict-transport-security", "max-age=31536000"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// An answer, before it is the runtime's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    status: u16,
    headers: Vec<Header>,
    body: Vec<u8>,
}

impl Reply {
    /// An answer without a body, and not to be stored unless told otherwise.
    pub fn empty(status: u16) -> Self {
        Self { status, headers: vec![("cache-control", "no-store".into())], body: Vec::new() }
    }

    /// `value` as JSON.
    pub fn json(status: u16, value: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value)
            .map_err(|_| Problem::new(Code::Unavailable, "the answer could not be written"))?;
        Ok(Self::empty(status).with_body(JSON, body))
    }

    /// A refusal, with the headers that go with its code.
    pub fn problem(problem: Problem, request_id: &str) -> Self {
        let problem = problem.of_request(request_id);
        // Texts and numbers: writing them cannot fail, and the status says the same if it did.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let reply = Self::empty(problem.code.status()).with_body(PROBLEM_JSON, body);
        let reply = match problem.retry_after_s {
            // The two that nearly all have are among the headers that are made once.
            Some(1) => reply.with("retry-after", "1"),
            Some(2) => reply.with("retry-after", "2"),
            Some(seconds) => reply.with("retry-after", seconds.to_string()),
            None => reply,
        };
        match problem.code {
            Code::Unauthenticated => reply.with("www-authenticate", "Bearer"),
            _ => reply,
        }
    }

    /// With this body.
    #[must_use]
    pub fn with_body(mut self, content_type: &'static str, body: Vec<u8>) -> Self {
        self.body = body;
        self.with("content-type", content_type)
    }

    /// With this header, in place of any other of that name.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.into()));
        self
    }

    /// With everything that every answer carries.
    #[must_use]
    pub fn finish(self, request_id: &str, cors: &Cors<'_>) -> Self {
        let reply = SECURITY
            .iter()
            .fold(self.with(REQUEST_ID_HEADER, request_id.to_owned()), |reply, (name, value)| {
                reply.with(name, *value)
            });
        cors.open(reply)
    }

    /// As the runtime wants it.
    pub fn into_response(self) -> Result<Response, JsValue> {
        let init = ResponseInit::new();
        init.set_status(self.status);
        init.set_headers(runtime_headers(&self.headers)?.as_ref());
        let body = std::str::from_utf8(&self.body).ok().filter(|t| !t.is_empty());
        Response::new_with_opt_str_and_init(body, &init)
    }
}

type Header = (&'static str, Cow<'static, str>);

thread_local! {
    static KNOWN: RefCell<Vec<(Vec<Header>, Headers)>> = const { RefCell::new(Vec::new()) };
}

/// `headers` as the runtime's own, for the next response to be made of, which copies them. Most values stand in this
/// program and come in few sets; each set is made only once, as header by header they would cost more than all else of a
/// refusal. The other values are written over when they are others.
fn runtime_headers(headers: &[Header]) -> Result<Headers, JsValue> {
    let set = |known: &Headers, (name, value): &Header| known.set(intern(name), value);
    KNOWN.with_borrow_mut(|all| {
        let is_known = |(made, _): &&mut (Vec<Header>, Headers)| {
            made.len() == headers.len() && made.iter().zip(headers).all(|(one, other)| is_alike(one, other))
        };
        if let Some((made, known)) = all.iter_mut().find(is_known) {
            for (last, header) in made.iter_mut().zip(headers) {
                // Of some, such as Retry-After, many answers in a row have the same.
                if matches!(&header.1, Cow::Owned(value) if *value != last.1) {
                    set(known, header)?;
                    last.1.clone_from(&header.1);
                }
            }
            return Ok(known.clone());
        }
        let known = Headers::new()?;
        headers.iter().try_for_each(|header| set(&known, header))?;
        all.push((headers.to_vec(), known.clone()));
        Ok(known)
    })
}

/// Whether both are of one name, and of one value unless it is written over. By place: it is for texts of this program.
fn is_alike((name, value): &Header, (other_name, other_value): &Header) -> bool {
    std::ptr::eq(*name, *other_name)
        && match (value, other_value) {
            (Cow::Borrowed(value), Cow::Borrowed(other)) => std::ptr::eq(*value, *other),
            (Cow::Owned(_), Cow::Owned(_)) => true,
            _ => false,
        }
}

/// Which other origins' pages may read an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cors<'a> {
    /// The allow-list.
    pub allowed: &'a [String],
    /// The request's `Origin`.
    pub origin: Option<&'a str>,
}

impl Cors<'_> {
    /// The origin that is let in.
    fn let_in(&self) -> Option<&str> {
        self.origin.filter(|origin| self.allowed.iter().any(|allowed| allowed == origin))
    }

    /// The answer to a preflight for a call that takes `methods`; `None` when nobody is let in.
    pub fn preflight(&self, methods: &'static str) -> Option<Reply> {
        self.let_in()?;
        let reply = Reply::empty(204)
            .with("access-control-allow-methods", methods)
            .with(
                "access-control-allow-headers",
                "Authorization, Claimgate-Attempt, Content-Type, Idempotency-Key, If-None-Match",
            )
            .with("access-control-max-age", "600");
        Some(reply)
    }

    /// `reply`, readable by the origin when it is let in. No cookies are used, so no credentials are allowed.
    fn open(&self, reply: Reply) -> Reply {
        if self.allowed.is_empty() {
            return reply;
        }
        let reply = reply.with("vary", "Origin");
        match self.let_in() {
            Some(origin) => {
                let origin = origin.to_owned();
                reply.with("access-control-allow-origin", origin).with(
                    "access-control-expose-headers",
                    "ETag, Idempotent-Replayed, Retry-After, X-Request-Id",
                )
            }
            None => reply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
        let found = reply.headers.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value.as_ref())
    }

    #[test]
    fn a_refusal_carries_its_request_and_its_headers() {
        for (code, name, value) in [
            (Code::Unauthenticated, "www-authenticate", Some("Bearer")),
            (Code::RateLimited, "retry-after", Some("1")),
            (Code::Unavailable, "retry-after", Some("1")),
            (Code::SoldOut, "retry-after", None),
        ] {
            let reply = Reply::problem(Problem::new(code, "why"), "r-1");
            assert_eq!(reply.status, code.status());
            assert_eq!(header(&reply, name), value, "{code:?}");
            assert_eq!(header(&reply, "content-type"), Some(PROBLEM_JSON));
            assert_eq!(header(&reply, "cache-control"), Some("no-store"));
            let problem: Problem = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!((problem.code, problem.instance.as_str()), (code, "r-1"));
        }
    }

    #[test]
    fn only_listed_origins_are_let_in() {
        let allowed = ["https://a.example".to_owned()];
        for (origin, is_let_in) in [
            (Some("https://a.example"), true),
            (Some("https://a.example.evil"), false),
            (Some("null"), false),
            (None, false),
        ] {
            let cors = Cors { allowed: &allowed, origin };
            let reply = Reply::empty(200).finish("r-1", &cors);
            let expected = origin.filter(|_| is_let_in);
            assert_eq!(header(&reply, "access-control-allow-origin"), expected);
            assert_eq!(header(&reply, "access-control-allow-credentials"), None);
            assert_eq!(header(&reply, "vary"), Some("Origin"));
            assert_eq!(cors.preflight("POST").is_some(), is_let_in);
        }
    }

    #[test]
    fn without_a_list_there_is_no_cors() {
        let cors = Cors { allowed: &[], origin: Some("https://a.example") };
        let reply = Reply::empty(200).finish("r-1", &cors);
        assert_eq!(header(&reply, "access-control-allow-origin"), None);
        assert_eq!(header(&reply, "vary"), None);
        assert_eq!(header(&reply, "x-content-type-options"), Some("nosniff"));
        assert_eq!(header(&reply, "x-request-id"), Some("r-1"));
        assert_eq!(cors.preflight("POST"), None);
    }
}
