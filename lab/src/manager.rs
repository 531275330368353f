//! The strategy interface: a manager of one stock, and its promises.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::addresses::Addresses;
use crate::app::App;
pub use crate::attempt::{Attempt, ReduceResult, SlowHolders};
use crate::error::Result;
use crate::store::Store;

/// The resources of a lock's holder; dropping the resources may release the lock.
pub type Held = Box<dyn Any + Send>;

/// A method of giving a stock away. A `Store` is one application server's access to the stock. Several
/// servers share only the stock. A strategy defines how units are taken, and overrides what differs from its
/// store.
pub trait StockManager: Send + Sync + 'static {
    /// Kind of store that holds the stock.
    type Store: Store;

    /// Sets the stock to `units`; called on one server.
    fn init(stock: &Self::Store, units: u32) -> impl Future<Output = Result<()>> + Send {
        stock.set(units.into())
    }

    /// Takes units, or returns why not.
    fn reduce(stock: &Self::Store, attempt: &Attempt) -> impl Future<Output = Result<ReduceResult>> + Send;

    /// Returns the units of an attempt to the stock.
    fn return_units(stock: &Self::Store, attempt: &Attempt) -> impl Future<Output = Result<()>> + Send {
        stock.return_units(attempt)
    }

    /// Returns the units left in the store.
    fn get(stock: &Self::Store) -> impl Future<Output = Result<i64>> + Send {
        stock.get()
    }

    /// Completes work that continues after the response. Returns the units in SQL, for strategies that write
    /// there.
    fn finish(_: &Self::Store) -> impl Future<Output = Result<Option<i64>>> + Send {
        async { Ok(None) }
    }

    /// Acquires the strategy's lock or begins its transaction, if it has one, for a holder that will crash.
    fn hold(stock: &Self::Store, attempt: &Attempt) -> impl Future<Output = Result<Held>> + Send {
        async move { Self::reduce(stock, attempt).await.map(|reduced| Box::new(reduced) as Held) }
    }
}

/// A boxed future of a call.
pub type CallFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A stock with any strategy: the calls of [`StockManager`], boxed.
pub trait Stock: Send + Sync {
    /// See [`StockManager::init`].
    fn init(&self, units: u32) -> CallFuture<'_, ()>;
    /// See [`StockManager::reduce`].
    fn reduce<'a>(&'a self, attempt: &'a Attempt) -> CallFuture<'a, ReduceResult>;
    /// See [`StockManager::return_units`].
    fn return_units<'a>(&'a self, attempt: &'a Attempt) -> CallFuture<'a, ()>;
    /// See [`StockManager::get`].
    fn get(&self) -> CallFuture<'_, i64>;
    /// See [`StockManager::finish`].
    fn finish(&self) -> CallFuture<'_, Option<i64>>;
    /// See [`StockManager::hold`].
    fn hold<'a>(&'a self, attempt: &'a Attempt) -> CallFuture<'a, Held>;
}

struct Managed<M: StockManager>(M::Store);

impl<M: StockManager> Stock for Managed<M> {
    fn init(&self, units: u32) -> CallFuture<'_, ()> {
        Box::pin(M::init(&self.0, units))
    }

    fn reduce<'a>(&'a self, attempt: &'a Attempt) -> CallFuture<'a, ReduceResult> {
        Box::pin(M::reduce(&self.0, attempt))
    }

    fn return_units<'a>(&'a self, attempt: &'a Attempt) -> CallFuture<'a, ()> {
        Box::pin(M::return_units(&self.0, attempt))
    }

    fn get(&self) -> CallFuture<'_, i64> {
        Box::pin(M::get(&self.0))
    }

    fn finish(&self) -> CallFuture<'_, Option<i64>> {
        Box::pin(M::finish(&self.0))
    }

    fn hold<'a>(&'a self, attempt: &'a Attempt) -> CallFuture<'a, Held> {
        Box::pin(M::hold(&self.0, attempt))
    }
}

