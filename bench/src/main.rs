//! `bench`: measures claimgate and its baselines in one run.
//! Exit status: 0 if everything was measured and verified, regardless of targets; 1 if a check or a server
//! failed (the group then has no figures) or the run is invalid; 2 for wrong usage; 3 if the run ended early, with
//! its figures so far.

// Counts are converted to floating-point figures.
#![allow(clippy::cast_precision_loss)]

mod answer;
mod bare;
mod budget;
mod campaigns;
mod checks;
mod child;
mod client;
mod codes_file;
mod disk;
mod engine;
mod figures;
mod groups;
mod lag;
mod machine;
mod median;
mod metrics;
mod naive;
mod page;
mod plain;
mod processor;
mod redis;
mod report;
mod server;
mod session;
mod slow;
mod users;
mod workers;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use futures_util::FutureExt as _;
use mimalloc::MiMalloc;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::budget::{Budget, Cost, Overrides};
use crate::figures::Figures;
use crate::groups::{GROUPS, Group};
use crate::session::{Options, Session};

/// Core's allocator, also used by the baseline servers.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Time limit of a run, which then ends with its figures so far. With it, `make bench` ends within 12
/// minutes.
const TIME_MAX: Duration = Duration::from_secs(705);
/// Planned time of a run. The difference to [`TIME_MAX`] allows for estimates that are too short.
const TIME_PLANNED: Duration = Duration::from_secs(690);

/// A separate status for runs that ended early: they neither failed nor did all that was requested.
const ENDED_EARLY: u8 = 3;

/// Measures claimgate and its baselines in one run
#[derive(Debug, Parser)]
#[command(name = "bench", after_help = after_help(), args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Rounds of every measurement; figures are their medians [default: 3, or fewer if time is short]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds of one measurement [default: 3, or fewer if time is short]
    #[arg(long)]
    seconds: Option<f64>,
    /// Connections of the HTTP load
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Run only this group, or the groups with a figure whose name contains this string
    #[arg(long, value_name = "GROUP|FIGURE")]
    only: Option<String>,
    /// Directory for report.json and report.html
    #[arg(long, default_value = "target/bench", value_name = "DIRECTORY")]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run baseline (b): serve the bare route until killed
    #[command(hide = true)]
    Bare {
        /// Address to listen on
        #[arg(long)]
        listen: SocketAddr,
    },
    /// Run baseline (e): serve the simplest route until killed
    #[command(hide = true)]
    Naive {
        /// Address to listen on
        #[arg(long)]
        listen: SocketAddr,
        /// URL of its Redis
        #[arg(long, value_name = "URL")]
        redis: String,
    },
}

fn after_help() -> String {
    let groups: Vec<_> = GROUPS.iter().map(|group| format!("  {:<9} {}", group.name, group.about)).collect();
    format!("Groups:\n{}", groups.join("\n"))
}

fn main() -> ExitCode {
    support::stalls::ignore();
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let run = || match &cli.command {
        Some(Command::Bare { listen }) => runtime.block_on(bare::listen(*listen)).map(|()| ExitCode::SUCCESS),
        Some(Command::Naive { listen, redis }) => {
            runtime.block_on(naive::listen(*listen, redis)).map(|()| ExitCode::SUCCESS)
        }
        None => runtime.block_on(run(&cli)),
    };
    // The test support library panics if a server fails, after printing the reason.
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(anyhow::anyhow!("see above")));
    // A load that is still running must not keep the process alive.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| fail(&format_args!("{error:#}")))
}

#[allow(clippy::print_stderr)] // the benchmark's output
fn fail(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("bench: failed: {error}");
    ExitCode::from(1)
}

async fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let wanted = cli.only.as_deref().map_or_else(|| GROUPS.iter().collect(), groups::matching);
    anyhow::ensure!(!wanted.is_empty(), "--only: no such group or figure; see --help");
    let load_before = machine::load_average();
    let slowness = machine::slowness();
    let mut facts = machine::facts();
    facts["slowness"] = slowness.into();
    let mut session = session(cli, &wanted, slowness, started)?;
    session.ended_early = measure_or_stop(&mut session, &wanted, started).await?;
    let machine = report::machine(facts, &session, &load_before, &machine::load_average());
    write(&cli.out, &session, &machine)?;
    print(&session, &cli.out);
    if let Some(why) = session.void {
        anyhow::bail!("this run is invalid: {why}");
    }
    anyhow::ensure!(session.failed.is_empty(), "{}", session.failed.join("; "));
    Ok(session.ended_early.map_or(ExitCode::SUCCESS, |_| ExitCode::from(ENDED_EARLY)))
}

/// Plans the run for this machine and prints the plan.
fn session(cli: &Cli, wanted: &[&'static Group], slowness: f64, started: Instant) -> anyhow::Result<Session> {
    let parts: Vec<Cost> = wanted.iter().flat_map(|group| group.parts).copied().collect();
    let overrides = Overrides { rounds: cli.rounds, seconds: cli.seconds };
    let plan = overrides.plan(&parts, TIME_PLANNED.as_secs_f64(), slowness);
    let figures = wanted.iter().flat_map(|group| group.figures).copied().collect();
    let budget = Budget::new(
        parts,
        overrides,
        plan.seconds,
        slowness,
        started.elapsed().as_secs_f64(),
        TIME_PLANNED.as_secs_f64(),
    );
    let options = Options { seconds: plan.seconds, connections: cli.connections };
    let figures = Figures::new(figures, overrides.rounds_wanted());
    let session = Session::new(options, figures, budget, claimgate_core::metrics::install()?, started);
    session.say(report::plan(plan, overrides, slowness));
    Ok(session)
}

/// Measures until everything is done, a signal arrives, or the time limit expires. Returns why it ended
/// early. Stops all its servers.
async fn measure_or_stop(
    session: &mut Session,
    wanted: &[&'static Group],
    started: Instant,
) -> anyhow::Result<Option<String>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        // Ctrl-C also stops the servers, and their exit must not count as a failure.
        biased;
        _ = interrupt.recv() => Ok(Some("it was interrupted".to_owned())),
        _ = terminate.recv() => Ok(Some("it was terminated".to_owned())),
        () = tokio::time::sleep_until((started + TIME_MAX).into()) => {
            Ok(Some(format!("its time limit of {} s was reached", TIME_MAX.as_secs())))
        }
        result = measure(session, wanted) => result.map(|()| None),
    }
}

/// Measures one group after the other. A group that fails does not cost the others their figures.
async fn measure(session: &mut Session, wanted: &[&'static Group]) -> anyhow::Result<()> {
    let mut later: usize = wanted.iter().map(|group| group.parts.len()).sum();
    for group in wanted {
        later -= group.parts.len();
        session.say(format_args!("{}: {}", group.name, group.about));
        // The test support library panics if a server fails, after printing the reason.
        let result = AssertUnwindSafe((group.run)(session)).catch_unwind().await;
        if let Err(error) = result.unwrap_or_else(|_| Err(anyhow::anyhow!("see above"))) {
            session.fail(group.figures, format!("group {}: {error:#}", group.name), later);
        }
    }
    session.measure(async { Ok(()) }).await
}

fn write(out: &Path, session: &Session, machine: &Value) -> anyhow::Result<()> {
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let json = format!("{:#}\n", report::json(session, machine));
    for (name, text) in [("report.json", json), ("report.html", page::page(session, machine))] {
        let file = out.join(name);
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

#[allow(clippy::print_stdout)] // the benchmark's result
fn print(session: &Session, out: &Path) {
    println!("{}", report::text(&session.figures, session.ended_early.as_deref(), &session.failed));
    println!("\nEach measurement lasted {} s.", session.options.seconds);
    println!("{0}/report.json, {0}/report.html", out.display());
}
