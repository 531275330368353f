//! `claimgate drop-foreign`: removes another database's campaign from this Redis.

use std::path::PathBuf;

use claimgate_shared::CampaignId;
use clap::Args;

use super::client::CallError;
use super::confirmation::ConfirmArgs;
use super::printer::{say, show};
use crate::config::{Config, ServeArgs};
use crate::doctor::Setup;
use crate::engine::lifecycle::foreign::{ForeignError, SERVED_WITHIN, export_and_drop};

/// `claimgate drop-foreign`
#[derive(Debug, Args)]
pub struct DropForeignArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// Write the campaign's claims to this new CSV file before removing it
    #[arg(long, value_name = "FILE")]
    export: PathBuf,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    serve: ServeArgs,
}

impl DropForeignArgs {
    /// Writes the claims of another database's campaign to a file, and removes its keys from Redis.
    pub async fn run(self) -> Result<(), CallError> {
        let config = Config::load_read_only(&self.serve)?;
        let setup = Setup::of(&config);
        let redis = setup.redis_address().ok_or_else(|| {
            CallError::Usage("core's own Redis is not running: start core on this data directory".to_owned())
        })?;
        let what = format!(
            "this removes {} from Redis after writing its claims to {}",
            self.campaign,
            self.export.display()
        );
        self.confirm.confirm(&what, self.campaign.as_str())?;
        say(&format_args!(
            "waiting {} s to see whether a core serves the campaign …",
            SERVED_WITHIN.as_secs()
        ));
        let done = export_and_drop((redis, &config.database_url), &self.campaign, &self.export).await;
        let claims = done.map_err(|error| match error {
            ForeignError::Redis(_) | ForeignError::Sql(_) => CallError::Unavailable(error.to_string()),
            ForeignError::File(error) => CallError::Usage(format!("{}: {error}", self.export.display())),
            error => CallError::NotDone(error.to_string()),
        })?;
        let value = serde_json::json!({"campaign_id": self.campaign, "claims": claims, "file": self.export});
        show(self.json, &value, || {
            format!(
                "{claims} claims written to {}; the keys of '{}' were removed",
                self.export.display(),
                self.campaign
            )
        })
    }
}
