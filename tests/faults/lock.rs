//! The lease in Redis that keeps two cores from doing the same work. Tests core's own library against a real
//! Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use claimgate_core::store::redis::RedisStore;
use claimgate_core::store::redis::lease::{Lease, LeaseError, LeaseHolder};
use claimgate_core::store::redis::scripts::layout_number::LAYOUT;
use redis::Client;
use support::inspect::key;
use support::only_on;
use support::process::fast_disk;
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{RedisServer, RedisView, SOON, eventually, promised};
use tokio::time::sleep;

use crate::tally::Row;

/// The pause between two checks of a lease.
const POLL: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_millis(600);
/// Does not expire during a test.
const LONG_LEASE: Duration = Duration::from_mins(10);

/// A Redis server for any number of lease holders.
struct Locks {
    server: RedisServer,
}

impl Locks {
    async fn new() -> Self {
        // A fast disk, because the tests measure the leases' times.
        Self { server: RedisServer::start_with(&[], &fast_disk()).await }
    }

    fn owner(&self) -> LeaseHolder {
        let client = Client::open(self.server.url()).unwrap();
        LeaseHolder::new(Arc::new(RedisStore::new(client, 1000))).unwrap()
    }

    async fn redis(&self) -> RedisView {
        self.server.view().await
    }
}

