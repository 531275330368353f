//! Two cores restarted one after the other under load, and replaced by a newer version. Every claim sent through the
//! edge, or through a balancer that respects `/readyz`, is decided.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use claimgate_core::store::redis::scripts::layout_number::LAYOUT;
use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use support::checker::{Checker, Expect, Limits, Verdict};
use support::client::{Client, client};
use support::core_client::API_TOKEN;
use support::edge::Runtime;
use support::pair::{Pair, PairEdge};
use support::pulse::MachineProbe;
use support::storm::{ClaimAttempt, ClaimOutcome};
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, claim_body, eventually, heavy};
use tokio::time::sleep;

use crate::tally::{Row, say};

/// Both limits are lower than the demand, so that there are grants, replays and denials.
pub const LIMITS: Limits = Limits { total: Some(20_000), per_user: Some(2), per_user_per_day: Some(2) };
pub const USERS: usize = 2_000;
pub const CALLERS: usize = 24;
/// Number of restarts of each core.
const ROUNDS: usize = 3;
/// Number of decided claims before the next restart.
pub const CLAIMS_PER_RESTART: usize = 150;
/// The balancer's polling interval, and the time that a core waits to be polled before it stops.
pub const POLL: Duration = Duration::from_millis(50);
const DRAIN_S: &str = "2";

/// Claims that continue until stopped, and the responses without a decision.
struct Load {
    /// Measures the delay of the component in front of the cores.
    machine: MachineProbe,
    over: AtomicBool,
    decided: AtomicUsize,
    undecided: Mutex<Vec<String>>,
}

impl Load {
    /// Sends claims built by `request`, each as a first try and as a retry, until `fault` ends; returns the
    /// result of `fault`. All must be decided, except those in flight while even `probe` was answered late.
    async fn during<T>(
        probe: String,
        checker: &Checker,
        request: impl Fn(&ClaimAttempt, bool) -> RequestBuilder,
        fault: impl AsyncFnOnce(&Self) -> T,
    ) -> T {
        let client = client().once();
        let load = Self {
            machine: MachineProbe::of(probe),
            over: AtomicBool::default(),
            decided: AtomicUsize::default(),
            undecided: Mutex::default(),
        };
        let fault = async {
            let done = fault(&load).await;
            load.over.store(true, Ordering::Relaxed);
            done
        };
        let callers = (0..CALLERS).map(|caller| load.claim(checker, &client, &request, caller));
        let (done, _) = tokio::join!(fault, join_all(callers));
        let undecided = load.undecided.into_inner().unwrap();
        let decided = load.decided.into_inner();
        assert!(
            undecided.is_empty(),
            "{} claims got no decision, {decided} others did: {undecided:#?}",
            undecided.len()
        );
        assert!(decided > 0);
        say(&format!("  all {decided} claims got their decision"));
        done
    }

    async fn claim(
        &self,
        checker: &Checker,
        client: &Client,
        request: &impl Fn(&ClaimAttempt, bool) -> RequestBuilder,
        caller: usize,
    ) {
        for at in 0.. {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let user = format!("u{}", (caller * 83 + at) % USERS);
            let attempt = ClaimAttempt { user, key: format!("{caller}-{at}"), units: 1 };
            let first =
                self.record(checker, &attempt, Instant::now(), client.send(request(&attempt, true)).await);
            let again =
                self.record(checker, &attempt, Instant::now(), client.send(request(&attempt, false)).await);
            if let (ClaimOutcome::Claimed { id, .. }, ClaimOutcome::Claimed { id: same, .. }) =
                (&first, &again)
            {
                assert_eq!(id, same);
            }
            assert!(
                !matches!((&first, &again), (ClaimOutcome::Claimed { .. }, ClaimOutcome::Denied { .. })),
                "{attempt:?} was granted, then denied: {first:?} {again:?}"
            );
        }
    }

