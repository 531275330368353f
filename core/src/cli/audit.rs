//! `claimgate audit`: who changed which campaign, and who confirmed or returned which claim, when and how.

use claimgate_shared::CampaignId;
use clap::Args;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::show;
use super::table;

/// `claimgate audit`
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// The campaign's id [default: all campaigns]
    campaign: Option<CampaignId>,
    #[command(flatten)]
    call: CallArgs,
}

impl AuditArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let changes = core.ask(core.admin.audit(self.campaign.as_ref())).await?.json;
        show(self.call.json, &changes, || table::audit(&changes))?;
        Ok(())
    }
}
