//! What goes on as it is after a promotion, and how soon: a large campaign, and one of many, whose callers wait. The times are
//! printed, not judged; `CLAIMS` and `CAMPAIGNS` of the environment say how large and how many.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::streams::StreamRangeReply;
use serde_json::json;
use support::checker::{Checker, Expect, Limits};
use support::inspect::key;
use support::only_on;
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::sql::{Campaigns, Claims, Sql};
use support::topology::OWN;
use support::wait::holds;
use support::{Core, SOON, eventually, heavy};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::at_rest::{database, loaded, size};
use crate::fixture::Fixture;
use crate::registers::counter;
use crate::replicas::{has_members, waiting_for_one};
use crate::tally::Row;

const CLAIMS: u64 = 20_000;
const CAMPAIGNS: u64 = 200;
const ROOMY: Limits = Limits { total: Some(1000), per_user: Some(10), per_user_per_day: None };
/// Callers who ask again and again until they have won.
const CALLERS: usize = 8;
/// How often the replicas are asked whether they have been promoted.
const LOOK: Duration = Duration::from_millis(5);

/// When what happened after a promotion, from the moment on that the replica calls itself a primary.
struct Moments {
    promoted: Instant,
    /// Most sentinels name it.
    named: Duration,
    /// The other replica follows it: before that nothing is acknowledged.
    followed: Duration,
    /// The first of the callers has won.
    won: Duration,
}

impl Moments {
    /// Where the time has gone.
    fn line(&self) -> String {
        let Self { named, followed, won, .. } = *self;
        let core = won.saturating_sub(named.max(followed));
        format!(
            "the first caller won {won:.2?} after the promotion: most sentinels named the primary after {named:.2?}, its \
             replica followed after {followed:.2?}, and core took {core:.2?} from then on"
        )
    }
}

/// Fails over by hand, and has callers ask for claims of `campaign` until they win.
async fn fail_over(set: &SentinelSet, core: &Core, campaign: &str) -> Moments {
    let won = async {
        let (server, promoted) = promotion(set).await;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (client, url) = (core.client().clone(), core.url("/internal/v1/claims"));
            let (campaign, user) = (campaign.to_owned(), format!("caller{caller}"));
            callers.spawn(async move { wins(&client, &url, &campaign, &user).await });
        }
        let first = async { callers.join_next().await.unwrap().unwrap() };
        let (named, followed, first) = tokio::join!(named(set, server), followed(set, server), first);
        Moments { promoted, named: named - promoted, followed: followed - promoted, won: first - promoted }
    };
    timeout(4 * SOON, async { tokio::join!(set.fail_over(), won).1 }).await.expect("callers win again")
}

/// Waits until a replica calls itself a primary; its place, and when that was.
async fn promotion(set: &SentinelSet) -> (usize, Instant) {
    loop {
        for replica in [1, 2] {
            // By a connection of its own: Sentinel ends those of a server that it promotes.
            let role: Result<String, _> = set.view(replica).await.try_query(&["INFO", "replication"]).await;
            if role.is_ok_and(|role| role.contains("role:master")) {
                return (replica, Instant::now());
            }
        }
        sleep(LOOK).await;
    }
}

/// Waits until most sentinels name the server at this place.
async fn named(set: &SentinelSet, server: usize) -> Instant {
    loop {
        let named = join_all(set.sentinels.iter().map(|sentinel| set.named_by(sentinel))).await;
        if named.iter().filter(|named| **named == server).count() * 2 > named.len() {
            return Instant::now();
        }
        sleep(LOOK).await;
    }
}

/// Waits until the server at this place has a replica that has all of its writes so far.
async fn followed(set: &SentinelSet, server: usize) -> Instant {
    let promoted = set.view(server).await;
    loop {
        let info: Result<String, _> = promoted.try_query(&["INFO", "replication"]).await;
        if info.is_ok_and(|info| info.contains("state=online")) {
            return Instant::now();
        }
        sleep(LOOK).await;
    }
}

