//! Everything that is done with one strategy: warm-up, rounds, crash, findings; and the figures that come of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;

use crate::app::App;
use crate::backoff::unique;
use crate::crash::{self, AfterCrash};
use crate::manager::{Expectation, Strategy};
use crate::servers::Servers;
use crate::workload::{self, Kind, Quantities, Round};

/// What may be spent on a strategy's findings.
const FINDINGS_MAX: Duration = Duration::from_secs(20);
/// Contenders of the warm-up, which only makes connections and statements.
const WARM_UP_MAX: usize = 150;

/// What a run does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Units of a stock that runs out.
    pub stock: u32,
    /// Contenders, a contest each.
    pub contenders: Vec<usize>,
    /// Tasks on the hot stock, a cell each.
    pub tasks: Vec<usize>,
    /// Rounds of each cell.
    pub rounds: u32,
    /// Where a contest is cut.
    pub cut: Duration,
    /// How long a hot cell takes.
    pub hot: Duration,
    /// The lab's own program, for the holders that crash.
    pub program: PathBuf,
}

impl Plan {
    /// The cells of a strategy.
    pub fn cells(&self, strategy: &Strategy) -> Vec<Kind> {
        let also_alone = strategy.expectation == Expectation::ExactAlone;
        let mut cells = Vec::new();
        for alone in if also_alone { [false, true].as_slice() } else { &[false] } {
            for &contenders in &self.contenders {
                for quantities in [Quantities::One, Quantities::OneToThree] {
                    cells.push(Kind::Contest { stock: self.stock, contenders, quantities, alone: *alone });
                }
            }
        }
        cells.extend(self.tasks.iter().map(|&tasks| Kind::Hot { tasks }));
        cells
    }

    fn warm_up(&self) -> Kind {
        let contenders = self.contenders.iter().copied().max().unwrap_or(WARM_UP_MAX).min(WARM_UP_MAX);
        Kind::Contest { stock: self.stock, contenders, quantities: Quantities::One, alone: false }
    }

    fn length(&self, kind: Kind) -> Duration {
        if matches!(kind, Kind::Hot { .. }) { self.hot } else { self.cut }
    }
}

/// A cell and what its rounds came to.
#[derive(Debug)]
pub struct Cell {
    /// What was done.
    pub kind: Kind,
    /// What came of it.
    pub rounds: Vec<Round>,
}

impl Cell {
    /// The median of a figure over the rounds.
    pub fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).filter(|value| value.is_finite()).collect())
    }

    /// Grants a second.
    pub fn granted_per_s(&self) -> f64 {
        self.median(|round| round.granted as f64 / round.seconds)
    }

    /// A figure for each answer.
    pub fn per_answer(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        self.median(|round| figure(round) / (round.answered() as f64))
    }

    /// Tasks on the hot stock; `None` for a contest.
    pub fn tasks(&self) -> Option<usize> {
        if let Kind::Hot { tasks } = self.kind { Some(tasks) } else { None }
    }

    /// Whether it is a contest of instances that share the stock.
    pub fn is_shared_contest(&self) -> bool {
        matches!(self.kind, Kind::Contest { alone: false, .. })
    }
}

/// What one strategy came to.
#[derive(Debug)]
pub struct Row {
    /// Which.
    pub strategy: &'static Strategy,
    /// Its cells.
    pub cells: Vec<Cell>,
    /// Connections held, to Redis and to PostgreSQL, after all of that.
    pub connections: (u64, u64),
    /// When the next one can go on after a holder's crash.
    pub after_crash: AfterCrash,
    /// What else was found; `Err` is what must not be.
    pub findings: Result<Vec<String>, String>,
}

impl Row {
    /// The largest of a count over all rounds of the cells that `counts`.
    pub fn most(&self, counts: impl Fn(&Cell) -> bool, figure: impl Fn(&Round) -> u64) -> u64 {
        let rounds = self.cells.iter().filter(|cell| counts(cell)).flat_map(|cell| &cell.rounds);
        rounds.map(figure).max().unwrap_or(0)
    }

    /// Units oversold at worst in a contest of instances that share the stock.
    pub fn oversold(&self) -> u64 {
        self.most(Cell::is_shared_contest, Round::oversold)
    }

    /// Units left over at worst, although asked for.
    pub fn undersold(&self) -> u64 {
        self.most(Cell::is_shared_contest, Round::undersold)
    }

    /// Locks of others freed, in all.
    pub fn wrong_releases(&self) -> u64 {
        self.cells.iter().flat_map(|cell| &cell.rounds).map(|round| round.wrong_releases).sum()
    }

    /// The hot cell that figures are told from: that of 64 tasks, or else the largest.
    pub fn hot(&self) -> Option<&Cell> {
        let hot = |cell: &&Cell| matches!(cell.kind, Kind::Hot { .. });
        let at_64 = self.cells.iter().find(|cell| cell.kind == Kind::Hot { tasks: 64 });
        at_64.or_else(|| self.cells.iter().rfind(hot))
    }

    /// The contest that waits are told from: the largest of instances that share the stock, one unit each.
    pub fn rush(&self) -> Option<&Cell> {
        let of_one = |cell: &&Cell| {
            matches!(cell.kind, Kind::Contest { quantities: Quantities::One, alone: false, .. })
        };
        self.cells.iter().rfind(of_one)
    }

    /// Tasks and grants a second, in the order of the plan.
    pub fn curve(&self) -> Vec<(usize, f64)> {
        let point = |cell: &Cell| Some((cell.tasks()?, cell.granted_per_s()));
        self.cells.iter().filter_map(point).collect()
    }
}

/// The middle value; of an even number the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
    }
}

/// Does everything with one strategy.
pub async fn run(servers: &Servers, strategy: &'static Strategy, plan: &Plan) -> anyhow::Result<Row> {
    let apps = App::start_all(&servers.addresses, strategy.instances)?;
    let mut cells = Vec::new();
    round(servers, strategy, &apps, plan.warm_up(), plan.cut).await.context("warm-up")?;
    for kind in plan.cells(strategy) {
        let mut rounds = Vec::new();
        for _ in 0..plan.rounds {
            let done = round(servers, strategy, &apps, kind, plan.length(kind)).await;
            rounds.push(done.with_context(|| kind.to_string())?);
        }
        cells.push(Cell { kind, rounds });
    }
    let connections = servers.connections().await?;
    for app in &apps {
        app.stop().await;
    }
    let after_crash = after_crash(servers, strategy, &plan.program).await.context("the crash")?;
    let findings = findings(servers, strategy).await;
    Ok(Row { strategy, cells, connections, after_crash, findings })
}

async fn round(
    servers: &Servers,
    strategy: &Strategy,
    apps: &[Arc<App>],
    kind: Kind,
    length: Duration,
) -> anyhow::Result<Round> {
    workload::run(servers, strategy, apps, &unique()?, kind, length).await
}

async fn after_crash(servers: &Servers, strategy: &Strategy, program: &Path) -> anyhow::Result<AfterCrash> {
    crash::run(servers, strategy, program, &unique()?).await
}

async fn findings(servers: &Servers, strategy: &Strategy) -> Result<Vec<String>, String> {
    let Some(find) = strategy.findings else { return Ok(Vec::new()) };
    match timeout(FINDINGS_MAX, find(servers.addresses.clone())).await {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err(format!("nothing was found within {FINDINGS_MAX:?}")),
    }
}
