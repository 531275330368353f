//! `claimgate claims`: a campaign's claims, as SQL has them.

use claimgate_shared::{CampaignId, ClaimStatus, UserId};
use clap::Args;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::show;
use super::table;

/// `claimgate claims`
#[derive(Debug, Args)]
#[command(after_help = "A claim that was granted a moment ago is listed once it is in SQL.")]
pub struct ClaimsArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// Only the claims of this user
    #[arg(long, value_name = "ID")]
    user: Option<UserId>,
    /// Only claims of this status: granted, held, returned, expired or revoked
    #[arg(long)]
    status: Option<ClaimStatus>,
    #[command(flatten)]
    call: CallArgs,
}

impl ClaimsArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let claims = core.admin.claims(&self.campaign, self.user.as_ref(), self.status);
        let claims = core.ask(claims).await?.json;
        show(self.call.json, &claims, || table::claims(&claims))?;
        Ok(())
    }
}
