//! Baseline (b): a bare axum route. It reads the same request, checks the same token and returns the same
//! body as core for a granted claim, but decides nothing. Like core, it runs in its own process behind core's
//! listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, request};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use claimgate_core::clock;
use claimgate_core::credentials::{Caller, Credentials, Tokens};
use claimgate_core::http::authentication::{Authenticator, Head};
use claimgate_core::http::listener::Listener;
use claimgate_core::http::serve;
use claimgate_shared::http::BODY_BYTES_MAX;
use claimgate_shared::{Claim, ClaimReply, ClaimRequest, ClaimStatus, Code, Problem, Version};
use support::core_client::API_TOKEN;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::child::Child;

const PATH: &str = "/internal/v1/claims";
/// Equals the total of the benchmark's campaigns.
const TOTAL: u32 = 1_000_000_000;

#[derive(Debug)]
struct Shared {
    authenticator: Authenticator,
    sequence: AtomicU64,
}

/// Starts this server in its own process.
pub async fn start() -> anyhow::Result<Child> {
    Child::start("bare", &[]).await
}

/// Serves until killed.
pub async fn listen(address: SocketAddr) -> anyhow::Result<()> {
    let mut tokens = Tokens::default();
    // As many tokens as core has in the benchmark.
    tokens.add(Caller::admin(), "an-admin-token-that-is-never-used-here");
    tokens.add(Caller::BackEnd("shop".to_owned()), API_TOKEN);
    let authenticator = Authenticator::new(Credentials { tokens, edge_keys: Vec::new() });
    let shared = Arc::new(Shared { authenticator, sequence: AtomicU64::new(0) });
    let router = Router::new().route(PATH, post(claim)).with_state(shared);
    let listener = TcpListener::bind(address).await?;
    let (_never, stop) = watch::channel(false);
    serve(listener, router, stop).await;
    Ok(())
}

async fn claim(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match reply(&shared, &parts, body).await {
        Ok(reply) => match serde_json::to_vec(&reply) {
            Ok(body) => (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        },
        Err(problem) => StatusCode::from_u16(problem.code.status()).unwrap_or_default().into_response(),
    }
}

async fn reply(shared: &Shared, parts: &request::Parts, body: Body) -> Result<ClaimReply, Problem> {
    let Head::Authenticated(authenticated) = shared.authenticator.head(Listener::Internal, parts)? else {
        return Err(Problem::new(Code::Unauthenticated, "needs a token"));
    };
    let body = to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| Problem::invalid("body", "is incomplete"))?;
    authenticated.check_body(&body)?;
    let request = ClaimRequest::parse(&body)?;
    authenticated.check_key(&request)?;
    authenticated.caller.may_act_for(&request.user_id)?;
    let sequence = shared.sequence.fetch_add(1, Ordering::Relaxed) + 1;
    let claim = Claim {
        id: request.claim_id(),
        campaign_id: request.campaign_id,
        user_id: request.user_id,
        quantity: request.quantity,
        status: ClaimStatus::Granted,
        sequence,
        claimed_at: clock::now(),
        expires_at: None,
        persisted: None,
        codes: None,
    };
    let remaining = TOTAL.checked_sub(u32::try_from(sequence).unwrap_or(u32::MAX));
    Ok(ClaimReply { claim, remaining, version: Version::FIRST })
}
