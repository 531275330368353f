//! claimgate's edge: a Cloudflare Worker between browsers and core.
//!
//! It rejects requests that core would certainly reject, signs and forwards the rest, and never grants a
//! claim. `router`, `admission`, `circuit_breaker`, `rotation` and the campaign cache's `store` and
//! `snapshot` make the decisions and have native tests; `handlers`, `core_client` and `rate_limit` call the
//! runtime.

pub mod admission;
pub mod auth;
pub mod background;
pub mod campaign_cache;
pub mod challenge;
pub mod clock;
pub mod config;
pub mod core_client;
pub mod cors;
pub mod handlers;
pub mod log;
pub mod outbound;
pub mod page;
pub mod rate_limit;
pub mod readiness;
pub mod refusals;
pub mod request;
pub mod request_id;
pub mod response;
pub mod router;
pub mod sign_in;
pub mod sync_response;
pub mod trace;
pub mod user_ids;
pub mod variables;
mod web_crypto;

use std::cell::OnceCell;
use std::rc::Rc;

use claimgate_shared::{Code, Problem};
use futures_util::FutureExt as _;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{Headers, RequestInit, ResponseInit};
use worker::js_sys::Reflect;
use worker::{Context, Env, Fetcher, worker_sys};

use crate::challenge::Challenges;
use crate::config::Config;
use crate::cors::Cors;
use crate::handlers::{Handler, Ids};
use crate::page::PageAnswer;
use crate::request::Request;
use crate::response::Response;
use crate::router::Route;
use crate::trace::RequestTrace;
use crate::variables::ConfigErrors;

/// The list of campaigns, a file of the page. Exists only if the build lists any. The binding ignores the host.
const LIST_URL: &str = "https://edge/campaigns/";

thread_local! {
    // An isolate's environment never changes.
    static CONFIG: OnceCell<Result<Rc<Config>, ConfigErrors>> = const { OnceCell::new() };
}

/// Handles requests, as the Worker's entry point: requests without a matching asset, and the paths of
/// `run_worker_first` in wrangler.toml. Replaces the worker crate's `event(fetch)`, which creates a promise
/// for every response.
///
/// # Errors
/// The runtime's error, if not even a problem can be returned.
#[wasm_bindgen]
pub fn fetch(raw: web_sys::Request, env: Env, context: worker_sys::Context) -> Result<JsValue, JsValue> {
    // The future owns the context and is also registered with it.
    let registered_with: worker_sys::Context = JsValue::clone(context.as_ref()).unchecked_into();
    sync_response::respond(&registered_with, async move {
        let request = Request::new(raw);
        let file = match assets(&request, &env) {
            Some(assets) if page::is_page(&request.path) => page(&assets, &request, &env).await.map(Some),
            Some(assets) => asset(&assets, &request).await,
            None => Ok(None),
        };
        let response = match file {
            Ok(Some(file)) => Ok(file),
            Ok(None) => answer(&request, &env, &Context::new(context)).await.into_raw(),
            Err(error) => Err(error),
        };
        Ok(response.or_else(|error| internal_error(&error))?.into())
    })
}

/// Returns the response for a runtime error.
fn internal_error(error: &JsValue) -> Result<web_sys::Response, JsValue> {
    let request_id = request_id::next();
    worker::console_error!("{request_id} the response could not be created: {error:?}");
    let problem = Problem::new(Code::Unavailable, "the response could not be created");
    Response::problem(problem, &request_id).finish(&request_id).into_raw()
}

async fn answer(request: &Request, env: &Env, context: &Context) -> Response {
    let request_id = request_id::next();
    let config = config(env).await;
    let trace = config.as_ref().ok().and_then(|config| RequestTrace::begin(request, config));
    let traceparent = trace.as_ref().map(RequestTrace::traceparent).unwrap_or_default();
    let allowed = config.as_ref().map_or(&[][..], |config| &config.cors_origins);
    let origin = (!allowed.is_empty()).then(|| request.header("origin")).flatten();
    let cors = Cors { allowed, origin: origin.as_deref() };
    let ids = Ids { request_id: &request_id, traceparent: &traceparent };
    let response = match route(request, env, context, &config, &cors, ids).await {
        Ok(response) => response,
        Err(problem) => Response::problem(problem, &request_id),
    };
    if let Ok(config) = &config {
        refusals::report_in_background(env, context, config);
    }
    if let Some(trace) = trace {
        trace.end(request, &request_id, response.status(), env, context);
    }
    cors.apply(response.finish(&request_id))
}

/// Returns the binding of the page's files, if the request is a read of a path that is not a route.
fn assets(request: &Request, env: &Env) -> Option<Fetcher> {
    let is_route = Route::of(&request.path).is_some();
    let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
    (is_read && !is_route).then(|| env.service("ASSETS").ok()).flatten()
}

/// Returns the file at the request's path; `None` if there is none.
async fn asset(assets: &Fetcher, request: &Request) -> Result<Option<web_sys::Response>, JsValue> {
    let file: web_sys::Response = assets.fetch_request(request.raw().clone()?).await?.into();
    Ok((file.status() != 404).then_some(file))
}

