//! Holds that fall due during a fault, without a further call.

use std::time::{Duration, Instant};

use serde_json::json;
use support::clock::Clock;
use support::core_client::campaign;
use support::wait::holds;
use support::{Core, CoreOptions, RedisView, SOON, Servers, eventually, promised};

use crate::fixture::Fixture;
use crate::tally::Row;

pub const HOLD_S: u32 = 3600;
/// The same in milliseconds: a move of Redis' clock that ends each hold.
pub const HOLD_MS: i64 = 3_600_000;

/// Time limit of the return of a due hold's units: core checks an idle campaign about once a second.
const RETURNED_MAX: Duration = Duration::from_secs(2);

pub async fn create_with_holds(core: &Core, id: &str, seconds: u32) {
    let mut body = campaign(id, json!({"total": 10}));
    body["hold_seconds"] = json!(seconds);
    core.create_with(body).await;
}

/// Waits until no unit of the campaign is taken.
pub async fn until_returned(redis: &RedisView, campaign: &str, within: Duration) {
    eventually(within, || async {
        let taken = redis.counter(campaign, "taken").await;
        holds(taken == 0, || format!("{taken} units of {campaign} are still taken"))
    })
    .await;
}

/// The holds of a dead core are expired by another core that receives no calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_a_dead_core_are_expired_by_another_core() {
    let row = Row::begin("holds of a dead core are expired by another");
    let clock = Clock::new();
    let servers = Servers::start_on(&clock).await;
    let started = Fixture::two_cores_on(servers, CoreOptions::default()).await;
    let Some(mut fixture) = row.needs(started) else { return };
    let redis = fixture.redis().await;
    create_with_holds(&fixture.core, "held", HOLD_S).await;
    fixture.core.claim("held", "alice", "k").await.expect(201);
    redis.relayed("held", SOON).await;
    row.kill();
    fixture.core.kill();
    fixture.move_clock(&clock, HOLD_MS).await;
    until_returned(&redis, "held", promised(RETURNED_MAX)).await;
    redis.relayed("held", SOON).await;
    row.passed(1, "expired, in Redis and SQL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_without_further_calls_expires_on_time() {
    let row = Row::begin("a hold expires on time");
    let fixture = Fixture::managed().await;
    let redis = fixture.redis().await;
    create_with_holds(&fixture.core, "held", 4).await; // real time: core knows when the hold falls due
    fixture.core.claim("held", "alice", "k").await.expect(201);
    let due = Instant::now() + Duration::from_secs(4);
    redis.relayed("held", SOON).await;
    let remaining = due.saturating_duration_since(Instant::now());
    until_returned(&redis, "held", promised(remaining + RETURNED_MAX)).await;
    row.passed(1, "expired");
}

async fn ending_an_import_expires_holds(row: Row, fixture: Fixture, clock: &Clock) {
    let core = &fixture.core;
    create_with_holds(core, "demo", HOLD_S).await;
    core.claim("demo", "ann", "k").await.expect(201);
    core.set_admin_state("demo", "pause").await.expect(200);
    fixture.relayed("demo").await;
    let broken_off = "import_digest = 'of a file', evicted_at = 1, evicted_taken = 1, evicted_sequence = 1, epoch = epoch + 1";
    fixture.sql.change_campaign("demo", broken_off).await;
    eventually(SOON, || async {
        let view = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
        holds(view["import_unfinished"] == true, || view.to_string())
    })
    .await;
    core.set_admin_state("demo", "end").await.expect(200);
    clock.move_by_ms(HOLD_MS);
    eventually(SOON, || async {
        let statuses: Vec<_> = fixture.sql.claims("demo").await.into_iter().map(|row| row.status).collect();
        holds(statuses == ["expired"], || format!("{statuses:?}"))
    })
    .await;
    row.passed(1, "the held claim expired");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ending_an_unfinished_import_expires_its_holds_on_sqlite() {
    let row = Row::begin("an unfinished import ended while a claim is held: SQLite");
    let clock = Clock::new();
    ending_an_import_expires_holds(row, Fixture::managed_on(&clock).await, &clock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ending_an_unfinished_import_expires_its_holds_on_postgres() {
    let row = Row::begin("an unfinished import ended while a claim is held: PostgreSQL");
    let clock = Clock::new();
    let started = Fixture::on_postgres_with_clock(true, &clock).await;
    let Some(fixture) = row.needs(started) else { return };
    ending_an_import_expires_holds(row, fixture, &clock).await;
}