/// Returns whether another holder has the lease; `Err` if Redis did not answer in time.
fn is_taken(result: Result<Lease, LeaseError>) -> Result<bool, LeaseError> {
    match result {
        Ok(_) => Ok(false),
        Err(LeaseError::Taken) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Runs `check` on a new server, and again on another if Redis did not answer a call in time: the call may
/// have had an effect. Ends the row with the text that `check` returns.
async fn on_locks(
    row: Row,
    operations: usize,
    check: impl AsyncFn(&Row, &Locks) -> Result<String, LeaseError>,
) {
    let mut last = None;
    for _ in 0..5 {
        match check(&row, &Locks::new().await).await {
            Ok(what) => return row.passed(operations, &what),
            Err(LeaseError::Taken) => panic!("the lease was not free"),
            Err(error) => last = Some(error),
        }
    }
    panic!("Redis did not answer in any of five runs: {last:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_holder_cannot_release_a_new_holders_lease() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: a late holder cannot release a newer holder's lease");
    on_locks(row, 7, async |row: &Row, locks: &Locks| -> Result<String, LeaseError> {
        let (slow, quick, third) = (locks.owner(), locks.owner(), locks.owner());
        let late = slow.try_acquire("work", LONG_LEASE).await?;
        assert!(is_taken(quick.try_acquire("work", LONG_LEASE).await)?);
        // Simulates a holder that slept past its lease.
        row.fault();
        locks.redis().await.query::<()>(&["DEL", "cg:lease:{work}"]).await;
        let held = quick.try_acquire("work", LONG_LEASE).await?;
        assert!(held.token() > late.token(), "{} after {}", held.token(), late.token());
        assert!(!late.release().await?, "the late holder must not release the lease");
        assert!(is_taken(third.try_acquire("work", LONG_LEASE).await)?, "the lease must still be held");
        assert!(held.release().await?);
        third.try_acquire("work", LONG_LEASE).await?.release().await?;
        Ok("the late release had no effect".to_owned())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_holder_learns_that_its_lease_is_lost() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: a late holder learns that its lease is lost");
    on_locks(row, 2, async |row: &Row, locks: &Locks| -> Result<String, LeaseError> {
        let (slow, quick) = (locks.owner(), locks.owner());
        let late = slow.try_acquire("work", LEASE).await?;
        row.fault();
        locks.redis().await.query::<()>(&["DEL", "cg:lease:{work}"]).await;
        let held = quick.try_acquire("work", LONG_LEASE).await?;
        eventually(SOON, || async { holds(late.is_lost(), || "the holder does not know".to_owned()) }).await;
        assert!(!held.is_lost());
        Ok("its watchdog reported the loss".to_owned())
    })
    .await;
}

/// A campaign's keys and the scripts that load it, called as core calls them.
struct Loads {
    locks: Locks,
    keys: [String; 5],
}

impl Loads {
    async fn new() -> Self {
        let keys = ["campaign", "users", "claims", "holds", "outbox"].map(|what| key("demo", what));
        Self { locks: Locks::new().await, keys }
    }

    async fn call(&self, script: &str, arguments: &[&str]) -> String {
        let text = [include_str!("../../lua/prelude.lua"), script].concat();
        let mut command = vec!["EVAL", &text, "5"];
        command.extend(self.keys.iter().map(String::as_str));
        command.extend(arguments);
        let reply: Vec<redis::Value> = self.locks.redis().await.query(&command).await;
        redis::from_redis_value(reply[0].clone()).unwrap()
    }

    async fn suspend(&self, register_id: &str, token: &str) -> String {
        self.call(include_str!("../../lua/suspend.lua"), &[&LAYOUT.to_string(), register_id, token]).await
    }

    async fn step(&self, token: &str, step: &str, more: &[&str]) -> String {
        self.step_of("ours", token, step, more).await
    }

    /// Calls `load.lua` under epoch 2, for a campaign of the database `register_id`.
    async fn step_of(&self, register_id: &str, token: &str, step: &str, more: &[&str]) -> String {
        let text = format!("{LAYOUT} {register_id} ");
        let length = char::from(u8::try_from(5 + text.len()).unwrap());
        let identity = format!("{length}\0\0\0\0\u{2}{text}");
        let arguments = [&[identity.as_str(), "2", token, step], more].concat();
        self.call(include_str!("../../lua/load.lua"), &arguments).await
    }
}

/// Arguments of `open` for an empty campaign in admin state `on`, with rules without UTC offsets.
const OPEN: &[&str] = &["0", "0", "0", "0", "1", RULES];
const RULES: &str = "...........................................................";

/// Every write by an old token is rejected, step by step (`suspend.lua`, `load.lua`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_token_cannot_write() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: an old token cannot write");
    let loads = Loads::new().await;
    assert_eq!(loads.suspend("ours", "7").await, "suspended");
    assert_eq!(loads.step("7", "begin", &[]).await, "done");
    row.fault();
    assert_eq!(loads.suspend("ours", "8").await, "suspended", "a newer token takes over at any step");
    for (step, more) in [("users", &["alice", "record"][..]), ("open", OPEN), ("begin", &[])] {
        assert_eq!(loads.step("7", step, more).await, "late", "{step}");
    }
    assert_eq!(loads.suspend("ours", "7").await, "late");
    assert_eq!(loads.step("8", "begin", &[]).await, "done");
    let users: u64 = loads.locks.redis().await.query(&["HLEN", &loads.keys[1]]).await;
    assert_eq!(users, 1, "only the epoch marker");
    loads.locks.redis().await.query::<u64>(&["DEL", &loads.keys[1]]).await;
    for (step, more) in [("users", &["alice", "record"][..]), ("open", OPEN)] {
        assert_eq!(loads.step("8", step, more).await, "late", "{step}: the users are missing");
    }
    assert_eq!(loads.suspend("ours", "8").await, "suspended");
    assert_eq!(loads.step("8", "begin", &[]).await, "done");
    assert_eq!(loads.step("8", "open", OPEN).await, "done");
    assert_eq!(loads.step("9", "begin", &[]).await, "late", "an open campaign must be suspended first");
    row.passed(12, "load.lua answered late");
}

/// An older loader must not treat a campaign as empty that a newer loader has suspended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_token_cannot_write_to_an_empty_campaign() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: an old token cannot write to an empty campaign");
    let loads = Loads::new().await;
    assert_eq!(loads.step("7", "begin", &[]).await, "late", "the campaign was not suspended");
    row.fault();
    assert_eq!(loads.suspend("ours", "8").await, "suspended");
    assert_eq!(loads.suspend("ours", "7").await, "late");
    assert_eq!(loads.step("7", "begin", &[]).await, "late");
    row.passed(3, "a suspended campaign is not empty");
}

/// A campaign of another database or layout stays unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_campaign_is_not_suspended() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: a foreign campaign is not suspended");
    let loads = Loads::new().await;
    loads.suspend("theirs", "7").await;
    loads.step_of("theirs", "7", "begin", &[]).await;
    loads.step_of("theirs", "7", "open", OPEN).await;
    row.fault();
    assert_eq!(loads.suspend("ours", "8").await, "not_ready");
    let redis = loads.locks.redis().await;
    let phase: String = redis.query(&["HGET", &loads.keys[0], "phase"]).await;
    assert_eq!((phase.as_str(), redis.counter("demo", "admin_state").await), ("open", 1));
    redis.query::<()>(&["HSET", &loads.keys[0], "layout", "2"]).await;
    assert_eq!(loads.suspend("theirs", "8").await, "not_ready");
    row.passed(3, "the other database's campaign continues");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_while_its_work_runs() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: renewed while the work runs");
    on_locks(row, 10, async |_: &Row, locks: &Locks| -> Result<String, LeaseError> {
        let (worker, other, redis) = (locks.owner(), locks.owner(), locks.redis().await);
        // A machine that stalls for two thirds of the TTL may lose the lease. It is renewed every third.
        let (ttl, started) = (Duration::from_secs(30), Instant::now());
        let lease = worker.try_acquire("work", ttl).await?;
        let (mut left_ms, mut renewals) = (i64::MAX, 0);
        while renewals < 2 || started.elapsed() <= ttl {
            sleep(POLL).await;
            assert!(is_taken(other.try_acquire("work", ttl).await)?, "free after {renewals} renewals");
            let now_ms: i64 = redis.query(&["PTTL", "cg:lease:{work}"]).await;
            renewals += u32::from(now_ms > left_ms);
            left_ms = now_ms;
        }
        assert!(!lease.is_lost());
        lease.release().await?;
        other.try_acquire("work", ttl).await?;
        Ok(format!("held beyond its TTL, renewed {renewals} times"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_holders_lease_expires() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: a crashed holder's lease expires");
    on_locks(row, 2, async |row: &Row, locks: &Locks| -> Result<String, LeaseError> {
        let (crashed, other) = (locks.owner(), locks.owner());
        row.fault();
        // Drop the lease without releasing it, as when a process dies: the lease is no longer renewed.
        let started = Instant::now();
        drop(crashed.try_acquire("work", LEASE).await?);
        other.acquire("work", LEASE, SOON).await?.release().await?;
        let waited = started.elapsed();
        assert!(waited >= LEASE && waited < promised(LEASE * 3), "free after {waited:?}");
        Ok(format!("free after {waited:?} of a lease of {LEASE:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_reentrant_for_its_owner() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: reentrant for its owner");
    on_locks(row, 6, async |_: &Row, locks: &Locks| -> Result<String, LeaseError> {
        let (owner, other) = (locks.owner(), locks.owner());
        let outer = owner.try_acquire("work", LONG_LEASE).await?;
        let inner = owner.try_acquire("work", LONG_LEASE).await?;
        assert_eq!(inner.token(), outer.token());
        assert!(inner.release().await?);
        assert!(is_taken(other.try_acquire("work", LONG_LEASE).await)?, "acquired twice, released once");
        assert!(outer.release().await?);
        other.try_acquire("work", LONG_LEASE).await?;
        Ok("free after as many releases as acquisitions".to_owned())
    })
    .await;
}

/// A waiting caller polls with backoff, but not beyond its timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_lease_backs_off() {
    only_on!(ONE_SERVER, "leases need only one server");
    let row = Row::begin("lease: waiting backs off");
    on_locks(row, 2, async |_: &Row, locks: &Locks| -> Result<String, LeaseError> {
        let (holder, waiting) = (locks.owner(), locks.owner());
        let lease = holder.try_acquire("work", LONG_LEASE).await?;
        let redis = locks.redis().await;
        redis.query::<()>(&["CONFIG", "RESETSTAT"]).await;
        let (timeout, started) = (Duration::from_secs(2), Instant::now());
        assert!(is_taken(waiting.acquire("work", LEASE, timeout).await)?);
        let waited = started.elapsed();
        assert!(
            waited >= timeout && waited < promised(timeout + Duration::from_secs(1)),
            "gave up after {waited:?}"
        );
        let stats: String = redis.query(&["INFO", "commandstats"]).await;
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
        let calls: u32 = calls.split(',').next().unwrap().parse().unwrap();
        // The pause starts at 10 ms and doubles up to 500 ms, so there are at most 20 tries in 2 s, and fewer
        // on a machine that stalls. Without backoff there would be 200.
        assert!((2..=25).contains(&calls), "{calls} tries in {waited:?}");
        lease.release().await?;
        Ok(format!("{calls} tries in {waited:?}"))
    })
    .await;
}
