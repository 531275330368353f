//! Core's background work: a failing campaign does not block other campaigns, no job runs in a busy loop, and
//! an idle core costs almost nothing.

use std::cell::Cell;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use support::clock::Clock;
use support::inspect::key;
use support::only_on;
use support::process::{Signal, cpu_ms, runs, signal_group, signal_pid, signal_pids};
use support::sql::Sql;
use support::topology::OWN;
use support::wait::{holds, refused_in_time, until_status};
use support::{Core, RedisView, SOON, eventually, promised};
use tokio::time::sleep;

use crate::cores::entries_in_flight;
use crate::fixture::Fixture;
use crate::held::{HOLD_MS, HOLD_S, create_with_holds, until_returned};
use crate::registers::counter;
use crate::tally::{Row, say};

/// Core stops within this time, regardless of which store hangs.
const STOPPED_MAX: Duration = Duration::from_secs(15);
/// Readiness changes within this time.
const READINESS_MAX: Duration = Duration::from_secs(5);

/// Waits until `core` grants `user` a unit of `campaign`.
async fn wins(core: &Core, campaign: &str, user: &str) {
    until_status(SOON, &[200, 201], async || core.claim(campaign, user, "k").await).await;
}

/// Checks that `core` rejects a claim because `campaign` is not ready.
async fn is_not_ready(core: &Core, campaign: &str) {
    let claim = async || core.once().claim(campaign, "bob", "k").await;
    refused_in_time(503, "campaign_not_ready", claim).await;
}

/// With a thousand campaigns, each with a hold due in an hour, and no callers, core writes nothing, calls no
/// script, and uses little processor time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_campaigns_with_holds_cost_almost_nothing() {
    const CAMPAIGNS: usize = 1000;
    const REST: Duration = Duration::from_secs(30);
    const PERCENT_MAX: f64 = 10.0;
    let row = Row::begin("1,000 idle campaigns with holds");
    let fixture = Fixture::external().await;
    for at in 0..CAMPAIGNS {
        let id = format!("c{at}");
        create_with_holds(&fixture.core, &id, HOLD_S).await;
        wins(&fixture.core, &id, "alice").await;
    }
    let redis = fixture.redis().await;
    for at in 0..CAMPAIGNS {
        redis.relayed(&format!("c{at}"), SOON).await;
    }
    let (core, servers) = (fixture.core.pid(), fixture.redis_pids().await);
    // New campaigns are checked once more; after that, core is idle.
    eventually(SOON, || async {
        let before = redis.script_calls().await;
        sleep(Duration::from_secs(2)).await;
        let scripts = redis.script_calls().await - before;
        holds(scripts == 0, || format!("{scripts} scripts were called within 2 s while idle"))
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

/// One campaign's load hangs because its row in SQL is locked. Nevertheless, a second campaign is loaded and
/// the holds of a third campaign expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_load_does_not_block_other_loads_or_sweeps() {
    let row = Row::begin("a hanging load does not block other campaigns");
    let clock = Clock::new();
    let started = Fixture::on_postgres_with_clock(false, &clock).await;
    let Some(fixture) = row.needs(started) else { return };
    let redis = fixture.redis().await;
    for id in ["stuck", "lost"] {
        fixture.core.create(id, json!({"total": 10})).await;
        wins(&fixture.core, id, "alice").await;
        redis.relayed(id, SOON).await;
    }
    create_with_holds(&fixture.core, "held", HOLD_S).await;
    let held = fixture.sql.hold_campaign("stuck").await;
    row.fault();
    redis.query::<()>(&["DEL", &key("stuck", "users")]).await;
    is_not_ready(&fixture.core, "stuck").await;
    sleep(Duration::from_secs(1)).await;
    fixture.core.claim("held", "alice", "k").await.expect(201);
    row.fault();
    redis.query::<()>(&["DEL", &key("lost", "users")]).await;
    wins(&fixture.core, "lost", "bob").await;
    fixture.move_clock(&clock, HOLD_MS).await;
    until_returned(&redis, "held", promised(Duration::from_secs(8))).await;
    redis.relayed("lost", SOON).await;
    is_not_ready(&fixture.core, "stuck").await;
    held.release().await;
    wins(&fixture.core, "stuck", "bob").await;
    row.passed(6, "one loaded and one swept meanwhile");
}

/// While another core is loading the campaign, each rejected claim costs only its own call and no check of
/// other campaigns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_rejected_during_a_load_do_not_cause_a_busy_loop() {
    const OTHERS: usize = 40;
    const CLAIMS: u64 = 300;
    let row = Row::begin("claims rejected while another core loads");
    let fixture = Fixture::external().await;
    let redis = fixture.redis().await;
    for at in 0..OTHERS {
        fixture.core.create(&format!("other{at}"), json!({"total": 10})).await;
    }
    fixture.core.create("loading", json!({"total": 1000})).await;
    wins(&fixture.core, "loading", "alice").await;
    redis.relayed("loading", SOON).await;
    row.fault();
    let lease = "cg:lease:{loading}";
    redis.query::<()>(&["HSET", lease, "owner", "another core", "depth", "1", "token", "7"]).await;
    redis.query::<()>(&["DEL", &key("loading", "users")]).await;
    sleep(Duration::from_millis(500)).await;
    let (before, started) = (redis.script_calls().await, Instant::now());
    let claims = Cell::new(0_u64);
    for user in 0..CLAIMS {
        let claim = async || {
            claims.set(claims.get() + 1);
            fixture.core.once().claim("loading", &format!("u{user}"), "k").await
        };
        refused_in_time(503, "campaign_not_ready", claim).await;
    }
    let claims = claims.into_inner();
    let calls = redis.script_calls().await - before;
    // In addition to each claim's own call, there may be a few calls for occasional load attempts.
    let tries_max = 20 * (1 + started.elapsed().as_secs());
    assert!(calls <= claims + tries_max, "{calls} script calls for {claims} rejected claims");
    redis.query::<()>(&["DEL", lease]).await;
    wins(&fixture.core, "loading", "bob").await;
    row.passed(300, &format!("{calls} script calls for {CLAIMS} rejected claims"));
}

