//! Collects concurrent claims on a campaign into one script call.
//!
//! Each campaign has a queue. While its calls are in flight the queue fills; when one returns, all claims that wait go
//! in the next. There is no timer: a claim that finds nothing in flight and none waiting is sent at once, by its caller.
//!
//! Each thread of the HTTP server has queues of its own, so that a claim is decided and answered without another thread.
//! The bounds on a campaign's claims and its sold-out cache are shared by all threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use claimgate_shared::{
    Attempt, CampaignId, Claim, ClaimId, ClaimRequest, ClaimStatus, Denial, Outcome, Quantity, Version,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::handle::CampaignHandle;
use super::queue_state::{QueueState, QueueStates};
use super::sync::{CampaignSync, SyncError};
use crate::domain::claim_record::ClaimRecord;
use crate::metrics;
use crate::store::redis::RedisStoreError;
use crate::store::redis::replies::{Decided, Verdict};
use crate::traces::{self, Trace};

/// The decision on a claim, and the rules by which it was made.
#[derive(Debug)]
pub struct Decision {
    /// Granted, held, replayed or denied.
    pub outcome: Outcome,
    /// Units left of `total` after the decision; `None` when unlimited.
    pub remaining: Option<u32>,
    /// The version of the campaign's rules that decided.
    pub version: Version,
}

/// Why a claim was not decided, or why that is unknown.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BatcherError {
    /// Too many wait already; nothing was tried.
    #[error("too many claims are waiting")]
    Overloaded,
    /// The outbox is full; nothing was changed.
    #[error("too many events wait for SQL")]
    OutboxFull,
    /// Redis gave no decision.
    #[error(transparent)]
    Sync(#[from] Arc<SyncError>),
    /// The queue went away with the claim: core is stopping.
    #[error("core is stopping")]
    Stopped,
}

/// Decides claims in batches, with one queue per campaign; [`Self::for_thread`] has queues of its own.
#[derive(Debug)]
pub struct ClaimBatcher {
    sync: Arc<CampaignSync>,
    batch_max: usize,
    queues: Arc<Queues>,
    shared: Arc<Shared>,
}

/// The queues of one thread.
type Queues = RwLock<HashMap<CampaignId, Arc<CampaignQueue>>>;

/// What the batchers of all threads share.
#[derive(Debug, Default)]
struct Shared {
    /// The queues of each thread.
    threads: Mutex<Vec<Weak<Queues>>>,
    /// What each campaign's queues share.
    states: QueueStates,
}

/// One campaign's queue of claims for Redis.
#[derive(Debug)]
struct CampaignQueue {
    pending: mpsc::UnboundedSender<PendingClaim>,
    worker: Arc<Worker>,
    /// Whether the queue was used since [`ClaimBatcher::drop_idle_queues`] was last called.
    used: AtomicBool,
}

/// A claim that waits for its decision.
#[derive(Debug)]
struct PendingClaim {
    id: ClaimId,
    quantity: Quantity,
    enqueued_at: Instant,
    /// What it is part of, if it is traced.
    trace: Option<Trace>,
    answer: oneshot::Sender<Result<Decision, BatcherError>>,
}

impl Shared {
    /// The queues of all threads that there still are.
    fn threads(&self) -> Vec<Arc<Queues>> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|queues| queues.strong_count() > 0);
        threads.iter().filter_map(Weak::upgrade).collect()
    }
}

impl ClaimBatcher {
    /// A batcher that calls `sync` with at most `batch_max` claims at a time, 1 to 256.
    pub fn new(sync: Arc<CampaignSync>, batch_max: usize) -> Self {
        Self::with_queues(sync, batch_max, Arc::default())
    }

    /// A batcher with queues of its own, which call `sync`. What bounds a campaign's claims bounds those of all threads
    /// together, and its sold-out cache is the same.
    #[must_use]
    pub fn for_thread(&self, sync: Arc<CampaignSync>) -> Self {
        Self::with_queues(sync, self.batch_max, Arc::clone(&self.shared))
    }

