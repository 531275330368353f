//! Request handlers. Each is a list of steps, in the order in which they may reject a request.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::claim_request::OwnClaimFields;
use claimgate_shared::http::{IDEMPOTENCY_KEY_HEADER, PASS_HEADER};
use claimgate_shared::jwt::{PassCheck, TokenRejection};
use claimgate_shared::{
    Attempt, CampaignId, ClaimRequest, Code, IdempotencyKey, Problem, ShownPass, Timestamp, UserId,
};
use futures_util::future::{Either, select};
use serde::Serialize;
use worker::{Context, Delay, Env};

use crate::admission::{self, BodyHeaders, ClaimHead};
use crate::auth::Verifier;
use crate::auth::error::AuthError;
use crate::auth::remote_keys::Runtime;
use crate::background;
use crate::campaign_cache::refresh::{Refresh, Refreshed};
use crate::campaign_cache::store::{self, Lookup};
use crate::clock::{self, age_ms};
use crate::config::{ClientAddress, Config};
use crate::core_client::CoreClient;
use crate::core_client::circuit_breaker::CallKind;
use crate::core_client::request::CoreRequest;
use crate::core_client::response::CoreResponse;
use crate::log;
use crate::rate_limit::{self, LimitScope, RateLimiter};
use crate::request::{self, Request};
use crate::response::Response;

/// The time limit for receiving a request's body.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);
const DEMO_TOKEN_S: u32 = 3_600;
/// Timeout of a view that waits for a snapshot that another request is fetching. [`VIEW_POLL`] is the poll
/// interval.
const VIEW_MS_MAX: i64 = 2_000;
/// A waiting view may take over a failed fetch only within this time; a later call would exceed the view's time limit.
const VIEW_CALL_MS_MAX: i64 = 400;
const VIEW_POLL: Duration = Duration::from_millis(20);

/// The ids that identify a request in the logs and traces of edge and core.
#[derive(Debug, Clone, Copy)]
pub struct Ids<'a> {
    /// The request id.
    pub request_id: &'a str,
    /// The trace context; empty without tracing.
    pub traceparent: &'a str,
}

/// A request with the context that its handler needs. Only parsed values are sent to core. A handler fails
/// with the edge's own rejection, or with `unavailable` if core did not respond.
#[derive(Debug)]
pub struct Handler<'a> {
    /// The browser's request.
    pub request: &'a Request,
    /// The Worker's bindings.
    pub env: &'a Env,
    /// The request's context: it keeps background work running after the response.
    pub context: &'a Context,
    /// The Worker's settings.
    pub config: Rc<Config>,
    /// The request's ids.
    pub ids: Ids<'a>,
    /// The client's address, once it has been read.
    pub address: OnceCell<Option<IpAddr>>,
}

