//! Old copies of Redis or SQL that have all grants and lack only later changes.

use claimgate_core::engine::lifecycle::recovery::Recovered;

use super::operations::ClaimAttempt;
use super::reference::{Rules, Transition};
use super::system::System;

const HOLD_MS: i64 = 30_000;

/// A unit is held, confirmed, and held again by a Redis server that lost the confirmation. When that hold
/// expires, the unit must not be granted to another user.
#[tokio::test(flavor = "current_thread")]
async fn a_confirmation_lost_by_redis_is_not_undone() {
    let begins_at = jiff::Timestamp::now().as_millisecond();
    let rules = Rules::held(1, HOLD_MS, begins_at - HOLD_MS);
    let mut system = System::start(&rules, begins_at).await;
    let attempt = |user: &str| ClaimAttempt::of(user, "k");
    system.claims(&[attempt("alice")]).await.expect("held");
    system.maintain().await.expect("ready");
    system.relay().await.expect("relayed");
    system.copy().await;
    system.transition(&attempt("alice"), Transition::Confirm).await.expect("confirmed");
    system.relay().await.expect("relayed");

    system.restart_redis_on_copy().await;
    let ready = system.maintain().await.expect("maintained");
    system.set_clock(begins_at + HOLD_MS + 1).await;
    let answers = system.claims(&[attempt("bob")]).await;
    system.maintain().await.expect("maintained");
    system.relay().await.expect("relayed");
    let (rows, taken) = system.rows().await;
    let statuses: Vec<_> = rows.iter().map(|row| (row.claim.user_id.to_string(), row.claim.status)).collect();
    assert!(
        matches!(ready, Recovered::Loaded(1)) && taken <= 1,
        "found {ready:?}; bob: {answers:?}; SQL: {taken} of 1 taken, {statuses:?}"
    );
}

/// Starts a system whose SQL has version 1 again, while Redis applies version 3; a new core serves them.
async fn after_sql_lost_two_changes() -> (System, Rules) {
    let begins_at = jiff::Timestamp::now().as_millisecond();
    let rules = Rules::held(10, HOLD_MS, begins_at);
    let mut system = System::start(&rules, begins_at).await;
    system.copy_sql().await;
    for version in 2..=3 {
        system.change(&Rules { version, ..rules.clone() }).await.expect("in force");
    }
    system.forget_sql(true).await;
    (system, rules)
}

/// Redis rejects outdated rules, even if the check before each change found nothing.
#[tokio::test(flavor = "current_thread")]
async fn rules_are_not_reported_in_force_if_redis_has_newer_ones() {
    let (system, rules) = after_sql_lost_two_changes().await;
    let refused = system.change(&Rules { version: 2, ..rules.clone() }).await;
    assert!(refused.is_err(), "Redis applies version 3");
    system.maintain().await.expect("maintained");
    system.change(&Rules { version: 4, ..rules }).await.expect("in force");
}

/// On top of an outdated row, the pause would get a version that Redis has already seen.
#[tokio::test(flavor = "current_thread")]
async fn a_change_first_restores_the_versions_that_sql_lost() {
    let (system, _) = after_sql_lost_two_changes().await;
    assert_eq!(system.pause().await, Ok(4));
}

/// A promoted server may lack claims that were acknowledged, even if its counters look complete.
#[tokio::test(flavor = "current_thread")]
async fn a_promoted_redis_decides_nothing_until_it_is_reloaded() {
    let begins_at = jiff::Timestamp::now().as_millisecond();
    let mut system = System::start(&Rules::held(10, HOLD_MS, begins_at), begins_at).await;
    let attempts = [ClaimAttempt::of("alice", "k")];
    system.promote_redis().await;
    let refused = system.claims(&attempts).await;
    assert!(refused.is_err(), "{refused:?}");
    system.maintain().await.expect("loaded");
    system.claims(&attempts).await.expect("decided");
}
