//! The comparison of the campaigns of a file with the existing ones.

use claimgate_client::NewCampaign;
use claimgate_shared::{Timestamp, Window};
use serde_json::{Value, json};

use super::file::Wanted;
use super::yaml::Mistake;
use crate::cli::changed;
use crate::cli::table;
use crate::domain::campaign_change;
use crate::domain::codes::CodeStock;
use crate::domain::days::TimeZone;

/// The members that are compared, by path.
const MEMBERS: [&str; 11] = [
    "name",
    "starts_at",
    "ends_at",
    "time_zone",
    "limits.total",
    "limits.per_user",
    "limits.per_user_per_day",
    "limits.per_claim",
    "hold_seconds",
    "pass",
    "codes",
];

/// An existing campaign.
#[derive(Debug)]
pub struct Found {
    /// The admin's view.
    pub view: Value,
    /// Number of codes; 0 without codes.
    pub codes_added: u64,
}

/// The action for one campaign.
#[derive(Debug)]
pub enum Action {
    /// Create the campaign.
    Create,
    /// Send this change, which contains the version that it is based on.
    Change(Value),
    /// Send this change without effect, which core answers once Redis has the rules: the stored campaign matches the
    /// file.
    Keep(Value),
}

/// A member that differs.
#[derive(Debug, PartialEq)]
pub struct Change {
    /// The member's path.
    pub member: &'static str,
    /// The value of the existing campaign; `null` for a new one.
    pub before: Value,
    /// The value of the file.
    pub after: Value,
}

/// One campaign of the file with the action for it.
#[derive(Debug)]
pub struct Step {
    /// The campaign as the file has it.
    pub campaign: NewCampaign,
    /// The action.
    pub action: Action,
    /// The members that differ, or those of a new campaign.
    pub changes: Vec<Change>,
    /// Effects that are probably not intended.
    pub warnings: Vec<String>,
    zone: TimeZone,
}

impl Step {
    /// Compares a campaign of the file with the existing one, if any. `now` is the time of the run.
    ///
    /// # Errors
    /// Everything that core would reject.
    pub fn of(wanted: Wanted, found: Option<&Found>, now: Timestamp) -> Result<Self, Vec<Mistake>> {
        let Some(found) = found else { return Self::create(wanted, now).map_err(|mistake| vec![mistake]) };
        let changes = changes(&wanted, &found.view);
        let mut warnings = kept(&wanted, &found.view);
        let based_on = json!({"version": found.view["version"]});
        let mut action = Action::Keep(based_on.clone());
        if !changes.is_empty() {
            let after = with(found.view.clone(), &changes);
            let mistakes = mistakes(&wanted, found, &changes, &after);
            if !mistakes.is_empty() {
                return Err(mistakes);
            }
            warnings.extend(changed::warnings(&after, member_name));
            warnings.extend(changes.iter().filter_map(risk));
            warnings.extend(ending(&found.view, &after).map(str::to_owned));
            action = Action::Change(with(based_on, &changes));
        }
        Ok(Self { campaign: wanted.campaign, action, changes, warnings, zone: wanted.zone })
    }

    fn create(wanted: Wanted, now: Timestamp) -> Result<Self, Mistake> {
        if wanted.campaign.codes && wanted.campaign.limits.total.is_some_and(|total| total > 0) {
            let why = "a new campaign has no codes yet; use 0, add the codes, then raise the total";
            return Err(wanted.places.mistake("limits.total", why));
        }
        let campaign = json!(wanted.campaign);
        let body = campaign.to_string();
        let checked =
            campaign_change::NewCampaign::parse(body.as_bytes()).and_then(|new| new.created_at(now));
        if let Err(problem) = checked {
            return Err(wanted.places.rejected(&problem));
        }
        let is_shown = |after: &Value| !after.is_null() && *after != json!(false);
        let shown = MEMBERS.into_iter().map(|member| (member, value_of(&campaign, member).clone()));
        let shown = shown.map(|(member, after)| match member {
            "starts_at" if after.is_null() => (member, json!("now")),
            _ => (member, after),
        });
        let shown = shown.filter(|(_, after)| is_shown(after));
        Ok(Self {
            changes: shown.map(|(member, after)| Change { member, before: Value::Null, after }).collect(),
            warnings: changed::warnings(&campaign, member_name),
            campaign: wanted.campaign,
            action: Action::Create,
            zone: wanted.zone,
        })
    }

    /// Returns the step as lines for people.
    pub fn text(&self) -> String {
        let id = &self.campaign.id;
        let shown = |change: &Change, value: &Value| match change.member {
            "pass" => table::pass(value, &self.zone),
            _ => table::time_or(value, "none", &self.zone),
        };
        let mut lines = vec![match self.action {
            Action::Create => format!("{id}: create"),
            Action::Change(_) => format!("{id}: change"),
            Action::Keep(_) => format!("{id}: unchanged"),
        }];
        for change in &self.changes {
            let (member, after) = (change.member, shown(change, &change.after));
            lines.push(match self.action {
                Action::Create => format!("  {member}: {after}"),
                _ => format!("  {member}: {} -> {after}", shown(change, &change.before)),
            });
        }
        lines.extend(self.warnings.iter().map(|warning| format!("  warning: {warning}")));
        lines.join("\n")
    }

    /// Returns the step as JSON for programs.
    pub fn json(&self) -> Value {
        let action = match self.action {
            Action::Create => "create",
            Action::Change(_) => "change",
            Action::Keep(_) => "none",
        };
        let change = |change: &Change| {
            let Change { member, before, after } = change;
            json!({"member": member, "before": before, "after": after})
        };
        json!({
            "id": self.campaign.id,
            "action": action,
            "changes": self.changes.iter().map(change).collect::<Vec<_>>(),
            "warnings": self.warnings,
        })
    }
}

