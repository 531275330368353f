//! `claimgate webhooks`: receivers that are told of changed claims.

use claimgate_shared::CampaignId;
use clap::{Args, Subcommand};

use super::call_args::CallArgs;
use super::client::{CallError, Core};
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
    /// List them
    List,
    /// Make one, and print its secret, which is not shown again
    Add {
        /// Where events are sent: a host and port that core's `CLAIMGATE_WEBHOOK_HOSTS` lists
        url: String,
        /// Of this campaign's claims alone [default: of all]
        #[arg(long)]
        campaign: Option<CampaignId>,
    },
    /// Remove one, with what it did not take
    Remove {
        /// The webhook's id
        id: String,
    },
    /// Send a test event; exit status 1 when it is not taken
    Test {
        /// The webhook's id
        id: String,
    },
    /// Enable one that was disabled: it goes on where it stopped
    Enable {
        /// The webhook's id
        id: String,
    },
    /// Make another secret, and print it; the one of before signs beside it for a day
    RotateSecret {
        /// The webhook's id
        id: String,
    },
    /// List the events that one did not take yet
    Deliveries {
        /// The webhook's id
        id: String,
    },
}

impl WebhooksArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let (admin, json) = (&core.admin, self.call.json);
        let reply = match &self.command {
            WebhooksCommand::List => {
                let all = core.ask(admin.webhooks()).await?.json;
                return Ok(show(json, &all, || table::webhooks(&all))?);
            }
            WebhooksCommand::Deliveries { id } => {
                let events = core.ask(admin.webhook_deliveries(id)).await?.json;
                return Ok(show(json, &events, || table::deliveries(&events))?);
            }
            WebhooksCommand::Test { id } => {
                let tested = core.ask(admin.test_webhook(id)).await?.json;
                show(json, &tested, || table::tested(&tested))?;
                return match tested["error"].as_str() {
                    None => Ok(()),
                    Some(why) => Err(CallError::NotDone(format!("the test event was not taken: {why}"))),
                };
            }
            WebhooksCommand::Add { url, campaign } => {
                core.ask(admin.create_webhook(url, campaign.as_ref())).await
            }
            WebhooksCommand::Remove { id } => core.ask(admin.delete_webhook(id)).await,
            WebhooksCommand::Enable { id } => core.ask(admin.enable_webhook(id)).await,
            WebhooksCommand::RotateSecret { id } => core.ask(admin.rotate_webhook_secret(id)).await,
        };
        let reply = reply?.json;
        show(json, &reply, || table::webhook(&reply))?;
        Ok(())
    }
}
