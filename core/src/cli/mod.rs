//! The command line. Exit status: 0 done, 1 denied by a rule, 2 wrong usage or configuration, 3 unavailable.

mod addition;
mod apply;
mod audit;
mod call_args;
mod campaigns;
mod capacity;
mod changed;
mod changes;
mod claims;
mod client;
mod codes;
mod commands;
mod confirmation;
mod csv_file;
mod doctor;
mod drill;
mod exit_status;
mod foreign;
mod imports;
mod input;
mod limit_arg;
mod pass;
mod printer;
mod replication;
mod report;
mod table;
mod times;
mod user_ids;
mod webhooks;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use self::exit_status::{DONE, REFUSED, UNAVAILABLE, USAGE};
use crate::config::{self, Config, ServeArgs};
use crate::data_dir;
use crate::engine::lifecycle::serving::ServingError;
use crate::log::Log;
use crate::runtime;
use crate::server::serve;
use crate::signals;
use crate::store::sql::SqlError;
use audit::AuditArgs;
use campaigns::CampaignCommand;
use capacity::CapacityArgs;
use changes::ChangesArgs;
use claims::ClaimsArgs;
use client::CallError;
use commands::{ClaimArgs, ClaimIdArgs, ReconcileArgs, ReturnArgs, TokenArgs};
use doctor::DoctorArgs;
use drill::DrillArgs;
use foreign::DropForeignArgs;
use pass::PassArgs;
use replication::ReplicationArgs;
use report::ReportArgs;
use user_ids::{UserIdArgs, UserIdsArgs};
use webhooks::WebhooksArgs;

/// Hands out a limited stock to a stampede of users, exactly up to its limits.
#[derive(Debug, Parser)]
#[command(name = "claimgate", version, about, arg_required_else_help = true)]
#[command(
    after_help = "Exit status: 0 done, 1 denied by a rule, 2 wrong usage or configuration, 3 unavailable."
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
    Campaign(Box<CampaignCommand>),
    /// Make a claim for a user
    Claim(ClaimArgs),
    /// List a campaign's claims, optionally of one user or status
    Claims(ClaimsArgs),
    /// List changed claims as lines of JSON, or follow them
    Changes(ChangesArgs),
    /// Confirm a held claim
    Confirm(ClaimIdArgs),
    /// Extend the hold of a claim
    Extend(ClaimIdArgs),
    /// Return a claim's units
    Return(ReturnArgs),
    /// Compare Redis and SQL, and make the repairs that are safe
    Reconcile(ReconcileArgs),
    /// Report how fast a campaign's units were taken, and how many claims were refused
    Report(ReportArgs),
    /// List changes of campaigns, and confirmations, returns and extensions of claims, with author and time
    Audit(AuditArgs),
    /// Show or change how many replicas must have a claim before it is acknowledged
    Replication(ReplicationArgs),
    /// Show or change the user ids that the database is pinned to
    UserIds(UserIdsArgs),
    /// Compute the id of a user, as the edge does
    UserId(UserIdArgs),
    /// List, add and change webhooks, the receivers of changed claims
    Webhooks(WebhooksArgs),
    /// Report what is wrong or risky in this set-up
    #[command(
        after_help = "Exit status: 0 all guarantees hold, with or without warnings; 1 a guarantee does not hold; 3 core or its Redis \
            is unavailable, so not everything could be checked."
    )]
    Doctor(Box<DoctorArgs>),
    /// Estimate what an installation needs for its users and claims per second
    Capacity(CapacityArgs),
    /// Run a storm on a scratch campaign of a running installation, then check every result
    Drill(Box<DrillArgs>),
    /// Remove another database's campaign from this Redis, after writing its claims to a file
    DropForeign(Box<DropForeignArgs>),
    /// Create a user's token for the edge
    Token(TokenArgs),
    /// Create a pass, which lets a user claim from a campaign that requires one
    Pass(PassArgs),
}

/// Allows negative numbers as values, so that `--total -5` is a value out of range and not an unknown flag `-5`.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let takes_values = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes_values)
    });
    command.mut_subcommands(with_negative_numbers)
}