/// Breaks an outbox or its SQL rows permanently, and checks that two other campaigns are still relayed,
/// without a busy loop.
async fn relays_despite_broken(
    row: Row,
    mut fixture: Fixture,
    break_it: impl AsyncFnOnce(&mut Fixture, &RedisView),
) -> Fixture {
    const WINDOW: Duration = Duration::from_secs(3);
    const LINES_MAX: u128 = 15;
    const CALLS_MAX: u128 = 600;
    let redis = fixture.redis().await;
    for id in ["broken", "fine1", "fine2"] {
        fixture.core.create(id, json!({"total": 100})).await;
        wins(&fixture.core, id, "first").await;
        redis.relayed(id, SOON).await;
    }
    row.fault();
    break_it(&mut fixture, &redis).await;
    for round in 0..3 {
        for id in ["broken", "fine1", "fine2"] {
            wins(&fixture.core, id, &format!("later-{round}")).await;
        }
        for id in ["fine1", "fine2"] {
            redis.relayed(id, promised(Duration::from_secs(5))).await;
        }
    }
    let started = Instant::now();
    let (lines, calls) = (fixture.core.log().lines().count(), redis.calls(&[]).await);
    sleep(WINDOW).await;
    let lines = fixture.core.log().lines().count() - lines;
    let calls = redis.calls(&[]).await - calls;
    // The window is longer on a machine that stalls.
    let took = started.elapsed();
    let allowed = |max: u128| max * took.as_millis() / WINDOW.as_millis();
    let found = format!("{lines} lines of log, {calls} commands within {took:.1?}");
    assert!(lines as u128 <= allowed(LINES_MAX), "{found}:\n{}", fixture.core.log());
    assert!(u128::from(calls) <= allowed(CALLS_MAX), "{found}");
    row.passed(12, &format!("the other campaigns were relayed; {found}"));
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_consumer_group_is_restored_without_delaying_others() {
    let row = Row::begin("an outbox without its consumer group");
    let destroy = async |_: &mut Fixture, redis: &RedisView| {
        redis.query::<u64>(&["XGROUP", "DESTROY", &key("broken", "outbox"), "relay"]).await;
    };
    let fixture = relays_despite_broken(row, Fixture::external().await, destroy).await;
    fixture.redis().await.relayed("broken", SOON).await;
    assert_eq!(fixture.sql.claims("broken").await.len(), 4, "all granted claims must reach SQL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_without_its_sql_row_does_not_block_others() {
    let row = Row::begin("a campaign without its row in SQL");
    let delete = async |fixture: &mut Fixture, _: &RedisView| {
        fixture.sql.run("DELETE FROM audit WHERE campaign_id = 'broken'".to_owned()).await;
        assert_eq!(fixture.sql.run("DELETE FROM campaigns WHERE id = 'broken'".to_owned()).await, 1);
    };
    relays_despite_broken(row, Fixture::external().await, delete).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_outbox_entry_does_not_block_other_campaigns() {
    let row = Row::begin("an outbox entry deleted after it was read");
    let fixture = relays_despite_broken(row, Fixture::external().await, delete_in_flight).await;
    the_deleted_event_is_counted_once(&fixture.core).await;
}

/// Deletes an outbox entry of the campaign `broken` that core has read and not relayed.
async fn delete_in_flight(fixture: &mut Fixture, redis: &RedisView) {
    let outbox = key("broken", "outbox");
    let held = fixture.sql.hold().await;
    wins(&fixture.core, "broken", "deleted").await;
    let id = eventually(SOON, || async {
        entries_in_flight(redis, "broken").await.pop().ok_or_else(|| "no entry has been read yet".to_owned())
    })
    .await;
    // Core dies with the entry in flight and looks for it after the restart.
    fixture.core.kill();
    assert_eq!(redis.query::<u64>(&["XDEL", &outbox, &id]).await, 1);
    held.release().await;
    fixture.core = fixture.core.restart().await;
}

/// Waits until core has restored the event, and checks that the event counts as deleted, and not as lost as well.
async fn the_deleted_event_is_counted_once(core: &Core) {
    core.until_logged(SOON, &["SQL had lost claims that Redis holds: they have been restored"]).await;
    let counters = ["claimgate_deleted_events_total", "claimgate_lost_events_total"];
    assert_eq!(
        [counter(core, counters[0]).await, counter(core, counters[1]).await],
        [1, 0],
        "{}",
        core.log()
    );
    assert_eq!(core.log().matches("were deleted before SQL had them").count(), 1, "must be logged once");
}

/// The maintenance job finds the deletion first, and then the relay finds the gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_deleted_from_an_idle_outbox_is_counted_once() {
    let row = Row::begin("an outbox entry of an idle campaign deleted after it was read");
    let mut fixture = Fixture::external().await;
    let redis = fixture.redis().await;
    fixture.core.create("broken", json!({"total": 100})).await;
    wins(&fixture.core, "broken", "first").await;
    redis.relayed("broken", SOON).await;
    row.fault();
    delete_in_flight(&mut fixture, &redis).await;
    fixture.core.until_logged(SOON, &["run `claimgate reconcile broken --repair`"]).await;
    wins(&fixture.core, "broken", "later").await;
    the_deleted_event_is_counted_once(&fixture.core).await;
    row.passed(3, "counted once");
}

/// A row that this version cannot read does not block changes of other campaigns or core's start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_row_does_not_block_changes_or_startup() {
    let row = Row::begin("an unreadable row in the database");
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
    row.passed(1, "the other campaign's changes came into force");
}

/// Checks that a change stored only in SQL, because its core died before updating Redis, is in force within 2
/// s. Core does not use the time of the change.
pub async fn in_force(sql: &Sql, redis: &RedisView, id: &str, total: u32) {
    sql.change_campaign(id, &format!("total = {total}, changed_at = 1")).await;
    eventually(promised(Duration::from_secs(2)), || async {
        let found = redis.counter(id, "total").await;
        holds(found == u64::from(total), || format!("total {found} of {id} is in force, not {total}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_stored_only_in_sql_applies_within_two_seconds() {
    let row = Row::begin("a change stored only in SQL");
    let fixture = Fixture::external().await;
    let redis = fixture.redis().await;
    fixture.core.create("demo", json!({"total": 1})).await;
    for total in 2..6 {
        row.fault();
        in_force(&fixture.sql, &redis, "demo", total).await;
    }
    row.passed(4, "each in force within 2 s");
}

/// The lag is the age of the oldest pending event, so it grows while SQL accepts no writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_grows_while_sql_accepts_no_writes() {
    let row = Row::begin("relay lag while SQL accepts no writes");
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
        holds(lag == 0.0, || format!("the lag is {lag} s although everything is relayed"))
    })
    .await;
    row.passed(1, &format!("up to {last:.1} s, then 0 again"));
}

/// The lag also grows while the campaign is not ready or Redis is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_grows_during_any_other_fault() {
    let row = Row::begin("relay lag while a campaign is not ready, and while Redis is stopped");
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
    is_not_ready(&fixture.core, "demo").await;
    rises_above(4.0).await;
    row.fault();
    signal_pids(&fixture.redis_pids().await, Signal::STOP);
    rises_above(7.0).await;
    signal_pids(&fixture.redis_pids().await, Signal::CONT);
    held.release().await;
    eventually(SOON, || async {
        let lag = lag_seconds(&fixture.core).await;
        holds(lag == 0.0, || format!("the lag is {lag} s although everything is relayed"))
    })
    .await;
    row.passed(2, "back to 0 once everything had been relayed");
}

async fn lag_seconds(core: &Core) -> f64 {
    core.metric("claimgate_outbox_lag_seconds").await.unwrap_or(0.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_changes_when_sql_or_redis_hangs() {
    let row = Row::begin("readiness while SQL or Redis hang");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    fixture.core.create("demo", json!({"total": 100})).await;
    row.fault();
    fixture.postgres().freeze();
    until_readyz_says(&fixture.core, 200, "down", promised(READINESS_MAX)).await;
    fixture.core.claim("demo", "alice", "k").await.expect(201);
    fixture.postgres().thaw();
    until_readyz_says(&fixture.core, 200, "up", SOON).await;
    row.fault();
    let redis = fixture.redis_pids().await;
    signal_pids(&redis, Signal::STOP);
    until_readyz_says(&fixture.core, 503, "Redis is unavailable", promised(READINESS_MAX)).await;
    signal_pids(&redis, Signal::CONT);
    until_readyz_says(&fixture.core, 200, "up", SOON).await;
    row.passed(1, "changed in time in both directions");
}

/// Waits until `/readyz` answers with this status and text.
async fn until_readyz_says(core: &Core, status: u16, text: &str, within: Duration) {
    eventually(within, || async {
        let url = core.admin_url("/readyz");
        let reply = core.client().try_get(&url, "").await.map_err(|error| error.to_string())?;
        let sql = reply.json()["sql"].clone();
        let is_reported = sql == text || reply.text().contains(text);
        holds(reply.status == status && is_reported, || format!("{}: {}", reply.status, reply.text()))
    })
    .await;
}

/// Sends SIGTERM; core must end in time and stop its Redis.
async fn stops_in_time(core: &mut Core, redis: Option<u32>) -> Duration {
    let started = Instant::now();
    core.process().signal(Signal::TERM);
    let status = core.process().wait(promised(STOPPED_MAX)).await;
    assert!(status.success(), "{status}\n{}", core.log());
    let took = started.elapsed();
    if let Some(redis) = redis {
        assert!(!runs(redis), "Redis {redis} outlived its core");
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_stops_in_time_while_sql_and_redis_hang() {
    only_on!(OWN, "core stops its own Redis");
    let row = Row::begin("core stopped while PostgreSQL and Redis hang");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    fixture.core.create("demo", json!({"total": 100})).await;
    let redis = fixture.core.redis_pid().await;
    row.fault();
    fixture.postgres().freeze();
    fixture.core.claim("demo", "alice", "k").await.expect(201);
    // Send a call that waits for SQL during the shutdown.
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
async fn core_stops_in_time_while_its_managed_redis_hangs() {
    only_on!(OWN, "core stops its own Redis");
    let row = Row::begin("core stopped while its managed Redis hangs");
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
async fn core_stops_in_time_while_an_external_redis_hangs() {
    let row = Row::begin("core stopped while its external Redis hangs");
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

/// A terminal sends Ctrl-C to the whole process group, but core must stop Redis itself once it no longer
/// needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_in_a_terminal_signals_only_core() {
    only_on!(OWN, "core stops its own Redis");
    let row = Row::begin("Ctrl-C in a terminal");
    let mut fixture = Fixture::managed().await;
    fixture.core.create("demo", json!({"total": 100})).await;
    fixture.core.claim("demo", "alice", "k").await.expect(201);
    let redis = fixture.core.redis_pid().await;
    row.fault();
    signal_group(fixture.core.pid(), Signal::INT);
    assert!(fixture.core.process().wait(promised(STOPPED_MAX)).await.success(), "{}", fixture.core.log());
    assert!(!runs(redis), "Redis {redis} outlived its core");
    let log = fixture.core.data_file("redis/redis.log");
    assert!(log.contains("SIGTERM") && !log.contains("SIGINT"), "{log}");
    assert!(!fixture.core.log().contains("Redis died"), "{}", fixture.core.log());
    say("  core, not the terminal, stopped Redis");
    row.passed(1, "Redis ended after core no longer needed it");
}
