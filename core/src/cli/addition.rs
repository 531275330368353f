//! `claimgate campaign add`: adds units to a campaign's total.

use claimgate_client::random_key;
use claimgate_shared::{CampaignId, IdempotencyKey};
use clap::Args;
use serde_json::json;

use super::call_args::CallArgs;
use super::changed::show_changed;
use super::client::{CallError, Core};
use super::exit_status::UNAVAILABLE;
use super::printer::say;

/// `claimgate campaign add`
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The campaign's id
    id: CampaignId,
    /// Units to add to the total; a negative number removes them
    units: i64,
    /// Idempotency key: a retry with the same key adds the units only once [default: random, printed]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<IdempotencyKey>,
    #[command(flatten)]
    call: CallArgs,
}

impl AddArgs {
    pub(super) async fn run(self) -> Result<(), CallError> {
        let key = match self.key {
            Some(key) => key,
            None => random_key()?,
        };
        let core = Core::new(&self.call)?.about(&self.id);
        let reply = core.call(core.admin.add(&self.id, self.units, &key)).await;
        let reply = reply.inspect_err(|error| {
            if error.exit_status() == UNAVAILABLE {
                say(&format_args!(
                    "the units may have been added; run the command again with --key {key} to add them only once"
                ));
            }
        })?;
        let mut campaign = reply.json;
        campaign["idempotency_key"] = json!(key);
        show_changed(&self.call, &campaign)
    }
}
