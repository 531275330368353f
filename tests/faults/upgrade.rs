//! Two cores of the previous version upgraded under load, without and behind an edge of that version. If the Redis
//! layouts differ, the first new core converts the campaigns, and the other core stops. `tests/previous.sh` builds the
//! previous version.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use claimgate_core::store::redis::scripts::layout_number::LAYOUT;
use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use support::checker::Checker;
use support::client::client;
use support::core_client::API_TOKEN;
use support::edge::Runtime;
use support::pair::{Pair, PairEdge};
use support::storm::{ClaimAttempt, ClaimOutcome};
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, claim_body, eventually, heavy};
use tokio::time::sleep;

use crate::rolling::{CALLERS, CLAIMS_PER_RESTART, LIMITS, POLL, USERS, judge, layout_of};
use crate::tally::{Row, say};

/// Callers who retry each claim until it is decided, and the longest time without any decision.
struct PatientLoad {
    over: AtomicBool,
    decided: AtomicUsize,
    /// The time of the last decision, and the longest time between two decisions.
    pause: Mutex<(Instant, Duration)>,
    /// The last response without a decision.
    undecided: Mutex<String>,
}

impl PatientLoad {
    fn new() -> Self {
        let pause = Mutex::new((Instant::now(), Duration::ZERO));
        Self {
            over: AtomicBool::default(),
            decided: AtomicUsize::default(),
            pause,
            undecided: Mutex::default(),
        }
    }

    fn record_decided(&self) {
        self.decided.fetch_add(1, Ordering::Relaxed);
        let (now, mut pause) = (Instant::now(), self.pause.lock().unwrap());
        *pause = (now, pause.1.max(now - pause.0));
    }

    /// Sends claims while `fault` runs. Prints the number of decisions and the longest time without one.
    async fn during(
        &self,
        checker: &Checker,
        request: impl Fn(&ClaimAttempt) -> RequestBuilder,
        fault: impl Future<Output = ()>,
    ) {
        let fault = async {
            fault.await;
            self.over.store(true, Ordering::Relaxed);
        };
        tokio::join!(fault, join_all((0..CALLERS).map(|caller| self.claim(checker, &request, caller))));
        let (decided, pause) = (self.decided.load(Ordering::Relaxed), self.pause.lock().unwrap().1);
        say(&format!("  {decided} decisions; the longest time without one was {pause:?}"));
    }

    /// Sends claims until the load is over. Each key is sent until it is decided, then once more: the response
    /// must be a replay.
    async fn claim(
        &self,
        checker: &Checker,
        request: &impl Fn(&ClaimAttempt) -> RequestBuilder,
        caller: usize,
    ) {
        let client = client().once();
        for at in 0.. {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let user = format!("u{}", (caller * 83 + at) % USERS);
            let attempt = ClaimAttempt { user, key: format!("{caller}-{at}"), units: 1 };
            let mut ids = Vec::new();
            for _ in 0..2 {
                let outcome = loop {
                    let reply = client.send(request(&attempt)).await;
                    let outcome = reply.as_ref().ok().and_then(ClaimOutcome::of);
                    if outcome.is_none() {
                        *self.undecided.lock().unwrap() = format!("{reply:?}");
                    }
                    checker.record(&attempt, outcome.clone().unwrap_or(ClaimOutcome::Unknown));
                    if let Some(outcome) = outcome {
                        break outcome;
                    }
                    sleep(POLL).await;
                };
                self.record_decided();
                ids.push(match outcome {
                    ClaimOutcome::Claimed { id, .. } => Some(id),
                    _ => None,
                });
            }
            assert!(ids[0].is_none() || ids[0] == ids[1], "{attempt:?} was granted, then {ids:?}");
        }
    }

    async fn until_more_decided(&self) {
        let until = self.decided.load(Ordering::Relaxed) + CLAIMS_PER_RESTART;
        eventually(SOON, || async {
            let decided = self.decided.load(Ordering::Relaxed);
            holds(decided >= until, || {
                let last = self.undecided.lock().unwrap();
                format!("{decided} of {until} claims decided; the last other answer: {last}")
            })
        })
        .await;
    }
}

/// Returns the path that `tests/previous.sh` sets. Without one, `what` is not run.
fn previous(variable: &str, what: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        say(&format!("NOT RUN {what}: use `tests/previous.sh`"));
    }
    path
}

/// Replaces the cores, whose keys have `layout`, by cores of this version. If the layouts differ, the second core must
/// stop as soon as the first new one serves, and name both layouts.
async fn upgrade(cores: &mut [Core; 2], layout: u32, load: &PatientLoad, row: &Row) {
    load.until_more_decided().await;
    row.fault();
    cores[0].stop().await;
    cores[0] = cores[0].launch_tested();
    cores[0].ready().await;
    if layout == LAYOUT {
        cores[1].stop().await;
    } else {
        let status = cores[1].process().wait(SOON).await;
        let log = cores[1].log();
        assert_eq!(status.code(), Some(2), "{log}");
        let named = [format!("layout {layout}"), format!("layout {LAYOUT}")];
        assert!(named.iter().all(|name| log.lines().last().unwrap_or_default().contains(name)), "{log}");
    }
    load.until_more_decided().await;
    cores[1] = cores[1].launch_tested();
    cores[1].ready().await;
    load.until_more_decided().await;
}

