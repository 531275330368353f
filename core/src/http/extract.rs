//! Extractors of the path's ids and the body, checked before the handler runs. Those with a body take the
//! caller from [`super::authorization`]: except for [`Head::NeedsBody`], none reads a body before the caller is
//! authenticated.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody as Body};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, request};
use axum::response::Response;
use claimgate_shared::claim_request::ClaimBatch;
use claimgate_shared::problem::parse_json;
use claimgate_shared::refusals::RefusalReport;
use claimgate_shared::{Attempt, CampaignId, ClaimId, ClaimRequest, Code, Problem, ShownPass, UserId, http};
use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::authentication::{Authenticated, Head, unauthenticated};
use super::authorization::{self, Admin, head};
use super::error::{ApiError, ApiResult, no_such_campaign, no_such_claim};
use super::state::AppState;
use crate::credentials::Caller;
use crate::domain::addition::Addition;
use crate::domain::campaign_change::{CampaignPatch, NewCampaign};
use crate::domain::claim_transition::ClaimReturn;
use crate::engine::Engine;

/// Marks the response to a repeated key.
pub const REPLAYED: HeaderName = HeaderName::from_static(http::REPLAYED_HEADER);
/// Initial capacity of a response body: enough for a claim's response.
const ANSWER_BYTES: usize = 512;
/// Time limit for receiving the body of an authenticated caller.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for receiving the body of [`Head::NeedsBody`]: the edge has the whole body before it calls core.
const UNPROVEN_BODY_TIMEOUT: Duration = Duration::from_secs(2);

/// A caller accepted by `A`, and the parsed body.
#[derive(Debug)]
pub struct WithBody<A, T>(pub A, pub T);

impl<A, T> FromRequest<AppState> for WithBody<A, T>
where
    A: FromRequestParts<AppState, Rejection = ApiError> + Send,
    T: ParseBody + Send,
{
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let caller = A::from_request_parts(&mut parts, state).await?;
        let body = read_json(&parts, body, http::BODY_BYTES_MAX, BODY_TIMEOUT).await?;
        Ok(Self(caller, T::parse_body(&body)?))
    }
}

/// An admin and the CSV file in the request's body, which has not been read yet.
#[derive(Debug)]
pub struct AdminFile {
    caller: Caller,
    body: axum::body::Body,
}

impl FromRequest<AppState> for AdminFile {
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let Admin(caller, _) = Admin::from_request_parts(&mut parts, state).await?;
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !http::is_media_type(content_type, http::CSV) {
            return Err(Problem::new(Code::UnsupportedMediaType, "Content-Type must be text/csv").into());
        }
        plain_of_known_length(&parts)?;
        let length =
            parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        match length {
            None => Err(Problem::invalid("body", "must have a Content-Length").into()),
            Some(length) if length > http::IMPORT_BYTES_MAX => {
                Err(http::body_too_large(http::IMPORT_BYTES_MAX).into())
            }
            Some(_) => Ok(Self { caller, body }),
        }
    }
}

impl AdminFile {
    /// Reads the file; returns its sender and content.
    pub async fn read(self) -> Result<(Caller, Bytes), Problem> {
        let bytes = Limited::new(self.body, http::IMPORT_BYTES_MAX).collect().await;
        Ok((self.caller, bytes.map_err(|_| Problem::invalid("body", "is incomplete"))?.to_bytes()))
    }
}

/// A call of the edge, for no user, with the signed body `T`.
#[derive(Debug)]
pub struct EdgeCall<T>(pub Arc<Engine>, pub T);

impl<T: ParseBody + Send> FromRequest<AppState> for EdgeCall<T> {
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let Head::Authenticated(authenticated) = head(&parts.extensions)?.clone() else {
            return Err(unauthenticated().into());
        };
        authorization::only_edge(&authenticated.caller)?;
        let engine = Arc::clone(state.engine(&authenticated.caller));
        let body = read_json(&parts, body, http::BODY_BYTES_MAX, BODY_TIMEOUT).await?;
        authenticated.check_body(&body)?;
        Ok(Self(engine, T::parse_body(&body)?))
    }
}

/// A type that is parsed from a request's body; a problem names the invalid field.
pub trait ParseBody: DeserializeOwned {
    /// Parses `body`.
    fn parse_body(body: &[u8]) -> Result<Self, Problem> {
        parse_json(body)
    }
}

impl ParseBody for NewCampaign {
    fn parse_body(body: &[u8]) -> Result<Self, Problem> {
        Self::parse(body)
    }
}

impl ParseBody for Addition {
    fn parse_body(body: &[u8]) -> Result<Self, Problem> {
        Self::parse(body)
    }
}

impl ParseBody for CampaignPatch {}

impl ParseBody for ClaimReturn {}

impl ParseBody for RefusalReport {}

/// A call that claims units.
#[derive(Debug)]
pub struct ClaimCall {
    /// The caller who sent it.
    pub caller: Caller,
    /// Whether the caller marked this as the first try.
    pub attempt: Attempt,
    /// The pass that came with it; the token of a back end or an admin serves as a pass.
    pub pass: Option<ShownPass>,
    /// The claim.
    pub request: ClaimRequest,
}

impl FromRequest<AppState> for ClaimCall {
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let head = head(&parts.extensions)?.clone();
        Self::read(head, &parts, body, state).await
    }
}

