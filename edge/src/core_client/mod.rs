//! The only way to the cores: every request is built from parsed values, signed, bounded in time, and guarded by a circuit
//! breaker for each core.

pub mod circuit_breaker;
pub mod rotation;

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;

use claimgate_shared::http::{JSON, REPLAYED, REPLAYED_HEADER, REQUEST_ID_HEADER};
use claimgate_shared::problem::{PROBLEM_JSON, object};
use claimgate_shared::signature::{
    CLIENT_IP_HEADER, KEY_HEADER, SIGNATURE_HEADER, SignedParts, TIMESTAMP_HEADER, USER_HEADER,
};
use claimgate_shared::{Attempt, Code, Problem, Timestamp, Version};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use wasm_bindgen::{JsCast as _, JsValue, intern};
use web_sys::{AbortSignal, Headers, RequestInit, RequestRedirect, WorkerGlobalScope};
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{self, Math, Uint8Array};
use worker::{Env, Fetcher};

use self::circuit_breaker::{CallKind, CircuitBreaker};
use self::rotation::Rotation;
use crate::clock::{self, age_ms};
use crate::config::{Config, CoreAddress};
use crate::response::Response;

/// The time limit of a call, all its attempts included.
const CALL_MS_MAX: i64 = 2_000;
/// The time limit of an attempt after which another core can be asked: longer than a core that is alive takes for a claim.
const ATTEMPT_MS_MAX: i64 = 1_600;
/// With less than this left, a further attempt could only add load.
const ATTEMPT_MS_MIN: i64 = 100;

thread_local! {
    // An isolate's environment and configuration never change.
    static CORES: OnceCell<Rc<Cores>> = const { OnceCell::new() };
}

/// What an isolate has of the cores.
#[derive(Debug)]
struct Cores {
    /// For each the binding, or the global scope: both have the same `fetch`.
    fetchers: Vec<WorkerGlobalScope>,
    rotation: RefCell<Rotation>,
}

impl Cores {
    fn new(env: &Env, addresses: &[CoreAddress]) -> Self {
        let fetcher = |core: &CoreAddress| {
            let binding = core.binding.as_ref().and_then(|name| env.service(name).ok());
            binding.map_or_else(|| js_sys::global().unchecked_into(), Fetcher::into_rpc)
        };
        let rotation = Rotation::new(addresses.len(), drawn(addresses.len()));
        Self { fetchers: addresses.iter().map(fetcher).collect(), rotation: RefCell::new(rotation) }
    }
}

/// One of `count`: isolates begin anywhere, so that the first core has no more to do than the others.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)] // of a few cores
fn drawn(count: usize) -> usize {
    (Math::random() * count as f64) as usize
}

/// Sends requests to the cores: each through its service binding where there is one, else over the network.
#[derive(Debug)]
pub struct CoreClient<'a> {
    config: &'a Config,
    cores: Rc<Cores>,
}

impl<'a> CoreClient<'a> {
    /// A client for the cores that `config` names, by the bindings in `env`.
    pub fn new(env: &Env, config: &'a Config) -> Self {
        let cores =
            CORES.with(|cores| Rc::clone(cores.get_or_init(|| Rc::new(Cores::new(env, &config.cores)))));
        Self { config, cores }
    }

