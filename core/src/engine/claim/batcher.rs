//! Collects concurrent claims on a campaign into one script call.
//!
//! Each campaign has a queue, which fills while the campaign's calls are in flight. When a call returns, the
//! next call takes all queued claims. There is no timer: if no call is in flight and the queue is empty, the
//! caller sends its claim immediately.
//!
//! Each thread of the HTTP server has its own queues, so that a claim is decided and answered on one thread.
//! All threads share the limits on a campaign's claims and its sold-out cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use claimgate_shared::{
    Attempt, CampaignId, Claim, ClaimId, ClaimRequest, ClaimStatus, Denial, Outcome, Quantity, ShownPass,
    Version,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::queue_state::{QueueState, QueueStates};
use crate::domain::campaign::units_left;
use crate::domain::claim_record::ClaimRecord;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::EngineError;
use crate::engine::stores::Stores;
use crate::metrics;
use crate::store::redis::scripts::calls::WantedClaim;
use crate::store::redis::scripts::replies::{Decided, Verdict};
use crate::traces::{self, Trace};

/// The decision on a claim, and the version of the rules that decided it.
#[derive(Debug)]
pub struct Decision {
    /// Granted, held, replayed or denied.
    pub outcome: Outcome,
    /// Units left of `total` after the decision; `None` when unlimited.
    pub remaining: Option<u32>,
    /// The version of the rules that decided the claim.
    pub version: Version,
}

/// Decides claims in batches, with one queue per campaign. [`Self::for_thread`] returns a batcher with
/// separate queues.
#[derive(Debug)]
pub struct ClaimBatcher {
    stores: Arc<Stores>,
    batch_max: usize,
    queues: Arc<Queues>,
    shared: Arc<Shared>,
}

/// The queues of one thread.
type Queues = RwLock<HashMap<CampaignId, Arc<CampaignQueue>>>;

/// State shared by the batchers of all threads.
#[derive(Debug, Default)]
struct Shared {
    /// The queues of each thread.
    threads: Mutex<Vec<Weak<Queues>>>,
    /// State shared by the queues of each campaign.
    states: QueueStates,
}

/// One campaign's queue of claims to be sent to Redis.
#[derive(Debug)]
struct CampaignQueue {
    pending: mpsc::UnboundedSender<PendingClaim>,
    worker: Arc<Worker>,
    /// Whether the queue has been used since the last call of [`ClaimBatcher::drop_idle_queues`].
    used: AtomicBool,
}

/// A claim waiting for its decision.
#[derive(Debug)]
struct PendingClaim {
    id: ClaimId,
    quantity: Quantity,
    pass: Option<ShownPass>,
    enqueued_at: Instant,
    /// The claim's trace, if it is traced.
    trace: Option<Trace>,
    answer: oneshot::Sender<Result<Decision, EngineError>>,
}

impl PendingClaim {
    fn wanted(&self) -> WantedClaim<'_> {
        WantedClaim { id: &self.id, quantity: self.quantity.get(), pass: self.pass }
    }
}

impl Shared {
    /// Returns the queues of all threads that still exist.
    fn threads(&self) -> Vec<Arc<Queues>> {
        let mut threads = self.threads.lock();
        threads.retain(|queues| queues.strong_count() > 0);
        threads.iter().filter_map(Weak::upgrade).collect()
    }
}

impl ClaimBatcher {
    /// Creates a batcher that calls `stores` with at most `batch_max` claims at a time; `batch_max` is 1 to
    /// 256.
    pub fn new(stores: Arc<Stores>, batch_max: usize) -> Self {
        Self::with_queues(stores, batch_max, Arc::default())
    }

    /// Returns a batcher with separate queues, which call `stores`. The new batcher shares the limits on a
    /// campaign's claims and the sold-out caches with `self`.
    #[must_use]
    pub fn for_thread(&self, stores: Arc<Stores>) -> Self {
        Self::with_queues(stores, self.batch_max, Arc::clone(&self.shared))
    }

