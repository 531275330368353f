//! The fast path of a claim, which bypasses the router: its layers and boxed futures took a fifth of core's
//! work on a claim. Every other request goes through the router; both return the same responses.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::http::{HeaderValue, Method, Request, Response, request};
use http_body_util::{Either, Full};
use hyper::body::Body as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

use super::authorization::Authentication;
use super::error::{ApiError, ApiResult};
use super::extract::{ClaimCall, RequestBody};
use super::internal::claims;
use super::listener::{CLAIM_PATH, Listener};
use super::listeners::internal_router;
use super::middleware::{Exchange, admit};
use super::state::AppState;

/// The internal listener's routes: claims take the fast path, all other requests the router.
#[derive(Debug)]
pub struct InternalRoutes {
    state: AppState,
    permits: Arc<Semaphore>,
    router: TowerToHyperService<Router>,
}

impl InternalRoutes {
    /// Creates the routes on `state`.
    pub fn new(state: AppState) -> Self {
        let router = TowerToHyperService::new(internal_router(state.clone()));
        Self { permits: Arc::clone(state.permits()), router, state }
    }

    /// Answers a request. While core drains, the response closes the connection, so that the client does not
    /// send its next request on a connection that core is about to close.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Either<Full<Bytes>, Body>>
    where
        B: RequestBody + Send + 'static,
    {
        let mut response = self.route(request).await;
        if self.state.is_draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn route<B>(&self, request: Request<B>) -> Response<Either<Full<Bytes>, Body>>
    where
        B: RequestBody + Send + 'static,
    {
        if request.method() == Method::POST && request.uri().path() == CLAIM_PATH {
            let (parts, body) = request.into_parts();
            let head = self.state.authenticator().head(Listener::Internal, &parts);
            let exchange = Exchange::begin(&parts, CLAIM_PATH, &head);
            let response =
                exchange.run(self.claim(head, &parts, body)).await.unwrap_or_else(ApiError::answer);
            return with_length(exchange.end(response)).map(Either::Left);
        }
        match self.router.call(request).await {
            Ok(response) => response.map(Either::Right),
        }
    }

    async fn claim<B: RequestBody>(
        &self,
        head: Authentication,
        parts: &request::Parts,
        body: B,
    ) -> ApiResult<Full<Bytes>> {
        let head = head?;
        let _permit = admit(&self.state, &self.permits, &head)?;
        claims::answer(&self.state, ClaimCall::read(head, parts, body, &self.state).await?).await
    }
}

/// Adds the Content-Length header, as the router does.
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
    fn the_router_has_the_route_of_the_fast_path() {
        let document = internal_routes().into_openapi();
        let path = document.paths.paths.get(CLAIM_PATH);
        assert!(path.is_some_and(|path| path.post.is_some()));
    }
}
