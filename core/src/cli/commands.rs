//! The commands on claims and users' tokens.

use claimgate_client::{Answer, ClaimCall};
use claimgate_shared::claim_request::ClaimLookup;
use claimgate_shared::jwt::UserTokens;
use claimgate_shared::{CampaignId, ClaimId, ClaimRequest, IdempotencyKey, Quantity, UserId};
use clap::Args;
use serde_json::json;

use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::printer::show;
use super::table;
use crate::clock;
use crate::config::{self, Secrets};

/// `claimgate claim`
#[derive(Debug, Args)]
pub struct ClaimArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// The user who claims
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    user: UserId,
    /// Units to claim
    #[arg(long, default_value_t = 1, value_name = "UNITS", value_parser = clap::value_parser!(u32).range(1..))]
    quantity: u32,
    /// Idempotency key: a retry with the same key is the same claim [default: random, printed]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<IdempotencyKey>,
    #[command(flatten)]
    call: CallArgs,
}

impl ClaimArgs {
    /// Makes the claim, and prints the response with the idempotency key.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.campaign);
        let (campaign_id, user_id) = (self.campaign, self.user);
        let quantity = Quantity::try_from(self.quantity)
            .map_err(|error| CallError::Usage(format!("--quantity {}: {error}", self.quantity)))?;
        let mut call = match self.key {
            Some(idempotency_key) => {
                ClaimCall::retry(ClaimRequest { campaign_id, user_id, quantity, idempotency_key })
            }
            None => ClaimCall::new(campaign_id, user_id, quantity)?,
        };
        let answer = core.call(core.internal.claim(&mut call)).await?;
        let mut reply = answer.json;
        reply["idempotency_key"] = json!(call.request().idempotency_key);
        let zone = core.zone().await;
        show(self.call.json, &reply, || table::claim(&reply, answer.replayed, &zone))
    }
}

/// `claimgate confirm`, `claimgate extend`, and the claim of `claimgate return`
#[derive(Debug, Args)]
pub struct ClaimIdArgs {
    /// The claim's id
    claim: ClaimId,
    #[command(flatten)]
    call: CallArgs,
}

impl ClaimIdArgs {
    /// Confirms the claim.
    pub async fn confirm(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.claim.campaign);
        let answer = core.call(core.internal.confirm(&self.claim)).await?;
        self.show(&core, answer).await
    }

    /// Extends the claim's hold.
    pub async fn extend(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.claim.campaign);
        let answer = core.call(core.internal.extend(&self.claim)).await?;
        self.show(&core, answer).await
    }

    async fn show(&self, core: &Core, answer: Answer<ClaimLookup>) -> Result<(), CallError> {
        let (reply, zone) = (answer.json, core.zone().await);
        show(self.call.json, &reply, || table::claim(&reply, false, &zone))
    }
}

/// `claimgate return`
#[derive(Debug, Args)]
pub struct ReturnArgs {
    #[command(flatten)]
    returned: ClaimIdArgs,
    /// Why the claim is returned, 1 to 200 characters: the audit records it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl ReturnArgs {
    /// Returns the claim.
    pub async fn run(self) -> Result<(), CallError> {
        let ClaimIdArgs { claim, call } = &self.returned;
        let core = Core::new(call)?.about(&claim.campaign);
        let answer = match &self.reason {
            Some(reason) => core.call(core.admin.return_claim(claim, reason)).await?,
            None => core.call(core.internal.return_claim(claim)).await?,
        };
        self.returned.show(&core, answer).await
    }
}

/// `claimgate reconcile`
#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// Make the repairs that are safe; without this flag nothing is changed
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    call: CallArgs,
}

impl ReconcileArgs {
    /// Compares Redis and SQL, or repairs them; fails if they still differ.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.campaign);
        let reply = if self.repair {
            core.call(core.admin.repair(&self.campaign)).await?.json
        } else {
            core.call(core.admin.reconciliation(&self.campaign)).await?.json
        };
        show::<CallError>(self.call.json, &reply, || table::reconciliation(&reply))?;
        if reply["agrees"] == json!(true) { Ok(()) } else { Err(CallError::Differs) }
    }
}

/// `claimgate token`
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The user that the token identifies
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    user: UserId,
    /// Lifetime of the token, in seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    ttl: u32,
    #[command(flatten)]
    call: CallArgs,
}

impl TokenArgs {
    /// Mints a user token and prints it.
    pub fn run(self) -> Result<(), CallError> {
        let now = clock::now();
        let token = user_tokens(&self.call)?.mint(&self.user, now, self.ttl);
        let token = token.map_err(|error| CallError::Usage(error.to_string()))?;
        let expires_at = now.saturating_add_ms(i64::from(self.ttl) * 1000);
        let reply = json!({"token": token, "user_id": self.user, "expires_at": expires_at});
        show(self.call.json, &reply, || token.clone())
    }
}

/// Returns this machine's key and rules of users' tokens, from the environment or else from the data directory.
pub fn user_tokens(call: &CallArgs) -> Result<UserTokens, CallError> {
    let data_dir = &call.data.data_dir;
    if config::env_var("CLAIMGATE_USER_JWT_KEY").is_none() && !data_dir.is_dir() {
        let problem = format!(
            "there is no directory {}; set CLAIMGATE_DATA_DIR or CLAIMGATE_USER_JWT_KEY",
            data_dir.display()
        );
        return Err(CallError::Usage(problem));
    }
    Ok(Secrets::of(data_dir).user_tokens()?)
}
