//! What each command sends, and how it shows the answer.

use std::num::NonZeroU32;

use claimgate_client::{Answer, ClaimCall, Error, NewCampaign};
use claimgate_shared::admin::AdminView;
use claimgate_shared::claim_request::ClaimLookup;
use claimgate_shared::jwt::UserTokens;
use claimgate_shared::{
    CampaignId, ClaimId, ClaimRequest, IdempotencyKey, Limits, Quantity, Timestamp, UserId,
};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::addition::AddArgs;
use super::call_args::CallArgs;
use super::client::{CallError, Core};
use super::imports::ImportArgs;
use super::printer::show;
use super::table;
use crate::clock;
use crate::config::Secrets;

/// `claimgate campaign …`
#[derive(Debug, Subcommand)]
pub enum CampaignCommand {
    /// Create a campaign; done too when an identical one exists
    Create(CreateArgs),
    /// List all campaigns
    List(CallArgs),
    /// Show a campaign with its live counters
    Show(IdArgs),
    /// Change name, window, limits or hold; what is not given stays
    Update(UpdateArgs),
    /// Add units to the total, or take some off it
    Add(AddArgs),
    /// Stop claims until resumed
    Pause(IdArgs),
    /// Let claims in again
    Resume(IdArgs),
    /// End a campaign for good
    End(IdArgs),
    /// Import past claims from a CSV file; the campaign must be scheduled or paused
    Import(ImportArgs),
}

/// A campaign, and where to ask.
#[derive(Debug, Args)]
pub struct IdArgs {
    /// The campaign's id
    id: CampaignId,
    #[command(flatten)]
    call: CallArgs,
}

/// A limit that is at least `MIN`, or "none".
#[derive(Debug, Clone, Copy)]
struct LimitArg<const MIN: u32 = 1>(Option<u32>);

impl LimitArg {
    /// Absent is unlimited.
    fn limit(arg: Option<Self>) -> Option<NonZeroU32> {
        NonZeroU32::new(arg?.0?)
    }
}

impl<const MIN: u32> std::str::FromStr for LimitArg<MIN> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text == "none" => Ok(Self(None)),
            Ok(limit) if limit >= MIN => Ok(Self(Some(limit))),
            _ => Err(format!("must be {MIN} to 4294967295, or none")),
        }
    }
}

#[derive(Debug, Args)]
struct LimitArgs {
    /// Units in all, 0 for nothing to give yet, or "none" for no limit
    #[arg(long, value_name = "UNITS")]
    total: Option<LimitArg<0>>,
    /// Units per user over the whole campaign, or "none"
    #[arg(long, value_name = "UNITS")]
    per_user: Option<LimitArg>,
    /// Units per user and calendar day, or "none"
    #[arg(long, value_name = "UNITS")]
    per_user_per_day: Option<LimitArg>,
    /// Units in one claim, or "none"
    #[arg(long, value_name = "UNITS")]
    per_claim: Option<LimitArg>,
}

impl LimitArgs {
    /// Of a new campaign.
    fn limits(&self) -> Limits {
        Limits {
            total: self.total.and_then(|limit| limit.0),
            per_user: LimitArg::limit(self.per_user),
            per_user_per_day: LimitArg::limit(self.per_user_per_day),
            per_claim: LimitArg::limit(self.per_claim),
        }
    }

    /// Those that are given, of a campaign that is changed.
    fn json(&self) -> Map<String, Value> {
        [
            ("total", self.total.map(|limit| limit.0)),
            ("per_user", self.per_user.map(|limit| limit.0)),
            ("per_user_per_day", self.per_user_per_day.map(|limit| limit.0)),
            ("per_claim", self.per_claim.map(|limit| limit.0)),
        ]
        .into_iter()
        .filter_map(|(name, limit)| Some((name.to_owned(), json!(limit?))))
        .collect()
    }
}

