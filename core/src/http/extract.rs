//! What a handler must not forget: who calls, the path's id, the body, checked before the handler runs.
//!
//! The engine is only reached with a [`Caller`], and a handler only gets a caller from these extractors: one without its
//! authentication does not compile.

use std::pin::pin;
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody as Body};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, request};
use axum::response::Response;
use claimgate_shared::claim_request::ClaimBatch;
use claimgate_shared::signature::SignedParts;
use claimgate_shared::{Attempt, CampaignId, ClaimId, ClaimRequest, Code, Problem, UserId, http};
use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;

use super::error::{ApiError, ApiResult, no_such_campaign, no_such_claim};
use super::middleware::REQUEST_ID;
use super::state::AppState;
use crate::clock;
use crate::credentials::{Caller, Role};
use crate::domain::addition::Addition;
use crate::domain::campaign::Campaign;
use crate::domain::campaign_change::{CampaignPatch, NewCampaign};

/// Marks the answer to a repeated key.
pub const REPLAYED: HeaderName = HeaderName::from_static(http::REPLAYED_HEADER);
/// Room for a claim's answer, so that its body does not grow while it is written.
const ANSWER_BYTES: usize = 512;
/// How long a body may take to come in.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The edge, a back end or an admin of any role, on a call without a body that only reads.
#[derive(Debug)]
pub struct ApiCaller(pub Caller);

impl FromRequestParts<AppState> for ApiCaller {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut request::Parts, state: &AppState) -> Result<Self, ApiError> {
        let (caller, _) = state.authenticator().caller(&parts.headers, signed(parts))?;
        Ok(Self(caller))
    }
}

/// A back end or an operator, on a call without a body: the edge may only claim and read.
#[derive(Debug)]
pub struct BackEnd(pub Caller);

impl FromRequestParts<AppState> for BackEnd {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut request::Parts, state: &AppState) -> Result<Self, ApiError> {
        let caller = no_edge(ApiCaller::from_request_parts(parts, state).await?.0)?;
        Ok(Self(caller.unless_below(Role::Operator)?))
    }
}

/// Any caller but the edge.
fn no_edge(caller: Caller) -> Result<Caller, Problem> {
    match caller {
        Caller::Edge(_) => Err(Problem::new(Code::Forbidden, "the edge may only claim and read")),
        caller => Ok(caller),
    }
}

/// Declares the extractors of admins by the least role that they let in.
macro_rules! admins {
    ($($(#[$about:meta])* $name:ident = $role:expr;)+) => {$(
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name(pub Caller);

        impl FromRequestParts<AppState> for $name {
            type Rejection = ApiError;
            async fn from_request_parts(
                parts: &mut request::Parts,
                state: &AppState,
            ) -> Result<Self, ApiError> {
                Ok(Self(state.authenticator().admin(&parts.headers, $role)?))
            }
        }
    )+};
}

admins! {
    /// An admin of any role: for calls that only read.
    Viewer = Role::Viewer;
    /// An operator, or an admin of the role admin.
    Operator = Role::Operator;
    /// An admin of the role admin.
    Admin = Role::Admin;
}

/// A caller, as `A` lets it in, and what it sent.
#[derive(Debug)]
pub struct WithBody<A, T>(pub A, pub T);

impl<A, T> FromRequest<AppState> for WithBody<A, T>
where
    A: FromRequestParts<AppState, Rejection = ApiError> + Send,
    T: ParseBody + Send,
{
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (mut parts, body) = read_json(request, http::BODY_BYTES_MAX).await?;
        let value = T::parse_body(&body)?;
        Ok(Self(A::from_request_parts(&mut parts, state).await?, value))
    }
}

/// An admin, and the CSV file that they send, which is yet to be read.
#[derive(Debug)]
pub struct AdminFile {
    caller: Caller,
    body: axum::body::Body,
}

