//! `claimgate audit`: who changed which campaign, and who confirmed or returned which claim, when and how.

use claimgate_shared::CampaignId;
use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::call_args::CallArgs;
use super::client::{Api, CallError, Core};
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
        let of = self.campaign.map(|id| format!("&campaign_id={id}")).unwrap_or_default();
        let mut items = Vec::new();
        let mut after = "0".to_owned();
        loop {
            let path = format!("/admin/v1/audit?limit=1000&after={after}{of}");
            let (_, mut page) = core.call(Api::Admin, Method::GET, &path, None).await?;
            if let Value::Array(found) = page["items"].take() {
                items.extend(found);
            }
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut after),
                None => break,
            }
        }
        show(self.call.json, &json!(items), || table::audit(&items))?;
        Ok(())
    }
}
