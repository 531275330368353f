//! `claimgate doctor`: what is wrong or risky with this set-up.

use std::collections::HashSet;

use clap::Args;
use serde_json::json;

use super::client::CallError;
use super::printer::show;
use crate::config::{Config, Secrets, ServeArgs, data_dir};
use crate::doctor::{Finding, Report, Setup, Severity, examine};

/// `claimgate doctor`: takes what `serve` takes.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    serve: ServeArgs,
}

impl DoctorArgs {
    /// Prints the findings; `false` when a guarantee does not hold.
    pub async fn run(self) -> Result<bool, CallError> {
        let report = look(&self.serve).await;
        let sound = !report.breaks();
        let value = json!({"sound": sound, "findings": report.findings, "notes": report.notes});
        show(self.json, &value, || text(&report))?;
        Ok(sound)
    }
}

/// What `serve` would not start with, and, when it would, all else.
async fn look(args: &ServeArgs) -> Report {
    let data_dir = data_dir(args);
    let errors = Secrets::as_they_are(&data_dir).problems();
    match Config::look(args) {
        Ok(config) => examine(&Setup::of(&config)).await,
        Err(error) => {
            let mut seen = HashSet::new();
            let mut errors: Vec<_> = errors.iter().chain([&error]).map(ToString::to_string).collect();
            errors.retain(|error| seen.insert(error.clone()));
            let note =
                "Redis, the database and the machine were not looked at: repair the configuration first";
            Report {
                findings: errors.iter().map(Finding::of_configuration).collect(),
                notes: vec![note.to_owned()],
            }
        }
    }
}

/// One line each.
fn text(report: &Report) -> String {
    let mut lines: Vec<_> = report
        .findings
        .iter()
        .map(|finding| match finding.severity {
            Severity::Breaks => format!("breaks:  {finding}"),
            Severity::Warning => format!("warning: {finding}"),
        })
        .collect();
    lines.extend(report.notes.iter().map(|note| format!("note:    {note}")));
    if report.findings.is_empty() {
        lines.push("nothing wrong was found".to_owned());
    }
    lines.join("\n")
}
