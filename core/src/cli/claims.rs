//! `claimgate claims`: lists a campaign's claims, as stored in SQL.

use claimgate_client::ClaimsFilter;
use claimgate_shared::{CampaignId, ClaimStatus, UserId};
use clap::Args;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::{print_text, show};
use super::table;

/// `claimgate claims`
#[derive(Debug, Args)]
#[command(after_help = "A new claim is listed once it is in SQL, which may take a moment.")]
pub struct ClaimsArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// Only the claims of this user
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    user: Option<UserId>,
    /// Only claims with this status: granted, held, returned, expired or revoked
    #[arg(long)]
    status: Option<ClaimStatus>,
    /// Show the codes of the claims: needs the role admin, and is recorded in the audit
    #[arg(long)]
    codes: bool,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    call: CallArgs,
}

impl ClaimsArgs {
    /// Prints a campaign's claims as a table, JSON or CSV.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.campaign);
        let filter = ClaimsFilter { user: self.user.as_ref(), status: self.status, codes: self.codes };
        if self.csv {
            let csv = core.call(core.admin.claims_csv(&self.campaign, filter)).await?;
            return Ok(print_text(&csv.read()?)?);
        }
        let claims = core.call(core.admin.claims(&self.campaign, filter)).await?.json;
        let zone = core.zone().await;
        show(self.call.json, &claims, || table::claims(&claims, &zone))
    }
}
