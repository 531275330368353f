//! `claimgate replication`: which replicas must have a claim before it is acknowledged.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::call_args::CallArgs;
use super::client::{Api, CallError, Core};
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
        /// How many; with 0 none is waited for, and a failover may lose acknowledged claims
        replicas: u32,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Believe whichever servers are the primaries now, though they may lack acknowledged claims
    AcceptLoss {
        #[command(flatten)]
        call: CallArgs,
    },
}

impl ReplicationArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), CallError> {
        const PATH: &str = "/admin/v1/replication";
        match self.command {
            None => send(&self.call, Method::GET, PATH, None).await,
            Some(ReplicationCommand::Set { replicas, call }) => {
                send(&call, Method::POST, PATH, Some(json!({ "replicas_min": replicas }))).await
            }
            Some(ReplicationCommand::AcceptLoss { call }) => {
                send(&call, Method::POST, &format!("{PATH}/accept-loss"), None).await
            }
        }
    }
}

async fn send(call: &CallArgs, method: Method, path: &str, body: Option<Value>) -> Result<(), CallError> {
    let (_, reply) = Core::new(call)?.call(Api::Admin, method, path, body).await?;
    show(call.json, &reply, || table::replication(&reply))?;
    Ok(())
}
