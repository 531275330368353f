//! What every strategy is: a manager of one stock, and what it promises.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use claimgate_core::engine::batcher::BatcherError;
use claimgate_core::engine::sync::SyncError;
use claimgate_core::store::redis::RedisStoreError;
use claimgate_core::store::redis::lease::LeaseError;
use tokio::time::Instant;

use crate::app::{Addresses, App};

/// One try to take something.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Who tries.
    pub user: String,
    /// How many units, at least 1.
    pub quantity: u32,
    /// Until when a strategy may wait for its turn; then it gives [`StockError::TimedOut`], and nothing has changed.
    pub deadline: Instant,
    /// Which holders are slower than their lease: only strategies whose fault needs some are given any.
    pub slow: Option<Arc<SlowHolders>>,
}

/// Tells who is slow among those who hold a lock one after the other: the first two, and then two of every 32.
///
/// Two in a row, so that the second still holds when the first wakes up after its lease; by their turn and not by their
/// name, so that each contest meets some while there is stock.
#[derive(Debug, Default)]
pub struct SlowHolders(AtomicUsize);

impl SlowHolders {
    /// Whether the holder whose turn it is, and who asks once, is slow.
    pub fn next_is_slow(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) % 32 < 2
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduced {
    /// The units are the caller's.
    Taken,
    /// Fewer units are left than the attempt asks for.
    SoldOut,
    /// This user has had theirs, or another try of theirs is in progress.
    HadAlready,
    /// A limit of this user's, by its name.
    Limited(&'static str),
}

/// Why an attempt has no answer.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// Its turn did not come by the deadline; nothing was tried.
    #[error("its turn did not come in time")]
    TimedOut,
    /// Others were quicker as often as it may try; nothing was taken.
    #[error("gave up after as many tries as it has")]
    GaveUp,
    /// The lock was lost before the write, which its fencing token kept out.
    #[error("the lock was lost, and the write refused")]
    LockLost,
    /// The stock was never put there.
    #[error("there is no such stock")]
    Missing,
    /// Two things that must agree do not.
    #[error("inconsistent: {0}")]
    Inconsistent(String),
    /// The one that decides has gone, and what waited for it with it.
    #[error("the worker that decides has stopped")]
    Stopped,
    /// Redis.
    #[error("Redis: {0}")]
    Redis(#[from] ::redis::RedisError),
    /// PostgreSQL.
    #[error("PostgreSQL: {0}")]
    Sql(#[from] sqlx::Error),
    /// A call of claimgate's on a campaign.
    #[error("claimgate: {0}")]
    Sync(#[from] SyncError),
    /// claimgate's batcher.
    #[error("claimgate: {0}")]
    Batcher(#[from] BatcherError),
    /// Anything that only setting up can meet.
    #[error("setting up: {0}")]
    SetUp(String),
}

impl From<RedisStoreError> for StockError {
    fn from(error: RedisStoreError) -> Self {
        Self::Sync(error.into())
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

impl Attempt {
    /// An attempt of `user` that may wait for `timeout`.
    pub fn new(user: &str, quantity: u32, timeout: Duration) -> Self {
        Self { user: user.to_owned(), quantity, deadline: Instant::now() + timeout, slow: None }
    }

    /// Whether this is a slow holder; to be asked once, while the lock is held.
    pub fn is_slow_holder(&self) -> bool {
        self.slow.as_ref().is_some_and(|slow| slow.next_is_slow())
    }
}

impl StockError {
    /// A failure of setting up.
    pub fn set_up(error: impl fmt::Debug) -> Self {
        Self::SetUp(format!("{error:?}"))
    }
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, StockError>;

/// What a holder holds; dropping it may let go.
pub type Held = Box<dyn Any + Send>;

/// A way to give a stock away. A value is one application server's view of one stock: several of them share the stock
/// and nothing else.
pub trait StockManager: Sized + Send + Sync + 'static {
    /// The stock `key`, by way of one server's connections.
    fn open(app: &Arc<App>, key: &str) -> impl Future<Output = Result<Self>> + Send;

    /// Puts `stock` units there; one of the managers of a stock does.
    fn init(&self, stock: u32) -> impl Future<Output = Result<()>> + Send;

    /// Takes units, or says why not.
    fn reduce(&self, attempt: &Attempt) -> impl Future<Output = Result<Reduced>> + Send;

    /// Gives back what an attempt has taken.
    fn give_back(&self, attempt: &Attempt) -> impl Future<Output = Result<()>> + Send;

    /// Units left, as the store has it.
    fn get(&self) -> impl Future<Output = Result<i64>> + Send;

    /// Completes the work that goes on after the answer; the units that SQL has been given, for strategies that write to SQL.
    fn finish(&self) -> impl Future<Output = Result<Option<i64>>> + Send {
        async { Ok(None) }
    }

    /// Gets as far as a holder that is about to crash: with its lock or its transaction, if there is one.
    fn hold(&self, attempt: &Attempt) -> impl Future<Output = Result<Held>> + Send {
        async { self.reduce(attempt).await.map(|reduced| Box::new(reduced) as Held) }
    }
}

/// An answer on its way.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// [`StockManager`] for those who do not know which: the same calls, boxed.
pub trait Stock: Send + Sync {
    /// See [`StockManager::init`].
    fn init(&self, stock: u32) -> Pending<'_, ()>;
    /// See [`StockManager::reduce`].
    fn reduce<'a>(&'a self, attempt: &'a Attempt) -> Pending<'a, Reduced>;
    /// See [`StockManager::give_back`].
    fn give_back<'a>(&'a self, attempt: &'a Attempt) -> Pending<'a, ()>;
    /// See [`StockManager::get`].
    fn get(&self) -> Pending<'_, i64>;
    /// See [`StockManager::finish`].
    fn finish(&self) -> Pending<'_, Option<i64>>;
    /// See [`StockManager::hold`].
    fn hold<'a>(&'a self, attempt: &'a Attempt) -> Pending<'a, Held>;
}

impl<M: StockManager> Stock for M {
    fn init(&self, stock: u32) -> Pending<'_, ()> {
        Box::pin(StockManager::init(self, stock))
    }

    fn reduce<'a>(&'a self, attempt: &'a Attempt) -> Pending<'a, Reduced> {
        Box::pin(StockManager::reduce(self, attempt))
    }

    fn give_back<'a>(&'a self, attempt: &'a Attempt) -> Pending<'a, ()> {
        Box::pin(StockManager::give_back(self, attempt))
    }

    fn get(&self) -> Pending<'_, i64> {
        Box::pin(StockManager::get(self))
    }

    fn finish(&self) -> Pending<'_, Option<i64>> {
        Box::pin(StockManager::finish(self))
    }

    fn hold<'a>(&'a self, attempt: &'a Attempt) -> Pending<'a, Held> {
        Box::pin(StockManager::hold(self, attempt))
    }
}

/// What a strategy is known to do. That it oversells is a finding that a run must reproduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// Never over, never under.
    Exact,
    /// Never over; may refuse units that were there.
    NeverOver,
    /// Oversells.
    Oversells,
    /// Exact with one instance, oversells with two.
    ExactAlone,
    /// Frees another's lock when the holder is slow.
    WrongRelease,
    /// Frees another's lock when the holder is slow, and oversells by it.
    WrongReleaseOversells,
    /// Never over in all, but users get more than is promised.
    UsersOver,
    /// Never over, but units are gone that no caller was granted.
    LosesUnits,
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::NeverOver => "never over",
            Self::Oversells => "oversells",
            Self::ExactAlone => "exact with one instance, oversells with two",
            Self::WrongRelease => "wrong release",
            Self::WrongReleaseOversells => "wrong release, oversells",
            Self::UsersOver => "never over, but a user is",
            Self::LosesUnits => "never over, loses units",
        })
    }
}

