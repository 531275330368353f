//! Core is killed, stalled, slow or restarted behind the edge: browsers soon get a 503 with `Retry-After`,
//! and no wrong response.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use support::available::available;
use support::edge::{Runtime, World};
use support::postgres::Postgres;
use support::process::{Signal, signal_pid};
use support::pulse::MachineProbe;
use support::raw::Raw;
use support::wait::{holds, until_status};
use support::{CoreOptions, Reply, eventually, promised};
use tokio::sync::{MutexGuard, OnceCell};

use super::{run, run_alone};

/// Maximum time of any response to a browser.
const ANSWER_MAX: Duration = Duration::from_millis(2_500);
/// Far less than the timeout of a call to core.
const IMMEDIATE_MAX: Duration = Duration::from_secs(1);
/// Maximum time until claims are granted again.
const RECOVERY_MAX: Duration = Duration::from_secs(5);
/// Duration of each fault.
const FAULT: Duration = Duration::from_secs(4);
const BROWSERS: usize = 8;
/// Number of failed calls after which the edge's circuit breaker opens.
const FAILURES_MAX: u128 = 5;

async fn world() -> MutexGuard<'static, World> {
    static WORLD: OnceCell<tokio::sync::Mutex<World>> = OnceCell::const_new();
    let start = || async {
        tokio::sync::Mutex::new(World::start(Runtime::from_env(), "edge-core", "test", &[]).await)
    };
    let mut world = WORLD.get_or_init(start).await.lock().await;
    world.heal().await;
    world
}

/// Browsers that make claims, each time as a new user, until the test is over.
struct Crowd<'a> {
    world: &'a World,
    campaign: &'a str,
    is_over: AtomicBool,
    users: AtomicUsize,
    answers: Mutex<Vec<Answer>>,
    pulse: MachineProbe,
}

/// A response to a browser, with its timing.
#[derive(Debug)]
struct Answer {
    reply: Reply,
    took: Duration,
    asked_at: Instant,
    /// Whether the machine itself was too slow in this time.
    was_late: bool,
}

impl<'a> Crowd<'a> {
    fn new(world: &'a World, campaign: &'a str) -> Self {
        let pulse = MachineProbe::of(world.edge.url("/livez"));
        let (is_over, users, answers) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::default());
        Self { world, campaign, is_over, users, answers, pulse }
    }

    /// Makes claims until `fault` is over and a later claim was granted. Returns all responses and the time of
    /// the recovery.
    async fn claim_through<T>(&self, fault: impl Future<Output = T>) -> (Vec<Answer>, Duration, T) {
        let browsers = join_all((0..BROWSERS).map(|_| self.browse()));
        let end = async {
            let result = fault.await;
            let over_at = Instant::now();
            eventually(promised(RECOVERY_MAX * 2), || async {
                holds(self.has_recovered(over_at), || "no claim was granted".to_owned())
            })
            .await;
            self.is_over.store(true, Ordering::SeqCst);
            (over_at.elapsed(), result)
        };
        let (_, (back_after, result)) = tokio::join!(browsers, end);
        let answers = std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner));
        (answers, back_after, result)
    }

    async fn browse(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            let user = format!("u{}", self.users.fetch_add(1, Ordering::SeqCst));
            let asked_at = Instant::now();
            let request = self.world.first_try_request(self.campaign, &user, "k");
            let reply = self.world.send_once(request).await;
            let pause = if reply.status == 503 { Duration::from_millis(20) } else { Duration::ZERO };
            let was_late = self.pulse.was_late_since(asked_at);
            let answer = Answer { reply, took: asked_at.elapsed(), asked_at, was_late };
            self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
            tokio::time::sleep(pause).await;
        }
    }

    fn has_recovered(&self, since: Instant) -> bool {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.iter().any(|answer| answer.asked_at >= since && answer.reply.status == 201)
    }
}

/// Checks that each response is a grant or a 503 with `Retry-After`, and arrives in time. Returns how many of
/// each there were.
fn check_answers(fault: &str, (answers, back_after): (&[Answer], Duration)) -> (usize, usize) {
    let (mut granted, mut unknown) = (0, 0);
    for Answer { reply, took, was_late, .. } in answers {
        assert!(*took < promised(ANSWER_MAX) || *was_late, "{fault}: {took:?} for {}", reply.text());
        if reply.status == 503 {
            assert!(reply.header("retry-after").parse::<u32>().is_ok_and(|s| s >= 1), "{fault}: {reply:?}");
            unknown += 1;
        } else {
            assert!(matches!(reply.status, 200 | 201), "{fault}: {} {}", reply.status, reply.text());
            granted += 1;
        }
    }
    let slowest = answers.iter().map(|answer| answer.took).max().unwrap_or_default();
    println!(
        "core {fault}: {granted} granted, {unknown} answered 503, the slowest after {slowest:.1?}; \
         recovered after {back_after:.1?}"
    );
    assert!(
        back_after < promised(RECOVERY_MAX),
        "{fault}: claims were granted again only after {back_after:?}"
    );
    (granted, unknown)
}