    fn record(
        &self,
        checker: &Checker,
        attempt: &ClaimAttempt,
        asked_at: Instant,
        reply: Result<Reply, reqwest::Error>,
    ) -> ClaimOutcome {
        let outcome = match &reply {
            Ok(reply) => ClaimOutcome::of(reply),
            Err(_) => None,
        };
        match &outcome {
            Some(_) => drop(self.decided.fetch_add(1, Ordering::Relaxed)),
            None if self.machine.was_late_since(asked_at) => {
                say(&format!("  the machine was late: {attempt:?} got no answer"));
            }
            None => self.undecided.lock().unwrap().push(match reply {
                Ok(reply) => format!("{attempt:?}: {} {}", reply.status, reply.text()),
                Err(error) => format!("{attempt:?}: {error:?}"),
            }),
        }
        let outcome = outcome.unwrap_or(ClaimOutcome::Unknown);
        checker.record(attempt, outcome.clone());
        outcome
    }

    /// Waits until more claims have been decided.
    async fn until_more_decided(&self) {
        let until = self.decided.load(Ordering::Relaxed) + CLAIMS_PER_RESTART;
        eventually(SOON, || async {
            let decided = self.decided.load(Ordering::Relaxed);
            holds(decided >= until, || format!("{decided} of {until} claims decided"))
        })
        .await;
    }
}

/// Stops and restarts one core after the other.
async fn restart_in_turn(cores: &mut [Core; 2], load: &Load, row: &Row) {
    for _ in 0..ROUNDS {
        for core in &mut *cores {
            load.until_more_decided().await;
            row.fault();
            core.stop().await;
            load.until_more_decided().await;
            *core = core.restart().await;
        }
    }
    load.until_more_decided().await;
}

/// Returns a request through the edge, marked as the page marks a first try.
fn edge_request(
    edge: &PairEdge,
    checker: &Checker,
    attempt: &ClaimAttempt,
    is_first: bool,
) -> RequestBuilder {
    let request = edge.claim_request(checker.campaign(), &attempt.user, &attempt.key);
    if is_first { request.header("Claimgate-Attempt", "1") } else { request }
}

pub async fn judge(pair: &Pair, checker: &Checker) -> Verdict {
    let cores: Vec<_> = pair.cores.iter().collect();
    checker.judge(&cores, &pair.sql, &pair.server.view().await, Expect::default()).await
}

