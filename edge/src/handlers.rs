//! What each route does, as a list of verbs: their order is the order in which a request is refused.

use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::http::IDEMPOTENCY_KEY_HEADER;
use claimgate_shared::{Attempt, CampaignId, ClaimRequest, Code, IdempotencyKey, Problem, Timestamp, UserId};
use futures_util::future::{Either, select};
use serde::Serialize;
use worker::{Context, Delay, Env};

use crate::admission::{self, BodyHeaders, ClaimHead};
use crate::auth::{self, Authenticator};
use crate::campaign_cache::refresh::{Refresh, Refreshed};
use crate::campaign_cache::store::{self, Lookup};
use crate::clock::{self, age_ms};
use crate::config::{ClientAddress, Config};
use crate::core_client::circuit_breaker::CallKind;
use crate::core_client::{CoreClient, CoreRequest, CoreResponse};
use crate::rate_limit::{self, LimitScope, RateLimiter};
use crate::request::{self, Request};
use crate::response::Response;

/// The time limit for a request's body to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);
const DEMO_TOKEN_S: u32 = 3_600;
/// How long a view waits for the snapshot that another request is fetching, and how often it looks for it.
const VIEW_MS_MAX: i64 = 2_000;
/// How late a view may still begin a call to core itself, when the other request has failed: later it would take too long.
const VIEW_CALL_MS_MAX: i64 = 400;
const VIEW_POLL: Duration = Duration::from_millis(20);

/// By which logs and traces of the edge and of core name a request.
#[derive(Debug, Clone, Copy)]
pub struct Ids<'a> {
    /// Its own id.
    pub request_id: &'a str,
    /// Its place in a trace; empty when there is no tracing.
    pub traceparent: &'a str,
}

/// A request, and what its handler needs. Core gets nothing of it except what is parsed here.
#[derive(Debug)]
pub struct Handler<'a> {
    /// The browser's request.
    pub request: &'a Request,
    /// The Worker's bindings.
    pub env: &'a Env,
    /// What goes on after the response is registered with it.
    pub context: &'a Context,
    /// The Worker's settings.
    pub config: Rc<Config>,
    /// What names the request.
    pub ids: Ids<'a>,
}