/// What a strategy promises about one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerUser {
    /// Nothing.
    Any,
    /// One grant.
    Once,
    /// This number of units.
    Units(u32),
}

/// How a strategy's manager is made.
pub type Open = fn(Arc<App>, String) -> Pending<'static, Arc<dyn Stock>>;

/// Looks at what no contest shows; each finding is a sentence, and what it must not find an error.
pub type Findings = fn(Addresses) -> Pending<'static, Vec<String>>;

/// A row of the lab.
#[derive(Debug, Clone, Copy)]
pub struct Strategy {
    /// Its number.
    pub row: u8,
    /// For `--only`; its file's name.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// How it works, in a line.
    pub how: &'static str,
    /// What it is known to do.
    pub expectation: Expectation,
    /// What it promises about one user.
    pub per_user: PerUser,
    /// Application servers that share the stock.
    pub instances: usize,
    /// Whether some holders are slower than their lease in a contest: its fault needs that.
    pub slow_holders: bool,
    /// Whether a holder's crash stops all others for ever.
    pub stuck_after_crash: bool,
    /// Whether work that fails stops all others for as long as its process lives; shown by the findings.
    pub stuck_after_failure: bool,
    /// What else it shows.
    pub findings: Option<Findings>,
    /// Makes a manager.
    pub open: Open,
}