    /// Sends `request`, within 2 s in all, to one core after the other until one answers and can decide, and at last to the
    /// first one again. A problem that core answers is `Ok`.
    ///
    /// Asking again is safe: what one core has decided every other one knows by the same key. It is for a response lost on the
    /// way, which may have been a grant, and for a core that is being restarted. A core that is merely slow is waited for:
    /// asking twice would make it slower.
    ///
    /// # Errors
    /// `unavailable` when there is no response in time, all circuits are open, or core refuses this edge. The caller has to
    /// treat the outcome as unknown: core may have decided.
    pub async fn send(&self, request: CoreRequest<'_>) -> Result<CoreResponse, Problem> {
        let began_at = clock::now()?;
        let count = self.config.cores.len();
        let (mut request, mut called, mut undecided) = (request, None, None);
        for _ in 0..=count {
            let now = clock::now()?;
            let left_ms = CALL_MS_MAX - age_ms(began_at, now).min(CALL_MS_MAX);
            if left_ms < ATTEMPT_MS_MIN {
                break;
            }
            let Some(core) = self.cores.rotation.borrow_mut().choose(request.kind, called, now) else {
                break;
            };
            let limit_ms = if count > 1 { left_ms.min(ATTEMPT_MS_MAX) } else { left_ms };
            match self.attempt(core, request, now, limit_ms).await? {
                Attempted::Answered(response) if count > 1 && response.is_undecided() => {
                    undecided = Some(response);
                }
                // It says that nothing was tried: not so of the call before.
                Attempted::Answered(response) if called.is_some() && response.is_overloaded() => break,
                Attempted::Answered(response) => return Ok(response),
                Attempted::Refused if count == 1 => break,
                Attempted::Refused | Attempted::Lost => {}
            }
            (called, request.attempt) = (Some(core), Attempt::Unknown);
        }
        let no_answer = "no answer in time: the outcome is unknown, so retry with the same key";
        undecided.ok_or_else(|| Problem::new(Code::Unavailable, no_answer))
    }

    /// Sends `request` to `core` at `began_at`, once, and tells its circuit breaker how that went.
    async fn attempt(
        &self,
        core: usize,
        request: CoreRequest<'_>,
        began_at: Timestamp,
        limit_ms: i64,
    ) -> Result<Attempted, Problem> {
        let origin = &self.config.cores[core].origin;
        match self.send_once(core, request, limit_ms).await {
            Ok(response) => {
                self.circuit_breaker(core, request.kind, CircuitBreaker::record_success);
                Ok(Attempted::Answered(response))
            }
            Err(Failure::Lost(why)) => {
                let ended_at = clock::now()?;
                let failed =
                    |circuit: &mut CircuitBreaker| circuit.record_failure(began_at, ended_at, Math::random());
                self.circuit_breaker(core, request.kind, failed);
                worker::console_warn!("{} no answer from core {origin}: {why}", request.request_id);
                Ok(Attempted::Lost)
            }
            Err(Failure::EdgeRefused(problem)) => {
                self.circuit_breaker(core, request.kind, CircuitBreaker::record_success);
                worker::console_error!(
                    "{} core {origin} answers {}: check EDGE_KEY, and both clocks",
                    request.request_id,
                    problem.as_str()
                );
                Ok(Attempted::Refused)
            }
        }
    }

    /// Applies `with` to the circuit breaker of `core` for calls of `kind`.
    fn circuit_breaker(&self, core: usize, kind: CallKind, with: impl FnOnce(&mut CircuitBreaker)) {
        with(self.cores.rotation.borrow_mut().circuit_breaker(core, kind));
    }

    async fn send_once(
        &self,
        core: usize,
        request: CoreRequest<'_>,
        limit_ms: i64,
    ) -> Result<CoreResponse, Failure> {
        let origin = &self.config.cores[core].origin;
        let request = request.raw(self.config, origin, limit_ms).map_err(|error| lost(&error))?;
        let response = self.fetch(core, &request).await.map_err(|error| lost(&error))?;
        let body = read_body(&response).await.map_err(|error| lost(&error))?;
        let header = |name: &str| response.headers().get(intern(name)).ok().flatten();
        CoreResponse::new(response.status(), body, header)
    }

    async fn fetch(&self, core: usize, request: &web_sys::Request) -> Result<web_sys::Response, JsValue> {
        JsFuture::from(self.cores.fetchers[core].fetch_with_request(request)).await?.dyn_into()
    }
}

/// What came of one attempt.
#[derive(Debug)]
enum Attempted {
    /// A response of core's.
    Answered(CoreResponse),
    /// None that is complete.
    Lost,
    /// Core refuses this edge.
    Refused,
}