/// Returns the claim page, a redirect to it, the list of campaigns, or the page with an error status: it then
/// shows the error itself.
async fn page(assets: &Fetcher, request: &Request, env: &Env) -> Result<web_sys::Response, JsValue> {
    let Ok(config) = config(env).await else { return page_with_status(503, assets, request).await };
    match page::answer(&request.query(), config.default_campaign.as_ref()) {
        PageAnswer::Page => {
            let file: web_sys::Response = assets.fetch_request(request.raw().clone()?).await?.into();
            match config.challenges.as_ref().and_then(Challenges::page_origin) {
                Some(origin) => with_policy_for(origin, &file),
                None => Ok(file),
            }
        }
        PageAnswer::Redirect(location) => {
            Response::empty(302).with("location", location).finish(&request_id::next()).into_raw()
        }
        PageAnswer::NoCampaign => {
            let list = file_at(LIST_URL, assets, request).await?;
            if list.status() == 200 { Ok(list) } else { page_with_status(404, assets, request).await }
        }
    }
}

/// Returns the page with a policy that allows the challenge's scripts and frames from `origin`.
fn with_policy_for(origin: &str, file: &web_sys::Response) -> Result<web_sys::Response, JsValue> {
    const POLICY: &str = "content-security-policy";
    let headers = Headers::new_with_headers(&file.headers())?;
    let policy = headers.get(POLICY)?.unwrap_or_default();
    headers.set(POLICY, &page::policy_for_challenge(&policy, origin))?;
    let init = ResponseInit::new();
    init.set_status(file.status());
    init.set_headers(headers.as_ref());
    web_sys::Response::new_with_opt_readable_stream_and_init(file.body().as_ref(), &init)
}

/// Returns the file at `url` as for the request's method, without its conditional headers: a 304 would have no
/// body.
async fn file_at(url: &str, assets: &Fetcher, request: &Request) -> Result<web_sys::Response, JsValue> {
    let unconditional = RequestInit::new();
    unconditional.set_method(&request.method);
    let file = web_sys::Request::new_with_str_and_init(url, &unconditional)?;
    Ok(assets.fetch_request(file).await?.into())
}

/// Returns the page with an error status, not cacheable.
async fn page_with_status(
    status: u16,
    assets: &Fetcher,
    request: &Request,
) -> Result<web_sys::Response, JsValue> {
    let file = file_at(&request.raw().url(), assets, request).await?;
    let headers = Headers::new_with_headers(&file.headers())?;
    headers.delete("etag")?;
    headers.set("cache-control", "no-store")?;
    let init = ResponseInit::new();
    init.set_status(status);
    init.set_headers(headers.as_ref());
    web_sys::Response::new_with_opt_readable_stream_and_init(file.body().as_ref(), &init)
}

async fn route(
    request: &Request,
    env: &Env,
    context: &Context,
    config: &Result<Rc<Config>, Problem>,
    cors: &Cors<'_>,
    ids: Ids<'_>,
) -> Result<Response, Problem> {
    let demo = config.as_ref().is_ok_and(|config| config.demo);
    let Some(route) = Route::of(&request.path).filter(|route| demo || *route != Route::DemoToken) else {
        return Err(Problem::new(Code::NotFound, "no such path"));
    };
    if request.method == "OPTIONS"
        && let Some(response) = cors.preflight(route.methods())
    {
        return Ok(response);
    }
    if !route.allows(&request.method) {
        let problem = Problem::new(Code::MethodNotAllowed, format!("allowed methods: {}", route.methods()));
        return Ok(Response::problem(problem, ids.request_id).with("allow", route.methods()));
    }
    let handler = || {
        let config = config.clone()?;
        Ok(Handler { request, env, context, config, ids, address: OnceCell::new() })
    };
    match route {
        Route::Live => Ok(handlers::live()),
        Route::Ready => {
            readiness::ready(&settings(env).await.map_err(|why| names_of(&why))?, env, context).await
        }
        Route::Campaign(id) => handler()?.campaign(id).await,
        Route::Claims(campaign) if request.method == "POST" => {
            let claimed = handler()?.claim(campaign).await;
            claimed.inspect_err(|problem| refusals::count(campaign, problem.code))
        }
        Route::Claims(campaign) => handler()?.own_claims(campaign).await,
        // Boxed, so that they do not enlarge the future of each claim.
        Route::Challenge(campaign) => handler()?.challenge(campaign).boxed_local().await,
        Route::Pass(campaign) => handler()?.pass(campaign).boxed_local().await,
        Route::Claim(id) => handler()?.own_claim(id).await,
        Route::DemoToken => handler()?.demo_token().await,
        Route::SignIn => handler()?.sign_in(),
    }
}

/// Returns the Worker's settings. Errors in them are logged; clients get only `not_configured`.
async fn config(env: &Env) -> Result<Rc<Config>, Problem> {
    settings(env).await.map_err(|error| {
        if let Ok(now) = clock::now() {
            log::not_configured(&error, now);
        }
        Problem::new(Code::NotConfigured, "the edge is not configured; the request was not processed")
    })
}

/// Returns the Worker's settings, read once.
async fn settings(env: &Env) -> Result<Rc<Config>, ConfigErrors> {
    if let Some(known) = CONFIG.with(|config| config.get().cloned()) {
        return known;
    }
    // Not `env.var()`, which traps on null: workerd's value for a variable that is declared but unset.
    let variable = |name: &str| Reflect::get(env, &name.into()).ok()?.as_string();
    let read = Config::read(variable, |name| env.service(name).is_ok()).await.map(Rc::new);
    // Requests that arrived in the meantime have read the same settings.
    CONFIG.with(|config| config.get_or_init(|| read).clone())
}

/// Returns the problem of `/readyz` that names the missing or invalid variables.
fn names_of(errors: &ConfigErrors) -> Problem {
    Problem::new(Code::NotConfigured, format!("not ready: {}", errors.variables().join(", ")))
}
