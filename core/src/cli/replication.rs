//! `claimgate replication`: shows or changes how many replicas must have a claim before it is acknowledged.

use clap::{Args, Subcommand};

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::confirmation::ConfirmArgs;
use super::printer::show;
use super::table;

/// `claimgate replication`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ReplicationArgs {
    #[command(subcommand)]
    command: Option<ReplicationCommand>,
    #[command(flatten)]
    call: CallArgs,
}

/// `claimgate replication …`
#[derive(Debug, Subcommand)]
enum ReplicationCommand {
    /// Change how many replicas must have a claim before it is acknowledged
    Set {
        /// Number of replicas; 0 waits for none, and a failover may lose acknowledged claims
        replicas: u32,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Accept the current primaries, although they may lack acknowledged claims
    AcceptLoss {
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        call: CallArgs,
    },
}

impl ReplicationArgs {
    /// Prints the replicas, changes their required number, or accepts a loss.
    pub async fn run(self) -> Result<(), CallError> {
        let call = match &self.command {
            None => &self.call,
            Some(ReplicationCommand::Set { call, .. } | ReplicationCommand::AcceptLoss { call, .. }) => call,
        };
        let core = Core::new(call)?;
        let reply = match self.command {
            None => core.call(core.admin.replication()).await,
            Some(ReplicationCommand::Set { replicas, .. }) => {
                core.call(core.admin.set_replicas(replicas)).await
            }
            Some(ReplicationCommand::AcceptLoss { confirm, .. }) => {
                confirm.confirm(
                    "this abandons the acknowledged claims that the primaries lack",
                    "accept-loss",
                )?;
                core.call(core.admin.accept_loss()).await
            }
        };
        let reply = reply?.json;
        show(call.json, &reply, || table::replication(&reply))
    }
}
