//! The command line. Exit status: 0 done, 1 refused by a rule, 2 wrong usage or configuration, 3 unavailable.

mod addition;
mod audit;
mod call_args;
mod capacity;
mod changes;
mod claims;
mod client;
mod commands;
mod doctor;
mod drill;
mod exit_status;
mod foreign;
mod imports;
mod printer;
mod replication;
mod table;
mod webhooks;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::exit_status::{DONE, REFUSED, UNAVAILABLE, USAGE};
use crate::config::{Config, ServeArgs};
use crate::data_dir;
use crate::engine::serving::ServingError;
use crate::server::serve;
use audit::AuditArgs;
use capacity::CapacityArgs;
use changes::ChangesArgs;
use claims::ClaimsArgs;
use client::CallError;
use commands::{CampaignCommand, ClaimArgs, ClaimIdArgs, ReconcileArgs, TokenArgs};
use doctor::DoctorArgs;
use drill::DrillArgs;
use foreign::DropForeignArgs;
use replication::ReplicationArgs;
use webhooks::WebhooksArgs;

/// Gives away a limited thing to a stampede, exactly up to its limits.
#[derive(Debug, Parser)]
#[command(name = "claimgate", version, about, arg_required_else_help = true)]
#[command(
    after_help = "Exit status: 0 done, 1 refused by a rule, 2 wrong usage or configuration, 3 unavailable."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run core
    Serve(Box<ServeArgs>),
    /// Create, list, show and change campaigns of a running core
    #[command(subcommand)]
    Campaign(CampaignCommand),
    /// Claim for a user
    Claim(ClaimArgs),
    /// List a campaign's claims, all or those of one user or status
    Claims(ClaimsArgs),
    /// List the claims that have changed, a line of JSON each, or follow them
    Changes(ChangesArgs),
    /// Confirm a held claim
    Confirm(ClaimIdArgs),
    /// Give a claim's units back
    Return(ClaimIdArgs),
    /// Compare Redis and SQL, and repair what is safe to repair
    Reconcile(ReconcileArgs),
    /// List who changed which campaign, and who confirmed or returned which claim, when and how
    Audit(AuditArgs),
    /// Show, and change, which replicas must have a claim before it is acknowledged
    Replication(ReplicationArgs),
    /// List, make and change the receivers that are told of changed claims
    Webhooks(WebhooksArgs),
    /// Tell what is wrong or risky with this set-up
    #[command(after_help = "Exit status: 0 when all guarantees hold, warnings or not; 1 when one does not.")]
    Doctor(Box<DoctorArgs>),
    /// Tell what an installation needs for so many users and claims a second
    Capacity(CapacityArgs),
    /// Storm a scratch campaign of a running installation, then prove that nothing went wrong
    Drill(Box<DrillArgs>),
    /// Remove another register's campaign from this Redis, once its claims are written to a file
    DropForeign(Box<DropForeignArgs>),
    /// Make a user's token, as the edge takes it
    Token(TokenArgs),
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(UNAVAILABLE, &error),
        };
        match self.command {
            Command::Serve(args) => {
                let ended = run_core(&runtime, &args);
                // Tasks that core has left behind when it stopped are not waited for.
                runtime.shutdown_background();
                ended
            }
            Command::Campaign(command) => finish(runtime.block_on(command.run())),
            Command::Claim(args) => finish(runtime.block_on(args.run())),
            Command::Claims(args) => finish(runtime.block_on(args.run())),
            Command::Changes(args) => finish(runtime.block_on(args.run())),
            Command::Confirm(args) => finish(runtime.block_on(args.confirm())),
            Command::Return(args) => finish(runtime.block_on(args.give_back())),
            Command::Reconcile(args) => finish(runtime.block_on(args.run())),
            Command::Audit(args) => finish(runtime.block_on(args.run())),
            Command::Webhooks(args) => finish(runtime.block_on(args.run())),
            Command::Replication(args) => finish(runtime.block_on(args.run())),
            Command::Doctor(args) => judge(runtime.block_on(args.run())),
            Command::Drill(args) => judge(runtime.block_on(args.run())),
            Command::DropForeign(args) => finish(runtime.block_on(args.run())),
            Command::Capacity(args) => finish(args.run()),
            Command::Token(args) => finish(args.run()),
        }
    }
}

fn run_core(runtime: &tokio::runtime::Runtime, args: &ServeArgs) -> ExitCode {
    start_log(args.log_json);
    data_dir::keep_new_files_private();
    let config = match Config::load(args) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error),
    };
    match runtime.block_on(serve(config)) {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => fail(status_of(&error), &format_args!("{error:#}")),
    }
}

/// Two cores that do not belong together, a Redis with keys of another layout and an address of no primary are a wrong
/// configuration; what else ends a core may be gone at the next try.
fn status_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(ServingError::AnotherRedis | ServingError::AnotherLayout(_) | ServingError::NoPrimary(..)) => {
            USAGE
        }
        _ => UNAVAILABLE,
    }
}

/// Logs go to standard error: `RUST_LOG` says how much.
fn start_log(json: bool) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,sqlx=warn"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if json { log.json().init() } else { log.init() }
}

fn finish(result: Result<(), CallError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => fail(error.exit_status(), &error),
    }
}

/// As [`finish`], of a command that examines: what it finds wrong is a refusal.
fn judge(result: Result<bool, CallError>) -> ExitCode {
    match result {
        Ok(sound) => ExitCode::from(if sound { DONE } else { REFUSED }),
        Err(error) => finish(Err(error)),
    }
}

fn fail(status: u8, error: &dyn std::fmt::Display) -> ExitCode {
    printer::say(error);
    ExitCode::from(status)
}
