//! The lease in Redis that saves two cores doing the same work. Core's own library, against a real Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use claimgate_core::store::redis::RedisStore;
use claimgate_core::store::redis::lease::{LeaseError, LeaseHolder};
use claimgate_core::store::redis::scripts::LAYOUT;
use redis::Client;
use support::inspect::key;
use support::only_on;
use support::process::fast_disk;
use support::topology::ONE_SERVER;
use support::{RedisServer, RedisView};
use tokio::time::sleep;

use crate::tally::Row;

const LEASE: Duration = Duration::from_millis(600);

/// A Redis, and as many owners as a test wants.
struct Locks {
    server: RedisServer,
}

impl Locks {
    async fn new() -> Self {
        // Leases are measured in time.
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

fn is_taken<T>(result: &Result<T, LeaseError>) -> bool {
    matches!(result, Err(LeaseError::Taken))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_holder_cannot_release_anothers_lock() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: a late holder cannot release another's");
    let locks = Locks::new().await;
    let (slow, quick, third) = (locks.owner(), locks.owner(), locks.owner());
    let late = slow.try_acquire("work", LEASE).await.unwrap();
    assert!(is_taken(&quick.try_acquire("work", LEASE).await));
    // As if the holder had slept past its lease.
    row.fault();
    locks.redis().await.query::<()>(&["DEL", "cg:lease:{work}"]).await;
    let held = quick.try_acquire("work", LEASE).await.unwrap();
    assert!(held.token() > late.token(), "{} after {}", held.token(), late.token());
    assert!(!late.release().await.unwrap(), "it was not the late one's to give up");
    assert!(is_taken(&third.try_acquire("work", LEASE).await), "the lock is still held");
    assert!(held.release().await.unwrap());
    third.try_acquire("work", LEASE).await.unwrap().release().await.unwrap();
    row.passed(7, "the late release changed nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_holder_finds_out() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: a late holder finds out");
    let locks = Locks::new().await;
    let (slow, quick) = (locks.owner(), locks.owner());
    let late = slow.try_acquire("work", LEASE).await.unwrap();
    row.fault();
    locks.redis().await.query::<()>(&["DEL", "cg:lease:{work}"]).await;
    let held = quick.try_acquire("work", LEASE).await.unwrap();
    sleep(LEASE).await;
    assert!(late.is_lost() && !held.is_lost());
    row.passed(2, "its watchdog has told it");
}

/// A campaign's keys, and the scripts that load it, called as core calls them.
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

    /// `load.lua`, under epoch 2, for a register's campaign.
    async fn step_of(&self, register_id: &str, token: &str, step: &str, more: &[&str]) -> String {
        let text = format!("{LAYOUT} {register_id} ");
        let length = char::from(u8::try_from(5 + text.len()).unwrap());
        let identity = format!("{length}\0\0\0\0\u{2}{text}");
        let arguments = [&[identity.as_str(), "2", token, step], more].concat();
        self.call(include_str!("../../lua/load.lua"), &arguments).await
    }
}

/// No claims, switched on, and rules without offsets.
const OPEN: &[&str] = &["0", "0", "0", "0", "1", RULES];
const RULES: &str = "..................................................";

/// What an old token still wants to write is refused, step by step (`suspend.lua`, `load.lua`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_token_cannot_write() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: an old token cannot write");
    let loads = Loads::new().await;
    assert_eq!(loads.suspend("ours", "7").await, "suspended");
    assert_eq!(loads.step("7", "begin", &[]).await, "done");
    row.fault();
    assert_eq!(
        loads.suspend("ours", "8").await,
        "suspended",
        "a newer one takes over, wherever the older one is"
    );
    for (step, more) in [("users", &["alice", "record"][..]), ("open", OPEN), ("begin", &[])] {
        assert_eq!(loads.step("7", step, more).await, "late", "{step}");
    }
    assert_eq!(loads.suspend("ours", "7").await, "late");
    assert_eq!(loads.step("8", "begin", &[]).await, "done");
    let users: u64 = loads.locks.redis().await.query(&["HLEN", &loads.keys[1]]).await;
    assert_eq!(users, 1, "nothing but the sentinel");
    loads.locks.redis().await.query::<u64>(&["DEL", &loads.keys[1]]).await;
    for (step, more) in [("users", &["alice", "record"][..]), ("open", OPEN)] {
        assert_eq!(loads.step("8", step, more).await, "late", "{step}: the users are gone");
    }
    assert_eq!(loads.suspend("ours", "8").await, "suspended");
    assert_eq!(loads.step("8", "begin", &[]).await, "done");
    assert_eq!(loads.step("8", "open", OPEN).await, "done");
    assert_eq!(loads.step("9", "begin", &[]).await, "late", "what is open was not suspended");
    row.passed(12, "load.lua answered late");
}

