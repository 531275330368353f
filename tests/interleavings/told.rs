//! What callers were told: the one thing that a schedule is judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::node::Reply;

/// A claim that its caller was told to have.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    pub id: String,
    pub sequence: u64,
}

/// Confirmations and returns asked for, of one claim.
#[derive(Debug, Clone, Copy, Default)]
pub struct Transitions {
    /// Some caller was told that it is granted for good.
    pub confirmed: bool,
    /// Some caller was told that it is returned.
    pub returned: bool,
    /// A return was asked for, whatever became of it.
    pub return_asked: bool,
}

/// All that callers were told in one schedule.
#[derive(Debug, Default)]
pub struct Told(Mutex<Inner>);

#[derive(Debug, Default, Clone)]
pub struct Inner {
    /// By user; each asks with one key.
    pub claims: BTreeMap<String, Acknowledged>,
    /// Users whose claim's outcome is unknown: they ask again.
    pub unknown: BTreeSet<String>,
    /// By the claim's id.
    pub transitions: BTreeMap<String, Transitions>,
    /// The highest total that any admin has asked for.
    pub total_max: u64,
    /// The highest version of the rules that an admin was told to be in force.
    pub version: u64,
    /// A creation was answered with success.
    pub created: bool,
    /// Units that were asked to be added, whatever became of that.
    pub units_asked: u64,
    /// Units were added, by an answer with success.
    pub added: bool,
    /// Ids of claims that no promise covers any more: Redis lost them before SQL had heard of them.
    pub lost: BTreeSet<String>,
    /// Redis and SQL are of two histories: what Redis has granted may be revoked.
    pub forked: bool,
    /// What must not have been answered.
    pub wrong: Vec<String>,
}

impl Told {
    pub fn get(&self) -> Inner {
        self.0.lock().unwrap().clone()
    }

    /// One of a user's many claims.
    pub fn one_of_many(&self, reply: &Reply) {
        let claim = &reply.body["claim"];
        let id = claim["id"].as_str().expect("an id").to_owned();
        let sequence = claim["sequence"].as_u64().expect("a sequence");
        self.0.lock().unwrap().claims.insert(id.clone(), Acknowledged { id, sequence });
    }

    /// `user` has a claim of another history, in the same place as one of this.
    pub fn forked(&self, user: &str, id: String, sequence: u64) {
        let mut told = self.0.lock().unwrap();
        told.claims.insert(user.to_owned(), Acknowledged { id, sequence });
        told.forked = true;
    }

    /// An admin asks for this total.
    pub fn asked_for_total(&self, total: u64) {
        let mut told = self.0.lock().unwrap();
        told.total_max = told.total_max.max(total);
    }

    /// An admin asks for more units.
    pub fn asked_to_add(&self, units: u64) {
        self.0.lock().unwrap().units_asked = units;
    }

    /// Of an addition.
    pub fn added(&self, reply: &Reply) {
        self.0.lock().unwrap().added |= reply.status == 200;
    }

    /// A claim is on its way: should its caller never hear of it, it is asked again.
    pub fn asked_to_claim(&self, user: &str) {
        self.0.lock().unwrap().unknown.insert(user.to_owned());
    }

    /// Of a claim by `user`.
    pub fn claim(&self, user: &str, reply: &Reply) {
        let mut told = self.0.lock().unwrap();
        match reply.status {
            200 | 201 => {
                let claim = &reply.body["claim"];
                let id = claim["id"].as_str().expect("an id").to_owned();
                let sequence = claim["sequence"].as_u64().expect("a sequence");
                let version = reply.body["version"].as_u64().expect("a version");
                if reply.status == 201 && version < told.version {
                    let line = format!(
                        "{user} was granted by version {version}, though version {} was said to be in force",
                        told.version
                    );
                    told.wrong.push(line);
                }
                told.unknown.remove(user);
                let before = told.claims.insert(user.to_owned(), Acknowledged { id: id.clone(), sequence });
                if let Some(before) = before
                    && before.sequence != sequence
                    && !told.lost.contains(&id)
                    && !told.forked
                {
                    told.wrong
                        .push(format!("{user} was told sequence {} and then {sequence}", before.sequence));
                }
            }
            403 | 409 | 422 => {
                told.unknown.remove(user);
                if told.claims.get(user).is_some_and(|claim| !told.lost.contains(&claim.id)) && !told.forked {
                    told.wrong.push(format!("{user}, who has a claim, was told {}", reply.brief()));
                }
            }
            404 => drop(told.unknown.remove(user)),
            503 => {}
            other => told.wrong.push(format!("a claim of {user} was answered {other}: {}", reply.body)),
        }
    }

    /// Of a confirmation or a return.
    pub fn transition(&self, id: &str, is_return: bool, reply: &Reply) {
        let mut told = self.0.lock().unwrap();
        let must_be_there =
            told.claims.values().any(|claim| claim.id == id) && !told.lost.contains(id) && !told.forked;
        let transitions = told.transitions.entry(id.to_owned()).or_default();
        match (reply.status, reply.body["claim"]["status"].as_str()) {
            (200, Some("returned")) => transitions.returned = true,
            (200, Some("granted")) if !is_return => transitions.confirmed = true,
            (503 | 409, _) => {}
            (404, _) if !must_be_there => {}
            (status, _) => {
                let line = format!("the transition of {id} was answered {status}: {}", reply.body);
                told.wrong.push(line);
            }
        }
    }

    /// A return is on its way.
    pub fn asked_to_return(&self, id: &str) {
        self.0.lock().unwrap().transitions.entry(id.to_owned()).or_default().return_asked = true;
    }

    /// Of a creation or a change of the rules.
    pub fn rules(&self, reply: &Reply) {
        let mut told = self.0.lock().unwrap();
        match reply.status {
            200 | 201 => {
                told.created = true;
                told.version = told.version.max(reply.body["version"].as_u64().expect("a version"));
            }
            404 | 409 | 503 => {}
            other => told.wrong.push(format!("a change of the rules was answered {other}: {}", reply.body)),
        }
    }

    /// Only a core that knows later rules than `version` can bring them back.
    pub fn forgotten(&self, version: u64) {
        let mut told = self.0.lock().unwrap();
        told.version = told.version.min(version);
        told.created &= version > 0;
        told.added = false;
    }

    pub fn lost(&self, ids: impl IntoIterator<Item = String>) {
        self.0.lock().unwrap().lost.extend(ids);
    }
}