    fn with_queues(sync: Arc<CampaignSync>, batch_max: usize, shared: Arc<Shared>) -> Self {
        let queues = Arc::default();
        shared.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&queues));
        Self { sync, batch_max, queues, shared }
    }

    /// Decides `request` on the campaign of `handle`. It may be decided even when the caller drops the future. A possible
    /// retry is never refused from the sold-out cache: another core may have granted it since the cache was filled.
    ///
    /// # Errors
    /// [`BatcherError::Overloaded`] when 8,192 claims of the campaign wait, [`BatcherError::OutboxFull`] when the outbox is:
    /// nothing was changed.
    /// [`BatcherError::Sync`] when Redis gave no decision; whether the claim was decided may be unknown.
    pub async fn claim(
        &self,
        handle: &Arc<CampaignHandle>,
        request: &ClaimRequest,
        attempt: Attempt,
    ) -> Result<Decision, BatcherError> {
        let queue = self.queue(handle, &request.campaign_id);
        let enqueued_at = Instant::now();
        if attempt == Attempt::First
            && let Some(version) =
                queue.worker.state.sold_out.cached_denial(&request.user_id, request.quantity, enqueued_at)
        {
            let outcome = Outcome::Denied(Denial::SoldOut { remaining: 0 });
            let decision = Decision { outcome, remaining: Some(0), version };
            metrics::decided(result_of(&decision.outcome), enqueued_at.elapsed());
            metrics::sold_out_from_cache();
            return Ok(decision);
        }
        let (answer, decision) = oneshot::channel();
        let (id, quantity, trace) = (request.claim_id(), request.quantity, Trace::current());
        let claim = PendingClaim { id, quantity, enqueued_at, trace, answer };
        match queue.worker.state.begin_lone_call() {
            // With none to wait for and none to go with, a task in between would only cost.
            Some(_permit) => queue.worker.decide_for_caller(claim).await,
            None => queue.enqueue(claim)?,
        }
        decision.await.map_err(|_| BatcherError::Stopped)?
    }

    /// Invalidates what is cached of `campaign`, for all threads. To be called after this core has given units back or
    /// changed the rules.
    pub fn invalidate(&self, campaign: &CampaignId) {
        if let Some(state) = self.shared.states.get(campaign) {
            state.sold_out.invalidate();
        }
    }

    /// Drops the queues of all threads that no claim has used since the last call, and the sold-out cache with a campaign's
    /// last queue. Returns the number of queues dropped.
    pub fn drop_idle_queues(&self) -> usize {
        let mut dropped = 0;
        for thread in self.shared.threads() {
            let mut queues = thread.write().unwrap_or_else(PoisonError::into_inner);
            let before = queues.len();
            // A claim that is being enqueued holds its queue: it was handed out under the lock that is held here.
            queues
                .retain(|_, queue| queue.used.swap(false, Ordering::Relaxed) || Arc::strong_count(queue) > 1);
            dropped += before - queues.len();
        }
        self.shared.states.drop_unused();
        dropped
    }

    fn queue(&self, handle: &Arc<CampaignHandle>, id: &CampaignId) -> Arc<CampaignQueue> {
        if let Some(queue) = self.queues.read().unwrap_or_else(PoisonError::into_inner).get(id) {
            queue.used.store(true, Ordering::Relaxed);
            return Arc::clone(queue);
        }
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(id.clone()).or_insert_with(|| {
            let (pending, receiver) = mpsc::unbounded_channel();
            let state = self.shared.states.get_or_make(id, self.batch_max);
            let worker = Worker { sync: Arc::clone(&self.sync), handle: Arc::clone(handle), state };
            let worker = Arc::new(worker);
            tokio::spawn(Arc::clone(&worker).run(self.batch_max, receiver));
            Arc::new(CampaignQueue { pending, worker, used: AtomicBool::new(true) })
        });
        Arc::clone(queue)
    }
}

impl CampaignQueue {
    /// Lets a claim wait for the next call.
    fn enqueue(&self, claim: PendingClaim) -> Result<(), BatcherError> {
        if !self.worker.state.enter() {
            return Err(BatcherError::Overloaded);
        }
        self.pending.send(claim).map_err(|_| {
            self.worker.state.leave(1);
            BatcherError::Stopped
        })
    }
}

/// Takes claims out of a queue and sends them to Redis.
#[derive(Debug)]
struct Worker {
    sync: Arc<CampaignSync>,
    handle: Arc<CampaignHandle>,
    state: Arc<QueueState>,
}

impl Worker {
    async fn run(self: Arc<Self>, batch_max: usize, mut queue: mpsc::UnboundedReceiver<PendingClaim>) {
        let mut batch = Vec::new();
        while queue.recv_many(&mut batch, 1).await > 0 {
            // The permit comes before the rest: claims that arrive while all calls are in flight go together in the next
            // one. Beside a call in flight, of whichever thread, a further one pays only when it is full: much of Redis'
            // work for a call is the same for one claim and for many. Batches of one are always full.
            let partial = queue.len() + 1 < batch_max;
            let Some(permit) = self.state.begin_call(partial).await else { return };
            while batch.len() < batch_max
                && let Ok(claim) = queue.try_recv()
            {
                batch.push(claim);
            }
            self.state.leave(batch.len());
            let batch = std::mem::take(&mut batch);
            let worker = Arc::clone(&self);
            tokio::spawn(async move {
                worker.decide(batch).await;
                drop(permit);
            });
        }
    }

