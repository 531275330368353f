//! Core killed, stalled, slow and restarted behind the edge: browsers hear "unknown, ask again", soon, and nothing
//! that is not so.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use support::edge::{Runtime, World};
use support::postgres::Postgres;
use support::process::{Signal, signal_pid};
use support::raw::Raw;
use support::wait::holds;
use support::{CoreOptions, Reply, eventually};
use tokio::sync::{MutexGuard, OnceCell};

use super::edge::run_alone;

/// How long any browser may wait.
const ANSWER_MAX: Duration = Duration::from_millis(2_500);
/// Far less than what a call that core does not answer takes.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Until claims flow again.
const BACK_MAX: Duration = Duration::from_secs(5);
/// How long each fault lasts.
const FAULT: Duration = Duration::from_secs(4);
const BROWSERS: usize = 8;
/// Calls without an answer after which the edge gives core up.
const FAILURES_MAX: u128 = 5;

async fn world() -> MutexGuard<'static, World> {
    static WORLD: OnceCell<tokio::sync::Mutex<World>> = OnceCell::const_new();
    let start =
        || async { tokio::sync::Mutex::new(World::start(Runtime::asked(), "edge-core", "test", &[]).await) };
    let mut world = WORLD.get_or_init(start).await.lock().await;
    world.heal().await;
    world
}

/// Browsers that claim, each a new user, as long as they are let.
struct Crowd<'a> {
    world: &'a World,
    campaign: &'a str,
    is_over: AtomicBool,
    users: AtomicUsize,
    seen: Mutex<Vec<Seen>>,
}

/// An answer.
#[derive(Debug)]
struct Seen {
    reply: Reply,
    took: Duration,
    asked_at: Instant,
}

impl<'a> Crowd<'a> {
    fn new(world: &'a World, campaign: &'a str) -> Self {
        let (is_over, users, seen) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::default());
        Self { world, campaign, is_over, users, seen }
    }

    /// Claims until `fault` is over and a claim asked for after that has been granted; how long that took.
    async fn through<T>(&self, fault: impl Future<Output = T>) -> (Vec<Seen>, Duration, T) {
        let browsers = join_all((0..BROWSERS).map(|_| self.browse()));
        let end = async {
            let result = fault.await;
            let over_at = Instant::now();
            eventually(BACK_MAX * 2, || async {
                holds(self.is_back(over_at), || "no claim was granted".to_owned())
            })
            .await;
            self.is_over.store(true, Ordering::SeqCst);
            (over_at.elapsed(), result)
        };
        let (_, (back_after, result)) = tokio::join!(browsers, end);
        let seen = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        (seen, back_after, result)
    }

    async fn browse(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            let user = format!("u{}", self.users.fetch_add(1, Ordering::SeqCst));
            let asked_at = Instant::now();
            let request = self.world.first_try_request(self.campaign, &user, "k");
            let reply = self.world.send_once(request).await;
            let pause = if reply.status == 503 { Duration::from_millis(20) } else { Duration::ZERO };
            let seen = Seen { reply, took: asked_at.elapsed(), asked_at };
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
            tokio::time::sleep(pause).await;
        }
    }

    fn is_back(&self, since: Instant) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().any(|seen| seen.asked_at >= since && seen.reply.status == 201)
    }
}

/// Every answer is a grant, or a 503 that says when to ask again; none is late. How many of each.
fn honest(fault: &str, (seen, back_after): (&[Seen], Duration)) -> (usize, usize) {
    let (mut granted, mut unknown) = (0, 0);
    for Seen { reply, took, .. } in seen {
        assert!(*took < ANSWER_MAX, "{fault}: {took:?} for {}", reply.text());
        if reply.status == 503 {
            assert!(reply.header("retry-after").parse::<u32>().is_ok_and(|s| s >= 1), "{fault}: {reply:?}");
            unknown += 1;
        } else {
            assert!(matches!(reply.status, 200 | 201), "{fault}: {} {}", reply.status, reply.text());
            granted += 1;
        }
    }
    let slowest = seen.iter().map(|seen| seen.took).max().unwrap_or_default();
    println!(
        "core {fault}: {granted} granted, {unknown} told 503, the slowest after {slowest:.1?}; \
         claims again after {back_after:.1?}"
    );
    assert!(back_after < BACK_MAX, "{fault}: claims flow again only after {back_after:?}");
    (granted, unknown)
}

