//! What each call does, as a list of verbs: their order is the order in which a request is refused.

use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::{CampaignId, ClaimRequest, Code, IdempotencyKey, Problem, UserId};
use futures_util::TryStreamExt as _;
use futures_util::future::{Either, select};
use serde::Serialize;
use worker::{ByteStream, Context, Delay, Env, Request};

use crate::campaigns::{Memory, Refresh, Snapshot};
use crate::config::Config;
use crate::gate::{self, BodyHeaders, ClaimHead};
use crate::rates::Counted;
use crate::reply::Reply;
use crate::{campaigns, clock, origin, rates};

/// A body that takes longer to arrive is not waited for.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);
const DEMO_TOKEN_S: u32 = 3_600;

/// A request under way.
#[derive(Debug)]
pub struct Call<'a> {
    request: &'a Request,
    env: &'a Env,
    context: &'a Context,
    config: Rc<Config>,
    request_id: &'a str,
    address: Option<IpAddr>,
}

impl<'a> Call<'a> {
    /// `request`, of which nothing goes to core but what is parsed here.
    pub fn new(
        request: &'a Request,
        env: &'a Env,
        context: &'a Context,
        config: Rc<Config>,
        request_id: &'a str,
    ) -> Self {
        Self {
            address: rates::parse_address(header(request, "cf-connecting-ip").as_deref()),
            request,
            env,
            context,
            config,
            request_id,
        }
    }

    /// `POST /v1/campaigns/{id}/claims`
    pub async fn claim(&self, campaign: &str) -> Result<Reply, Problem> {
        let head = self.claim_head(campaign)?;
        let now = clock::now()?;
        let known = campaigns::recall(head.campaign(), now);
        head.check_known(&known, now)?;
        let quantity = gate::parse_claim_body(&self.body().await?)?;
        let user = self.user()?;
        self.check_rates(Counted::Claims, &user).await?;
        self.refresh_behind(head.campaign(), &known)?;
        self.forward(&head.into_request(user, quantity, new_key()?)).await
    }

    /// `GET /v1/claims/{claim_id}`
    pub async fn own_claim(&self, id: &str) -> Result<Reply, Problem> {
        let user = self.user()?;
        let id = gate::own_claim(id, &user)?;
        self.check_rates(Counted::LookUps, &user).await?;
        let path = format!("/internal/v1/claims/{id}");
        let answer = self.to_core(&path, None, &user, "").await?;
        Ok(answer.into_reply())
    }

