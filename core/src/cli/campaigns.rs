//! `claimgate campaign`: lists, shows, creates and changes campaigns.

use std::path::PathBuf;

use claimgate_client::{Answer, Error, NewCampaign};
use claimgate_drill::is_scratch;
use claimgate_shared::admin::AdminView;
use claimgate_shared::{CampaignId, Limits, PassRule, Timestamp};
use clap::builder::RangedI64ValueParser;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::addition::AddArgs;
use super::apply::ApplyArgs;
use super::call_args::CallArgs;
use super::changed::show_changed;
use super::client::{CallError, Core};
use super::codes::{self, CodesCommand};
use super::confirmation::ConfirmArgs;
use super::imports::ImportArgs;
use super::limit_arg::LimitArg;
use super::printer::{say, show};
use super::table;
use super::times::{TimeArg, zone_of};
use crate::clock;
use crate::domain::days::TimeZone;

/// `claimgate campaign …`
#[derive(Debug, Subcommand)]
pub enum CampaignCommand {
    /// Create a campaign; also succeeds if an identical one exists
    Create(Box<CreateArgs>),
    /// List all campaigns except those of drills and archived ones
    List(ListArgs),
    /// Show a campaign with its live counters
    Show(IdArgs),
    /// Change name, window, limits, hold or pass rule; omitted settings stay as they are
    Update(Box<UpdateArgs>),
    /// Create and change campaigns to match a file
    Apply(Box<ApplyArgs>),
    /// Add units to the total, or remove some
    Add(AddArgs),
    /// Pause a campaign: claims are denied until it is resumed
    Pause(IdArgs),
    /// Resume a paused campaign
    Resume(IdArgs),
    /// End a campaign permanently
    End(EndArgs),
    /// Archive an ended campaign: lists leave it out
    Archive(IdArgs),
    /// List an archived campaign again
    Unarchive(IdArgs),
    /// Import past claims from a CSV file; the campaign must be scheduled or paused
    Import(ImportArgs),
    /// Add codes to a campaign with codes, or count them
    #[command(subcommand)]
    Codes(CodesCommand),
}

/// A campaign, and the core to call.
#[derive(Debug, Args)]
pub struct IdArgs {
    /// The campaign's id
    id: CampaignId,
    #[command(flatten)]
    call: CallArgs,
}

/// `claimgate campaign list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Include archived campaigns and the scratch campaigns of `claimgate drill`
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    call: CallArgs,
}

/// `claimgate campaign end`
#[derive(Debug, Args)]
pub struct EndArgs {
    #[command(flatten)]
    campaign: IdArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

#[derive(Debug, Args)]
struct LimitArgs {
    /// Units in total, 0 for a campaign that starts empty, or "none" for no limit
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
    /// Returns the limits of a new campaign.
    fn limits(&self) -> Limits {
        Limits {
            total: self.total.and_then(|limit| limit.0),
            per_user: LimitArg::limit(self.per_user),
            per_user_per_day: LimitArg::limit(self.per_user_per_day),
            per_claim: LimitArg::limit(self.per_claim),
        }
    }

    /// Returns the given limits as the JSON body of an update.
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
#[command(
    after_help = "A time is '2026-12-01 08:00' or 'tomorrow 08:00' in the campaign's time zone, 2026-12-01T08:00:00+08:00, now, or \
        +10m from now."
)]
pub struct CreateArgs {
    /// The campaign's id: 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'
    id: CampaignId,
    /// Display name [default: the id]
    #[arg(long)]
    name: Option<String>,
    /// When it opens [default: now]
    #[arg(long, value_name = "TIME")]
    starts_at: Option<TimeArg>,
    /// When it closes [default: never]
    #[arg(long, value_name = "TIME")]
    ends_at: Option<TimeArg>,
    /// IANA time zone of the campaign's calendar days, and of the times read and shown
    #[arg(long, default_value = "UTC", value_name = "ZONE")]
    time_zone: TimeZone,
    /// Hold claims for this long until they are confirmed, or "none"
    #[arg(long, value_name = "SECONDS")]
    hold_seconds: Option<LimitArg>,
    /// Require a pass: "always", until a TIME (a presale), or "none"
    #[arg(long, value_name = "RULE")]
    pass: Option<PassArg>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Give each unit of a granted claim a code from this file, with one code per line: creates the campaign with
    /// total 0, adds the codes, and raises the total to --total
    #[arg(long, value_name = "FILE", requires = "total")]
    codes: Option<PathBuf>,
    /// Allow a campaign without --total, --per-user and --per-user-per-day
    #[arg(long)]
    unlimited: bool,
    #[command(flatten)]
    call: CallArgs,
}

