//! The installation that is drilled, and the target of the claims.

use std::time::{Duration, Instant};

use claimgate_client::{Admin, Answer, ClaimCall, Edge, Error, Internal, Retries};
use claimgate_shared::jwt::UserTokens;
use claimgate_shared::{CampaignId, CampaignView, ClaimReply, Code, Timestamp, UserId};
use tokio::time::sleep;

use crate::user::Caller;
use crate::{DrillError, UserIds};

/// Lifetime of a user's token, in seconds: longer than any storm.
const TOKEN_S: u32 = 3600;

/// Time limit for a target to be ready, and the poll interval.
const READY_MAX: Duration = Duration::from_secs(5);
const READY_POLL: Duration = Duration::from_millis(250);

/// A running installation.
#[derive(Debug)]
pub struct Installation {
    /// The target of the claims.
    pub target: Target,
    /// The target's URL, as given.
    pub url: String,
    /// Core's internal API.
    pub internal: Internal,
    /// Core's admin API.
    pub admin: Admin,
    /// The key that signs users' tokens; `None` for core, which needs no such tokens.
    pub users: Option<UserTokens>,
    /// The ids of the simulated users.
    pub user_ids: UserIds,
}

impl Installation {
    /// Returns the user called `name`, with a token that is valid for an hour from `now`.
    pub(crate) fn caller(&self, name: &UserId, now: Timestamp) -> Result<Caller, DrillError> {
        let id = self.user_ids.id(name)?;
        let Some(users) = &self.users else { return Ok(Caller { id, token: String::new() }) };
        let token = users.mint(name, now, TOKEN_S);
        let token = token.map_err(|error| DrillError::Setup(format!("a token for {name}: {error}")))?;
        Ok(Caller { id, token })
    }

    /// Checks the ids of the simulated users again, after the first claim.
    pub(crate) async fn check_user_ids(&self) -> Result<(), DrillError> {
        match self.target {
            Target::Core(_) => Ok(()),
            Target::Edge(_) => self.user_ids.check_again(&self.admin).await,
        }
    }
}

/// The target of the claims.
#[derive(Debug)]
pub enum Target {
    /// Core: claims are sent as a back end sends them.
    Core(Internal),
    /// The edge: claims are sent as a browser sends them.
    Edge(Edge),
}

impl Target {
    /// Detects whether core or the edge listens on `url`. Claims to core are sent with the admin's `token`.
    ///
    /// # Errors
    /// If neither answers, or the target is not ready within 5 s.
    pub async fn find(url: &str, token: &str) -> Result<Self, DrillError> {
        let failed = DrillError::at("detecting whether core or the edge listens on URL");
        // The drill retries calls itself, for as long as its plan says.
        let core = Internal::new(url, token).map_err(&failed)?.with_retries(Retries::NONE);
        let started = Instant::now();
        let mut answer = core.ready().await;
        // A busy machine's core may answer late once, which an edge reports as not ready.
        while answer.as_ref().is_err_and(|error| error.is(Code::Unavailable)) && started.elapsed() < READY_MAX
        {
            sleep(READY_POLL).await;
            answer = core.ready().await;
        }
        let is_edge = match answer {
            // Only an edge lists cores.
            Ok(ready) => ready.json.get("cores").is_some(),
            // Edges of earlier versions do not have this call.
            Err(error) if error.is(Code::NotFound) => true,
            Err(error) => return Err(failed(error)),
        };
        if !is_edge {
            return Ok(Self::Core(core));
        }
        Ok(Self::Edge(Edge::new(url).map_err(failed)?.with_retries(Retries::NONE)))
    }

    /// Returns the target's name in the report.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Core(_) => "core",
            Self::Edge(_) => "edge",
        }
    }

    /// Sends a claim once.
    pub(crate) async fn claim_once(
        &self,
        token: &str,
        call: &mut ClaimCall,
    ) -> Result<Answer<ClaimReply>, Error> {
        match self {
            Self::Core(core) => core.claim_once(call).await,
            Self::Edge(edge) => edge.claim_once(token, call).await,
        }
    }

    /// Checks that the target accepts a user's `token`; core needs none.
    pub(crate) async fn admits(&self, token: &str, id: &CampaignId) -> Result<(), Error> {
        match self {
            Self::Core(_) => Ok(()),
            Self::Edge(edge) => edge.own_claims(token, id).await.map(drop),
        }
    }

    /// Reads the campaign from the target.
    pub(crate) async fn campaign(&self, id: &CampaignId) -> Result<Answer<CampaignView>, Error> {
        match self {
            Self::Core(core) => core.campaign(id).await,
            Self::Edge(edge) => edge.campaign(id).await,
        }
    }
}
