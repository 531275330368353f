//! `claimgate campaign codes`: adds codes to a campaign and counts them.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use claimgate_shared::CampaignId;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::csv_file::{CsvFile, with_progress};
use super::input::name_of;
use super::printer::show;
use crate::domain::codes::CodesFile;

/// `claimgate campaign codes …`
#[derive(Debug, Subcommand)]
pub enum CodesCommand {
    /// Add codes from a file with one code per line
    Add(AddArgs),
    /// Count the codes, and the claims without codes
    Count(CountArgs),
}

/// `claimgate campaign codes add`
#[derive(Debug, Args)]
#[command(
    after_help = "All lines are checked before the first code is added: a code that is in the file twice is refused with its line. \
        A code that the campaign has already is not added again, so an interrupted command can be run again with the same \
        file. Raise the campaign's total afterwards."
)]
pub struct AddArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// The file (at most 5,000,000 codes and 256 MiB), or - for standard input
    file: PathBuf,
    #[command(flatten)]
    call: CallArgs,
}

/// `claimgate campaign codes count`
#[derive(Debug, Args)]
pub struct CountArgs {
    /// The campaign's id
    campaign: CampaignId,
    #[command(flatten)]
    call: CallArgs,
}

impl CodesCommand {
    /// Runs the subcommand.
    pub async fn run(self) -> Result<(), CallError> {
        match self {
            Self::Add(args) => args.run().await,
            Self::Count(args) => args.run().await,
        }
    }
}

impl AddArgs {
    async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.campaign);
        let added = add(&core, &self.campaign, read(&self.file)?).await?;
        show(self.call.json, &added, || text(&added))
    }
}

/// Reads a file of codes.
pub fn read(file: &Path) -> Result<CsvFile, CallError> {
    CsvFile::read(file, "add it in parts")
}

/// Reads a file of codes for a new campaign of `total` units, and checks it as core does.
pub fn read_for(file: &Path, total: Option<u32>) -> Result<CsvFile, CallError> {
    let wrong = |why: &dyn Display| CallError::Usage(format!("{}: {why}", name_of(file)));
    let total = total.ok_or_else(|| {
        CallError::Usage("--total: \"none\" cannot be used with --codes; give the number of units".to_owned())
    })?;
    let content = Bytes::from(read(file)?.0);
    let codes = CodesFile::parse(content.clone()).map_err(|problem| wrong(&problem.detail))?.count();
    if codes < total as usize {
        return Err(wrong(&format_args!("has {codes} of the {total} codes that --total needs")));
    }
    Ok(CsvFile(content.into()))
}

/// Adds the codes of a file.
pub async fn add(core: &Core, campaign: &CampaignId, file: CsvFile) -> Result<Value, CallError> {
    let megabytes = file.megabytes();
    let answer = core.call(core.admin.add_codes(campaign, file.0));
    Ok(with_progress("adding codes,", megabytes, answer).await?.json)
}

/// Returns the counts as a line.
pub fn text(added: &Value) -> String {
    format!("{} codes added, {} already existed", added["added"], added["already"])
}

impl CountArgs {
    async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.campaign);
        let counts = core.call(core.admin.codes(&self.campaign)).await?.json;
        show(self.call.json, &counts, || {
            let [added, assigned, pending] =
                ["added", "assigned", "claims_pending"].map(|name| &counts[name]);
            format!("{added} codes added, {assigned} assigned, {pending} claims without codes")
        })
    }
}
