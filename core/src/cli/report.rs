//! `claimgate report`: the report on a campaign's demand.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use claimgate_shared::CampaignId;
use clap::Args;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::{print_text, show};
use super::table;
use crate::report_page::page;

/// `claimgate report`
#[derive(Debug, Args)]
#[command(after_help = "The report covers what is in SQL. Refusals are kept for 90 days.")]
pub struct ReportArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// Print a line for each second in which a claim was made or refused, as CSV
    #[arg(long, conflicts_with_all = ["json", "page"])]
    csv: bool,
    /// Also write the report as an HTML page with charts to this new file
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    #[command(flatten)]
    call: CallArgs,
}

impl ReportArgs {
    /// Prints a campaign's report; with `--page`, also writes it as a page.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.campaign);
        if self.csv {
            let csv = core.call(core.admin.report_csv(&self.campaign)).await?;
            return Ok(print_text(&csv.read()?)?);
        }
        let answer = core.call(core.admin.report(&self.campaign)).await?;
        let report = answer.read()?;
        if let Some(path) = &self.page {
            write_new(path, &page(&report))?;
        }
        let zone = core.zone().await;
        show(self.call.json, &answer.json, || table::report(&report, &zone))
    }
}

fn write_new(path: &Path, text: &str) -> Result<(), CallError> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| CallError::Usage(format!("{}: {error}", path.display())))
}
