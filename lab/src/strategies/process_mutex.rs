//! In-process mutex: read then write in Redis, one caller of this process at a time.
//!
//! Exact with one instance. Fails with a second one, which has its own mutex: no error shows it, and tests on
//! one machine pass. Cost: 2 round trips per grant, one caller of the instance after another. A crash
//! releases the mutex immediately.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout_at;

use crate::error::{Result, StockError};
use crate::locking::Locking;
use crate::manager::{Attempt, Expectation, Strategy};
use crate::stock_key::StockKey;

pub const STRATEGY: Strategy = Strategy::of::<ProcessMutex>(
    3,
    "in-process mutex, two instances",
    Expectation::ExactWithOneInstance,
    "a mutex of the process around GET, test, SET",
);

pub struct ProcessMutex;

impl Locking for ProcessMutex {
    type Store = (StockKey, Arc<Mutex<()>>);
    type Holder = OwnedMutexGuard<()>;

    async fn acquire((_, turn): &Self::Store, attempt: &Attempt) -> Result<Self::Holder> {
        let turn = Arc::clone(turn).lock_owned();
        timeout_at(attempt.deadline, turn).await.map_err(|_| StockError::TimedOut)
    }

    async fn release(_: &Self::Store, _: Self::Holder, _: &Attempt) -> Result<()> {
        Ok(())
    }
}
