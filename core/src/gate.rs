//! Many callers, few calls: the claims that wait for a campaign go to Redis together.
//!
//! Each campaign has a lane. While its calls are under way the lane fills; when one returns, all that waits goes in
//! the next. There is no timer: an idle lane sends at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use claimgate_shared::{
    Attempt, CampaignId, Claim, ClaimId, ClaimRequest, ClaimStatus, Denial, Outcome, Quantity,
};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::campaigns::Known;
use crate::ledger::record::Record;
use crate::ledger::scripts::{Decided, Verdict};
use crate::ledger::{Ledger, LedgerError};
use crate::metrics;
use crate::sold_out::SoldOut;

/// The most claims that one call decides.
pub const BATCH_MAX: usize = 256;
/// Claims of one campaign under way at once: while Redis works on one full batch the next is on its way. Another
/// campaign's claim waits behind the batch at work and that one, and no more.
const UNDER_WAY_MAX: usize = 2 * BATCH_MAX;
/// The most claims that may wait for one campaign; further ones are turned away untried.
const WAITING_MAX: usize = 8192;

/// What was decided on a claim, and under which rules.
#[derive(Debug)]
pub struct Decision {
    /// What was decided.
    pub outcome: Outcome,
    /// Units left of `total` after it.
    pub remaining: Option<u32>,
    /// The campaign's version.
    pub version: u64,
}

/// Why a claim was not decided, or not known to be.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GateError {
    /// Too many wait already; nothing was tried.
    #[error("too many claims are waiting")]
    Overloaded,
    /// Redis gave no decision.
    #[error(transparent)]
    Ledger(#[from] Arc<LedgerError>),
    /// The lane went away with the claim: core is stopping.
    #[error("core is stopping")]
    Stopped,
}

/// Decides claims, in batches.
#[derive(Debug)]
pub struct Gate {
    ledger: Arc<Ledger>,
    batch_max: usize,
    lanes: RwLock<HashMap<CampaignId, Arc<Lane>>>,
}

/// One campaign's way to Redis.
#[derive(Debug)]
struct Lane {
    waiting: mpsc::Sender<Waiting>,
    sold_out: Arc<SoldOut>,
    /// Whether a claim came by since this was last asked.
    used: AtomicBool,
}

/// A claim that waits for its decision.
#[derive(Debug)]
struct Waiting {
    id: ClaimId,
    quantity: Quantity,
    since: Instant,
    answer: oneshot::Sender<Result<Decision, GateError>>,
}

impl Gate {
    /// A gate in front of `ledger` that lets a call decide at most `batch_max` claims, 1 to [`BATCH_MAX`].
    pub fn new(ledger: Arc<Ledger>, batch_max: usize) -> Self {
        Self { ledger, batch_max, lanes: RwLock::default() }
    }

