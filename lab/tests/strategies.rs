//! Every strategy at small size, against a real Redis and a real PostgreSQL.

// Test code throughout, also in functions that are not tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use claimgate_lab::app::App;
use claimgate_lab::backoff::unique;
use claimgate_lab::judge;
use claimgate_lab::manager::{Attempt, Expectation, PerUser, Reduced, StockError, Strategy};
use claimgate_lab::measure::{self, Plan};
use claimgate_lab::servers::Servers;
use claimgate_lab::strategies::{STRATEGIES, named};
use claimgate_lab::workload::{self, Kind, Quantities};
use support::RedisServer;
use support::process::free_address;

const WAIT_MAX: Duration = Duration::from_secs(10);

/// A mistake that is a race shows when the scheduler pleases: it has this many small runs to do so.
const RUNS_MAX: usize = 20;

fn plan() -> Plan {
    Plan {
        stock: 100,
        contenders: vec![200],
        tasks: vec![4],
        rounds: 1,
        cut: Duration::from_secs(5),
        hot: Duration::from_millis(40),
        program: PathBuf::from(env!("CARGO_BIN_EXE_lab")),
    }
}

/// What a run does, at small size: every strategy does what it is known to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_does_what_it_is_known_to_do() {
    let servers = Servers::start().await.unwrap();
    let (servers, plan) = (&servers, &plan());
    // In parallel: most of the time is spent waiting for leases to end.
    let queue = |number: usize| async move {
        for strategy in STRATEGIES.iter().skip(number).step_by(4) {
            let mut hidden = Vec::new();
            for _ in 0..RUNS_MAX {
                let row = measure::run(servers, strategy, plan).await.unwrap();
                assert_eq!(judge::broken_promises(&row), Vec::<String>::new(), "{}", strategy.name);
                hidden = judge::mistakes_not_shown(&row);
                if hidden.is_empty() {
                    break;
                }
            }
            assert_eq!(hidden, Vec::<String>::new(), "{} in {RUNS_MAX} runs", strategy.name);
        }
    };
    tokio::join!(queue(0), queue(1), queue(2), queue(3));
}

/// Init, take, give back, look: the same of each, one caller at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_takes_and_gives_back() {
    let servers = Servers::start().await.unwrap();
    for strategy in STRATEGIES {
        let (apps, key) =
            (App::start_all(&servers.addresses, strategy.instances).unwrap(), unique().unwrap());
        let managers = strategy.managers(&apps, &key).await.unwrap();
        let (first, last) = (&managers[0], managers.last().unwrap());
        first.init(5).await.unwrap();
        let attempt = |user, quantity| Attempt::new(user, quantity, WAIT_MAX);
        let (alice, bob, carol) = (attempt("alice", 3), attempt("bob", 3), attempt("carol", 2));
        let name = strategy.name;
        assert_eq!(last.reduce(&alice).await.unwrap(), Reduced::Taken, "{name}");
        assert_eq!(first.reduce(&bob).await.unwrap(), Reduced::SoldOut, "{name}");
        assert_eq!(first.get().await.unwrap(), 2, "{name}");
        last.give_back(&alice).await.unwrap();
        assert_eq!(first.get().await.unwrap(), 5, "{name}");
        assert_eq!(first.reduce(&bob).await.unwrap(), Reduced::Taken, "{name}");
        assert_eq!(last.reduce(&carol).await.unwrap(), Reduced::Taken, "{name}");
        if strategy.per_user != PerUser::Any {
            let again = last.reduce(&bob).await.unwrap();
            assert!(matches!(again, Reduced::HadAlready | Reduced::Limited(_)), "{name}: {again:?}");
        }
        let none = first.reduce(&attempt("dave", 1)).await.unwrap();
        assert_eq!((none, last.get().await.unwrap()), (Reduced::SoldOut, 0), "{name}");
        for app in apps {
            app.stop().await;
        }
    }
}

/// The judge is not asleep: the same strategy under a promise that it does not keep is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_not_kept_is_told() {
    let servers = Servers::start().await.unwrap();
    for (name, expectation, told) in [
        ("redis_read_then_write", Expectation::Exact, "oversold by"),
        ("redis_read_then_write", Expectation::NeverOver, "oversold by"),
        ("script_stock", Expectation::Oversells, "did not oversell"),
        ("script_stock", Expectation::WrongRelease, "freed no other caller's lock"),
    ] {
        let known = named(&[name.to_owned()]).unwrap()[0];
        let strategy: &'static Strategy =
            Box::leak(Box::new(Strategy { expectation, findings: None, ..*known }));
        must_be_told(&servers, strategy, told).await;
    }
    let known = named(&["conditional_update".to_owned()]).unwrap()[0];
    must_be_told(&servers, Box::leak(Box::new(known.per_user(PerUser::Once))), "users got more").await;
    let known = named(&["row_lock".to_owned()]).unwrap()[0];
    must_be_told(&servers, Box::leak(Box::new(known.stuck_after_crash())), "after the crash").await;
}

/// Runs `strategy` until the judge says `told`, at most [`RUNS_MAX`] times.
async fn must_be_told(servers: &Servers, strategy: &'static Strategy, told: &str) {
    let mut complaints = Vec::new();
    for _ in 0..RUNS_MAX {
        complaints = judge::complaints(&measure::run(servers, strategy, &plan()).await.unwrap());
        if complaints.iter().any(|one| one.contains(told)) {
            return;
        }
    }
    panic!("{} as {}: {complaints:?}", strategy.name, strategy.expectation);
}