/// A request to core's internal API.
#[derive(Debug, Clone, Copy)]
pub struct CoreRequest<'a> {
    /// What core needs in order to answer it.
    pub kind: CallKind,
    /// Path on core, and a query if there is one.
    pub path: &'a str,
    /// The JSON of a `POST`; `None` makes it a `GET`.
    pub body: Option<&'a str>,
    /// The authenticated user; empty for none.
    pub user: &'a str,
    /// The client's address; empty when unknown.
    pub client_ip: &'a str,
    /// The claim's idempotency key; empty for other requests.
    pub idempotency_key: &'a str,
    /// Which attempt at a claim this is, as the client states it.
    pub attempt: Attempt,
    /// The id of the browser's request.
    pub request_id: &'a str,
    /// Its place in a trace, for core; empty when there is no tracing.
    pub traceparent: &'a str,
}

impl<'a> CoreRequest<'a> {
    /// A `GET` of `path` without user, address and key; callers set what they have.
    pub fn new(kind: CallKind, path: &'a str, request_id: &'a str) -> Self {
        let (user, client_ip, idempotency_key) = ("", "", "");
        let attempt = Attempt::Unknown;
        let traceparent = "";
        Self { kind, path, body: None, user, client_ip, idempotency_key, attempt, request_id, traceparent }
    }

    /// The runtime's request to the core at `origin`, aborted after `limit_ms`.
    fn raw(&self, config: &Config, origin: &str, limit_ms: i64) -> Result<web_sys::Request, JsValue> {
        let init = RequestInit::new();
        init.set_redirect(RequestRedirect::Manual);
        init.set_headers(self.headers(config)?.as_ref());
        if let Some(body) = self.body {
            init.set_method("POST");
            init.set_body(&body.into());
        }
        // Bounds the reading of the response's body too.
        let limit = AbortSignal::timeout_with_u32(u32::try_from(limit_ms).unwrap_or_default());
        init.set_signal(Some(&limit));
        let url = format!("{origin}{}", self.path);
        web_sys::Request::new_with_str_and_init(&url, &init)
    }

    fn headers(&self, config: &Config) -> Result<Headers, JsValue> {
        let now = clock::now().map_err(|problem| problem.detail)?;
        let content_type = if self.body.is_some() { JSON } else { "" };
        let signed = SignedParts {
            method: if self.body.is_some() { "POST" } else { "GET" },
            path_and_query: self.path,
            content_type,
            body: self.body.unwrap_or_default().as_bytes(),
            user: self.user,
            client_ip: self.client_ip,
            idempotency_key: self.idempotency_key,
            attempt: self.attempt,
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
        set(SIGNATURE_HEADER, &signed.sign(&config.edge_key, now))?;
        Ok(headers)
    }
}

/// The whole body after one wait; worker's own way reads it chunk by chunk.
async fn read_body(response: &web_sys::Response) -> Result<Vec<u8>, JsValue> {
    let buffer = JsFuture::from(response.array_buffer()?).await?;
    Ok(Uint8Array::new(&buffer).to_vec())
}

/// Why an attempt brought no response that can be passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Failure {
    /// None, half of one, or one that is not core's: core may have decided, so the same key has to be sent again.
    Lost(String),
    /// Core refuses this edge: a key or a clock is wrong, which sending again does not change.
    EdgeRefused(Code),
}

fn lost(error: &JsValue) -> Failure {
    Failure::Lost(format!("{error:?}"))
}

/// A complete response of core's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreResponse {
    status: u16,
    body: Vec<u8>,
    retry_after: Option<String>,
    is_replay: bool,
    summary: Summary,
}

