//! `claimgate user-ids` and `claimgate user-id`: the scheme of user ids, and the id of one user.

use claimgate_shared::user_id::{Form, Scheme, UserIdRule};
use clap::{Args, Subcommand};
use serde_json::json;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::confirmation::ConfirmArgs;
use super::printer::show;
use super::table;
use crate::config;

/// `claimgate user-ids`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct UserIdsArgs {
    #[command(subcommand)]
    command: Option<UserIdsCommand>,
    #[command(flatten)]
    call: CallArgs,
}

/// `claimgate user-ids …`
#[derive(Debug, Subcommand)]
enum UserIdsCommand {
    /// Change the user ids that the database is pinned to, once all campaigns have ended
    Set {
        /// Form and fingerprint, as core's log, `/readyz` and `claimgate user-id --json` name them
        #[arg(value_name = "FORM:FINGERPRINT")]
        user_ids: Scheme,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        call: CallArgs,
    },
}

impl UserIdsArgs {
    /// Prints the pinned user ids, or changes them.
    pub async fn run(self) -> Result<(), CallError> {
        let call = match &self.command {
            None => &self.call,
            Some(UserIdsCommand::Set { call, .. }) => call,
        };
        let core = Core::new(call)?;
        let reply = match self.command {
            None => core.call(core.admin.user_ids()).await,
            Some(UserIdsCommand::Set { user_ids, confirm, .. }) => {
                confirm.confirm(
                    "edges with other user ids are rejected from now on, and claims of earlier campaigns are found under the \
                     former ids only",
                    "user-ids",
                )?;
                core.call(core.admin.set_user_ids(user_ids)).await
            }
        };
        let reply = reply?.json;
        show(call.json, &reply, || table::user_ids(&reply))
    }
}

/// `claimgate user-id`
#[derive(Debug, Args)]
#[command(
    after_help = "The key of hmac is in CLAIMGATE_USER_ID_KEY, or in the file that CLAIMGATE_USER_ID_KEY_FILE names."
)]
pub struct UserIdArgs {
    /// The value of the claim in the user's token
    value: String,
    /// The form of user ids: the edge's `USER_ID_FORM`
    #[arg(long, env = "CLAIMGATE_USER_ID_FORM", default_value = "hmac", value_name = "FORM")]
    form: Form,
    /// The name of the claim: the edge's `USER_ID_CLAIM`
    #[arg(long, env = "CLAIMGATE_USER_ID_CLAIM", default_value = "sub", value_name = "NAME")]
    claim: String,
    /// The issuer of the tokens: the edge's `USER_JWT_ISS`
    #[arg(long, env = "CLAIMGATE_USER_JWT_ISS", default_value = "claimgate", value_name = "ISSUER")]
    issuer: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl UserIdArgs {
    /// Derives a user's id and prints it.
    pub fn run(self) -> Result<(), CallError> {
        let rule = match self.form {
            Form::Verbatim => UserIdRule::verbatim(&self.claim, &self.issuer),
            Form::Hmac => UserIdRule::hmac(&self.claim, &self.issuer, config::user_id_key()?),
        };
        let user_id = rule.user_id(&self.value).map_err(|why| CallError::Usage(format!("VALUE {why}")))?;
        let reply = json!({"user_id": user_id, "user_ids": rule.scheme()});
        show(self.json, &reply, || user_id.to_string())
    }
}
