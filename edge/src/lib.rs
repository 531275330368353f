//! claimgate's edge: a Cloudflare Worker between browsers and core.
//!
//! It refuses what core would refuse for certain, signs and forwards the rest, and never says "won" by itself.
//! `routes`, `gate`, `campaigns` and `reply` decide, and are tested natively; `calls`, `origin` and `rates` talk to
//! the runtime.

pub mod calls;
pub mod campaigns;
pub mod clock;
pub mod config;
pub mod gate;
pub mod origin;
pub mod rates;
pub mod reply;
pub mod routes;

use std::cell::OnceCell;
use std::rc::Rc;

use claimgate_shared::{Code, Problem};
use worker::{Context, Env, Request, Response, event};

use crate::calls::Call;
use crate::config::{Config, ConfigError};
use crate::reply::{Cors, Reply};
use crate::routes::Route;

thread_local! {
    // An isolate's environment never changes.
    static CONFIG: OnceCell<Result<Rc<Config>, ConfigError>> = const { OnceCell::new() };
}

/// Answers a request that the assets have not answered.
#[event(fetch)]
pub async fn fetch(request: Request, env: Env, context: Context) -> worker::Result<Response> {
    let request_id = calls::random_text().unwrap_or_default();
    let config = config(&env);
    let origin = calls::header(&request, "origin");
    let cors = Cors {
        allowed: config.as_ref().map_or(&[], |config| &config.cors_origins),
        origin: origin.as_deref(),
    };
    let reply = match route(&request, &env, &context, &config, &cors, &request_id).await {
        Ok(reply) => reply,
        Err(problem) => Reply::problem(&problem, &request_id),
    };
    reply.finish(&request_id, &cors).into_response()
}

async fn route(
    request: &Request,
    env: &Env,
    context: &Context,
    config: &Result<Rc<Config>, Problem>,
    cors: &Cors<'_>,
    request_id: &str,
) -> Result<Reply, Problem> {
    let path = request.path();
    let demo = config.as_ref().is_ok_and(|config| config.demo);
    let Some(route) = Route::of(&path).filter(|route| demo || *route != Route::DemoToken) else {
        return Err(Problem::new(Code::NotFound, "there is nothing here"));
    };
    // Not `request.method()`: that takes every method it does not know for GET.
    let method = request.inner().method();
    if method == "OPTIONS"
        && let Some(reply) = cors.preflight(route.methods())
    {
        return Ok(reply);
    }
    if !route.allows(&method) {
        let problem = Problem::new(Code::MethodNotAllowed, format!("allowed: {}", route.methods()));
        return Ok(Reply::problem(&problem, request_id).with("allow", route.methods()));
    }
    let call = || {
        let config = config.clone()?;
        Ok(Call::new(request, env, context, config, request_id))
    };
    match route {
        Route::Live => Ok(calls::live()),
        Route::Campaign(id) => call()?.campaign(id).await,
        Route::Claims(campaign) => call()?.claim(campaign).await,
        Route::Claim(id) => call()?.own_claim(id).await,
        Route::DemoToken => call()?.demo_token().await,
    }
}

/// The Worker's settings. What is wrong with them is for the log: clients learn that it does not work.
fn config(env: &Env) -> Result<Rc<Config>, Problem> {
    let read = || Config::read(|name| env.var(name).ok().map(|value| value.to_string())).map(Rc::new);
    CONFIG.with(|config| config.get_or_init(read).clone()).map_err(|error| {
        worker::console_error!("configuration: {error}");
        Problem::new(Code::Unavailable, "the edge is not set up")
    })
}
