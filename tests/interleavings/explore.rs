//! Explores every combination of protocols, positions and fates, and prints the results as a matrix.
//!
//! Every ordered pair of protocols runs from each initial state where A has work, with A stopped before every
//! third of its steps; the pairs of one A together cover all of them. If a lease is held at that moment, the
//! schedule runs once with the lease held and once with the lease expired. Each of A's steps is also crashed
//! before, and its reply lost, followed by the same protocol again and by a recovery check. On PostgreSQL
//! only pairs in which both protocols rewrite the campaign in Redis are explored, without crashes and lost
//! replies.
//!
//! `INTERLEAVINGS_ALL=1` explores every pair at every step and on both databases, with crashes and lost
//! replies before every protocol. It also explores every pair with both protocols stopped, each before every
//! step that may write. `INTERLEAVINGS_SHARE=4` explores one in four pairs, drawn by `SEED`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::initial_state::InitialState;
use super::matrix::{self, Counts};
use super::protocol::{Codes, PROTOCOLS, Protocol};
use super::registry;
use super::schedule::{Fate, Played, Schedule};
use super::track::{END, REACHED, StepPosition};
use super::world::{Database, World};
use support::rng::Rng;

/// Two workers per processor of the smallest supported machine: each waits for its servers half of the time.
const WORKERS: usize = 4;
/// Without `INTERLEAVINGS_ALL`, a pair without crashes covers every `STRIDE`th position of A.
pub const STRIDE: usize = 3;
/// Number of failing schedules printed completely; further failures are printed as one line each.
const PRINTED_MAX: usize = 12;

/// Two protocols from one initial state: one unit of work for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    database: Database,
    initial: InitialState,
    a: Protocol,
    b: Protocol,
    /// Whether the campaign has codes.
    codes: bool,
}

/// A pair without B: database, initial state, A, and whether the campaign has codes. A's steps are the same
/// for every B.
type Beginning = (Database, InitialState, Protocol, bool);

impl Pair {
    fn beginning(self) -> Beginning {
        (self.database, self.initial, self.a, self.codes)
    }

    /// Returns whether both protocols apply to this kind of campaign. Without `INTERLEAVINGS_ALL`, campaigns
    /// with codes are explored only if one of the protocols is about codes, or if both may change which claim has
    /// which code.
    fn is_meaningful(self) -> bool {
        let allowed =
            if self.codes { [Codes::Needed, Codes::Played] } else { [Codes::NotPlayed, Codes::Played] };
        let needs_codes = [self.a, self.b].iter().any(|protocol| protocol.codes() == Codes::Needed);
        let change_codes = self.a.changes_codes() && self.b.changes_codes();
        let is_selected = !self.codes || explores_all() || needs_codes || change_codes;
        is_selected && allowed.contains(&self.a.codes()) && allowed.contains(&self.b.codes())
    }

    /// Returns whether its schedules also run with expired leases: B may load the campaign, or take over the webhook.
    fn depends_on_leases(self) -> bool {
        explores_all() || self.b.rewrites() || [self.a, self.b] == [Protocol::Webhook; 2]
    }
}

/// A schedule that broke a guarantee, with the reason and all events.
#[derive(Debug)]
struct Failure {
    schedule: Schedule,
    wrong: String,
    lines: Vec<String>,
}

/// One pair, and which of A's positions it covers: every `stride`-th, from `first` on.
#[derive(Debug, Clone, Copy)]
struct Work {
    pair: Pair,
    first: usize,
    stride: usize,
}