/// Restarts the cores without a pause: the edge calls the other core.
async fn behind_an_edge(runtime: Runtime) {
    let row = Row::begin(format!("two cores restarted one by one behind one edge ({runtime:?})"));
    let _turn = heavy().await;
    let Some(mut pair) = row.needs(Pair::start(CoreOptions::default()).await) else { return };
    let edge = pair.edge(runtime, "rolling").await;
    let checker = Checker::create(&pair.cores[0], "demo", LIMITS).await;
    let request = |attempt: &ClaimAttempt, is_first: bool| edge_request(&edge, &checker, attempt, is_first);
    let cores = &mut pair.cores;
    let probe = edge.edge.url("/livez");
    Load::during(probe, &checker, request, async |load| restart_in_turn(cores, load, &row).await).await;
    let verdict = judge(&pair, &checker).await;
    row.survived(checker.call_count(), verdict);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_in_a_rolling_restart_behind_wrangler() {
    behind_an_edge(Runtime::Wrangler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_in_a_rolling_restart_behind_workerd() {
    behind_an_edge(Runtime::Workerd).await;
}

/// A balancer for back ends: it sends calls to cores that report ready.
struct Balancer {
    bases: [String; 2],
    ready: [AtomicBool; 2],
    turn: AtomicUsize,
}

impl Balancer {
    fn new(cores: &[Core; 2]) -> Self {
        let bases = cores.each_ref().map(|core| core.url(""));
        Self { bases, ready: [true, true].map(AtomicBool::new), turn: AtomicUsize::new(0) }
    }

    /// Polls the cores. As balancers do, it reacts to the second failure, not the first: on a busy machine
    /// one response may be late.
    async fn poll(&self, client: &Client) {
        let mut was_ready = [true, true];
        loop {
            for ((base, ready), was_ready) in self.bases.iter().zip(&self.ready).zip(&mut was_ready) {
                let reply = client.try_get(&format!("{base}/readyz"), "").await;
                let is_ready = reply.is_ok_and(|reply| reply.status == 200);
                ready.store(is_ready || *was_ready, Ordering::Relaxed);
                *was_ready = is_ready;
            }
            sleep(POLL).await;
        }
    }

    fn base(&self) -> &str {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let is_ready = |core: &usize| self.ready[*core].load(Ordering::Relaxed);
        let core = [turn % 2, (turn + 1) % 2].into_iter().find(is_ready);
        &self.bases[core.expect("one core is ready")]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_in_a_rolling_restart_behind_a_balancer() {
    let row = Row::begin("two cores restarted one by one behind a balancer that respects /readyz");
    let _turn = heavy().await;
    let options = CoreOptions::default().with("CLAIMGATE_DRAIN_S", DRAIN_S);
    let Some(mut pair) = row.needs(Pair::start(options).await) else { return };
    let checker = Checker::create(&pair.cores[0], "demo", LIMITS).await;
    let (balancer, client) = (Balancer::new(&pair.cores), client());
    let request = |attempt: &ClaimAttempt, _: bool| {
        let url = format!("{}/internal/v1/claims", balancer.base());
        let body = claim_body(checker.campaign(), &attempt.user, &attempt.key, attempt.units);
        client.request(Method::POST, &url).bearer_auth(API_TOKEN).json(&body)
    };
    let probe = pair.cores[0].url("/livez");
    let cores = &mut pair.cores;
    let load = Load::during(probe, &checker, request, async |load| restart_in_turn(cores, load, &row).await);
    tokio::select! {
        () = balancer.poll(&client) => {}
        () = load => {}
    }
    let verdict = judge(&pair, &checker).await;
    row.survived(checker.call_count(), verdict);
}

/// Two cores of the previous version are replaced one by one, behind one edge. Both versions share one Redis
/// and one database, decide claims of the same campaigns, and agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_in_a_rolling_upgrade_from_the_last_version() {
    let Some(previous) = std::env::var_os("CLAIMGATE_PREVIOUS_BIN").map(PathBuf::from) else {
        return say("NOT RUN cores of the previous version together with this one: use `tests/previous.sh`");
    };
    let row = Row::begin("cores of the previous version replaced one by one behind one edge");
    let _turn = heavy().await;
    let Some(mut pair) = row.needs(Pair::start(CoreOptions::default().program(previous)).await) else {
        return;
    };
    if layout_of(&pair).await != LAYOUT {
        return say(
            "NOT RUN cores of the previous version together with this one: their Redis layouts differ",
        );
    }
    let edge = pair.edge(Runtime::Workerd, "previous").await;
    let mut call_count = 0;
    let mut last = Verdict::default();
    for (round, campaign) in ["first", "both"].into_iter().enumerate() {
        let checker = Checker::create(&pair.cores[1], campaign, LIMITS).await;
        let request =
            |attempt: &ClaimAttempt, is_first: bool| edge_request(&edge, &checker, attempt, is_first);
        let core = &mut pair.cores[round];
        Load::during(edge.edge.url("/livez"), &checker, request, async |load| {
            load.until_more_decided().await;
            row.fault();
            core.stop().await;
            load.until_more_decided().await;
            *core = core.launch_tested();
            core.ready().await;
            load.until_more_decided().await;
            load.until_more_decided().await;
        })
        .await;
        last = judge(&pair, &checker).await;
        call_count += checker.call_count();
    }
    row.survived(call_count, last);
}

pub async fn layout_of(pair: &Pair) -> u32 {
    pair.server.view().await.query(&["GET", "cg:layout"]).await
}
