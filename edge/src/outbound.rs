//! Requests to servers other than the cores: bounded in time and size, without redirects.

use wasm_bindgen::{JsCast, JsValue};
use web_sys::{
    AbortSignal, ReadableStreamDefaultReader, Request, RequestInit, RequestRedirect, Response,
    WorkerGlobalScope,
};
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{self, Reflect, Uint8Array};
use worker::{Env, Fetcher};

use crate::auth::key_url::KeyUrl;

/// Time limit of one request, in milliseconds. Includes reading the response's body.
const REQUEST_MS_MAX: u32 = 2_000;
/// workerd's services for addresses of the internet and of this machine. On Cloudflare they do not exist.
const NETWORK_BINDING: &str = "NETWORK";
const LOOPBACK_BINDING: &str = "LOOPBACK";

/// Returns workerd's service for the address of `url`, or the global scope: both have the same `fetch`.
pub fn fetcher(env: &Env, url: &KeyUrl) -> WorkerGlobalScope {
    let binding = if url.is_loopback() { LOOPBACK_BINDING } else { NETWORK_BINDING };
    env.service(binding).map_or_else(|_| js_sys::global().unchecked_into(), Fetcher::into_rpc)
}

/// Returns the settings of a bounded request, for the caller to complete.
pub fn bounded_init() -> RequestInit {
    let init = RequestInit::new();
    init.set_redirect(RequestRedirect::Manual);
    init.set_signal(Some(&AbortSignal::timeout_with_u32(REQUEST_MS_MAX)));
    init
}

/// Sends `request` and returns the head of the response.
///
/// # Errors
/// Why there is no response, for the log.
pub async fn send(fetcher: &WorkerGlobalScope, request: &Request) -> Result<Response, String> {
    let response = JsFuture::from(fetcher.fetch_with_request(request)).await;
    response.and_then(JsCast::dyn_into).map_err(|error| format!("no answer: {error:?}"))
}

/// Reads the body of `response`.
///
/// # Errors
/// Why there is no complete body of at most `bytes_max`, for the log.
pub async fn body(response: &Response, bytes_max: usize) -> Result<Vec<u8>, String> {
    let body =
        bounded_body(response, bytes_max).await.map_err(|error| format!("no complete answer: {error:?}"))?;
    body.ok_or_else(|| format!("longer than {bytes_max} bytes"))
}

/// Reads the body; `None` if it is too long. The header `Content-Length` may be missing, so each chunk is
/// counted.
async fn bounded_body(response: &Response, bytes_max: usize) -> Result<Option<Vec<u8>>, JsValue> {
    let Some(stream) = response.body() else { return Ok(Some(Vec::new())) };
    let reader: ReadableStreamDefaultReader = stream.get_reader().unchecked_into();
    let mut body = Vec::new();
    loop {
        let read = JsFuture::from(reader.read()).await?;
        if Reflect::get(&read, &"done".into())?.is_truthy() {
            return Ok(Some(body));
        }
        let chunk: Uint8Array = Reflect::get(&read, &"value".into())?.dyn_into()?;
        if body.len() + chunk.length() as usize > bytes_max {
            // The failure is reported even if the stream could not be cancelled.
            let _ = reader.cancel();
            return Ok(None);
        }
        body.extend_from_slice(&chunk.to_vec());
    }
}
