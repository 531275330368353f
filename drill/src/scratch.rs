//! The scratch campaign: made for one drill, over when that is.

use std::time::Duration;

use claimgate_client::{NewCampaign, PATIENCE, random_key, until_decided};
use claimgate_shared::{CampaignId, CampaignState, Code, Limits, Timestamp};
use tokio::time::{Instant, sleep};

use crate::{DrillError, Installation, Plan, Voice};

/// Clocks may differ: the campaign was opened long ago, and closes by itself if a killed drill left it open.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;
/// How long a campaign may take to be open where the claims go.
const OPEN_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);

/// The scratch campaign.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Its id, which no other has.
    pub(crate) id: CampaignId,
    /// When it was made.
    pub(crate) made_at: Timestamp,
}

impl Scratch {
    /// Creates it.
    pub(crate) async fn create(
        installation: &Installation,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Self, DrillError> {
        let created = DrillError::at("creating the scratch campaign");
        let id = id(now, random_key().map_err(&created)?.as_str())?;
        let campaign = NewCampaign {
            id: id.clone(),
            name: "A scratch campaign of claimgate drill".to_owned(),
            starts_at: now.saturating_add_ms(-DAY_MS),
            ends_at: Some(now.saturating_add_ms(DAY_MS)),
            time_zone: "UTC".to_owned(),
            limits: Limits {
                total: Some(plan.units),
                per_user: Some(plan.per_user),
                per_user_per_day: None,
                per_claim: None,
            },
            hold_seconds: None,
        };
        // Again after a lost answer: an identical campaign is the same one.
        until_decided(PATIENCE, async || installation.admin.create(&campaign).await)
            .await
            .map_err(created)?;
        Ok(Self { id, made_at: now })
    }

    /// Waits until claims on it are decided where they will be sent.
    pub(crate) async fn until_open(
        &self,
        installation: &Installation,
        voice: Voice<'_>,
    ) -> Result<(), DrillError> {
        let deadline = Instant::now() + OPEN_MAX;
        (voice.progress)("waiting until the scratch campaign is open");
        loop {
            let seen = match installation.target.campaign(&self.id).await {
                Ok(answer) => {
                    let view = answer.read().map_err(DrillError::at("reading the scratch campaign"))?;
                    if view.state == CampaignState::Open && view.remaining.is_some() {
                        return Ok(());
                    }
                    format!("it is {:?}", view.state).to_lowercase()
                }
                Err(error) if error.is(Code::CampaignNotFound) => {
                    "it is not found: is this the installation whose admin API was named?".to_owned()
                }
                Err(error) if error.retry_after().is_some() => error.to_string(),
                Err(error) if error.is(Code::NotFound) => {
                    let url = &installation.url;
                    return Err(DrillError::Setup(format!(
                        "{url} takes no claims: name the edge or core's internal API, not the admin API"
                    )));
                }
                Err(error) => {
                    return Err(DrillError::Call { doing: "asking for the scratch campaign", error });
                }
            };
            if Instant::now() > deadline {
                return Err(DrillError::TooSlow(format!(
                    "the scratch campaign {} did not open at {} within {} s: {seen}",
                    self.id,
                    installation.url,
                    OPEN_MAX.as_secs()
                )));
            }
            sleep(POLL).await;
        }
    }

    /// Checks that users' tokens are taken where the claims will be sent: otherwise each of them would be refused.
    pub(crate) async fn until_admitted(&self, installation: &Installation) -> Result<(), DrillError> {
        let user = "u0".parse().map_err(|error| DrillError::Setup(format!("u0: {error}")))?;
        let token = installation.token(&user, self.made_at)?;
        let target = &installation.target;
        let answer = until_decided(PATIENCE, async || target.admits(&token, &self.id).await).await;
        answer.map_err(|error| {
            if error.is(Code::Unauthenticated) {
                let url = &installation.url;
                return DrillError::Setup(format!(
                    "{url} does not take users' tokens signed with CLAIMGATE_USER_JWT_KEY as it is here: {error}"
                ));
            }
            DrillError::Call { doing: "asking for a user's claims", error }
        })
    }

    /// Ends it for good.
    pub(crate) async fn end(&self, installation: &Installation) -> Result<(), claimgate_client::Error> {
        until_decided(PATIENCE, async || installation.admin.end(&self.id).await).await?;
        Ok(())
    }
}

/// `drill-` with the time, to be told apart by people, and something random, so that no two meet.
fn id(now: Timestamp, random: &str) -> Result<CampaignId, DrillError> {
    let digits: String = now.to_string().chars().filter(char::is_ascii_digit).take(14).collect();
    let id = format!("drill-{digits}-{}", random.get(..8).unwrap_or(random));
    id.parse().map_err(|error| DrillError::Setup(format!("{id}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_campaign_says_what_it_is_and_when_it_was_made() {
        let now: Timestamp = "2026-11-23T22:05:07.123Z".parse().unwrap();
        assert_eq!(id(now, "Ab-_efghijkl").unwrap().as_str(), "drill-20261123220507-Ab-_efgh");
    }
}
