//! Operations that are the same for all strategies on one kind of store: open, set, read, return units.

use std::future::Future;
use std::sync::Arc;

use crate::app::App;
use crate::attempt::{Attempt, ReduceResult};
use crate::error::Result;

/// A stock in a store, accessed through the connections of one application server.
pub trait Store: Sized + Send + Sync + 'static {
    fn open(app: &Arc<App>, key: &str) -> Result<Self>;

    /// Sets the units.
    fn set(&self, units: i64) -> impl Future<Output = Result<()>> + Send;

    /// Returns the units left.
    fn get(&self) -> impl Future<Output = Result<i64>> + Send;

    /// Adds an attempt's units, in one step.
    fn return_units(&self, attempt: &Attempt) -> impl Future<Output = Result<()>> + Send;

    /// Reads, tests and writes the stock: correct only if no other caller does the same concurrently.
    fn read_then_write(&self, quantity: u32) -> impl Future<Output = Result<ReduceResult>> + Send {
        async move {
            let left = self.get().await? - i64::from(quantity);
            if left < 0 {
                return Ok(ReduceResult::SoldOut);
            }
            self.set(left).await?;
            Ok(ReduceResult::Taken)
        }
    }
}

/// A stock with additional state of this server.
impl<S: Store, T: Default + Send + Sync + 'static> Store for (S, T) {
    fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok((S::open(app, key)?, T::default()))
    }

    async fn set(&self, units: i64) -> Result<()> {
        self.0.set(units).await
    }

    async fn get(&self) -> Result<i64> {
        self.0.get().await
    }

    async fn return_units(&self, attempt: &Attempt) -> Result<()> {
        self.0.return_units(attempt).await
    }
}