    /// Decides a claim whose caller may leave meanwhile: it may have been granted all the same, and the relay is told.
    async fn decide_for_caller(&self, claim: PendingClaim) {
        let left = NoticeOnDrop(Some(&self.handle));
        self.decide(vec![claim]).await;
        left.disarm();
    }

    /// Decides a batch and answers each of its claims.
    async fn decide(&self, mut batch: Vec<PendingClaim>) {
        while !batch.is_empty() {
            metrics::batch(batch.len());
            let claims: Vec<_> = batch.iter().map(|claim| (&claim.id, claim.quantity.get())).collect();
            let traced: Vec<_> = batch.iter().filter_map(|claim| claim.trace.as_ref()).collect();
            let trace = Trace::of_batch(batch[0].id.campaign.as_str(), batch.len(), &traced);
            let decided = traces::within(trace.as_ref(), self.sync.claim(&self.handle, &claims)).await;
            if let Some(trace) = trace {
                trace.ended(decided.as_ref().err().map(ToString::to_string).as_deref());
            }
            match decided {
                // More holds were due than one call gives back, so some claims have to be sent again. Each round gives
                // holds back, so this ends.
                Ok(decided) => {
                    let sold_out_denials = decided.sold_out_denials();
                    if sold_out_denials > 0 {
                        self.state.sold_out.record_sold_out(sold_out_denials, &self.sync, &self.handle);
                    }
                    self.handle.observe_stock(sold_out_denials > 0, || decided.has_granted());
                    let asked = batch.len();
                    batch = answer(batch, &decided);
                    self.handle.record_answered(asked - batch.len());
                }
                Err(error) => {
                    self.handle.asked_for();
                    let error = Arc::new(error);
                    for claim in batch.drain(..) {
                        metrics::undecided(reason_of(&error));
                        let _ = claim.answer.send(Err(BatcherError::Sync(Arc::clone(&error))));
                    }
                }
            }
        }
    }
}

/// Notifies relay and maintenance of a campaign when a call on it is given up midway.
#[derive(Debug)]
struct NoticeOnDrop<'a>(Option<&'a CampaignHandle>);

impl NoticeOnDrop<'_> {
    /// For a call that has ended.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for NoticeOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.0 {
            handle.has_events();
            handle.needs_maintenance();
        }
    }
}

/// Answers the decided claims of a batch; returns those that have to be sent again.
fn answer(batch: Vec<PendingClaim>, decided: &Decided) -> Vec<PendingClaim> {
    let (mut again, now) = (Vec::new(), Instant::now());
    for (claim, verdict) in batch.into_iter().zip(&decided.verdicts) {
        if *verdict == Verdict::RetryAfterSweep {
            again.push(claim);
            continue;
        }
        let PendingClaim { id, quantity, enqueued_at, answer, .. } = claim;
        let decision = decision(decided, verdict, id, quantity);
        let result = decision.as_ref().map_or("put_off", |decision| result_of(&decision.outcome));
        metrics::decided(result, now - enqueued_at);
        // A caller that has gone away is no failure: the claim stands, and a retry finds it.
        let _ = answer.send(decision);
    }
    again
}

fn decision(
    decided: &Decided,
    verdict: &Verdict,
    id: ClaimId,
    quantity: Quantity,
) -> Result<Decision, BatcherError> {
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
        Verdict::RetryAfterSweep => return Err(BatcherError::Overloaded),
        Verdict::OutboxFull => return Err(BatcherError::OutboxFull),
        Verdict::Denied(denial) => (Outcome::Denied(denial), 0),
        Verdict::Granted { sequence, expires_at: None, taken } => {
            (Outcome::Granted(claim(ClaimStatus::Granted, sequence, decided.now, None)), taken)
        }
        Verdict::Granted { sequence, expires_at, taken } => {
            (Outcome::Held(claim(ClaimStatus::Held, sequence, decided.now, expires_at)), taken)
        }
        Verdict::Replayed { claim: ClaimRecord { status, sequence, claimed_at, expires_at, .. }, taken } => {
            (Outcome::Replayed(claim(status, sequence, claimed_at, expires_at)), taken)
        }
    };
    let left = |total| u32::try_from(u64::from(total).saturating_sub(taken)).unwrap_or(u32::MAX);
    Ok(Decision { outcome, remaining: decided.total.map(left), version: decided.version })
}

