//! The least that a Worker can do, in the language and the build of claimgate's: at `/` it says hello, and anything else
//! it passes on to core as it is.

use worker::{Context, Env, Request, Response, event};

/// Answers every request.
///
/// # Errors
/// When core cannot be reached.
#[event(fetch)]
pub async fn fetch(request: Request, env: Env, _context: Context) -> worker::Result<Response> {
    if request.path() == "/" {
        return Response::ok("hello");
    }
    env.service("CORE")?.fetch_request(request).await
}
