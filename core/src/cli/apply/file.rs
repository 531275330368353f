//! The campaigns of a file: the members of the admin API's create, with times as the flags take them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::slice;
use std::str::FromStr;

use claimgate_client::NewCampaign;
use claimgate_shared::{CampaignId, Limits, PassRule, Problem, Timestamp};

use super::yaml::{Content, Mistake, Node};
use crate::cli::limit_arg::LimitArg;
use crate::cli::times::TimeArg;
use crate::domain::campaign_change;
use crate::domain::codes::PER_CLAIM_MAX;
use crate::domain::days::TimeZone;
use crate::nearest::{nearest, suggestion};

const MEMBERS: [&str; 9] =
    ["id", "name", "starts_at", "ends_at", "time_zone", "limits", "hold_seconds", "pass", "codes"];
const LIMITS: [&str; 4] = ["total", "per_user", "per_user_per_day", "per_claim"];
const PASS: [&str; 2] = ["required", "until"];

/// The members that may be none.
const OPTIONAL: [&str; 8] = [
    "starts_at",
    "ends_at",
    "hold_seconds",
    "pass",
    "limits.total",
    "limits.per_user",
    "limits.per_user_per_day",
    "limits.per_claim",
];

/// Maximum number of characters of a name or value in a message.
const SHOWN_MAX: usize = 80;

/// A campaign as the file has it.
#[derive(Debug)]
pub struct Wanted {
    /// The campaign. A member that the file lacks has the default of a new campaign.
    pub campaign: NewCampaign,
    /// Whether the file has the name: otherwise an existing campaign keeps its own.
    pub has_name: bool,
    /// The time zone.
    pub zone: TimeZone,
    /// The time members whose instant depends on the time of the run, each with its text.
    pub relative: BTreeMap<&'static str, String>,
    /// The positions of the members.
    pub places: Places,
}

/// The positions of a campaign's members in the file, for messages.
#[derive(Debug, Default)]
pub struct Places {
    /// The campaign's id, or its number in the file if the id is missing or malformed.
    campaign: String,
    line: usize,
    /// The line of each member by its path, and its text if messages show it.
    members: BTreeMap<String, (usize, Option<String>)>,
}

impl Places {
    /// Creates the mistake of the member at `path`, with the member's line and text. An absent member has the line of
    /// its object.
    pub fn mistake(&self, path: &str, why: impl Display) -> Mistake {
        let parent = path.rsplit_once('.').and_then(|(parent, _)| self.members.get(parent));
        let missing = (parent.map_or(self.line, |(line, _)| *line), None);
        let (line, text) = self.members.get(path).cloned().unwrap_or(missing);
        let text = text.map(|text| format!("'{}': ", shown(&text))).unwrap_or_default();
        Mistake::at(line, format!("{}: {}: {text}{why}", self.campaign, shown(path)))
    }

    /// Creates the mistake of a value that core's own check rejects. A problem without a field is about the total.
    pub fn rejected(&self, problem: &Problem) -> Mistake {
        let path = problem.extensions.field.as_deref().unwrap_or("limits.total");
        let why = problem.detail.strip_prefix(&format!("{path}: ")).unwrap_or(&problem.detail);
        self.mistake(path, why)
    }
}

