//! `claimgate audit`: changes of campaigns, and confirmations, returns and extensions of claims, each with its author
//! and time.

use claimgate_shared::CampaignId;
use clap::Args;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::show;
use super::table;

/// `claimgate audit`
#[derive(Debug, Args)]
#[command(after_help = "Times are in the campaign's time zone, or in UTC if no campaign is given.")]
pub struct AuditArgs {
    /// The campaign's id [default: all campaigns]
    campaign: Option<CampaignId>,
    #[command(flatten)]
    call: CallArgs,
}

impl AuditArgs {
    /// Prints the audit.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(self.campaign.as_ref());
        let changes = core.call(core.admin.audit(self.campaign.as_ref())).await?.json;
        let zone = core.zone().await;
        show(self.call.json, &changes, || table::audit(&changes, &zone))
    }
}