    fn with_queues(stores: Arc<Stores>, batch_max: usize, shared: Arc<Shared>) -> Self {
        let queues = Arc::default();
        shared.threads.lock().push(Arc::downgrade(&queues));
        Self { stores, batch_max, queues, shared }
    }

    /// Decides `request` on the campaign of `handle`. The claim may be decided even if the caller drops the
    /// future. A request that may be a retry is never denied from the sold-out cache: another core may have
    /// granted the claim since the cache was filled. `pass` is the pass sent with the request.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`] when 8,192 claims of the campaign are queued, [`EngineError::OutboxFull`]
    /// when the outbox is full; both leave everything unchanged. [`EngineError::Store`] when Redis returned no
    /// decision; whether the claim was decided may be unknown.
    pub async fn claim(
        &self,
        handle: &Arc<CampaignHandle>,
        request: &ClaimRequest,
        attempt: Attempt,
        pass: Option<ShownPass>,
    ) -> Result<Decision, EngineError> {
        let queue = self.queue(handle, &request.campaign_id);
        let enqueued_at = Instant::now();
        if attempt == Attempt::First
            && let Some(version) = queue.worker.state.sold_out.cached_denial(
                &request.user_id,
                request.quantity,
                pass,
                enqueued_at,
            )
        {
            let outcome = Outcome::Denied(Denial::SoldOut { remaining: 0 });
            let decision = Decision { outcome, remaining: Some(0), version };
            metrics::decided(result_of(&decision.outcome), enqueued_at.elapsed());
            metrics::sold_out_from_cache();
            return Ok(decision);
        }
        let (answer, decision) = oneshot::channel();
        let (id, quantity, trace) = (request.claim_id(), request.quantity, Trace::current());
        let claim = PendingClaim { id, quantity, pass, enqueued_at, trace, answer };
        match queue.worker.state.begin_call_if_idle() {
            // There is no call to wait for and no other claim to batch with, so a separate task would only
            // add cost.
            Some(_permit) => queue.worker.decide_for_caller(claim).await,
            None => queue.enqueue(claim)?,
        }
        decision.await.map_err(|_| EngineError::Stopping)?
    }

    /// Invalidates the sold-out cache of `campaign`, for all threads. Call this after this core has returned
    /// units or changed the rules.
    pub fn invalidate(&self, campaign: &CampaignId) {
        if let Some(state) = self.shared.states.get(campaign) {
            state.sold_out.invalidate();
        }
    }

    /// Drops all queues, on all threads, that have been unused since the last call. A campaign's sold-out
    /// cache is dropped with its last queue. Returns the number of dropped queues.
    pub fn drop_idle_queues(&self) -> usize {
        let mut dropped = 0;
        for thread in self.shared.threads() {
            let mut queues = thread.write();
            let before = queues.len();
            // A task that is enqueueing a claim holds a reference to the queue, which it obtained under the
            // lock held here.
            queues
                .retain(|_, queue| queue.used.swap(false, Ordering::Relaxed) || Arc::strong_count(queue) > 1);
            dropped += before - queues.len();
        }
        self.shared.states.drop_unused();
        dropped
    }

    fn queue(&self, handle: &Arc<CampaignHandle>, id: &CampaignId) -> Arc<CampaignQueue> {
        if let Some(queue) = self.queues.read().get(id) {
            queue.used.store(true, Ordering::Relaxed);
            return Arc::clone(queue);
        }
        let mut queues = self.queues.write();
        let queue = queues.entry(id.clone()).or_insert_with(|| {
            let (pending, receiver) = mpsc::unbounded_channel();
            let state = self.shared.states.get_or_create(id, self.batch_max);
            let worker = Worker { stores: Arc::clone(&self.stores), handle: Arc::clone(handle), state };
            let worker = Arc::new(worker);
            tokio::spawn(Arc::clone(&worker).run(self.batch_max, receiver));
            Arc::new(CampaignQueue { pending, worker, used: AtomicBool::new(true) })
        });
        Arc::clone(queue)
    }
}

impl CampaignQueue {
    /// Queues a claim for the next call.
    fn enqueue(&self, claim: PendingClaim) -> Result<(), EngineError> {
        if !self.worker.state.enter() {
            return Err(EngineError::QueueFull);
        }
        self.pending.send(claim).map_err(|_| {
            self.worker.state.leave(1);
            EngineError::Stopping
        })
    }
}

