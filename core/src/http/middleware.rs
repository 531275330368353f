//! What every request and every answer goes through: request ids, problems, load shedding, time limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::problem::PROBLEM_JSON;
use claimgate_shared::{Code, Problem, UserId, http};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::ApiError;
use super::state::AppState;
use crate::traces::{self, Trace};

/// The longest that a call takes which waits for Redis and SQL, however often it asks them: but for those that go through
/// a whole campaign, and claims, which have less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Carries the request's id, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static(http::REQUEST_ID_HEADER);

/// Gives the request its id, and writes out its answer.
pub async fn finish(mut request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str);
    let exchange = Exchange::begin(&request, path);
    // For handlers that name it themselves.
    request.headers_mut().insert(REQUEST_ID, exchange.id.clone());
    let mut response = exchange.run(next.run(request)).await;
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        let allow = response.headers().clone();
        response = ApiError::from(Problem::new(Code::MethodNotAllowed, "see Allow")).into_response();
        *response.headers_mut() = allow;
    }
    exchange.end(response)
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Exchange {
    id: HeaderValue,
    /// When it began, method and path, if they are logged.
    line: Option<(Instant, Method, String)>,
    /// Its span, if it is traced.
    trace: Option<Trace>,
}

impl Exchange {
    /// Gives the request its id; `path` is its route's.
    pub fn begin<B>(request: &Request<B>, path: &str) -> Self {
        let line = tracing::enabled!(tracing::Level::DEBUG)
            .then(|| (Instant::now(), request.method().clone(), request.uri().path().to_owned()));
        let trace = Trace::of_request(|| format!("{} {path}", request.method()), request.headers());
        Self { id: request_id(request.headers()), line, trace }
    }

    /// Runs what answers it, as a part of its trace.
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = F::Output> {
        traces::within(self.trace.as_ref(), work)
    }

    /// Writes out the request's answer: a problem's body, the headers that every answer carries.
    pub fn end<B: From<Vec<u8>>>(self, mut response: Response<B>) -> Response<B> {
        let Self { id, line, trace } = self;
        let error = response.extensions_mut().remove::<ApiError>();
        let told = error.as_ref().map(ApiError::code_and_reason);
        if let Some(error) = error {
            write_problem(&mut response, &error.told(id.to_str().unwrap_or_default()));
        }
        if let Some((started, method, path)) = line {
            let (status, ms) = (response.status().as_u16(), started.elapsed().as_secs_f64() * 1000.0);
            let request = id.to_str().unwrap_or_default();
            let (code, reason) = (told.map(|(code, _)| code.as_str()), told.and_then(|(_, reason)| reason));
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

/// The edge's id for this request, or one of our own.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID);
    let good = given.filter(|value| value.to_str().is_ok_and(|text| text.parse::<UserId>().is_ok()));
    good.cloned().unwrap_or_else(own_id)
}

/// Drawn once for this process, and counted on from: an id has to be told from others, not to be secret.
fn own_id() -> HeaderValue {
    static PROCESS: LazyLock<[u8; 8]> = LazyLock::new(|| {
        let mut bytes = [0; 8];
        // Without randomness the id is only less useful.
        let _ = getrandom::fill(&mut bytes);
        bytes
    });
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&*PROCESS);
    bytes[8..].copy_from_slice(&REQUESTS.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    HeaderValue::try_from(URL_SAFE_NO_PAD.encode(bytes)).unwrap_or(HeaderValue::from_static("none"))
}

/// Answers the requests that [`admit`] lets in.
pub async fn limited(
    State((state, permits)): State<(AppState, Arc<Semaphore>)>,
    request: Request,
    next: Next,
) -> Response {
    match admit(&state, &permits) {
        Ok(_permit) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Lets in as many requests at once as core takes, none before it may serve; of the others, nothing is tried.
pub fn admit<'a>(state: &AppState, permits: &'a Semaphore) -> Result<SemaphorePermit<'a>, ApiError> {
    if !state.is_serving() {
        let starts = Problem::new(Code::Unavailable, "core is starting; nothing was tried");
        return Err(ApiError::because("starting", starts));
    }
    permits.try_acquire().map_err(|_| {
        ApiError::because("requests", Problem::new(Code::Overloaded, "too many requests at once"))
    })
}

/// Answers in time: [`ANSWER_TIMEOUT`] from the request's head on. For calls without a body.
pub async fn answered_in_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await;
    answer.unwrap_or_else(|_| late().into_response())
}

/// The answer in time, once what comes before it is there: a body, or something to answer.
pub async fn in_time<T>(answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(late()))
}

fn late() -> ApiError {
    let late =
        Problem::new(Code::Unavailable, "no answer in time: whether it was done is unknown, ask again");
    ApiError::because("timeout", late)
}

/// A path that no route has.
pub async fn not_found() -> ApiError {
    Problem::new(Code::NotFound, "no such path").into()
}