impl Handler<'_> {
    /// `POST /v1/campaigns/{id}/claims`: core's response to the claim.
    ///
    /// # Errors
    /// The edge's own refusal, or `unavailable` when core's decision is unknown.
    pub async fn claim(&self, campaign: &str) -> Result<Response, Problem> {
        let head = self.claim_head(campaign)?;
        let now = clock::now()?;
        let cached = store::lookup(head.campaign(), now);
        if let Lookup::Hit(_) = cached {
            self.refresh_in_background(head.campaign(), &cached, now);
        }
        head.check_cached(&cached, now)?;
        self.count_address(LimitScope::Claims).await?;
        let quantity = admission::parse_claim_body(&self.body().await?)?;
        let user = self.user().await?;
        self.rate_limiter().check_user(LimitScope::Claims, &user).await?;
        // Not before the token is checked: without one, made-up ids must not reach core.
        self.refresh_in_background(head.campaign(), &cached, clock::now()?);
        let attempt = head.attempt();
        self.forward(&head.into_request(user, quantity, new_key()?), attempt).await
    }

    /// `GET /v1/claims/{claim_id}`: core's response about the caller's own claim.
    ///
    /// # Errors
    /// The edge's own refusal, or `unavailable` when core does not answer.
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

    /// `GET /v1/campaigns/{id}/claims`: core's response about the caller's own claims, and what is left to the caller.
    ///
    /// # Errors
    /// The edge's own refusal, or `unavailable` when core does not answer.
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

    /// `GET /v1/campaigns/{id}`: the campaign's view, with an `ETag`, or 304.
    ///
    /// # Errors
    /// The edge's own refusal, or `unavailable` when there is no snapshot in time.
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

    /// `POST /demo/token`: a token for the user in the body, valid for an hour.
    ///
    /// # Errors
    /// The edge's own refusal.
    pub async fn demo_token(&self) -> Result<Response, Problem> {
        #[derive(Serialize)]
        struct DemoToken {
            token: String,
            user_id: UserId,
        }
        self.check_body_headers()?;
        let user_id = admission::parse_demo_body(&self.body().await?)?;
        let Authenticator::Secret(tokens) = &self.config.authenticator else {
            return Err(Problem::new(Code::NotFound, "a public key cannot sign tokens"));
        };
        let token = tokens.mint(&user_id, clock::now()?, DEMO_TOKEN_S).map_err(|_| not_serialized())?;
        Response::json(200, &DemoToken { token, user_id })
    }

    fn claim_head(&self, campaign: &str) -> Result<ClaimHead, Problem> {
        let key = self.header(IDEMPOTENCY_KEY_HEADER);
        let attempt = self.header(Attempt::HEADER);
        let head = ClaimHead::parse(campaign, key.as_deref(), attempt.as_deref())?;
        self.check_body_headers()?;
        Ok(head)
    }

    fn check_body_headers(&self) -> Result<(), Problem> {
        self.body_headers().check().inspect_err(|_| self.request.discard_body())
    }

    /// Sends `claim` to core, and updates the cache by the response.
    async fn forward(&self, claim: &ClaimRequest, attempt: Attempt) -> Result<Response, Problem> {
        let body = serde_json::to_string(claim).map_err(|_| not_serialized())?;
        let requested_at = clock::now()?;
        let kind = store::call_kind(&claim.campaign_id, requested_at, CallKind::Claims);
        let request = CoreRequest {
            body: Some(&body),
            user: claim.user_id.as_str(),
            idempotency_key: claim.idempotency_key.as_str(),
            attempt,
            ..CoreRequest::new(kind, "/internal/v1/claims", self.ids.request_id)
        };
        let response = self.send(request).await?;
        store::update(&claim.campaign_id, response.summary(), requested_at);
        Ok(response.into_response())
    }

    /// Sends `request` to core, with the client's address.
    async fn send(&self, request: CoreRequest<'_>) -> Result<CoreResponse, Problem> {
        let client_ip = self.address().map(|address| address.to_string()).unwrap_or_default();
        let traceparent = self.ids.traceparent;
        self.core().send(CoreRequest { client_ip: &client_ip, traceparent, ..request }).await
    }

    fn core(&self) -> CoreClient<'_> {
        CoreClient::new(self.env, &self.config)
    }

    /// The client's address.
    fn address(&self) -> Option<IpAddr> {
        let text = match &self.config.client_address {
            ClientAddress::Header(name) => self.header(name),
            ClientAddress::Peer => self.request.peer(),
        };
        rate_limit::parse_address(text.as_deref())
    }

    /// A snapshot that is recent enough to show, or the problem that core answers.
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
                    "core has not described the campaign yet: retry",
                ));
            }
            Delay::from(VIEW_POLL).await;
        }
    }

    /// Has the next snapshot fetched, when it is due, without making this request wait for it.
    fn refresh_in_background(&self, id: &CampaignId, cached: &Lookup, now: Timestamp) {
        let Some(refresh) = Refresh::begin(id, cached, now) else {
            return;
        };
        let (env, config, request_id) =
            (self.env.clone(), Rc::clone(&self.config), self.ids.request_id.to_owned());
        self.context.wait_until(async move {
            // A failure has been logged, and this request is decided without it.
            let _ = refresh.run(&CoreClient::new(&env, &config), &request_id).await;
        });
    }

    async fn user(&self) -> Result<UserId, Problem> {
        let authorization = self.header("authorization");
        let token = auth::bearer(authorization.as_deref())?;
        let user = self.config.authenticator.user(token, clock::now()?).await;
        user.map_err(|_| auth::unauthenticated())
    }

    fn rate_limiter(&self) -> RateLimiter<'_> {
        RateLimiter { env: self.env, config: &self.config.rate_limit }
    }

    /// Counts the address before anything expensive is done: reading a body, verifying a token. The user is counted only
    /// after that, because a client with an invalid token could name any user in it.
    async fn count_address(&self, scope: LimitScope) -> Result<(), Problem> {
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

    async fn body(&self) -> Result<Vec<u8>, Problem> {
        let reading = pin!(self.request.body());
        match select(reading, pin!(Delay::from(BODY_TIME_MAX))).await {
            Either::Left((body, _)) => body.map_err(|_| Problem::invalid("body", "could not be read")),
            Either::Right(_) => Err(Problem::new(Code::RequestTimeout, "the body took too long to arrive")),
        }
    }
}

/// `GET /livez`: 200, which depends on nothing else.
pub fn live() -> Response {
    Response::empty(200).with_body("text/plain; charset=utf-8", b"ok\n".to_vec())
}

/// 22 random characters that no client can guess.
fn random_text() -> Result<String, Problem> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Problem::new(Code::Unavailable, "no randomness"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn new_key() -> Result<IdempotencyKey, Problem> {
    random_text()?.try_into().map_err(|why| Problem::invalid("Idempotency-Key", why))
}

fn not_serialized() -> Problem {
    Problem::new(Code::Unavailable, "the response could not be serialized")
}
