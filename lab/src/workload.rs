//! What the strategies are put to: a contest for a stock that runs out, and a hot stock that does not.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::app::App;
use crate::manager::{Attempt, PerUser, Reduced, Stock, StockError, Strategy};
use crate::servers::Servers;

/// Time a round has after its cut to answer claims in flight; beyond it the run has failed.
const OVERTIME: Duration = Duration::from_secs(15);
/// Units of a stock that does not run out.
const ENDLESS: u32 = 1_000_000_000;
/// Each contender of this number is an earlier user's second try, where a strategy promises something about retries.
const SECOND_TRY_EVERY: usize = 10;

/// How many units each asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantities {
    /// One.
    One,
    /// One, two and three in turn.
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

/// What a cell of the lab does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All contenders at once for a stock that runs out.
    Contest {
        /// Units there are.
        stock: u32,
        /// Attempts.
        contenders: usize,
        /// Units each asks for.
        quantities: Quantities,
        /// Whether one instance alone serves them all.
        alone: bool,
    },
    /// This number of tasks, one attempt after the other each.
    Hot {
        /// How many.
        tasks: usize,
    },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contest { stock, contenders, quantities, alone } => {
                let units = if *quantities == Quantities::One { "1" } else { "1–3" };
                let alone = if *alone { ", one instance" } else { "" };
                write!(f, "stock {stock}, {contenders} contenders, {units} each{alone}")
            }
            Self::Hot { tasks } => write!(f, "hot stock, {tasks} tasks"),
        }
    }
}

/// What one round came to.
#[derive(Debug, Clone, Default)]
pub struct Round {
    /// Units there were.
    pub stock: u64,
    /// Units that callers were told are theirs.
    pub granted_units: u64,
    /// How many were told so.
    pub granted: u64,
    /// How many were told that too little is left, or gave up.
    pub refused: u64,
    /// The fewest units that one of those asked for.
    pub refused_units_min: Option<u64>,
    /// How many were refused for what they had already.
    pub limited: u64,
    /// How many were sent away after as many tries as they have; they count as refused too.
    pub gave_up: u64,
    /// How many had no answer when the round was cut; nothing was tried for them.
    pub undecided: u64,
    /// How many calls failed, and how the first one did.
    pub failed: (u64, Option<String>),
    /// Users who got more than is promised at most.
    pub users_over: u64,
    /// Units left, as the store has it.
    pub left: i64,
    /// Units that SQL has been given in the end, where that is part of the strategy.
    pub in_sql: Option<i64>,
    /// How long it took.
    pub seconds: f64,
    /// How long each has waited for an answer, or for none, in milliseconds, sorted.
    pub waits_ms: Vec<f64>,
    /// Round trips.
    pub trips: u64,
    /// Tries after the first.
    pub retries: u64,
    /// Locks freed that were another's.
    pub wrong_releases: u64,
    /// Processor time of Redis, in microseconds.
    pub redis_cpu_us: f64,
}

impl Round {
    /// Units granted that were not there.
    pub fn oversold(&self) -> u64 {
        self.granted_units.saturating_sub(self.stock)
    }

    /// Units left over although a caller who asked for no more was refused.
    pub fn undersold(&self) -> u64 {
        let left = self.stock.saturating_sub(self.granted_units);
        if self.refused_units_min.is_some_and(|asked| asked <= left) { left } else { 0 }
    }

    /// Attempts that were answered.
    pub fn answered(&self) -> u64 {
        self.granted + self.refused + self.limited
    }

    /// Whether the store has what callers were told.
    pub fn store_agrees(&self) -> bool {
        i128::from(self.left) == i128::from(self.stock) - i128::from(self.granted_units)
    }

    /// The wait that `share` of all answers did not exceed.
    pub fn wait_ms(&self, share: f64) -> f64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a place in the list
        let at = (share * self.waits_ms.len() as f64).ceil() as usize;
        self.waits_ms.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    fn note(&mut self, answer: &Answer) {
        match &answer.result {
            Ok(Reduced::Taken) => {
                self.granted += 1;
                self.granted_units += u64::from(answer.quantity);
            }
            Ok(Reduced::HadAlready | Reduced::Limited(_)) => self.limited += 1,
            Ok(Reduced::SoldOut) => self.refuse(answer.quantity),
            Err(StockError::GaveUp) => {
                self.gave_up += 1;
                self.refuse(answer.quantity);
            }
            // Its recorded wait is a lower bound.
            Err(StockError::TimedOut) => self.undecided += 1,
            Err(error) => {
                self.failed.0 += 1;
                self.failed.1.get_or_insert_with(|| error.to_string());
                return;
            }
        }
        self.waits_ms.push(answer.wait_ms);
    }

    fn refuse(&mut self, quantity: u32) {
        self.refused += 1;
        let asked = u64::from(quantity);
        self.refused_units_min = Some(self.refused_units_min.map_or(asked, |fewest| fewest.min(asked)));
    }
}

#[derive(Debug)]
struct Answer {
    user: String,
    quantity: u32,
    wait_ms: f64,
    result: Result<Reduced, StockError>,
}

/// Runs one round of `kind` on the stock `key`, which must be new; cut after `length`.
pub async fn run(
    servers: &Servers,
    strategy: &Strategy,
    apps: &[Arc<App>],
    key: &str,
    kind: Kind,
    length: Duration,
) -> anyhow::Result<Round> {
    let alone = matches!(kind, Kind::Contest { alone: true, .. });
    let managers = strategy.managers(if alone { &apps[..1] } else { apps }, key).await?;
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
        timeout(length + OVERTIME, tasks.join_all()).await.context("some callers were never answered")?;
    let seconds = started.elapsed().as_secs_f64();
    let after = servers.redis_work().await?;
    let mut round = Round { stock: stock.into(), seconds, ..Round::default() };
    answers.iter().flatten().for_each(|answer| round.note(answer));
    round.waits_ms.sort_by(f64::total_cmp);
    round.users_over = users_over(strategy.per_user, answers.iter().flatten());
    let calls = after.calls - before.calls;
    round.trips = meter.trips.get() - trips + calls;
    round.retries = meter.retries.get() - retries;
    let lease_calls = meter.lease_calls.get() - lease_calls;
    if lease_calls > 0 {
        // claimgate's lock does not say how often it has tried; Redis does.
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
    for answer in answers.filter(|answer| matches!(answer.result, Ok(Reduced::Taken))) {
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
