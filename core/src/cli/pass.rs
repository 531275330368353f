//! `claimgate pass`: issues a pass for one user and campaign.

use std::num::NonZeroU32;

use claimgate_client::Pass;
use claimgate_shared::{CampaignId, Timestamp, UserId};
use clap::Args;
use serde_json::json;

use super::client::CallError;
use super::printer::show;
use crate::clock;
use crate::config;

/// `claimgate pass`
#[derive(Debug, Args)]
#[command(
    after_help = "The key, kid:base64url-key as in the edge's PASS_KEYS, is in CLAIMGATE_PASS_KEY, or in the file that \
        CLAIMGATE_PASS_KEY_FILE names."
)]
pub struct PassArgs {
    /// The user's id in claims, as `claimgate user-id` computes it
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    user: UserId,
    /// The campaign's id
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    campaign: CampaignId,
    /// The most units that the user may take in the whole campaign [default: the campaign's limits]
    #[arg(long)]
    units: Option<NonZeroU32>,
    /// Lifetime of the pass, in seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    ttl: u32,
    /// When the pass and its lifetime begin, such as 2026-12-01T08:00:00+08:00 [default: now]
    #[arg(long, value_name = "TIME")]
    not_before: Option<Timestamp>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl PassArgs {
    /// Signs a pass and prints it.
    pub fn run(self) -> Result<(), CallError> {
        let key = config::pass_key()?;
        let begins_at = self.not_before.unwrap_or_else(clock::now);
        let pass = Pass {
            user: self.user,
            campaign: self.campaign,
            expires_at: begins_at.saturating_add_ms(i64::from(self.ttl) * 1000),
            not_before: self.not_before,
            units: self.units,
        };
        let signed = pass.sign(&key).map_err(|error| CallError::Usage(error.to_string()))?;
        let reply = json!({"pass": signed, "user_id": pass.user, "expires_at": pass.expires_at});
        show(self.json, &reply, || signed.clone())
    }
}
