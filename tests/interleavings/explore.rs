//! The whole product of protocols, placements and fates, and what it came to, as a matrix.
//!
//! Played on SQLite, and on PostgreSQL where both decide what Redis holds of the campaign as a whole: every ordered pair of
//! protocols, from each initial state where A has something to do, with A held up before each of its steps; where a lease
//! is held at that moment, once as it is and once as run out. And each of A's steps crashed before and its reply lost,
//! followed by the same protocol again and by the recovery's look. On SQLite also, where both decide what Redis holds:
//! both held up, each before every step that may change something. `INTERLEAVINGS_ALL=1` plays crashes and lost replies
//! before every protocol, and two pre-emptions of every pair, all of it on both databases. `INTERLEAVINGS_SHARE=4` plays one
//! in four pairs, drawn by `SEED`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::initial_state::InitialState;
use super::matrix::{self, Counts};
use super::protocol::{PROTOCOLS, Protocol};
use super::registry;
use super::schedule::{Fate, Played, Schedule};
use super::track::{END, Place, REACHED};
use super::world::{Database, World};
use support::rng::Rng;

/// Two for every processor of the smallest machine that the tests are for: half of the time each waits for its servers.
const WORKERS: usize = 4;
/// Failing schedules that are printed whole; the others as a line.
const PRINTED_MAX: usize = 12;

/// Two protocols from one initial state: one piece of work for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    database: Database,
    initial: InitialState,
    a: Protocol,
    b: Protocol,
}

/// A schedule that broke a promise: which, and all that happened.
#[derive(Debug)]
struct Failure {
    schedule: Schedule,
    wrong: String,
    lines: Vec<String>,
}

/// What all schedules came to.
#[derive(Debug, Default)]
struct Tally {
    /// Schedules by pair and fate, and for how long.
    played: BTreeMap<(Pair, &'static str), usize>,
    took: BTreeMap<Pair, Duration>,
    /// Steps that A has by itself: the same for every B.
    steps: BTreeMap<(Database, InitialState, Protocol), BTreeSet<usize>>,
    /// A's places that were played with a single pre-emption, each with leases held.
    places: BTreeMap<Pair, BTreeSet<usize>>,
    failed: Vec<Failure>,
    unmet: Vec<Schedule>,
}

/// Those of `PAIRS=create,evict`, of `WITH=forget` on either side, of `DATABASE=sqlite` and of `STATE=over`, and of these the
/// share that is drawn; all without them.
fn pairs() -> Vec<Pair> {
    let asked = |variable: &str, names: &[&str]| {
        std::env::var(variable).is_err() || {
            let list = std::env::var(variable).unwrap_or_default();
            names.iter().all(|name| list.split(',').any(|asked| asked.eq_ignore_ascii_case(name)))
        }
    };
    let mut pairs = all_pairs();
    pairs.retain(|pair| {
        asked("PAIRS", &[pair.a.name(), pair.b.name()])
            && (asked("WITH", &[pair.a.name()]) || asked("WITH", &[pair.b.name()]))
            && asked("DATABASE", &[&format!("{:?}", pair.database)])
            && asked("STATE", &[pair.initial.name()])
    });
    drawn(pairs)
}

/// One in `INTERLEAVINGS_SHARE` of `pairs`.
fn drawn(mut pairs: Vec<Pair>) -> Vec<Pair> {
    let Ok(share) = std::env::var("INTERLEAVINGS_SHARE") else { return pairs };
    let share: u64 = share.parse().expect("INTERLEAVINGS_SHARE is a whole number");
    let (mut rng, all) = (Rng::seeded("the pairs that are played"), pairs.len());
    pairs.retain(|_| rng.draw().is_multiple_of(share));
    println!("{} of {all} pairs are played", pairs.len());
    pairs
}

/// Each ordered pair, from each initial state where A has something to do. With `INTERLEAVINGS_ALL` all of them on both
/// databases; without it on PostgreSQL only where both decide what Redis holds of the campaign, but where only the outbox is
/// lost; and a protocol that is made of others only beside those that [`Protocol::meets`] names.
fn all_pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for database in [Database::Sqlite, Database::Postgres] {
        for (a, _) in PROTOCOLS {
            for (b, _) in PROTOCOLS {
                pairs.extend(a.initial_states().iter().map(|initial| Pair {
                    database,
                    initial: *initial,
                    a,
                    b,
                }));
            }
        }
    }
    pairs.retain(|pair| everything() || pair.database == Database::Sqlite || both_rewrite(*pair));
    pairs.retain(|pair| everything() || pair.a.meets(pair.b) && pair.b.meets(pair.a));
    pairs
}

#[test]
fn every_placement_of_every_pair_keeps_every_promise() {
    let (started, pairs) = (Instant::now(), pairs());
    let queue: Mutex<VecDeque<Pair>> = Mutex::new(pairs.iter().copied().collect());
    let tally: Mutex<Tally> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&queue, &tally));
        }
    });
    let tally = tally.into_inner().expect("the tally");
    report(&tally, started.elapsed());
    nothing_is_left_out(&tally, &pairs);
    assert!(tally.failed.is_empty(), "{} schedules broke a promise", tally.failed.len());
}

