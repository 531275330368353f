//! `claimgate campaign import`: imports past claims from a file.

use std::path::PathBuf;

use claimgate_shared::CampaignId;
use clap::Args;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::csv_file::{CsvFile, with_progress};
use super::printer::show;

/// `claimgate campaign import`
#[derive(Debug, Args)]
#[command(
    after_help = "The header is user_id,quantity, optionally followed by claimed_at, idempotency_key or both. All lines are checked \
        before the first is written. If the import is interrupted, run it again with the same file: until it is complete, \
        the campaign cannot be resumed."
)]
pub struct ImportArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// The CSV file, at most 256 MiB; - reads standard input
    file: PathBuf,
    #[command(flatten)]
    call: CallArgs,
}

impl ImportArgs {
    /// Imports a CSV file, and prints the numbers of new and existing claims.
    pub async fn run(self) -> Result<(), CallError> {
        let csv = CsvFile::read(&self.file, "import it in parts, with a key on each line")?;
        let megabytes = csv.megabytes();
        let core = Core::new(&self.call)?.about(&self.campaign);
        let answer = core.call(core.admin.import(&self.campaign, csv.0));
        let reply = with_progress("importing", megabytes, answer).await?.json;
        show(self.call.json, &reply, || {
            format!("{} claims imported, {} already existed", reply["imported"], reply["already"])
        })
    }
}
