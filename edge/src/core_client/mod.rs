//! The client for the cores. Every request is built from parsed values, signed, limited in time, and guarded
//! by the core's circuit breaker. Nothing else in the edge calls core.

pub mod circuit_breaker;
pub mod request;
pub mod response;
mod retry;
pub mod rotation;

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use wasm_bindgen::{JsCast, JsValue, intern};
use web_sys::{RequestInit, WorkerGlobalScope};
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{self, Math, Uint8Array};
use worker::{Env, Fetcher};

use self::request::CoreRequest;
use self::response::{CoreResponse, Failure};
use self::rotation::Rotation;
use crate::config::{Config, CoreAddress};

/// Time limit of a core's readiness check. Probes wait for a second by default.
const READY_MS_MAX: u32 = 800;

thread_local! {
    // An isolate's environment and configuration never change.
    static CORES: OnceCell<Rc<Cores>> = const { OnceCell::new() };
}

/// An isolate's connections to the cores.
#[derive(Debug)]
struct Cores {
    /// Each core's binding, or the global scope if there is none: both have the same `fetch`.
    fetchers: Vec<WorkerGlobalScope>,
    rotation: RefCell<Rotation>,
}

impl Cores {
    fn new(env: &Env, addresses: &[CoreAddress]) -> Self {
        let fetcher = |core: &CoreAddress| {
            let binding = core.binding.as_ref().and_then(|name| env.service(name).ok());
            binding.map_or_else(|| js_sys::global().unchecked_into(), Fetcher::into_rpc)
        };
        let rotation = Rotation::new(addresses.len(), random_index(addresses.len()));
        Self { fetchers: addresses.iter().map(fetcher).collect(), rotation: RefCell::new(rotation) }
    }
}

/// Returns a random index below `count`. Isolates start at random cores, so that the first gets no extra
/// load.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)] // a small number
fn random_index(count: usize) -> usize {
    (Math::random() * count as f64) as usize
}

/// Sends requests to the cores, through their service bindings or over the network.
#[derive(Debug)]
pub struct CoreClient<'a> {
    config: &'a Config,
    cores: Rc<Cores>,
}

impl<'a> CoreClient<'a> {
    /// Creates a client for the cores in `config`, with the bindings in `env`.
    pub fn new(env: &Env, config: &'a Config) -> Self {
        let cores =
            CORES.with(|cores| Rc::clone(cores.get_or_init(|| Rc::new(Cores::new(env, &config.cores)))));
        Self { config, cores }
    }

    async fn send_once(
        &self,
        core: usize,
        request: CoreRequest<'_>,
        limit_ms: i64,
    ) -> Result<CoreResponse, Failure> {
        let url = format!("{}{}", self.config.cores[core].origin, request.path);
        let init = request.init(self.config, limit_ms).map_err(|error| lost(&error))?;
        let response = self.fetch(core, &url, &init).await.map_err(|error| lost(&error))?;
        let body = read_body(&response).await.map_err(|error| lost(&error))?;
        let header = |name: &str| response.headers().get(intern(name)).ok().flatten();
        CoreResponse::new(response.status(), body, header)
    }

    /// Checks at the same time whether each core is ready. Bypasses rotation and circuit breaker. Returns for
    /// each why it is not ready, for the log.
    pub async fn check_ready(&self) -> Vec<Result<(), String>> {
        // The runtime sends a request when it is created, not when it is awaited.
        let sent: Vec<_> = (0..self.config.cores.len()).map(|core| self.ask_ready(core)).collect();
        let mut checked = Vec::new();
        for response in sent {
            checked.push(match response {
                Ok(response) => ready(response).await,
                Err(error) => Err(format!("{error:?}")),
            });
        }
        checked
    }

    fn ask_ready(&self, core: usize) -> Result<JsFuture<JsValue>, JsValue> {
        let url = format!("{}/readyz", self.config.cores[core].origin);
        let request = request::unsigned(&url, READY_MS_MAX)?;
        Ok(JsFuture::from(self.cores.fetchers[core].fetch_with_request(&request)))
    }

    /// Sends a request. A `Request` object would be copied by `fetch`, with its headers.
    async fn fetch(&self, core: usize, url: &str, init: &RequestInit) -> Result<web_sys::Response, JsValue> {
        JsFuture::from(self.cores.fetchers[core].fetch_with_str_and_init(url, init)).await?.dyn_into()
    }
}

/// Reads the whole body with one await. The worker crate reads it chunk by chunk.
async fn read_body(response: &web_sys::Response) -> Result<Vec<u8>, JsValue> {
    let buffer = JsFuture::from(response.array_buffer()?).await?;
    Ok(Uint8Array::new(&buffer).to_vec())
}

/// Returns why the core that sends this response to `/readyz` is not ready.
async fn ready(response: JsFuture<JsValue>) -> Result<(), String> {
    let response = response.await.and_then(JsCast::dyn_into);
    let response: web_sys::Response = response.map_err(|error| format!("{error:?}"))?;
    // Read the body to the end, so that the connection can be used again.
    read_body(&response).await.map_err(|error| format!("{error:?}"))?;
    if response.ok() { Ok(()) } else { Err(format!("status {}", response.status())) }
}

fn lost(error: &JsValue) -> Failure {
    Failure::Lost(format!("{error:?}"))
}
