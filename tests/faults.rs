//! claimgate under every fault of the list, against real processes; each test ends before the one judge
//! (`support/checker.rs`), and says what it survived.

// Test code throughout, also in functions that are not tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

#[path = "faults/backup.rs"]
mod backup;
#[path = "faults/cores.rs"]
mod cores;
#[path = "faults/delayed.rs"]
mod delayed;
#[path = "faults/evicted.rs"]
mod evicted;
#[path = "faults/export.rs"]
mod export;
#[path = "faults/failover.rs"]
mod failover;
#[path = "faults/flow.rs"]
mod flow;
#[path = "faults/jobs.rs"]
mod jobs;
#[path = "faults/keys.rs"]
mod keys;
#[path = "faults/killed.rs"]
mod killed;
#[path = "faults/lock.rs"]
mod lock;
#[path = "faults/machine.rs"]
mod machine;
#[path = "faults/outbox.rs"]
mod outbox;
#[path = "faults/plans.rs"]
mod plans;
#[path = "faults/rebuild.rs"]
mod rebuild;
#[path = "faults/redis.rs"]
mod redis;
#[path = "faults/registers.rs"]
mod registers;
#[path = "faults/replies.rs"]
mod replies;
#[path = "faults/sql.rs"]
mod sql;
#[path = "faults/stage.rs"]
mod stage;
#[path = "faults/storm.rs"]
mod storm;
#[path = "faults/strace.rs"]
mod strace;
#[path = "faults/tally.rs"]
mod tally;
#[path = "faults/tls.rs"]
mod tls;
#[path = "faults/traps.rs"]
mod traps;
#[path = "faults/unreadable.rs"]
mod unreadable;
#[path = "faults/vanished.rs"]
mod vanished;
