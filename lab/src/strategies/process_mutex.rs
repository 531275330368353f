//! In-process mutex: read then write in Redis, one caller at a time, as far as this process knows.
//!
//! Exact with one instance. Breaks with the second one, whose mutex is another: nothing says so, and tests on one
//! machine pass. Costs 2 trips for a grant, one after the other for the whole instance; a crash frees it at once.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::timeout_at;

use crate::app::App;
use crate::manager::{Attempt, Expectation, Held, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_key::StockKey;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<ProcessMutex>(
    3,
    "process_mutex",
    "in-process mutex, two instances",
    Expectation::ExactAlone,
    "a mutex of the process around GET, test, SET",
);

/// See the module.
#[derive(Debug)]
pub struct ProcessMutex {
    stock: StockKey,
    turn: Arc<Mutex<()>>,
}

impl StockManager for ProcessMutex {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { stock: StockKey::new(app, key), turn: Arc::default() })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        self.stock.set(stock.into()).await
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let _turn = timeout_at(attempt.deadline, self.turn.lock()).await.map_err(|_| StockError::TimedOut)?;
        self.stock.read_then_write(attempt.quantity).await
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.stock.add(attempt.quantity.into()).await.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        self.stock.get().await
    }

    async fn hold(&self, _: &Attempt) -> Result<Held> {
        Ok(Box::new(Arc::clone(&self.turn).lock_owned().await))
    }
}
