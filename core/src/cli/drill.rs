//! `claimgate drill`: runs a storm on a scratch campaign of a running installation, then checks the result.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use claimgate_client::{Admin, Internal, Retries};
use claimgate_drill::{Console, DrillError, Installation, Plan, Target, UserIds, page, run, text};
use claimgate_shared::jwt::UserTokens;
use claimgate_shared::user_id::{DEFAULT_CLAIM, UserIdRule};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::call_args::CallArgs;
use super::client::{CallError, admin_token};
use super::commands::user_tokens;
use super::printer::{progress, say, show};
use crate::{clock, config};

/// `claimgate drill`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 passed; 1 a check failed; 2 the drill could not be run. It needs an admin token and, through the \
        edge, the key of users' tokens, from the variables or the data directory, as `serve` does. Ctrl-C and SIGTERM \
        stop the drill and end the scratch campaign. An edge that limits requests by address slows the storm down; \
        for a faster storm, give the URL of core."
)]
pub struct DrillArgs {
    /// The edge, or core's internal API, such as `http://127.0.0.1:8787`
    url: String,
    /// Units of the scratch campaign
    #[arg(long, default_value_t = 500, value_name = "UNITS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    units: u32,
    /// Users who claim; every tenth claims one unit more than the limit
    #[arg(long, default_value_t = 2000, value_name = "USERS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    users: u32,
    /// Users who claim at the same time
    #[arg(long, default_value_t = 64, value_name = "USERS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Units that each user may have, and claims
    #[arg(long, default_value = "1", value_name = "UNITS", value_parser = clap::value_parser!(u32).range(1..=100))]
    per_user: u32,
    /// Percentage of users who send each claim twice concurrently; the same percentage lose a response
    #[arg(long, default_value_t = 10, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=50))]
    duplicates: u32,
    /// Units that must be granted [default: all, or as many as the users may have]
    #[arg(long, value_name = "UNITS")]
    expect: Option<u64>,
    /// Give up if no claim is decided, or none reaches SQL, for this many seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    patience: u32,
    /// Give up if the storm is not over after this many seconds
    #[arg(long, default_value_t = 1200, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3000))]
    storm_max: u32,
    /// Write the report as an HTML page with charts to this new file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Give each granted unit a code, and check the codes
    #[arg(long)]
    codes: bool,
    /// Keep the scratch campaign open; it closes after a day
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    call: CallArgs,
}

impl DrillArgs {
    /// Runs the drill and prints its report; returns `false` if a check failed.
    pub async fn run(self) -> Result<bool, CallError> {
        let installation = self.installation().await?;
        // The file is created before the storm: otherwise the report would be lost if the file could not be written.
        let file = self.report.as_deref().map(new_file).transpose()?;
        let console = Console { progress: &show_progress, say: &|text| say(&text) };
        let stop = stop_signal()?;
        let done = run(&installation, &self.plan(), clock::now(), console, stop).await;
        let report = done.map_err(|error| {
            // There is no report, so the empty file is removed if possible.
            let _ = self.report.as_ref().map(std::fs::remove_file);
            not_run(&error)
        })?;
        show::<CallError>(self.call.json, &json!(report), || text(&report))?;
        if let (Some(mut file), Some(path)) = (file, &self.report) {
            file.write_all(page(&report).as_bytes()).map_err(|error| unwritten(path, &error))?;
        }
        Ok(report.passed)
    }

    fn plan(&self) -> Plan {
        Plan {
            units: self.units,
            users: self.users,
            per_user: NonZeroU32::new(self.per_user).unwrap_or(NonZeroU32::MIN),
            connections: self.connections.into(),
            duplicates: self.duplicates,
            expect: self.expect,
            patience: Duration::from_secs(self.patience.into()),
            storm_max: Duration::from_secs(self.storm_max.into()),
            codes: self.codes,
            keep: self.keep,
        }
    }

    async fn installation(&self) -> Result<Installation, CallError> {
        let token = admin_token(&self.call)?;
        let url = self.url.trim_end_matches('/').to_owned();
        let target = Target::find(&url, &token).await.map_err(|error| not_run(&error))?;
        // The drill retries calls itself, for as long as its plan says.
        let internal = Internal::new(&format!("http://{}", self.call.listen), &token)?;
        let internal = internal.with_retries(Retries::NONE);
        let admin = Admin::new(&format!("http://{}", self.call.admin_listen), &token)?;
        let admin = admin.with_retries(Retries::NONE);
        let (users, user_ids) = match target {
            Target::Core(_) => (None, UserIds::at_core(&admin).await),
            Target::Edge(_) => {
                let users = user_tokens(&self.call)?;
                let rule = user_id_rule(&users)?;
                (Some(users), UserIds::at_edge(&admin, rule).await)
            }
        };
        let user_ids = user_ids.map_err(|error| not_run(&error))?;
        Ok(Installation { target, url, internal, admin, users, user_ids })
    }
}

/// Returns how the edge derives user ids from tokens of `users`, if its key is set here.
fn user_id_rule(users: &UserTokens) -> Result<Option<UserIdRule>, CallError> {
    let key = config::optional_user_id_key()?;
    Ok(key.map(|key| UserIdRule::hmac(DEFAULT_CLAIM, &users.rules.issuer, key)))
}

/// Returns a future that waits for Ctrl-C or SIGTERM. From now on, neither signal kills the process before
/// the campaign is ended.
fn stop_signal() -> Result<impl Future<Output = ()>, CallError> {
    let on = |kind| signal(kind).map_err(|error| CallError::Usage(format!("signals: {error}")));
    let (mut interrupt, mut terminate) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
        }
    })
}

/// Converts the error of a drill without a report: such a drill has neither passed nor failed.
fn not_run(error: &DrillError) -> CallError {
    CallError::Usage(format!("the drill could not be run: {error}"))
}

/// Shows progress if standard error is a terminal; an empty text clears the line.
fn show_progress(text: &str) {
    if std::io::stderr().is_terminal() {
        let who = if text.is_empty() { "" } else { "claimgate: " };
        progress(&format_args!("{who}{text}"));
    }
}

fn new_file(path: &Path) -> Result<File, CallError> {
    OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| unwritten(path, &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> CallError {
    CallError::Usage(format!("{}: {error}", path.display()))
}
