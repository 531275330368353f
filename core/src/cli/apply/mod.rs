//! `claimgate campaign apply`: makes campaigns match a file.
//!
//! The file is read and checked completely, then compared with the existing campaigns, before the first
//! change is made. Each change is based on the version that was compared. So a campaign that another caller
//! changes in the meantime stays as that caller left it.

mod file;
mod plan;
mod yaml;

use std::path::PathBuf;

use claimgate_client::Error;
use claimgate_shared::Code;
use clap::Args;
use serde_json::{Value, json};

use self::file::Wanted;
use self::plan::{Action, Found, Step};
use self::yaml::Mistake;
use super::call_args::CallArgs;
use super::client::{CallError, Core, status_of};
use super::confirmation::ConfirmArgs;
use super::exit_status::UNAVAILABLE;
use super::input;
use super::printer::{print_before_question, print_json, print_text, say};
use crate::clock;

/// The result of a failed call on a campaign that matches the file.
const NOT_CONFIRMED: &str =
    "it is stored as in the file, but Redis may have its former rules; run the command again";

/// Maximum size of a file.
const BYTES_MAX: usize = 1 << 20;

/// `claimgate campaign apply`
#[derive(Debug, Args)]
#[command(
    after_help = "The file has one campaign or a list of campaigns, with the members of the admin API's create: id, name, \
        starts_at, ends_at, time_zone, limits (total, per_user, per_user_per_day, per_claim), hold_seconds, pass and \
        codes. A time is written as for `campaign create`. A mistake in any campaign changes nothing.\n\n\
        Exit status: 0 all campaigns match the file, and Redis has their rules; 1 some do not, because core denied the \
        change, another caller changed them in the meantime (run the command again), or the question was not answered \
        with yes, and with --dry-run because something would change; 2 a mistake in the file or wrong usage; 3 \
        unavailable, or Redis may have former rules: run the command again."
)]
pub struct ApplyArgs {
    /// The file, YAML or JSON, at most 1 MiB; - reads standard input
    file: PathBuf,
    /// Print what would be created and changed, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// The outcome for one campaign.
#[derive(Debug)]
enum Outcome {
    /// The campaign matches the file. Contains core's response to the change, if there was one.
    Done(Option<Value>),
    /// Core answered with an error, or did not answer.
    Failed(Error),
    /// Nothing was sent.
    NotTried,
}

impl ApplyArgs {
    /// Compares the campaigns of the file with the existing ones, asks, and makes the changes.
    pub async fn run(self) -> Result<(), CallError> {
        let wanted = self.wanted()?;
        let core = Core::new(&self.call)?;
        let steps = self.steps(&core, wanted).await?;
        let text = steps.iter().map(Step::text).collect::<Vec<_>>().join("\n");
        if !self.call.json {
            print_text(&text)?;
        }
        let is_different = steps.iter().any(|step| !matches!(step.action, Action::Keep(_)));
        if is_different && !self.dry_run {
            if self.call.json && self.confirm.will_ask() {
                print_before_question(&text);
            }
            self.confirm.ask(&question(&steps), "yes")?;
        }
        let outcomes = if self.dry_run { preview(&steps) } else { self.carry_out(&core, &steps).await? };
        self.finish(&steps, &outcomes)
    }

    /// Reads the campaigns of the file.
    fn wanted(&self) -> Result<Vec<Wanted>, CallError> {
        let too_large = "is larger than 1 MiB; split it";
        let content = input::read(&self.file, BYTES_MAX, too_large)?;
        let name = input::name_of(&self.file);
        let text = String::from_utf8(content)
            .map_err(|_| CallError::Usage(format!("{name}: is not in UTF-8; save it as UTF-8")))?;
        let root = yaml::parse(&text).and_then(|root| root.ok_or_else(|| Mistake::at(1, "is empty")));
        let wanted =
            root.map_err(|mistake| vec![mistake]).and_then(|root| file::campaigns(&root, clock::now()));
        wanted.map_err(|mistakes| CallError::Usage(self.refused(&mistakes)))
    }

