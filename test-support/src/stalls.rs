//! Watches for stalls of the machine, so that a failed test prints those of its time, and for a full disk.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use std::{env, panic, thread};

use rustix::fs::fstatvfs;

use crate::events::note;

const PAUSE: Duration = Duration::from_millis(10);
/// Minimum delay that is recorded. Core's timeout for Redis is 1 s.
const LATE: Duration = Duration::from_millis(150);
/// Maximum number of stalls that are kept and printed.
const KEPT: usize = 20;
/// Free space below which servers may fail: PostgreSQL's log grows by 16 MiB at a time.
const SPACE_MIN_MIB: u64 = 64;

/// A moment at which the processors or the disk took much longer than usual.
#[derive(Debug, Clone, Copy)]
struct Stall {
    what: &'static str,
    ended: Instant,
    lasted: Duration,
}

static WATCHING: Once = Once::new();
static STALLS: Mutex<Vec<Stall>> = Mutex::new(vec![]);

/// Keeps a benchmark from being watched, since each sync delays those of the servers.
pub fn ignore() {
    WATCHING.call_once(|| {});
}

/// Starts to watch, once in a process: how late a thread is woken, and how long a sync takes on the disk of
/// the servers' data. From then on, each panic prints the latest stalls.
pub fn watch() {
    WATCHING.call_once(|| {
        let print_panic = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            print_panic(info);
            eprintln!("{}", latest());
        }));
        thread::spawn(|| {
            let file = tempfile::tempfile().expect("a file on the disk of the servers' data");
            let mut has_space = true;
            loop {
                if has_space && !has_free_space(&file) {
                    has_space = false;
                    let disk = env::temp_dir();
                    note(&format!("full {} had less than {SPACE_MIN_MIB} MiB free", disk.display()));
                }
                let stalls = [
                    measure("the processors", PAUSE, || thread::sleep(PAUSE)),
                    measure("the disk", Duration::ZERO, || sync(&file)),
                ];
                for Stall { what, lasted, .. } in stalls.into_iter().flatten() {
                    note(&format!("stall {what} {lasted:.1?}"));
                }
            }
        });
    });
}

/// Keeps and returns a stall if `work` took much longer than `usual`.
fn measure(what: &'static str, usual: Duration, work: impl FnOnce()) -> Option<Stall> {
    let began = Instant::now();
    work();
    let ended = Instant::now();
    let lasted = ended.duration_since(began).saturating_sub(usual);
    if lasted < LATE {
        return None;
    }
    let stall = Stall { what, ended, lasted };
    let mut stalls = STALLS.lock().expect("the stalls");
    if stalls.len() == KEPT {
        stalls.remove(0);
    }
    stalls.push(stall);
    Some(stall)
}

fn sync(file: &File) {
    // A full disk is the business of the test that fills it.
    let _ = file.write_all_at(b"stall?", 0).and_then(|()| file.sync_data());
}

/// Returns whether servers can still write to the disk of `file`.
fn has_free_space(file: &File) -> bool {
    fstatvfs(file).is_ok_and(|disk| (disk.f_bavail * disk.f_frsize) >> 20 >= SPACE_MIN_MIB)
}

/// Returns a line for each of the latest stalls.
fn latest() -> String {
    let stalls = STALLS.lock().map(|stalls| stalls.clone()).unwrap_or_default();
    if stalls.is_empty() {
        return "the machine did not stall before that".to_owned();
    }
    let line = |Stall { what, ended, lasted }: &Stall| {
        format!("{what} stalled for {lasted:.1?}, until {:.1?} before that", ended.elapsed())
    };
    stalls.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SOON;

    #[test]
    fn only_late_work_is_printed() {
        measure("what is in time", SOON, || thread::sleep(PAUSE));
        measure("what is late", PAUSE, || thread::sleep(LATE + 2 * PAUSE));
        let printed = latest();
        assert!(printed.contains("what is late stalled for"), "{printed}");
        assert!(!printed.contains("what is in time"), "{printed}");
    }
}