/// Each pair at each of A's places, and each step point that core has.
fn nothing_is_left_out(tally: &Tally, pairs: &[Pair]) {
    assert!(tally.unmet.is_empty(), "not played as written: {:?}", tally.unmet);
    for (protocol, steps) in &tally.steps {
        assert_eq!(steps.len(), 1, "{protocol:?} has not the same steps each time: {steps:?}");
    }
    for pair in pairs {
        let steps = tally.steps[&(pair.database, pair.initial, pair.a)].first().expect("a number");
        let places: BTreeSet<usize> = (1..=steps + 1).collect();
        assert_eq!(tally.places.get(pair), Some(&places), "places left out of {pair:?}");
    }
    if pairs.len() == all_pairs().len() {
        let reached = REACHED.lock().expect("the step points");
        let missed: Vec<_> =
            registry::names().into_iter().filter(|name| !reached.contains(name.as_str())).collect();
        assert!(missed.is_empty(), "step points that no schedule came to: {missed:?}");
    }
}

fn work(queue: &Mutex<VecDeque<Pair>>, tally: &Mutex<Tally>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut worlds: BTreeMap<Database, World> = BTreeMap::new();
        loop {
            let Some(pair) = queue.lock().expect("the queue").pop_front() else { return };
            let world = match worlds.entry(pair.database) {
                Entry::Occupied(world) => world.into_mut(),
                Entry::Vacant(place) => place.insert(World::start(pair.database).await),
            };
            explore(world, pair, tally).await;
        }
    });
}

/// All schedules of one pair.
async fn explore(world: &World, pair: Pair, tally: &Mutex<Tally>) {
    let begun = Instant::now();
    let Pair { database, initial, a, b } = pair;
    let of = |at, fate, expire| Schedule { database, initial, a, at, fate, b, expire };
    let keep = |schedule: Schedule, played: Played| {
        let mut tally = tally.lock().expect("the tally");
        *tally.played.entry((pair, schedule.fate.name())).or_default() += 1;
        if let (Fate::HeldUp, Place::Step(at), false) = (schedule.fate, schedule.at, schedule.expire) {
            tally.places.entry(pair).or_default().insert(at);
        }
        if let Some(wrong) = played.wrong {
            println!("INTERLEAVING=\"{schedule}\"  {}", wrong.lines().next().unwrap_or_default());
            tally.failed.push(Failure { schedule, wrong, lines: played.lines });
        }
        if played.met != [true; 2] {
            tally.unmet.push(schedule);
        }
    };
    // The steps that A has by itself.
    let alone = of(END, Fate::HeldUp, false).play(world).await.steps;
    let steps = alone[0].len();
    tally.lock().expect("the tally").steps.entry((database, initial, a)).or_default().insert(steps);
    for at in 1..=steps + 1 {
        for expire in [false, true] {
            let schedule = of(Place::Step(at), Fate::HeldUp, expire);
            let played = schedule.play(world).await;
            let (leases, b_steps) = (played.leases, played.steps[1].clone());
            keep(schedule, played);
            if with_two(pair) && at > 1 && alone[0].get(at - 1).is_some_and(|name| is_write(name)) {
                // Before its first step B has not begun: that is A, then B.
                for (b_at, _) in b_steps.iter().enumerate().skip(1).filter(|(_, name)| is_write(name)) {
                    let fate = Fate::BothHeldUp(Place::Step(b_at + 1));
                    let schedule = of(Place::Step(at), fate, expire);
                    let played = schedule.play(world).await;
                    keep(schedule, played);
                }
            }
            // A protocol that asks for no lease does the same whether one has expired.
            if !leases || !(b.rewrites() || everything()) {
                break;
            }
        }
        for fate in [Fate::Crash, Fate::LostReply] {
            // Before its first step a core that dies has done nothing; and after its last there is no reply to lose.
            let idle = (fate == Fate::Crash && at == 1) || (fate == Fate::LostReply && at > steps);
            if idle || !picks_up(pair) {
                continue;
            }
            for expire in [false, true] {
                let schedule = of(Place::Step(at), fate, expire);
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

fn everything() -> bool {
    std::env::var_os("INTERLEAVINGS_ALL").is_some()
}

/// Whether two pre-emptions are played: where both decide what Redis holds of the campaign, on SQLite, but where only the
/// outbox is lost; with `INTERLEAVINGS_ALL`, of every pair, on both databases.
fn with_two(pair: Pair) -> bool {
    (both_rewrite(pair) && pair.database == Database::Sqlite) || everything()
}

/// Whether both decide what Redis holds of the campaign as a whole, and more than its outbox may be lost.
fn both_rewrite(pair: Pair) -> bool {
    pair.a.rewrites() && pair.b.rewrites() && pair.initial != InitialState::Unheard
}

/// Whether B is what comes after a crash or a lost reply: the same, asked again, or what any core does by itself; with
/// `INTERLEAVINGS_ALL`, everything.
fn picks_up(pair: Pair) -> bool {
    pair.b == pair.a || pair.b == Protocol::EnsureReady || everything()
}

/// Whether a step may change something in Redis or SQL. Held up twice, a protocol stands before one of these: what it
/// has read by then is as old as can be.
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
    println!("{schedules} schedules in {took:.1?}, {failed} broke a promise");
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

/// What is wrong without the numbers in it.
fn kind(wrong: &str) -> String {
    let line = wrong.lines().next().unwrap_or_default();
    let text: String = line.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(100).collect();
    text
}
