//! `claimgate campaign apply`: creates and changes campaigns so that they are as in a file.
//!
//! The file is read and checked completely, then compared with the existing campaigns, before the first
//! change is made. Each change is based on the version that was compared. So a campaign that another caller
//! changes in the meantime stays as that caller left it.

mod file;
mod plan;
mod yaml;

use std::path::PathBuf;

use claimgate_client::{Answer, Error};
use claimgate_shared::Code;
use claimgate_shared::admin::AdminView;
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
use super::printer::{print_json, print_text, say};
use crate::clock;

/// Maximum size of a file.
const BYTES_MAX: usize = 1 << 20;

/// `claimgate campaign apply`
#[derive(Debug, Args)]
#[command(
    after_help = "The file has one campaign or a list of campaigns, with the members of the admin API's create: id, name, \
        starts_at, ends_at, time_zone, limits (total, per_user, per_user_per_day, per_claim), hold_seconds, pass and \
        codes. A time is written as for `campaign create`. A mistake in any campaign changes nothing.\n\n\
        Exit status: 0 all campaigns are as in the file; 1 some are not, because core denied it, another caller changed \
        them in the meantime, or the question was not answered with yes, and with --dry-run because something would \
        change; 2 a mistake in the file or wrong usage; 3 unavailable: run the command again."
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

/// What became of one campaign.
#[derive(Debug)]
enum Outcome {
    /// The campaign is as in the file, and core answered this unless nothing was to be done.
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
        if !self.call.json {
            let text: Vec<_> = steps.iter().map(Step::text).collect();
            print_text(&text.join("\n"))?;
        }
        let differing = steps.iter().filter(|step| !matches!(step.action, Action::Keep)).count();
        if differing > 0 && !self.dry_run {
            self.confirm.ask(&question(&steps), "yes")?;
        }
        let outcomes = if self.dry_run { none_tried(&steps) } else { carry_out(&core, &steps).await };
        self.report(&steps, &outcomes)
    }

    /// Reads the campaigns of the file.
    fn wanted(&self) -> Result<Vec<Wanted>, CallError> {
        let too_large = "is larger than 1 MiB; split it";
        let content = input::read(&self.file, BYTES_MAX, too_large)?;
        let name = input::name_of(&self.file);
        let text =
            String::from_utf8(content).map_err(|_| CallError::Usage(format!("{name}: is not in UTF-8")))?;
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
        if mistakes.is_empty() { Ok(steps) } else { Err(CallError::NotDone(self.refused(&mistakes))) }
    }

    /// Prints all mistakes, and returns the reason why nothing was changed.
    fn refused(&self, mistakes: &[Mistake]) -> String {
        let name = input::name_of(&self.file);
        for mistake in mistakes {
            say(&format_args!("{name}:{mistake}"));
        }
        format!("nothing was changed; mistakes in {name}: {}", mistakes.len())
    }

    /// Prints what became of the campaigns; fails unless all are as in the file.
    fn report(&self, steps: &[Step], outcomes: &[Outcome]) -> Result<(), CallError> {
        let results: Vec<_> = steps.iter().zip(outcomes).collect();
        if self.call.json {
            let campaigns: Vec<_> = results.iter().map(|(step, outcome)| outcome.json(step)).collect();
            print_json(&json!({"dry_run": self.dry_run, "campaigns": campaigns}))?;
        } else {
            let lines: Vec<_> = results.iter().filter_map(|(step, outcome)| outcome.text(step)).collect();
            if !lines.is_empty() {
                print_text(&lines.join("\n"))?;
            }
        }
        let left = outcomes.iter().filter(|outcome| !matches!(outcome, Outcome::Done(_))).count();
        let all = steps.len();
        for (step, outcome) in &results {
            if let Outcome::Failed(error) = outcome {
                say(&format_args!("{}: {}", step.campaign.id, reason(error)));
            }
        }
        match (left, self.dry_run) {
            (0, _) => Ok(()),
            (_, true) => Err(CallError::NotDone(format!(
                "nothing was changed; campaigns that differ: {left} of {all}"
            ))),
            (_, false) => {
                let problem = format!("campaigns that are not as in the file: {left} of {all}");
                let is_down = outcomes.iter().any(Outcome::is_unavailable);
                Err(if is_down { CallError::Unavailable(problem) } else { CallError::NotDone(problem) })
            }
        }
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

/// Returns what will be done, for the question.
fn question(steps: &[Step]) -> String {
    let count =
        |is_counted: fn(&Action) -> bool| steps.iter().filter(|step| is_counted(&step.action)).count();
    let created = count(|action| matches!(action, Action::Create));
    let changed = count(|action| matches!(action, Action::Change(_)));
    format!("campaigns to create: {created}, to change: {changed}")
}

/// Returns the outcomes of a run that changes nothing.
fn none_tried(steps: &[Step]) -> Vec<Outcome> {
    let outcome = |step: &Step| match step.action {
        Action::Keep => Outcome::Done(None),
        Action::Create | Action::Change(_) => Outcome::NotTried,
    };
    steps.iter().map(outcome).collect()
}

/// Creates and changes the campaigns one after another. Continues after a rejection, but not after a core that is
/// unavailable.
async fn carry_out(core: &Core, steps: &[Step]) -> Vec<Outcome> {
    let mut outcomes = none_tried(steps);
    for (step, outcome) in steps.iter().zip(&mut outcomes) {
        *outcome = match &step.action {
            Action::Keep => continue,
            Action::Create => Outcome::of(core.admin.create(&step.campaign).await),
            Action::Change(change) => Outcome::of(core.admin.change(&step.campaign.id, change).await),
        };
        if outcome.is_unavailable() {
            break;
        }
    }
    outcomes
}

impl Outcome {
    fn of(answer: Result<Answer<AdminView>, Error>) -> Self {
        match answer {
            Ok(answer) => Self::Done(Some(answer.json)),
            Err(error) => Self::Failed(error),
        }
    }

    /// Returns whether core could not be reached, or could not decide.
    fn is_unavailable(&self) -> bool {
        matches!(self, Self::Failed(error) if status_of(error) == UNAVAILABLE)
    }

    /// Returns the outcome of `step` as a line for people; `None` if there is nothing to say.
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
            Self::Failed(error) => error
                .problem()
                .map_or_else(|| json!({"detail": error.to_string()}), |problem| problem.json.clone()),
            _ => Value::Null,
        };
        json
    }
}

/// Returns what is wrong with a campaign that could not be created or changed.
fn reason(error: &Error) -> String {
    if error.is(Code::VersionConflict) {
        let version = error.problem().map_or(Value::Null, |problem| problem.json["version"].clone());
        return format!(
            "another caller changed it in the meantime (version_conflict, now version {version}); this run did not change \
             it; run the command again to see the difference"
        );
    }
    if status_of(error) == UNAVAILABLE {
        return format!("{error}; the change may have been made; run the command again");
    }
    format!("{error}; it was not changed")
}
