//! Records the callers' answers, on which the verdict about a schedule is based.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use support::times::ms;

use super::node::Reply;

/// An acknowledged claim.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    pub id: String,
    pub sequence: u64,
}

/// The confirmations, returns and extensions of one claim.
#[derive(Debug, Clone, Copy, Default)]
pub struct Transitions {
    /// Whether an answer reported the claim as permanently granted.
    pub confirmed: bool,
    /// Whether an answer reported the claim as returned.
    pub returned: bool,
    /// Whether a return was sent, regardless of its outcome.
    pub return_asked: bool,
    /// The latest expiry that an answer to an extension reported, in milliseconds since 1970.
    pub extended_until: Option<i64>,
}

/// All answers to the callers of one schedule.
#[derive(Debug, Default)]
pub struct AnswerLog(Mutex<Answers>);

#[derive(Debug, Default, Clone)]
pub struct Answers {
    /// The acknowledged claims by user; each user has one key.
    pub claims: BTreeMap<String, Acknowledged>,
    /// Users whose claim has an unknown outcome: they retry.
    pub unknown: BTreeSet<String>,
    /// The transitions by claim id.
    pub transitions: BTreeMap<String, Transitions>,
    /// The highest total that any admin requested.
    pub total_max: u64,
    /// The highest version of the rules that was acknowledged to an admin.
    pub version: u64,
    /// Whether a creation succeeded.
    pub created: bool,
    /// Units of all requested additions, regardless of the outcome.
    pub units_asked: u64,
    /// Whether an addition was acknowledged.
    pub added: bool,
    /// Ids of claims without a guarantee: Redis lost them before they reached SQL.
    pub lost: BTreeSet<String>,
    /// Whether Redis and SQL have different histories, so that Redis' grants may be revoked.
    pub forked: bool,
    /// The codes that owners have seen, by claim id.
    pub codes: BTreeMap<String, Vec<String>>,
    /// Answers that must not occur.
    pub wrong: Vec<String>,
}

impl AnswerLog {
    pub fn get(&self) -> Answers {
        self.0.lock().unwrap().clone()
    }

    /// Records one of a user's many claims.
    pub fn one_of_many(&self, reply: &Reply) {
        let claim = &reply.body["claim"];
        let id = claim["id"].as_str().expect("an id").to_owned();
        let sequence = claim["sequence"].as_u64().expect("a sequence");
        self.0.lock().unwrap().claims.insert(id.clone(), Acknowledged { id, sequence });
    }

    /// Records that `user` has a claim of the other history with the same sequence number as a claim of this
    /// history.
    pub fn forked(&self, user: &str, id: String, sequence: u64) {
        let mut answers = self.0.lock().unwrap();
        answers.claims.insert(user.to_owned(), Acknowledged { id, sequence });
        answers.forked = true;
    }

    /// Records that an admin requests this total.
    pub fn total_requested(&self, total: u64) {
        let mut answers = self.0.lock().unwrap();
        answers.total_max = answers.total_max.max(total);
    }

    /// Records that an admin requests more units.
    pub fn addition_sent(&self, units: u64) {
        self.0.lock().unwrap().units_asked = units;
    }

    /// Records the answer to an addition.
    pub fn added(&self, reply: &Reply) {
        self.0.lock().unwrap().added |= reply.status == 200;
    }

    /// Records that a claim was sent: without an answer its caller retries.
    pub fn claim_sent(&self, user: &str) {
        self.0.lock().unwrap().unknown.insert(user.to_owned());
    }

    /// Records the answer to a claim by `user`.
    pub fn claim(&self, user: &str, reply: &Reply) {
        let mut answers = self.0.lock().unwrap();
        match reply.status {
            200 | 201 => {
                let claim = &reply.body["claim"];
                let id = claim["id"].as_str().expect("an id").to_owned();
                let sequence = claim["sequence"].as_u64().expect("a sequence");
                let version = reply.body["version"].as_u64().expect("a version");
                if reply.status == 201 && version < answers.version {
                    let line = format!(
                        "{user} was granted under version {version} although version {} was reported in force",
                        answers.version
                    );
                    answers.wrong.push(line);
                }
                answers.unknown.remove(user);
                let before =
                    answers.claims.insert(user.to_owned(), Acknowledged { id: id.clone(), sequence });
                if let Some(before) = before
                    && before.sequence != sequence
                    && !answers.lost.contains(&id)
                    && !answers.forked
                {
                    answers
                        .wrong
                        .push(format!("{user} got sequence {} and then {sequence}", before.sequence));
                }
            }
            403 | 409 | 422 => {
                answers.unknown.remove(user);
                if answers.claims.get(user).is_some_and(|claim| !answers.lost.contains(&claim.id))
                    && !answers.forked
                {
                    answers.wrong.push(format!("{user}, who has a claim, got {}", reply.brief()));
                }
            }
            404 => drop(answers.unknown.remove(user)),
            503 => {}
            other => answers.wrong.push(format!("a claim of {user} got {other}: {}", reply.body)),
        }
    }

    /// Records the answer to `what`: `confirm`, `return` or `extend`.
    pub fn transition(&self, id: &str, what: &str, reply: &Reply) {
        let mut answers = self.0.lock().unwrap();
        let must_be_there = answers.claims.values().any(|claim| claim.id == id)
            && !answers.lost.contains(id)
            && !answers.forked;
        let transitions = answers.transitions.entry(id.to_owned()).or_default();
        match (reply.status, reply.body["claim"]["status"].as_str()) {
            (200, Some("returned")) => transitions.returned = true,
            (200, Some("granted")) if what != "return" => transitions.confirmed = true,
            (200, Some("held")) if what == "extend" => {
                let expires_at = reply.body["claim"]["expires_at"].as_str().map(ms);
                transitions.extended_until = transitions.extended_until.max(expires_at);
            }
            (503 | 409, _) => {}
            (404, _) if !must_be_there => {}
            (status, _) => {
                let line = format!("the transition of {id} got {status}: {}", reply.body);
                answers.wrong.push(line);
            }
        }
    }

    /// Records the codes that a claim's owner has seen, which must never change.
    pub fn codes_shown(&self, id: &str, codes: &[String]) {
        let mut answers = self.0.lock().unwrap();
        let before = answers.codes.insert(id.to_owned(), codes.to_vec());
        if let Some(before) = before.filter(|before| before != codes)
            && !answers.lost.contains(id)
        {
            answers.wrong.push(format!("{id} was shown {before:?} and then {codes:?}"));
        }
    }

    /// Records that a return was sent.
    pub fn return_sent(&self, id: &str) {
        self.0.lock().unwrap().transitions.entry(id.to_owned()).or_default().return_asked = true;
    }

    /// Records the answer to a creation or a change of the rules.
    pub fn rules(&self, reply: &Reply) {
        let mut answers = self.0.lock().unwrap();
        match reply.status {
            200 | 201 => {
                answers.created = true;
                answers.version = answers.version.max(reply.body["version"].as_u64().expect("a version"));
            }
            404 | 409 | 503 => {}
            other => {
                answers.wrong.push(format!("a change of the rules got {other}: {}", reply.body));
            }
        }
    }

    /// Records that SQL went back to `version`. Only a core that has seen later rules can restore these
    /// rules.
    pub fn forgotten(&self, version: u64) {
        let mut answers = self.0.lock().unwrap();
        answers.version = answers.version.min(version);
        answers.created &= version > 0;
        answers.added = false;
    }

    pub fn lost(&self, ids: impl IntoIterator<Item = String>) {
        self.0.lock().unwrap().lost.extend(ids);
    }
}
