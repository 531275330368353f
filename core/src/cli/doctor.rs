//! `claimgate doctor`: reports what is wrong or risky in this set-up.

use std::collections::HashSet;
use std::net::SocketAddr;

use claimgate_client::Internal;
use clap::Args;
use serde_json::json;

use super::client::CallError;
use super::printer::show;
use crate::config::{Config, Secrets, ServeArgs, data_dir};
use crate::doctor::{Finding, Report, Setup, Severity, examine};

/// `claimgate doctor`: accepts the arguments of `serve`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    serve: ServeArgs,
}

impl DoctorArgs {
    /// Prints the findings; returns `false` if a guarantee does not hold.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if no broken guarantee was found, but not everything could be checked.
    pub async fn run(self) -> Result<bool, CallError> {
        let mut report = examine_all(&self.serve).await;
        report.findings.sort_by_key(|finding| finding.severity);
        let (breaks, unknown) = (report.has(Severity::Breaks), report.has(Severity::Unknown));
        let value = json!({
            "sound": !breaks && !unknown, "findings": report.findings, "notes": report.notes, "examined": report.examined,
        });
        show::<CallError>(self.json, &value, || text(&report))?;
        if unknown && !breaks {
            return Err(CallError::Unavailable("part of the set-up could not be checked".to_owned()));
        }
        Ok(!breaks)
    }
}

/// Checks that core is running and ready.
async fn examine_core(listen: SocketAddr, report: &mut Report) {
    // The call needs no token.
    let ready = match Internal::new(&format!("http://{listen}"), "") {
        Ok(core) => core.ready().await,
        Err(error) => Err(error),
    };
    match ready {
        Ok(_) => report.examined.push(format!("core at {listen}: ready")),
        Err(error) => report.findings.push(Finding::unknown(
            "core.ready",
            format!("core at {listen} is not running, or not ready: {error}"),
            "start it (`claimgate serve`), or give its address with --listen (CLAIMGATE_LISTEN)",
        )),
    }
}

/// Checks the configuration and, if `serve` would start with it, everything else.
async fn examine_all(args: &ServeArgs) -> Report {
    let data_dir = data_dir(args);
    let errors = Secrets::read_only(&data_dir).problems();
    match Config::load_read_only(args) {
        Ok(config) => {
            let mut report = examine(&Setup::of(&config)).await;
            report.examined.push("each setting and secret".to_owned());
            examine_core(config.listen, &mut report).await;
            report
        }
        Err(error) => {
            let mut seen = HashSet::new();
            let mut errors: Vec<_> = errors.iter().chain([&error]).map(ToString::to_string).collect();
            errors.retain(|error| seen.insert(error.clone()));
            let note = "Redis, the database and the machine were not checked: fix the configuration first";
            Report {
                findings: errors.iter().map(Finding::of_configuration).collect(),
                notes: vec![note.to_owned()],
                examined: vec!["each setting and secret".to_owned()],
            }
        }
    }
}

/// Formats one line per finding, the worst first, then one per part that could not be checked, then one per
/// checked part.
fn text(report: &Report) -> String {
    let mut lines: Vec<_> = report
        .findings
        .iter()
        .map(|finding| match finding.severity {
            Severity::Breaks => format!("breaks:  {finding}"),
            Severity::Unknown => format!("unknown: {finding}"),
            Severity::Warning => format!("warning: {finding}"),
        })
        .collect();
    lines.extend(report.notes.iter().map(|note| format!("note:    {note}")));
    lines.extend(report.examined.iter().map(|part| format!("checked: {part}")));
    if report.findings.is_empty() {
        lines.push("the checks found no problem".to_owned());
    }
    lines.join("\n")
}