/// `claimgate campaign create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The campaign's id: 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'
    id: CampaignId,
    /// Its name, for people [default: the id]
    #[arg(long)]
    name: Option<String>,
    /// When it opens, such as 2026-11-21T08:00:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    starts_at: Option<Timestamp>,
    /// When it closes [default: never]
    #[arg(long, value_name = "TIME")]
    ends_at: Option<Timestamp>,
    /// IANA time zone whose calendar days count
    #[arg(long, default_value = "UTC", value_name = "ZONE")]
    time_zone: String,
    /// Hold claims for this long until they are confirmed
    #[arg(long, value_name = "SECONDS")]
    hold_seconds: Option<NonZeroU32>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// `claimgate campaign update`
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// The campaign's id
    id: CampaignId,
    /// The version this change is made against [default: the one it is at now]
    #[arg(long)]
    version: Option<u64>,
    /// Its name
    #[arg(long)]
    name: Option<String>,
    /// When it opens
    #[arg(long, value_name = "TIME")]
    starts_at: Option<Timestamp>,
    /// When it closes, or "none"
    #[arg(long, value_name = "TIME")]
    ends_at: Option<String>,
    /// Hold claims made from now on for this long until they are confirmed, or "none"
    #[arg(long, value_name = "SECONDS")]
    hold_seconds: Option<LimitArg>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    call: CallArgs,
}

impl CampaignCommand {
    /// Runs the command.
    pub async fn run(self) -> Result<(), CallError> {
        match self {
            Self::Create(args) => args.run().await,
            Self::List(call) => list(&call).await,
            Self::Show(args) => args.run(async |core, id| core.admin.campaign(id).await).await,
            Self::Update(args) => args.run().await,
            Self::Add(args) => args.run().await,
            Self::Pause(args) => args.run(async |core, id| core.admin.pause(id).await).await,
            Self::Resume(args) => args.run(async |core, id| core.admin.resume(id).await).await,
            Self::End(args) => args.run(async |core, id| core.admin.end(id).await).await,
            Self::Import(args) => args.run().await,
        }
    }
}

impl IdArgs {
    /// Runs a command that makes one call, and shows the campaign that it answers.
    async fn run(
        &self,
        call: impl AsyncFnOnce(&Core, &CampaignId) -> Result<Answer<AdminView>, Error>,
    ) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let campaign = core.ask(call(&core, &self.id)).await?;
        show_campaign(&self.call, &campaign)
    }
}

fn show_campaign(call: &CallArgs, campaign: &Answer<AdminView>) -> Result<(), CallError> {
    show(call.json, &campaign.json, || table::campaign(&campaign.json))?;
    Ok(())
}

async fn list(call: &CallArgs) -> Result<(), CallError> {
    let core = Core::new(call)?;
    let campaigns = core.ask(core.admin.campaigns()).await?.json;
    show(call.json, &campaigns, || table::campaigns(&campaigns))?;
    Ok(())
}

impl CreateArgs {
    async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let campaign = NewCampaign {
            name: self.name.unwrap_or_else(|| self.id.to_string()),
            id: self.id,
            starts_at: self.starts_at.unwrap_or_else(clock::now),
            ends_at: self.ends_at,
            time_zone: self.time_zone,
            limits: self.limits.limits(),
            hold_seconds: self.hold_seconds,
        };
        show_campaign(&self.call, &core.ask(core.admin.create(&campaign)).await?)
    }
}

impl UpdateArgs {
    async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let version = match self.version {
            Some(version) => json!(version),
            None => core.ask(core.admin.campaign(&self.id)).await?.json["version"].take(),
        };
        let mut body = json!({"version": version, "limits": self.limits.json()});
        if let Some(name) = self.name {
            body["name"] = json!(name);
        }
        if let Some(starts_at) = self.starts_at {
            body["starts_at"] = json!(starts_at);
        }
        if let Some(ends_at) = self.ends_at {
            body["ends_at"] = if ends_at == "none" { Value::Null } else { json!(ends_at) };
        }
        if let Some(LimitArg(hold_seconds)) = self.hold_seconds {
            body["hold_seconds"] = json!(hold_seconds);
        }
        show_campaign(&self.call, &core.ask(core.admin.change(&self.id, &body)).await?)
    }
}