impl ClaimCall {
    /// Reads and authenticates a claim from a request with any type of body.
    pub async fn read<B: RequestBody>(
        head: Head,
        parts: &request::Parts,
        body: B,
        state: &AppState,
    ) -> Result<Self, ApiError> {
        let (authenticated, request) = match head {
            Head::Authenticated(authenticated) => {
                let body = read_json(parts, body, http::BODY_BYTES_MAX, BODY_TIMEOUT).await?;
                authenticated.check_body(&body)?;
                let request = ClaimRequest::parse(&body)?;
                authenticated.check_key(&request)?;
                (authenticated, request)
            }
            Head::NeedsBody => {
                let body = read_json(parts, body, http::BODY_BYTES_MAX, UNPROVEN_BODY_TIMEOUT).await?;
                let request = ClaimRequest::parse(&body)?;
                (state.authenticator().with_body(parts, &body, &request)?, request)
            }
        };
        let Authenticated { caller, attempt, pass, .. } = authenticated;
        Ok(Self { caller: authorization::may_claim(caller)?, attempt, pass, request })
    }
}

/// A call of a back end or an admin with a batch of claims.
#[derive(Debug)]
pub struct BatchCall {
    /// The caller who sent it.
    pub caller: Caller,
    /// The request's id, which every problem in the response contains.
    pub request_id: String,
    /// The claims, in the order of the request; a problem for each malformed one.
    pub claims: Vec<Result<ClaimRequest, Problem>>,
}

impl FromRequest<AppState> for BatchCall {
    type Rejection = ApiError;
    async fn from_request(request: Request, _: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let caller = authorization::may_claim_batches(authorization::caller(&parts)?)?;
        let body = read_json(&parts, body, http::BATCH_BYTES_MAX, BODY_TIMEOUT).await?;
        let claims = ClaimBatch::parse(&body)?;
        let id =
            parts.headers.get(http::REQUEST_ID_HEADER).and_then(|id| id.to_str().ok()).unwrap_or_default();
        Ok(Self { caller, request_id: id.to_owned(), claims })
    }
}

/// Declares an extractor for each type of id in a path.
macro_rules! path_ids {
    ($($(#[$about:meta])* $name:ident($id:ty) = $read:expr;)+) => {$(
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name(pub $id);

        impl FromRequestParts<AppState> for $name {
            type Rejection = ApiError;
            async fn from_request_parts(parts: &mut request::Parts, _: &AppState) -> Result<Self, ApiError> {
                let read: fn(&Uri) -> Result<$id, Problem> = $read;
                Ok(Self(read(&parts.uri)?))
            }
        }
    )+};
}

path_ids! {
    /// The campaign's id in the path; a malformed id counts as a campaign that does not exist.
    PathCampaign(CampaignId) = |uri| path_id(uri).parse().map_err(|_| no_such_campaign());
    /// The claim's id in the path; a malformed id counts as a claim that does not exist.
    PathClaim(ClaimId) = |uri| path_id(uri).parse().map_err(|_| no_such_claim());
    /// The user's id, which follows the campaign's id in the path; a malformed id is an invalid field.
    PathUser(UserId) = |uri| {
        let id = uri.path().split('/').nth(6).unwrap_or_default();
        id.parse().map_err(|why| Problem::invalid("user_id", why))
    };
    /// A webhook's id in the path.
    PathWebhook(String) = |uri| Ok(path_id(uri).to_owned());
}

/// Returns the id in a path without decoding it: no valid id has characters that need decoding. Its position
/// is the same in every route.
fn path_id(uri: &Uri) -> &str {
    uri.path().split('/').nth(4).unwrap_or_default()
}

/// Returns a response with `value` as JSON, for any type of body.
pub fn json<B: From<Vec<u8>>>(status: StatusCode, value: &impl Serialize) -> ApiResult<B> {
    let mut body = Vec::with_capacity(ANSWER_BYTES);
    serde_json::to_writer(&mut body, value).map_err(|error| {
        tracing::error!(%error, "cannot serialize a response");
        Problem::new(Code::Unavailable, "the response could not be serialized")
    })?;
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(http::JSON));
    Ok(response)
}

/// Returns whether the caller accepts `media_type` but not JSON. A generated client accepts every type that the
/// description lists.
pub fn prefers(headers: &HeaderMap, media_type: &str) -> bool {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.contains(media_type) && !accept.contains(http::JSON)
}

/// A request's body as it arrives.
pub trait RequestBody: Body<Data = Bytes, Error: Into<BoxError>> {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> RequestBody for B {}

/// Rejects a body that is compressed or chunked.
fn plain_of_known_length(parts: &request::Parts) -> Result<(), Problem> {
    if parts.headers.contains_key(CONTENT_ENCODING) {
        return Err(Problem::new(Code::UnsupportedMediaType, "the body must not be compressed"));
    }
    // With a length known beforehand, proxy and core cannot disagree about where the body ends.
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::invalid("body", "must have a Content-Length and not be chunked"));
    }
    Ok(())
}

/// Reads a request's JSON body of at most `bytes_max` bytes, which may take `limit` to arrive.
async fn read_json<B: RequestBody>(
    parts: &request::Parts,
    body: B,
    bytes_max: usize,
    limit: Duration,
) -> Result<Bytes, Problem> {
    if !http::is_json(parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok())) {
        return Err(Problem::new(Code::UnsupportedMediaType, "Content-Type must be application/json"));
    }
    plain_of_known_length(parts)?;
    let mut bytes = pin!(Limited::new(body, bytes_max).collect());
    // Nearly every body arrives together with its head: a timer would cost more than reading it.
    let read = match bytes.as_mut().now_or_never() {
        Some(read) => read,
        None => tokio::time::timeout(limit, bytes).await.map_err(|_| {
            Problem::new(
                Code::RequestTimeout,
                format!("the body took more than {} s to arrive", limit.as_secs()),
            )
        })?,
    };
    let bytes = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            http::body_too_large(bytes_max)
        } else {
            Problem::invalid("body", "is incomplete")
        }
    })?;
    Ok(bytes.to_bytes())
}