/// An older loader must not find an empty place where a newer one was before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_token_cannot_write_over_nothing() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: an old token cannot write over nothing");
    let loads = Loads::new().await;
    assert_eq!(loads.step("7", "begin", &[]).await, "late", "nothing was suspended");
    row.fault();
    assert_eq!(loads.suspend("ours", "8").await, "suspended");
    assert_eq!(loads.suspend("ours", "7").await, "late");
    assert_eq!(loads.step("7", "begin", &[]).await, "late");
    row.passed(3, "a suspended place is no empty place");
}

/// What belongs to another register, or to another layout, is left as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ours_is_not_suspended() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: what is not ours is not suspended");
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
    row.passed(3, "another register's campaign goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_longer_than_the_lease_keeps_it() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: work longer than the lease keeps it");
    let locks = Locks::new().await;
    let (worker, other) = (locks.owner(), locks.owner());
    let lease = worker.try_acquire("work", LEASE).await.unwrap();
    for _ in 0..12 {
        sleep(LEASE / 4).await;
        assert!(is_taken(&other.try_acquire("work", LEASE).await));
    }
    assert!(!lease.is_lost());
    lease.release().await.unwrap();
    other.try_acquire("work", LEASE).await.unwrap();
    row.passed(14, "held for three times its length");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_holders_lock_frees_itself() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: a crashed holder's frees itself");
    let locks = Locks::new().await;
    let (crashed, other) = (locks.owner(), locks.owner());
    row.fault();
    // Dropped without being released, as in a process that ends: it is not renewed.
    drop(crashed.try_acquire("work", LEASE).await.unwrap());
    let started = Instant::now();
    assert!(is_taken(&other.try_acquire("work", LEASE).await));
    other.acquire("work", LEASE, LEASE * 5).await.unwrap().release().await.unwrap();
    let waited = started.elapsed();
    assert!(waited >= LEASE / 2 && waited < LEASE * 3, "free after {waited:?}");
    row.passed(3, &format!("free after {waited:?} of a lease of {LEASE:?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_may_enter_again() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: its owner may enter again");
    let locks = Locks::new().await;
    let (owner, other) = (locks.owner(), locks.owner());
    let outer = owner.try_acquire("work", LEASE).await.unwrap();
    let inner = owner.try_acquire("work", LEASE).await.unwrap();
    assert_eq!(inner.token(), outer.token());
    assert!(inner.release().await.unwrap());
    assert!(is_taken(&other.try_acquire("work", LEASE).await), "given up once, entered twice");
    assert!(outer.release().await.unwrap());
    other.try_acquire("work", LEASE).await.unwrap();
    row.passed(6, "free when it had left as often as it had entered");
}

/// A waiting caller asks less and less often, and at most for as long as it said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_backs_off() {
    only_on!(ONE_SERVER, "the lease itself, on one server");
    let row = Row::begin("lock: waiting backs off");
    let locks = Locks::new().await;
    let (holder, waiting) = (locks.owner(), locks.owner());
    let lease = holder.try_acquire("work", Duration::from_secs(30)).await.unwrap();
    let redis = locks.redis().await;
    redis.query::<()>(&["CONFIG", "RESETSTAT"]).await;
    let (timeout, started) = (Duration::from_secs(2), Instant::now());
    assert!(is_taken(&waiting.acquire("work", LEASE, timeout).await));
    let waited = started.elapsed();
    assert!(waited >= timeout && waited < timeout + Duration::from_secs(1), "gave up after {waited:?}");
    let stats: String = redis.query(&["INFO", "commandstats"]).await;
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    let calls: u32 = calls.split(',').next().unwrap().parse().unwrap();
    // 10 ms, doubled up to 500: 8 to 20 times in 2 s; every 10 ms it would have been 200.
    assert!((5..=25).contains(&calls), "{calls} tries in {waited:?}");
    lease.release().await.unwrap();
    row.passed(2, &format!("{calls} tries in {waited:?}"));
}