/// Asks until `user` has won; when that was.
async fn wins(client: &support::client::Client, url: &str, campaign: &str, user: &str) -> Instant {
    let body = support::claim_body(campaign, user, "k", 1);
    loop {
        let reply = client.call(reqwest::Method::POST, url, support::core_process::API_TOKEN, &body).await;
        if reply.status < 300 {
            return Instant::now();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_large_campaign() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let count = size("CLAIMS", CLAIMS);
    let row = Row::begin_on(kind, "a large campaign after a promotion");
    let _turn = heavy().await;
    let set = SentinelSet::start(kind).await;
    let core = waiting_for_one(set.url()).start().await;
    has_members(&core, 2).await;
    core.create("demo", json!({"total": 2 * count + 100, "per_user": 4})).await;
    let sql = Sql::in_directory(&core.data_dir());
    assert_eq!(sql.run(Claims { campaign: "demo", count }.insert()).await, count);
    let keys = ["campaign", "users", "claims", "holds", "outbox"].map(|what| key("demo", what));
    let command: Vec<&str> = std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
    set.view(0).await.query::<u64>(&command).await;
    eventually(6 * SOON, || async {
        let view = core.admin_get("/admin/v1/campaigns/demo").await.json();
        holds(view["ready"] == true && view["taken"] == count, || view.to_string())
    })
    .await;
    let loads = counter(&core, "claimgate_loads_total").await;
    row.fault();
    let moments = fail_over(&set, &core, "demo").await;
    assert_eq!(counter(&core, "claimgate_loads_total").await, loads, "it was not loaded from SQL");
    assert!(counter(&core, "claimgate_adoptions_total").await > 0);
    row.passed(CALLERS, &format!("{count} claims; {}", moments.line()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_campaigns() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let live = size("CAMPAIGNS", CAMPAIGNS);
    let row = Row::begin_on(kind, "many campaigns after a promotion");
    let _turn = heavy().await;
    let (directory, url) = database().await;
    assert_eq!(Sql::open(&url).run(Campaigns { live, ended: 0 }.insert()).await, live);
    let set = SentinelSet::start(kind).await;
    let core = waiting_for_one(set.url()).start_in(directory).await;
    has_members(&core, 2).await;
    loaded(&core, live).await;
    row.fault();
    let moments = fail_over(&set, &core, &format!("live{}", live / 2)).await;
    eventually(SOON + Duration::from_millis(50) * u32::try_from(live).unwrap(), || async {
        sleep(Duration::from_millis(50)).await;
        let adopted = counter(&core, "claimgate_adoptions_total").await;
        holds(adopted >= live, || format!("{adopted} campaigns of {live} go on"))
    })
    .await;
    let all = moments.promoted.elapsed();
    row.passed(
        usize::try_from(live).unwrap(),
        &format!("{live} campaigns; {}; all were ready after {all:.1?}", moments.line()),
    );
}

/// An entry was deleted from the outbox before SQL had it. What the promoted server counts tells so: it is not adopted, or SQL
/// would never hear of that claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_entry_was_deleted_comes_to_sql() {
    let row = Row::begin("an outbox entry deleted before SQL had it, then the server promoted");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..5).await;
    fixture.relayed("demo").await;
    let (redis, held) = (fixture.redis().await, fixture.sql.hold().await);
    // The relay has the first of them in hand, and waits for SQL.
    for user in 5..8 {
        checker.win(&fixture.core, user..user + 1).await;
    }
    row.fault();
    let outbox = key("demo", "outbox");
    let last: StreamRangeReply = redis.query(&["XREVRANGE", &outbox, "+", "1", "COUNT", "1"]).await;
    assert_eq!(redis.query::<u64>(&["XDEL", &outbox, &last.ids[0].id]).await, 1);
    // The same as of the replica that a promoted one was, to this core.
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    redis.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    redis.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}
