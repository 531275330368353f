//! Many concurrent claims: limits are met exactly, and each key counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures_util::future::join_all;
use serde_json::json;
use support::checker::{Checker, Limits};
use support::rng::Rng;
use support::storm::{ClaimAttempt, ClaimOutcome, claim_attempts};
use support::{Core, SOON, heavy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_concurrent_claims_get_exactly_the_total() {
    let _turn = heavy().await;
    let core = Core::start().await;
    let limits = Limits { total: Some(100), per_user: Some(3), per_user_per_day: Some(1) };
    let checker = Checker::create(&core, "demo", limits).await;
    let claim_attempts = claim_attempts(1000, 2);
    let started = Instant::now();
    checker
        .storm(core.client(), || core.url("/internal/v1/claims"), &claim_attempts, claim_attempts.len())
        .await;
    checker.resolve_unknown(&core).await;
    let decided = Instant::now();
    println!("2,000 concurrent claims decided in {:?}", decided - started);
    let rows = core.sql().until("demo", 100).await;
    println!("100 rows in SQL {:?} after the last answer", decided.elapsed());
    let (mut users, mut sequences) = (BTreeSet::new(), BTreeSet::new());
    let seen = checker.outcomes();
    for (wish, seen) in &seen {
        match seen {
            ClaimOutcome::Claimed { sequence, replayed: false, remaining, .. } => {
                assert!(users.insert(&wish.user), "{} won twice", wish.user);
                assert!(sequences.insert(*sequence), "sequence number {sequence} was given twice");
                let left = remaining.unwrap_or(100 - sequence);
                assert_eq!(left, 100 - sequence, "units left after sequence number {sequence}");
            }
            ClaimOutcome::Denied { code, remaining: Some(0) } if code == "sold_out" => {}
            ClaimOutcome::Denied { code, remaining: Some(0) } if code == "user_daily_limit_reached" => {
                assert!(rows.iter().any(|row| row.user_id == wish.user), "{} has no claim", wish.user);
            }
            other => panic!("{wish:?}: {other:?}"),
        }
    }
    assert_eq!((users.len(), sequences), (100, (1..=100).collect()));
    assert!(rows.iter().all(|row| users.contains(&row.user_id)), "SQL has other winners");
    checker.judge_without_loss(&core).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_quantities_are_granted_whole_or_not_at_all() {
    let _turn = heavy().await;
    let core = Core::start().await;
    core.create("mixed", json!({"total": 1500, "per_user": 7, "per_claim": 4})).await;
    let mut rng = Rng::seeded("mixed_quantities");
    let claim_attempts: Vec<_> = claim_attempts(400, 4)
        .into_iter()
        .map(|wish| ClaimAttempt { units: u32::try_from(rng.within(1, 5)).unwrap(), ..wish })
        .collect();
    let limits = Limits { total: Some(1500), per_user: Some(7), per_user_per_day: None };
    let checker = Checker::new("mixed", limits);
    checker.storm(core.client(), || core.url("/internal/v1/claims"), &claim_attempts, 800).await;
    checker.resolve_unknown(&core).await;
    let seen = checker.outcomes();
    let mut of_user = BTreeMap::<&str, u64>::new();
    for (wish, seen) in &seen {
        if let ClaimOutcome::Claimed { .. } = seen {
            *of_user.entry(&wish.user).or_default() += u64::from(wish.units);
        }
    }
    let granted: u64 = of_user.values().sum();
    for (wish, seen) in &seen {
        match seen {
            ClaimOutcome::Claimed { replayed: false, .. } => {
                assert!(wish.units <= 4, "{wish:?} exceeds per_claim");
            }
            ClaimOutcome::Denied { code, .. } if wish.units == 5 => assert_eq!(code, "quantity_out_of_range"),
            ClaimOutcome::Denied { code, remaining: Some(left) } if code == "sold_out" => {
                assert!(*left < u64::from(wish.units), "{wish:?} was denied with {left} units left");
            }
            ClaimOutcome::Denied { code, remaining: Some(left) } if code == "user_limit_reached" => {
                assert!(*left < u64::from(wish.units), "{wish:?} was denied with an allowance of {left}");
                assert!(of_user[wish.user.as_str()] + u64::from(wish.units) > 7, "{wish:?}");
            }
            other => panic!("{wish:?}: {other:?}"),
        }
    }
    checker.settle(&[&core], &core.redis().await).await;
    let left = core.campaign("mixed").await["remaining"].as_u64().unwrap();
    assert_eq!(left, 1500 - granted);
    let rest = join_all((0..left + 5).map(|at| {
        let (core, checker) = (&core, &checker);
        async move { checker.decided(SOON, core, &format!("late{at}"), "k").await }
    }));
    let rest = rest.await.into_iter().filter(|seen| matches!(seen, ClaimOutcome::Claimed { .. })).count();
    assert_eq!(rest as u64, left, "the remaining units can be claimed one by one");
    checker.judge_without_loss(&core).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_sent_concurrently_makes_one_claim() {
    let _turn = heavy().await;
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let replies = join_all((0..300).map(|_| core.claim("demo", "alice", "k"))).await;
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    let made = statuses.iter().filter(|status| **status == 201).count();
    // The 201 may be among the lost responses.
    let is_repeated = replies.iter().any(|reply| reply.repeats > 0);
    assert!(made == 1 || (made == 0 && is_repeated), "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 300 - made, "{statuses:?}");
    let claims: BTreeSet<_> = replies.iter().map(|reply| reply.json()["claim"].to_string()).collect();
    assert_eq!(claims.len(), 1, "{claims:?}");
    assert_eq!(core.campaign("demo").await["remaining"], 9);
    assert_eq!(core.sql().until("demo", 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn campaigns_do_not_affect_each_other() {
    let _turn = heavy().await;
    let core = Core::start().await;
    let limits = Limits { total: Some(20), per_user: Some(1), per_user_per_day: None };
    let mut checkers = Vec::new();
    for at in 0..5 {
        checkers.push(Checker::create(&core, &format!("c{at}"), limits).await);
    }
    let (claim_attempts, url) = (claim_attempts(60, 1), || core.url("/internal/v1/claims"));
    join_all(checkers.iter().map(|checker| checker.storm(core.client(), url, &claim_attempts, 60))).await;
    for checker in &checkers {
        checker.resolve_unknown(&core).await;
        assert_eq!(checker.acknowledged().len(), 20, "{}", checker.campaign());
        checker.judge_without_loss(&core).await;
    }
}
