//! What core does without any calls: one campaign that fails stops no other, nothing spins, and idling costs nothing.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use support::core_client::campaign;
use support::inspect::key;
use support::only_on;
use support::process::{Signal, cpu_ms, runs, signal_group, signal_pid, signal_pids};
use support::sql::Sql;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, RedisView, SOON, eventually};
use tokio::time::sleep;

use crate::cores::in_hand;
use crate::fixture::Fixture;
use crate::registers::counter;
use crate::tally::{Row, say};

/// Whatever hangs, core has ended by then.
const STOPPED_MAX: Duration = Duration::from_secs(15);
/// Readiness has turned by then.
const TURNED_MAX: Duration = Duration::from_secs(5);

/// Waits until `core` has decided to grant `user` a unit of `campaign`.
async fn wins(core: &Core, campaign: &str, user: &str) {
    eventually(SOON, || async {
        let reply = core.claim(campaign, user, "k").await;
        holds(reply.status < 300, || reply.text())
    })
    .await;
}

/// Waits until SQL has heard of everything in the campaign's outbox.
async fn relayed(redis: &RedisView, campaign: &str, within: Duration) {
    eventually(within, || async {
        let entries = redis.outbox_entries(campaign).await;
        holds(entries == 1, || format!("{entries} entries in the outbox of {campaign}"))
    })
    .await;
}

async fn create_holding(core: &Core, id: &str, hold_seconds: u32) {
    let mut body = campaign(id, json!({"total": 10}));
    body["hold_seconds"] = json!(hold_seconds);
    core.create_with(body).await;
}

async fn given_back(redis: &RedisView, campaign: &str, within: Duration) {
    eventually(within, || async {
        let taken = redis.counter(campaign, "taken").await;
        holds(taken == 0, || format!("{taken} of {campaign} are still taken"))
    })
    .await;
}

/// A thousand campaigns, each with a hold that falls due in an hour, and no caller: nothing is written, no script is
/// called, and hardly any time is spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_campaigns_with_holds_at_rest_cost_next_to_nothing() {
    const CAMPAIGNS: usize = 1000;
    const REST: Duration = Duration::from_secs(30);
    const PERCENT_MAX: f64 = 10.0;
    let row = Row::begin("1,000 campaigns with holds, at rest");
    let fixture = Fixture::external().await;
    for at in 0..CAMPAIGNS {
        let id = format!("c{at}");
        create_holding(&fixture.core, &id, 3600).await;
        wins(&fixture.core, &id, "alice").await;
    }
    let redis = fixture.redis().await;
    for at in 0..CAMPAIGNS {
        relayed(&redis, &format!("c{at}"), SOON).await;
    }
    let (core, servers) = (fixture.core.pid(), fixture.redis_pids().await);
    // What has been created is looked at once more, then all is quiet.
    eventually(SOON, || async {
        let before = redis.script_calls().await;
        sleep(Duration::from_secs(2)).await;
        let scripts = redis.script_calls().await - before;
        holds(scripts == 0, || format!("{scripts} scripts were called within 2 s of rest"))
    })
    .await;
    let used = || [cpu_ms(core), servers.iter().copied().map(cpu_ms).sum()];
    let before = used();
    sleep(REST).await;
    let after = used();
    let percent =
        |at: usize| Duration::from_millis(after[at] - before[at]).as_secs_f64() / REST.as_secs_f64() * 100.0;
    let both = percent(0) + percent(1);
    let figures =
        format!("core {:.2} %, Redis {:.2} % of one processor, {both:.2} % together", percent(0), percent(1));
    assert!(both < PERCENT_MAX, "{figures}");
    row.passed(CAMPAIGNS, &figures);
}

