//! The scratch campaign, which exists for one drill.

use std::time::Duration;

use claimgate_client::{Admin, Error, NewCampaign, RETRY_TIMEOUT, random_key, retry_until_decided};
use claimgate_shared::{CampaignId, CampaignState, Code, Limits, Timestamp};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{Console, DrillError, Installation, Plan};

/// The campaign opens a day in the past, because clocks may differ, and closes after a day, in case the drill
/// is killed.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;
/// Time limit until the campaign must be open at the target.
const OPEN_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);

/// The name of each scratch campaign, and the prefix of its id.
const NAME: &str = "A scratch campaign of claimgate drill";
const ID_PREFIX: &str = "drill-";

/// Returns whether the campaign with this id and name was created for a drill.
pub fn is_scratch(id: &str, name: &str) -> bool {
    id.starts_with(ID_PREFIX) && name == NAME
}

#[derive(Debug)]
pub(crate) struct Scratch {
    /// The campaign's id.
    pub(crate) id: CampaignId,
    /// When the campaign was created.
    pub(crate) created_at: Timestamp,
}

impl Scratch {
    pub(crate) async fn create(
        installation: &Installation,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Self, DrillError> {
        let created = DrillError::at("creating the scratch campaign");
        let id = id(now, random_key().map_err(&created)?.as_str())?;
        let campaign = NewCampaign {
            id: id.clone(),
            name: NAME.to_owned(),
            starts_at: Some(now.saturating_add_ms(-DAY_MS)),
            ends_at: Some(now.saturating_add_ms(DAY_MS)),
            time_zone: "UTC".to_owned(),
            limits: Limits {
                total: Some(if plan.codes { 0 } else { plan.units }),
                per_user: Some(plan.per_user),
                per_user_per_day: None,
                per_claim: None,
            },
            hold_seconds: None,
            pass: None,
            codes: plan.codes,
        };
        let admin = &installation.admin;
        // A retry after a lost response is safe: it returns the existing identical campaign.
        retry_until_decided(RETRY_TIMEOUT, async || admin.create(&campaign).await).await.map_err(&created)?;
        let scratch = Self { id, created_at: now };
        if plan.codes {
            scratch.add_codes(admin, plan.units).await.map_err(created)?;
        }
        Ok(scratch)
    }

    /// Adds the codes, then raises the total.
    async fn add_codes(&self, admin: &Admin, units: u32) -> Result<(), Error> {
        // One more than units, because the code of the claim that the drill returns is void.
        let codes: Vec<_> = (0..=units).map(|number| format!("DRILL-{number:06}")).collect();
        let codes = codes.join("\n").into_bytes();
        retry_until_decided(RETRY_TIMEOUT, async || admin.add_codes(&self.id, codes.clone()).await).await?;
        retry_until_decided(RETRY_TIMEOUT, async || {
            let view = admin.campaign(&self.id).await?.read()?;
            if view.campaign.limits.total == Some(units) {
                return Ok(());
            }
            let change = json!({"version": view.campaign.version, "limits": {"total": units}});
            admin.change(&self.id, &change).await.map(drop)
        })
        .await
    }

    /// Waits until the campaign is open at the target.
    pub(crate) async fn wait_until_open(
        &self,
        installation: &Installation,
        console: Console<'_>,
    ) -> Result<(), DrillError> {
        let deadline = Instant::now() + OPEN_MAX;
        (console.progress)("waiting until the scratch campaign is open");
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
                    "it is not found there; does this URL belong to the same installation as the admin API?"
                        .to_owned()
                }
                Err(error) if error.retry_after().is_some() => error.to_string(),
                Err(error) if error.is(Code::NotFound) => {
                    let url = &installation.url;
                    return Err(DrillError::Setup(format!(
                        "{url} accepts no claims: give the URL of the edge or of core's internal API, not of the admin API"
                    )));
                }
                Err(error) => {
                    return Err(DrillError::Call { doing: "reading the scratch campaign", error });
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

    /// Checks that the target accepts users' tokens; otherwise it would reject every claim.
    pub(crate) async fn check_tokens(&self, installation: &Installation) -> Result<(), DrillError> {
        let user = "u0".parse().map_err(|error| DrillError::Setup(format!("u0: {error}")))?;
        let token = installation.caller(&user, self.created_at)?.token;
        let target = &installation.target;
        let answer = retry_until_decided(RETRY_TIMEOUT, async || target.admits(&token, &self.id).await).await;
        answer.map_err(|error| {
            if error.is(Code::Unauthenticated) {
                let url = &installation.url;
                return DrillError::Setup(format!(
                    "{url} does not accept users' tokens signed with this machine's CLAIMGATE_USER_JWT_KEY: {error}"
                ));
            }
            DrillError::Call { doing: "reading a user's claims", error }
        })
    }

    /// Ends the campaign.
    pub(crate) async fn end(&self, installation: &Installation) -> Result<(), claimgate_client::Error> {
        retry_until_decided(RETRY_TIMEOUT, async || installation.admin.end(&self.id).await).await?;
        Ok(())
    }
}

/// Returns `drill-TIME-SUFFIX`: the time helps people tell campaigns apart, the random suffix makes the id
/// unique.
fn id(now: Timestamp, random: &str) -> Result<CampaignId, DrillError> {
    let digits: String = now.to_string().chars().filter(char::is_ascii_digit).take(14).collect();
    let id = format!("{ID_PREFIX}{digits}-{}", random.get(..8).unwrap_or(random));
    id.parse().map_err(|error| DrillError::Setup(format!("{id}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_campaigns_id_contains_its_creation_time() {
        let now: Timestamp = "2026-11-23T22:05:07.123Z".parse().unwrap();
        assert_eq!(id(now, "Ab-_efghijkl").unwrap().as_str(), "drill-20261123220507-Ab-_efgh");
    }
}
