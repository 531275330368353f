//! The workloads: a contest for a stock that runs out, and a hot stock that does not.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::app::App;
use crate::error::StockError;
use crate::manager::{Attempt, PerUser, ReduceResult, Stock, Strategy};
use crate::servers::Servers;

/// Time limit after a round's end for answers to claims in flight; beyond it the run fails.
const OVERTIME: Duration = Duration::from_secs(15);
/// Number of units of a stock that does not run out.
const ENDLESS: u32 = 1_000_000_000;
/// If the strategy limits users, one contender in this number is an earlier user's second try.
const SECOND_TRY_EVERY: usize = 10;

/// Units per attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantities {
    /// One.
    One,
    /// One, two, three, and then one again.
    OneToThree,
}

impl Quantities {
    fn of(self, number: usize) -> u32 {
        match self {
            Self::One => 1,
            Self::OneToThree => [1, 2, 3][number % 3],
        }
    }
}

/// Kind of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All contenders concurrently for a stock that runs out.
    Contest {
        /// Units of the stock.
        stock: u32,
        /// Number of attempts.
        contenders: usize,
        /// Units per attempt.
        quantities: Quantities,
        /// Whether a single instance serves all contenders.
        one_instance: bool,
    },
    /// Tasks that each send one attempt after another.
    Hot {
        /// Number of tasks.
        tasks: usize,
    },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contest { stock, contenders, quantities, one_instance } => {
                let units = if *quantities == Quantities::One { "1" } else { "1–3" };
                let one_instance = if *one_instance { ", one instance" } else { "" };
                write!(f, "stock {stock}, {contenders} contenders, {units} each{one_instance}")
            }
            Self::Hot { tasks } => write!(f, "hot stock, {tasks} tasks"),
        }
    }
}

/// Result of one round.
#[derive(Debug, Clone, Default)]
pub struct Round {
    /// Units of the stock.
    pub stock: u64,
    /// Granted units, as returned to callers.
    pub granted_units: u64,
    /// Callers with a grant.
    pub granted: u64,
    /// Callers who were denied because too few units were left, or gave up.
    pub denied: u64,
    /// Fewest units that a denied caller requested.
    pub denied_units_min: Option<u64>,
    /// Callers who were denied because of the units they already have.
    pub limited: u64,
    /// Callers who reached the maximum number of tries; also counted as denied.
    pub gave_up: u64,
    /// Callers without a response at the end of the round, for whom nothing was taken.
    pub undecided: u64,
    /// Number of failed calls, and the first error.
    pub failed: (u64, Option<String>),
    /// Users who got more than their limit.
    pub users_over: u64,
    /// Units left in the store.
    pub left: i64,
    /// Units in SQL at the end, if the strategy writes there.
    pub in_sql: Option<i64>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Times until the response, or the end of the round, in milliseconds, sorted.
    pub waits_ms: Vec<f64>,
    /// Round trips.
    pub trips: u64,
    /// Retries.
    pub retries: u64,
    /// Released locks that belonged to other callers.
    pub wrong_releases: u64,
    /// CPU time of Redis, in microseconds.
    pub redis_cpu_us: f64,
}

impl Round {
    /// Returns the units granted beyond the stock.
    pub fn oversold(&self) -> u64 {
        self.granted_units.saturating_sub(self.stock)
    }

    /// Returns the units left although a caller who requested no more was denied.
    pub fn undersold(&self) -> u64 {
        let left = self.stock.saturating_sub(self.granted_units);
        if self.denied_units_min.is_some_and(|requested| requested <= left) { left } else { 0 }
    }

    /// Returns the number of attempts with a result.
    pub fn answered(&self) -> u64 {
        self.granted + self.denied + self.limited
    }

    /// Returns whether the store agrees with the callers' results.
    pub fn store_agrees(&self) -> bool {
        i128::from(self.left) == i128::from(self.stock) - i128::from(self.granted_units)
    }

    /// Returns the wait at quantile `share`.
    pub fn wait_ms(&self, share: f64) -> f64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an index of the list
        let at = (share * self.waits_ms.len() as f64).ceil() as usize;
        self.waits_ms.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    fn count(&mut self, answer: &Answer) {
        match &answer.result {
            Ok(ReduceResult::Taken) => {
                self.granted += 1;
                self.granted_units += u64::from(answer.quantity);
            }
            Ok(ReduceResult::AlreadyTaken | ReduceResult::Limited(_)) => self.limited += 1,
            Ok(ReduceResult::SoldOut) => self.deny(answer.quantity),
            Err(StockError::GaveUp) => {
                self.gave_up += 1;
                self.deny(answer.quantity);
            }
            // The recorded wait is a lower bound.
            Err(StockError::TimedOut) => self.undecided += 1,
            Err(error) => {
                self.failed.0 += 1;
                self.failed.1.get_or_insert_with(|| error.to_string());
                return;
            }
        }
        self.waits_ms.push(answer.wait_ms);
    }