/// Known behaviour of a strategy. A run must also reproduce overselling, as a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// Never oversells or undersells.
    Exact,
    /// Never oversells; may deny units that are left.
    NeverOver,
    /// Oversells.
    Oversells,
    /// Exact with one instance, oversells with two.
    ExactWithOneInstance,
    /// Releases another caller's lock if the holder is slow.
    WrongRelease,
    /// Releases another caller's lock if the holder is slow, and oversells as a result.
    WrongReleaseOversells,
    /// Never exceeds the total, but exceeds the limit per user.
    ExceedsUserLimit,
    /// Never oversells, but loses units that no caller got.
    LosesUnits,
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::NeverOver => "never over",
            Self::Oversells => "oversells",
            Self::ExactWithOneInstance => "exact with one instance, oversells with two",
            Self::WrongRelease => "wrong release",
            Self::WrongReleaseOversells => "wrong release, oversells",
            Self::ExceedsUserLimit => "never over, except per user",
            Self::LosesUnits => "never over, loses units",
        })
    }
}

/// Promise of a strategy per user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerUser {
    /// No limit.
    Any,
    /// One grant.
    Once,
    /// At most this number of units.
    Units(u32),
}

/// A constructor of a strategy's manager.
pub type Constructor = fn(&Arc<App>, &str) -> Result<Arc<dyn Stock>>;

/// Shows effects that no contest shows. Each finding is a sentence; an unexpected result is an error.
pub type Findings = fn(Addresses) -> CallFuture<'static, Vec<String>>;

/// A row of the lab.
#[derive(Debug, Clone, Copy)]
pub struct Strategy {
    /// Row number.
    pub row: u8,
    /// Name for `--only`, the name of its file.
    pub name: &'static str,
    /// Title for people.
    pub title: &'static str,
    /// Description in one line.
    pub how: &'static str,
    /// Known behaviour.
    pub expectation: Expectation,
    /// Promise per user.
    pub per_user: PerUser,
    /// Application servers that share the stock.
    pub instances: usize,
    /// Whether contests have holders slower than their lease, which this strategy's fault needs.
    pub slow_holders: bool,
    /// Whether a holder's crash blocks all other callers permanently.
    pub stuck_after_crash: bool,
    /// Whether failed work blocks all other callers while its process lives; the findings show it.
    pub stuck_after_failure: bool,
    /// Additional findings.
    pub findings: Option<Findings>,
    /// The constructor of its manager.
    pub open: Constructor,
}

impl Strategy {
    /// Creates a strategy on two instances, whose holders crash without harm.
    pub const fn of<M: StockManager>(
        row: u8,
        title: &'static str,
        expectation: Expectation,
        how: &'static str,
    ) -> Self {
        Self {
            row,
            name: "",
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

    /// Sets the name, that of its file.
    #[must_use]
    pub const fn called(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Sets the promise per user.
    #[must_use]
    pub const fn per_user(self, per_user: PerUser) -> Self {
        Self { per_user, ..self }
    }

    /// Restricts it to one process.
    #[must_use]
    pub const fn one_instance(self) -> Self {
        Self { instances: 1, ..self }
    }

    /// Describes the known behaviour, including crashes.
    pub fn expected(&self) -> String {
        let stuck = match (self.stuck_after_crash, self.stuck_after_failure) {
            (true, _) => " until a crash, then stuck",
            (_, true) => " until work fails, then stuck",
            _ => "",
        };
        format!("{}{stuck}", self.expectation)
    }

    /// Adds slow holders to contests.
    #[must_use]
    pub const fn with_slow_holders(self) -> Self {
        Self { slow_holders: true, ..self }
    }

    /// Marks the strategy as blocked by a holder's crash.
    #[must_use]
    pub const fn stuck_after_crash(self) -> Self {
        Self { stuck_after_crash: true, ..self }
    }

    /// Marks the strategy as blocked by failed work.
    #[must_use]
    pub const fn stuck_after_failure(self) -> Self {
        Self { stuck_after_failure: true, ..self }
    }

    /// Adds findings.
    #[must_use]
    pub const fn with_findings(self, findings: Findings) -> Self {
        Self { findings: Some(findings), ..self }
    }

    /// Creates a manager of the stock `key` for each of `apps`.
    pub fn managers(&self, apps: &[Arc<App>], key: &str) -> Result<Vec<Arc<dyn Stock>>> {
        apps.iter().map(|app| (self.open)(app, key)).collect()
    }
}

fn open<M: StockManager>(app: &Arc<App>, key: &str) -> Result<Arc<dyn Stock>> {
    Ok(Arc::new(Managed::<M>(M::Store::open(app, key)?)))
}