impl FromRequest<AppState> for AdminFile {
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let Admin(caller) = Admin::from_request_parts(&mut parts, state).await?;
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !http::is_media_type(content_type, http::CSV) {
            return Err(Problem::new(Code::UnsupportedMediaType, "Content-Type must be text/csv").into());
        }
        plain_of_known_length(&parts)?;
        let length =
            parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        match length {
            None => Err(Problem::invalid("body", "must come with a Content-Length").into()),
            Some(length) if length > http::IMPORT_BYTES_MAX => {
                Err(http::body_too_large(http::IMPORT_BYTES_MAX).into())
            }
            Some(_) => Ok(Self { caller, body }),
        }
    }
}

impl AdminFile {
    /// Who sends it, and all of it.
    pub async fn read(self) -> Result<(Caller, Bytes), Problem> {
        let bytes = Limited::new(self.body, http::IMPORT_BYTES_MAX).collect().await;
        Ok((self.caller, bytes.map_err(|_| Problem::invalid("body", "broke off"))?.to_bytes()))
    }
}

/// What is read from a body; a problem names the field that is wrong.
pub trait ParseBody: Sized {
    /// Reads it.
    fn parse_body(body: &[u8]) -> Result<Self, Problem>;
}

impl ParseBody for Campaign {
    fn parse_body(body: &[u8]) -> Result<Self, Problem> {
        NewCampaign::parse(body, clock::now())
    }
}

impl ParseBody for Addition {
    fn parse_body(body: &[u8]) -> Result<Self, Problem> {
        Self::parse(body)
    }
}

impl ParseBody for CampaignPatch {
    fn parse_body(body: &[u8]) -> Result<Self, Problem> {
        Self::parse(body)
    }
}

/// A claim, who sends it, and whether it is certainly the first try.
#[derive(Debug)]
pub struct ClaimCall {
    /// Who sends it.
    pub caller: Caller,
    /// Whether it is certainly the first try.
    pub attempt: Attempt,
    /// What is claimed.
    pub request: ClaimRequest,
}

impl FromRequest<AppState> for ClaimCall {
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        Self::read(request, state).await
    }
}

impl ClaimCall {
    /// Reads a request whose body may be of any kind.
    pub async fn read<B: RequestBody>(request: Request<B>, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = read_json(request, http::BODY_BYTES_MAX).await?;
        let request = ClaimRequest::parse(&body)?;
        let signed = signed_claim(&parts, &body, &request);
        let (caller, attempt) = state.authenticator().caller(&parts.headers, signed)?;
        Ok(Self { caller: caller.unless_below(Role::Admin)?, attempt, request })
    }
}

/// A back end or an admin, the batch of claims that they sent, and the id of their request.
#[derive(Debug)]
pub struct BatchCall {
    /// Who sends it.
    pub caller: Caller,
    /// The request's id, which every problem in the answer names.
    pub request_id: String,
    /// What is claimed, in order; a problem where a claim is malformed.
    pub claims: Vec<Result<ClaimRequest, Problem>>,
}

impl FromRequest<AppState> for BatchCall {
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = read_json(request, http::BATCH_BYTES_MAX).await?;
        let claims = ClaimBatch::parse(&body)?;
        let (caller, _) =
            state.authenticator().caller(&parts.headers, SignedParts { body: &body, ..signed(&parts) })?;
        let caller = no_edge(caller)?.unless_below(Role::Admin)?;
        let id = parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
        Ok(Self { caller, request_id: id.to_owned(), claims })
    }
}

/// The campaign's id in the path; what is no id has no campaign.
#[derive(Debug)]
pub struct PathCampaign(pub CampaignId);

impl FromRequestParts<AppState> for PathCampaign {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut request::Parts, _: &AppState) -> Result<Self, ApiError> {
        Ok(Self(path_id(&parts.uri).parse().map_err(|_| no_such_campaign())?))
    }
}

/// The claim's id in the path; what is no id has no claim.
#[derive(Debug)]
pub struct PathClaim(pub ClaimId);

impl FromRequestParts<AppState> for PathClaim {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut request::Parts, _: &AppState) -> Result<Self, ApiError> {
        Ok(Self(path_id(&parts.uri).parse().map_err(|_| no_such_claim())?))
    }
}

/// The user's id behind the campaign's in the path; what is no id is named as a field.
#[derive(Debug)]
pub struct PathUser(pub UserId);