/// Returns a text of the file for a message: shortened, and with control characters escaped.
fn shown(text: &str) -> String {
    let mut chars = text.chars();
    let mut shown = String::new();
    for char in chars.by_ref().take(SHOWN_MAX) {
        match char {
            '\'' | '"' | '\\' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Reads the campaigns of a file; `now` is the time of the run.
///
/// # Errors
/// All mistakes, in the order of their lines.
pub fn campaigns(root: &Node, now: Timestamp) -> Result<Vec<Wanted>, Vec<Mistake>> {
    let entries = match &root.content {
        Content::List(items) => items.as_slice(),
        _ => slice::from_ref(root),
    };
    let (mut found, mut mistakes) = (Vec::new(), Vec::new());
    for (number, entry) in (1..).zip(entries) {
        match Reader::of(entry, number, now).read(entry) {
            Ok(wanted) => found.push(wanted),
            Err(wrong) => mistakes.extend(wrong),
        }
    }
    if entries.is_empty() {
        mistakes.push(Mistake::at(root.line, "the list has no campaigns"));
    }
    let mut ids = BTreeSet::new();
    for Wanted { campaign, places, .. } in &found {
        if !ids.insert(&campaign.id) {
            mistakes.push(places.mistake("id", "is in the file twice"));
        }
    }
    if mistakes.is_empty() {
        return Ok(found);
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    Err(mistakes)
}

/// Reads one campaign, and collects its mistakes.
#[derive(Debug)]
struct Reader {
    places: Places,
    zone: TimeZone,
    now: Timestamp,
    relative: BTreeMap<&'static str, String>,
    mistakes: Vec<Mistake>,
}

impl Reader {
    fn of(entry: &Node, number: usize, now: Timestamp) -> Self {
        let members = match &entry.content {
            Content::Object(members) => members.as_slice(),
            _ => &[],
        };
        let id = members.iter().find(|member| member.name == "id");
        let id: Option<CampaignId> = match id.map(|id| &id.value.content) {
            Some(Content::Scalar(text)) => text.parse().ok(),
            _ => None,
        };
        let campaign = id.map_or_else(|| format!("campaign {number}"), |id| id.to_string());
        Self {
            places: Places { campaign, line: entry.line, members: BTreeMap::new() },
            zone: TimeZone::default(),
            now,
            relative: BTreeMap::new(),
            mistakes: Vec::new(),
        }
    }

    fn read(mut self, entry: &Node) -> Result<Wanted, Vec<Mistake>> {
        if !matches!(entry.content, Content::Object(_)) {
            let why = format!("{}: must be an object with id, name, limits and so on", self.places.campaign);
            return Err(vec![Mistake::at(entry.line, why)]);
        }
        let members = self.members("", entry, &MEMBERS);
        self.zone = self.parsed("time_zone", members.get("time_zone").copied()).unwrap_or_default();
        let id: Option<CampaignId> = self.parsed("id", members.get("id").copied());
        let is_missing = match members.get("id") {
            Some(id) => id.content == Content::Null,
            // Another mistake may be the reason why the id was not read.
            None => !self.places.members.contains_key("id"),
        };
        if is_missing {
            self.wrong("id", "is missing");
        }
        let name = members.get("name").and_then(|name| self.text("name", name));
        let codes = members.get("codes").is_some_and(|codes| self.boolean("codes", codes));
        let limits = self.limits(members.get("limits").copied(), codes);
        let hold_seconds = LimitArg::limit(self.number("hold_seconds", members.get("hold_seconds").copied()));
        let starts_at = self.time("starts_at", members.get("starts_at").copied());
        let ends_at = self.time("ends_at", members.get("ends_at").copied());
        let pass = members.get("pass").and_then(|pass| self.pass(pass));
        self.check_bounded(&limits);
        let Some(id) = id.filter(|_| self.mistakes.is_empty()) else { return Err(self.mistakes) };
        let has_name = name.is_some();
        let campaign = NewCampaign {
            name: name.unwrap_or_else(|| id.to_string()),
            id,
            starts_at,
            ends_at,
            time_zone: self.zone.name().to_owned(),
            limits,
            hold_seconds,
            pass,
            codes,
        };
        let Self { zone, relative, places, .. } = self;
        let wanted = Wanted { campaign, has_name, zone, relative, places };
        match check(&wanted) {
            Ok(()) => Ok(wanted),
            Err(mistake) => Err(vec![mistake]),
        }
    }

    fn wrong(&mut self, path: &str, why: impl Display) {
        self.mistakes.push(self.places.mistake(path, why));
    }

    /// Returns the members of an object at `path` that are among `known`, and reports all others.
    fn members<'n>(&mut self, path: &str, node: &'n Node, known: &[&str]) -> BTreeMap<&'n str, &'n Node> {
        let mut found = BTreeMap::new();
        let Content::Object(members) = &node.content else {
            self.wrong(path, format!("must be an object with {}", known.join(", ")));
            return found;
        };
        for member in members {
            let full = if path.is_empty() { member.name.clone() } else { format!("{path}.{}", member.name) };
            let is_known = known.contains(&member.name.as_str());
            let text = match &member.value.content {
                // The file may be another one, with secrets, and its `codes` may be the codes themselves.
                Content::Scalar(text) if is_known && full != "codes" => Some(text.clone()),
                _ => None,
            };
            let is_repeated = self.places.members.insert(full.clone(), (member.line, text)).is_some();
            if !is_known {
                self.wrong(&full, unknown(path, &member.name, known));
            } else if is_repeated {
                self.wrong(&full, "is given twice");
            } else if member.value.content == Content::Empty {
                // Not none: the value may be a variable that is not set.
                let is_optional = OPTIONAL.contains(&full.as_str());
                let remedy =
                    if is_optional { "none if that is intended" } else { "one or remove the member" };
                self.wrong(&full, format!("has no value; write {remedy}"));
            } else {
                found.insert(member.name.as_str(), &member.value);
            }
        }
        found
    }

    /// Returns the text of a value; `None` for `null` and, with a mistake, for a list or an object.
    fn text(&mut self, path: &str, node: &Node) -> Option<String> {
        match &node.content {
            Content::Scalar(text) => Some(text.clone()),
            Content::Null | Content::Empty => None,
            Content::List(_) | Content::Object(_) => {
                self.wrong(path, "must be one value, not a list or an object");
                None
            }
        }
    }

    /// Parses a value; `None` if it is absent or `null`, or with a mistake if it is invalid.
    fn parsed<T: FromStr<Err: Display>>(&mut self, path: &str, node: Option<&Node>) -> Option<T> {
        match self.text(path, node?)?.parse() {
            Ok(value) => Some(value),
            Err(why) => {
                self.wrong(path, why);
                None
            }
        }
    }

    /// Parses a number or none. Rejects a leading zero: YAML 1.1 reads such a number as octal, YAML 1.2 as decimal.
    fn number<const MIN: u32>(&mut self, path: &str, node: Option<&Node>) -> Option<LimitArg<MIN>> {
        let digits = self.text(path, node?)?;
        let digits = digits.trim_start_matches(['+', '-']);
        if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            self.wrong(path, "must be written without a leading zero");
            return None;
        }
        self.parsed(path, node)
    }

    fn boolean(&mut self, path: &str, node: &Node) -> bool {
        match self.text(path, node).as_deref() {
            Some("true") => return true,
            Some("false") | None => {}
            Some(_) => self.wrong(path, "must be true or false"),
        }
        false
    }

    fn limits(&mut self, node: Option<&Node>, codes: bool) -> Limits {
        let members = match node.filter(|node| is_given(node)) {
            Some(node) => self.members("limits", node, &LIMITS),
            None => BTreeMap::new(),
        };
        let limit = |reader: &mut Self, name: &str| {
            LimitArg::limit(reader.number(&format!("limits.{name}"), members.get(name).copied()))
        };
        let total: Option<LimitArg<0>> = self.number("limits.total", members.get("total").copied());
        let mut limits = Limits {
            total: total.and_then(|limit| limit.0),
            per_user: limit(self, "per_user"),
            per_user_per_day: limit(self, "per_user_per_day"),
            per_claim: limit(self, "per_claim"),
        };
        if codes {
            limits.per_claim = limits.per_claim.or(Some(PER_CLAIM_MAX));
        }
        limits
    }

    /// Reports a campaign without limits, unless another mistake may be the cause.
    fn check_bounded(&mut self, limits: &Limits) {
        let is_bounded = limits.total.is_some() || limits.per_user.or(limits.per_user_per_day).is_some();
        // A total of `null` or none is intended, a missing one may be forgotten.
        if self.mistakes.is_empty() && !is_bounded && !self.places.members.contains_key("limits.total") {
            self.wrong(
                "limits",
                "no limit is given, so anyone could claim any number of units; give total, per_user or \
                 per_user_per_day, or total: none if that is intended",
            );
        }
    }

    /// Returns the instant of a time; `None` if it is absent, `null` or none, or with a mistake if it is invalid.
    fn time(&mut self, path: &'static str, node: Option<&Node>) -> Option<Timestamp> {
        let time: TimeArg = self.parsed(path, node.filter(|node| is_given(node)))?;
        if time.is_relative() {
            let text = node.and_then(|node| self.text(path, node)).unwrap_or_default();
            self.relative.insert(path, text);
        }
        match time.instant(&self.zone, self.now) {
            Ok(at) => Some(at),
            Err(why) => {
                self.wrong(path, why);
                None
            }
        }
    }

    fn pass(&mut self, node: &Node) -> Option<PassRule> {
        if !is_given(node) {
            return None;
        }
        let mistakes = self.mistakes.len();
        let members = self.members("pass", node, &PASS);
        if self.mistakes.len() > mistakes {
            return None;
        }
        let required = members.get("required").and_then(|required| self.text("pass.required", required));
        let until = self.time("pass.until", members.get("until").copied());
        match (required.as_deref(), until) {
            (Some("always"), None) => return Some(PassRule::Always),
            (Some("until"), Some(until)) => return Some(PassRule::Until { until }),
            (Some("always"), Some(_)) => self.wrong("pass.until", "needs required: until"),
            (Some("until"), None) if members.get("until").is_none_or(|until| !is_given(until)) => {
                self.wrong("pass.until", "is missing");
            }
            (Some("until"), None) => {}
            (Some(_), _) => self.wrong("pass.required", "must be always or until"),
            (None, _) => self.wrong("pass.required", "is missing; it must be always or until"),
        }
        None
    }
}

/// Returns whether a value is neither `null` nor none.
fn is_given(node: &Node) -> bool {
    match &node.content {
        Content::Null | Content::Empty => false,
        Content::Scalar(text) => text != "none",
        Content::List(_) | Content::Object(_) => true,
    }
}

/// Returns what is wrong with the unknown member `name` of the object at `path`, with the nearest known name.
fn unknown(path: &str, name: &str, known: &[&str]) -> String {
    let limit = || nearest(name, LIMITS).filter(|_| path.is_empty()).map(|limit| format!("limits.{limit}"));
    match nearest(name, known.iter().copied()).map(str::to_owned).or_else(limit) {
        Some(near) => format!("unknown member{}", suggestion(&near)),
        None => format!("unknown member; the members are {}", known.join(", ")),
    }
}

/// Checks a campaign by core's own rules. Leaves out times that depend on the time of the run: an existing campaign
/// keeps its own, and a new one is checked again with them.
fn check(wanted: &Wanted) -> Result<(), Mistake> {
    let mut campaign = wanted.campaign.clone();
    if wanted.relative.contains_key("starts_at") {
        campaign.starts_at = None;
    }
    if wanted.relative.contains_key("ends_at") {
        campaign.ends_at = None;
    }
    let body = serde_json::to_vec(&campaign).unwrap_or_default();
    let checked = campaign_change::NewCampaign::parse(&body);
    checked.map(drop).map_err(|problem| wanted.places.rejected(&problem))
}

#[cfg(test)]
mod tests;
