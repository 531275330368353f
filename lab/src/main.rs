//! `lab`: compares all known methods against overselling.
//! Exit status: 0 if each strategy showed its known behaviour, good or bad; 1 if a strategy did not, or the
//! run failed; 2 for wrong usage.

use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use claimgate_lab::addresses::Addresses;
use claimgate_lab::manager::Strategy;
use claimgate_lab::measure::{self, Plan, Row};
use claimgate_lab::servers::{DURABILITY, Servers};
use claimgate_lab::strategies::{STRATEGIES, select};
use claimgate_lab::{crash, judge, page, report};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

/// Time limit of a run.
const TIME_MAX: Duration = Duration::from_secs(480);

/// Compares all known methods against overselling, on a real Redis and a real PostgreSQL
#[derive(Debug, Parser)]
#[command(name = "lab", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Run only these strategies, by name or row; repeatable or comma-separated
    #[arg(long, value_name = "NAME|ROW", value_delimiter = ',')]
    only: Vec<String>,
    /// List the strategies
    #[arg(long)]
    list: bool,
    /// Units of a stock that runs out
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    stock: u32,
    /// Numbers of contenders for that stock, one contest each
    #[arg(long, value_delimiter = ',', default_values_t = [200, 1000], value_parser = count)]
    contenders: Vec<usize>,
    /// Numbers of tasks on the hot stock, which does not run out
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 256], value_parser = count)]
    tasks: Vec<usize>,
    /// Rounds of every measurement; figures are their medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Directory for report.json and report.html
    #[arg(long, default_value = "target/lab", value_name = "DIRECTORY")]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Act as a holder: acquire a strategy's lock and wait to be killed
    #[command(hide = true)]
    Hold {
        strategy: String,
        key: String,
        #[arg(long)]
        redis: String,
        #[arg(long)]
        postgres: String,
    },
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=5000) => Ok(count),
        _ => Err("must be a whole number from 1 to 5000".to_owned()),
    }
}

fn main() -> ExitCode {
    support::stalls::ignore();
    let cli = Cli::parse();
    if cli.list {
        return match print(&list()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format_args!("{error:#}"), 1),
        };
    }
    let wanted = match select(&cli.only) {
        Ok(wanted) => wanted,
        Err(error) => return fail(&error, 2),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, 1),
    };
    let run = || match &cli.command {
        Some(command) => runtime.block_on(hold(command)).map(|()| true),
        None => runtime.block_on(run_or_stop(&cli, &wanted)),
    };
    // The test support library panics if a server fails, after printing the reason.
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(anyhow::anyhow!("see above")));
    runtime.shutdown_background();
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => fail(&format_args!("{error:#}"), 1),
    }
}

#[allow(clippy::print_stderr)] // the lab's output
fn fail(error: &dyn std::fmt::Display, status: u8) -> ExitCode {
    eprintln!("lab: {error}");
    ExitCode::from(status)
}

/// Prints the result. A reader that closed its pipe, as in `… | head -1`, is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("standard output"),
    }
}

fn list() -> String {
    let line = |one: &Strategy| format!("{:>2}  {:<22} {}: {}", one.row, one.name, one.expected(), one.how);
    STRATEGIES.iter().map(line).collect::<Vec<_>>().join("\n")
}

async fn hold(command: &Command) -> anyhow::Result<()> {
    let Command::Hold { strategy, key, redis, postgres } = command;
    let strategy = select(std::slice::from_ref(strategy)).map_err(anyhow::Error::msg)?[0];
    crash::hold(strategy, &Addresses { redis: redis.clone(), sql: postgres.clone() }, key).await
}

/// Runs until everything is done, a signal arrives, or the time limit expires. Always stops its servers.
async fn run_or_stop(cli: &Cli, wanted: &[&'static Strategy]) -> anyhow::Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = run(cli, wanted) => result,
        _ = interrupt.recv() => anyhow::bail!("interrupted"),
        _ = terminate.recv() => anyhow::bail!("terminated"),
    }
}