/// `claimgate claim`
#[derive(Debug, Args)]
pub struct ClaimArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// Who claims
    #[arg(long, value_name = "ID")]
    user: UserId,
    /// Units
    #[arg(long, default_value_t = 1)]
    quantity: u32,
    /// Makes a retry the same claim [default: a random one, printed]
    #[arg(long, value_name = "KEY")]
    key: Option<IdempotencyKey>,
    #[command(flatten)]
    call: CallArgs,
}

impl ClaimArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let (campaign_id, user_id) = (self.campaign, self.user);
        let quantity = Quantity::try_from(self.quantity)
            .map_err(|_| CallError::Usage("--quantity must be from 1 to 4294967295".to_owned()))?;
        let mut call = match self.key {
            Some(idempotency_key) => {
                ClaimCall::again(ClaimRequest { campaign_id, user_id, quantity, idempotency_key })
            }
            None => ClaimCall::new(campaign_id, user_id, quantity)?,
        };
        let answer = core.ask(core.internal.claim(&mut call)).await?;
        let mut reply = answer.json;
        reply["idempotency_key"] = json!(call.request().idempotency_key);
        show(self.call.json, &reply, || table::claim(&reply, answer.replayed))?;
        Ok(())
    }
}

/// `claimgate confirm`, `claimgate return`
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
        let core = Core::new(&self.call)?;
        self.show(core.ask(core.internal.confirm(&self.claim)).await?)
    }

    /// Returns the claim.
    pub async fn give_back(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        self.show(core.ask(core.internal.give_back(&self.claim)).await?)
    }

    fn show(&self, answer: Answer<ClaimLookup>) -> Result<(), CallError> {
        let reply = answer.json;
        show(self.call.json, &reply, || table::claim(&reply, false))?;
        Ok(())
    }
}

/// `claimgate reconcile`
#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// The campaign's id
    campaign: CampaignId,
    /// Repair what is safe to repair; without it nothing is changed
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    call: CallArgs,
}

impl ReconcileArgs {
    /// Runs the command; what still differs is a refusal.
    pub async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let reply = if self.repair {
            core.ask(core.admin.repair(&self.campaign)).await?.json
        } else {
            core.ask(core.admin.reconciliation(&self.campaign)).await?.json
        };
        show(self.call.json, &reply, || table::reconciliation(&reply))?;
        if reply["agrees"] == json!(true) { Ok(()) } else { Err(CallError::Differs) }
    }
}

/// `claimgate token`
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Whom the token speaks for
    #[arg(long, value_name = "ID")]
    user: UserId,
    /// For how long, in seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    ttl: u32,
    #[command(flatten)]
    call: CallArgs,
}

impl TokenArgs {
    /// Runs the command.
    pub fn run(self) -> Result<(), CallError> {
        let now = clock::now();
        let token = user_tokens(&self.call)?.mint(&self.user, now, self.ttl);
        let token = token.map_err(|error| CallError::Usage(error.to_string()))?;
        let expires_at = now.saturating_add_ms(i64::from(self.ttl) * 1000);
        let reply = json!({"token": token, "user_id": self.user, "expires_at": expires_at});
        show(self.call.json, &reply, || token.clone())?;
        Ok(())
    }
}

/// What users' tokens are signed with on this machine: from the environment, else from the data directory.
pub fn user_tokens(call: &CallArgs) -> Result<UserTokens, CallError> {
    let data_dir = &call.data.data_dir;
    if std::env::var_os("CLAIMGATE_USER_JWT_KEY").is_none() && !data_dir.is_dir() {
        let problem =
            format!("no directory {}; set CLAIMGATE_DATA_DIR or CLAIMGATE_USER_JWT_KEY", data_dir.display());
        return Err(CallError::Usage(problem));
    }
    Ok(Secrets::of(data_dir).user_tokens()?)
}
