//! Tests every strategy at small size, with a real Redis and a real PostgreSQL.

// All of this is test code, including the helper functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use claimgate_lab::app::App;
use claimgate_lab::backoff::unique;
use claimgate_lab::error::StockError;
use claimgate_lab::judge;
use claimgate_lab::manager::{Attempt, Expectation, PerUser, ReduceResult, Strategy};
use claimgate_lab::measure::{self, Plan};
use claimgate_lab::servers::Servers;
use claimgate_lab::strategies::{STRATEGIES, select};
use claimgate_lab::workload::{self, Kind, Quantities};
use support::process::free_address;
use support::{RedisServer, SOON};

/// A race depends on scheduling, so a mistake may take this many small runs to appear.
const RUNS_MAX: usize = 20;

fn plan() -> Plan {
    Plan {
        stock: 100,
        contenders: vec![200],
        tasks: vec![4],
        rounds: 1,
        // Far more than any strategy takes on a slow machine.
        cut: Duration::from_secs(20),
        hot: Duration::from_millis(40),
        program: PathBuf::from(env!("CARGO_BIN_EXE_lab")),
    }
}

/// Runs all measurements at small size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_shows_its_known_behaviour() {
    let servers = Servers::start().await.unwrap();
    let (servers, plan) = (&servers, &plan());
    // In parallel, because most of the time is spent waiting for leases to end.
    let queue = |number: usize| async move {
        for strategy in STRATEGIES.iter().skip(number).step_by(4) {
            let mut hidden = Vec::new();
            for _ in 0..RUNS_MAX {
                let row = measure::run(servers, strategy, plan).await.unwrap();
                assert_eq!(judge::broken_promises(&row), Vec::<String>::new(), "{}", strategy.name);
                hidden = judge::mistakes_not_reproduced(&row);
                if hidden.is_empty() {
                    break;
                }
            }
            assert_eq!(hidden, Vec::<String>::new(), "{} in {RUNS_MAX} runs", strategy.name);
        }
    };
    tokio::join!(queue(0), queue(1), queue(2), queue(3));
}

/// Runs the same steps for every strategy: initialize, take, return and read, one caller at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_takes_and_returns_units() {
    let servers = Servers::start().await.unwrap();
    for strategy in STRATEGIES {
        let (apps, key) =
            (App::start_all(&servers.addresses, strategy.instances).unwrap(), unique().unwrap());
        let managers = strategy.managers(&apps, &key).unwrap();
        let (first, last) = (&managers[0], managers.last().unwrap());
        first.init(5).await.unwrap();
        let attempt = |user, quantity| Attempt::new(user, quantity, SOON);
        let (alice, bob, carol) = (attempt("alice", 3), attempt("bob", 3), attempt("carol", 2));
        let name = strategy.name;
        assert_eq!(last.reduce(&alice).await.unwrap(), ReduceResult::Taken, "{name}");
        assert_eq!(first.reduce(&bob).await.unwrap(), ReduceResult::SoldOut, "{name}");
        assert_eq!(first.get().await.unwrap(), 2, "{name}");
        last.return_units(&alice).await.unwrap();
        assert_eq!(first.get().await.unwrap(), 5, "{name}");
        assert_eq!(first.reduce(&bob).await.unwrap(), ReduceResult::Taken, "{name}");
        assert_eq!(last.reduce(&carol).await.unwrap(), ReduceResult::Taken, "{name}");
        if strategy.per_user != PerUser::Any {
            let again = last.reduce(&bob).await.unwrap();
            assert!(
                matches!(again, ReduceResult::AlreadyTaken | ReduceResult::Limited(_)),
                "{name}: {again:?}"
            );
        }
        let none = first.reduce(&attempt("dave", 1)).await.unwrap();
        assert_eq!((none, last.get().await.unwrap()), (ReduceResult::SoldOut, 0), "{name}");
        for app in apps {
            app.stop().await;
        }
    }
}

/// Checks the judge: it must report a strategy that does not keep its promise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_judge_reports_broken_promises() {
    let servers = Servers::start().await.unwrap();
    for (name, expectation, expected) in [
        ("redis_read_then_write", Expectation::Exact, "oversold by"),
        ("redis_read_then_write", Expectation::NeverOver, "oversold by"),
        ("script_stock", Expectation::Oversells, "did not oversell"),
        ("script_stock", Expectation::WrongRelease, "released no other caller's lock"),
    ] {
        let known = select(&[name.to_owned()]).unwrap()[0];
        let strategy: &'static Strategy =
            Box::leak(Box::new(Strategy { expectation, findings: None, ..*known }));
        expect_deviation(&servers, strategy, expected).await;
    }
    let known = select(&["conditional_update".to_owned()]).unwrap()[0];
    expect_deviation(&servers, Box::leak(Box::new(known.per_user(PerUser::Once))), "users got more").await;
    let known = select(&["row_lock".to_owned()]).unwrap()[0];
    expect_deviation(&servers, Box::leak(Box::new(known.stuck_after_crash())), "after the crash").await;
}