async fn run(cli: &Cli, wanted: &[&'static Strategy]) -> anyhow::Result<bool> {
    let plan = Plan {
        stock: cli.stock,
        contenders: sorted(&cli.contenders),
        tasks: sorted(&cli.tasks),
        rounds: cli.rounds,
        cut: Duration::from_secs(2),
        hot: Duration::from_millis(200),
        program: std::env::current_exe()?,
    };
    let (started, load_before) = (Instant::now(), load_average());
    let servers = Servers::start().await?;
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for (done, strategy) in wanted.iter().enumerate() {
        progress(started, done, wanted.len(), strategy.title);
        let left = TIME_MAX.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, measure::run(&servers, strategy, &plan)).await {
            Ok(Ok(row)) => rows.push(row),
            // The remaining strategies are still measured.
            Ok(Err(error)) => failures.push(Failure { strategy, why: format!("{error:#}") }),
            Err(_) => failures.push(Failure { strategy, why: format!("not finished within {TIME_MAX:?}") }),
        }
    }
    progress(started, wanted.len(), wanted.len(), "done");
    let mut machine = machine(&servers, &plan, started.elapsed()).await?;
    machine["load_average"] = json!({ "before": load_before, "after": load_average() });
    machine["failed"] = failures.iter().map(Failure::to_string).collect();
    write(&cli.out, &rows, &machine)?;
    print(&summary(&rows, &failures, &cli.out))?;
    Ok(failures.is_empty() && rows.iter().all(|row| judge::deviations(row).is_empty()))
}

/// A strategy that failed to finish.
struct Failure {
    strategy: &'static Strategy,
    why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.strategy.row, self.strategy.title, self.why)
    }
}

fn sorted(counts: &[usize]) -> Vec<usize> {
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    counts
}

/// Prints a line of progress with an estimate of the remaining time.
#[allow(clippy::print_stderr)] // the lab's output
fn progress(started: Instant, done: usize, all: usize, what: &str) {
    let clock = |seconds: u64| format!("{}:{:02}", seconds / 60, seconds % 60);
    let seconds = started.elapsed().as_secs();
    let left = (done > 0 && done < all).then(|| seconds * (all - done) as u64 / done as u64);
    let left = left.map_or_else(String::new, |left| format!(", about {} left", clock(left)));
    eprintln!("[{}] {done} of {all}{left}: {what}", clock(seconds));
}

async fn machine(servers: &Servers, plan: &Plan, took: Duration) -> anyhow::Result<Value> {
    let (redis, postgres) = servers.versions().await?;
    Ok(json!({
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "redis": redis,
        "postgres": postgres,
        "durability": DURABILITY,
        "stock": plan.stock,
        "contenders": plan.contenders,
        "tasks": plan.tasks,
        "rounds": plan.rounds,
        "contest_cut_s": plan.cut.as_secs_f64(),
        "hot_cell_s": plan.hot.as_secs_f64(),
        "took_s": took.as_secs(),
    }))
}

/// Returns the 1-, 5- and 15-minute load averages.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn write(out: &Path, rows: &[Row], machine: &Value) -> anyhow::Result<()> {
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let json = format!("{:#}\n", report::json(rows, machine));
    for (name, text) in [("report.json", json), ("report.html", page::page(rows, machine))] {
        let file = out.join(name);
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn summary(rows: &[Row], failures: &[Failure], out: &Path) -> String {
    let mut parts = vec![report::verdicts(rows), report::costs(rows), report::LEGEND.to_owned()];
    let findings = report::findings(rows);
    if !findings.is_empty() {
        parts.push(format!("Also shown:\n  {}", findings.join("\n  ")));
    }
    for row in rows {
        for deviation in judge::deviations(row) {
            parts.push(format!("NOT AS EXPECTED: {} {}: {deviation}", row.strategy.row, row.strategy.title));
        }
    }
    parts.extend(failures.iter().map(|failure| format!("NOT AS EXPECTED: {failure}")));
    parts.push(format!("{0}/report.json, {0}/report.html", out.display()));
    parts.join("\n\n")
}
