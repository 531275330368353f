//! An old copy of Redis that lacks no grant, only what became of claims later.

use claimgate_core::engine::recovery::Recovered;

use super::operations::Ask;
use super::reference::{Rules, Transition};
use super::system::System;

const HOLD_MS: i64 = 30_000;

/// One unit, held, confirmed, and held again by a Redis that has not heard of the confirmation: once that hold is over,
/// the unit must not be another's.
#[tokio::test(flavor = "current_thread")]
async fn a_confirmation_that_redis_has_lost_is_not_undone() {
    let begins_at = jiff::Timestamp::now().as_millisecond();
    let rules = Rules::held(1, HOLD_MS, begins_at - HOLD_MS);
    let mut system = System::start(&rules, begins_at).await;
    let ask = |user: &str| Ask { user: user.to_owned(), key: "k".to_owned(), quantity: 1 };
    system.claims(&[ask("alice")]).await.expect("held");
    system.maintain().await.expect("ready");
    system.relay().await.expect("relayed");
    system.copy().await;
    system.transition(&ask("alice"), Transition::Confirm).await.expect("confirmed");
    system.relay().await.expect("relayed");

    system.restart_redis_on_copy().await;
    let ready = system.maintain().await.expect("maintained");
    system.set_clock(begins_at + HOLD_MS + 1).await;
    let answers = system.claims(&[ask("bob")]).await;
    system.maintain().await.expect("maintained");
    system.relay().await.expect("relayed");
    let (rows, taken) = system.rows().await;
    let statuses: Vec<_> = rows.iter().map(|row| (row.claim.user_id.to_string(), row.claim.status)).collect();
    assert!(
        matches!(ready, Recovered::Loaded(1)) && taken <= 1,
        "found {ready:?}; bob: {answers:?}; SQL: {taken} of 1 taken, {statuses:?}"
    );
}

/// The last word is Redis', also where the check that precedes every change has seen nothing.
#[tokio::test(flavor = "current_thread")]
async fn rules_are_not_said_to_be_in_force_where_redis_has_newer_ones() {
    let begins_at = jiff::Timestamp::now().as_millisecond();
    let rules = Rules::held(10, HOLD_MS, begins_at);
    let mut system = System::start(&rules, begins_at).await;
    system.copy_sql().await;
    for version in 2..=3 {
        system.change(&Rules { version, ..rules.clone() }).await.expect("in force");
    }
    system.forget_sql(true).await;
    let refused = system.change(&Rules { version: 2, ..rules.clone() }).await;
    assert!(refused.is_err(), "Redis decides by version 3");
    system.maintain().await.expect("maintained");
    system.change(&Rules { version: 4, ..rules }).await.expect("in force");
}
