//! Each check, on evidence that it must not let pass. A storm that goes right never shows these.

use std::num::NonZeroU32;
use std::time::Duration;

use claimgate_client::ClaimCall;
use claimgate_shared::Quantity;
use serde_json::json;

use super::*;

/// Two units, two winners, one refused; then one returned, and taken by a newcomer.
struct Case {
    plan: Plan,
    outcomes: Vec<Outcome>,
    evidence: Evidence,
}

fn outcome(user: &str, told: impl Fn(&ClaimCall) -> Told) -> Outcome {
    let call = ClaimCall::new("drill".parse().unwrap(), user.parse().unwrap(), Quantity::ONE).unwrap();
    Outcome { told: vec![told(&call)], together: false, call }
}

fn claimed(call: &ClaimCall, sequence: u64) -> Told {
    Told::Claimed { id: call.claim_id(), sequence, units: NonZeroU32::MIN }
}

fn denied(code: &str, limit: Limit) -> Told {
    Told::Denied { code: code.to_owned(), limit: Some(limit) }
}

fn row(call: &ClaimCall, sequence: u64, status: ClaimStatus) -> ClaimItem {
    let at = "2026-11-23T22:05:07Z".parse().unwrap();
    let user_id = call.request().user_id.to_string();
    let (id, day) = (call.claim_id().to_string(), "2026-11-23".to_owned());
    ClaimItem { id, user_id, quantity: 1, status, sequence, day, claimed_at: at, updated_at: at }
}

fn case() -> Case {
    let outcomes = vec![
        outcome("a", |call| claimed(call, 1)),
        outcome("b", |call| claimed(call, 2)),
        outcome("c", |_| denied("sold_out", Limit::Total)),
    ];
    let next = outcome("next", |call| claimed(call, 3));
    let rows = vec![
        row(&outcomes[0].call, 1, ClaimStatus::Returned),
        row(&outcomes[1].call, 2, ClaimStatus::Granted),
        row(&next.call, 3, ClaimStatus::Granted),
    ];
    let evidence = Evidence {
        again: vec![(outcomes[0].told[0].clone(), outcomes[0].told[0].clone())],
        returned: Some(Returned {
            id: outcomes[0].call.claim_id(),
            taken: [2, 1, 2],
            next: next.told[0].clone(),
            late: Some(denied("sold_out", Limit::Total)),
        }),
        backlog: 0,
        rows,
        reconciliation: json!({"agrees": true, "sql": {"claims": 3}, "differences": []}),
    };
    let one = NonZeroU32::MIN;
    let plan = Plan {
        units: 2,
        users: 3,
        per_user: one,
        connections: 1,
        duplicates: 0,
        expect: None,
        patience: Duration::ZERO,
        storm_max: Duration::ZERO,
        keep: false,
    };
    Case { plan, outcomes, evidence }
}

/// The names of the checks that fail once `spoil` has been at the case.
fn failing(spoil: impl Fn(&mut Case)) -> Vec<&'static str> {
    let mut case = case();
    spoil(&mut case);
    let checks = all(&case.plan, &case.outcomes, &case.evidence);
    checks.iter().filter(|check| !check.passed).map(|check| check.name).collect()
}

const ANSWERED: &str = "every claim is answered";
const GRANTED: &str = "granted is what was to be granted";
const IN_SQL: &str = "each acknowledged claim is in SQL";
const NO_MORE: &str = "SQL has what was granted, no more";
const PER_USER: &str = "no user has more than the limit";
const ONCE: &str = "no id and no sequence twice, none missing";
const RETRY: &str = "a retry meets the same claim";
const DENIAL: &str = "a denial names the limit that refuses";
const RETURN: &str = "a returned unit comes back once";
const AGREE: &str = "Redis and SQL agree";

#[test]
fn a_storm_that_went_right_passes() {
    assert_eq!(failing(|_| ()), [""; 0]);
    // Fewer wanted than there is: nothing is sold out.
    assert_eq!(
        failing(|case| {
            case.plan.units = 9;
            case.plan.users = 2;
            case.outcomes.pop();
            case.evidence.returned.as_mut().unwrap().late = None;
        }),
        [""; 0]
    );
}

