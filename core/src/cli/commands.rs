//! What each command sends, and how it shows the answer.

use claimgate_shared::{CampaignId, ClaimId, IdempotencyKey, Timestamp, UserId};
use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::addition::AddArgs;
use super::call_args::CallArgs;
use super::client::{Api, CallError, Core, random_key};
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
    hold_seconds: Option<std::num::NonZeroU32>,
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
            Self::Show(args) => one(&args.call, Method::GET, &format!("/{}", args.id), None).await,
            Self::Update(args) => args.run().await,
            Self::Add(args) => args.run().await,
            Self::Pause(args) => one(&args.call, Method::POST, &format!("/{}/pause", args.id), None).await,
            Self::Resume(args) => one(&args.call, Method::POST, &format!("/{}/resume", args.id), None).await,
            Self::End(args) => one(&args.call, Method::POST, &format!("/{}/end", args.id), None).await,
            Self::Import(args) => args.run().await,
        }
    }
}

async fn one(call: &CallArgs, method: Method, path: &str, body: Option<Value>) -> Result<(), CallError> {
    let path = format!("/admin/v1/campaigns{path}");
    let (_, campaign) = Core::new(call)?.call(Api::Admin, method, &path, body).await?;
    show(call.json, &campaign, || table::campaigns(std::slice::from_ref(&campaign)))?;
    Ok(())
}

async fn list(call: &CallArgs) -> Result<(), CallError> {
    let campaigns = Core::new(call)?.list("/admin/v1/campaigns?limit=1000").await?;
    show(call.json, &json!(campaigns), || table::campaigns(&campaigns))?;
    Ok(())
}

impl CreateArgs {
    async fn run(self) -> Result<(), CallError> {
        let body = json!({
            "id": self.id, "name": self.name.unwrap_or_else(|| self.id.to_string()),
            "starts_at": self.starts_at.unwrap_or_else(clock::now), "ends_at": self.ends_at,
            "time_zone": self.time_zone, "hold_seconds": self.hold_seconds, "limits": self.limits.json(),
        });
        one(&self.call, Method::POST, "", Some(body)).await
    }
}

impl UpdateArgs {
    async fn run(self) -> Result<(), CallError> {
        let path = format!("/{}", self.id);
        let version = if let Some(version) = self.version {
            json!(version)
        } else {
            let path = format!("/admin/v1/campaigns{path}");
            Core::new(&self.call)?.call(Api::Admin, Method::GET, &path, None).await?.1["version"].take()
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
        one(&self.call, Method::PATCH, &path, Some(body)).await
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
        let key = match self.key {
            Some(key) => key.to_string(),
            None => random_key()?,
        };
        let body = json!({
            "campaign_id": self.campaign, "user_id": self.user, "quantity": self.quantity, "idempotency_key": key,
        });
        let core = Core::new(&self.call)?;
        let (status, mut reply) =
            core.call(Api::Internal, Method::POST, "/internal/v1/claims", Some(body)).await?;
        reply["idempotency_key"] = json!(key);
        show(self.call.json, &reply, || table::claim(&reply, status == StatusCode::OK))?;
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
    /// Runs the command; `verb` is the last part of the path.
    pub async fn run(self, verb: &str) -> Result<(), CallError> {
        let path = format!("/internal/v1/claims/{}/{verb}", self.claim);
        let (_, reply) = Core::new(&self.call)?.call(Api::Internal, Method::POST, &path, None).await?;
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
        let method = if self.repair { Method::POST } else { Method::GET };
        let path = format!("/admin/v1/campaigns/{}/reconciliation", self.campaign);
        let (_, reply) = Core::new(&self.call)?.call(Api::Admin, method, &path, None).await?;
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
        let data_dir = &self.call.data.data_dir;
        if std::env::var_os("CLAIMGATE_USER_JWT_KEY").is_none() && !data_dir.is_dir() {
            let problem = format!(
                "no directory {}; set CLAIMGATE_DATA_DIR or CLAIMGATE_USER_JWT_KEY",
                data_dir.display()
            );
            return Err(CallError::Usage(problem));
        }
        let now = clock::now();
        let token = Secrets::of(data_dir).user_tokens()?.mint(&self.user, now, self.ttl);
        let token = token.map_err(|error| CallError::Usage(error.to_string()))?;
        let expires_at = now.saturating_add_ms(i64::from(self.ttl) * 1000);
        let reply = json!({"token": token, "user_id": self.user, "expires_at": expires_at});
        show(self.call.json, &reply, || token.clone())?;
        Ok(())
    }
}