impl Cli {
    /// Parses the command line and the environment; on an error, prints it and exits.
    pub fn read() -> Self {
        let matches = with_negative_numbers(without_empty_variables(Self::command())).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command, and returns its exit status.
    pub fn run(self) -> ExitCode {
        let runtime = match runtime::build(&mut Builder::new_multi_thread()) {
            Ok(runtime) => runtime,
            Err(error) => return fail(UNAVAILABLE, &error),
        };
        match self.command {
            Command::Serve(args) => {
                let ended = run_core(&runtime, &args);
                // Does not wait for tasks that still run after core has stopped.
                runtime.shutdown_background();
                ended
            }
            Command::Campaign(command) => finish(runtime.block_on(command.run())),
            Command::Claim(args) => finish(runtime.block_on(args.run())),
            Command::Claims(args) => finish(runtime.block_on(args.run())),
            Command::Changes(args) => finish(runtime.block_on(args.run())),
            Command::Confirm(args) => finish(runtime.block_on(args.confirm())),
            Command::Extend(args) => finish(runtime.block_on(args.extend())),
            Command::Return(args) => finish(runtime.block_on(args.run())),
            Command::Reconcile(args) => finish(runtime.block_on(args.run())),
            Command::Report(args) => finish(runtime.block_on(args.run())),
            Command::Audit(args) => finish(runtime.block_on(args.run())),
            Command::Webhooks(args) => finish(runtime.block_on(args.run())),
            Command::Replication(args) => finish(runtime.block_on(args.run())),
            Command::UserIds(args) => finish(runtime.block_on(args.run())),
            Command::UserId(args) => finish(args.run()),
            Command::Doctor(args) => judge(runtime.block_on(args.run())),
            Command::Drill(args) => judge(runtime.block_on(args.run())),
            Command::DropForeign(args) => finish(runtime.block_on(args.run())),
            Command::Capacity(args) => finish(args.run()),
            Command::Token(args) => finish(args.run()),
            Command::Pass(args) => finish(args.run()),
        }
    }
}

/// Makes an empty environment variable count as unset.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &OsStr| {
        std::env::var_os(name).is_some() && name.to_str().is_some_and(|name| config::env_var(name).is_none())
    };
    let command = command.mut_args(|arg| match arg.get_env() {
        Some(name) if is_empty(name) => arg.env(None::<&str>),
        _ => arg,
    });
    command.mut_subcommands(without_empty_variables)
}

fn run_core(runtime: &Runtime, args: &ServeArgs) -> ExitCode {
    let log = match signals::install_handlers(runtime).and_then(|()| Log::start(args.log_json)) {
        Ok(log) => log,
        Err(error) => return fail(UNAVAILABLE, &error),
    };
    data_dir::keep_new_files_private();
    let ended = match Config::load(args) {
        Ok(config) => runtime.block_on(serve(config)).map_err(|error| {
            log.say(&format_args!("{error:#}"));
            status_of(&error)
        }),
        Err(error) => {
            log.say(&error);
            Err(USAGE)
        }
    };
    log.flush();
    ExitCode::from(ended.map_or_else(|status| status, |()| DONE))
}

/// Returns [`USAGE`] for errors that a restart cannot fix: a database that is unsuitable or served with a
/// different Redis, Redis keys of a different layout, an address without a primary. All other errors may be
/// gone at the next start.
fn status_of(error: &anyhow::Error) -> u8 {
    if matches!(error.downcast_ref(), Some(SqlError::UnsuitableDatabase(_))) {
        return USAGE;
    }
    match error.downcast_ref() {
        Some(ServingError::AnotherRedis | ServingError::AnotherLayout(_) | ServingError::NoPrimary(..)) => {
            USAGE
        }
        _ => UNAVAILABLE,
    }
}

fn finish(result: Result<(), CallError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => fail(error.exit_status(), &error),
    }
}

/// Returns the exit status of a command that runs checks: [`REFUSED`] for a failed check, otherwise as [`finish`].
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
