//! `claimgate campaign add`: units added to a campaign's total.

use claimgate_shared::{CampaignId, IdempotencyKey};
use clap::Args;
use reqwest::Method;
use serde_json::json;

use super::call_args::CallArgs;
use super::client::{Api, CallError, Core, random_key};
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
            Some(key) => key.to_string(),
            None => random_key()?,
        };
        let path = format!("/admin/v1/campaigns/{}/add", self.id);
        let body = json!({"units": self.units, "idempotency_key": key});
        let reply = Core::new(&self.call)?.call(Api::Admin, Method::POST, &path, Some(body)).await;
        let (_, mut campaign) = reply.inspect_err(|error| {
            if error.exit_status() == UNAVAILABLE {
                say(&format_args!(
                    "the units may have been added: --key {key} asks again, and adds them once"
                ));
            }
        })?;
        campaign["idempotency_key"] = json!(key);
        show(self.call.json, &campaign, || table::campaigns(std::slice::from_ref(&campaign)))?;
        Ok(())
    }
}
