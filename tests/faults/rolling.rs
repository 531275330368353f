//! Two cores restarted in turn under load, also by another version: each claim that is sent through the edge, or through a
//! balancer that obeys `/readyz`, is answered with its decision.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use support::checker::{Checker, Expect, Limits, Verdict};
use support::client::{Client, client};
use support::core_client::API_TOKEN;
use support::edge::Runtime;
use support::pair::{Pair, PairEdge};
use support::storm::{Seen, Wish};
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, claim_body, eventually, heavy};
use tokio::time::sleep;

use crate::tally::{Row, say};

/// Less than is asked for, in both: each way in tells grants, replays and denials.
const LIMITS: Limits = Limits { total: Some(20_000), per_user: Some(2), per_user_per_day: Some(2) };
const USERS: usize = 2_000;
const CALLERS: usize = 24;
/// How often each core is restarted.
const ROUNDS: usize = 3;
/// Claims that are decided before the next core is restarted.
const BETWEEN: usize = 150;
/// How often the balancer asks, and how long a core waits to be asked.
const LOOK: Duration = Duration::from_millis(50);
const DRAIN_S: &str = "2";

/// Claims that go on until they are told to stop, and the answers that told no decision.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    decided: AtomicUsize,
    undecided: Mutex<Vec<String>>,
}

impl Load {
    /// Claims by `request`, each as a first try and once more, while `fault` lasts; returns what that does. All must have been
    /// decided.
    async fn during<T>(
        checker: &Checker,
        request: impl Fn(&Wish, bool) -> RequestBuilder,
        fault: impl AsyncFnOnce(&Self) -> T,
    ) -> T {
        let (load, client) = (Self::default(), client().once());
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
            "{} of {decided} were told no decision: {undecided:#?}",
            undecided.len()
        );
        assert!(decided > 0);
        say(&format!("  {decided} claims told their decision, all of them"));
        done
    }

    async fn claim(
        &self,
        checker: &Checker,
        client: &Client,
        request: &impl Fn(&Wish, bool) -> RequestBuilder,
        caller: usize,
    ) {
        for at in 0.. {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let user = format!("u{}", (caller * 83 + at) % USERS);
            let wish = Wish { user, key: format!("{caller}-{at}"), units: 1 };
            let first = self.told(checker, &wish, client.send(request(&wish, true)).await);
            let again = self.told(checker, &wish, client.send(request(&wish, false)).await);
            if let (Seen::Claimed { id, .. }, Seen::Claimed { id: same, .. }) = (&first, &again) {
                assert_eq!(id, same);
            }
            assert!(
                !matches!((&first, &again), (Seen::Claimed { .. }, Seen::Denied { .. })),
                "{wish:?} won, and was refused: {first:?} {again:?}"
            );
        }
    }

    fn told(&self, checker: &Checker, wish: &Wish, reply: Result<Reply, reqwest::Error>) -> Seen {
        let seen = match &reply {
            Ok(reply) => Seen::of(reply),
            Err(_) => None,
        };
        match &seen {
            Some(_) => drop(self.decided.fetch_add(1, Ordering::Relaxed)),
            None => self.undecided.lock().unwrap().push(match reply {
                Ok(reply) => format!("{wish:?}: {} {}", reply.status, reply.text()),
                Err(error) => format!("{wish:?}: {error:?}"),
            }),
        }
        let seen = seen.unwrap_or(Seen::Unknown);
        checker.keep(wish, seen.clone());
        seen
    }

    /// Waits until so many more claims were decided.
    async fn more(&self) {
        let until = self.decided.load(Ordering::Relaxed) + BETWEEN;
        eventually(2 * SOON, || async {
            let decided = self.decided.load(Ordering::Relaxed);
            holds(decided >= until, || format!("{decided} of {until} claims decided"))
        })
        .await;
    }
}

/// Each core in turn is told to stop, and started again.
async fn restart_in_turn(cores: &mut [Core; 2], load: &Load, row: &Row) {
    for _ in 0..ROUNDS {
        for core in &mut *cores {
            load.more().await;
            row.fault();
            core.stop().await;
            load.more().await;
            *core = core.restart().await;
        }
    }
    load.more().await;
}

/// Through the edge, marked as the page marks a first try.
fn through(edge: &PairEdge, checker: &Checker, wish: &Wish, is_first: bool) -> RequestBuilder {
    let request = edge.claim_request(checker.campaign(), &wish.user, &wish.key);
    if is_first { request.header("Claimgate-Attempt", "1") } else { request }
}

async fn judged(pair: &Pair, checker: &Checker) -> Verdict {
    let cores: Vec<_> = pair.cores.iter().collect();
    checker.judge(&cores, &pair.sql, &pair.server.view().await, Expect::default()).await
}

