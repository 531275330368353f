//! `claimgate campaign add`: units added to a campaign's total.

use claimgate_client::random_key;
use claimgate_shared::{CampaignId, IdempotencyKey};
use clap::Args;
use serde_json::json;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::exit_status::UNAVAILABLE;
use super::printer::{say, show};
use super::table;

/// `claimgate campaign add`
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The campaign's id
    id: CampaignId,
    /// Units to add to the total; a negative number takes them off
    #[arg(allow_negative_numbers = true)]
    units: i64,
    /// Makes a retry the same addition [default: a random one, printed]
    #[arg(long, value_name = "KEY")]
    key: Option<IdempotencyKey>,
    #[command(flatten)]
    call: CallArgs,
}

impl AddArgs {
    /// Runs the command.
    pub(super) async fn run(self) -> Result<(), CallError> {
        let key = match self.key {
            Some(key) => key,
            None => random_key()?,
        };
        let core = Core::new(&self.call)?;
        let reply = core.ask(core.admin.add(&self.id, self.units, &key)).await;
        let reply = reply.inspect_err(|error| {
            if error.exit_status() == UNAVAILABLE {
                say(&format_args!(
                    "the units may have been added: --key {key} asks again, and adds them once"
                ));
            }
        })?;
        let mut campaign = reply.json;
        campaign["idempotency_key"] = json!(key);
        show(self.call.json, &campaign, || table::campaign(&campaign))?;
        Ok(())
    }
}
