//! A minimal Worker, written and built like claimgate's: responds "hello" at `/` and forwards everything else
//! to core unchanged.

use worker::{Context, Env, Request, Response, event};

/// Responds to every request.
///
/// # Errors
/// If core is unreachable.
#[event(fetch)]
pub async fn fetch(request: Request, env: Env, _context: Context) -> worker::Result<Response> {
    if request.path() == "/" {
        return Response::ok("hello");
    }
    env.service("CORE")?.fetch_request(request).await
}
