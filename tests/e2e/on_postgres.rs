//! A core on its own PostgreSQL server.

use support::available::available;
use support::postgres::Postgres;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, Sql, eventually};

/// Starts PostgreSQL and a core with `options` for the test `what`. Returns `None` without PostgreSQL, which
/// fails in CI.
pub async fn on_postgres(what: &str, options: CoreOptions) -> Option<(Core, Sql, Postgres)> {
    let postgres = available(what, Postgres::start().await)?;
    let url = postgres.database("claimgate").await;
    let core = options.with("CLAIMGATE_DATABASE_URL", &url).start().await;
    Some((core, Sql::open(&url), postgres))
}

#[tokio::test]
async fn a_dropped_server_leaves_no_shared_memory() {
    let what = "the shared memory of a PostgreSQL server";
    let Some(postgres) = available(what, Postgres::start().await) else { return };
    let segment = postgres.shared_memory().expect("a segment");
    let is_there = || {
        let segments = std::fs::read_to_string("/proc/sysvipc/shm").expect("the machine's segments");
        segments.lines().any(|line| line.split_whitespace().nth(1) == Some(&segment))
    };
    assert!(is_there());
    drop(postgres);
    // The kernel removes the segment when the last process of the server has gone.
    eventually(SOON, || async { holds(!is_there(), || format!("segment {segment} is left")) }).await;
}