/// Returns the name of a limit in a file.
fn member_name(limit: &str) -> String {
    format!("limits.{limit}")
}

/// Returns the member of a campaign at `path`, `null` if it is absent.
fn value_of<'a>(campaign: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(campaign, |value, name| &value[name])
}

/// Returns `json` with the values after `changes`.
fn with(mut json: Value, changes: &[Change]) -> Value {
    for change in changes {
        *change.member.split('.').fold(&mut json, |value, name| &mut value[name]) = change.after.clone();
    }
    json
}

/// Returns the members that differ. A time that depends on the time of the run is not compared with another
/// time: otherwise every run would be a change.
fn changes(wanted: &Wanted, found: &Value) -> Vec<Change> {
    let campaign = json!(wanted.campaign);
    let change = |member: &'static str| {
        let [before, after] = [found, &campaign].map(|campaign| value_of(campaign, member).clone());
        (before != after && !is_kept(wanted, member, &before)).then_some(Change { member, before, after })
    };
    MEMBERS.into_iter().filter_map(change).collect()
}

/// Returns whether the existing value `before` of a member stays, whatever the file says.
fn is_kept(wanted: &Wanted, member: &str, before: &Value) -> bool {
    match member {
        "name" => !wanted.has_name,
        "starts_at" => wanted.campaign.starts_at.is_none() || wanted.relative.contains_key(member),
        "ends_at" => wanted.relative.contains_key(member) && !before.is_null(),
        "pass" => wanted.relative.contains_key("pass.until") && before["until"].is_string(),
        _ => false,
    }
}

/// Returns a sentence for each time of the file that is not applied to an existing campaign.
fn kept(wanted: &Wanted, found: &Value) -> Vec<String> {
    let kept = |(path, text): (&&str, &String)| {
        let member = path.split('.').next().unwrap_or_default();
        let before = value_of(found, path);
        is_kept(wanted, member, value_of(found, member)).then(|| {
            format!(
                "{path}: '{text}' depends on the time of the run, so it is only for a new campaign; {} stays",
                table::time_or(before, "none", &wanted.zone)
            )
        })
    };
    wanted.relative.iter().filter_map(kept).collect()
}

/// Returns everything that core would reject in these changes, after which the campaign would be `after`.
fn mistakes(wanted: &Wanted, found: &Found, changes: &[Change], after: &Value) -> Vec<Mistake> {
    let wrong = |path: &str, why: String| wanted.places.mistake(path, why);
    let mut mistakes = Vec::new();
    for Change { member, before, .. } in changes {
        match *member {
            "time_zone" => {
                mistakes.push(wrong(
                    member,
                    format!("is {} in the existing campaign and never changes", text(before)),
                ));
            }
            "codes" => {
                mistakes
                    .push(wrong(member, format!("is {before} in the existing campaign and never changes")));
            }
            _ => {}
        }
    }
    if found.view["import_unfinished"] == true {
        let why = "an import is unfinished; send the same file again to complete it, or end the campaign to abandon it";
        mistakes.push(wrong("id", why.to_owned()));
    }
    let time = |name: &str| after[name].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    if let Some(starts_at) = time("starts_at")
        && let Err(backwards) = Window::new(starts_at, time("ends_at"))
    {
        mistakes.push(wrong("ends_at", backwards.to_string()));
    }
    if found.view["codes"] == true
        && changes
            .iter()
            .any(|change| change.member == "limits.total" && raises(&change.before, &change.after))
    {
        let stock = CodeStock { added: found.codes_added, ..CodeStock::default() };
        if let Err(problem) = stock.check_total(wanted.campaign.limits.total) {
            mistakes.push(wanted.places.rejected(&problem));
        }
    }
    mistakes
}

/// Warns of a change that grants more than before, or fewer units.
fn risk(change: &Change) -> Option<String> {
    let Change { member, before, after } = change;
    match (*member, before.as_u64(), after.as_u64()) {
        ("limits.total", Some(_), None) => {
            Some("limits.total: the number of units becomes unlimited".to_owned())
        }
        ("limits.total", Some(before), Some(after)) if after < before => Some(format!(
            "limits.total: {} units fewer than now; if they were added with `claimgate campaign add`, raise the total \
             in the file",
            before - after
        )),
        ("hold_seconds", Some(_), None) => Some(
            "hold_seconds: claims are granted immediately from now on, without a confirmation".to_owned(),
        ),
        _ => None,
    }
}

/// Returns whether a total is raised; `null` is the highest.
fn raises(before: &Value, after: &Value) -> bool {
    let total = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
    total(after) > total(before)
}

/// Warns if the changes end a campaign, or cannot open one.
fn ending(found: &Value, after: &Value) -> Option<&'static str> {
    let ends_by = |campaign: &Value, now: Timestamp| {
        let end = campaign["ends_at"].as_str().and_then(|text| text.parse().ok());
        end.is_some_and(|end: Timestamp| end <= now)
    };
    let now: Timestamp = found["server_time"].as_str()?.parse().ok()?;
    match found["state"].as_str()? {
        "ended" if ends_by(found, now) => None,
        "ended" => Some("the campaign was ended permanently; these changes do not open it"),
        _ => (ends_by(after, now) && !ends_by(found, now))
            .then_some("this ends the campaign: claims are denied from now on"),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
