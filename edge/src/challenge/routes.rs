//! The calls about challenges.

use claimgate_shared::challenge::SolvedChallenge;
use claimgate_shared::problem::parse_json;
use claimgate_shared::{Code, Problem};

use super::{Challenges, Solver};
use crate::admission;
use crate::campaign_cache::store::{self, Lookup};
use crate::clock;
use crate::handlers::Handler;
use crate::rate_limit::LimitScope;
use crate::response::Response;

impl Handler<'_> {
    /// Handles `GET /v1/campaigns/{id}/challenge`: issues a challenge for the caller and this campaign.
    pub async fn challenge(&self, campaign: &str) -> Result<Response, Problem> {
        let challenges = self.challenges()?;
        self.count_address(LimitScope::Passes).await?;
        let solver = self.solver(campaign).await?;
        Response::json(200, &challenges.issue(solver, clock::now()?).await?)
    }

    /// Handles `POST /v1/campaigns/{id}/pass`: returns a pass for a solved challenge.
    pub async fn pass(&self, campaign: &str) -> Result<Response, Problem> {
        let challenges = self.challenges()?;
        self.check_body_headers()?;
        self.count_address(LimitScope::Passes).await?;
        let answer: SolvedChallenge = parse_json(&self.body().await?)?;
        let solver = self.solver(campaign).await?;
        challenges.check(&answer, &solver, self.env, clock::now()?).await?;
        Response::json(200, &challenges.pass(solver, clock::now()?)?)
    }

    fn challenges(&self) -> Result<&Challenges, Problem> {
        let none = || Problem::new(Code::NotFound, "this edge issues no passes");
        self.config.challenges.as_ref().ok_or_else(none)
    }

    async fn solver(&self, campaign: &str) -> Result<Solver, Problem> {
        let user = self.user().await?;
        let campaign = admission::campaign_id(campaign)?;
        self.rate_limiter().check_user(LimitScope::Passes, &user).await?;
        if let Lookup::NotFound = store::lookup(&campaign, clock::now()?) {
            return Err(admission::campaign_not_found());
        }
        Ok(Solver { user, campaign, address: self.address().map(|address| address.to_string()) })
    }
}
