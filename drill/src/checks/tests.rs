//! Runs each check on evidence that it must reject. A correct storm never produces such evidence.

use std::num::NonZeroU32;
use std::time::Duration;

use claimgate_client::ClaimCall;
use claimgate_shared::Quantity;
use serde_json::json;

use super::*;

/// Two units, two winners, one denial; then a unit is returned and claimed by a newcomer.
struct Case {
    plan: Plan,
    outcomes: Vec<ClaimOutcome>,
    evidence: Evidence,
}

fn outcome(user: &str, result: impl Fn(&ClaimCall) -> TryOutcome) -> ClaimOutcome {
    let call = ClaimCall::new("drill".parse().unwrap(), user.parse().unwrap(), Quantity::ONE).unwrap();
    ClaimOutcome { tries: vec![result(&call)], token: String::new(), concurrent: false, call }
}

fn claimed(call: &ClaimCall, sequence: u64) -> TryOutcome {
    TryOutcome::Claimed { id: call.claim_id(), sequence, units: NonZeroU32::MIN }
}

fn denied(code: &str, limit: Limit) -> TryOutcome {
    TryOutcome::Denied { code: code.to_owned(), limit: Some(limit) }
}

fn row(call: &ClaimCall, sequence: u64, status: ClaimStatus) -> ClaimItem {
    let at = "2026-11-23T22:05:07Z".parse().unwrap();
    let user_id = call.request().user_id.to_string();
    let (id, day) = (call.claim_id().to_string(), "2026-11-23".to_owned());
    let is_granted = status == ClaimStatus::Granted;
    let codes = is_granted.then(|| vec![format!("CODE-{user_id}").parse().unwrap()]);
    ClaimItem { id, user_id, quantity: 1, status, sequence, day, claimed_at: at, updated_at: at, codes }
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
        again: vec![(outcomes[0].tries[0].clone(), outcomes[0].tries[0].clone())],
        returned: Some(Returned {
            id: outcomes[0].call.claim_id(),
            taken: [2, 1, 2],
            reclaimed: next.tries[0].clone(),
            after_sold_out: Some(denied("sold_out", Limit::Total)),
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
        codes: true,
        keep: false,
    };
    Case { plan, outcomes, evidence }
}

/// Returns the names of the checks that fail after `spoil` has changed the correct case.
fn failing(spoil: impl Fn(&mut Case)) -> Vec<&'static str> {
    let mut case = case();
    spoil(&mut case);
    let checks = all(&case.plan, &case.outcomes, &case.evidence);
    checks.iter().filter(|check| !check.passed).map(|check| check.name).collect()
}

const ANSWERED: &str = "every claim is answered";
const GRANTED: &str = "exactly the expected units are granted";
const IN_SQL: &str = "each acknowledged claim is in SQL";
const NO_MORE: &str = "SQL has exactly the granted units";
const PER_USER: &str = "no user has more than the limit";
const ONCE: &str = "no id or sequence is repeated or missing";
const RETRY: &str = "a retry returns the same claim";
const DENIAL: &str = "each denial names the right limit";
const RETURN: &str = "a returned unit can be claimed once";
const AGREE: &str = "Redis and SQL agree";
const CODES: &str = "each granted unit has its own code";

#[test]
fn a_correct_storm_passes_all_checks() {
    assert_eq!(failing(|_| ()), [""; 0]);
    // Fewer users than units: nothing is sold out.
    assert_eq!(
        failing(|case| {
            case.plan.units = 9;
            case.plan.users = 2;
            case.outcomes.pop();
            case.evidence.returned.as_mut().unwrap().after_sold_out = None;
        }),
        [""; 0]
    );
}

#[test]
fn a_missing_or_repeated_code_fails_the_drill() {
    assert_eq!(failing(|case| case.evidence.rows[1].codes = None), [CODES]);
    assert_eq!(failing(|case| case.evidence.rows[2].codes = case.evidence.rows[1].codes.clone()), [CODES]);
}

#[test]
fn an_unexpected_number_of_granted_units_fails() {
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
fn missing_and_surplus_rows_in_sql_fail_the_drill() {
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
fn an_exceeded_user_limit_and_a_repeated_row_fail() {
    assert_eq!(failing(|case| case.evidence.rows[2].user_id = "b".to_owned()), [PER_USER]);
    let twice = failing(|case| {
        let again = row(&case.outcomes[1].call, 2, ClaimStatus::Granted);
        case.evidence.rows.push(again);
    });
    assert_eq!(twice, [NO_MORE, PER_USER, ONCE, CODES]);
}

#[test]
fn a_retry_with_a_different_result_fails() {
    assert_eq!(failing(|case| case.evidence.again[0].1 = denied("sold_out", Limit::Total)), [RETRY]);
    let in_storm = failing(|case| {
        let second = claimed(&case.outcomes[0].call, 7);
        case.outcomes[0].tries.push(second);
    });
    assert_eq!(in_storm, [RETRY]);
}

#[test]
fn a_denial_for_a_wrong_reason_fails() {
    assert_eq!(failing(|case| case.outcomes[2].tries[0] = denied("sold_out", Limit::PerUser)), [DENIAL]);
    assert_eq!(failing(|case| case.outcomes[2].tries[0] = denied("ended", Limit::Total)), [DENIAL]);
    let user = |case: &mut Case| case.outcomes[2].tries[0] = denied("user_limit_reached", Limit::PerUser);
    assert_eq!(failing(user), [DENIAL], "a user without claims");
    let user = |case: &mut Case| {
        let call = ClaimCall::retry(case.outcomes[0].call.request().clone());
        let tries = vec![denied("user_limit_reached", Limit::PerUser)];
        case.outcomes.push(ClaimOutcome { call, token: String::new(), tries, concurrent: false });
    };
    assert_eq!(failing(user), [""; 0], "a user with the maximum");
}

#[test]
fn a_return_of_too_few_or_too_many_units_fails() {
    let returned =
        |change: fn(&mut Returned)| failing(move |case| case.evidence.returned.iter_mut().for_each(change));
    assert_eq!(returned(|returned| returned.taken = [2, 2, 2]), [RETURN]);
    assert_eq!(returned(|returned| returned.taken = [2, 0, 1]), [RETURN]);
    assert_eq!(returned(|returned| returned.after_sold_out = Some(returned.reclaimed.clone())), [RETURN]);
    assert_eq!(
        returned(|returned| returned.after_sold_out = Some(TryOutcome::Unknown("503".to_owned()))),
        [RETURN]
    );
    assert_eq!(returned(|returned| returned.after_sold_out = Some(denied("paused", Limit::Total))), [RETURN]);
    let lost = |case: &mut Case| case.evidence.rows[0].status = ClaimStatus::Granted;
    assert!(failing(lost).contains(&RETURN));
}

#[test]
fn an_unanswered_claim_and_a_difference_fail() {
    assert_eq!(
        failing(|case| case.outcomes[2].tries = vec![TryOutcome::Unknown("reset".to_owned())]),
        [ANSWERED]
    );
    let differs = |case: &mut Case| case.evidence.reconciliation["agrees"] = json!(false);
    assert_eq!(failing(differs), [AGREE]);
}
