//! What must hold after any storm.

use std::collections::{BTreeMap, BTreeSet};

use claimgate_shared::admin::ClaimItem;
use claimgate_shared::problem::Limit;
use claimgate_shared::{ClaimStatus, UserId};
use serde::Serialize;
use serde_json::Value;

use crate::Plan;
use crate::proof::{Evidence, Returned};
use crate::visit::{Outcome, Told};

/// One thing that must hold, and whether it did.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// What must hold.
    pub name: &'static str,
    /// Whether it did.
    pub passed: bool,
    /// By which numbers, or what is wrong.
    pub detail: String,
}

impl Check {
    /// Holds when nothing is `wrong`; `right` says by which numbers.
    fn new(name: &'static str, wrong: Option<String>, right: String) -> Self {
        Self { name, passed: wrong.is_none(), detail: wrong.unwrap_or(right) }
    }
}

/// All checks, in the order in which they are told.
pub(crate) fn all(plan: &Plan, outcomes: &[Outcome], evidence: &Evidence) -> Vec<Check> {
    vec![
        decided(outcomes),
        granted(plan, outcomes),
        in_sql(outcomes, evidence),
        sql_is_granted(outcomes, evidence),
        per_user(plan, evidence),
        once(evidence),
        retries(outcomes, evidence),
        denials(plan, outcomes),
        returns(evidence),
        agreement(evidence),
    ]
}

/// The claims that callers were told of, by id, with their sequence.
fn acknowledged(outcomes: &[Outcome]) -> BTreeMap<String, (u64, u64)> {
    outcomes.iter().filter_map(|outcome| claim_of(outcome.claimed()?)).collect()
}

fn claim_of(told: &Told) -> Option<(String, (u64, u64))> {
    match told {
        Told::Claimed { id, sequence, units } => Some((id.to_string(), (*sequence, units.get().into()))),
        Told::Denied { .. } | Told::Unknown(_) => None,
    }
}

fn decided(outcomes: &[Outcome]) -> Check {
    let unknown: Vec<_> = outcomes.iter().filter(|outcome| outcome.is_unknown()).collect();
    let wrong = unknown.first().map(|first| {
        let why = first.told.iter().rev().find_map(|told| match told {
            Told::Unknown(why) => Some(why.as_str()),
            Told::Claimed { .. } | Told::Denied { .. } => None,
        });
        let why = why.unwrap_or("no answer");
        format!("{} of {} claims have no answer: {why}", unknown.len(), outcomes.len())
    });
    Check::new("every claim is answered", wrong, format!("{} claims", outcomes.len()))
}

fn granted(plan: &Plan, outcomes: &[Outcome]) -> Check {
    let units: u64 = acknowledged(outcomes).values().map(|(_, units)| units).sum();
    let expected = plan.expected();
    let wrong = (units != expected).then(|| format!("{units} units granted, {expected} expected"));
    Check::new("granted is what was to be granted", wrong, format!("{units} units, of {}", plan.units))
}

fn in_sql(outcomes: &[Outcome], evidence: &Evidence) -> Check {
    let rows: BTreeMap<_, _> = evidence.rows.iter().map(|row| (row.id.as_str(), row.sequence)).collect();
    let mut acknowledged = acknowledged(outcomes);
    acknowledged.extend(evidence.returned.iter().filter_map(|returned| claim_of(&returned.next)));
    let missing: Vec<_> =
        acknowledged.iter().filter(|(id, (sequence, _))| rows.get(id.as_str()) != Some(sequence)).collect();
    let wrong = missing.first().map(|(id, (sequence, _))| {
        let waiting = match evidence.backlog {
            0 => String::new(),
            events => format!("; {events} events still wait for SQL"),
        };
        format!("{} are missing or differ, first {id}, sequence {sequence}{waiting}", missing.len())
    });
    Check::new("each acknowledged claim is in SQL", wrong, format!("{} claims", acknowledged.len()))
}

/// Units that stand in SQL.
fn units(rows: &[ClaimItem]) -> u64 {
    let stands = |row: &&ClaimItem| matches!(row.status, ClaimStatus::Granted | ClaimStatus::Held);
    rows.iter().filter(stands).map(|row| u64::from(row.quantity)).sum()
}

fn sql_is_granted(outcomes: &[Outcome], evidence: &Evidence) -> Check {
    let mut told: u64 = acknowledged(outcomes).values().map(|(_, units)| units).sum();
    if let Some(returned) = &evidence.returned {
        told = told.saturating_sub(1) + claim_of(&returned.next).map_or(0, |(_, (_, units))| units);
    }
    let in_sql = units(&evidence.rows);
    let wrong = (in_sql != told).then(|| format!("{in_sql} units in SQL, {told} were acknowledged"));
    Check::new("SQL has what was granted, no more", wrong, format!("{in_sql} units"))
}

fn per_user(plan: &Plan, evidence: &Evidence) -> Check {
    let mut of_user = BTreeMap::<&str, u64>::new();
    for row in &evidence.rows {
        if matches!(row.status, ClaimStatus::Granted | ClaimStatus::Held) {
            *of_user.entry(&row.user_id).or_default() += u64::from(row.quantity);
        }
    }
    let most = of_user.iter().max_by_key(|(_, units)| **units);
    let wrong = most
        .filter(|(_, units)| **units > plan.per_user.get().into())
        .map(|(user, units)| format!("{user} has {units} units, the limit is {}", plan.per_user));
    let most = most.map_or(0, |(_, units)| *units);
    Check::new("no user has more than the limit", wrong, format!("{most} at most, limit {}", plan.per_user))
}