/// `claimgate campaign update`
#[derive(Debug, Args)]
#[command(
    after_help = "A time is '2026-12-01 08:00' or 'tomorrow 08:00' in the campaign's time zone, 2026-12-01T08:00:00+08:00, now, or \
        +10m from now."
)]
pub struct UpdateArgs {
    /// The campaign's id
    id: CampaignId,
    /// The campaign's version that this change is based on [default: the current one]
    #[arg(long, value_parser = RangedI64ValueParser::<u64>::new().range(1..))]
    version: Option<u64>,
    /// Display name
    #[arg(long)]
    name: Option<String>,
    /// When it opens
    #[arg(long, value_name = "TIME")]
    starts_at: Option<TimeArg>,
    /// When it closes, or "none"
    #[arg(long, value_name = "TIME")]
    ends_at: Option<EndArg>,
    /// Hold claims made or extended from now on for this long until they are confirmed, or "none"
    #[arg(long, value_name = "SECONDS")]
    hold_seconds: Option<LimitArg>,
    /// Require a pass: "always", until a TIME (a presale), or "none"
    #[arg(long, value_name = "RULE")]
    pass: Option<PassArg>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// When claims need a pass.
#[derive(Debug, Clone, Copy)]
enum PassArg {
    None,
    Always,
    Until(TimeArg),
}

impl std::str::FromStr for PassArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "always" => Ok(Self::Always),
            time => Ok(Self::Until(time.parse()?)),
        }
    }
}

impl PassArg {
    fn rule(self, zone: &TimeZone, now: Timestamp) -> Result<Option<PassRule>, CallError> {
        match self {
            Self::None => Ok(None),
            Self::Always => Ok(Some(PassRule::Always)),
            Self::Until(time) => {
                let until = instant("--pass", Some(time), zone, now)?;
                Ok(until.map(|until| PassRule::Until { until }))
            }
        }
    }
}

/// When a campaign closes, or "none".
#[derive(Debug, Clone, Copy)]
struct EndArg(Option<TimeArg>);

impl std::str::FromStr for EndArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" { Ok(Self(None)) } else { Ok(Self(Some(text.parse()?))) }
    }
}

impl CampaignCommand {
    /// Runs the subcommand.
    pub async fn run(self) -> Result<(), CallError> {
        match self {
            Self::Create(args) => args.run().await,
            Self::List(args) => args.run().await,
            Self::Show(args) => args.run(async |core, id| core.admin.campaign(id).await).await,
            Self::Update(args) => args.run().await,
            Self::Apply(args) => args.run().await,
            Self::Add(args) => args.run().await,
            Self::Pause(args) => args.run(async |core, id| core.admin.pause(id).await).await,
            Self::Resume(args) => args.run(async |core, id| core.admin.resume(id).await).await,
            Self::End(args) => args.run().await,
            Self::Archive(args) => args.run(async |core, id| core.admin.archive(id).await).await,
            Self::Unarchive(args) => args.run(async |core, id| core.admin.unarchive(id).await).await,
            Self::Import(args) => args.run().await,
            Self::Codes(command) => command.run().await,
        }
    }
}

impl IdArgs {
    /// Runs a command that makes one call, and shows the campaign in the response.
    async fn run(
        &self,
        call: impl AsyncFnOnce(&Core, &CampaignId) -> Result<Answer<AdminView>, Error>,
    ) -> Result<(), CallError> {
        let core = Core::new(&self.call)?.about(&self.id);
        let campaign = core.call(call(&core, &self.id)).await?.json;
        show(self.call.json, &campaign, || table::campaign(&campaign))
    }
}

impl EndArgs {
    async fn run(self) -> Result<(), CallError> {
        let id = &self.campaign.id;
        self.confirm.confirm(&format!("this ends {id} permanently"), id.as_str())?;
        self.campaign.run(async |core, id| core.admin.end(id).await).await
    }
}

impl ListArgs {
    async fn run(self) -> Result<(), CallError> {
        let core = Core::new(&self.call)?;
        let mut campaigns = core.call(core.admin.campaigns()).await?.json;
        let mut left_out = Vec::new();
        if let Some(all) = campaigns.as_array_mut().filter(|_| !self.all) {
            let is_archived = |campaign: &Value| campaign["archived"] == Value::Bool(true);
            for (what, count) in [("drill", remove(all, is_drill)), ("archived", remove(all, is_archived))] {
                left_out.extend((count > 0).then(|| format!("{what} campaigns not listed: {count}")));
            }
        }
        show::<CallError>(self.call.json, &campaigns, || table::campaigns(&campaigns))?;
        if !left_out.is_empty() {
            say(&format_args!("{}; use --all to list them", left_out.join(", ")));
        }
        Ok(())
    }
}

/// Removes the campaigns for which `is_hidden` holds; returns how many.
fn remove(campaigns: &mut Vec<Value>, is_hidden: impl Fn(&Value) -> bool) -> usize {
    let before = campaigns.len();
    campaigns.retain(|campaign| !is_hidden(campaign));
    before - campaigns.len()
}