    /// Decides one claim. Once it is handed over it is decided even when the caller goes away. What may be a retry is never
    /// refused from memory, which is a moment old: it may have been granted by another core since.
    pub async fn claim(
        &self,
        known: &Arc<Known>,
        request: &ClaimRequest,
        attempt: Attempt,
    ) -> Result<Decision, GateError> {
        let lane = self.lane(known, &request.campaign_id);
        let since = Instant::now();
        if attempt == Attempt::First
            && let Some(version) = lane.sold_out.refuses(&request.user_id, request.quantity)
        {
            let outcome = Outcome::Denied(Denial::SoldOut { remaining: 0 });
            let decision = Decision { outcome, remaining: Some(0), version };
            metrics::decided(Some(&decision), since.elapsed());
            metrics::from_memory();
            return Ok(decision);
        }
        let (answer, decision) = oneshot::channel();
        let waiting = Waiting { id: request.claim_id(), quantity: request.quantity, since, answer };
        lane.waiting.try_send(waiting).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => GateError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => GateError::Stopped,
        })?;
        decision.await.map_err(|_| GateError::Stopped)?
    }

    /// Takes note that this core has given something back to `campaign`, or changed its rules: what is remembered of it
    /// is older than that.
    pub fn changed(&self, campaign: &CampaignId) {
        if let Some(lane) = self.lanes.read().unwrap_or_else(PoisonError::into_inner).get(campaign) {
            lane.sold_out.forget();
        }
    }

    /// Drops the lanes that no claim has come by since this was last called, with what they know by heart; how many.
    pub fn drop_idle_lanes(&self) -> usize {
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        let before = lanes.len();
        // Whoever still waits for a decision holds the lane: it was handed out under the lock that is held here.
        lanes.retain(|_, lane| lane.used.swap(false, Ordering::Relaxed) || Arc::strong_count(lane) > 1);
        before - lanes.len()
    }

    fn lane(&self, known: &Arc<Known>, id: &CampaignId) -> Arc<Lane> {
        if let Some(lane) = self.lanes.read().unwrap_or_else(PoisonError::into_inner).get(id) {
            lane.used.store(true, Ordering::Relaxed);
            return Arc::clone(lane);
        }
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes.entry(id.clone()).or_insert_with(|| {
            let (waiting, receiver) = mpsc::channel(WAITING_MAX);
            let sold_out = Arc::default();
            let worker = Worker {
                ledger: Arc::clone(&self.ledger),
                known: Arc::clone(known),
                sold_out: Arc::clone(&sold_out),
            };
            tokio::spawn(Arc::new(worker).run(self.batch_max, receiver));
            Arc::new(Lane { waiting, sold_out, used: AtomicBool::new(true) })
        });
        Arc::clone(lane)
    }
}

/// Takes claims out of a lane and has them decided.
#[derive(Debug)]
struct Worker {
    ledger: Arc<Ledger>,
    known: Arc<Known>,
    sold_out: Arc<SoldOut>,
}

impl Worker {
    async fn run(self: Arc<Self>, batch_max: usize, mut lane: mpsc::Receiver<Waiting>) {
        let calls_max = UNDER_WAY_MAX / batch_max;
        let calls = Arc::new(Semaphore::new(calls_max));
        let others = u32::try_from(calls_max - 1).unwrap_or(u32::MAX);
        // The permit comes first: what arrives while all calls are under way goes in the next one, together.
        while let Ok(permit) = Arc::clone(&calls).acquire_owned().await {
            // Beside a call that is under way a further one pays only when it is full: much of Redis' work for a call is
            // the same for one claim and for many. Batches of one are always full.
            if batch_max > 1 && lane.len() < batch_max {
                let _ = calls.acquire_many(others).await;
            }
            let mut batch = Vec::new();
            if lane.recv_many(&mut batch, batch_max).await == 0 {
                return;
            }
            let worker = Arc::clone(&self);
            tokio::spawn(async move {
                worker.decide(batch).await;
                drop(permit);
            });
        }
    }

    /// Decides a batch and answers everyone in it.
    async fn decide(&self, mut batch: Vec<Waiting>) {
        while !batch.is_empty() {
            metrics::batch(batch.len());
            let claims = batch.iter().map(|waiting| (&waiting.id, waiting.quantity.get()));
            match self.ledger.claim(&self.known, claims).await {
                // Holds that were due have come back; whoever has to ask again does so now, and something came back
                // for each time round.
                Ok(decided) => {
                    let in_vain = decided.in_vain();
                    if in_vain > 0 {
                        self.sold_out.noticed(in_vain, &self.ledger, &self.known);
                    }
                    batch = answer(batch, &decided);
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for waiting in batch.drain(..) {
                        metrics::undecided(&error);
                        let _ = waiting.answer.send(Err(GateError::Ledger(Arc::clone(&error))));
                    }
                }
            }
        }
    }
}