impl Handler<'_> {
    /// Handles `POST /v1/campaigns/{id}/claims`: claims, and returns core's response.
    ///
    /// # Errors
    /// `unavailable`, even if core's decision is unknown.
    pub async fn claim(&self, campaign: &str) -> Result<Response, Problem> {
        let head = self.claim_head(campaign)?;
        let now = clock::now()?;
        let cached = store::lookup(head.campaign(), now);
        if let Lookup::Hit(_) = cached {
            self.refresh_in_background(head.campaign(), &cached, now);
        }
        let pass = cached.may_need_pass().then(|| self.header(PASS_HEADER)).flatten();
        head.check_cached(&cached, pass.is_some(), now)?;
        self.count_address(LimitScope::Claims).await?;
        let quantity = OwnClaimFields::parse(&self.body().await?)?;
        let user = self.user().await?;
        self.rate_limiter().check_user(LimitScope::Claims, &user).await?;
        // Only after the token is checked: requests without a token must not send made-up ids to core.
        self.refresh_in_background(head.campaign(), &cached, clock::now()?);
        let pass = match pass {
            Some(pass) => Some(self.shown_pass(&pass, &head, &user).await?),
            None => None,
        };
        let attempt = head.attempt();
        self.forward(&head.into_request(user, quantity, new_key)?, attempt, pass).await
    }

    /// Handles `GET /v1/claims/{claim_id}`: returns core's response about the caller's own claim.
    pub async fn own_claim(&self, id: &str) -> Result<Response, Problem> {
        self.count_address(LimitScope::Lookups).await?;
        let user = self.user().await?;
        let id = admission::own_claim(id, &user)?;
        self.rate_limiter().check_user(LimitScope::Lookups, &user).await?;
        let path = format!("/internal/v1/claims/{id}");
        let request = CoreRequest::new(CallKind::Lookups, &path, self.ids.request_id);
        let request = CoreRequest { user: user.as_str(), ..request };
        Ok(self.send(request).await?.into_response())
    }

    /// Handles `GET /v1/campaigns/{id}/claims`: returns core's response about the caller's own claims and allowance.
    pub async fn own_claims(&self, campaign: &str) -> Result<Response, Problem> {
        self.count_address(LimitScope::OwnClaims).await?;
        let user = self.user().await?;
        let campaign = admission::campaign_id(campaign)?;
        let query = admission::page_query(&self.request.query())?;
        self.rate_limiter().check_user(LimitScope::OwnClaims, &user).await?;
        if let Lookup::NotFound = store::lookup(&campaign, clock::now()?) {
            return Err(admission::campaign_not_found());
        }
        let path = format!("/internal/v1/campaigns/{campaign}/users/{user}{query}");
        let request = CoreRequest::new(CallKind::Lookups, &path, self.ids.request_id);
        let request = CoreRequest { user: user.as_str(), ..request };
        Ok(self.send(request).await?.into_response())
    }

    /// Handles `GET /v1/campaigns/{id}`: returns the campaign's view with an `ETag`, or 304.
    pub async fn campaign(&self, id: &str) -> Result<Response, Problem> {
        let snapshot = match self.snapshot(&admission::campaign_id(id)?).await? {
            Refreshed::Snapshot(snapshot) => snapshot,
            Refreshed::Problem(problem) => return Ok(problem.into_response()),
        };
        let view = snapshot.view_at(clock::now()?);
        let etag = view.etag().map_err(|_| not_serialized())?;
        let response = if request::etag_matches(self.header("if-none-match").as_deref(), &etag) {
            Response::empty(304)
        } else {
            Response::json(200, &view)?
        };
        Ok(response.with("etag", etag).with("cache-control", "public, max-age=1"))
    }

    /// Handles `POST /demo/token`: mints a token whose `sub` is the user in the body, valid for an hour.
    /// Returns it with the user's id in claims.
    pub async fn demo_token(&self) -> Result<Response, Problem> {
        #[derive(Serialize)]
        struct DemoToken {
            token: String,
            user_id: UserId,
        }
        self.check_body_headers()?;
        let subject = admission::parse_demo_body(&self.body().await?)?;
        let Verifier::Secret(tokens) = &self.config.authenticator.verifier else {
            return Err(Problem::new(Code::NotFound, "no demo tokens: the edge has only a public key"));
        };
        let now = clock::now()?;
        let token = tokens.mint(&subject, now, DEMO_TOKEN_S).map_err(|_| not_serialized())?;
        let user_id = tokens.verify(&token, &self.config.user_ids, now).map_err(|_| {
            Problem::new(
                Code::NotFound,
                "no demo tokens: they have only the claim sub, not that of USER_ID_CLAIM",
            )
        })?;
        Response::json(200, &DemoToken { token, user_id })
    }

    /// Handles `GET /sign-in/settings`: returns how a visitor of the page signs in.
    pub fn sign_in(&self) -> Result<Response, Problem> {
        let none = || Problem::new(Code::NotFound, "visitors cannot sign in on the page");
        let sign_in = self.config.sign_in.as_ref().ok_or_else(none)?;
        Ok(Response::json(200, sign_in)?.with("cache-control", "public, max-age=60"))
    }

    fn claim_head(&self, campaign: &str) -> Result<ClaimHead, Problem> {
        let key = self.header(IDEMPOTENCY_KEY_HEADER);
        let attempt = self.header(Attempt::HEADER);
        let head = ClaimHead::parse(campaign, key.as_deref(), attempt.as_deref())?;
        self.check_body_headers()?;
        Ok(head)
    }

    pub(crate) fn check_body_headers(&self) -> Result<(), Problem> {
        self.body_headers().check().inspect_err(|_| self.request.discard_body())
    }

    /// Verifies the `pass` that `user` sent with a claim. With an invalid pass, the claim continues as one without a
    /// pass: it may be a retry after the pass has expired. Only a first try is rejected, from the cache.
    async fn shown_pass(&self, pass: &str, head: &ClaimHead, user: &UserId) -> Result<SentPass, Problem> {
        let (campaign, now) = (head.campaign(), clock::now()?);
        let leeway_s = self.config.authenticator.verifier.leeway_s();
        let check = PassCheck { user, campaign, leeway_s, now };
        let shown = self.config.pass_keys.verify(pass, check).await;
        if let Err(why) = &shown {
            log::pass_rejected(self.ids.request_id, why, now);
            head.check_cached(&store::lookup(campaign, now), false, now).map_err(|mut problem| {
                if problem.code == Code::PassRequired {
                    problem.detail.push_str(&invalid_pass(why));
                }
                problem
            })?;
        }
        Ok(shown)
    }

    /// Sends `claim` to core, and updates the cache from the response. A `pass_required` refusal says why the pass
    /// that was sent is invalid.
    async fn forward(
        &self,
        claim: &ClaimRequest,
        attempt: Attempt,
        pass: Option<SentPass>,
    ) -> Result<Response, Problem> {
        let body = serde_json::to_string(claim).map_err(|_| not_serialized())?;
        let requested_at = clock::now()?;
        let kind = store::call_kind(&claim.campaign_id, requested_at, CallKind::Claims);
        let request = CoreRequest {
            body: Some(&body),
            user: claim.user_id.as_str(),
            idempotency_key: claim.idempotency_key.as_str(),
            attempt,
            pass: pass.as_ref().and_then(|pass| pass.as_ref().ok()).copied(),
            ..CoreRequest::new(kind, "/internal/v1/claims", self.ids.request_id)
        };
        let response = self.send(request).await?;
        store::update(&claim.campaign_id, response.summary(), requested_at);
        match pass {
            Some(Err(why)) if response.summary().is_problem(Code::PassRequired) => {
                Ok(response.with_more_detail(&invalid_pass(&why)).into_response())
            }
            _ => Ok(response.into_response()),
        }
    }

    /// Sends `request` to core, with the client's address and the trace context.
    async fn send(&self, request: CoreRequest<'_>) -> Result<CoreResponse, Problem> {
        let client_ip = self.address().map(|address| address.to_string()).unwrap_or_default();
        let traceparent = self.ids.traceparent;
        self.core().send(CoreRequest { client_ip: &client_ip, traceparent, ..request }).await
    }

    fn core(&self) -> CoreClient<'_> {
        CoreClient::new(self.env, &self.config)
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        *self.address.get_or_init(|| {
            let text = match &self.config.client_address {
                ClientAddress::Header(name) => self.header(name),
                ClientAddress::Peer => self.request.peer(),
            };
            rate_limit::parse_address(text.as_deref())
        })
    }

    /// Returns a valid snapshot, or the problem that core returned.
    async fn snapshot(&self, id: &CampaignId) -> Result<Refreshed, Problem> {
        let began_at = clock::now()?;
        loop {
            let now = clock::now()?;
            let cached = store::lookup(id, now);
            match &cached {
                Lookup::NotFound => return Err(admission::campaign_not_found()),
                Lookup::Hit(snapshot) => {
                    self.refresh_in_background(id, &cached, now);
                    return Ok(Refreshed::Snapshot(Rc::clone(snapshot)));
                }
                Lookup::Miss => {}
            }
            let waited_ms = age_ms(began_at, now);
            if waited_ms <= VIEW_CALL_MS_MAX
                && let Some(refresh) = Refresh::begin(id, &cached, now)
            {
                self.count_address(LimitScope::Campaigns).await?;
                return refresh.run(&self.core(), self.ids.request_id).await;
            }
            if waited_ms >= VIEW_MS_MAX {
                return Err(Problem::new(
                    Code::Unavailable,
                    "the campaign could not be fetched from core in time: retry",
                ));
            }
            Delay::from(VIEW_POLL).await;
        }
    }

    /// Refreshes the snapshot in the background, if a refresh is due.
    fn refresh_in_background(&self, id: &CampaignId, cached: &Lookup, now: Timestamp) {
        let Some(refresh) = Refresh::begin(id, cached, now) else {
            return;
        };
        let (env, config, request_id) =
            (self.env.clone(), Rc::clone(&self.config), self.ids.request_id.to_owned());
        background::run(self.context, async move {
            // A failure is already logged, and this request does not depend on the refresh.
            let _ = refresh.run(&CoreClient::new(&env, &config), &request_id).await;
        });
    }

    pub(crate) async fn user(&self) -> Result<UserId, Problem> {
        let authenticator = &self.config.authenticator;
        let header = self.header(authenticator.header.name());
        let token = authenticator.header.token(header.as_deref())?;
        let now = clock::now()?;
        let runtime = Runtime { env: self.env, context: self.context };
        let user = authenticator.verifier.user(token, &self.config.user_ids, now, runtime).await;
        user.map_err(|why| {
            if let AuthError::Rejected(why) = &why {
                log::token_rejected(self.ids.request_id, why, now);
            }
            why.into_problem()
        })
    }

    pub(crate) fn rate_limiter(&self) -> RateLimiter<'_> {
        RateLimiter { env: self.env, config: &self.config.rate_limit }
    }

    /// Counts the request against its address, before the body is read and the token verified. The user is
    /// counted only after that, because an invalid token could name any user.
    pub(crate) async fn count_address(&self, scope: LimitScope) -> Result<(), Problem> {
        self.rate_limiter().check_address(scope, self.address()).await
    }

    fn header(&self, name: &str) -> Option<String> {
        self.request.header(name)
    }

    fn body_headers(&self) -> BodyHeaders {
        BodyHeaders {
            content_type: self.header("content-type"),
            content_encoding: self.header("content-encoding"),
            content_length: self.header("content-length"),
        }
    }

    pub(crate) async fn body(&self) -> Result<Vec<u8>, Problem> {
        let reading = pin!(self.request.body());
        match select(reading, pin!(Delay::from(BODY_TIME_MAX))).await {
            Either::Left((body, _)) => body.map_err(|_| Problem::invalid("body", "could not be read")),
            Either::Right(_) => Err(Problem::new(Code::RequestTimeout, "the body did not arrive in time")),
        }
    }
}

/// A claim's pass after verification.
type SentPass = Result<ShownPass, TokenRejection>;

/// Returns the end of the detail of `pass_required` for a claim with an invalid pass.
fn invalid_pass(why: &TokenRejection) -> String {
    format!("; the pass sent is invalid: {}", why.reason)
}

/// Handles `GET /livez`: always returns 200.
pub fn live() -> Response {
    Response::empty(200).with_body("text/plain; charset=utf-8", b"ok\n".to_vec())
}

/// Returns 22 random characters that no client can guess.
fn random_text() -> Result<String, Problem> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|_| Problem::new(Code::Unavailable, "the runtime's random number generator failed"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn new_key() -> Result<IdempotencyKey, Problem> {
    random_text()?.try_into().map_err(|why| Problem::invalid("Idempotency-Key", why))
}

fn not_serialized() -> Problem {
    Problem::new(Code::Unavailable, "the response could not be serialized")
}
