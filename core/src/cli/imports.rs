//! `claimgate campaign import`: past claims from a file.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use claimgate_client::Answer;
use claimgate_shared::{CampaignId, http};
use clap::Args;
use serde_json::Value;
use tokio::time::interval;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::{progress, show};

const BYTES_PER_MB: f64 = 1e6;

/// `claimgate campaign import`
#[derive(Debug, Args)]
#[command(
    after_help = "The header is user_id,quantity, then claimed_at, idempotency_key, both or neither. All lines are checked \
        before the first is written. If it breaks off, run it again with the same file: until then the campaign cannot \
        be resumed."
)]
pub struct ImportArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// The CSV file, at most 256 MiB
    file: PathBuf,
    #[command(flatten)]
    call: CallArgs,
}

impl ImportArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), CallError> {
        let csv = self.read()?;
        #[allow(clippy::cast_precision_loss)] // to a tenth of a megabyte
        let megabytes = csv.len() as f64 / BYTES_PER_MB;
        let core = Core::new(&self.call)?;
        let answer = core.ask(core.admin.import(&self.campaign, csv));
        let reply = with_progress(megabytes, answer).await?.json;
        show(self.call.json, &reply, || {
            format!("{} claims imported, {} were there already", reply["imported"], reply["already"])
        })?;
        Ok(())
    }

    /// The file's bytes; one that core would refuse unread is not read either.
    fn read(&self) -> Result<Vec<u8>, CallError> {
        let wrong = |why: &dyn std::fmt::Display| CallError::Usage(format!("{}: {why}", self.file.display()));
        let length = std::fs::metadata(&self.file).map_err(|error| wrong(&error))?.len();
        if length > http::IMPORT_BYTES_MAX as u64 {
            return Err(wrong(&"is larger than 256 MiB; import it in parts, with a key on each line"));
        }
        std::fs::read(&self.file).map_err(|error| wrong(&error))
    }
}

/// Waits for `answer`; on a terminal one line says how long it has taken so far.
async fn with_progress(
    megabytes: f64,
    answer: impl Future<Output = Result<Answer<Value>, CallError>>,
) -> Result<Answer<Value>, CallError> {
    let mut answer = std::pin::pin!(answer);
    if !std::io::stderr().is_terminal() {
        return answer.await;
    }
    let (started, mut seconds) = (Instant::now(), interval(Duration::from_secs(1)));
    loop {
        tokio::select! {
            answer = &mut answer => {
                progress(&"");
                return answer;
            }
            _ = seconds.tick() => {
                progress(&format_args!("claimgate: importing {megabytes:.1} MB, {} s", started.elapsed().as_secs()));
            }
        }
    }
}
