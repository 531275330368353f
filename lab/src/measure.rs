//! Measures one strategy: warm-up, rounds, crash and findings.

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

/// Time limit for collecting a strategy's findings.
const FINDINGS_MAX: Duration = Duration::from_secs(20);
/// Maximum number of contenders in the warm-up, which only opens connections and prepares statements.
const WARM_UP_MAX: usize = 150;

/// Sizes and durations of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Units of a stock that runs out.
    pub stock: u32,
    /// Numbers of contenders, one contest each.
    pub contenders: Vec<usize>,
    /// Numbers of tasks on the hot stock, one cell each.
    pub tasks: Vec<usize>,
    /// Rounds of each cell.
    pub rounds: u32,
    /// Time limit of a contest.
    pub cut: Duration,
    /// Duration of a hot cell.
    pub hot: Duration,
    /// The lab's own program, which acts as the crashing holders.
    pub program: PathBuf,
}

impl Plan {
    /// Returns the cells of a strategy.
    pub fn cells(&self, strategy: &Strategy) -> Vec<Kind> {
        let also_one_instance = strategy.expectation == Expectation::ExactWithOneInstance;
        let mut cells = Vec::new();
        for one_instance in if also_one_instance { [false, true].as_slice() } else { &[false] } {
            for &contenders in &self.contenders {
                for quantities in [Quantities::One, Quantities::OneToThree] {
                    cells.push(Kind::Contest {
                        stock: self.stock,
                        contenders,
                        quantities,
                        one_instance: *one_instance,
                    });
                }
            }
        }
        cells.extend(self.tasks.iter().map(|&tasks| Kind::Hot { tasks }));
        cells
    }

    fn warm_up(&self) -> Kind {
        let contenders = self.contenders.iter().copied().max().unwrap_or(WARM_UP_MAX).min(WARM_UP_MAX);
        Kind::Contest { stock: self.stock, contenders, quantities: Quantities::One, one_instance: false }
    }

    fn length(&self, kind: Kind) -> Duration {
        if matches!(kind, Kind::Hot { .. }) { self.hot } else { self.cut }
    }
}

/// A cell and its rounds.
#[derive(Debug)]
pub struct Cell {
    /// Kind of measurement.
    pub kind: Kind,
    /// Results of the rounds.
    pub rounds: Vec<Round>,
}

impl Cell {
    /// Returns the median of a figure over the rounds.
    pub fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).filter(|value| value.is_finite()).collect())
    }

    /// Returns grants per second.
    pub fn granted_per_s(&self) -> f64 {
        self.median(|round| round.granted as f64 / round.seconds)
    }

    /// Returns a figure divided by the number of answered attempts.
    pub fn per_answer(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        self.median(|round| figure(round) / (round.answered() as f64))
    }

    /// Returns the number of tasks on the hot stock; `None` for a contest.
    pub fn tasks(&self) -> Option<usize> {
        if let Kind::Hot { tasks } = self.kind { Some(tasks) } else { None }
    }

    /// Returns whether this is a contest with all instances.
    pub fn is_shared_contest(&self) -> bool {
        matches!(self.kind, Kind::Contest { one_instance: false, .. })
    }
}

/// Results of one strategy.
#[derive(Debug)]
pub struct Row {
    /// The strategy.
    pub strategy: &'static Strategy,
    /// Results of its cells.
    pub cells: Vec<Cell>,
    /// Open connections to Redis and PostgreSQL at the end.
    pub connections: (u64, u64),
    /// When the next caller can continue after a holder's crash.
    pub after_crash: AfterCrash,
    /// Additional findings; `Err` for a result that must not occur.
    pub findings: Result<Vec<String>, String>,
}

impl Row {
    /// Returns the maximum of a count over all rounds of the cells that `counts` selects.
    pub fn most(&self, counts: impl Fn(&Cell) -> bool, figure: impl Fn(&Round) -> u64) -> u64 {
        let rounds = self.cells.iter().filter(|cell| counts(cell)).flat_map(|cell| &cell.rounds);
        rounds.map(figure).max().unwrap_or(0)
    }

    /// Returns the oversold units in the worst contest with all instances.
    pub fn oversold(&self) -> u64 {
        self.most(Cell::is_shared_contest, Round::oversold)
    }

    /// Returns the most units left unsold in any contest, even though a caller requested them.
    pub fn undersold(&self) -> u64 {
        self.most(Cell::is_shared_contest, Round::undersold)
    }

    /// Returns the total number of other callers' locks that were released.
    pub fn wrong_releases(&self) -> u64 {
        self.cells.iter().flat_map(|cell| &cell.rounds).map(|round| round.wrong_releases).sum()
    }

    /// Returns the hot cell for the report: the cell with 64 tasks, or else the last cell, which is the
    /// largest.
    pub fn hot(&self) -> Option<&Cell> {
        let hot = |cell: &&Cell| matches!(cell.kind, Kind::Hot { .. });
        let at_64 = self.cells.iter().find(|cell| cell.kind == Kind::Hot { tasks: 64 });
        at_64.or_else(|| self.cells.iter().rfind(hot))
    }

    /// Returns the contest for the waits in the report: the largest with all instances and one unit each.
    pub fn rush(&self) -> Option<&Cell> {
        let of_one = |cell: &&Cell| {
            matches!(cell.kind, Kind::Contest { quantities: Quantities::One, one_instance: false, .. })
        };
        self.cells.iter().rfind(of_one)
    }

    /// Returns numbers of tasks and grants per second, in the order of the plan.
    pub fn curve(&self) -> Vec<(usize, f64)> {
        let point = |cell: &Cell| Some((cell.tasks()?, cell.granted_per_s()));
        self.cells.iter().filter_map(point).collect()
    }
}

/// Returns the median; for an even number of values, the mean of the two middle ones.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
    }
}

/// Runs all measurements of one strategy.
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
        Err(_) => Err(format!("the findings did not finish within {FINDINGS_MAX:?}")),
    }
}
