//! Collects evidence after the storm, for the checks to judge.

use std::time::Duration;

use claimgate_client::{ClaimCall, ClaimsFilter, Error, retry_until_decided};
use claimgate_shared::admin::{AdminView, ClaimItem};
use claimgate_shared::{ClaimId, Quantity};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::DrillError;
use crate::storm::Storm;
use crate::user::{Caller, ClaimOutcome, TryOutcome};

const POLL: Duration = Duration::from_millis(200);
/// The number of winners who retry their claim after the storm.
const WINNERS_RETRIED: usize = 10;

/// The evidence after a storm.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// Winners' results in the storm, and of a retry after it.
    pub(crate) again: Vec<(TryOutcome, TryOutcome)>,
    /// The effect of a return; `None` if there was nothing to return.
    pub(crate) returned: Option<Returned>,
    /// Events still pending for SQL.
    pub(crate) backlog: u64,
    /// The campaign's claims in SQL.
    pub(crate) rows: Vec<ClaimItem>,
    /// Core's comparison of Redis and SQL.
    pub(crate) reconciliation: Value,
}

/// The effect of a return.
#[derive(Debug)]
pub(crate) struct Returned {
    /// The claim that was returned, twice.
    pub(crate) id: ClaimId,
    /// Units taken before the return, after it, and after the unit was claimed again.
    pub(crate) taken: [u64; 3],
    /// The result of the user who claimed the unit again.
    pub(crate) reclaimed: TryOutcome,
    /// The result of one more user; `None` if the campaign was not sold out.
    pub(crate) after_sold_out: Option<TryOutcome>,
}

impl Evidence {
    /// Collects the evidence after `storm`.
    pub(crate) async fn gather(storm: &Storm<'_>, outcomes: &[ClaimOutcome]) -> Result<Self, DrillError> {
        let collector = Collector(storm);
        (storm.console.progress)("winners retry their claims; one returns a claim");
        let again = collector.retry_winners(outcomes).await?;
        let returned = collector.return_one(outcomes).await?;
        let backlog = collector.drain().await?;
        (storm.console.progress)("reading the claims from SQL");
        let (admin, id, patience) = (&storm.installation.admin, &storm.scratch.id, storm.plan.patience);
        let filter = ClaimsFilter { codes: storm.plan.codes, ..ClaimsFilter::default() };
        let rows = retry_until_decided(patience, async || admin.claims(id, filter).await?.read()).await;
        let rows = rows.map_err(DrillError::at("reading the claims from SQL"))?;
        let compared = retry_until_decided(patience, async || admin.reconciliation(id).await).await;
        let reconciliation = compared.map_err(DrillError::at("comparing Redis and SQL"))?.json;
        Ok(Self { again, returned, backlog, rows, reconciliation })
    }
}

/// Collects the parts of the evidence.
struct Collector<'a>(&'a Storm<'a>);

impl Collector<'_> {
    /// Retries the claims of some winners.
    async fn retry_winners(
        &self,
        outcomes: &[ClaimOutcome],
    ) -> Result<Vec<(TryOutcome, TryOutcome)>, DrillError> {
        let winners = outcomes.iter().filter_map(|outcome| Some((outcome, outcome.claimed()?)));
        let mut again = Vec::new();
        for (outcome, first) in winners.take(WINNERS_RETRIED) {
            let retry = ClaimCall::retry(outcome.call.request().clone());
            again.push((first.clone(), self.decide(&outcome.token, retry).await));
        }
        Ok(again)
    }

    /// Returns a winner's claim twice. A newcomer then claims the unit, and the next newcomer finds none left.
    async fn return_one(&self, outcomes: &[ClaimOutcome]) -> Result<Option<Returned>, DrillError> {
        let Some(id) = outcomes.iter().find(|outcome| outcome.claimed().is_some()) else { return Ok(None) };
        let id = id.call.claim_id();
        let before = self.campaign().await?;
        for _ in 0..2 {
            let internal = &self.0.installation.internal;
            let done =
                retry_until_decided(self.0.plan.patience, async || internal.return_claim(&id).await).await;
            done.map_err(DrillError::at("returning a claim through core's internal API"))?;
        }
        let without = self.campaign().await?;
        let reclaimed = self.newcomer("next").await?;
        let after = self.campaign().await?;
        let sold_out = before.campaign.remaining == Some(0);
        let after_sold_out = if sold_out { Some(self.newcomer("late").await?) } else { None };
        let taken = [&before, &without, &after].map(|view| view.taken.unwrap_or_default());
        Ok(Some(Returned { id, taken, reclaimed, after_sold_out }))
    }

    /// Sends a claim for a user who has not claimed before. The call is sent as a retry, so that no cache
    /// rejects it.
    async fn newcomer(&self, name: &str) -> Result<TryOutcome, DrillError> {
        let name = name.parse().map_err(|error| DrillError::Setup(format!("{name}: {error}")))?;
        let Caller { id, token } = self.0.installation.caller(&name, self.0.scratch.created_at)?;
        let call = ClaimCall::new(self.0.scratch.id.clone(), id, Quantity::ONE);
        let call = call.map_err(DrillError::at("generating a key"))?;
        Ok(self.decide(&token, ClaimCall::retry(call.request().clone())).await)
    }

    async fn decide(&self, token: &str, mut call: ClaimCall) -> TryOutcome {
        TryOutcome::of(self.0.decide(token, &mut call, self.0.plan.patience).await)
    }

    /// Waits until all events are in SQL, while their number decreases; returns how many remain.
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
            (self.0.console.progress)(&format!("waiting for SQL: {backlog} events in the outbox"));
            sleep(POLL).await;
        }
    }

    /// Reads the campaign with its counters, once it is ready.
    async fn campaign(&self) -> Result<AdminView, DrillError> {
        let (admin, id) = (&self.0.installation.admin, &self.0.scratch.id);
        let patience = self.0.plan.patience;
        let deadline = Instant::now() + patience;
        loop {
            let view = retry_until_decided(patience, async || -> Result<AdminView, Error> {
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
