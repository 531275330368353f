//! The machine: its properties, and the load by other processes.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Maximum difference between the calibrations of a quiet figure, relative to the quickest.
pub const CALIBRATION_SPREAD_MAX: f64 = 0.15;
/// Maximum share of the machine's CPU that other processes and the hypervisor may use.
pub const OTHERS_SHARE_MAX: f64 = 0.10;

/// Number of cores of the reference machine of `docs/performance.md`. More cores hardly shorten a run: most
/// of its servers use only one or two.
const REFERENCE_CORES: usize = 2;
/// Number of sorts that the reference machine completes within [`SLOWNESS_WINDOW`] on all its cores.
const REFERENCE_SORTS: f64 = 3_600.0;
const SORTED_NUMBERS: u64 = 1 << 16;
/// Spans several periods of a processor quota (100 ms by default), so that a machine stopped half of the time
/// counts as half as fast.
const SLOWNESS_WINDOW: Duration = Duration::from_secs(1);

const CALIBRATION_BYTES: usize = 4 << 20;
const CALIBRATION_RUNS: usize = 6;
const FSYNC_RUNS: usize = 50;

/// Other activity during one or more measurements.
#[derive(Debug, Clone, Copy)]
pub struct Disturbance {
    /// The quickest calibration before a measurement, in milliseconds.
    pub calibration_min_ms: f64,
    /// The slowest calibration before a measurement, in milliseconds.
    pub calibration_max_ms: f64,
    /// The largest share of the machine that other processes took, 0 to 1.
    pub others: f64,
    /// The largest share that the hypervisor gave to other machines, 0 to 1.
    pub stolen: f64,
}

impl Disturbance {
    /// The value before any measurement.
    pub const NONE: Self =
        Self { calibration_min_ms: f64::INFINITY, calibration_max_ms: 0.0, others: 0.0, stolen: 0.0 };

    /// Combines two disturbances.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            calibration_min_ms: self.calibration_min_ms.min(other.calibration_min_ms),
            calibration_max_ms: self.calibration_max_ms.max(other.calibration_max_ms),
            others: self.others.max(other.others),
            stolen: self.stolen.max(other.stolen),
        }
    }

    /// Returns the difference of the calibrations relative to the quickest.
    pub fn calibration_spread(self) -> f64 {
        (self.calibration_max_ms / self.calibration_min_ms - 1.0).max(0.0)
    }

    /// Returns why the measurements are noisy; `None` if they are quiet enough.
    pub fn noise_reason(self) -> Option<String> {
        let (spread, taken) = (self.calibration_spread(), self.others + self.stolen);
        if spread > CALIBRATION_SPREAD_MAX {
            return Some(format!("calibrations differ by {:.0} %", spread * 100.0));
        }
        (taken > OTHERS_SHARE_MAX)
            .then(|| format!("other processes used {:.0} % of the machine", taken * 100.0))
    }
}

/// Runs a fixed piece of work several times on every core concurrently. Returns the slowest core's quickest
/// run in milliseconds. The quickest run counts, because a short-lived process does not make the machine
/// slow.
pub fn calibrate() -> f64 {
    let cores: Vec<_> = (0..cores()).map(|core| std::thread::spawn(move || calibrate_core(core))).collect();
    cores.into_iter().filter_map(|core| core.join().ok()).fold(0.0, f64::max)
}

fn calibrate_core(core: usize) -> f64 {
    let mut cpus = CpuSet::new();
    cpus.set(core);
    // If permission is missing, the thread runs on any core.
    let _ = sched_setaffinity(None, &cpus);
    let buffer = vec![7_u8; CALIBRATION_BYTES];
    let run = |_| {
        let started = Instant::now();
        std::hint::black_box(Sha256::digest(std::hint::black_box(&buffer)));
        started.elapsed().as_secs_f64() * 1000.0
    };
    (0..CALIBRATION_RUNS).map(run).fold(f64::INFINITY, f64::min)
}

/// Returns this machine's time for fixed work, relative to the reference machine's. The work is sorting, not
/// hashing as in [`calibrate`]: only some processors have hash instructions, which no server uses.
pub fn slowness() -> f64 {
    let cores: Vec<_> = (0..REFERENCE_CORES).map(|_| std::thread::spawn(sorts)).collect();
    let sorts: u32 = cores.into_iter().filter_map(|core| core.join().ok()).sum();
    REFERENCE_SORTS / f64::from(sorts.max(1))
}

/// Sorts the same numbers repeatedly; returns how often within [`SLOWNESS_WINDOW`].
fn sorts() -> u32 {
    // Multiplying by an odd constant shuffles the numbers.
    let numbers: Vec<u64> = (0..SORTED_NUMBERS).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let started = Instant::now();
    let mut sorts = 0;
    while started.elapsed() < SLOWNESS_WINDOW {
        let mut copy = numbers.clone();
        copy.sort_unstable();
        std::hint::black_box(&copy);
        sorts += 1;
    }
    sorts
}

/// CPU time so far, in ticks over all cores.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    all: f64,
    busy: f64,
    stolen: f64,
    own: f64,
}

impl Usage {
    /// Reads the current values.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        // user nice system idle iowait irq softirq steal …
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0.0);
        Self { all: ticks.iter().take(8).sum(), busy: at(0) + at(1) + at(2), stolen: at(7), own: own_ticks() }
    }

    /// Returns the shares that other processes and the hypervisor have taken since.
    pub fn others_since(self) -> (f64, f64) {
        let now = Self::now();
        let all = (now.all - self.all).max(1.0);
        let others = (now.busy - self.busy) - (now.own - self.own);
        ((others / all).max(0.0), (now.stolen - self.stolen) / all)
    }
}

/// Returns the ticks of this process and all its descendants, including ended ones.
fn own_ticks() -> f64 {
    let mut processes = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may contain any character.
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        let parent: u32 = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        // utime, stime, and those of reaped children.
        processes.insert(pid, (parent, (11..=14).map(number).sum::<f64>()));
    }
    let root = std::process::id();
    let is_own = |mut pid: u32| {
        while pid != root {
            match processes.get(&pid) {
                Some((parent, _)) if *parent != 0 => pid = *parent,
                _ => return false,
            }
        }
        true
    };
    processes.iter().filter(|(pid, _)| is_own(**pid)).map(|(_, (_, ticks))| ticks).sum()
}

/// Returns the number of available cores.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Returns the 1-, 5- and 15-minute load averages.
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Returns the machine's properties.
pub fn facts() -> Value {
    json!({
        "cpu": after_colon("/proc/cpuinfo", "model name"),
        "cores": cores(),
        "memory": after_colon("/proc/meminfo", "MemTotal"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim_end(),
        "redis": redis_version(),
        "fsync_us": fsync_us(),
    })
}

fn after_colon(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
}

fn redis_version() -> String {
    let output = Command::new("redis-server").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.unwrap_or("unknown").to_owned()
}

/// Returns the median time to sync a small write on the servers' disk, in microseconds.
fn fsync_us() -> Option<f64> {
    let mut file = tempfile::tempfile().ok()?;
    let mut took = Vec::new();
    for _ in 0..FSYNC_RUNS {
        let started = Instant::now();
        file.write_all(&[0; 512]).and_then(|()| file.sync_data()).ok()?;
        took.push(started.elapsed().as_secs_f64() * 1e6);
    }
    Some(crate::median::median(&took).round())
}
