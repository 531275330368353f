//! The checks that must pass after any storm.

use std::collections::{BTreeMap, BTreeSet};

use claimgate_shared::admin::ClaimItem;
use claimgate_shared::problem::Limit;
use claimgate_shared::{ClaimStatus, UserId};
use serde::Serialize;
use serde_json::Value;

use crate::Plan;
use crate::proof::{Evidence, Returned};
use crate::user::{ClaimOutcome, TryOutcome};

/// A property that must hold, and whether it did.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// The property.
    pub name: &'static str,
    /// Whether the property held.
    pub passed: bool,
    /// The numbers that prove the property, or what is wrong.
    pub detail: String,
}

impl Check {
    /// Passes with the detail `right` if nothing is `wrong`.
    fn new(name: &'static str, wrong: Option<String>, right: String) -> Self {
        Self { name, passed: wrong.is_none(), detail: wrong.unwrap_or(right) }
    }
}

/// Runs all checks, in the order of the report.
pub(crate) fn all(plan: &Plan, outcomes: &[ClaimOutcome], evidence: &Evidence) -> Vec<Check> {
    let mut checks = vec![
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
    ];
    if plan.codes {
        checks.push(codes(evidence));
    }
    checks
}

/// Returns the acknowledged claims by id, with sequence and units.
fn acknowledged(outcomes: &[ClaimOutcome]) -> BTreeMap<String, (u64, u64)> {
    outcomes.iter().filter_map(|outcome| claim_of(outcome.claimed()?)).collect()
}

fn claim_of(result: &TryOutcome) -> Option<(String, (u64, u64))> {
    match result {
        TryOutcome::Claimed { id, sequence, units } => {
            Some((id.to_string(), (*sequence, units.get().into())))
        }
        TryOutcome::Denied { .. } | TryOutcome::Unknown(_) => None,
    }
}

fn decided(outcomes: &[ClaimOutcome]) -> Check {
    let unknown: Vec<_> = outcomes.iter().filter(|outcome| outcome.is_unknown()).collect();
    let wrong = unknown.first().map(|first| {
        let why = first.tries.iter().rev().find_map(|result| match result {
            TryOutcome::Unknown(why) => Some(why.as_str()),
            TryOutcome::Claimed { .. } | TryOutcome::Denied { .. } => None,
        });
        let why = why.unwrap_or("no answer");
        format!("{} of {} claims have no answer: {why}", unknown.len(), outcomes.len())
    });
    Check::new("every claim is answered", wrong, format!("{} claims", outcomes.len()))
}

fn granted(plan: &Plan, outcomes: &[ClaimOutcome]) -> Check {
    let units: u64 = acknowledged(outcomes).values().map(|(_, units)| units).sum();
    let expected = plan.expected();
    let wrong = (units != expected).then(|| format!("{units} units granted, {expected} expected"));
    Check::new("exactly the expected units are granted", wrong, format!("{units} of {} units", plan.units))
}

fn in_sql(outcomes: &[ClaimOutcome], evidence: &Evidence) -> Check {
    let rows: BTreeMap<_, _> = evidence.rows.iter().map(|row| (row.id.as_str(), row.sequence)).collect();
    let mut acknowledged = acknowledged(outcomes);
    acknowledged.extend(evidence.returned.iter().filter_map(|returned| claim_of(&returned.reclaimed)));
    let missing: Vec<_> =
        acknowledged.iter().filter(|(id, (sequence, _))| rows.get(id.as_str()) != Some(sequence)).collect();
    let wrong = missing.first().map(|(id, (sequence, _))| {
        let waiting = match evidence.backlog {
            0 => String::new(),
            events => format!("; {events} events are still waiting for SQL"),
        };
        format!("{} are missing or differ, the first is {id}, sequence {sequence}{waiting}", missing.len())
    });
    Check::new("each acknowledged claim is in SQL", wrong, format!("{} claims", acknowledged.len()))
}

/// Counts the granted and held units in SQL.
fn units(rows: &[ClaimItem]) -> u64 {
    let is_active = |row: &&ClaimItem| matches!(row.status, ClaimStatus::Granted | ClaimStatus::Held);
    rows.iter().filter(is_active).map(|row| u64::from(row.quantity)).sum()
}