    fn deny(&mut self, quantity: u32) {
        self.denied += 1;
        let requested = u64::from(quantity);
        self.denied_units_min = Some(self.denied_units_min.map_or(requested, |fewest| fewest.min(requested)));
    }
}

#[derive(Debug)]
struct Answer {
    user: String,
    quantity: u32,
    wait_ms: f64,
    result: Result<ReduceResult, StockError>,
}

/// Runs one round of `kind` on the new stock `key`, for `length`.
pub async fn run(
    servers: &Servers,
    strategy: &Strategy,
    apps: &[Arc<App>],
    key: &str,
    kind: Kind,
    length: Duration,
) -> anyhow::Result<Round> {
    let one_instance = matches!(kind, Kind::Contest { one_instance: true, .. });
    let managers = strategy.managers(if one_instance { &apps[..1] } else { apps }, key)?;
    let stock = if let Kind::Contest { stock, .. } = kind { stock } else { ENDLESS };
    managers[0].init(stock).await?;
    let meter = &apps[0].meter;
    let (trips, retries, wrong) = (meter.trips.get(), meter.retries.get(), meter.wrong_releases.get());
    let lease_calls = meter.lease_calls.get();
    let before = servers.redis_work().await?;
    let tasks = match kind {
        Kind::Contest { contenders, quantities, .. } => {
            contest(strategy, &managers, contenders, quantities, length)
        }
        Kind::Hot { tasks } => hot(&managers, tasks, length),
    };
    let started = Instant::now();
    let answers =
        timeout(length + OVERTIME, tasks.join_all()).await.context("some callers never got a response")?;
    let seconds = started.elapsed().as_secs_f64();
    let after = servers.redis_work().await?;
    let mut round = Round { stock: stock.into(), seconds, ..Round::default() };
    answers.iter().flatten().for_each(|answer| round.count(answer));
    round.waits_ms.sort_by(f64::total_cmp);
    round.users_over = users_over(strategy.per_user, answers.iter().flatten());
    let calls = after.calls - before.calls;
    round.trips = meter.trips.get() - trips + calls;
    round.retries = meter.retries.get() - retries;
    let lease_calls = meter.lease_calls.get() - lease_calls;
    if lease_calls > 0 {
        // claimgate's lock does not count its tries, but Redis does.
        round.retries += calls.saturating_sub(lease_calls);
    }
    round.wrong_releases = meter.wrong_releases.get() - wrong;
    round.redis_cpu_us = (after.cpu_s - before.cpu_s) * 1e6;
    round.in_sql = managers[0].finish().await?;
    round.left = managers[0].get().await?;
    Ok(round)
}

fn contest(
    strategy: &Strategy,
    managers: &[Arc<dyn Stock>],
    contenders: usize,
    quantities: Quantities,
    length: Duration,
) -> JoinSet<Vec<Answer>> {
    let barrier = Arc::new(Barrier::new(contenders));
    let slow = strategy.slow_holders.then(Arc::default);
    let mut tasks = JoinSet::new();
    for number in 0..contenders {
        let second = strategy.per_user != PerUser::Any && number % SECOND_TRY_EVERY == SECOND_TRY_EVERY - 1;
        let user = if second { number - 1 } else { number };
        let mut attempt = Attempt::new(&format!("u{user}"), quantities.of(user), length);
        attempt.slow.clone_from(&slow);
        let (manager, barrier) = (Arc::clone(&managers[number % managers.len()]), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            attempt.deadline = Instant::now() + length;
            vec![answer(&*manager, attempt).await]
        });
    }
    tasks
}

fn hot(managers: &[Arc<dyn Stock>], count: usize, length: Duration) -> JoinSet<Vec<Answer>> {
    let mut tasks = JoinSet::new();
    let deadline = Instant::now() + length;
    for task in 0..count {
        let manager = Arc::clone(&managers[task % managers.len()]);
        tasks.spawn(async move {
            let mut answers = Vec::new();
            while Instant::now() < deadline {
                let user = format!("u{task}-{}", answers.len());
                let attempt = Attempt { user, quantity: 1, deadline, slow: None };
                answers.push(answer(&*manager, attempt).await);
            }
            answers
        });
    }
    tasks
}

async fn answer(manager: &dyn Stock, attempt: Attempt) -> Answer {
    let started = Instant::now();
    let result = manager.reduce(&attempt).await;
    let wait_ms = started.elapsed().as_secs_f64() * 1000.0;
    Answer { user: attempt.user, quantity: attempt.quantity, wait_ms, result }
}

fn users_over<'a>(promise: PerUser, answers: impl Iterator<Item = &'a Answer>) -> u64 {
    let mut had: HashMap<&str, (u32, u32)> = HashMap::new();
    for answer in answers.filter(|answer| matches!(answer.result, Ok(ReduceResult::Taken))) {
        let (times, units) = had.entry(&answer.user).or_default();
        *times += 1;
        *units += answer.quantity;
    }
    let is_over = |(times, units): &&(u32, u32)| match promise {
        PerUser::Any => false,
        PerUser::Once => *times > 1,
        PerUser::Units(most) => *units > most,
    };
    had.values().filter(is_over).count() as u64
}
