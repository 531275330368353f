//! Bounded in-process queue: claims queue up in memory, and one worker decides them in turn.
//!
//! Exact in one instance: the worker alone reads and writes. A full queue pushes back: callers wait for a place.
//! Breaks with a second instance, as the mutex does; and what is queued dies with the process, its callers unanswered.
//! Costs 2 trips for a grant, one claim after the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout_at;

use crate::app::{Addresses, App};
use crate::backoff::unique;
use crate::manager::{Attempt, Expectation, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<ProcessQueue>(
    4,
    "process_queue",
    "bounded in-process queue",
    Expectation::Exact,
    "claims queue in memory, one worker decides; one instance only",
)
.alone()
.with_findings(|addresses| Box::pin(findings(addresses)));

/// The most claims that wait in memory.
pub const QUEUE_MAX: usize = 64;

#[derive(Debug)]
struct Waiting {
    quantity: u32,
    answer: oneshot::Sender<Result<Reduced>>,
}

/// See the module.
#[derive(Debug)]
pub struct ProcessQueue {
    stock: Arc<StockKey>,
    queue: mpsc::Sender<Waiting>,
    worker: AbortHandle,
}

impl StockManager for ProcessQueue {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        let stock = Arc::new(StockKey::new(app, key));
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let worker = tokio::spawn(work(Arc::clone(&stock), waiting)).abort_handle();
        Ok(Self { stock, queue, worker })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let place =
            timeout_at(attempt.deadline, self.queue.reserve()).await.map_err(|_| StockError::TimedOut)?;
        let (answer, decided) = oneshot::channel();
        place.map_err(|_| StockError::Stopped)?.send(Waiting { quantity: attempt.quantity, answer });
        decided.await.map_err(|_| StockError::Stopped)?
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        self.stock.add(attempt.quantity.into()).await.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }
}

/// The one worker; it ends with the last sender.
async fn work(stock: Arc<StockKey>, mut queue: mpsc::Receiver<Waiting>) {
    while let Some(Waiting { quantity, answer }) = queue.recv().await {
        // The caller may have gone.
        let _ = answer.send(stock.read_then_write(quantity).await);
    }
}

/// What becomes of those in the queue when the one that decides is gone.
async fn findings(addresses: Addresses) -> Result<Vec<String>> {
    let (app, key) = (&App::start_all(&addresses, 1)?[0], unique()?);
    let manager = Arc::new(ProcessQueue::open(app, &key).await?);
    manager.init(1000).await?;
    let mut callers = JoinSet::new();
    for number in 0..QUEUE_MAX {
        let manager = Arc::clone(&manager);
        let attempt = Attempt::new(&format!("u{number}"), 1, Duration::from_secs(5));
        callers.spawn(async move { manager.reduce(&attempt).await });
    }
    // The first one has its answer: of the others all but a few wait.
    callers.join_next().await;
    manager.worker.abort();
    let answers = callers.join_all().await;
    let died = answers.iter().filter(|answer| matches!(answer, Err(StockError::Stopped))).count();
    if died == 0 {
        return Err(StockError::Inconsistent("every caller was answered after the crash".to_owned()));
    }
    Ok(vec![format!("of {QUEUE_MAX} claims in flight {died} died unanswered with the worker")])
}
