//! Errors of attempts to take units.

use std::fmt;

use claimgate_core::engine::error::{EngineError, StoreError};
use claimgate_core::store::redis::RedisStoreError;
use claimgate_core::store::redis::lease::LeaseError;

/// Why an attempt has no result.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// The deadline passed before the attempt's turn; nothing was taken.
    #[error("timed out before its turn")]
    TimedOut,
    /// All tries conflicted with other callers; nothing was taken.
    #[error("gave up after the maximum number of tries")]
    GaveUp,
    /// The lock was lost before the write, which the fencing token prevented.
    #[error("the lock was lost, and the write was rejected")]
    LockLost,
    /// The stock was not initialized.
    #[error("there is no such stock")]
    Missing,
    /// Two values that must agree do not.
    #[error("inconsistent: {0}")]
    Inconsistent(String),
    /// The deciding worker stopped, and the queued claims were lost.
    #[error("the deciding worker has stopped")]
    Stopped,
    /// Redis.
    #[error("Redis: {0}")]
    Redis(#[from] ::redis::RedisError),
    /// PostgreSQL.
    #[error("PostgreSQL: {0}")]
    Sql(#[from] sqlx::Error),
    /// A call of claimgate on a campaign.
    #[error("claimgate: {0}")]
    Store(#[from] StoreError),
    /// claimgate's batcher.
    #[error("claimgate: {0}")]
    Batcher(#[from] EngineError),
    /// An error that only occurs during set-up.
    #[error("set-up: {0}")]
    SetUp(String),
}

impl From<RedisStoreError> for StockError {
    fn from(error: RedisStoreError) -> Self {
        Self::Store(error.into())
    }
}

impl From<LeaseError> for StockError {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Taken => Self::TimedOut,
            LeaseError::Redis(error) => error.into(),
        }
    }
}

impl StockError {
    /// Wraps an error of the set-up.
    pub fn set_up(error: impl fmt::Debug) -> Self {
        Self::SetUp(format!("{error:?}"))
    }
}

/// The result type of the lab's calls.
pub type Result<T> = std::result::Result<T, StockError>;