/// Takes claims from a queue and sends them to Redis.
#[derive(Debug)]
struct Worker {
    stores: Arc<Stores>,
    handle: Arc<CampaignHandle>,
    state: Arc<QueueState>,
}

impl Worker {
    async fn run(self: Arc<Self>, batch_max: usize, mut queue: mpsc::UnboundedReceiver<PendingClaim>) {
        let mut batch = Vec::new();
        while queue.recv_many(&mut batch, 1).await > 0 {
            // Acquire the permit before filling the batch: claims that arrive while all calls are in flight
            // join the next call. While a call is in flight on any thread, only a full batch is worth a second
            // call: much of Redis' work for a call does not depend on the number of claims. With a maximum of
            // one claim, every batch is full.
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

    /// Decides a claim whose caller may disconnect in the meantime. The claim may still be granted, so the
    /// relay is notified.
    async fn decide_for_caller(&self, claim: PendingClaim) {
        let left = NoticeOnDrop(&self.handle);
        self.decide(vec![claim]).await;
        std::mem::forget(left);
    }

    /// Decides a batch, and answers each claim in the batch.
    async fn decide(&self, mut batch: Vec<PendingClaim>) {
        while !batch.is_empty() {
            metrics::batch(batch.len());
            let claims: Vec<_> = batch.iter().map(PendingClaim::wanted).collect();
            let traced: Vec<_> = batch.iter().filter_map(|claim| claim.trace.as_ref()).collect();
            let trace = Trace::of_batch(batch[0].id.campaign.as_str(), batch.len(), &traced);
            let decided = traces::within(trace.as_ref(), self.stores.claim(&self.handle, &claims)).await;
            if let Some(trace) = trace {
                trace.ended(decided.as_ref().err().map(ToString::to_string).as_deref());
            }
            match decided {
                // More holds were due than one call expires, so some claims are resent. Each round expires
                // some holds, so the loop ends.
                Ok(decided) => {
                    let sold_out_denials = decided.sold_out_denials();
                    if sold_out_denials > 0 {
                        self.state.sold_out.record_sold_out(sold_out_denials, &self.stores, &self.handle);
                    }
                    self.handle.observe_stock(sold_out_denials > 0, || decided.has_granted());
                    let size = batch.len();
                    batch = answer(batch, &decided);
                    self.handle.record_answered(size - batch.len());
                }
                Err(error) => {
                    self.handle.mark_requested();
                    let error = Arc::new(error);
                    for claim in batch.drain(..) {
                        metrics::undecided(error.no_decision().as_str());
                        let _ = claim.answer.send(Err(EngineError::Store(Arc::clone(&error))));
                    }
                }
            }
        }
    }
}

/// Notifies the relay and the maintenance job of a campaign when a call on it is abandoned midway.
#[derive(Debug)]
struct NoticeOnDrop<'a>(&'a CampaignHandle);

impl Drop for NoticeOnDrop<'_> {
    fn drop(&mut self) {
        self.0.notify_relay();
        self.0.notify_maintenance();
    }
}

/// Answers the decided claims of a batch. Returns the claims that have to be resent.
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
        // If the caller has disconnected, the claim remains, and a retry finds it.
        let _ = answer.send(decision);
    }
    again
}

fn decision(
    decided: &Decided,
    verdict: &Verdict,
    id: ClaimId,
    quantity: Quantity,
) -> Result<Decision, EngineError> {
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
        codes: None,
    };
    let (outcome, taken) = match *verdict {
        Verdict::RetryAfterSweep => return Err(EngineError::QueueFull),
        Verdict::OutboxFull => return Err(EngineError::OutboxFull),
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
    Ok(Decision { outcome, remaining: units_left(decided.total, taken), version: decided.version })
}