impl CoreResponse {
    /// Core's own response, told apart from half of one and from one that a proxy in between has made.
    fn new(status: u16, body: Vec<u8>, header: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let summary = Summary::parse(&body)
            .map_err(|error| Failure::Lost(format!("{status} with a malformed body: {error}")))?;
        let is_problem = || header("content-type").is_some_and(|kind| kind.starts_with(PROBLEM_JSON));
        match summary.problem {
            None if (200..300).contains(&status) => {}
            Some(ProblemCode::Known(code @ (Code::Unauthenticated | Code::Forbidden))) => {
                return Err(Failure::EdgeRefused(code));
            }
            Some(_) if (400..600).contains(&status) && is_problem() => {}
            _ => return Err(Failure::Lost(format!("{status} that is not core's"))),
        }
        Ok(Self {
            status,
            body,
            retry_after: header("retry-after"),
            is_replay: header(REPLAYED_HEADER).as_deref() == Some(REPLAYED),
            summary,
        })
    }

    /// Whether core could not decide, which another core may: Redis does not answer it, or it starts or stops.
    fn is_undecided(&self) -> bool {
        self.summary.is_problem(Code::Unavailable)
    }

    /// Whether core had no room to try.
    fn is_overloaded(&self) -> bool {
        self.summary.is_problem(Code::Overloaded)
    }

    /// The members that the edge itself reads.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The body as `T`.
    ///
    /// # Errors
    /// `unavailable` when the body is not a `T`; the reason is logged.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body).map_err(|error| invalid_response(&error))
    }

    /// The same response for the browser. Core was sent the browser's request id, so a problem's `instance` stays right.
    pub fn into_response(self) -> Response {
        let content_type = if self.summary.problem.is_none() { JSON } else { PROBLEM_JSON };
        let mut response = Response::empty(self.status).with_body(content_type, self.body);
        if let Some(seconds) = self.retry_after {
            response = response.with("retry-after", seconds);
        }
        if self.is_replay {
            response = response.with(REPLAYED_HEADER, REPLAYED);
        }
        response
    }
}

/// The problem for a response that core should not have given: `unavailable`. Logs `why`, which the client does not learn.
pub fn invalid_response(why: &dyn fmt::Display) -> Problem {
    worker::console_error!("core's response is not valid: {why}");
    Problem::new(Code::Unavailable, "core's response could not be read")
}

/// The members of a response that the edge itself reads; the rest passes through unread. Core may be newer than the edge: a
/// member of another type than expected counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Summary {
    /// The problem's code; `None` when the response is not a problem.
    #[serde(rename = "code")]
    pub problem: Option<ProblemCode>,
    /// The campaign's version.
    #[serde(default, deserialize_with = "if_readable")]
    pub version: Option<Version>,
    /// Units left: in the campaign, or in a denial under the limit that refused.
    #[serde(default, deserialize_with = "if_readable")]
    pub remaining: Option<u32>,
}

/// A problem's code, which may be newer than the edge.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum ProblemCode {
    /// A code that the edge knows.
    Known(Code),
    /// A code that was added to core later: the edge only passes it on.
    Unrecognized(String),
}

fn if_readable<'de, T: Deserialize<'de>, D: Deserializer<'de>>(member: D) -> Result<Option<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Member<T> {
        Readable(T),
        Other(IgnoredAny),
    }
    Member::deserialize(member).map(|member| match member {
        Member::Readable(value) => Some(value),
        Member::Other(_) => None,
    })
}

