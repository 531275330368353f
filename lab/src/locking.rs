//! Strategies with a lock around a read and a write. They differ only in how they lock.

use std::future::Future;

use crate::error::Result;
use crate::manager::{Attempt, Held, ReduceResult, StockManager};
use crate::store::Store;

/// A lock, and the work under it.
pub trait Locking: Send + Sync + 'static {
    type Store: Store;
    /// State of a caller that holds the lock.
    type Holder: Send + Sync + 'static;

    /// Waits for the lock until the attempt's deadline.
    fn acquire(stock: &Self::Store, attempt: &Attempt) -> impl Future<Output = Result<Self::Holder>> + Send;

    fn release(
        stock: &Self::Store,
        holder: Self::Holder,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Takes units while the lock is held.
    fn work(
        stock: &Self::Store,
        _: &Self::Holder,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<ReduceResult>> + Send {
        stock.read_then_write(attempt.quantity)
    }
}

impl<L: Locking> StockManager for L {
    type Store = L::Store;

    async fn reduce(stock: &L::Store, attempt: &Attempt) -> Result<ReduceResult> {
        let holder = L::acquire(stock, attempt).await?;
        let reduced = L::work(stock, &holder, attempt).await;
        L::release(stock, holder, attempt).await?;
        reduced
    }

    async fn return_units(stock: &L::Store, attempt: &Attempt) -> Result<()> {
        let holder = L::acquire(stock, attempt).await?;
        let returned = stock.return_units(attempt).await;
        L::release(stock, holder, attempt).await?;
        returned
    }

    async fn hold(stock: &L::Store, attempt: &Attempt) -> Result<Held> {
        Ok(Box::new(L::acquire(stock, attempt).await?))
    }
}
