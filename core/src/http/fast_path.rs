//! The fast path of a claim: past the router, its layers and their boxes, which took a fifth of core's work on a claim.
//! Every other request goes through the router; both answer the same.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::http::{HeaderValue, Method, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Body as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

use super::error::{ApiError, ApiResult};
use super::extract::{ClaimCall, RequestBody};
use super::internal::claims::{self, CLAIM_PATH};
use super::listeners::internal_router;
use super::middleware::{Exchange, admit};
use super::state::AppState;

/// The internal listener's routes: claims by the fast path, all else through the router.
#[derive(Debug)]
pub struct InternalRoutes {
    state: AppState,
    permits: Arc<Semaphore>,
    router: TowerToHyperService<Router>,
}

impl InternalRoutes {
    /// The routes on `state`.
    pub fn new(state: AppState) -> Self {
        let router = TowerToHyperService::new(internal_router(state.clone()));
        Self { permits: Arc::clone(state.permits()), router, state }
    }

    /// Answers a request. While core is about to stop, the client is told to send its next one on another connection: one that
    /// met the end of this one would be lost.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Either<Full<Bytes>, Body>>
    where
        B: RequestBody + Send + 'static,
    {
        let mut response = self.route(request).await;
        if self.state.is_leaving() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn route<B>(&self, request: Request<B>) -> Response<Either<Full<Bytes>, Body>>
    where
        B: RequestBody + Send + 'static,
    {
        if request.method() == Method::POST && request.uri().path() == CLAIM_PATH {
            let exchange = Exchange::begin(&request, CLAIM_PATH);
            let response = exchange.run(self.claim(request)).await.unwrap_or_else(ApiError::answer);
            return with_length(exchange.end(response)).map(Either::Left);
        }
        match self.router.call(request).await {
            Ok(response) => response.map(Either::Right),
        }
    }

    async fn claim<B: RequestBody>(&self, request: Request<B>) -> ApiResult<Full<Bytes>> {
        let _permit = admit(&self.state, &self.permits)?;
        claims::answer(&self.state, ClaimCall::read(request, &self.state).await?).await
    }
}

/// With its length among the headers, where the router's way has it.
fn with_length(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::routes::internal_routes;

    #[test]
    fn the_fast_path_is_a_route_of_the_router() {
        let document = internal_routes().into_openapi();
        let path = document.paths.paths.get(CLAIM_PATH);
        assert!(path.is_some_and(|path| path.post.is_some()));
    }
}
