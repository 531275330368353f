//! What each call does, as a list of verbs: their order is the order in which a request is refused.

use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::{Attempt, CampaignId, ClaimRequest, Code, IdempotencyKey, Problem, Timestamp, UserId};
use futures_util::future::{Either, select};
use serde::Serialize;
use worker::{Context, Delay, Env};

use crate::core_client::circuit_breaker::Kind;
use crate::campaign_cache::store::{Asked, Memory, Refresh};
use crate::clock::age_ms;
use crate::config::{ClientAddress, Config};
use crate::admission::{self, BodyHeaders, ClaimHead};
use crate::auth::Identity;
use crate::request::Incoming;
use crate::core_client::Origin;
use crate::rate_limit::{Counted, Rates};
use crate::response::Reply;
use crate::campaign_cache::store as campaigns;
use crate::core_client as origin;
use crate::rate_limit as rates;
use crate::clock;

/// A body that takes longer to arrive is not waited for.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);
const DEMO_TOKEN_S: u32 = 3_600;
/// How long a view waits for the snapshot that another request has asked for, and how often it looks.
const VIEW_MS_MAX: i64 = 2_000;
/// When the other has failed, a view asks itself only until then: with its own call it would take too long.
const VIEW_ASKS_MS_MAX: i64 = 400;
const VIEW_LOOK: Duration = Duration::from_millis(20);

/// A request under way.
#[derive(Debug)]
pub struct Call<'a> {
    request: &'a Incoming,
    env: &'a Env,
    context: &'a Context,
    config: Rc<Config>,
    request_id: &'a str,
}

impl<'a> Call<'a> {
    /// `request`, of which nothing goes to core but what is parsed here.
    pub fn new(
        request: &'a Incoming,
        env: &'a Env,
        context: &'a Context,
        config: Rc<Config>,
        request_id: &'a str,
    ) -> Self {
        Self { request, env, context, config, request_id }
    }

    /// `POST /v1/campaigns/{id}/claims`
    pub async fn claim(&self, campaign: &str) -> Result<Reply, Problem> {
        let head = self.claim_head(campaign)?;
        let now = clock::now()?;
        let known = campaigns::recall(head.campaign(), now);
        if let Memory::Snapshot(_) = known {
            self.refresh_behind(head.campaign(), &known, now);
        }
        head.check_known(&known, now)?;
        self.count_address(Counted::Claims).await?;
        let quantity = admission::parse_claim_body(&self.body().await?)?;
        let user = self.user().await?;
        self.rates().check_user(Counted::Claims, &user).await?;
        // Only now: nobody without a token has core asked for made-up ids.
        self.refresh_behind(head.campaign(), &known, clock::now()?);
        let attempt = head.attempt();
        self.forward(&head.into_request(user, quantity, new_key()?), attempt).await
    }

    /// `GET /v1/claims/{claim_id}`
    pub async fn own_claim(&self, id: &str) -> Result<Reply, Problem> {
        self.count_address(Counted::LookUps).await?;
        let user = self.user().await?;
        let id = admission::own_claim(id, &user)?;
        self.rates().check_user(Counted::LookUps, &user).await?;
        let path = format!("/internal/v1/claims/{id}");
        let call = origin::Call::new(Kind::LookUps, &path, self.request_id);
        let call = origin::Call { user: user.as_str(), ..call };
        Ok(self.to_core(call).await?.into_reply())
    }

    /// `GET /v1/campaigns/{id}`
    pub async fn campaign(&self, id: &str) -> Result<Reply, Problem> {
        let snapshot = match self.snapshot(&admission::campaign_id(id)?).await? {
            Asked::Campaign(snapshot) => snapshot,
            Asked::Refused(answer) => return Ok(answer.into_reply()),
        };
        let view = snapshot.view_at(clock::now()?);
        let etag = view.etag().map_err(|_| unwritable())?;
        let reply = if admission::names_etag(self.header("if-none-match").as_deref(), &etag) {
            Reply::empty(304)
        } else {
            Reply::json(200, &view)?
        };
        Ok(reply.with("etag", etag).with("cache-control", "public, max-age=1"))
    }

    /// `POST /demo/token`
    pub async fn demo_token(&self) -> Result<Reply, Problem> {
        #[derive(Serialize)]
        struct DemoToken {
            token: String,
            user_id: UserId,
        }
        self.check_body_headers()?;
        let user_id = admission::parse_demo_body(&self.body().await?)?;
        let Identity::Secret(tokens) = &self.config.identity else {
            return Err(Problem::new(Code::NotFound, "a public key signs no tokens"));
        };
        let token = tokens.mint(&user_id, clock::now()?, DEMO_TOKEN_S).map_err(|_| unwritable())?;
        Reply::json(200, &DemoToken { token, user_id })
    }