fn is_drill(campaign: &Value) -> bool {
    let text = |member: &str| campaign[member].as_str().unwrap_or_default();
    is_scratch(text("id"), text("name"))
}

impl CreateArgs {
    async fn run(self) -> Result<(), CallError> {
        let limits = self.limits.limits();
        self.check_unlimited(&limits)?;
        let codes = self.codes.as_deref().map(|file| codes::read_for(file, limits.total)).transpose()?;
        let core = Core::new(&self.call)?.about(&self.id);
        let now = clock::now();
        let campaign = NewCampaign {
            name: self.name.unwrap_or_else(|| self.id.to_string()),
            id: self.id,
            starts_at: instant("--starts-at", self.starts_at, &self.time_zone, now)?,
            ends_at: instant("--ends-at", self.ends_at, &self.time_zone, now)?,
            time_zone: self.time_zone.name().to_owned(),
            limits: if codes.is_some() { Limits { total: Some(0), ..limits } } else { limits },
            hold_seconds: LimitArg::limit(self.hold_seconds),
            pass: self.pass.map_or(Ok(None), |pass| pass.rule(&self.time_zone, now))?,
            codes: codes.is_some(),
        };
        let mut answer = core.call(core.admin.create(&campaign)).await?;
        if answer.replayed {
            say(&format_args!("{} already exists with the same settings", campaign.id));
        }
        if let Some(file) = codes {
            let added = codes::add(&core, &campaign.id, file).await?;
            say(&codes::text(&added));
            let found = core.call(core.admin.campaign(&campaign.id)).await?.json;
            let body = json!({"version": found["version"], "limits": {"total": limits.total}});
            answer = core.call(core.admin.change(&campaign.id, &body)).await?;
        }
        show_changed(&self.call, &answer.json)
    }

    /// Rejects a campaign without limits unless --unlimited is given: a forgotten flag must not create one.
    fn check_unlimited(&self, limits: &Limits) -> Result<(), CallError> {
        let bounded =
            limits.total.is_some() || limits.per_user.is_some() || limits.per_user_per_day.is_some();
        let problem = match (bounded, self.unlimited) {
            (true, false) | (false, true) => return Ok(()),
            (true, true) => {
                "--unlimited is for a campaign without --total, --per-user and --per-user-per-day"
            }
            (false, false) => {
                "no limit is given, so anyone could claim any number of units: give --total, --per-user or \
                 --per-user-per-day, or --unlimited if that is intended"
            }
        };
        Err(CallError::Usage(problem.to_owned()))
    }
}

impl UpdateArgs {
    async fn run(self) -> Result<(), CallError> {
        if !self.changes_something() {
            let problem = "nothing to change: give --name, --starts-at, --ends-at, --hold-seconds, --pass, --total, \
                           --per-user, --per-user-per-day or --per-claim";
            return Err(CallError::Usage(problem.to_owned()));
        }
        let core = Core::new(&self.call)?.about(&self.id);
        let found = core.call(core.admin.campaign(&self.id)).await?.json;
        let (zone, now) = (zone_of(&found), clock::now());
        let version = self.version.map_or_else(|| found["version"].clone(), |version| json!(version));
        let mut body = json!({"version": version, "limits": self.limits.json()});
        if let Some(name) = self.name {
            body["name"] = json!(name);
        }
        if let Some(starts_at) = instant("--starts-at", self.starts_at, &zone, now)? {
            body["starts_at"] = json!(starts_at);
        }
        if let Some(EndArg(ends_at)) = self.ends_at {
            body["ends_at"] = json!(instant("--ends-at", ends_at, &zone, now)?);
        }
        if let Some(LimitArg(hold_seconds)) = self.hold_seconds {
            body["hold_seconds"] = json!(hold_seconds);
        }
        if let Some(pass) = self.pass {
            body["pass"] = json!(pass.rule(&zone, now)?);
        }
        show_changed(&self.call, &core.call(core.admin.change(&self.id, &body)).await?.json)
    }

    fn changes_something(&self) -> bool {
        self.name.is_some()
            || self.starts_at.is_some()
            || self.ends_at.is_some()
            || self.hold_seconds.is_some()
            || self.pass.is_some()
            || !self.limits.json().is_empty()
    }
}

/// Converts the time given for `flag`, if any, to an instant.
fn instant(
    flag: &str,
    time: Option<TimeArg>,
    zone: &TimeZone,
    now: Timestamp,
) -> Result<Option<Timestamp>, CallError> {
    let instant = time.map(|time| time.instant(zone, now)).transpose();
    instant.map_err(|problem| CallError::Usage(format!("{flag}: {problem}")))
}