fn once(evidence: &Evidence) -> Check {
    let rows = &evidence.rows;
    let ids: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
    let sequences: BTreeSet<_> = rows.iter().map(|row| row.sequence).collect();
    let missing = (1..).zip(&sequences).find(|(expected, sequence)| expected != *sequence);
    let wrong = if ids.len() < rows.len() {
        Some(format!("{} ids for {} claims", ids.len(), rows.len()))
    } else if sequences.len() < rows.len() {
        Some(format!("{} sequences for {} claims", sequences.len(), rows.len()))
    } else {
        missing.map(|(sequence, _)| format!("no claim has sequence {sequence}: it was lost"))
    };
    Check::new("no id and no sequence twice, none missing", wrong, format!("1 to {}", rows.len()))
}

fn retries(outcomes: &[Outcome], evidence: &Evidence) -> Check {
    let several = outcomes.iter().filter(|outcome| outcome.told.len() > 1).count();
    let in_storm = outcomes.iter().find(|outcome| outcome.contradicts() || is_of_another_key(outcome));
    let after = evidence.again.iter().find(|(first, again)| first != again);
    let wrong = in_storm
        .map(|outcome| format!("{} was answered by {:?}", outcome.call.claim_id(), outcome.told))
        .or_else(|| after.map(|(first, again)| format!("first {first:?}, then {again:?}")));
    let asked = several + evidence.again.len();
    Check::new("a retry meets the same claim", wrong, format!("{asked} claims asked for again"))
}

/// Whether a claim has an id that its key does not lead to.
fn is_of_another_key(outcome: &Outcome) -> bool {
    let own = outcome.call.claim_id();
    outcome.told.iter().any(|told| matches!(told, Told::Claimed { id, .. } if *id != own))
}

fn denials(plan: &Plan, outcomes: &[Outcome]) -> Check {
    let mut had = BTreeMap::<&UserId, u32>::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.claimed().is_some()) {
        *had.entry(&outcome.call.request().user_id).or_default() += 1;
    }
    let mut counted = BTreeMap::<&str, usize>::new();
    let mut wrong = None;
    for (outcome, told) in
        outcomes.iter().flat_map(|outcome| outcome.told.iter().map(move |told| (outcome, told)))
    {
        let Told::Denied { code, limit } = told else { continue };
        let user = &outcome.call.request().user_id;
        // Users send one claim after the other, of one unit each.
        let has_all = had.get(user).is_some_and(|had| *had >= plan.per_user.get());
        *counted.entry(code).or_default() += 1;
        let named = match code.as_str() {
            "sold_out" => *limit == Some(Limit::Total),
            "user_limit_reached" => *limit == Some(Limit::PerUser) && has_all,
            _ => false,
        };
        if !named {
            wrong = Some(format!("{code} was not to be expected by {user}, or names the limit {limit:?}"));
        }
    }
    let counted: Vec<_> = counted.iter().map(|(code, count)| format!("{count} {code}")).collect();
    let right = if counted.is_empty() { "none".to_owned() } else { counted.join(", ") };
    Check::new("a denial names the limit that refuses", wrong, right)
}

fn returns(evidence: &Evidence) -> Check {
    const NAME: &str = "a returned unit comes back once";
    let Some(Returned { id, taken, next, late }) = &evidence.returned else {
        return Check::new(
            NAME,
            Some("nothing was granted, so nothing could be returned".to_owned()),
            String::new(),
        );
    };
    let [before, without, after] = *taken;
    let status = evidence.rows.iter().find(|row| row.id == id.to_string()).map(|row| row.status);
    let wrong = if without + 1 != before || after != before {
        Some(format!("taken was {before}, {without} after the return, {after} after the next claim"))
    } else if !next.is_claimed() {
        Some(format!("the unit was not to be had again: {next:?}"))
    } else if let Some(late) = late.as_ref().filter(|late| !is_sold_out(late)) {
        Some(format!("after it had been claimed nothing was to be had, but the next one was told {late:?}"))
    } else if status != Some(ClaimStatus::Returned) {
        Some(format!("SQL has {id} as {status:?}"))
    } else {
        None
    };
    Check::new(NAME, wrong, "returned twice, claimed once".to_owned())
}

fn is_sold_out(told: &Told) -> bool {
    matches!(told, Told::Denied { code, limit: Some(Limit::Total) } if code == "sold_out")
}

fn agreement(evidence: &Evidence) -> Check {
    let compared = &evidence.reconciliation;
    let differences = compared["differences"].as_array().into_iter().flatten();
    let told: Vec<_> = differences.filter_map(|difference| difference["detail"].as_str()).collect();
    let wrong =
        (compared["agrees"] != Value::Bool(true)).then(|| format!("they differ: {}", told.join("; ")));
    let right = format!("{} claims each, nothing waits", compared["sql"]["claims"]);
    Check::new("Redis and SQL agree", wrong, right)
}

#[cfg(test)]
mod tests;