/// One campaign's row is locked in SQL, so that its load hangs: another is loaded, and holds are given back, all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_whose_load_hangs_stops_no_other_ones_load_or_sweep() {
    let row = Row::begin("a load that hangs stops no other campaign");
    let fixture = match Fixture::on_postgres(false).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let redis = fixture.redis().await;
    for id in ["stuck", "lost"] {
        fixture.core.create(id, json!({"total": 10})).await;
        wins(&fixture.core, id, "alice").await;
        relayed(&redis, id, SOON).await;
    }
    create_holding(&fixture.core, "held", 3).await;
    let held = fixture.sql.hold_campaign("stuck").await;
    row.fault();
    redis.query::<()>(&["DEL", &key("stuck", "users")]).await;
    fixture.core.once().claim("stuck", "bob", "k").await.refused(503, "campaign_not_ready");
    sleep(Duration::from_secs(1)).await;
    fixture.core.claim("held", "alice", "k").await.expect(201);
    row.fault();
    redis.query::<()>(&["DEL", &key("lost", "users")]).await;
    wins(&fixture.core, "lost", "bob").await;
    given_back(&redis, "held", Duration::from_secs(8)).await;
    relayed(&redis, "lost", SOON).await;
    fixture.core.once().claim("stuck", "bob", "k").await.refused(503, "campaign_not_ready");
    held.release().await;
    wins(&fixture.core, "stuck", "bob").await;
    row.passed(6, "one loaded and one swept meanwhile");
}

/// A campaign that another core is loading refuses a crowd: each refusal costs its own call, and no look at the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_refused_while_a_campaign_is_loaded_elsewhere_make_nothing_spin() {
    const OTHERS: usize = 40;
    const CLAIMS: u64 = 300;
    let row = Row::begin("claims refused while another core loads");
    let fixture = Fixture::external().await;
    let redis = fixture.redis().await;
    for at in 0..OTHERS {
        fixture.core.create(&format!("other{at}"), json!({"total": 10})).await;
    }
    fixture.core.create("loading", json!({"total": 1000})).await;
    wins(&fixture.core, "loading", "alice").await;
    relayed(&redis, "loading", SOON).await;
    row.fault();
    let lease = "cg:lease:{loading}";
    redis.query::<()>(&["HSET", lease, "owner", "another core", "depth", "1", "token", "7"]).await;
    redis.query::<()>(&["DEL", &key("loading", "users")]).await;
    sleep(Duration::from_millis(500)).await;
    let (before, started) = (redis.script_calls().await, Instant::now());
    for user in 0..CLAIMS {
        fixture
            .core
            .once()
            .claim("loading", &format!("u{user}"), "k")
            .await
            .refused(503, "campaign_not_ready");
    }
    let calls = redis.script_calls().await - before;
    // Beside each claim's own: a try to load it now and then, of a few calls.
    let tries_max = 20 * (1 + started.elapsed().as_secs());
    assert!(calls <= CLAIMS + tries_max, "{calls} script calls for {CLAIMS} refused claims");
    redis.query::<()>(&["DEL", lease]).await;
    wins(&fixture.core, "loading", "bob").await;
    row.passed(300, &format!("{calls} script calls for {CLAIMS} refused claims"));
}

/// Holds that a dead core has made are given back by another that receives no calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_a_core_that_died_are_given_back_by_another() {
    let row = Row::begin("holds of a dead core are given back by another");
    let mut fixture = match Fixture::two_cores().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let redis = fixture.redis().await;
    create_holding(&fixture.core, "held", 4).await;
    fixture.core.claim("held", "alice", "k").await.expect(201);
    relayed(&redis, "held", SOON).await;
    row.kill();
    fixture.core.kill();
    given_back(&redis, "held", SOON).await;
    relayed(&redis, "held", SOON).await;
    row.passed(1, "given back, and SQL has heard of it");
}

