//! What is found out after the storm, for the checks to judge.

use std::time::Duration;

use claimgate_client::{ClaimCall, Error, until_decided};
use claimgate_shared::admin::{AdminView, ClaimItem};
use claimgate_shared::{ClaimId, Quantity};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::DrillError;
use crate::storm::Storm;
use crate::visit::{Outcome, Told};

const POLL: Duration = Duration::from_millis(200);
/// Winners who ask once more.
const AGAIN: usize = 10;

/// What was found out.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// What winners were told in the storm, and when they asked again after it.
    pub(crate) again: Vec<(Told, Told)>,
    /// What a return did; `None` when there was nothing to return.
    pub(crate) returned: Option<Returned>,
    /// Events that still wait for SQL.
    pub(crate) backlog: u64,
    /// The campaign's claims in SQL.
    pub(crate) rows: Vec<ClaimItem>,
    /// Redis and SQL compared by core.
    pub(crate) reconciliation: Value,
}

/// What a return did.
#[derive(Debug)]
pub(crate) struct Returned {
    /// The claim that was returned, twice.
    pub(crate) id: ClaimId,
    /// Units taken before, after it, and after the claim that took the unit.
    pub(crate) taken: [u64; 3],
    /// What the user was told who took the unit.
    pub(crate) next: Told,
    /// What the one was told who came after that; `None` when there was more to have.
    pub(crate) late: Option<Told>,
}

impl Evidence {
    /// Finds out what there is to know after `storm`.
    pub(crate) async fn gather(storm: &Storm<'_>, outcomes: &[Outcome]) -> Result<Self, DrillError> {
        let proof = Proof(storm);
        (storm.voice.progress)("winners ask again; one returns its claim");
        let again = proof.ask_again(outcomes).await?;
        let returned = proof.give_one_back(outcomes).await?;
        let backlog = proof.drain().await?;
        (storm.voice.progress)("reading the claims from SQL");
        let (admin, id, patience) = (&storm.installation.admin, &storm.scratch.id, storm.plan.patience);
        let rows = until_decided(patience, async || admin.claims(id, None, None).await?.read()).await;
        let rows = rows.map_err(DrillError::at("reading the claims from SQL"))?;
        let compared = until_decided(patience, async || admin.reconciliation(id).await).await;
        let reconciliation = compared.map_err(DrillError::at("comparing Redis and SQL"))?.json;
        Ok(Self { again, returned, backlog, rows, reconciliation })
    }
}

/// The way to what is found out.
struct Proof<'a>(&'a Storm<'a>);

impl Proof<'_> {
    /// Some of the winners ask for their claims once more.
    async fn ask_again(&self, outcomes: &[Outcome]) -> Result<Vec<(Told, Told)>, DrillError> {
        let winners = outcomes.iter().filter_map(|outcome| Some((outcome, outcome.claimed()?)));
        let mut again = Vec::new();
        for (outcome, told) in winners.take(AGAIN) {
            again.push((told.clone(), self.decide(ClaimCall::again(outcome.call.request().clone())).await?));
        }
        Ok(again)
    }

    /// A winner returns a claim, twice; a newcomer takes the unit, and the next one finds none.
    async fn give_one_back(&self, outcomes: &[Outcome]) -> Result<Option<Returned>, DrillError> {
        let Some(id) = outcomes.iter().find(|outcome| outcome.claimed().is_some()) else { return Ok(None) };
        let id = id.call.claim_id();
        let before = self.campaign().await?;
        for _ in 0..2 {
            let internal = &self.0.installation.internal;
            let done = until_decided(self.0.plan.patience, async || internal.give_back(&id).await).await;
            done.map_err(DrillError::at("returning a claim by core's internal API"))?;
        }
        let without = self.campaign().await?;
        let next = self.newcomer("next").await?;
        let after = self.campaign().await?;
        let sold_out = before.campaign.remaining == Some(0);
        let late = if sold_out { Some(self.newcomer("late").await?) } else { None };
        let taken = [&before, &without, &after].map(|view| view.taken.unwrap_or_default());
        Ok(Some(Returned { id, taken, next, late }))
    }

    /// A claim of a user who was not there before. It is not marked as new: nothing may be refused from a cache here.
    async fn newcomer(&self, user: &str) -> Result<Told, DrillError> {
        let user = user.parse().map_err(|error| DrillError::Setup(format!("{user}: {error}")))?;
        let call = ClaimCall::new(self.0.scratch.id.clone(), user, Quantity::ONE);
        let call = call.map_err(DrillError::at("making a key"))?;
        self.decide(ClaimCall::again(call.request().clone())).await
    }

    async fn decide(&self, mut call: ClaimCall) -> Result<Told, DrillError> {
        let token = self.0.installation.token(&call.request().user_id, self.0.scratch.made_at)?;
        Ok(Told::of(self.0.decide(&token, &mut call, self.0.plan.patience).await))
    }

    /// Waits until all events are in SQL, as long as they get fewer; how many still wait.
    async fn drain(&self) -> Result<u64, DrillError> {
        let (mut least, mut since) = (u64::MAX, Instant::now());
        loop {
            let backlog = self.campaign().await?.backlog.unwrap_or_default();
            if backlog < least {
                (least, since) = (backlog, Instant::now());
            }
            if backlog == 0 || since.elapsed() > self.0.plan.patience {
                return Ok(backlog);
            }
            (self.0.voice.progress)(&format!("waiting for SQL: {backlog} events in the outbox"));
            sleep(POLL).await;
        }
    }

    /// The campaign with its counters, once it is ready.
    async fn campaign(&self) -> Result<AdminView, DrillError> {
        let (admin, id) = (&self.0.installation.admin, &self.0.scratch.id);
        let patience = self.0.plan.patience;
        let deadline = Instant::now() + patience;
        loop {
            let view = until_decided(patience, async || -> Result<AdminView, Error> {
                admin.campaign(id).await?.read()
            });
            let view = view.await.map_err(DrillError::at("reading the scratch campaign"))?;
            if view.ready {
                return Ok(view);
            }
            if Instant::now() > deadline {
                let seconds = patience.as_secs();
                return Err(DrillError::TooSlow(format!(
                    "the scratch campaign was not ready for {seconds} s"
                )));
            }
            sleep(POLL).await;
        }
    }
}
