//! What every command that talks to a core takes.

use clap::Args;

use crate::config::DataArgs;

/// What every command that talks to a core takes.
#[derive(Debug, Clone, Args)]
pub struct CallArgs {
    /// Answer as JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Address of core's internal API
    #[arg(
        long,
        env = "CLAIMGATE_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "ADDRESS",
        global = true
    )]
    pub(super) listen: String,
    /// Address of core's admin API
    #[arg(
        long,
        env = "CLAIMGATE_ADMIN_LISTEN",
        default_value = "127.0.0.1:8081",
        value_name = "ADDRESS",
        global = true
    )]
    pub(super) admin_listen: String,
    #[command(flatten)]
    pub(super) data: DataArgs,
}
