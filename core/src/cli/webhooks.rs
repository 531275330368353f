//! `claimgate webhooks`: lists, adds and changes webhooks.

use claimgate_shared::CampaignId;
use clap::{Args, Subcommand};

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::confirmation::ConfirmArgs;
use super::printer::show;
use super::table;

/// `claimgate webhooks`
#[derive(Debug, Args)]
pub struct WebhooksArgs {
    #[command(subcommand)]
    command: WebhooksCommand,
    #[command(flatten)]
    call: CallArgs,
}

/// `claimgate webhooks …`
#[derive(Debug, Subcommand)]
enum WebhooksCommand {
    /// List all webhooks
    List,
    /// Add a webhook and print its secret, which is not shown again
    Add {
        /// URL that receives events; core's `CLAIMGATE_WEBHOOK_HOSTS` must list its host and port
        url: String,
        /// Only events of this campaign [default: all campaigns]
        #[arg(long)]
        campaign: Option<CampaignId>,
    },
    /// Remove a webhook and its undelivered events
    Remove {
        /// The webhook's id
        id: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Send a test event; exit status 1 if it is not accepted
    Test {
        /// The webhook's id
        id: String,
    },
    /// Enable a disabled webhook, which continues where it stopped
    Enable {
        /// The webhook's id
        id: String,
    },
    /// Replace the secret and print the new one; the previous one also signs for a day
    RotateSecret {
        /// The webhook's id
        id: String,
    },
    /// List the events that a webhook has not accepted yet
    Deliveries {
        /// The webhook's id
        id: String,
    },
}

impl WebhooksArgs {
    /// Calls the admin API for webhooks, and prints the response.
    pub async fn run(self) -> Result<(), CallError> {
        let campaign = match &self.command {
            WebhooksCommand::Add { campaign, .. } => campaign.as_ref(),
            _ => None,
        };
        let core = Core::new(&self.call)?.about(campaign);
        let (admin, json) = (&core.admin, self.call.json);
        let reply = match &self.command {
            WebhooksCommand::List => {
                let all = core.call(admin.webhooks()).await?.json;
                return show(json, &all, || table::webhooks(&all));
            }
            WebhooksCommand::Deliveries { id } => {
                let events = core.call(admin.webhook_deliveries(id)).await?.json;
                return show(json, &events, || table::deliveries(&events));
            }
            WebhooksCommand::Test { id } => {
                let tested = core.call(admin.test_webhook(id)).await?.json;
                show::<CallError>(json, &tested, || table::tested(&tested))?;
                return match tested["error"].as_str() {
                    None => Ok(()),
                    Some(why) => Err(CallError::NotDone(format!("the test event was not accepted: {why}"))),
                };
            }
            WebhooksCommand::Add { url, campaign } => {
                core.call(admin.create_webhook(url, campaign.as_ref())).await
            }
            WebhooksCommand::Remove { id, confirm } => {
                confirm.confirm(&format!("this removes {id} and its undelivered events"), id)?;
                core.call(admin.delete_webhook(id)).await
            }
            WebhooksCommand::Enable { id } => core.call(admin.enable_webhook(id)).await,
            WebhooksCommand::RotateSecret { id } => core.call(admin.rotate_webhook_secret(id)).await,
        };
        let reply = reply?.json;
        show(json, &reply, || table::webhook(&reply))
    }
}
