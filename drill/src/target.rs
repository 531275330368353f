//! Where the claims go.

use claimgate_client::{Admin, Answer, ClaimCall, Edge, Error, Internal, Retries};
use claimgate_shared::jwt::UserTokens;
use claimgate_shared::{CampaignId, CampaignView, ClaimReply, Code, Timestamp, UserId};

use crate::DrillError;

/// For how long a user's token is good: longer than any storm takes, in seconds.
const TOKEN_S: u32 = 3600;

/// A running installation.
#[derive(Debug)]
pub struct Installation {
    /// Where the claims go.
    pub target: Target,
    /// Its address, as it was given.
    pub url: String,
    /// Core's internal API.
    pub internal: Internal,
    /// Core's admin API.
    pub admin: Admin,
    /// What signs users' tokens; core needs nothing of the users'.
    pub users: Option<UserTokens>,
}

impl Installation {
    /// What `user` shows with a claim that is made at `now` or within the hour.
    pub(crate) fn token(&self, user: &UserId, now: Timestamp) -> Result<String, DrillError> {
        let Some(users) = &self.users else { return Ok(String::new()) };
        let token = users.mint(user, now, TOKEN_S);
        token.map_err(|error| DrillError::Setup(format!("a token for {user}: {error}")))
    }
}

/// Where the claims go.
#[derive(Debug)]
pub enum Target {
    /// Straight to core, as a back end's.
    Core(Internal),
    /// Through the edge, as browsers'.
    Edge(Edge),
}

impl Target {
    /// What listens at `url`: core, which then takes claims with the admin's `token`, or the edge.
    ///
    /// # Errors
    /// When neither answers there, or core is not ready.
    pub async fn find(url: &str, token: &str) -> Result<Self, DrillError> {
        let failed = DrillError::at("asking who listens at URL");
        // The drill repeats calls itself, for as long as its plan says.
        let core = Internal::new(url, token).map_err(&failed)?.with_retries(Retries::NONE);
        match core.ready().await {
            Ok(_) => Ok(Self::Core(core)),
            // Core has this call, the edge has not.
            Err(error) if error.is(Code::NotFound) => {
                Ok(Self::Edge(Edge::new(url).map_err(failed)?.with_retries(Retries::NONE)))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// What it is called.
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

    /// Whether `token` is taken there; core has none of users.
    pub(crate) async fn admits(&self, token: &str, id: &CampaignId) -> Result<(), Error> {
        match self {
            Self::Core(_) => Ok(()),
            Self::Edge(edge) => edge.own_claims(token, id).await.map(drop),
        }
    }

    /// The campaign as it is seen from there.
    pub(crate) async fn campaign(&self, id: &CampaignId) -> Result<Answer<CampaignView>, Error> {
        match self {
            Self::Core(core) => core.campaign(id).await,
            Self::Edge(edge) => edge.campaign(id).await,
        }
    }
}
