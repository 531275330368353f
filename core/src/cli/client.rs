//! The client of the core that a command calls.

use std::time::Duration;

use claimgate_client::{Admin, Answer, Error, Internal, Problem, Retries};
use claimgate_shared::{CampaignId, Code, Timestamp};
use tokio::time::timeout;

use super::call_args::CallArgs;
use super::exit_status::{REFUSED, UNAVAILABLE, USAGE};
use super::printer::{print_json, say};
use super::times::{shown, zone_of};
use crate::config::{self, ConfigError, Secrets};
use crate::domain::days::TimeZone;
use crate::nearest::{nearest, suggestion};

/// Retry period for repeatable calls with an unknown outcome. Short, because a person waits.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Time limit for reading all campaigns' ids to suggest a similar one.
const IDS_WAIT: Duration = Duration::from_secs(2);

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Invalid configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Invalid command-line usage.
    #[error("{0}")]
    Usage(String),
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] std::io::Error),
    /// Redis and SQL do not agree.
    #[error("Redis and SQL do not agree")]
    Differs,
    /// The command was not carried out.
    #[error("{0}")]
    NotDone(String),
    /// Redis or SQL is unavailable.
    #[error("{0}")]
    Unavailable(String),
    /// Core answered with a problem or could not be reached.
    #[error("{0}{hint}", hint = hint(.0))]
    Call(#[from] Error),
    /// Core answered with a problem; the text explains it in more detail.
    #[error("{0}")]
    Refused(String, Box<Problem>),
}

/// Returns a likely cause if there was no response.
fn hint(error: &Error) -> &'static str {
    match error {
        Error::NoAnswer { .. } => "; is `claimgate serve` running there?",
        Error::Problem(_) | Error::Unread(_) | Error::Setup(_) => "",
    }
}

impl CallError {
    /// Returns the command's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage(_) | Self::Output(_) => USAGE,
            Self::Call(error) => status_of(error),
            Self::Refused(_, problem) => status_of_problem(problem),
            Self::Differs | Self::NotDone(_) => REFUSED,
            Self::Unavailable(_) => UNAVAILABLE,
        }
    }
}

/// Returns the exit status of a command whose call failed.
pub fn status_of(error: &Error) -> u8 {
    match error {
        Error::Problem(problem) => status_of_problem(problem),
        Error::Setup(_) => USAGE,
        Error::NoAnswer { .. } | Error::Unread(_) => UNAVAILABLE,
    }
}

fn status_of_problem(problem: &Problem) -> u8 {
    match problem.status.as_u16() {
        400 | 401 | 413 | 415 => USAGE,
        408 | 500.. => UNAVAILABLE,
        _ => REFUSED,
    }
}

/// A running core.
#[derive(Debug)]
pub struct Core {
    /// Client of core's internal API.
    pub internal: Internal,
    /// Client of core's admin API.
    pub admin: Admin,
    json: bool,
    /// The campaign that the command is about, if any.
    campaign: Option<CampaignId>,
}

impl Core {
    /// Creates a client of the core that `args` name, with this machine's admin token.
    pub fn new(args: &CallArgs) -> Result<Self, CallError> {
        let token = admin_token(args)?;
        let retries = Retries { timeout: RETRY_MAX, before: retries };
        Ok(Self {
            internal: Internal::new(&format!("http://{}", args.listen.trim()), &token)?.with_retries(retries),
            admin: Admin::new(&format!("http://{}", args.admin_listen.trim()), &token)?.with_retries(retries),
            json: args.json,
            campaign: None,
        })
    }

    /// Sets the campaign that the command is about, if any. Problems then suggest a similar id, and show
    /// times in the campaign's time zone.
    pub fn about<'a>(self, id: impl Into<Option<&'a CampaignId>>) -> Self {
        Self { campaign: id.into().cloned(), ..self }
    }

    /// Waits for the response of a call to this core. With --json a problem is also printed as core sent it.
    pub async fn call<T>(
        &self,
        call: impl Future<Output = Result<Answer<T>, Error>>,
    ) -> Result<Answer<T>, CallError> {
        match call.await {
            Err(Error::Problem(problem)) => {
                if self.json {
                    print_json(&problem.json)?;
                }
                Err(match self.explained(&problem).await {
                    Some(text) => CallError::Refused(text, problem),
                    None => Error::Problem(problem).into(),
                })
            }
            answer => Ok(answer?),
        }
    }

    /// Returns the time zone for times of the command's campaign: UTC with --json, or if core does not return it.
    pub async fn zone(&self) -> TimeZone {
        match &self.campaign {
            Some(id) if !self.json => {
                let campaign = self.internal.campaign(id).await;
                campaign.map(|campaign| zone_of(&campaign.json)).unwrap_or_default()
            }
            _ => TimeZone::default(),
        }
    }

    /// Explains the problem with a suggested id, or with times in the campaign's zone; `None` if there is
    /// nothing to add.
    async fn explained(&self, problem: &Problem) -> Option<String> {
        let id = self.campaign.as_ref()?;
        if problem.code == Code::CampaignNotFound.as_str() {
            let suggested = self.nearest(id).await.map_or_else(String::new, |near| suggestion(&near));
            let Problem { title, code, .. } = problem;
            return Some(format!("{title} ({code}): there is no campaign {id}{suggested}"));
        }
        let text = problem.to_string();
        let members = ["starts_at", "resets_at"].into_iter();
        let time = members.filter_map(|name| problem.json[name].as_str()).find(|time| text.contains(time))?;
        let at: Timestamp = time.parse().ok()?;
        Some(text.replace(time, &shown(at, &self.zone().await)))
    }

    /// Returns the existing campaign id most similar to `id`, if core answers in time.
    async fn nearest(&self, id: &CampaignId) -> Option<String> {
        let all = timeout(IDS_WAIT, self.admin.campaigns()).await.ok()?.ok()?.json;
        let ids = all.as_array()?.iter().filter_map(|campaign| campaign["id"].as_str());
        nearest(id.as_str(), ids).map(str::to_owned)
    }
}

/// Reports the first retry. A core that cannot be reached is not called again: usually none is running there.
fn retries(error: &Error, retry: u32) -> bool {
    if matches!(error, Error::NoAnswer { sent: false, .. }) {
        return false;
    }
    if retry == 1 {
        say(&format_args!("{error}; retrying for at most {} s", RETRY_MAX.as_secs()));
    }
    true
}

/// Returns this machine's admin token from the environment or else from the data directory; never generates one.
pub fn admin_token(args: &CallArgs) -> Result<String, CallError> {
    let data_dir = &args.data.data_dir;
    if config::env_var("CLAIMGATE_ADMIN_TOKEN").is_none()
        && config::env_var("CLAIMGATE_ADMIN_TOKEN_FILE").is_none()
        && !data_dir.join("admin.token").is_file()
    {
        let problem = format!(
            "no admin.token in {}; set CLAIMGATE_DATA_DIR or CLAIMGATE_ADMIN_TOKEN",
            data_dir.display()
        );
        return Err(CallError::Usage(problem));
    }
    Ok(Secrets::of(data_dir).admin_token()?)
}