    /// `GET /v1/campaigns/{id}`
    pub async fn campaign(&self, id: &str) -> Result<Reply, Problem> {
        let snapshot = self.snapshot(&gate::campaign_id(id)?).await?;
        let view = snapshot.view_at(clock::now()?);
        let etag = campaigns::etag(&view).map_err(|_| unwritable())?;
        let reply = if gate::names_etag(self.header("if-none-match").as_deref(), &etag) {
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
        self.body_headers().check()?;
        let user_id = gate::parse_demo_body(&self.body().await?)?;
        let tokens = &self.config.user_tokens;
        let token = tokens.mint(&user_id, clock::now()?, DEMO_TOKEN_S).map_err(|_| unwritable())?;
        Reply::json(200, &DemoToken { token, user_id })
    }

    fn claim_head(&self, campaign: &str) -> Result<ClaimHead, Problem> {
        let key = self.header("idempotency-key");
        let attempt = self.header("claimgate-attempt");
        let head = ClaimHead::parse(campaign, key.as_deref(), attempt.as_deref())?;
        self.body_headers().check()?;
        Ok(head)
    }

    async fn forward(&self, claim: &ClaimRequest) -> Result<Reply, Problem> {
        let body = serde_json::to_string(claim).map_err(|_| unwritable())?;
        let key = claim.idempotency_key.as_str();
        let answer = self.to_core("/internal/v1/claims", Some(&body), &claim.user_id, key).await?;
        Ok(answer.into_reply())
    }

    async fn to_core(
        &self,
        path: &str,
        body: Option<&str>,
        user: &UserId,
        idempotency_key: &str,
    ) -> Result<origin::Answer, Problem> {
        let client_ip = self.address.map(|address| address.to_string());
        let call = origin::Call {
            path,
            body,
            user: user.as_str(),
            client_ip: client_ip.as_deref().unwrap_or_default(),
            idempotency_key,
            request_id: self.request_id,
        };
        call.send(&self.config).await
    }

    /// A snapshot that is good enough to show.
    async fn snapshot(&self, id: &CampaignId) -> Result<Rc<Snapshot>, Problem> {
        let now = clock::now()?;
        let known = campaigns::recall(id, now);
        let refresh = Refresh::begin(id, &known, now);
        match known {
            Memory::Unknown => Err(gate::campaign_not_found()),
            Memory::Snapshot(snapshot) if refresh.is_none() => Ok(snapshot),
            Memory::Snapshot(_) | Memory::Nothing => {
                rates::check_address(self.env, Counted::Campaigns, self.address).await?;
                campaigns::ask_core(&self.config, id, self.request_id).await
            }
        }
    }

    /// Has the next snapshot fetched without making this claim wait for it.
    fn refresh_behind(&self, id: &CampaignId, known: &Memory) -> Result<(), Problem> {
        if let Some(refresh) = Refresh::begin(id, known, clock::now()?) {
            let (config, id, request_id) = (Rc::clone(&self.config), id.clone(), self.request_id.to_owned());
            self.context.wait_until(async move {
                // What went wrong has been logged, and this claim is decided without it.
                let _ = campaigns::ask_core(&config, &id, &request_id).await;
                drop(refresh);
            });
        }
        Ok(())
    }

    fn user(&self) -> Result<UserId, Problem> {
        let authorization = self.header("authorization");
        gate::authenticate(authorization.as_deref(), &self.config.user_tokens, clock::now()?)
    }

    async fn check_rates(&self, counted: Counted, user: &UserId) -> Result<(), Problem> {
        rates::check_address(self.env, counted, self.address).await?;
        rates::check_user(self.env, counted, user).await
    }

    fn header(&self, name: &str) -> Option<String> {
        header(self.request, name)
    }

    fn body_headers(&self) -> BodyHeaders {
        BodyHeaders {
            content_type: self.header("content-type"),
            content_encoding: self.header("content-encoding"),
            content_length: self.header("content-length"),
        }
    }

    async fn body(&self) -> Result<Vec<u8>, Problem> {
        let Some(stream) = self.request.inner().body() else {
            return Ok(Vec::new());
        };
        let reading = pin!(collect(ByteStream::from(stream)));
        match select(reading, pin!(Delay::from(BODY_TIME_MAX))).await {
            Either::Left((body, _)) => body,
            Either::Right(_) => Err(Problem::new(Code::RequestTimeout, "the body took too long to arrive")),
        }
    }
}

/// The answer to `GET /livez`, which touches nothing.
pub fn live() -> Reply {
    Reply::empty(200).with_body("text/plain; charset=utf-8", b"ok\n".to_vec())
}

/// A header's value; sent twice, it is both values joined by ", ".
pub fn header(request: &Request, name: &str) -> Option<String> {
    request.headers().get(name).ok().flatten()
}

/// 22 characters that nobody can guess.
pub fn random_text() -> Result<String, Problem> {
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

/// All of a body, or a refusal as soon as it is too long: one without end is never read to its end.
async fn collect(mut stream: ByteStream) -> Result<Vec<u8>, Problem> {
    let mut body = Vec::new();
    while let Some(chunk) =
        stream.try_next().await.map_err(|_| Problem::invalid("body", "could not be read"))?
    {
        if body.len() + chunk.len() > gate::BODY_BYTES_MAX {
            return Err(gate::too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