/// Checks that the keys have this version's layout, and that no outbox entry was read as one of the other layout.
async fn has_this_layout(pair: &Pair) {
    assert_eq!(layout_of(pair).await, LAYOUT);
    let dead: u64 = pair.server.view().await.query(&["EXISTS", "cg:{demo}:dead_letters"]).await;
    assert_eq!(dead, 0, "an entry of one layout was read as one of the other");
}

/// Claims pause while the campaign is converted; nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_converts_campaigns_under_load() {
    const WHAT: &str = "an upgrade from the previous Redis layout";
    let Some(program) = previous("CLAIMGATE_PREVIOUS_BIN", WHAT) else { return };
    let row = Row::begin("two cores of the previous Redis layout upgraded under load");
    let _turn = heavy().await;
    let Some(mut pair) = row.needs(Pair::start(CoreOptions::default().program(program)).await) else {
        return;
    };
    let layout = layout_of(&pair).await;
    if layout == LAYOUT {
        return say(&format!("NOT RUN {WHAT}: the previous version has this layout"));
    }
    let checker = Checker::create(&pair.cores[1], "demo", LIMITS).await;
    // A back end calls either core in turn.
    let (client, turn) = (client().once(), AtomicUsize::default());
    let urls = [0, 1].map(|core| pair.cores[core].url("/internal/v1/claims"));
    let request = |attempt: &ClaimAttempt| {
        let url = &urls[turn.fetch_add(1, Ordering::Relaxed) % urls.len()];
        let body = claim_body(checker.campaign(), &attempt.user, &attempt.key, attempt.units);
        client.request(Method::POST, url).bearer_auth(API_TOKEN).json(&body)
    };
    let load = PatientLoad::new();
    load.during(&checker, request, upgrade(&mut pair.cores, layout, &load, &row)).await;
    has_this_layout(&pair).await;
    let verdict = judge(&pair, &checker).await;
    row.survived(checker.call_count(), verdict);
}

/// Cores are upgraded before edges. An edge of the previous version keeps working in front of the new cores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_behind_a_previous_edge_loses_nothing() {
    const WHAT: &str = "an edge of the previous version in front of this version's cores";
    let Some(program) = previous("CLAIMGATE_PREVIOUS_BIN", WHAT) else { return };
    let Some(edge) = previous("CLAIMGATE_PREVIOUS_EDGE", WHAT) else { return };
    let row = Row::begin("two cores upgraded under load behind an edge of the previous version");
    let _turn = heavy().await;
    let Some(mut pair) = row.needs(Pair::start(CoreOptions::default().program(program)).await) else {
        return;
    };
    let layout = layout_of(&pair).await;
    let edge = pair.edge_with(edge.join("edge/workerd.capnp"), "previous-edge").await;
    let checker = Checker::create(&pair.cores[1], "demo", LIMITS).await;
    let request =
        |attempt: &ClaimAttempt| edge.claim_request(checker.campaign(), &attempt.user, &attempt.key);
    let load = PatientLoad::new();
    load.during(&checker, request, upgrade(&mut pair.cores, layout, &load, &row)).await;
    has_this_layout(&pair).await;
    passes_are_required_behind(&pair, &edge).await;
    let verdict = judge(&pair, &checker).await;
    row.survived(checker.call_count(), verdict);
}

/// Claims from the campaign `members` through `edge`, with a pass that an edge before passes ignores.
async fn claim(edge: &PairEdge, user: &str) -> Reply {
    let request = edge.claim_request("members", user, "k").header("Claimgate-Pass", "a-pass");
    edge.client.send(request).await.expect("an answer")
}

/// Checks a campaign that requires a pass, behind an edge before passes and behind an edge of this version: no claim is
/// granted without a pass, and a winner finds the claim. Then checks that claims are granted again without the rule.
async fn passes_are_required_behind(pair: &Pair, old: &PairEdge) {
    let core = &pair.cores[0];
    core.create("members", json!({"total": 10})).await;
    let won = claim(old, "alice").await.expect(201).json()["claim"]["id"].clone();
    let set_rule = async |pass: Value| {
        until_status(SOON, &[200], async || core.patch("members", json!({"pass": pass})).await).await;
    };
    set_rule(json!({"required": "always"})).await;
    let new = pair.edge(Runtime::Workerd, "upgraded-edge").await;
    for edge in [old, &new, old] {
        assert_eq!(claim(edge, "alice").await.expect(200).json()["claim"]["id"], won);
        claim(edge, "bob").await.refused(403, "pass_required");
    }
    set_rule(Value::Null).await;
    claim(old, "bob").await.expect(201);
    claim(&new, "carol").await.expect(201);
}