    fn claim_head(&self, campaign: &str) -> Result<ClaimHead, Problem> {
        let key = self.header("idempotency-key");
        let attempt = self.header(Attempt::HEADER);
        let head = ClaimHead::parse(campaign, key.as_deref(), attempt.as_deref())?;
        self.check_body_headers()?;
        Ok(head)
    }

    fn check_body_headers(&self) -> Result<(), Problem> {
        self.body_headers().check().inspect_err(|_| self.request.refuse_body())
    }

    async fn forward(&self, claim: &ClaimRequest, attempt: Attempt) -> Result<Reply, Problem> {
        let body = serde_json::to_string(claim).map_err(|_| unwritable())?;
        let asked_at = clock::now()?;
        let kind = campaigns::kind(&claim.campaign_id, asked_at, Kind::Claims);
        let call = origin::Call {
            body: Some(&body),
            user: claim.user_id.as_str(),
            idempotency_key: claim.idempotency_key.as_str(),
            attempt,
            ..origin::Call::new(kind, "/internal/v1/claims", self.request_id)
        };
        let answer = self.to_core(call).await?;
        campaigns::hear(&claim.campaign_id, answer.heard(), asked_at);
        Ok(answer.into_reply())
    }

    /// Makes `call` in the client's name.
    async fn to_core(&self, call: origin::Call<'_>) -> Result<origin::Answer, Problem> {
        let client_ip = self.address().map(|address| address.to_string()).unwrap_or_default();
        origin::Call { client_ip: &client_ip, ..call }.send(&self.origin()).await
    }

    fn origin(&self) -> Origin<'_> {
        Origin::new(self.env, &self.config)
    }

    /// Where the request comes from.
    fn address(&self) -> Option<IpAddr> {
        let text = match &self.config.client_address {
            ClientAddress::Header(name) => self.header(name),
            ClientAddress::Peer => self.request.peer(),
        };
        rates::parse_address(text.as_deref())
    }

    /// A snapshot that is good enough to show, or why core gives none.
    async fn snapshot(&self, id: &CampaignId) -> Result<Asked, Problem> {
        let began_at = clock::now()?;
        loop {
            let now = clock::now()?;
            let known = campaigns::recall(id, now);
            match &known {
                Memory::Unknown => return Err(admission::campaign_not_found()),
                Memory::Snapshot(snapshot) => {
                    self.refresh_behind(id, &known, now);
                    return Ok(Asked::Campaign(Rc::clone(snapshot)));
                }
                Memory::Nothing => {}
            }
            let waited_ms = age_ms(began_at, now);
            if waited_ms <= VIEW_ASKS_MS_MAX
                && let Some(refresh) = Refresh::begin(id, &known, now)
            {
                self.count_address(Counted::Campaigns).await?;
                return refresh.run(&self.origin(), self.request_id).await;
            }
            if waited_ms >= VIEW_MS_MAX {
                return Err(Problem::new(Code::Unavailable, "no word of the campaign yet: ask again"));
            }
            Delay::from(VIEW_LOOK).await;
        }
    }

    /// Has the next snapshot fetched, when it is due, without making this request wait for it.
    fn refresh_behind(&self, id: &CampaignId, known: &Memory, now: Timestamp) {
        let Some(refresh) = Refresh::begin(id, known, now) else {
            return;
        };
        let (env, config, request_id) =
            (self.env.clone(), Rc::clone(&self.config), self.request_id.to_owned());
        self.context.wait_until(async move {
            // What went wrong has been logged, and this request is decided without it.
            let _ = refresh.run(&Origin::new(&env, &config), &request_id).await;
        });
    }

    async fn user(&self) -> Result<UserId, Problem> {
        let authorization = self.header("authorization");
        let token = admission::bearer(authorization.as_deref())?;
        self.config.identity.user(token, clock::now()?).await.map_err(|_| admission::unauthenticated())
    }

    fn rates(&self) -> Rates<'_> {
        Rates { env: self.env, config: &self.config.rates }
    }

    /// Counts the address, before anything is done that costs: to read a body, to verify a token. The user is counted only
    /// after that, as whoever sends a bad token names anybody in it.
    async fn count_address(&self, counted: Counted) -> Result<(), Problem> {
        self.rates().check_address(counted, self.address()).await
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

/// The answer to `GET /livez`, which touches nothing.
pub fn live() -> Reply {
    Reply::empty(200).with_body("text/plain; charset=utf-8", b"ok\n".to_vec())
}

/// 22 characters that nobody can guess.
fn random_text() -> Result<String, Problem> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Problem::new(Code::Unavailable, "no randomness"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn new_key() -> Result<IdempotencyKey, Problem> {
    random_text()?.try_into().map_err(|why| Problem::invalid("Idempotency-Key", why))
}

fn unwritable() -> Problem {
    Problem::new(Code::Unavailable, "the answer could not be written")
}