async fn campaign(world: &World, id: &str) {
    world.core.create(id, json!({"total": 1_000_000})).await;
    // A failed test may have left the circuit breaker open.
    until_status(promised(RECOVERY_MAX), &[200], async || world.view(id).await).await;
    let _ = world.first_try(id, "before", "k").await.expect(201);
}

#[test]
fn a_killed_core_causes_only_grants_and_503s() {
    run_alone(async {
        let mut world = world().await;
        campaign(&world, "killed").await;
        let crowd = Crowd::new(&world, "killed");
        let restart = async {
            signal_pid(world.core.pid(), Signal::KILL);
            tokio::time::sleep(FAULT).await;
            let core = world.core.restart().await;
            world.proxy.forward_to(core.listen());
            core
        };
        let (answers, back_after, core) = crowd.claim_through(restart).await;
        let (granted, unknown) = check_answers("killed", (&answers, back_after));
        assert!(granted > 0 && unknown > 0);
        drop(crowd);
        world.core = core;
        // Some of the claims answered with 503 were granted as well.
        let taken = usize::try_from(world.core.redis().await.counter("killed", "taken").await).unwrap();
        assert!(
            taken > granted,
            "{granted} claims were granted during the test, one before it, and {taken} units are taken"
        );
        assert_eq!(world.core.sql().until("killed", taken).await.len(), taken);
    });
}

#[test]
fn a_stalled_core_causes_only_grants_and_503s() {
    run_alone(async {
        let world = world().await;
        campaign(&world, "stalled").await;
        let crowd = Crowd::new(&world, "stalled");
        let stall = async {
            signal_pid(world.core.pid(), Signal::STOP);
            tokio::time::sleep(FAULT).await;
            signal_pid(world.core.pid(), Signal::CONT);
        };
        let (answers, back_after, ()) = crowd.claim_through(stall).await;
        let (_, unknown) = check_answers("stalled", (&answers, back_after));
        let without_wait = answers
            .iter()
            .filter(|answer| answer.reply.status == 503 && answer.took < promised(ANSWER_MAX / 10));
        let without_wait = without_wait.count();
        assert!(without_wait * 2 > unknown, "only {without_wait} of {unknown} were answered without a wait");
    });
}

/// Views of an uncached campaign share one call to core. If the call fails, these views must not wait for a
/// second call.
#[test]
fn views_are_answered_in_time_while_core_is_stalled() {
    run_alone(async {
        let world = world().await;
        campaign(&world, "other").await;
        signal_pid(world.core.pid(), Signal::STOP);
        let views = (0..8).map(|n| {
            let world = &world;
            async move {
                tokio::time::sleep(Duration::from_millis(100 * n)).await;
                let began = Instant::now();
                let reply = world.send_once(world.view_request("unseen")).await;
                (reply, began.elapsed())
            }
        });
        let answers = join_all(views).await;
        signal_pid(world.core.pid(), Signal::CONT);
        for (reply, took) in answers {
            assert!(took < promised(ANSWER_MAX), "{took:?}");
            assert_eq!(reply.refused(503, "unavailable").header("retry-after"), "1");
        }
        until_status(promised(RECOVERY_MAX), &[200], async || world.view("other").await).await;
    });
}

/// Other browsers may be waiting for the same call, so the call must complete even if the browser that caused
/// it disconnects.
#[test]
fn a_browser_that_disconnects_does_not_delay_others() {
    run_alone(async {
        let world = world().await;
        world.core.create("left", json!({"total": 5})).await;
        world.proxy.delay_answers(Duration::from_millis(700));
        let mut raw = Raw::connect(world.edge.listen).await;
        raw.send(format!("GET /v1/campaigns/left HTTP/1.1\r\nHost: {}\r\n\r\n", world.edge.listen)).await;
        eventually(promised(RECOVERY_MAX), || async {
            let called = !world.proxy.requests_with("GET /internal/v1/campaigns/left ").is_empty();
            holds(called, || "core was not called".to_owned())
        })
        .await;
        raw.reset();
        let began = Instant::now();
        let reply = world.view("left").await;
        world.proxy.delay_answers(Duration::ZERO);
        let _ = reply.expect(200);
        assert!(began.elapsed() < promised(Duration::from_millis(1_500)), "{:?}", began.elapsed());
    });
}

