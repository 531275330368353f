//! Campaigns that continue after a promotion without being reloaded from SQL, and how soon: a large campaign,
//! and one of many campaigns, with callers waiting. The times are only printed. The environment variables
//! `CLAIMS` and `CAMPAIGNS` set the sizes.

use std::time::Duration;

use redis::streams::StreamRangeReply;
use support::checker::{Checker, Expect, Limits};
use support::inspect::key;
use support::only_on;
use support::process::fast_disk;
use support::promotion::{self, Cause, has_members};
use support::redis_server::Kind;
use support::sentinel::{Access, SentinelSet};
use support::sql::{Campaigns, Sql};
use support::topology::{ONE_SERVER, OWN};
use support::wait::holds;
use support::{SOON, eventually, heavy};
use tokio::time::sleep;

use crate::fixture::Fixture;
use crate::idle::{database, loaded, size};
use crate::registers::counter;
use crate::replicas::waiting_for_one;
use crate::tally::Row;

const CLAIMS: u64 = 20_000;
const CAMPAIGNS: u64 = 200;
const ROOMY: Limits = Limits { total: Some(1000), per_user: Some(10), per_user_per_day: None };

async fn of_a_large_campaign(what: &str, cause: Cause) {
    let kind = Kind::from_env();
    let count = size("CLAIMS", CLAIMS);
    let row = Row::begin_on(kind, what);
    let _turn = heavy().await;
    let set = replicated(kind).await;
    let core = waiting_for_one(set.url()).start().await;
    has_members(&core, 2).await;
    let sql = Sql::in_directory(&core.data_dir());
    promotion::large_campaign(&set, &core, &sql, "demo", count).await;
    let loads = counter(&core, "claimgate_loads_total").await;
    row.fault();
    let moments = promotion::fail_over(&set, &core, "demo", cause).await;
    assert_eq!(
        counter(&core, "claimgate_loads_total").await,
        loads,
        "the campaign must not be loaded from SQL"
    );
    assert!(counter(&core, "claimgate_adoptions_total").await > 0);
    row.passed(promotion::CALLERS, &format!("{count} claims; {}", moments.line()));
}

/// Starts servers on a fast disk: on a slow one campaigns would be loaded instead of adopted.
async fn replicated(kind: Kind) -> SentinelSet {
    SentinelSet::start_with(Access { kind, environment: &fast_disk(), ..Access::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_campaign_is_adopted_after_a_requested_failover() {
    only_on!(OWN, "it starts its own servers");
    of_a_large_campaign("a large campaign after a requested promotion", Cause::Requested).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_campaign_is_adopted_after_a_killed_primary() {
    only_on!(OWN, "it starts its own servers");
    of_a_large_campaign("a large campaign whose primary was killed", Cause::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_campaigns_are_adopted_after_a_failover() {
    only_on!(OWN, "it starts its own servers");
    let kind = Kind::from_env();
    let live = size("CAMPAIGNS", CAMPAIGNS);
    let row = Row::begin_on(kind, "many campaigns after a promotion");
    let _turn = heavy().await;
    let (directory, url) = database().await;
    assert_eq!(Sql::open(&url).run(Campaigns { live, ended: 0 }.insert()).await, live);
    let set = replicated(kind).await;
    let core = waiting_for_one(set.url()).start_in(directory).await;
    has_members(&core, 2).await;
    loaded(&core, live).await;
    row.fault();
    let moments = promotion::fail_over(&set, &core, &format!("live{}", live / 2), Cause::Requested).await;
    eventually(SOON + Duration::from_millis(50) * u32::try_from(live).unwrap(), || async {
        sleep(Duration::from_millis(50)).await;
        let adopted = counter(&core, "claimgate_adoptions_total").await;
        holds(adopted >= live, || format!("{adopted} of {live} campaigns were adopted"))
    })
    .await;
    let all = moments.promoted.elapsed();
    row.passed(
        usize::try_from(live).unwrap(),
        &format!("{live} campaigns; {}; all were ready after {all:.1?}", moments.line()),
    );
}

/// An outbox entry is deleted before SQL has it. The counters of the promoted server reveal the loss, so the
/// server is not adopted. Otherwise SQL would never get that claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_outbox_entry_was_deleted_reaches_sql() {
    only_on!(
        ONE_SERVER,
        "the server becomes a replica, which Sentinel would undo and a cluster node refuses"
    );
    let row = Row::begin("an outbox entry deleted before SQL has it, then a promotion");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..5).await;
    fixture.relayed("demo").await;
    let (redis, held) = (fixture.redis().await, fixture.sql.hold().await);
    // The relay has the first entry in flight and waits for SQL.
    for user in 5..8 {
        checker.win(&fixture.core, user..user + 1).await;
    }
    row.fault();
    let outbox = key("demo", "outbox");
    let last: StreamRangeReply = redis.query(&["XREVRANGE", &outbox, "+", "1", "COUNT", "1"]).await;
    assert_eq!(redis.query::<u64>(&["XDEL", &outbox, &last.ids[0].id]).await, 1);
    // To core, this looks like the promotion of a replica.
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    redis.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    redis.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}
