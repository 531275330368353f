//! Bounded in-process queue: claims are queued in memory, and one worker decides them in order.
//!
//! Exact with one instance: only the worker reads and writes. If the queue is full, callers wait for a slot.
//! Fails with a second instance, like the mutex. If the process crashes, queued claims are lost and their
//! callers get no response. Cost: 2 round trips per grant, one claim after another.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout_at;

use crate::addresses::Addresses;
use crate::app::App;
use crate::backoff::unique;
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, ReduceResult, StockManager, Strategy};
use crate::stock_key::StockKey;
use crate::store::Store;

pub const STRATEGY: Strategy = Strategy::of::<ProcessQueue>(
    4,
    "bounded in-process queue",
    Expectation::Exact,
    "claims are queued in memory, one worker decides; one instance only",
)
.one_instance()
.with_findings(|addresses| Box::pin(findings(addresses)));

/// Maximum number of queued claims.
const QUEUE_MAX: usize = 64;

struct QueuedClaim {
    quantity: u32,
    answer: oneshot::Sender<Result<ReduceResult>>,
}

pub struct ProcessQueue {
    stock: StockKey,
    queue: mpsc::Sender<QueuedClaim>,
    worker: AbortHandle,
}

impl Store for ProcessQueue {
    fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        let stock = StockKey::new(app, key);
        let (queue, claims) = mpsc::channel(QUEUE_MAX);
        let worker = tokio::spawn(work(stock.clone(), claims)).abort_handle();
        Ok(Self { stock, queue, worker })
    }

    async fn set(&self, units: i64) -> Result<()> {
        self.stock.set(units).await
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn return_units(&self, attempt: &Attempt) -> Result<()> {
        self.stock.return_units(attempt).await
    }
}

impl StockManager for ProcessQueue {
    type Store = Self;

    async fn reduce(stock: &Self, attempt: &Attempt) -> Result<ReduceResult> {
        let slot =
            timeout_at(attempt.deadline, stock.queue.reserve()).await.map_err(|_| StockError::TimedOut)?;
        let (answer, decided) = oneshot::channel();
        slot.map_err(|_| StockError::Stopped)?.send(QueuedClaim { quantity: attempt.quantity, answer });
        decided.await.map_err(|_| StockError::Stopped)?
    }
}

/// Runs the only worker until the last sender is dropped.
async fn work(stock: StockKey, mut queue: mpsc::Receiver<QueuedClaim>) {
    while let Some(QueuedClaim { quantity, answer }) = queue.recv().await {
        // The caller may have stopped waiting.
        let _ = answer.send(stock.read_then_write(quantity).await);
    }
}

/// Shows what happens to queued claims if the worker dies.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    let (app, key) = (&App::start_all(&addresses, 1)?[0], unique()?);
    let stock = Arc::new(ProcessQueue::open(app, &key)?);
    stock.set(1000).await?;
    let mut callers = JoinSet::new();
    for number in 0..QUEUE_MAX {
        let stock = Arc::clone(&stock);
        let attempt = Attempt::new(&format!("u{number}"), 1, Duration::from_secs(5));
        callers.spawn(async move { ProcessQueue::reduce(&stock, &attempt).await });
    }
    // After the first response, nearly all others are still queued.
    callers.join_next().await;
    stock.worker.abort();
    let answers = callers.join_all().await;
    let died = answers.iter().filter(|answer| matches!(answer, Err(StockError::Stopped))).count();
    if died == 0 {
        return Err(StockError::Inconsistent("every caller got a response after the crash".to_owned()));
    }
    Ok(vec![format!("of {QUEUE_MAX} claims in flight, {died} were lost with the worker")])
}