/// The results of all schedules.
#[derive(Debug, Default)]
struct Tally {
    /// Number of schedules by pair and fate, and the time taken.
    played: BTreeMap<(Pair, &'static str), usize>,
    took: BTreeMap<Pair, Duration>,
    /// A's steps if B begins after A's end.
    steps: BTreeMap<Beginning, Vec<&'static str>>,
    /// Positions of A that were explored with a single pre-emption and held leases.
    positions: BTreeMap<Beginning, BTreeSet<usize>>,
    failed: Vec<Failure>,
    unmet: Vec<Schedule>,
}

/// Returns the pairs selected by `PAIRS=create,evict`, `WITH=forget` (on either side), `DATABASE=sqlite`,
/// `STATE=over` and `CODES=true`, and of these the share that is drawn; all without these variables.
fn pairs() -> Vec<Pair> {
    let is_selected = |variable: &str, names: &[&str]| {
        std::env::var(variable).is_err() || {
            let list = std::env::var(variable).unwrap_or_default();
            names.iter().all(|name| list.split(',').any(|selected| selected.eq_ignore_ascii_case(name)))
        }
    };
    let mut pairs = all_pairs();
    pairs.retain(|pair| {
        is_selected("PAIRS", &[pair.a.name(), pair.b.name()])
            && (is_selected("WITH", &[pair.a.name()]) || is_selected("WITH", &[pair.b.name()]))
            && is_selected("DATABASE", &[&format!("{:?}", pair.database)])
            && is_selected("STATE", &[pair.initial.name()])
            && is_selected("CODES", &[&pair.codes.to_string()])
    });
    drawn(pairs)
}

/// Returns all `pairs` in which SQL forgets, and one in `INTERLEAVINGS_SHARE` of the others, drawn by `SEED`.
fn drawn(mut pairs: Vec<Pair>) -> Vec<Pair> {
    let Ok(share) = std::env::var("INTERLEAVINGS_SHARE") else { return pairs };
    let share: u64 = share.parse().expect("INTERLEAVINGS_SHARE is a whole number");
    let (mut rng, all) = (Rng::seeded("the pairs that are explored"), pairs.len());
    pairs.retain(|pair| {
        let is_drawn = rng.next_number().is_multiple_of(share);
        is_drawn || [pair.a, pair.b].contains(&Protocol::Forget)
    });
    println!("{} of {all} pairs are explored", pairs.len());
    pairs
}

/// Returns each ordered pair from each initial state where A has work. Without `INTERLEAVINGS_ALL`,
/// PostgreSQL is used only for pairs in which both rewrite the campaign in Redis and more than the outbox may
/// be lost. A composed protocol runs only with those that [`Protocol::runs_with`] names.
fn all_pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for database in [Database::Sqlite, Database::Postgres] {
        for (a, _) in PROTOCOLS {
            for (b, _) in PROTOCOLS {
                for codes in [false, true] {
                    let initial_states = a.initial_states().iter();
                    pairs.extend(initial_states.map(|initial| Pair {
                        database,
                        initial: *initial,
                        a,
                        b,
                        codes,
                    }));
                }
            }
        }
    }
    pairs.retain(|pair| pair.is_meaningful());
    pairs.retain(|pair| explores_all() || pair.database == Database::Sqlite || both_rewrite(*pair));
    pairs.retain(|pair| explores_all() || pair.a.runs_with(pair.b) && pair.b.runs_with(pair.a));
    // Pairs with the longest schedules come first. If such a pair started last, three workers would be idle.
    pairs.sort_by_key(|pair| !both_rewrite(*pair));
    pairs
}

#[test]
fn every_interleaving_of_every_pair_keeps_all_guarantees() {
    let (started, pairs) = (Instant::now(), pairs());
    let queue = Mutex::new(shared_out(&pairs));
    let tally: Mutex<Tally> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&queue, &tally));
        }
    });
    let tally = tally.into_inner().expect("the tally");
    report(&tally, started.elapsed());
    coverage_is_complete(&tally, &pairs);
    assert!(tally.failed.is_empty(), "{} schedules broke a guarantee", tally.failed.len());
}

/// Shares A's positions out among the pairs with the same prefix, so that together they cover each
/// position.
fn shared_out(pairs: &[Pair]) -> VecDeque<Work> {
    let mut beginnings: BTreeMap<Beginning, usize> = BTreeMap::new();
    let mut ranks = Vec::new();
    for pair in pairs {
        let rank = beginnings.entry(pair.beginning()).or_default();
        ranks.push(*rank);
        *rank += 1;
    }
    let shares = pairs.iter().zip(ranks).map(|(pair, rank)| {
        let is_complete = explores_all() || follows_a_crash(*pair);
        let stride = if is_complete { 1 } else { beginnings[&pair.beginning()].min(STRIDE) };
        Work { pair: *pair, first: 1 + rank % stride, stride }
    });
    shares.collect()
}

