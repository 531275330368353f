//! Baseline (b): a bare axum route that reads the same request, checks the same token and answers the same body as
//! core does for a granted claim, and decides nothing. A process of its own, as core is, behind core's own listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use claimgate_core::clock;
use claimgate_core::credentials::{Caller, Credentials, Tokens};
use claimgate_core::http::auth::Authenticator;
use claimgate_core::http::serve;
use claimgate_shared::signature::SignedParts;
use claimgate_shared::{Attempt, Claim, ClaimReply, ClaimRequest, ClaimStatus, Problem, Version};
use support::core_client::API_TOKEN;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::child::Child;

const PATH: &str = "/internal/v1/claims";
/// As many as the campaigns of the benchmark have.
const TOTAL: u32 = 1_000_000_000;

#[derive(Debug)]
struct Shared {
    authenticator: Authenticator,
    sequence: AtomicU64,
}

/// Starts it in a process of its own.
pub async fn start() -> anyhow::Result<Child> {
    Child::start("bare", &[]).await
}

/// Serves until killed.
pub async fn listen(address: SocketAddr) -> anyhow::Result<()> {
    let mut tokens = Tokens::default();
    // As many as core knows when it is measured.
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

async fn claim(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    match reply(&shared, &headers, &body) {
        Ok(reply) => match serde_json::to_vec(&reply) {
            Ok(body) => (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        },
        Err(problem) => StatusCode::from_u16(problem.code.status()).unwrap_or_default().into_response(),
    }
}

fn reply(shared: &Shared, headers: &HeaderMap, body: &[u8]) -> Result<ClaimReply, Problem> {
    let request = ClaimRequest::parse(body)?;
    let signed = SignedParts {
        method: "POST",
        path_and_query: PATH,
        content_type: "application/json",
        body,
        user: "",
        client_ip: "",
        idempotency_key: request.idempotency_key.as_str(),
        attempt: Attempt::Unknown,
    };
    let (caller, _) = shared.authenticator.caller(headers, signed)?;
    caller.may_act_for(&request.user_id)?;
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
    };
    let remaining = TOTAL.checked_sub(u32::try_from(sequence).unwrap_or(u32::MAX));
    Ok(ClaimReply { claim, remaining, version: Version::FIRST })
}