#[test]
fn one_unit_more_than_there_is_is_not_granted() {
    assert_eq!(failing(|case| case.plan.expect = Some(3)), [GRANTED]);
    assert_eq!(failing(|case| case.plan.expect = Some(1)), [GRANTED]);
}

#[test]
fn an_oversold_campaign_fails() {
    let spoiled = failing(|case| {
        let over = outcome("d", |call| claimed(call, 4));
        case.evidence.rows.push(row(&over.call, 4, ClaimStatus::Granted));
        case.outcomes.push(over);
    });
    assert_eq!(spoiled, [GRANTED]);
}

#[test]
fn what_sql_lacks_or_has_too_much_of_fails() {
    assert_eq!(failing(|case| drop(case.evidence.rows.pop())), [IN_SQL, NO_MORE]);
    assert_eq!(failing(|case| case.evidence.rows[1].status = ClaimStatus::Revoked), [NO_MORE]);
    assert_eq!(failing(|case| case.evidence.rows[1].sequence = 5), [IN_SQL, ONCE]);
    let more = failing(|case| {
        let silent = outcome("d", |call| claimed(call, 4));
        case.evidence.rows.push(row(&silent.call, 4, ClaimStatus::Granted));
    });
    assert_eq!(more, [NO_MORE]);
}

#[test]
fn a_user_with_too_much_and_a_claim_listed_twice_fail() {
    assert_eq!(failing(|case| case.evidence.rows[2].user_id = "b".to_owned()), [PER_USER]);
    let twice = failing(|case| {
        let again = row(&case.outcomes[1].call, 2, ClaimStatus::Granted);
        case.evidence.rows.push(again);
    });
    assert_eq!(twice, [NO_MORE, PER_USER, ONCE]);
}

#[test]
fn a_retry_that_meets_another_claim_fails() {
    assert_eq!(failing(|case| case.evidence.again[0].1 = denied("sold_out", Limit::Total)), [RETRY]);
    let in_storm = failing(|case| {
        let second = claimed(&case.outcomes[0].call, 7);
        case.outcomes[0].told.push(second);
    });
    assert_eq!(in_storm, [RETRY]);
}

#[test]
fn a_denial_for_another_reason_fails() {
    assert_eq!(failing(|case| case.outcomes[2].told[0] = denied("sold_out", Limit::PerUser)), [DENIAL]);
    assert_eq!(failing(|case| case.outcomes[2].told[0] = denied("ended", Limit::Total)), [DENIAL]);
    let user = |case: &mut Case| case.outcomes[2].told[0] = denied("user_limit_reached", Limit::PerUser);
    assert_eq!(failing(user), [DENIAL], "a user who has nothing");
    let user = |case: &mut Case| {
        let call = ClaimCall::again(case.outcomes[0].call.request().clone());
        let told = vec![denied("user_limit_reached", Limit::PerUser)];
        case.outcomes.push(Outcome { call, told, together: false });
    };
    assert_eq!(failing(user), [""; 0], "a user who has all");
}

#[test]
fn a_return_that_gives_back_too_little_or_too_much_fails() {
    let returned =
        |change: fn(&mut Returned)| failing(move |case| case.evidence.returned.iter_mut().for_each(change));
    assert_eq!(returned(|returned| returned.taken = [2, 2, 2]), [RETURN]);
    assert_eq!(returned(|returned| returned.taken = [2, 0, 1]), [RETURN]);
    assert_eq!(returned(|returned| returned.late = Some(returned.next.clone())), [RETURN]);
    assert_eq!(returned(|returned| returned.late = Some(Told::Unknown("503".to_owned()))), [RETURN]);
    assert_eq!(returned(|returned| returned.late = Some(denied("paused", Limit::Total))), [RETURN]);
    let lost = |case: &mut Case| case.evidence.rows[0].status = ClaimStatus::Granted;
    assert!(failing(lost).contains(&RETURN));
}

#[test]
fn a_claim_without_an_answer_and_a_difference_fail() {
    assert_eq!(failing(|case| case.outcomes[2].told = vec![Told::Unknown("reset".to_owned())]), [ANSWERED]);
    let differs = |case: &mut Case| case.evidence.reconciliation["agrees"] = json!(false);
    assert_eq!(failing(differs), [AGREE]);
}
