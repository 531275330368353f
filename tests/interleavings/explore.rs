//! The whole product of protocols, placements and fates, on both databases; what it came to, as a matrix.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::protocol::{PROTOCOLS, Protocol};
use super::schedule::{Fate, Played, Schedule};
use super::stage::Stage;
use super::track::{END, Place};
use super::world::{Database, World};

/// One of each for every processor of the smallest machine that the tests are for.
const WORKERS: usize = 2;
/// Failing schedules that are printed whole; the others as a line.
const PRINTED_MAX: usize = 12;

/// Two protocols on one stage: one piece of work for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    database: Database,
    stage: Stage,
    a: Protocol,
    b: Protocol,
}

/// What all schedules came to.
#[derive(Debug, Default)]
struct Tally {
    /// Schedules by pair, and for how long.
    played: BTreeMap<Pair, (usize, Duration)>,
    by_fate: BTreeMap<&'static str, usize>,
    failed: Vec<(Schedule, String, Vec<String>)>,
    unmet: Vec<Schedule>,
}

/// Every pair in which at least one has something to do.
fn pairs() -> Vec<Pair> {
    let only = std::env::var("PAIRS").unwrap_or_default();
    let only: BTreeSet<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    let mut pairs = Vec::new();
    for database in [Database::Sqlite, Database::Postgres] {
        if std::env::var("DATABASE").is_ok_and(|name| !format!("{database:?}").eq_ignore_ascii_case(&name)) {
            continue;
        }
        for (a, a_name) in PROTOCOLS {
            for (b, b_name) in PROTOCOLS {
                if !only.is_empty() && !(only.contains(a_name) && only.contains(b_name)) {
                    continue;
                }
                let stages: BTreeSet<Stage> = a.stages().iter().chain(b.stages()).copied().collect();
                pairs.extend(stages.into_iter().map(|stage| Pair { database, stage, a, b }));
            }
        }
    }
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
    assert!(tally.unmet.is_empty(), "not played as written: {:?}", tally.unmet);
    assert_eq!(tally.played.len(), pairs.len(), "pairs left out");
    assert!(tally.failed.is_empty(), "{} schedules broke a promise", tally.failed.len());
}

fn work(queue: &Mutex<VecDeque<Pair>>, tally: &Mutex<Tally>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut worlds: BTreeMap<Database, World> = BTreeMap::new();
        loop {
            let Some(pair) = queue.lock().expect("the queue").pop_front() else { return };
            if !worlds.contains_key(&pair.database) {
                worlds.insert(pair.database, World::start(pair.database).await);
            }
            explore(&worlds[&pair.database], pair, tally).await;
        }
    });
}

/// All schedules of one pair.
async fn explore(world: &World, pair: Pair, tally: &Mutex<Tally>) {
    let begun = Instant::now();
    let Pair { database, stage, a, b } = pair;
    let of = |at, fate, expire| Schedule { database, stage, a, at, fate, b, expire };
    let mut count = 0;
    let mut keep = |schedule: Schedule, played: Played| {
        count += 1;
        let mut tally = tally.lock().expect("the tally");
        *tally.by_fate.entry(schedule.fate.name()).or_default() += 1;
        if let Some(wrong) = played.wrong {
            tally.failed.push((schedule, wrong, played.lines));
        }
        if played.met != [true; 2] {
            tally.unmet.push(schedule);
        }
    };
    // How many steps A has by itself.
    let steps = of(END, Fate::HeldUp, false).play(world).await.steps[0];
    for at in 1..=steps + 1 {
        for expire in [false, true] {
            let schedule = of(Place::Step(at), Fate::HeldUp, expire);
            let played = schedule.play(world).await;
            let (leases, b_steps) = (played.leases, played.steps[1]);
            keep(schedule, played);
            if doubles(database) && at > 1 && at <= steps {
                for b_at in 2..=b_steps {
                    let schedule = of(Place::Step(at), Fate::BothHeldUp(Place::Step(b_at)), expire);
                    let played = schedule.play(world).await;
                    keep(schedule, played);
                }
            }
            if !leases {
                break;
            }
        }
        for fate in [Fate::Crash, Fate::LostReply] {
            // Before its first step a core that dies has done nothing; and after its last there is no reply to lose.
            if (fate == Fate::Crash && at == 1) || (fate == Fate::LostReply && at > steps) {
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
    tally.lock().expect("the tally").played.insert(pair, (count, begun.elapsed()));
}

/// Two pre-emptions are played on SQLite; on both databases when asked for more.
fn doubles(database: Database) -> bool {
    database == Database::Sqlite || std::env::var_os("INTERLEAVINGS_ALL").is_some()
}

fn report(tally: &Tally, took: Duration) {
    let schedules: usize = tally.played.values().map(|(count, _)| count).sum();
    let failed = tally.failed.len();
    println!("{schedules} schedules in {took:.1?}, {failed} broke a promise; {:?}", tally.by_fate);
    for database in [Database::Sqlite, Database::Postgres] {
        let of = |(pair, _): &(&Pair, &(usize, Duration))| pair.database == database;
        let (count, time) = tally
            .played
            .iter()
            .filter(of)
            .fold((0, Duration::ZERO), |(count, time), (_, (n, t))| (count + n, time + *t));
        println!("{database:?}: {count} schedules, {time:.1?} of one worker");
    }
    let mut kinds: BTreeMap<String, Vec<&(Schedule, String, Vec<String>)>> = BTreeMap::new();
    for failure in &tally.failed {
        kinds.entry(kind(&failure.1)).or_default().push(failure);
    }
    for (kind, failures) in &kinds {
        println!("\n{} x {kind}", failures.len());
        for (schedule, ..) in failures {
            println!("  INTERLEAVING=\"{schedule}\"");
        }
    }
    for (_, failures) in kinds.iter().take(PRINTED_MAX) {
        let (schedule, wrong, lines) = failures[0];
        println!("\n{schedule}\n{}\n{wrong}", lines.join("\n"));
    }
}

/// What is wrong without the numbers in it.
fn kind(wrong: &str) -> String {
    let line = wrong.lines().next().unwrap_or_default();
    let text: String = line.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(100).collect();
    text
}