/// A decision's label in metrics.
fn result_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Granted(_) => "granted",
        Outcome::Held(_) => "held",
        Outcome::Replayed(_) => "replayed",
        Outcome::Denied(denial) => denial.code().as_str(),
    }
}

/// The label in metrics for a claim that Redis did not decide.
fn reason_of(error: &SyncError) -> &'static str {
    match error {
        SyncError::Redis(RedisStoreError::NotReady(_)) => "not_ready",
        SyncError::Redis(RedisStoreError::OutOfMemory(_)) => "out_of_memory",
        SyncError::Redis(_) | SyncError::Sql(_) => "unavailable",
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::config::{BATCH_MAX, sqlite_url};
    use crate::domain::campaign_change::NewCampaign;
    use crate::engine::registry::CampaignRegistry;
    use crate::store::redis::RedisStore;
    use crate::store::sql::SqlStore;

    /// A batcher whose Redis does not run: each claim gets a queue, and an error.
    async fn batcher(directory: &tempfile::TempDir) -> ClaimBatcher {
        let sql = SqlStore::open(&sqlite_url(&directory.path().join("claims.sqlite"))).await.unwrap();
        let client = redis::Client::open("redis+unix:///nowhere/redis.sock").unwrap();
        ClaimBatcher::new(
            Arc::new(CampaignSync { redis: Arc::new(RedisStore::new(client, 1)), sql }),
            BATCH_MAX,
        )
    }

    fn handle(campaigns: &CampaignRegistry, id: &str) -> Arc<CampaignHandle> {
        let body = format!(r#"{{"id":"{id}","name":"x","starts_at":"2026-01-01T00:00:00Z"}}"#);
        campaigns.update(NewCampaign::parse(body.as_bytes(), crate::clock::now()).unwrap())
    }

    #[tokio::test]
    async fn a_queue_goes_once_no_claim_has_come_by_for_a_while_and_comes_back_with_the_next() {
        let (directory, campaigns) = (tempfile::tempdir().unwrap(), CampaignRegistry::default());
        let batcher = batcher(&directory).await;
        let (busy, idle) = (handle(&campaigns, "busy"), handle(&campaigns, "idle"));
        for handle in [&busy, &idle] {
            batcher.queue(handle, &handle.campaign().id);
        }
        assert_eq!(batcher.drop_idle_queues(), 0, "each was used when it was made");
        let waiting = batcher.queue(&busy, &busy.campaign().id);
        assert_eq!(batcher.drop_idle_queues(), 1, "the idle one goes");
        assert_eq!(batcher.drop_idle_queues(), 0, "one that a claim waits in stays");
        drop(waiting);
        assert_eq!(batcher.drop_idle_queues(), 1);
        let again = batcher.queue(&idle, &idle.campaign().id);
        assert!(!again.pending.is_closed(), "a new worker takes what comes");
    }

    #[tokio::test]
    async fn the_queues_of_two_threads_share_a_campaigns_bounds_and_go_together() {
        let (directory, campaigns) = (tempfile::tempdir().unwrap(), CampaignRegistry::default());
        let first = batcher(&directory).await;
        let second = first.for_thread(Arc::clone(&first.sync));
        let handle = handle(&campaigns, "hot");
        let id = &handle.campaign().id;
        let (queue, of_second) = (first.queue(&handle, id), second.queue(&handle, id));
        assert!(!Arc::ptr_eq(&queue, &of_second), "each has its own");
        assert!(
            Arc::ptr_eq(&queue.worker.state.sold_out, &of_second.worker.state.sold_out),
            "one cache for both"
        );
        while queue.worker.state.enter() {}
        let request = br#"{"campaign_id":"hot","user_id":"u","idempotency_key":"a-key","quantity":1}"#;
        let request = ClaimRequest::parse(request).unwrap();
        let claim = || second.claim(&handle, &request, Attempt::Unknown);
        assert!(matches!(claim().await, Err(BatcherError::Overloaded)), "too many wait at the other thread");
        queue.worker.state.leave(queue.worker.state.pending());
        // A call of the first thread is in flight: a second one waits until it has returned.
        let call = queue.worker.state.begin_call(true).await.unwrap();
        let mut waiting = std::pin::pin!(claim());
        for _ in 0..100 {
            assert!(waiting.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.worker.state.pending(), 1);
        drop(call);
        assert!(matches!(waiting.await, Err(BatcherError::Sync(_))), "Redis does not run");
        assert_eq!(queue.worker.state.pending(), 0);
        drop((queue, of_second));
        assert_eq!(first.drop_idle_queues(), 0, "each was used");
        assert_eq!(first.drop_idle_queues(), 2);
    }
}