/// Returns a decision's label in metrics.
fn result_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Granted(_) => "granted",
        Outcome::Held(_) => "held",
        Outcome::Replayed(_) => "replayed",
        Outcome::Denied(denial) => denial.code().as_str(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::config::{BATCH_MAX, sqlite_url};
    use crate::domain::campaign_change::NewCampaign;
    use crate::engine::campaign::registry::CampaignRegistry;
    use crate::store::redis::RedisStore;
    use crate::store::sql::SqlStore;

    /// Creates a batcher without a running Redis server: each claim gets a queue and an error.
    async fn batcher(directory: &tempfile::TempDir) -> ClaimBatcher {
        let sql = SqlStore::open(&sqlite_url(&directory.path().join("claims.sqlite"))).await.unwrap();
        let client = redis::Client::open("redis+unix:///nowhere/redis.sock").unwrap();
        ClaimBatcher::new(Arc::new(Stores { redis: Arc::new(RedisStore::new(client, 1)), sql }), BATCH_MAX)
    }

    fn handle(campaigns: &CampaignRegistry, id: &str) -> Arc<CampaignHandle> {
        let body = format!(r#"{{"id":"{id}","name":"x","starts_at":"2026-01-01T00:00:00Z"}}"#);
        let new = NewCampaign::parse(body.as_bytes()).unwrap();
        campaigns.update(new.created_at(crate::clock::now()).unwrap())
    }

    #[tokio::test]
    async fn an_idle_queue_is_dropped_and_recreated_on_demand() {
        let (directory, campaigns) = (tempfile::tempdir().unwrap(), CampaignRegistry::default());
        let batcher = batcher(&directory).await;
        let (busy, idle) = (handle(&campaigns, "busy"), handle(&campaigns, "idle"));
        for handle in [&busy, &idle] {
            batcher.queue(handle, &handle.campaign().id);
        }
        assert_eq!(batcher.drop_idle_queues(), 0, "each was used when it was created");
        let waiting = batcher.queue(&busy, &busy.campaign().id);
        assert_eq!(batcher.drop_idle_queues(), 1, "the idle queue is dropped");
        assert_eq!(batcher.drop_idle_queues(), 0, "a queue with a waiting claim stays");
        drop(waiting);
        assert_eq!(batcher.drop_idle_queues(), 1);
        let again = batcher.queue(&idle, &idle.campaign().id);
        assert!(!again.pending.is_closed(), "a new worker takes claims");
    }

    #[tokio::test]
    async fn threads_share_a_campaigns_limits_and_sold_out_cache() {
        let (directory, campaigns) = (tempfile::tempdir().unwrap(), CampaignRegistry::default());
        let first = batcher(&directory).await;
        let second = first.for_thread(Arc::clone(&first.stores));
        let handle = handle(&campaigns, "hot");
        let id = &handle.campaign().id;
        let (queue, of_second) = (first.queue(&handle, id), second.queue(&handle, id));
        assert!(!Arc::ptr_eq(&queue, &of_second), "each thread has its own queue");
        assert!(
            Arc::ptr_eq(&queue.worker.state.sold_out, &of_second.worker.state.sold_out),
            "one cache for both"
        );
        while queue.worker.state.enter() {}
        let request = br#"{"campaign_id":"hot","user_id":"u","idempotency_key":"a-key","quantity":1}"#;
        let request = ClaimRequest::parse(request).unwrap();
        let claim = || second.claim(&handle, &request, Attempt::Unknown, None);
        assert!(matches!(claim().await, Err(EngineError::QueueFull)), "the other thread's queue is full");
        queue.worker.state.leave(queue.worker.state.pending());
        // A call of the first thread is in flight, so a partial second call waits until the first call has
        // returned.
        let call = queue.worker.state.begin_call(true).await.unwrap();
        let mut waiting = std::pin::pin!(claim());
        for _ in 0..100 {
            assert!(waiting.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.worker.state.pending(), 1);
        drop(call);
        assert!(matches!(waiting.await, Err(EngineError::Store(_))), "Redis does not run");
        assert_eq!(queue.worker.state.pending(), 0);
        drop((queue, of_second));
        assert_eq!(first.drop_idle_queues(), 0, "each was used");
        assert_eq!(first.drop_idle_queues(), 2);
    }
}