    /// Compares the campaigns with the existing ones.
    async fn steps(&self, core: &Core, wanted: Vec<Wanted>) -> Result<Vec<Step>, CallError> {
        let now = clock::now();
        let (mut steps, mut mistakes) = (Vec::new(), Vec::new());
        for wanted in wanted {
            let found = existing(core, &wanted).await?;
            match Step::of(wanted, found.as_ref(), now) {
                Ok(step) => steps.push(step),
                Err(wrong) => mistakes.extend(wrong),
            }
        }
        if mistakes.is_empty() { Ok(steps) } else { Err(CallError::Usage(self.refused(&mistakes))) }
    }

    /// Prints all mistakes, and returns the reason why nothing was changed.
    fn refused(&self, mistakes: &[Mistake]) -> String {
        let name = input::name_of(&self.file);
        for mistake in mistakes {
            say(&format_args!("{name}:{mistake}"));
        }
        format!("nothing was changed; mistakes in {name}: {}", mistakes.len())
    }

    /// Creates, changes and confirms the campaigns one after another, and prints each outcome immediately. Continues
    /// after a rejection and after a campaign that is not ready, but not after a core that is unavailable.
    async fn carry_out(&self, core: &Core, steps: &[Step]) -> Result<Vec<Outcome>, CallError> {
        let mut outcomes = Vec::new();
        let mut is_down = false;
        for step in steps {
            let outcome = if is_down { Outcome::NotTried } else { Outcome::of(core, step).await };
            self.print(step, &outcome)?;
            is_down = is_down || outcome.is_unavailable() && !outcome.is_not_ready();
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// Prints the outcome of `step`: a failure on standard error, anything else only without --json.
    fn print(&self, step: &Step, outcome: &Outcome) -> Result<(), CallError> {
        if let Some(reason) = outcome.reason(step) {
            say(&format_args!("{}: {reason}", step.campaign.id));
        }
        match outcome.text(step) {
            Some(line) if !self.call.json => Ok(print_text(&line)?),
            _ => Ok(()),
        }
    }

    /// Prints the JSON, if requested; fails unless all campaigns match the file.
    fn finish(&self, steps: &[Step], outcomes: &[Outcome]) -> Result<(), CallError> {
        if self.call.json {
            let campaigns: Vec<_> =
                steps.iter().zip(outcomes).map(|(step, outcome)| outcome.json(step)).collect();
            print_json(&json!({"dry_run": self.dry_run, "campaigns": campaigns}))?;
        }
        let left = outcomes.iter().filter(|outcome| !matches!(outcome, Outcome::Done(_))).count();
        let all = steps.len();
        if left == 0 {
            return Ok(());
        }
        if self.dry_run {
            let problem = format!("nothing was changed; campaigns that differ: {left} of {all}");
            return Err(CallError::NotDone(problem));
        }
        let problem = format!("campaigns that do not match the file: {left} of {all}");
        let is_down = outcomes.iter().any(Outcome::is_unavailable);
        Err(if is_down { CallError::Unavailable(problem) } else { CallError::NotDone(problem) })
    }
}

/// Reads a campaign, with the number of its codes; `None` if there is no such campaign.
async fn existing(core: &Core, wanted: &Wanted) -> Result<Option<Found>, CallError> {
    let id = &wanted.campaign.id;
    let view = match core.admin.campaign(id).await {
        Err(error) if error.is(Code::CampaignNotFound) => return Ok(None),
        answer => core.call(async { answer }).await?.json,
    };
    let codes_added = if view["codes"] == true {
        core.call(core.admin.codes(id)).await?.json["added"].as_u64().unwrap_or_default()
    } else {
        0
    };
    Ok(Some(Found { view, codes_added }))
}

/// Returns the numbers of campaigns to create and change, for the question.
fn question(steps: &[Step]) -> String {
    let count =
        |is_counted: fn(&Action) -> bool| steps.iter().filter(|step| is_counted(&step.action)).count();
    let created = count(|action| matches!(action, Action::Create));
    let changed = count(|action| matches!(action, Action::Change(_)));
    format!("campaigns to create: {created}, to change: {changed}")
}

/// Returns the outcomes of a dry run. Whether Redis has the rules is not checked.
fn preview(steps: &[Step]) -> Vec<Outcome> {
    let outcome = |step: &Step| match step.action {
        Action::Keep(_) => Outcome::Done(None),
        Action::Create | Action::Change(_) => Outcome::NotTried,
    };
    steps.iter().map(outcome).collect()
}

impl Outcome {
    /// Creates or changes the campaign of `step`. If it matches the file, confirms that Redis has its rules.
    async fn of(core: &Core, step: &Step) -> Self {
        let id = &step.campaign.id;
        let answer = match &step.action {
            Action::Create => core.admin.create(&step.campaign).await,
            Action::Change(change) | Action::Keep(change) => core.admin.change(id, change).await,
        };
        match answer {
            Ok(_) if matches!(step.action, Action::Keep(_)) => Self::Done(None),
            Ok(answer) => Self::Done(Some(answer.json)),
            Err(error) => Self::Failed(error),
        }
    }

    /// Returns whether core could not be reached or could not decide, or Redis may not have the rules.
    fn is_unavailable(&self) -> bool {
        matches!(self, Self::Failed(error) if status_of(error) == UNAVAILABLE)
    }

    /// Returns whether only this campaign is not ready in Redis.
    fn is_not_ready(&self) -> bool {
        matches!(self, Self::Failed(error) if error.is(Code::CampaignNotReady))
    }

    /// Returns the outcome of `step` as a line for people; `None` if nothing was created or changed.
    fn text(&self, step: &Step) -> Option<String> {
        let Self::Done(Some(campaign)) = self else { return None };
        let done = if matches!(step.action, Action::Create) { "created" } else { "changed" };
        Some(format!("{}: {done}, version {}", step.campaign.id, campaign["version"]))
    }

    /// Returns `step` with its outcome for programs.
    fn json(&self, step: &Step) -> Value {
        let mut json = step.json();
        json["done"] = json!(matches!(self, Self::Done(_)));
        json["version"] = match self {
            Self::Done(Some(campaign)) => campaign["version"].clone(),
            _ => Value::Null,
        };
        json["problem"] = match self {
            Self::Failed(Error::Problem(problem)) => problem.json.clone(),
            Self::Failed(error) => json!({"detail": error.to_string()}),
            Self::Done(_) | Self::NotTried => Value::Null,
        };
        json
    }

    /// Returns the reason why the campaign of `step` does not match the file; `None` if it does, or was not tried.
    fn reason(&self, step: &Step) -> Option<String> {
        match self {
            Self::Failed(error) => Some(reason(error, &step.action)),
            Self::Done(_) | Self::NotTried => None,
        }
    }
}

/// Returns the reason why `action` failed.
fn reason(error: &Error, action: &Action) -> String {
    if error.is(Code::VersionConflict) {
        let version = error.problem().map_or(Value::Null, |problem| problem.json["version"].clone());
        return format!(
            "another caller changed it in the meantime (version_conflict, now version {version}); this run did not change \
             it; run the command again to see the difference"
        );
    }
    let is_unavailable = status_of(error) == UNAVAILABLE;
    let may_be_done = is_unavailable && !matches!(error, Error::NoAnswer { sent: false, .. });
    let result = match action {
        Action::Keep(_) if is_unavailable => NOT_CONFIRMED,
        Action::Create if may_be_done => "the campaign may have been created; run the command again",
        Action::Change(_) if may_be_done => "the change may have been made; run the command again",
        Action::Create => "nothing was created",
        Action::Change(_) | Action::Keep(_) => "it was not changed",
    };
    format!("{error}; {result}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_not_sent_changed_nothing() {
        let error =
            |sent: bool| Error::NoAnswer { address: "core".to_owned(), why: "refused".to_owned(), sent };
        let change = || Action::Change(Value::Null);
        for (sent, action, result) in [
            (false, Action::Create, "nothing was created"),
            (false, change(), "it was not changed"),
            (false, Action::Keep(Value::Null), NOT_CONFIRMED),
            (true, Action::Create, "the campaign may have been created; run the command again"),
            (true, change(), "the change may have been made; run the command again"),
        ] {
            assert_eq!(reason(&error(sent), &action), format!("no answer from core: refused; {result}"));
        }
    }
}
