//! claimgate's edge: a Cloudflare Worker between browsers and core.
//!
//! It refuses what core would refuse for certain, signs and forwards the rest, and never says "won" by itself.
//! `routes`, `gate`, `breaker` and the memory in `campaigns` decide, and are tested natively; `calls`, `origin` and `rates`
//! talk to the runtime.


pub mod handlers;
pub mod campaign_cache;
pub mod clock;
pub mod config;
pub mod sync_response;
pub mod admission;
pub mod auth;
pub mod request;
pub mod core_client;
pub mod rate_limit;
pub mod response;
pub mod request_id;
pub mod router;


use std::cell::OnceCell;
use std::rc::Rc;

use claimgate_shared::{Code, Problem};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{Request, Response};
use worker::js_sys::Reflect;
use worker::{Context, Env, Fetcher, worker_sys};

use crate::handlers::Call;
use crate::config::{Config, ConfigError};
use crate::request::Incoming;
use crate::core_client::Origin;
use crate::response::{Cors, Reply};
use crate::router::Route;

thread_local! {
    // An isolate's environment never changes.
    static CONFIG: OnceCell<Result<Rc<Config>, ConfigError>> = const { OnceCell::new() };
}

/// Answers a request that the assets have not answered. Not worker's `event(fetch)`, which makes a promise of every answer.
#[wasm_bindgen]
pub fn fetch(raw: Request, env: Env, context: worker_sys::Context) -> Result<JsValue, JsValue> {
    // The answer takes the context along, and is itself kept by it.
    let kept_by: worker_sys::Context = JsValue::clone(context.as_ref()).unchecked_into();
    sync_response::eagerly(&kept_by, async move {
        let request = Incoming::new(raw);
        let response = match files(&request, &env) {
            Some(files) => file(&files, &request).await,
            None => answer(&request, &env, &Context::new(context)).await.into_response(),
        };
        Ok(response.or_else(|error| broken(&error))?.into())
    })
}

/// The answer when the runtime made none.
fn broken(error: &JsValue) -> Result<Response, JsValue> {
    let request_id = request_id::next();
    worker::console_error!("{request_id} no answer could be made: {error:?}");
    let problem = Problem::new(Code::Unavailable, "the answer could not be made");
    Reply::problem(problem, &request_id).finish(&request_id, &Cors::default()).into_response()
}

async fn answer(request: &Incoming, env: &Env, context: &Context) -> Reply {
    let request_id = request_id::next();
    let config = config(env);
    let allowed = config.as_ref().map_or(&[][..], |config| &config.cors_origins);
    let origin = (!allowed.is_empty()).then(|| request.header("origin")).flatten();
    let cors = Cors { allowed, origin: origin.as_deref() };
    let reply = match route(request, env, context, &config, &cors, &request_id).await {
        Ok(reply) => reply,
        Err(problem) => Reply::problem(problem, &request_id),
    };
    reply.finish(&request_id, &cors)
}

/// Who has the page's files, for a request that is no call. Cloudflare answers those before it calls the Worker.
fn files(request: &Incoming, env: &Env) -> Option<Fetcher> {
    let is_call = Route::of(&request.path).is_some();
    let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
    (is_read && !is_call).then(|| env.service("ASSETS").ok()).flatten()
}

async fn file(files: &Fetcher, request: &Incoming) -> Result<Response, JsValue> {
    Ok(files.fetch_request(request.raw().clone()?).await?.into())
}

async fn route(
    request: &Incoming,
    env: &Env,
    context: &Context,
    config: &Result<Rc<Config>, Problem>,
    cors: &Cors<'_>,
    request_id: &str,
) -> Result<Reply, Problem> {
    let demo = config.as_ref().is_ok_and(|config| config.demo);
    let Some(route) = Route::of(&request.path).filter(|route| demo || *route != Route::DemoToken) else {
        return Err(Problem::new(Code::NotFound, "there is nothing here"));
    };
    if request.method == "OPTIONS"
        && let Some(reply) = cors.preflight(route.methods())
    {
        return Ok(reply);
    }
    if !route.allows(&request.method) {
        let problem = Problem::new(Code::MethodNotAllowed, format!("allowed: {}", route.methods()));
        return Ok(Reply::problem(problem, request_id).with("allow", route.methods()));
    }
    let call = || {
        let config = config.clone()?;
        Ok(Call::new(request, env, context, config, request_id))
    };
    match route {
        Route::Live => Ok(handlers::live()),
        Route::Campaign(id) => call()?.campaign(id).await,
        Route::Claims(campaign) => call()?.claim(campaign).await,
        Route::Claim(id) => call()?.own_claim(id).await,
        Route::DemoToken => call()?.demo_token().await,
    }
}

/// The Worker's settings. What is wrong with them is for the log: clients learn that it does not work.
fn config(env: &Env) -> Result<Rc<Config>, Problem> {
    // Not `env.var()`: a variable that workerd knows without a value is null, on which that traps.
    let variable = |name: &str| Reflect::get(env, &name.into()).ok()?.as_string();
    let read = || Config::read(variable, env.service(Origin::BINDING).is_ok()).map(Rc::new);
    CONFIG.with(|config| config.get_or_init(read).clone()).map_err(|error| {
        worker::console_error!("configuration: {error}");
        Problem::new(Code::Unavailable, "the edge is not set up")
    })
}
