//! Kills random processes of an installation under load, and restarts them immediately.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::Core;
use support::process::{Signal, signal_pid};
use support::rng::Rng;
use tokio::time::interval;

use crate::fixture::Fixture;
use crate::tally::Row;

const KILLS: usize = 7;
const KILL_EVERY: Duration = Duration::from_millis(300);

/// The processes killed at each turn: core, Redis, PostgreSQL.
const TURNS: [[bool; 3]; 5] = [
    [true, false, false],
    [false, true, false],
    [false, false, true],
    [true, true, false],
    [true, true, true],
];

/// The addresses of the cores that run now; a core that replaces a killed one may have others.
#[derive(Debug)]
pub struct Addresses {
    /// The internal and the admin listener of each core.
    listeners: Mutex<Vec<[String; 2]>>,
    turn: AtomicUsize,
}

impl Addresses {
    pub fn of(fixture: &Fixture) -> Self {
        let cores = std::iter::once(&fixture.core).chain(&fixture.others);
        Self { listeners: Mutex::new(cores.map(listeners).collect()), turn: AtomicUsize::new(0) }
    }

    /// Returns the URL of `path` at the cores, alternately.
    pub fn url(&self, path: &str) -> String {
        let listeners = self.listeners.lock().unwrap();
        let at = self.turn.fetch_add(1, Ordering::Relaxed) % listeners.len();
        format!("{}{path}", listeners[at][usize::from(path.starts_with("/admin/"))])
    }

    fn replace(&self, at: usize, core: &Core) {
        self.listeners.lock().unwrap()[at] = listeners(core);
    }
}

fn listeners(core: &Core) -> [String; 2] {
    [core.url(""), core.admin_url("")]
}

/// Kills random processes every 300 ms, and restarts them immediately. Returns how many of each, once all cores are
/// ready.
pub async fn kill_repeatedly(
    fixture: &mut Fixture,
    addresses: &Addresses,
    row: &Row,
    rng: &mut Rng,
) -> String {
    let mut killed = BTreeMap::<&str, usize>::new();
    let mut ticks = interval(KILL_EVERY);
    ticks.tick().await;
    for _ in 0..KILLS {
        ticks.tick().await;
        let [core, redis, postgres] = TURNS[usize::try_from(rng.within(0, 4)).expect("an index")];
        if postgres && let Some(postgres) = &mut fixture.postgres {
            row.kill();
            *killed.entry("PostgreSQL").or_default() += 1;
            postgres.stop_immediately().await;
            postgres.start_again().await;
        }
        if redis {
            row.kill();
            *killed.entry("Redis").or_default() += 1;
            kill_redis(fixture).await;
        }
        if core {
            row.kill();
            *killed.entry("core").or_default() += 1;
            let at = usize::try_from(rng.next_number()).unwrap_or(0) % (1 + fixture.others.len());
            let core = core_at(fixture, at);
            core.kill();
            *core = core.launch_again();
            addresses.replace(at, core);
        }
    }
    for at in 0..=fixture.others.len() {
        let core = core_at(fixture, at);
        core.supervise().await;
        addresses.replace(at, core);
    }
    format!("{killed:?}")
}

fn core_at(fixture: &mut Fixture, at: usize) -> &mut Core {
    if at == 0 { &mut fixture.core } else { &mut fixture.others[at - 1] }
}

/// Kills Redis. Core restarts its managed Redis; the test restarts an external one.
async fn kill_redis(fixture: &mut Fixture) {
    if let Some(server) = &mut fixture.server {
        return server.kill_and_restart().await;
    }
    let core = fixture.core.pid();
    let children = std::fs::read_to_string(format!("/proc/{core}/task/{core}/children")).unwrap_or_default();
    for task in std::fs::read_dir(format!("/proc/{core}/task")).into_iter().flatten().flatten() {
        let of_thread = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for pid in of_thread.split_whitespace().chain(children.split_whitespace()) {
            signal_pid(pid.parse().unwrap(), Signal::KILL);
        }
    }
}