#[test]
fn the_log_contains_no_user_data() {
    run(async {
        let world = world().await;
        campaign(&world, "logged").await;
        world.proxy.lose_all_answers(true);
        let claim = world.claim_request("logged", "alice").header("CF-Connecting-IP", "203.0.113.77");
        let refused = world.send_once(claim).await;
        world.proxy.lose_all_answers(false);
        let _ = refused.refused(503, "unavailable");
        eventually(promised(RECOVERY_MAX), || async {
            holds(world.edge.log().contains("no answer from core"), || world.edge.log())
        })
        .await;
        let log = world.edge.log();
        // "eyJ" is the prefix of every token.
        for secret in ["eyJ", "203.0.113.77", "Bearer"] {
            assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
        }
    });
}

#[test]
fn a_slow_core_causes_only_grants_and_503s() {
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
        let (answers, back_after, ()) = crowd.claim_through(slow).await;
        let (_, unknown) = check_answers("slow", (&answers, back_after));
        assert!(unknown > 0);
        drop(crowd);
        // The claim was still decided: a retry returns it.
        let _ = world.claim("slow", "u0", "k").await.expect(200);
    });
}

#[test]
fn the_circuit_breaker_stops_calls_to_a_dead_core() {
    run_alone(async {
        let mut world = world().await;
        campaign(&world, "dead").await;
        world.core.kill();
        let calls = |world: &World| world.proxy.accepted();
        eventually(promised(RECOVERY_MAX), || async {
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
        // The breaker is open for claims, but perhaps not for views: allow this number of calls of each kind,
        // then one probe per 250 ms, the shortest pause, with two connections per call.
        let most = 2 * 2 * (FAILURES_MAX + 1 + took.as_millis() / 250);
        assert!(u128::try_from(called).unwrap() <= most, "{called} calls to a dead core in {took:?}");
        world.restart_core().await;
        until_status(promised(RECOVERY_MAX), &[200, 201], async || world.claim("dead", "bob", "k").await)
            .await;
    });
}

/// Calls that need SQL time out at the edge, but claims are decided by Redis.
#[test]
fn claims_are_decided_while_sql_is_stalled() {
    run_alone(async {
        let what = "claims through the edge while SQL is stalled";
        let Some(postgres) = available(what, Postgres::start().await) else { return };
        let url = postgres.database("claimgate").await;
        let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url).start().await;
        let world = World::before(core, Runtime::from_env(), "edge-stalled-sql", "test", &[]).await;
        campaign(&world, "live").await;
        let won = world.first_try("live", "winner", "k").await.expect(201).json();
        let id = won["claim"]["id"].as_str().unwrap();
        let flows = async |after: &str, n: usize| {
            for try_at in 0..5 {
                let began = Instant::now();
                let claim = world.claim("live", &format!("u{n}-{try_at}"), "k").await;
                let (view, took) = (world.view("live").await, began.elapsed());
                assert_eq!((claim.status, view.status), (201, 200), "after {after}: {}", claim.text());
                assert!(took < promised(IMMEDIATE_MAX), "after {after}: {took:?}");
            }
        };
        flows("nothing", 0).await;
        postgres.freeze();
        let all_unavailable = async |replies: Vec<Reply>| {
            for reply in replies {
                let _ = reply.refused(503, "unavailable");
            }
        };
        // Each group has more consecutive failures than the circuit breaker tolerates.
        all_unavailable(join_all((0..8).map(|_| world.send_once(world.look_up_request(id, "winner")))).await)
            .await;
        flows("look-ups", 1).await;
        let ids: Vec<_> = (0..8).map(|n| format!("made-up-{n}")).collect();
        all_unavailable(join_all(ids.iter().map(|id| world.send_once(world.view_request(id)))).await).await;
        flows("views of unknown campaigns", 2).await;
        all_unavailable(join_all(ids.iter().map(|id| world.claim_once(id, "winner", "k"))).await).await;
        flows("claims on unknown campaigns", 3).await;
        postgres.thaw();
        until_status(promised(RECOVERY_MAX * 2), &[200], async || world.look_up(id, "winner").await).await;
    });
}