/// Checks that each pair and each of A's positions was explored, and that each step point of core was
/// reached.
fn coverage_is_complete(tally: &Tally, pairs: &[Pair]) {
    assert!(tally.unmet.is_empty(), "not run as written: {:?}", tally.unmet);
    for pair in pairs {
        assert!(tally.played.contains_key(&(*pair, Fate::Preempted.name())), "{pair:?} was not explored");
        let beginning = pair.beginning();
        let positions: BTreeSet<usize> = (1..=tally.steps[&beginning].len() + 1).collect();
        let played = tally.positions.get(&beginning);
        assert_eq!(played, Some(&positions), "positions of {beginning:?} that were not explored");
    }
    if pairs.len() == all_pairs().len() {
        let reached = REACHED.lock().expect("the step points");
        let missed: Vec<_> =
            registry::names().into_iter().filter(|name| !reached.contains(name.as_str())).collect();
        assert!(missed.is_empty(), "step points that no schedule reached: {missed:?}");
    }
}

fn work(queue: &Mutex<VecDeque<Work>>, tally: &Mutex<Tally>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut worlds: BTreeMap<Database, World> = BTreeMap::new();
        loop {
            let Some(work) = queue.lock().expect("the queue").pop_front() else { return };
            let database = work.pair.database;
            let world = match worlds.entry(database) {
                Entry::Occupied(world) => world.into_mut(),
                Entry::Vacant(position) => position.insert(World::start(database).await),
            };
            explore(world, work, tally).await;
        }
    });
}

/// Plays the schedules of one pair.
async fn explore(world: &World, work: Work, tally: &Mutex<Tally>) {
    let begun = Instant::now();
    let Work { pair, first, stride } = work;
    let Pair { database, initial, a, b, codes } = pair;
    let of = |at, fate, expire| Schedule { database, initial, a, at, fate, b, expire, codes };
    let keep = |schedule: Schedule, played: Played| {
        let mut tally = tally.lock().expect("the tally");
        *tally.played.entry((pair, schedule.fate.name())).or_default() += 1;
        if let (Fate::Preempted, StepPosition::Step(at), false) =
            (schedule.fate, schedule.at, schedule.expire)
        {
            tally.positions.entry(pair.beginning()).or_default().insert(at);
        }
        if let Some(wrong) = played.wrong {
            println!("INTERLEAVING=\"{schedule}\"  {}", wrong.lines().next().unwrap_or_default());
            tally.failed.push(Failure { schedule, wrong, lines: played.lines });
        }
        if played.met != [true; 2] {
            tally.unmet.push(schedule);
        }
    };
    let known = tally.lock().expect("the tally").steps.get(&pair.beginning()).cloned();
    let a_steps = if let Some(steps) = known {
        steps
    } else {
        let [steps, _] = of(END, Fate::Preempted, false).play(world).await.steps;
        tally.lock().expect("the tally").steps.insert(pair.beginning(), steps.clone());
        steps
    };
    let steps = a_steps.len();
    for at in (first.min(steps + 1)..=steps + 1).step_by(stride) {
        for expire in [false, true] {
            let schedule = of(StepPosition::Step(at), Fate::Preempted, expire);
            let played = schedule.play(world).await;
            let (leases, b_steps) = (played.leases, played.steps[1].clone());
            keep(schedule, played);
            if explores_all() && at > 1 && a_steps.get(at - 1).is_some_and(|name| is_write(name)) {
                // Stopping B before its first step is the same as running A and then B.
                for (b_at, _) in b_steps.iter().enumerate().skip(1).filter(|(_, name)| is_write(name)) {
                    let fate = Fate::BothPreempted(StepPosition::Step(b_at + 1));
                    let schedule = of(StepPosition::Step(at), fate, expire);
                    let played = schedule.play(world).await;
                    keep(schedule, played);
                }
            }
            if !leases || !pair.depends_on_leases() {
                break;
            }
        }
        for fate in [Fate::Crash, Fate::LostReply] {
            // A core that dies before its first step has done nothing, and the end of a protocol has no reply
            // to lose.
            let idle = (fate == Fate::Crash && at == 1) || (fate == Fate::LostReply && at > steps);
            if idle || !follows_a_crash(pair) {
                continue;
            }
            for expire in [false, true] {
                let schedule = of(StepPosition::Step(at), fate, expire);
                let played = schedule.play(world).await;
                let leases = played.leases;
                keep(schedule, played);
                if !leases {
                    break;
                }
            }
        }
    }
    tally.lock().expect("the tally").took.insert(pair, begun.elapsed());
}

