//! claimgate's edge: a Cloudflare Worker between browsers and core.
//!
//! It refuses what core would certainly refuse, signs and forwards the rest, and never grants by itself. `router`,
//! `admission`, `circuit_breaker`, `rotation` and the campaign cache's `store` and `snapshot` decide, and are tested natively;
//! `handlers`, `core_client` and `rate_limit` talk to the runtime.

pub mod admission;
pub mod auth;
pub mod campaign_cache;
pub mod clock;
pub mod config;
pub mod core_client;
pub mod cors;
pub mod handlers;
pub mod rate_limit;
pub mod request;
pub mod request_id;
pub mod response;
pub mod router;
pub mod sync_response;
pub mod trace;

use std::cell::OnceCell;
use std::rc::Rc;

use claimgate_shared::{Code, Problem};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast as _, JsValue};
use worker::js_sys::Reflect;
use worker::{Context, Env, Fetcher, worker_sys};

use crate::config::{Config, ConfigError};
use crate::cors::Cors;
use crate::handlers::{Handler, Ids};
use crate::request::Request;
use crate::response::Response;
use crate::router::Route;
use crate::trace::RequestTrace;

thread_local! {
    // An isolate's environment never changes.
    static CONFIG: OnceCell<Result<Rc<Config>, ConfigError>> = const { OnceCell::new() };
}

/// The Worker's entry: answers a request for which Cloudflare has found no asset. Not worker's `event(fetch)`, which makes a
/// promise of every response.
///
/// # Errors
/// The runtime's error when not even a problem can be returned.
#[wasm_bindgen]
pub fn fetch(raw: web_sys::Request, env: Env, context: worker_sys::Context) -> Result<JsValue, JsValue> {
    // The future owns the context, and is itself registered with it.
    let registered_with: worker_sys::Context = JsValue::clone(context.as_ref()).unchecked_into();
    sync_response::respond(&registered_with, async move {
        let request = Request::new(raw);
        let response = match assets(&request, &env) {
            Some(assets) => asset(&assets, &request).await,
            None => answer(&request, &env, &Context::new(context)).await.into_raw(),
        };
        Ok(response.or_else(|error| internal_error(&error))?.into())
    })
}

/// The response when the runtime could make none.
fn internal_error(error: &JsValue) -> Result<web_sys::Response, JsValue> {
    let request_id = request_id::next();
    worker::console_error!("{request_id} no response could be made: {error:?}");
    let problem = Problem::new(Code::Unavailable, "the response could not be made");
    Response::problem(problem, &request_id).finish(&request_id).into_raw()
}

async fn answer(request: &Request, env: &Env, context: &Context) -> Response {
    let request_id = request_id::next();
    let config = config(env);
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
    if let Some(trace) = trace {
        trace.end(request, &request_id, response.status(), env, context);
    }
    cors.apply(response.finish(&request_id))
}

/// The binding that has the page's files, for a read of a path that is not a route. Cloudflare answers those before it calls
/// the Worker.
fn assets(request: &Request, env: &Env) -> Option<Fetcher> {
    let is_route = Route::of(&request.path).is_some();
    let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
    (is_read && !is_route).then(|| env.service("ASSETS").ok()).flatten()
}

async fn asset(assets: &Fetcher, request: &Request) -> Result<web_sys::Response, JsValue> {
    Ok(assets.fetch_request(request.raw().clone()?).await?.into())
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
        let problem = Problem::new(Code::MethodNotAllowed, format!("allowed: {}", route.methods()));
        return Ok(Response::problem(problem, ids.request_id).with("allow", route.methods()));
    }
    let handler = || {
        let config = config.clone()?;
        Ok(Handler { request, env, context, config, ids })
    };
    match route {
        Route::Live => Ok(handlers::live()),
        Route::Campaign(id) => handler()?.campaign(id).await,
        Route::Claims(campaign) if request.method == "POST" => handler()?.claim(campaign).await,
        Route::Claims(campaign) => handler()?.own_claims(campaign).await,
        Route::Claim(id) => handler()?.own_claim(id).await,
        Route::DemoToken => handler()?.demo_token().await,
    }
}

/// The Worker's settings. What is wrong with them is logged; clients learn only that the edge does not work.
fn config(env: &Env) -> Result<Rc<Config>, Problem> {
    // Not `env.var()`, which traps on null: that is a variable whose name workerd knows and whose value is unset.
    let variable = |name: &str| Reflect::get(env, &name.into()).ok()?.as_string();
    let read = || Config::read(variable, |name| env.service(name).is_ok()).map(Rc::new);
    CONFIG.with(|config| config.get_or_init(read).clone()).map_err(|error| {
        worker::console_error!("configuration: {error}");
        Problem::new(Code::Unavailable, "the edge is not configured")
    })
}