/// An outbox, or what stands behind it, is broken for good: two other campaigns are relayed all the same, and nothing spins.
async fn one_broken(
    row: Row,
    mut fixture: Fixture,
    break_it: impl AsyncFnOnce(&mut Fixture, &RedisView),
) -> Fixture {
    const LOOK: Duration = Duration::from_secs(3);
    const LINES_MAX: usize = 15;
    const CALLS_MAX: u64 = 600;
    let redis = fixture.redis().await;
    for id in ["broken", "fine1", "fine2"] {
        fixture.core.create(id, json!({"total": 100})).await;
        wins(&fixture.core, id, "first").await;
        relayed(&redis, id, SOON).await;
    }
    row.fault();
    break_it(&mut fixture, &redis).await;
    for round in 0..3 {
        for id in ["broken", "fine1", "fine2"] {
            wins(&fixture.core, id, &format!("later-{round}")).await;
        }
        for id in ["fine1", "fine2"] {
            relayed(&redis, id, Duration::from_secs(5)).await;
        }
    }
    let (lines, calls) = (fixture.core.log().lines().count(), redis.calls(&[]).await);
    sleep(LOOK).await;
    let lines = fixture.core.log().lines().count() - lines;
    let calls = redis.calls(&[]).await - calls;
    assert!(lines <= LINES_MAX, "{lines} lines of log within {LOOK:?}:\n{}", fixture.core.log());
    assert!(calls <= CALLS_MAX, "{calls} commands within {LOOK:?}");
    row.passed(12, &format!("the others relayed; {lines} lines of log, {calls} commands within {LOOK:?}"));
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_without_its_consumer_group_stops_no_other_and_gets_it_back() {
    let row = Row::begin("an outbox without its consumer group");
    let destroy = async |_: &mut Fixture, redis: &RedisView| {
        redis.query::<u64>(&["XGROUP", "DESTROY", &key("broken", "outbox"), "relay"]).await;
    };
    let fixture = one_broken(row, Fixture::external().await, destroy).await;
    relayed(&fixture.redis().await, "broken", SOON).await;
    assert_eq!(fixture.sql.claims("broken").await.len(), 4, "all that was granted has reached SQL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_whose_row_is_gone_stops_no_other() {
    let row = Row::begin("a campaign whose row in SQL is gone");
    let delete = async |fixture: &mut Fixture, _: &RedisView| {
        fixture.sql.run("DELETE FROM audit WHERE campaign_id = 'broken'".to_owned()).await;
        assert_eq!(fixture.sql.run("DELETE FROM campaigns WHERE id = 'broken'".to_owned()).await, 1);
    };
    one_broken(row, Fixture::external().await, delete).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_deleted_while_it_waits_for_sql_stops_no_other() {
    let row = Row::begin("an outbox entry deleted after it was read");
    let delete = async |fixture: &mut Fixture, redis: &RedisView| {
        let outbox = key("broken", "outbox");
        let held = fixture.sql.hold().await;
        wins(&fixture.core, "broken", "deleted").await;
        let id = eventually(SOON, || async {
            in_hand(redis, "broken").await.pop().ok_or_else(|| "nothing is read".to_owned())
        })
        .await;
        // Core dies with the entry in hand, and looks for it when it is back.
        fixture.core.kill();
        assert_eq!(redis.query::<u64>(&["XDEL", &outbox, &id]).await, 1);
        held.release().await;
        fixture.core = fixture.core.restart().await;
    };
    let fixture = one_broken(row, Fixture::external().await, delete).await;
    eventually(SOON, || async {
        let told = counter(&fixture.core, "claimgate_deleted_events_total").await;
        holds(told == 1, || format!("{told} deleted events are told of"))
    })
    .await;
    assert_eq!(fixture.core.log().matches("were deleted before SQL had them").count(), 1, "told once");
}

/// A row that this version cannot read leaves the others' changes in force, and lets core start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_cannot_be_read_stops_no_other_campaigns_change_and_no_start() {
    let row = Row::begin("a row of the database that cannot be read");
    let mut fixture = Fixture::external().await;
    let redis = fixture.redis().await;
    for id in ["bad", "good"] {
        fixture.core.create(id, json!({"total": 1})).await;
    }
    row.fault();
    let statement = "UPDATE campaigns SET time_zone = 'Mars/Olympus', version = version + 1 WHERE id = 'bad'";
    fixture.sql.run(statement.to_owned()).await;
    in_force(&fixture.sql, &redis, "good", 7).await;
    row.kill();
    fixture.replace_core().await;
    in_force(&fixture.sql, &redis, "good", 8).await;
    wins(&fixture.core, "good", "alice").await;
    row.passed(1, "the other campaign's changes were in force");
}

/// A change that only SQL has heard of, as when its core died between the two, is in force within 2 s; no
/// clock is consulted for when it was made.
pub async fn in_force(sql: &Sql, redis: &RedisView, id: &str, total: u32) {
    sql.change_campaign(id, &format!("total = {total}, changed_at = 1")).await;
    eventually(Duration::from_secs(2), || async {
        let found = redis.counter(id, "total").await;
        holds(found == u64::from(total), || format!("total {found} of {id} is in force, not {total}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_only_sql_has_heard_of_is_in_force_within_two_seconds() {
    let row = Row::begin("a change that only SQL has heard of");
    let fixture = Fixture::external().await;
    let redis = fixture.redis().await;
    fixture.core.create("demo", json!({"total": 1})).await;
    for total in 2..6 {
        row.fault();
        in_force(&fixture.sql, &redis, "demo", total).await;
    }
    row.passed(4, "in force within 2 s, each");
}

/// The lag is the age of what waits, not of what was relayed last: it rises while SQL takes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_rises_while_sql_takes_nothing() {
    let row = Row::begin("the lag while SQL takes nothing");
    let fixture = Fixture::external().await;
    fixture.core.create("demo", json!({"total": 100})).await;
    let held = fixture.sql.hold().await;
    row.fault();
    wins(&fixture.core, "demo", "alice").await;
    let mut last = 0.0;
    for least in [1.0, 3.0, 5.0] {
        last = eventually(SOON, || async {
            let lag = lag_seconds(&fixture.core).await;
            holds(lag > least, || format!("the lag is {lag} s")).map(|()| lag)
        })
        .await;
    }
    held.release().await;
    eventually(SOON, || async {
        let lag = lag_seconds(&fixture.core).await;
        holds(lag == 0.0, || format!("the lag is {lag} s, and all is relayed"))
    })
    .await;
    row.passed(1, &format!("up to {last:.1} s, and 0 again"));
}

/// What waits for SQL does so also while its campaign is not ready, or Redis is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_rises_whatever_else_is_wrong() {
    let row = Row::begin("the lag while a campaign is not ready, and while Redis is silent");
    let fixture = Fixture::external().await;
    fixture.core.create("demo", json!({"total": 100})).await;
    let held = fixture.sql.hold().await;
    wins(&fixture.core, "demo", "alice").await;
    let rises_above = async |least: f64| {
        eventually(SOON, || async {
            let lag = lag_seconds(&fixture.core).await;
            holds(lag > least, || format!("the lag is {lag} s"))
        })
        .await;
    };
    rises_above(1.0).await;
    row.fault();
    fixture.redis().await.query::<u64>(&["DEL", &key("demo", "users")]).await;
    fixture.core.once().claim("demo", "bob", "k").await.refused(503, "campaign_not_ready");
    rises_above(4.0).await;
    row.fault();
    signal_pids(&fixture.redis_pids().await, Signal::STOP);
    rises_above(7.0).await;
    signal_pids(&fixture.redis_pids().await, Signal::CONT);
    held.release().await;
    eventually(2 * SOON, || async {
        let lag = lag_seconds(&fixture.core).await;
        holds(lag == 0.0, || format!("the lag is {lag} s, and all is relayed"))
    })
    .await;
    row.passed(2, "and 0 once all was relayed");
}

async fn lag_seconds(core: &Core) -> f64 {
    let metrics = core.client().try_get(&core.admin_url("/metrics"), "").await.expect("metrics").text();
    let line = metrics.lines().find_map(|line| line.strip_prefix("claimgate_outbox_lag_seconds "));
    line.map_or(0.0, |lag| lag.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_turns_when_sql_or_redis_hang() {
    let row = Row::begin("readiness while SQL or Redis hang");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    fixture.core.create("demo", json!({"total": 100})).await;
    row.fault();
    fixture.postgres().freeze();
    says(&fixture.core, 200, "down", TURNED_MAX).await;
    fixture.core.claim("demo", "alice", "k").await.expect(201);
    fixture.postgres().thaw();
    says(&fixture.core, 200, "up", SOON).await;
    row.fault();
    let redis = fixture.redis_pids().await;
    signal_pids(&redis, Signal::STOP);
    says(&fixture.core, 503, "Redis does not answer", TURNED_MAX).await;
    signal_pids(&redis, Signal::CONT);
    says(&fixture.core, 200, "up", SOON).await;
    row.passed(1, "turned in time, there and back");
}

/// Waits until `/readyz` answers so.
async fn says(core: &Core, status: u16, text: &str, within: Duration) {
    eventually(within, || async {
        let url = core.admin_url("/readyz");
        let reply = core.client().try_get(&url, "").await.map_err(|error| error.to_string())?;
        let sql = reply.json()["sql"].clone();
        let said = sql == text || reply.text().contains(text);
        holds(reply.status == status && said, || format!("{}: {}", reply.status, reply.text()))
    })
    .await;
}

/// SIGTERM; core ends in time and takes its Redis along.
async fn stops_in_time(core: &mut Core, redis: Option<u32>) -> Duration {
    let started = Instant::now();
    core.process().signal(Signal::TERM);
    let status = core.process().wait(STOPPED_MAX).await;
    assert!(status.success(), "{status}\n{}", core.log());
    let took = started.elapsed();
    if let Some(redis) = redis {
        assert!(!runs(redis), "Redis {redis} outlived its core");
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_stops_in_time_while_sql_and_redis_hang() {
    only_on!(OWN, "core ends its own Redis");
    let row = Row::begin("told to stop while PostgreSQL and Redis hang");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    fixture.core.create("demo", json!({"total": 100})).await;
    let redis = fixture.core.redis_pid().await;
    row.fault();
    fixture.postgres().freeze();
    fixture.core.claim("demo", "alice", "k").await.expect(201);
    // A call that SQL keeps waiting, too.
    let (client, url, token) = (
        fixture.core.client().clone(),
        fixture.core.admin_url("/admin/v1/campaigns"),
        fixture.core.admin_token(),
    );
    let call = tokio::spawn(async move {
        let request = client.request(Method::GET, &url).bearer_auth(token);
        let _ = client.send(request).await;
    });
    sleep(Duration::from_secs(3)).await;
    row.fault();
    signal_pid(redis, Signal::STOP);
    let took = stops_in_time(&mut fixture.core, Some(redis)).await;
    call.abort();
    row.passed(1, &format!("ended after {took:.1?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_stops_in_time_while_its_own_redis_hangs() {
    only_on!(OWN, "core ends its own Redis");
    let row = Row::begin("told to stop while its own Redis hangs");
    let mut fixture = Fixture::managed().await;
    fixture.core.create("demo", json!({"total": 100})).await;
    let redis = fixture.core.redis_pid().await;
    row.fault();
    signal_pid(redis, Signal::STOP);
    sleep(Duration::from_secs(2)).await;
    let took = stops_in_time(&mut fixture.core, Some(redis)).await;
    row.passed(1, &format!("ended after {took:.1?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_stops_in_time_while_redis_hangs() {
    let row = Row::begin("told to stop while a Redis that is not its own hangs");
    let mut fixture = Fixture::external().await;
    fixture.core.create("demo", json!({"total": 100})).await;
    let redis = fixture.redis_pids().await;
    row.fault();
    signal_pids(&redis, Signal::STOP);
    sleep(Duration::from_secs(2)).await;
    let took = stops_in_time(&mut fixture.core, None).await;
    signal_pids(&redis, Signal::CONT);
    row.passed(1, &format!("ended after {took:.1?}"));
}

/// A terminal sends Ctrl-C to all of a process group: Redis is core's to stop, once core has no more use for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_in_a_terminal_reaches_core_alone() {
    only_on!(OWN, "core ends its own Redis");
    let row = Row::begin("Ctrl-C in a terminal");
    let mut fixture = Fixture::managed().await;
    fixture.core.create("demo", json!({"total": 100})).await;
    fixture.core.claim("demo", "alice", "k").await.expect(201);
    let redis = fixture.core.redis_pid().await;
    row.fault();
    signal_group(fixture.core.pid(), Signal::INT);
    assert!(fixture.core.process().wait(STOPPED_MAX).await.success(), "{}", fixture.core.log());
    assert!(!runs(redis), "Redis {redis} outlived its core");
    let log = fixture.core.data_file("redis/redis.log");
    assert!(log.contains("SIGTERM") && !log.contains("SIGINT"), "{log}");
    assert!(!fixture.core.log().contains("Redis died"), "{}", fixture.core.log());
    say("  Redis was stopped by core, not by the terminal");
    row.passed(1, "Redis ended after core had no more use for it");
}