/// Returns whether every pair is explored at every step.
pub fn explores_all() -> bool {
    std::env::var_os("INTERLEAVINGS_ALL").is_some()
}

/// Returns whether both rewrite the whole campaign in Redis, and more than its outbox may be lost.
fn both_rewrite(pair: Pair) -> bool {
    pair.a.rewrites() && pair.b.rewrites() && pair.initial != InitialState::Unheard
}

/// Returns whether B may follow a crash or a lost reply: on SQLite the same protocol as a retry, or what any
/// core does automatically. With `INTERLEAVINGS_ALL` every protocol does, on both databases.
fn follows_a_crash(pair: Pair) -> bool {
    let is_automatic = pair.b == pair.a || pair.b == Protocol::EnsureReady;
    is_automatic && pair.database == Database::Sqlite || explores_all()
}

/// Returns whether a step may write to Redis or SQL. With two pre-emptions a protocol is stopped only before
/// such a step, when its reads are as old as possible.
fn is_write(name: &str) -> bool {
    let reads = [
        "redis:read",
        "redis:lease.acquire",
        "redis:lease.release",
        "redis:outbox_page",
        "redis:each_user",
        "redis:hold_state.held",
        "redis:hold_state.due",
        "redis:outbox_state.entries",
        "redis:outbox_state.oldest",
        "redis:outbox_state.dead_letters",
        "sql:campaign",
        "sql:campaigns",
        "sql:totals",
        "sql:by_user",
        "sql:claim",
        "sql:sequence_gaps",
        "sql:webhook",
        "sql:due_events",
        "sql:feed",
        "sql:claims_with_waiting_events",
    ];
    !reads.contains(&name)
}

fn report(tally: &Tally, took: Duration) {
    let mut sums: BTreeMap<(Database, &str), Counts> = BTreeMap::new();
    for ((pair, fate), count) in &tally.played {
        *sums.entry((pair.database, *fate)).or_default().entry((pair.a, pair.b)).or_default() += count;
    }
    for ((database, fate), counts) in &sums {
        matrix::print(&format!("{database:?}, {fate}, {} schedules", counts.values().sum::<usize>()), counts);
    }
    let mut slowest: Vec<_> = tally.took.iter().map(|(pair, took)| (*took, pair)).collect();
    slowest.sort_unstable();
    for (took, pair) in slowest.iter().rev().take(5) {
        println!("{took:>8.1?} {pair:?}");
    }
    let (schedules, failed) = (tally.played.values().sum::<usize>(), tally.failed.len());
    println!("{schedules} schedules in {took:.1?}, {failed} broke a guarantee");
    let mut kinds: BTreeMap<String, Vec<&Failure>> = BTreeMap::new();
    for failure in &tally.failed {
        kinds.entry(kind(&failure.wrong)).or_default().push(failure);
    }
    for (kind, failures) in &kinds {
        println!("\n{} x {kind}", failures.len());
        for failure in failures {
            println!("  INTERLEAVING=\"{}\"", failure.schedule);
        }
    }
    for (_, failures) in kinds.iter().take(PRINTED_MAX) {
        let Failure { schedule, wrong, lines } = failures[0];
        println!("\n{schedule}\n{}\n{wrong}", lines.join("\n"));
    }
}

/// Returns the error text without its numbers.
fn kind(wrong: &str) -> String {
    let line = wrong.lines().next().unwrap_or_default();
    let text: String = line.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(100).collect();
    text
}
