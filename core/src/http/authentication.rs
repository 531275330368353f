//! Authentication: the edge by its signature, a back end or an admin by a token. Only the request's head is
//! needed: callers are authenticated before the body is read, a permit is taken, or Redis or SQL is called.

use std::str::FromStr;
use std::sync::Arc;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, request};
use claimgate_shared::http::bearer_token;
use claimgate_shared::signature::{
    BodyHash, CLIENT_IP_HEADER, CONTENT_SHA256_HEADER, IDEMPOTENCY_KEY_HEADER, KEY_HEADER, PASS_HEADER,
    SIGNATURE_HEADER, SignedParts, TIMESTAMP_HEADER, USER_HEADER, USER_IDS_HEADER,
};
use claimgate_shared::{Attempt, ClaimRequest, Code, Problem, ShownPass};
use parking_lot::RwLock;

use super::listener::{CLAIM_PATH, Listener};
use crate::clock;
use crate::credentials::{Caller, Credentials, Role};

/// The result of authenticating a caller by a request's head.
#[derive(Debug, Clone)]
pub enum Head {
    /// The caller is known.
    Authenticated(Authenticated),
    /// A claim signed without the body's hash, by an older edge: verifying the signature requires the body.
    NeedsBody,
}

/// An authenticated caller.
#[derive(Debug, Clone)]
pub struct Authenticated {
    /// The caller's identity and role.
    pub caller: Caller,
    /// Whether the caller marked this as a claim's first try.
    pub attempt: Attempt,
    /// The pass that the edge verified. A token counts as a pass: it is the operator's own word.
    pub pass: Option<ShownPass>,
    /// The body that the signature covers; `None` for a token, which allows any body.
    signed_body: Option<SignedBody>,
}

#[derive(Debug, Clone)]
struct SignedBody {
    hash: BodyHash,
    idempotency_key: String,
}

impl Authenticated {
    /// Rejects a body other than the signed one.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub fn check_body(&self, body: &[u8]) -> Result<(), Problem> {
        self.check(|signed| BodyHash::of(body) == signed.hash)
    }

    /// Rejects a claim with an idempotency key other than the signed one.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub fn check_key(&self, claim: &ClaimRequest) -> Result<(), Problem> {
        self.check(|signed| claim.idempotency_key.as_str() == signed.idempotency_key)
    }

    fn check(&self, is_signed: impl FnOnce(&SignedBody) -> bool) -> Result<(), Problem> {
        if self.signed_body.as_ref().is_none_or(is_signed) { Ok(()) } else { Err(unauthenticated()) }
    }
}

/// Authenticates callers by credentials that can be replaced at run time.
#[derive(Debug, Clone)]
pub struct Authenticator(Arc<RwLock<Arc<Credentials>>>);