impl Strategy {
    /// A strategy on two instances, whose holders crash without harm.
    pub const fn of<M: StockManager>(
        row: u8,
        name: &'static str,
        title: &'static str,
        expectation: Expectation,
        how: &'static str,
    ) -> Self {
        Self {
            row,
            name,
            title,
            how,
            expectation,
            per_user: PerUser::Any,
            instances: 2,
            slow_holders: false,
            stuck_after_crash: false,
            stuck_after_failure: false,
            findings: None,
            open: open::<M>,
        }
    }

    /// Promises something about one user.
    #[must_use]
    pub const fn per_user(self, per_user: PerUser) -> Self {
        Self { per_user, ..self }
    }

    /// Works in one process only.
    #[must_use]
    pub const fn alone(self) -> Self {
        Self { instances: 1, ..self }
    }

    /// What it is known to do, crashes included.
    pub fn known_to_be(&self) -> String {
        let stuck = match (self.stuck_after_crash, self.stuck_after_failure) {
            (true, _) => " until a crash, then stuck",
            (_, true) => " until work fails, then stuck",
            _ => "",
        };
        format!("{}{stuck}", self.expectation)
    }

    /// Its fault needs a slow holder.
    #[must_use]
    pub const fn with_slow_holders(self) -> Self {
        Self { slow_holders: true, ..self }
    }

    /// Its holder's crash stops all others.
    #[must_use]
    pub const fn stuck_after_crash(self) -> Self {
        Self { stuck_after_crash: true, ..self }
    }

    /// Work that fails stops all others.
    #[must_use]
    pub const fn stuck_after_failure(self) -> Self {
        Self { stuck_after_failure: true, ..self }
    }

    /// Shows something else, too.
    #[must_use]
    pub const fn with_findings(self, findings: Findings) -> Self {
        Self { findings: Some(findings), ..self }
    }

    /// One manager of the stock `key` for each of `apps`.
    pub async fn managers(&self, apps: &[Arc<App>], key: &str) -> Result<Vec<Arc<dyn Stock>>> {
        let mut managers = Vec::with_capacity(apps.len());
        for app in apps {
            managers.push((self.open)(Arc::clone(app), key.to_owned()).await?);
        }
        Ok(managers)
    }
}

fn open<M: StockManager>(app: Arc<App>, key: String) -> Pending<'static, Arc<dyn Stock>> {
    Box::pin(async move { M::open(&app, &key).await.map(|manager| Arc::new(manager) as Arc<dyn Stock>) })
}
