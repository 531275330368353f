//! Middleware of every request and response: request ids, problems, load shedding, time limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::problem::PROBLEM_JSON;
use claimgate_shared::{Code, Problem, UserId, http};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::authentication::Head;
use super::authorization::{Authentication, head};
use super::error::ApiError;
use super::listener::Listener;
use super::state::AppState;
use crate::traces::{self, Trace};

/// Time limit of a call that uses Redis and SQL. Claims have a shorter limit; calls that scan a whole
/// campaign have no limit here.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The header with the request's id, in requests and responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static(http::REQUEST_ID_HEADER);

/// Adds the request's id and [`Authentication`], and completes its response.
pub async fn finish(
    State((state, listener)): State<(AppState, Listener)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let path = parts.extensions.get::<MatchedPath>().map_or("other", MatchedPath::as_str);
    let head: Authentication = state.authenticator().head(listener, &parts);
    let exchange = Exchange::begin(&parts, path, &head);
    // For handlers that include the id in their response.
    parts.headers.insert(REQUEST_ID, exchange.id.clone());
    parts.extensions.insert(head);
    let mut response = exchange.run(next.run(Request::from_parts(parts, body))).await;
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        let allow = response.headers().clone();
        response = ApiError::from(Problem::new(
            Code::MethodNotAllowed,
            "this path does not support the method; the Allow header lists those that it does",
        ))
        .into_response();
        *response.headers_mut() = allow;
    }
    exchange.end(response)
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Exchange {
    id: HeaderValue,
    /// The request's start, method and path; `None` if it is not logged.
    log_entry: Option<(Instant, Method, String)>,
    /// The request's span; `None` if it is not traced.
    trace: Option<Trace>,
}

impl Exchange {
    /// Starts an exchange with an id; `path` is that of the route. The `traceparent` of an unauthenticated
    /// caller is ignored: otherwise anyone could have each rejected call recorded.
    pub fn begin(parts: &request::Parts, path: &str, head: &Authentication) -> Self {
        let log_entry = tracing::enabled!(tracing::Level::DEBUG)
            .then(|| (Instant::now(), parts.method.clone(), parts.uri.path().to_owned()));
        let caller = matches!(head, Ok(Head::Authenticated(_))).then_some(&parts.headers);
        let trace = Trace::of_request(|| format!("{} {path}", parts.method), caller);
        Self { id: request_id(&parts.headers), log_entry, trace }
    }

    /// Runs the handler within the request's trace.
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = F::Output> {
        traces::within(self.trace.as_ref(), work)
    }

    /// Writes the problem body, logs the request, ends its trace, and sets the common headers.
    pub fn end<B: From<Vec<u8>>>(self, mut response: Response<B>) -> Response<B> {
        let Self { id, log_entry, trace } = self;
        let error = response.extensions_mut().remove::<ApiError>();
        let cause = error.as_ref().map(ApiError::code_and_reason);
        if let Some(error) = error {
            write_problem(&mut response, &error.into_problem(id.to_str().unwrap_or_default()));
        }
        if let Some((started, method, path)) = log_entry {
            let (status, ms) = (response.status().as_u16(), started.elapsed().as_secs_f64() * 1000.0);
            let request = id.to_str().unwrap_or_default();
            let (code, reason) = (cause.map(|(code, _)| code.as_str()), cause.and_then(|(_, reason)| reason));
            tracing::debug!(request, %method, path, status, code, reason, ms, "answered");
        }
        if let Some(trace) = trace {
            trace.answered(id.to_str().unwrap_or_default(), response.status());
        }
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, id);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }
}

fn write_problem<B: From<Vec<u8>>>(response: &mut Response<B>, problem: &Problem) {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    *response.status_mut() =
        StatusCode::from_u16(problem.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.body_mut() = B::from(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    if let Some(seconds) = problem.retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if problem.code == Code::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
}

/// Returns the edge's id for this request if it is well-formed, otherwise a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID);
    let good = given.filter(|value| value.to_str().is_ok_and(|text| text.parse::<UserId>().is_ok()));
    good.cloned().unwrap_or_else(generate_id)
}

/// Returns a new id: a random prefix of this process and a counter. Ids must be unique, not secret.
fn generate_id() -> HeaderValue {
    static PROCESS: LazyLock<[u8; 8]> = LazyLock::new(|| {
        let mut bytes = [0; 8];
        // Without random bytes ids of several processes may collide, which is tolerable.
        let _ = getrandom::fill(&mut bytes);
        bytes
    });
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&*PROCESS);
    bytes[8..].copy_from_slice(&REQUESTS.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    HeaderValue::try_from(URL_SAFE_NO_PAD.encode(bytes)).unwrap_or(HeaderValue::from_static("none"))
}

/// Forwards requests of authenticated callers if [`admit`] accepts them.
pub async fn limit_concurrency(
    State((state, permits)): State<(AppState, Arc<Semaphore>)>,
    request: Request,
    next: Next,
) -> Response {
    let admitted = head(request.extensions()).map_err(ApiError::from);
    match admitted.and_then(|head| admit(&state, &permits, head)) {
        Ok(_permit) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Admits a request if core is serving and a permit is free; a rejected request has had no effect. Requests
/// that can only be authenticated with their body have separate permits, so that unauthenticated callers
/// cannot use up the ordinary permits.
pub fn admit<'a>(
    state: &'a AppState,
    permits: &'a Semaphore,
    head: &Head,
) -> Result<SemaphorePermit<'a>, ApiError> {
    if !state.is_serving() {
        let starts = Problem::new(Code::Unavailable, "core is starting; the request was not processed");
        return Err(ApiError::because("starting", starts));
    }
    let permits = match head {
        Head::Authenticated(_) => permits,
        Head::NeedsBody => state.unproven_permits(),
    };
    permits.try_acquire().map_err(|_| {
        ApiError::because("requests", Problem::new(Code::Overloaded, "too many concurrent requests"))
    })
}

/// Applies [`ANSWER_TIMEOUT`] from the request's head on, for calls without a body.
pub async fn limit_answer_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await;
    answer.unwrap_or_else(|_| answer_timed_out().into_response())
}

/// Applies [`ANSWER_TIMEOUT`] to `answer` only, for handlers that first wait for a body or for an event.
pub async fn in_time<T>(answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(answer_timed_out()))
}

fn answer_timed_out() -> ApiError {
    let problem =
        Problem::new(Code::Unavailable, "timed out; whether the request took effect is unknown: try again");
    ApiError::because("timeout", problem)
}
