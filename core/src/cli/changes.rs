//! `claimgate changes`: the feed of changed claims, a line each.

use std::time::Duration;

use claimgate_client::Retries;
use claimgate_shared::CampaignId;
use clap::Args;
use serde_json::Value;
use tokio::time::sleep;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::{print_line, say};

/// How long one call waits for something to come, in seconds.
const WAIT_S: u32 = 20;
/// How long to wait before core is asked again after it did not answer: longer each time.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// The most items of a page.
const PAGE: u32 = 1000;

/// `claimgate changes`
#[derive(Debug, Args)]
#[command(
    after_help = "Each line is a JSON object: `claim` as it stands, its `revision`, `updated_at`, and the `cursor` to go on \
    from. A change is told at least once."
)]
pub struct ChangesArgs {
    /// Begin behind this cursor [default: from the beginning]
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Only claims of this campaign
    #[arg(long, value_name = "ID")]
    campaign: Option<CampaignId>,
    /// End after so many lines [default: no limit]
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Wait for what comes next, also while core is away, instead of ending
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    call: CallArgs,
}

impl ChangesArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), CallError> {
        // Lines are JSON as they are; a problem is told on standard error, not among them.
        let mut core = Core::new(&CallArgs { json: false, ..self.call.clone() })?;
        let mut after = self.after.clone();
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut answered = false;
        while left > 0 {
            let page = if self.follow && answered {
                self.page_at_last(&core, after.as_deref(), left).await?
            } else {
                self.page(&core, after.as_deref(), left).await?
            };
            if self.follow {
                core.admin = core.admin.with_retries(Retries::NONE);
            }
            answered = true;
            let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            if items.is_empty() && !self.follow {
                return Ok(());
            }
            for item in items {
                if !print_line(item)? {
                    return Ok(());
                }
            }
            left -= items.len() as u64;
            after = page["next_cursor"].as_str().map(str::to_owned);
        }
        Ok(())
    }

    /// One page behind `after`, of `left` items at most.
    async fn page(&self, core: &Core, after: Option<&str>, left: u64) -> Result<Value, CallError> {
        let limit = u32::try_from(left).unwrap_or(PAGE).min(PAGE);
        let wait_s = if self.follow { WAIT_S } else { 0 };
        Ok(core.ask(core.admin.changes(after, self.campaign.as_ref(), limit, wait_s)).await?.json)
    }

    /// The same, asked for until core answers it. `core` is not to repeat calls itself.
    async fn page_at_last(&self, core: &Core, after: Option<&str>, left: u64) -> Result<Value, CallError> {
        let mut pause = RETRY_MIN;
        loop {
            let error = match self.page(core, after, left).await {
                Err(CallError::Call(error)) => error,
                told => return told,
            };
            let Some(at_least) = error.retry_after() else { return Err(error.into()) };
            if pause == RETRY_MIN {
                say(&format_args!("{error}; asking again until it answers"));
            }
            sleep(pause.max(at_least)).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }
}
