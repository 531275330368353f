//! `claimgate changes`: prints the feed of changed claims, one per line.

use std::time::Duration;

use claimgate_client::{ChangesFilter, Retries};
use claimgate_shared::CampaignId;
use clap::Args;
use clap::builder::RangedI64ValueParser;
use serde_json::Value;
use tokio::time::sleep;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::{print_line, say};

/// Time that one call waits for a change, in seconds.
const WAIT_S: u32 = 20;
/// Backoff between retries while core is unavailable, doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// The maximum number of items on a page.
const PAGE_ITEMS: u32 = 1000;

/// `claimgate changes`
#[derive(Debug, Args)]
#[command(
    after_help = "Each line is a JSON object: `claim` in its current state, its `revision`, `updated_at`, and the `cursor` to \
    continue from. Each change is listed at least once."
)]
pub struct ChangesArgs {
    /// Start after this cursor [default: from the beginning]
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    after: Option<String>,
    /// Only claims of this campaign
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    campaign: Option<CampaignId>,
    /// Stop after this many lines [default: no limit]
    #[arg(long, value_name = "LINES", value_parser = RangedI64ValueParser::<u64>::new().range(1..))]
    limit: Option<u64>,
    /// Wait for further changes instead of stopping, even while core is down
    #[arg(long)]
    follow: bool,
    /// Print the codes that claims have by now: needs the role admin; the audit records each page with codes
    #[arg(long)]
    codes: bool,
    #[command(flatten)]
    call: CallArgs,
}

impl ChangesArgs {
    /// Prints changed claims as lines of JSON; with `--follow`, without end.
    pub async fn run(self) -> Result<(), CallError> {
        // The lines are always JSON; a problem is printed on standard error only.
        let mut core =
            Core::new(&CallArgs { json: false, ..self.call.clone() })?.about(self.campaign.as_ref());
        let mut after = self.after.clone();
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut page = self.page(&core, after.as_deref(), left).await?;
        if self.follow {
            // `page_with_retries` retries, without end.
            core.admin = core.admin.with_retries(Retries::NONE);
        }
        loop {
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
            if left == 0 {
                return Ok(());
            }
            after = page["next_cursor"].as_str().map(str::to_owned);
            page = if self.follow {
                self.page_with_retries(&core, after.as_deref(), left).await?
            } else {
                self.page(&core, after.as_deref(), left).await?
            };
        }
    }

    /// Reads one page after `after`, of at most `left` items.
    async fn page(&self, core: &Core, after: Option<&str>, left: u64) -> Result<Value, CallError> {
        let limit = u32::try_from(left).unwrap_or(PAGE_ITEMS).min(PAGE_ITEMS);
        let wait_s = if self.follow { WAIT_S } else { 0 };
        let filter = ChangesFilter { campaign: self.campaign.as_ref(), limit, wait_s, codes: self.codes };
        Ok(core.call(core.admin.changes(after, filter)).await?.json)
    }

    /// Reads the same page, retrying until core answers. `core` does not retry calls itself.
    async fn page_with_retries(
        &self,
        core: &Core,
        after: Option<&str>,
        left: u64,
    ) -> Result<Value, CallError> {
        let mut pause = RETRY_MIN;
        loop {
            let error = match self.page(core, after, left).await {
                Err(CallError::Call(error)) => error,
                result => return result,
            };
            let Some(at_least) = error.retry_after() else { return Err(error.into()) };
            if pause == RETRY_MIN {
                say(&format_args!("{error}; retrying until core answers"));
            }
            sleep(pause.max(at_least)).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }
}
