//! Stampedes: exactly up to the limits, and each key once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use futures_util::future::join_all;
use serde_json::json;
use support::rng::Rng;
use support::storm::{Bounds, Seen, Wish, check, resolve_unknown, storm, wishes};
use support::wait::holds;
use support::{Core, SOON, eventually, heavy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_at_once_get_exactly_what_there_is() {
    let _turn = heavy().await;
    let core = Core::start().await;
    core.create("demo", json!({"total": 100, "per_user": 3, "per_user_per_day": 1})).await;
    let wishes = wishes(1000, 2);
    let started = Instant::now();
    let mut seen = storm(&core, "demo", &wishes, wishes.len(), &AtomicUsize::new(0)).await;
    resolve_unknown(&core, "demo", &mut seen).await;
    let decided = Instant::now();
    println!("2,000 claims at once decided in {:?}", decided - started);
    let rows = eventually(SOON, || async {
        let rows = core.sql().claims("demo").await;
        holds(rows.len() == 100, || format!("{} rows in SQL", rows.len())).map(|()| rows)
    })
    .await;
    println!("100 rows in SQL {:?} after the last answer", decided.elapsed());
    let (mut users, mut sequences) = (BTreeSet::new(), BTreeSet::new());
    for (wish, seen) in &seen {
        match seen {
            Seen::Claimed { sequence, replayed: false, remaining, .. } => {
                assert!(users.insert(&wish.user), "{} won twice", wish.user);
                assert!(sequences.insert(*sequence), "sequence {sequence} twice");
                let left = remaining.unwrap_or(100 - sequence);
                assert_eq!(left, 100 - sequence, "what was left after sequence {sequence}");
            }
            Seen::Denied { code, remaining: Some(0) } if code == "sold_out" => {}
            Seen::Denied { code, remaining: Some(0) } if code == "user_daily_limit_reached" => {
                assert!(rows.iter().any(|row| row.user_id == wish.user), "{} has won nothing", wish.user);
            }
            other => panic!("{wish:?}: {other:?}"),
        }
    }
    assert_eq!((users.len(), sequences), (100, (1..=100).collect()));
    assert!(rows.iter().all(|row| users.contains(&row.user_id)), "SQL knows other winners");
    check(&core, "demo", &seen, Bounds { total: 100, per_user: 1 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_quantities_are_each_given_whole_or_not_at_all() {
    let _turn = heavy().await;
    let core = Core::start().await;
    core.create("mixed", json!({"total": 1500, "per_user": 7, "per_claim": 4})).await;
    let mut rng = Rng::seeded("mixed_quantities");
    let wishes: Vec<_> = wishes(400, 4)
        .into_iter()
        .map(|wish| Wish { units: u32::try_from(rng.within(1, 5)).unwrap(), ..wish })
        .collect();
    let mut seen = storm(&core, "mixed", &wishes, 800, &AtomicUsize::new(0)).await;
    resolve_unknown(&core, "mixed", &mut seen).await;
    let mut of_user = BTreeMap::<&str, u64>::new();
    for (wish, seen) in &seen {
        if let Seen::Claimed { .. } = seen {
            *of_user.entry(&wish.user).or_default() += u64::from(wish.units);
        }
    }
    let granted: u64 = of_user.values().sum();
    for (wish, seen) in &seen {
        match seen {
            Seen::Claimed { replayed: false, .. } => assert!(wish.units <= 4, "{wish:?} passed per_claim"),
            Seen::Denied { code, .. } if wish.units == 5 => assert_eq!(code, "quantity_out_of_range"),
            Seen::Denied { code, remaining: Some(left) } if code == "sold_out" => {
                assert!(*left < u64::from(wish.units), "{wish:?} was refused with {left} left");
            }
            Seen::Denied { code, remaining: Some(left) } if code == "user_limit_reached" => {
                assert!(*left < u64::from(wish.units), "{wish:?} was refused with {left} left to its user");
                assert!(of_user[wish.user.as_str()] + u64::from(wish.units) > 7, "{wish:?}");
            }
            other => panic!("{wish:?}: {other:?}"),
        }
    }
    check(&core, "mixed", &seen, Bounds { total: 1500, per_user: 7 }).await;
    let left = core.campaign("mixed").await["remaining"].as_u64().unwrap();
    assert_eq!(left, 1500 - granted);
    let rest = join_all((0..left + 5).map(|at| {
        let core = &core;
        async move { core.claim("mixed", &format!("late{at}"), "k").await.is_created() }
    }));
    let rest = rest.await.into_iter().filter(|is_created| *is_created).count();
    assert_eq!(rest as u64, left, "the rest can be had singly");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_asked_many_times_at_once_is_one_claim() {
    let _turn = heavy().await;
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let asked = join_all((0..300).map(|_| core.claim("demo", "alice", "k"))).await;
    let statuses: Vec<_> = asked.iter().map(|reply| reply.status).collect();
    let made = statuses.iter().filter(|status| **status == 201).count();
    // The answer that would have been 201 may be a lost one.
    let is_repeated = asked.iter().any(|reply| reply.repeats > 0);
    assert!(made == 1 || (made == 0 && is_repeated), "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 300 - made, "{statuses:?}");
    let claims: BTreeSet<_> = asked.iter().map(|reply| reply.json()["claim"].to_string()).collect();
    assert_eq!(claims.len(), 1, "{claims:?}");
    assert_eq!(core.campaign("demo").await["remaining"], 9);
    assert_eq!(core.sql().until("demo", 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn campaigns_do_not_mix() {
    let _turn = heavy().await;
    let core = Core::start().await;
    let names: Vec<_> = (0..5).map(|at| format!("c{at}")).collect();
    for name in &names {
        core.create(name, json!({"total": 20, "per_user": 1})).await;
    }
    let (wishes, count) = (wishes(60, 1), AtomicUsize::new(0));
    let storms = names.iter().map(|name| storm(&core, name, &wishes, 60, &count));
    for (name, mut seen) in names.iter().zip(join_all(storms).await) {
        resolve_unknown(&core, name, &mut seen).await;
        check(&core, name, &seen, Bounds { total: 20, per_user: 1 }).await;
        let granted = seen.values().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
        assert_eq!(granted, 20, "{name}");
    }
}