/// Runs `strategy` until the judge reports `expected`, at most [`RUNS_MAX`] times.
async fn expect_deviation(servers: &Servers, strategy: &'static Strategy, expected: &str) {
    let mut deviations = Vec::new();
    for _ in 0..RUNS_MAX {
        deviations = judge::deviations(&measure::run(servers, strategy, &plan()).await.unwrap());
        if deviations.iter().any(|one| one.contains(expected)) {
            return;
        }
    }
    panic!("{} as {}: {deviations:?}", strategy.name, strategy.expectation);
}

#[test]
fn overselling_is_judged_by_the_callers_results() {
    let round = |granted_units, denied_units_min| workload::Round {
        stock: 10,
        granted_units,
        denied_units_min,
        ..workload::Round::default()
    };
    assert_eq!((round(13, None).oversold(), round(13, None).undersold()), (3, 0));
    assert_eq!(round(8, Some(2)).undersold(), 2, "two were left, and a caller who requested two was denied");
    assert_eq!(round(8, Some(3)).undersold(), 0, "no caller was denied available units");
    assert_eq!(round(8, None).undersold(), 0, "no caller was denied: demand ended, or the round did");
    assert_eq!(round(10, Some(1)).undersold(), 0);
}

/// The lock is never freed, so the next caller times out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_expiry_stays_with_its_crashed_holder() {
    let servers = Servers::start().await.unwrap();
    let (apps, key) = (App::start_all(&servers.addresses, 2).unwrap(), unique().unwrap());
    let strategy = select(&["15".to_owned()]).unwrap()[0];
    let managers = strategy.managers(&apps, &key).unwrap();
    managers[0].init(5).await.unwrap();
    drop(managers[0].hold(&Attempt::new("crashed", 1, SOON)).await.unwrap());
    let next = managers[1].reduce(&Attempt::new("next", 1, Duration::from_millis(300))).await;
    assert!(matches!(next, Err(StockError::TimedOut)), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_names_its_limit() {
    let servers = Servers::start().await.unwrap();
    let (apps, key) = (App::start_all(&servers.addresses, 1).unwrap(), unique().unwrap());
    let manager = select(&["script_limits".to_owned()]).unwrap()[0].managers(&apps, &key).unwrap().remove(0);
    manager.init(4).await.unwrap();
    let tries = async |user| manager.reduce(&Attempt::new(user, 3, SOON)).await.unwrap();
    assert_eq!(tries("alice").await, ReduceResult::Taken);
    assert_eq!(tries("alice").await, ReduceResult::Limited("user per day"));
    let day = claimgate_core::clock::now().as_ms() / 86_400_000;
    let mut tomorrow = ::redis::cmd("DEL");
    tomorrow.arg(format!("lab:{{{key}}}:users:{day}"));
    apps[0].redis.query::<()>(&tomorrow).await.unwrap();
    assert_eq!(tries("alice").await, ReduceResult::Limited("user"));
    assert_eq!(tries("bob").await, ReduceResult::SoldOut);
}

/// A caller who gets no slot in time gets no grant, and no units are taken for that caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_wait_while_the_queue_is_full() {
    let servers = Servers::start().await.unwrap();
    let apps = App::start_all(&servers.addresses, 1).unwrap();
    let strategy = select(&["process_queue".to_owned()]).unwrap()[0];
    let kind =
        Kind::Contest { stock: 1000, contenders: 500, quantities: Quantities::One, one_instance: false };
    // Ends almost immediately, when most callers have neither a slot in the queue nor a response.
    let key = unique().unwrap();
    let round = workload::run(&servers, strategy, &apps, &key, kind, Duration::from_millis(5)).await.unwrap();
    assert!(round.undecided > 0, "{round:?}");
    assert!(round.store_agrees() && round.failed.0 == 0, "{round:?}");
}

/// In a cluster, a script may only touch keys of one slot. A hash tag keeps a stock's keys together.
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

/// The reader closes the pipe, as `head -1` does in `lab --list | head -1`.
#[test]
fn a_closed_pipe_ends_the_list_without_an_error() {
    let (_, writer) = std::io::pipe().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lab")).arg("--list").stdout(writer).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
