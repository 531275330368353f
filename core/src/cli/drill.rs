//! `claimgate drill`: a storm on a scratch campaign of a running installation, then the proof.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use claimgate_client::{Admin, Internal, Retries};
use claimgate_drill::{DrillError, Installation, Plan, Target, Voice, page, run, text};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::call_args::CallArgs;
use super::client::{CallError, admin_token};
use super::commands::user_tokens;
use super::printer::{progress, say, show};
use crate::clock;

/// `claimgate drill`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 passed; 1 a check does not hold; 2 it could not be run. Needs an admin's token, and through the \
        edge the key of users' tokens: from the variables or the data directory, as `serve` finds them. Ctrl-C and \
        SIGTERM end the scratch campaign. An edge that limits requests by address slows the storm down: drill core for a fast one."
)]
pub struct DrillArgs {
    /// The edge, or core's internal API, such as `http://127.0.0.1:8787`
    url: String,
    /// Units that there are to be had
    #[arg(long, default_value_t = 500, value_name = "UNITS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    units: u32,
    /// Users who want them; every tenth wants one more than the limit
    #[arg(long, default_value_t = 2000, value_name = "USERS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    users: u32,
    /// Users at once
    #[arg(long, default_value_t = 64, value_name = "USERS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Units that each user may have, and asks for
    #[arg(long, default_value = "1", value_name = "UNITS", value_parser = clap::value_parser!(u32).range(1..=100))]
    per_user: u32,
    /// Of 100 users, how many send each claim twice at once; as many more lose an answer
    #[arg(long, default_value_t = 10, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=50))]
    duplicates: u32,
    /// Units that are to be granted [default: all there are, or all that the users may have]
    #[arg(long, value_name = "UNITS")]
    expect: Option<u64>,
    /// Give up when nothing is decided, or reaches SQL, for so many seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    patience: u32,
    /// Give up when the storm is not over after so many seconds
    #[arg(long, default_value_t = 1200, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3000))]
    storm_max: u32,
    /// Write the report as a page with charts to this new file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Keep the scratch campaign open; it closes after a day
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    call: CallArgs,
}

impl DrillArgs {
    /// Runs the drill and prints its report; `false` when a check does not hold.
    pub async fn run(self) -> Result<bool, CallError> {
        let installation = self.installation().await?;
        // Before the storm: a report that cannot be written would be lost after it.
        let file = self.report.as_deref().map(new_file).transpose()?;
        let voice = Voice { progress: &shown, say: &|text| say(&text) };
        let stop = told_to_stop()?;
        let done = run(&installation, &self.plan(), clock::now(), voice, stop).await;
        let report = done.map_err(|error| {
            // Without a report there is to be no file; one that stays is empty.
            let _ = self.report.as_ref().map(std::fs::remove_file);
            could_not(&error)
        })?;
        show(self.call.json, &json!(report), || text(&report))?;
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
            keep: self.keep,
        }
    }

    async fn installation(&self) -> Result<Installation, CallError> {
        let token = admin_token(&self.call)?;
        let url = self.url.trim_end_matches('/').to_owned();
        let target = Target::find(&url, &token).await.map_err(|error| could_not(&error))?;
        let users = match target {
            Target::Core(_) => None,
            Target::Edge(_) => Some(user_tokens(&self.call)?),
        };
        // The drill repeats calls itself, for as long as its plan says.
        let internal = Internal::new(&format!("http://{}", self.call.listen), &token)?;
        let internal = internal.with_retries(Retries::NONE);
        let admin = Admin::new(&format!("http://{}", self.call.admin_listen), &token)?;
        let admin = admin.with_retries(Retries::NONE);
        Ok(Installation { target, url, internal, admin, users })
    }
}

/// Waits for Ctrl-C or SIGTERM; from now on neither ends the process before the campaign is ended.
fn told_to_stop() -> Result<impl Future<Output = ()>, CallError> {
    let on = |kind| signal(kind).map_err(|error| CallError::Usage(format!("signals: {error}")));
    let (mut interrupt, mut terminate) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
        }
    })
}

/// Whatever keeps a drill from its report is no verdict: neither passed nor failed.
fn could_not(error: &DrillError) -> CallError {
    CallError::Usage(format!("the drill could not be run: {error}"))
}

/// Only a terminal can have a line that changes; no text clears it.
fn shown(text: &str) {
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