/// What counts as oversold and undersold, by hand.
#[test]
fn rounds_are_counted_by_what_callers_were_told() {
    let round = |granted_units, refused_units_min| workload::Round {
        stock: 10,
        granted_units,
        refused_units_min,
        ..workload::Round::default()
    };
    assert_eq!((round(13, None).oversold(), round(13, None).undersold()), (3, 0));
    assert_eq!(round(8, Some(2)).undersold(), 2, "two were left, and a caller who asked for two was refused");
    assert_eq!(round(8, Some(3)).undersold(), 0, "no caller was refused what there was");
    assert_eq!(
        round(8, None).undersold(),
        0,
        "no caller was refused: there was no more demand, or the round was cut"
    );
    assert_eq!(round(10, Some(1)).undersold(), 0);
}

/// A lock that is never freed: the next caller waits until its timeout, and is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_expiry_stays_with_its_crashed_holder() {
    let servers = Servers::start().await.unwrap();
    let (apps, key) = (App::start_all(&servers.addresses, 2).unwrap(), unique().unwrap());
    let strategy = named(&["15".to_owned()]).unwrap()[0];
    let managers = strategy.managers(&apps, &key).await.unwrap();
    managers[0].init(5).await.unwrap();
    drop(managers[0].hold(&Attempt::new("crashed", 1, WAIT_MAX)).await.unwrap());
    let next = managers[1].reduce(&Attempt::new("next", 1, Duration::from_millis(300))).await;
    assert!(matches!(next, Err(StockError::TimedOut)), "{next:?}");
}

/// Each of the three limits is named by the one that refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_limits_are_told_apart() {
    let servers = Servers::start().await.unwrap();
    let (apps, key) = (App::start_all(&servers.addresses, 1).unwrap(), unique().unwrap());
    let manager =
        named(&["script_limits".to_owned()]).unwrap()[0].managers(&apps, &key).await.unwrap().remove(0);
    manager.init(4).await.unwrap();
    let tries = async |user| manager.reduce(&Attempt::new(user, 3, WAIT_MAX)).await.unwrap();
    assert_eq!(tries("alice").await, Reduced::Taken);
    assert_eq!(tries("alice").await, Reduced::Limited("user per day"));
    let day = claimgate_core::clock::now().as_ms() / 86_400_000;
    let mut tomorrow = ::redis::cmd("DEL");
    tomorrow.arg(format!("lab:{{{key}}}:users:{day}"));
    apps[0].redis.ask::<()>(&tomorrow).await.unwrap();
    assert_eq!(tries("alice").await, Reduced::Limited("user"));
    assert_eq!(tries("bob").await, Reduced::SoldOut);
}

/// A full queue pushes back: who finds no place in time is not told that they have won, and nothing was taken for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_pushes_back() {
    let servers = Servers::start().await.unwrap();
    let apps = App::start_all(&servers.addresses, 1).unwrap();
    let strategy = named(&["process_queue".to_owned()]).unwrap()[0];
    let kind = Kind::Contest { stock: 1000, contenders: 500, quantities: Quantities::One, alone: false };
    // Cut at once: most have neither a place in the queue nor an answer by then.
    let key = unique().unwrap();
    let round = workload::run(&servers, strategy, &apps, &key, kind, Duration::from_millis(5)).await.unwrap();
    assert!(round.undecided > 0, "{round:?}");
    assert!(round.store_agrees() && round.failed.0 == 0, "{round:?}");
}

/// In a cluster a script may touch keys of one slot only: a hash tag keeps a stock's keys together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_refuses_keys_of_two_slots() {
    let (address, bus) = (free_address(), free_address());
    let (host, port, bus) = (address.ip().to_string(), address.port().to_string(), bus.port().to_string());
    let settings = [
        ("cluster-enabled", "yes"),
        ("bind", &host),
        ("port", &port),
        ("cluster-port", &bus),
        ("cluster-node-timeout", "1000"),
    ];
    let server = RedisServer::start_with(&settings, &[]).await;
    let view = server.view().await;
    view.query::<String>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    support::eventually(support::SOON, || async {
        let info: String = view.try_query(&["CLUSTER", "INFO"]).await?;
        if info.contains("cluster_state:ok") { Ok(()) } else { Err(info) }
    })
    .await;
    let script = "return redis.call('INCR', KEYS[1]) + redis.call('INCR', KEYS[2])";
    let refused = view.try_query::<i64>(&["EVAL", script, "2", "stock:seat", "stock:ticket"]).await;
    let refused = refused.unwrap_err();
    assert!(refused.contains("CROSSSLOT") || refused.contains("same slot"), "{refused}");
    let done = view.try_query::<i64>(&["EVAL", script, "2", "{stock}:seat", "{stock}:ticket"]).await;
    assert_eq!(done, Ok(2));
}

/// As with `lab --list | head -1`, once head has ended.
#[test]
fn a_list_whose_reader_has_gone_ends_quietly() {
    let (_, writer) = std::io::pipe().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lab")).arg("--list").stdout(writer).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