impl Authenticator {
    /// Creates an authenticator that accepts `credentials`.
    pub fn new(credentials: Credentials) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(credentials))))
    }

    /// Replaces the accepted credentials, from the next call on.
    pub fn replace(&self, credentials: Credentials) {
        *self.0.write() = Arc::new(credentials);
    }

    fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.read())
    }

    /// Authenticates a request to `listener` by its head.
    ///
    /// # Errors
    /// `unauthenticated` if the token is missing or unknown, the scheme is not `Bearer`, or the signature is
    /// invalid.
    pub fn head(&self, listener: Listener, parts: &request::Parts) -> Result<Head, Problem> {
        let headers = &parts.headers;
        let is_signed = headers.contains_key(KEY_HEADER) || headers.contains_key(SIGNATURE_HEADER);
        if listener == Listener::Admin || !is_signed {
            let (caller, attempt) = (self.bearer(headers)?, attempt(headers));
            let pass = Some(ShownPass::UNLIMITED);
            return Ok(Head::Authenticated(Authenticated { caller, attempt, pass, signed_body: None }));
        }
        let hash = match single_header(headers, CONTENT_SHA256_HEADER)? {
            "" if parts.method == Method::POST && parts.uri.path() == CLAIM_PATH => {
                return Ok(Head::NeedsBody);
            }
            "" => BodyHash::of(&[]),
            hash => hash.parse().map_err(|_| unauthenticated())?,
        };
        self.edge(parts, hash, single_header(headers, IDEMPOTENCY_KEY_HEADER)?).map(Head::Authenticated)
    }

    /// Authenticates a claim with [`Head::NeedsBody`] after its body was parsed as `claim`.
    pub fn with_body(
        &self,
        parts: &request::Parts,
        body: &[u8],
        claim: &ClaimRequest,
    ) -> Result<Authenticated, Problem> {
        self.edge(parts, BodyHash::of(body), claim.idempotency_key.as_str())
    }

    /// Returns the caller if it is an admin of at least the role `needed`, otherwise `forbidden`.
    pub(crate) fn admin(&self, headers: &HeaderMap, needed: Role) -> Result<Caller, Problem> {
        self.bearer(headers)?.with_role(needed)
    }

    fn bearer(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let token = match single_header(headers, AUTHORIZATION.as_str())? {
            "" => Err(refused("the Authorization header is missing; send `Authorization: Bearer TOKEN`")),
            // The value may be a token without its scheme, so it is not echoed.
            value => bearer_token(value).ok_or_else(|| {
                refused("the Authorization header does not begin with `Bearer `; send `Authorization: Bearer TOKEN`")
            }),
        }?;
        self.credentials()
            .tokens
            .caller(token)
            .cloned()
            .ok_or_else(|| refused("core does not recognize this token"))
    }

    fn edge(
        &self,
        parts: &request::Parts,
        hash: BodyHash,
        idempotency_key: &str,
    ) -> Result<Authenticated, Problem> {
        let headers = &parts.headers;
        let user = single_header(headers, USER_HEADER)?;
        let user_ids = single_header(headers, USER_IDS_HEADER)?;
        let pass = single_header(headers, PASS_HEADER)?;
        let signed = SignedParts {
            method: parts.method.as_str(),
            path_and_query: parts.uri.path_and_query().map_or("", |path| path.as_str()),
            content_type: headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default(),
            body: hash,
            user,
            client_ip: single_header(headers, CLIENT_IP_HEADER)?,
            idempotency_key,
            attempt: attempt(headers),
            user_ids,
            pass,
        };
        let (kid, timestamp) =
            (single_header(headers, KEY_HEADER)?, single_header(headers, TIMESTAMP_HEADER)?);
        let signature = single_header(headers, SIGNATURE_HEADER)?;
        let keys = &self.credentials().edge_keys;
        let attempt = signed.verify(keys, kid, timestamp, signature, clock::now()).map_err(|error| {
            tracing::debug!(%error, "rejected a signature");
            unauthenticated()
        })?;
        let (user, user_ids, pass) = (optional(user)?, optional(user_ids)?, optional(pass)?);
        let signed_body = Some(SignedBody { hash, idempotency_key: idempotency_key.to_owned() });
        Ok(Authenticated { caller: Caller::Edge(user, user_ids), attempt, pass, signed_body })
    }
}

/// Parses a header's value; `None` if it is empty.
fn optional<T: FromStr>(value: &str) -> Result<Option<T>, Problem> {
    if value.is_empty() { Ok(None) } else { value.parse().map(Some).map_err(|_| unauthenticated()) }
}

fn attempt(headers: &HeaderMap) -> Attempt {
    let mut marks = headers.get_all(Attempt::HEADER).iter();
    Attempt::from_header(
        marks.next().and_then(|value| value.to_str().ok()).filter(|_| marks.next().is_none()),
    )
}

/// Returns the header's value, empty if it is absent. A repeated header is rejected: either value could be
/// the intended one.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(""),
        (Some(value), None) => value.to_str().map_err(|_| unauthenticated()),
        _ => Err(unauthenticated()),
    }
}

/// Returns the 401 problem for a request without a valid signature or token.
pub(super) fn unauthenticated() -> Problem {
    refused("the request needs a valid signature or token")
}

fn refused(why: &str) -> Problem {
    Problem::new(Code::Unauthenticated, why)
}