/// Answers a decided batch; returns whoever has to ask again.
fn answer(batch: Vec<Waiting>, decided: &Decided) -> Vec<Waiting> {
    let mut again = Vec::new();
    for (waiting, verdict) in batch.into_iter().zip(&decided.verdicts) {
        if *verdict == Verdict::Again {
            again.push(waiting);
            continue;
        }
        let Waiting { id, quantity, since, answer } = waiting;
        let decision = decision(decided, verdict, id, quantity);
        metrics::decided(decision.as_ref().ok(), since.elapsed());
        // Nobody there any more is no failure: the claim stands, and a retry finds it.
        let _ = answer.send(decision);
    }
    again
}

fn decision(
    decided: &Decided,
    verdict: &Verdict,
    id: ClaimId,
    quantity: Quantity,
) -> Result<Decision, GateError> {
    let claim = |status, sequence, claimed_at, expires_at| Claim {
        campaign_id: id.campaign.clone(),
        user_id: id.user.clone(),
        id,
        quantity,
        status,
        sequence,
        claimed_at,
        expires_at,
        persisted: None,
    };
    let (outcome, taken) = match *verdict {
        Verdict::Again | Verdict::Full => return Err(GateError::Overloaded),
        Verdict::Denied(denial) => (Outcome::Denied(denial), 0),
        Verdict::Taken { sequence, expires_at: None, taken } => {
            (Outcome::Granted(claim(ClaimStatus::Granted, sequence, decided.now, None)), taken)
        }
        Verdict::Taken { sequence, expires_at, taken } => {
            (Outcome::Held(claim(ClaimStatus::Held, sequence, decided.now, expires_at)), taken)
        }
        Verdict::Replayed { claim: Record { status, sequence, claimed_at, expires_at, .. }, taken } => {
            (Outcome::Replayed(claim(status, sequence, claimed_at, expires_at)), taken)
        }
    };
    let left = |total| u32::try_from(u64::from(total).saturating_sub(taken)).unwrap_or(u32::MAX);
    Ok(Decision { outcome, remaining: decided.total.map(left), version: decided.version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{Archive, sqlite_url};
    use crate::campaign::NewCampaign;
    use crate::campaigns::Campaigns;

    /// A gate before a Redis that nobody runs: each claim gets an error, and a lane.
    async fn gate(folder: &tempfile::TempDir) -> Gate {
        let archive = Archive::open(&sqlite_url(&folder.path().join("register"))).await.unwrap();
        let client = redis::Client::open("redis+unix:///nowhere/redis.sock").unwrap();
        Gate::new(Arc::new(Ledger::new(client, archive, 1)), BATCH_MAX)
    }

    fn known(campaigns: &Campaigns, id: &str) -> Arc<Known> {
        let body = format!(r#"{{"id":"{id}","name":"x","starts_at":"2026-01-01T00:00:00Z"}}"#);
        campaigns.learn(NewCampaign::parse(body.as_bytes()).unwrap())
    }

    #[tokio::test]
    async fn a_lane_goes_once_no_claim_has_come_by_for_a_while_and_comes_back_with_the_next() {
        let (folder, campaigns) = (tempfile::tempdir().unwrap(), Campaigns::default());
        let gate = gate(&folder).await;
        let (busy, idle) = (known(&campaigns, "busy"), known(&campaigns, "idle"));
        for known in [&busy, &idle] {
            gate.lane(known, &known.campaign().id);
        }
        assert_eq!(gate.drop_idle_lanes(), 0, "each was used since its beginning");
        let waiting = gate.lane(&busy, &busy.campaign().id);
        assert_eq!(gate.drop_idle_lanes(), 1, "the idle one goes");
        assert_eq!(gate.drop_idle_lanes(), 0, "one that somebody waits in stays");
        drop(waiting);
        assert_eq!(gate.drop_idle_lanes(), 1);
        let again = gate.lane(&idle, &idle.campaign().id);
        assert!(!again.waiting.is_closed(), "a new worker takes what comes");
    }
}