async fn campaign(world: &World, id: &str) {
    world.core.create(id, json!({"total": 1_000_000})).await;
    // A test that failed may have left the edge without trust in core.
    eventually(BACK_MAX, || async {
        let reply = world.view(id).await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
    let _ = world.first_try(id, "before", "k").await.expect(201);
}

#[test]
fn killed_and_restarted() {
    run_alone(async {
        let mut world = world().await;
        campaign(&world, "killed").await;
        let crowd = Crowd::new(&world, "killed");
        let restart = async {
            signal_pid(world.core.pid(), Signal::KILL);
            tokio::time::sleep(FAULT).await;
            let core = world.core.restart().await;
            world.proxy.lead_to(core.listen());
            core
        };
        let (seen, back_after, core) = crowd.through(restart).await;
        let (granted, unknown) = honest("killed", (&seen, back_after));
        assert!(granted > 0 && unknown > 0);
        drop(crowd);
        world.core = core;
        // Of those who were told "unknown" some have won, too.
        let taken = usize::try_from(world.core.redis().await.counter("killed", "taken").await).unwrap();
        assert!(taken > granted, "{granted} were granted, and one before; {taken} taken");
        assert_eq!(world.core.sql().until("killed", taken).await.len(), taken);
    });
}

#[test]
fn stalled() {
    run_alone(async {
        let world = world().await;
        campaign(&world, "stalled").await;
        let crowd = Crowd::new(&world, "stalled");
        let stall = async {
            signal_pid(world.core.pid(), Signal::STOP);
            tokio::time::sleep(FAULT).await;
            signal_pid(world.core.pid(), Signal::CONT);
        };
        let (seen, back_after, ()) = crowd.through(stall).await;
        let (_, unknown) = honest("stalled", (&seen, back_after));
        let at_once = seen.iter().filter(|seen| seen.reply.status == 503 && seen.took < ANSWER_MAX / 10);
        let at_once = at_once.count();
        assert!(at_once * 2 > unknown, "only {at_once} of {unknown} were spared the wait");
    });
}

/// Who looks at a campaign that the edge does not know waits for another's call, and then not for one of their own, too.
#[test]
fn views_that_wait_for_a_stalled_core_are_answered_in_time() {
    run_alone(async {
        let world = world().await;
        campaign(&world, "other").await;
        signal_pid(world.core.pid(), Signal::STOP);
        let looks = (0..8).map(|n| {
            let world = &world;
            async move {
                tokio::time::sleep(Duration::from_millis(100 * n)).await;
                let began = Instant::now();
                let reply = world.send_once(world.view_request("unseen")).await;
                (reply, began.elapsed())
            }
        });
        let seen = join_all(looks).await;
        signal_pid(world.core.pid(), Signal::CONT);
        for (reply, took) in seen {
            assert!(took < ANSWER_MAX, "{took:?}");
            assert_eq!(reply.refused(503, "unavailable").header("retry-after"), "1");
        }
        eventually(BACK_MAX, || async {
            let reply = world.view("other").await;
            holds(reply.status == 200, || reply.text())
        })
        .await;
    });
}

/// What a browser has begun is completed: no other browser waits for what will never come.
#[test]
fn a_browser_that_leaves_keeps_no_other_waiting() {
    run_alone(async {
        let world = world().await;
        world.core.create("left", json!({"total": 5})).await;
        world.proxy.delay_answers(Duration::from_millis(700));
        let mut raw = Raw::connect(world.edge.listen).await;
        raw.send(format!("GET /v1/campaigns/left HTTP/1.1\r\nHost: {}\r\n\r\n", world.edge.listen)).await;
        eventually(BACK_MAX, || async {
            let asked = !world.proxy.said("GET /internal/v1/campaigns/left ").is_empty();
            holds(asked, || "core was not asked".to_owned())
        })
        .await;
        raw.reset();
        let began = Instant::now();
        let reply = world.view("left").await;
        world.proxy.delay_answers(Duration::ZERO);
        let _ = reply.expect(200);
        assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
    });
}

#[test]
fn the_log_names_no_user() {
    run_alone(async {
        let world = world().await;
        campaign(&world, "logged").await;
        world.proxy.lose_all_answers(true);
        let claim = world.claim_request("logged", "alice").header("CF-Connecting-IP", "203.0.113.77");
        let refused = world.send_once(claim).await;
        world.proxy.lose_all_answers(false);
        let _ = refused.refused(503, "unavailable");
        eventually(BACK_MAX, || async {
            holds(world.edge.log().contains("no answer from core"), || world.edge.log())
        })
        .await;
        let log = world.edge.log();
        // "eyJ": how every token begins.
        for secret in ["eyJ", "203.0.113.77", "Bearer"] {
            assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
        }
    });
}

#[test]
fn slow() {
    run_alone(async {
        let world = world().await;
        campaign(&world, "slow").await;
        world.proxy.delay_answers(Duration::from_millis(700));
        let _ = world.first_try("slow", "patient", "k").await.expect(201);
        let crowd = Crowd::new(&world, "slow");
        let slow = async {
            world.proxy.delay_answers(Duration::from_secs(3));
            tokio::time::sleep(FAULT).await;
            world.proxy.delay_answers(Duration::ZERO);
        };
        let (seen, back_after, ()) = crowd.through(slow).await;
        let (_, unknown) = honest("slow", (&seen, back_after));
        assert!(unknown > 0);
        drop(crowd);
        // Decided all the same: who was told "unknown" meets one claim.
        let _ = world.claim("slow", "u0", "k").await.expect(200);
    });
}

#[test]
fn a_dead_core_is_not_called_again_and_again() {
    run_alone(async {
        let mut world = world().await;
        campaign(&world, "dead").await;
        world.core.kill();
        let calls = |world: &World| world.proxy.accepted();
        eventually(BACK_MAX, || async {
            let before = calls(&world);
            let refused = world.claim_once("dead", "alice", "k").await.refused(503, "unavailable");
            assert!(!refused.header("retry-after").is_empty());
            holds(calls(&world) == before, || "core is still called".to_owned())
        })
        .await;
        let before = calls(&world);
        let began = Instant::now();
        for n in 0..200 {
            let _ = world.claim_once("dead", &format!("u{n}"), "k").await.refused(503, "unavailable");
        }
        let (called, took) = (calls(&world) - before, began.elapsed());
        // Claims have been given up by now, the view behind them perhaps not: at most this number of calls of each kind,
        // and after them a probe in each quarter of a second, the shortest pause there is, with two connections a call.
        let most = 2 * 2 * (FAILURES_MAX + 1 + took.as_millis() / 250);
        assert!(u128::try_from(called).unwrap() <= most, "{called} calls of a dead core in {took:?}");
        world.restart_core().await;
        eventually(BACK_MAX, || async {
            let reply = world.claim("dead", "bob", "k").await;
            holds(matches!(reply.status, 200 | 201), || reply.text())
        })
        .await;
    });
}

/// What only SQL can tell times out at the edge; what Redis decides goes on.
#[test]
fn claims_are_taken_while_sql_is_stalled() {
    run_alone(async {
        let postgres = match Postgres::start().await {
            Ok(postgres) => postgres,
            Err(why) => {
                eprintln!("SKIPPED claims through the edge while SQL is stalled: {why}");
                assert!(std::env::var_os("CI").is_none(), "skipped: {why}");
                return;
            }
        };
        let url = postgres.database("claimgate").await;
        let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url).start().await;
        let world = World::before(core, Runtime::asked(), "edge-stalled-sql", "test", &[]).await;
        campaign(&world, "live").await;
        let won = world.first_try("live", "winner", "k").await.expect(201).json();
        let id = won["claim"]["id"].as_str().unwrap();
        let flows = async |after: &str, n: usize| {
            for try_at in 0..5 {
                let began = Instant::now();
                let claim = world.claim("live", &format!("u{n}-{try_at}"), "k").await;
                let (view, took) = (world.view("live").await, began.elapsed());
                assert_eq!((claim.status, view.status), (201, 200), "after {after}: {}", claim.text());
                assert!(took < AT_ONCE, "after {after}: {took:?}");
            }
        };
        flows("nothing", 0).await;
        postgres.freeze();
        let all_unavailable = async |replies: Vec<Reply>| {
            for reply in replies {
                let _ = reply.refused(503, "unavailable");
            }
        };
        // Each time more than the failures in a row after which the edge spares core.
        all_unavailable(join_all((0..8).map(|_| world.send_once(world.look_up_request(id, "winner")))).await)
            .await;
        flows("look-ups", 1).await;
        let ids: Vec<_> = (0..8).map(|n| format!("made-up-{n}")).collect();
        all_unavailable(join_all(ids.iter().map(|id| world.send_once(world.view_request(id)))).await).await;
        flows("views of what is not there", 2).await;
        all_unavailable(join_all(ids.iter().map(|id| world.claim_once(id, "winner", "k"))).await).await;
        flows("claims on what is not there", 3).await;
        postgres.thaw();
        eventually(BACK_MAX * 2, || async {
            let reply = world.look_up(id, "winner").await;
            holds(reply.status == 200, || reply.text())
        })
        .await;
    });
}