fn sql_is_granted(outcomes: &[ClaimOutcome], evidence: &Evidence) -> Check {
    let mut granted: u64 = acknowledged(outcomes).values().map(|(_, units)| units).sum();
    if let Some(returned) = &evidence.returned {
        granted =
            granted.saturating_sub(1) + claim_of(&returned.reclaimed).map_or(0, |(_, (_, units))| units);
    }
    let in_sql = units(&evidence.rows);
    let wrong = (in_sql != granted).then(|| format!("{in_sql} units in SQL, {granted} were acknowledged"));
    Check::new("SQL has exactly the granted units", wrong, format!("{in_sql} units"))
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

fn codes(evidence: &Evidence) -> Check {
    let granted = evidence.rows.iter().filter(|row| row.status == ClaimStatus::Granted);
    let (mut owners, mut wrong) = (BTreeMap::new(), None);
    for row in granted {
        let codes = row.codes.as_deref().unwrap_or_default();
        if codes.len() != row.quantity as usize {
            wrong = Some(format!("{} has {} codes for {} units", row.id, codes.len(), row.quantity));
        }
        for code in codes {
            if let Some(other) = owners.insert(code.as_str(), &row.id) {
                wrong = Some(format!("{other} and {} have the same code", row.id));
            }
        }
    }
    Check::new("each granted unit has its own code", wrong, format!("{} codes", owners.len()))
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
    Check::new("no id or sequence is repeated or missing", wrong, format!("1 to {}", rows.len()))
}

fn retries(outcomes: &[ClaimOutcome], evidence: &Evidence) -> Check {
    let several = outcomes.iter().filter(|outcome| outcome.tries.len() > 1).count();
    let in_storm = outcomes.iter().find(|outcome| outcome.contradicts() || is_of_another_key(outcome));
    let after = evidence.again.iter().find(|(first, again)| first != again);
    let wrong = in_storm
        .map(|outcome| format!("{} got the answers {:?}", outcome.call.claim_id(), outcome.tries))
        .or_else(|| after.map(|(first, again)| format!("first {first:?}, then {again:?}")));
    let retried = several + evidence.again.len();
    Check::new("a retry returns the same claim", wrong, format!("{retried} claims retried"))
}

/// Returns whether a claim has an id that does not follow from its key.
fn is_of_another_key(outcome: &ClaimOutcome) -> bool {
    let own = outcome.call.claim_id();
    outcome.tries.iter().any(|result| matches!(result, TryOutcome::Claimed { id, .. } if *id != own))
}

fn denials(plan: &Plan, outcomes: &[ClaimOutcome]) -> Check {
    let mut had = BTreeMap::<&UserId, u32>::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.claimed().is_some()) {
        *had.entry(&outcome.call.request().user_id).or_default() += 1;
    }
    let mut counted = BTreeMap::<&str, usize>::new();
    let mut wrong = None;
    for (outcome, result) in
        outcomes.iter().flat_map(|outcome| outcome.tries.iter().map(move |result| (outcome, result)))
    {
        let TryOutcome::Denied { code, limit } = result else { continue };
        let user = &outcome.call.request().user_id;
        // Users send their claims, of one unit each, one after another.
        let has_all = had.get(user).is_some_and(|had| *had >= plan.per_user.get());
        *counted.entry(code).or_default() += 1;
        let named = match code.as_str() {
            "sold_out" => *limit == Some(Limit::Total),
            "user_limit_reached" => *limit == Some(Limit::PerUser) && has_all,
            _ => false,
        };
        if !named {
            wrong = Some(format!("unexpected denial of {user}: {code}, with the limit {limit:?}"));
        }
    }
    let counted: Vec<_> = counted.iter().map(|(code, count)| format!("{count} {code}")).collect();
    let right = if counted.is_empty() { "none".to_owned() } else { counted.join(", ") };
    Check::new("each denial names the right limit", wrong, right)
}

fn returns(evidence: &Evidence) -> Check {
    const NAME: &str = "a returned unit can be claimed once";
    let Some(Returned { id, taken, reclaimed, after_sold_out }) = &evidence.returned else {
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
    } else if !reclaimed.is_claimed() {
        Some(format!("the returned unit could not be claimed: {reclaimed:?}"))
    } else if let Some(late) = after_sold_out.as_ref().filter(|late| !is_sold_out(late)) {
        Some(format!("the campaign was sold out again, but the next claim was answered {late:?}"))
    } else if status != Some(ClaimStatus::Returned) {
        Some(format!("the status of {id} in SQL is {status:?}"))
    } else {
        None
    };
    Check::new(NAME, wrong, "returned twice, claimed once".to_owned())
}

fn is_sold_out(result: &TryOutcome) -> bool {
    matches!(result, TryOutcome::Denied { code, limit: Some(Limit::Total) } if code == "sold_out")
}

fn agreement(evidence: &Evidence) -> Check {
    let compared = &evidence.reconciliation;
    let differences = compared["differences"].as_array().into_iter().flatten();
    let details: Vec<_> = differences.filter_map(|difference| difference["detail"].as_str()).collect();
    let wrong =
        (compared["agrees"] != Value::Bool(true)).then(|| format!("they differ: {}", details.join("; ")));
    let right = format!("{} claims each, empty outbox", compared["sql"]["claims"]);
    Check::new("Redis and SQL agree", wrong, right)
}

#[cfg(test)]
mod tests;