impl Summary {
    /// The summary of core's JSON object.
    fn parse(body: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Body(#[serde(deserialize_with = "object")] Summary);

        let Body(summary) = serde_json::from_slice(body)?;
        Ok(match summary.problem {
            // The meaning of its members is as new as its code.
            Some(ProblemCode::Unrecognized(_)) => Self { problem: summary.problem, ..Self::default() },
            Some(ProblemCode::Known(_)) | None => summary,
        })
    }

    /// Whether the response is a problem with `code`.
    pub fn is_problem(&self, code: Code) -> bool {
        self.problem == Some(ProblemCode::Known(code))
    }

    /// Units left in the campaign. Of the denials only `sold_out` with 0 left tells that, and it holds for every user.
    pub fn campaign_remaining(&self) -> Option<u32> {
        match self.problem {
            None => self.remaining,
            Some(ProblemCode::Known(Code::SoldOut)) => self.remaining.filter(|remaining| *remaining == 0),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(content_type: &str, status: u16, body: &str) -> Result<CoreResponse, Failure> {
        let header = |name: &str| (name == "content-type").then(|| content_type.to_owned());
        CoreResponse::new(status, body.as_bytes().to_vec(), header)
    }

    fn response(status: u16, body: &str) -> Result<CoreResponse, Failure> {
        typed(if status < 400 { JSON } else { PROBLEM_JSON }, status, body)
    }

    fn problem(code: Code) -> String {
        serde_json::to_string(&Problem::new(code, "why")).unwrap()
    }

    #[test]
    fn cores_own_responses_are_accepted() {
        assert!(response(201, r#"{"claim":{}}"#).is_ok());
        for code in
            [Code::SoldOut, Code::NotStarted, Code::ClaimNotFound, Code::CampaignNotReady, Code::Overloaded]
        {
            assert!(response(code.status(), &problem(code)).is_ok(), "{code:?}");
        }
    }

    #[test]
    fn half_a_response_and_a_proxys_are_lost() {
        for (status, body) in [
            (201, ""),
            (201, r#"{"claim":{"#),
            (302, ""),
            (502, "<html>Bad gateway</html>"),
            (503, "{}"),
            (200, "[]"),
            (409, r#"["sold_out",3,0]"#),
            (409, r#"{"code":7}"#),
            (302, r#"{"code":"moved"}"#),
            (200, r#"{"code":"sold_out"}"#),
        ] {
            assert!(matches!(response(status, body), Err(Failure::Lost(_))), "{status} {body}");
        }
        let proxys = typed(JSON, 502, r#"{"code":"bad_gateway"}"#);
        assert!(matches!(proxys, Err(Failure::Lost(_))), "{proxys:?}");
    }

    #[test]
    fn no_member_of_a_problem_with_an_unknown_code_is_read() {
        for status in [400, 409, 451, 500, 503] {
            let body = r#"{"code":"of tomorrow","version":9,"remaining":0}"#;
            let summary = response(status, body).unwrap().summary;
            let problem = Some(ProblemCode::Unrecognized("of tomorrow".to_owned()));
            assert_eq!(summary, Summary { problem, ..Summary::default() }, "{status}");
            assert_eq!(summary.campaign_remaining(), None);
        }
    }

    #[test]
    fn members_of_another_type_count_as_absent() {
        for members in
            [r#""version":"2.1","remaining":-1"#, r#""version":{"a":[]},"remaining":null"#, r#""x":1"#]
        {
            let granted = response(201, &format!(r#"{{"claim":{{}},{members}}}"#)).unwrap();
            assert_eq!(*granted.summary(), Summary::default(), "{members}");
            let refused = response(409, &format!(r#"{{"code":"sold_out",{members}}}"#)).unwrap();
            assert!(refused.summary().is_problem(Code::SoldOut), "{members}");
            assert_eq!(refused.summary().campaign_remaining(), None, "{members}");
        }
    }

    #[test]
    fn a_refused_edge_is_not_the_users_fault() {
        for code in [Code::Unauthenticated, Code::Forbidden] {
            assert_eq!(response(code.status(), &problem(code)), Err(Failure::EdgeRefused(code)));
        }
    }

    #[test]
    fn what_goes_with_a_response_is_passed_on() {
        let header = |name: &str| match name {
            "retry-after" => Some("3".to_owned()),
            "idempotent-replayed" => Some("true".to_owned()),
            _ => None,
        };
        let passed_on = CoreResponse::new(200, b"{}".to_vec(), header).unwrap().into_response();
        let expected = Response::empty(200)
            .with_body(JSON, b"{}".to_vec())
            .with("retry-after", "3")
            .with("idempotent-replayed", "true");
        assert_eq!(passed_on, expected);
    }
}