impl FromRequestParts<AppState> for PathUser {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut request::Parts, _: &AppState) -> Result<Self, ApiError> {
        let id = parts.uri.path().split('/').nth(6).unwrap_or_default();
        Ok(Self(id.parse().map_err(|why| Problem::invalid("user_id", why))?))
    }
}

/// A webhook's id in the path.
#[derive(Debug)]
pub struct PathWebhook(pub String);

impl FromRequestParts<AppState> for PathWebhook {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut request::Parts, _: &AppState) -> Result<Self, ApiError> {
        Ok(Self(path_id(&parts.uri).to_owned()))
    }
}

/// The id in a path, as sent: no id has characters that need decoding, so what has them is no id. It stands in the
/// same place in every route.
fn path_id(uri: &Uri) -> &str {
    uri.path().split('/').nth(4).unwrap_or_default()
}

/// What the edge would have signed of a call without a body.
fn signed(parts: &request::Parts) -> SignedParts<'_> {
    let content_type =
        parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    SignedParts {
        method: parts.method.as_str(),
        path_and_query: parts.uri.path_and_query().map_or("", |path| path.as_str()),
        content_type,
        body: &[],
        user: "",
        client_ip: "",
        idempotency_key: "",
        attempt: Attempt::Unknown,
    }
}

/// What the edge would have signed of a claim.
fn signed_claim<'a>(parts: &'a request::Parts, body: &'a [u8], request: &'a ClaimRequest) -> SignedParts<'a> {
    let mut marks = parts.headers.get_all(Attempt::HEADER).iter();
    let mark = marks.next().and_then(|value| value.to_str().ok()).filter(|_| marks.next().is_none());
    SignedParts {
        body,
        idempotency_key: request.idempotency_key.as_str(),
        attempt: Attempt::of_header(mark),
        ..signed(parts)
    }
}

/// `value` as JSON, in a body of any kind.
pub fn json<B: From<Vec<u8>>>(status: StatusCode, value: &impl Serialize) -> ApiResult<B> {
    let mut body = Vec::with_capacity(ANSWER_BYTES);
    serde_json::to_writer(&mut body, value).map_err(|error| {
        tracing::error!(%error, "cannot write an answer");
        Problem::new(Code::Unavailable, "the answer could not be written")
    })?;
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(http::JSON));
    Ok(response)
}

/// A request's body, as it comes in.
pub trait RequestBody: Body<Data = Bytes, Error: Into<BoxError>> {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> RequestBody for B {}

/// Refuses a body that is compressed or chunked.
fn plain_of_known_length(parts: &request::Parts) -> Result<(), Problem> {
    if parts.headers.contains_key(CONTENT_ENCODING) {
        return Err(Problem::new(Code::UnsupportedMediaType, "the body must not be compressed"));
    }
    // A length known beforehand leaves no room for two readings of where the body ends.
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::invalid("body", "must come with a Content-Length, not chunked"));
    }
    Ok(())
}

/// A request read whole: its head, and its JSON body of at most `bytes_max` bytes.
async fn read_json<B: RequestBody>(
    request: Request<B>,
    bytes_max: usize,
) -> Result<(request::Parts, Bytes), Problem> {
    let (parts, body) = request.into_parts();
    if !http::is_json(parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok())) {
        return Err(Problem::new(Code::UnsupportedMediaType, "Content-Type must be application/json"));
    }
    plain_of_known_length(&parts)?;
    let mut bytes = pin!(Limited::new(body, bytes_max).collect());
    // Nearly every body comes with its head: a timer would cost more than reading it.
    let read = match bytes.as_mut().now_or_never() {
        Some(read) => read,
        None => tokio::time::timeout(BODY_TIMEOUT, bytes)
            .await
            .map_err(|_| Problem::new(Code::RequestTimeout, "the body took more than 10 s"))?,
    };
    let bytes = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            http::body_too_large(bytes_max)
        } else {
            Problem::invalid("body", "broke off")
        }
    })?;
    Ok((parts, bytes.to_bytes()))
}