/// Without a pause before they stop: the edge asks the other core.
async fn behind_an_edge(runtime: Runtime) {
    let row = Row::begin(format!("two cores restarted in turn behind one edge ({runtime:?})"));
    let _turn = heavy().await;
    let mut pair = match Pair::start(CoreOptions::default()).await {
        Ok(pair) => pair,
        Err(why) => return row.skip(&why),
    };
    let edge = pair.edge(runtime, "rolling").await;
    let checker = Checker::create(&pair.cores[0], "demo", LIMITS).await;
    let request = |wish: &Wish, is_first: bool| through(&edge, &checker, wish, is_first);
    let cores = &mut pair.cores;
    Load::during(&checker, request, async |load| restart_in_turn(cores, load, &row).await).await;
    let verdict = judged(&pair, &checker).await;
    row.survived(checker.asked(), verdict);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cores_restarted_in_turn_behind_an_edge_on_wrangler_refuse_no_claim() {
    behind_an_edge(Runtime::Wrangler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cores_restarted_in_turn_behind_an_edge_on_workerd_refuse_no_claim() {
    behind_an_edge(Runtime::Workerd).await;
}

/// What stands before the cores for back ends: it sends to those that say they are ready.
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

    /// Asks how the cores are, again and again. As balancers do, it believes the second look that says no, not the first:
    /// on a busy machine one may come late.
    async fn look(&self, client: &Client) {
        let mut was_ready = [true, true];
        loop {
            for ((base, ready), was_ready) in self.bases.iter().zip(&self.ready).zip(&mut was_ready) {
                let reply = client.try_get(&format!("{base}/readyz"), "").await;
                let is_ready = reply.is_ok_and(|reply| reply.status == 200);
                ready.store(is_ready || *was_ready, Ordering::Relaxed);
                *was_ready = is_ready;
            }
            sleep(LOOK).await;
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
async fn cores_restarted_in_turn_behind_a_balancer_refuse_no_claim() {
    let row = Row::begin("two cores restarted in turn behind a balancer that obeys /readyz");
    let _turn = heavy().await;
    let options = CoreOptions::default().with("CLAIMGATE_DRAIN_S", DRAIN_S);
    let mut pair = match Pair::start(options).await {
        Ok(pair) => pair,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&pair.cores[0], "demo", LIMITS).await;
    let (balancer, client) = (Balancer::new(&pair.cores), client());
    let request = |wish: &Wish, _: bool| {
        let url = format!("{}/internal/v1/claims", balancer.base());
        let body = claim_body(checker.campaign(), &wish.user, &wish.key, wish.units);
        client.request(Method::POST, &url).bearer_auth(API_TOKEN).json(&body)
    };
    let cores = &mut pair.cores;
    let load = Load::during(&checker, request, async |load| restart_in_turn(cores, load, &row).await);
    tokio::select! {
        () = balancer.look(&client) => {}
        () = load => {}
    }
    let verdict = judged(&pair, &checker).await;
    row.survived(checker.asked(), verdict);
}

/// From two cores of the previous version to two of this one, behind one edge: both versions on one Redis and one database,
/// each decides claims of the same campaigns, and they agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cores_of_the_previous_version_are_replaced_in_turn_and_refuse_no_claim() {
    let Some(previous) = std::env::var_os("CLAIMGATE_PREVIOUS_BIN").map(PathBuf::from) else {
        return say(
            "NOT RUN cores of the previous version beside this one: `tests/previous.sh` builds and runs it",
        );
    };
    let row = Row::begin("cores of the previous version replaced in turn behind one edge");
    let _turn = heavy().await;
    let mut pair = match Pair::start(CoreOptions::default().program(previous)).await {
        Ok(pair) => pair,
        Err(why) => return row.skip(&why),
    };
    let edge = pair.edge(Runtime::Workerd, "previous").await;
    let mut asked = 0;
    let mut last = Verdict::default();
    for (round, campaign) in ["first", "both"].into_iter().enumerate() {
        let checker = Checker::create(&pair.cores[1], campaign, LIMITS).await;
        let request = |wish: &Wish, is_first: bool| through(&edge, &checker, wish, is_first);
        let core = &mut pair.cores[round];
        Load::during(&checker, request, async |load| {
            load.more().await;
            row.fault();
            core.stop().await;
            load.more().await;
            *core = core.launch_tested();
            core.ready().await;
            load.more().await;
            load.more().await;
        })
        .await;
        last = judged(&pair, &checker).await;
        asked += checker.asked();
    }
    row.survived(asked, last);
}
