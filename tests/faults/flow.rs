//! The same life cycle of claims on SQLite and PostgreSQL, with managed and external Redis.

use std::cell::Cell;

use reqwest::Method;
use serde_json::{Value, json};
use support::checker::{Checker, Expect, Limits};
use support::clock::Clock;
use support::core_client::campaign;
use support::events::record;
use support::storm::{ClaimAttempt, ClaimOutcome};
use support::wait::holds;
use support::{Core, CoreOptions, SOON, Servers, eventually};

use crate::fixture::Fixture;
use crate::tally::Row;

const LIMITS: Limits = Limits { total: Some(6), per_user: Some(3), per_user_per_day: Some(2) };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_work_on_sqlite_and_managed_redis() {
    let clock = Clock::new();
    flow(Row::begin("flow: SQLite, managed Redis"), Fixture::managed_on(&clock).await, &clock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_work_on_sqlite_and_external_redis() {
    let clock = Clock::new();
    let fixture = Fixture::on(Servers::start_on(&clock).await, CoreOptions::default()).await;
    flow(Row::begin("flow: SQLite, external Redis"), fixture, &clock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_work_on_postgres_and_managed_redis() {
    on_postgres(Row::begin("flow: PostgreSQL, managed Redis"), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_work_on_postgres_and_external_redis() {
    on_postgres(Row::begin("flow: PostgreSQL, external Redis"), false).await;
}

async fn on_postgres(row: Row, managed: bool) {
    let clock = Clock::new();
    let started = Fixture::on_postgres_with_clock(managed, &clock).await;
    let Some(fixture) = row.needs(started) else { return };
    flow(row, fixture, &clock).await;
}

async fn flow(row: Row, mut fixture: Fixture, clock: &Clock) {
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    limits_and_replays(&fixture.core, &checker).await;
    changes(&fixture.core, &checker).await;
    sql_agrees(&fixture, &checker).await;
    let holding = holds_end(&fixture.core, clock).await;
    row.kill();
    fixture.replace_core().await;
    let again = checker.decided(SOON, &fixture.core, "alice", "k1").await;
    assert!(matches!(again, ClaimOutcome::Claimed { replayed: true, .. }), "after a restart: {again:?}");
    let cores = [&fixture.core];
    holding.judge(&cores, &fixture.sql, &fixture.redis().await, Expect::default()).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Repeats a claim until it is decided. Returns the decision and the number of calls: a later call may find
/// the claim that an earlier call made without a response in time.
async fn decided_in(
    core: &Core,
    checker: &Checker,
    user: &str,
    key: &str,
    units: u32,
) -> (ClaimOutcome, usize) {
    let attempt = ClaimAttempt { user: user.to_owned(), key: key.to_owned(), units };
    let calls = Cell::new(0);
    let outcome = eventually(SOON, || async {
        calls.set(calls.get() + 1);
        let outcome = checker.send(core.client(), &core.url("/internal/v1/claims"), &attempt).await;
        if outcome == ClaimOutcome::Unknown {
            record("/internal/v1/claims undecided");
        }
        holds(outcome != ClaimOutcome::Unknown, || format!("{attempt:?} is still unknown")).map(|()| outcome)
    })
    .await;
    (outcome, calls.get())
}

async fn send_claim(core: &Core, checker: &Checker, user: &str, key: &str, units: u32) -> ClaimOutcome {
    decided_in(core, checker, user, key, units).await.0
}

fn id(outcome: &ClaimOutcome) -> &str {
    match outcome {
        ClaimOutcome::Claimed { id, .. } => id,
        other => panic!("no claim: {other:?}"),
    }
}

fn denied(outcome: &ClaimOutcome, code: &str, remaining: u64) {
    let expected = ClaimOutcome::Denied { code: code.to_owned(), remaining: Some(remaining) };
    assert_eq!(*outcome, expected);
}

async fn limits_and_replays(core: &Core, checker: &Checker) {
    let (first, calls) = decided_in(core, checker, "alice", "k1", 1).await;
    let ClaimOutcome::Claimed { sequence: 1, replayed, remaining, .. } = first else { panic!("{first:?}") };
    let is_replay = calls > 1 && replayed && remaining.is_none();
    assert!(is_replay || (!replayed && remaining == Some(5)), "{first:?} after {calls} calls");
    let again = send_claim(core, checker, "alice", "k1", 1).await;
    assert!(matches!(again, ClaimOutcome::Claimed { sequence: 1, replayed: true, .. }), "{again:?}");
    core.claim_units("demo", "alice", "k1", 2).await.refused(422, "idempotency_key_reused");
    denied(&send_claim(core, checker, "alice", "k2", 2).await, "user_daily_limit_reached", 1);
    send_claim(core, checker, "alice", "k2", 1).await;
    denied(&send_claim(core, checker, "alice", "k3", 1).await, "user_daily_limit_reached", 0);
    for user in ["bob", "carol"] {
        assert!(matches!(send_claim(core, checker, user, "k1", 2).await, ClaimOutcome::Claimed { .. }));
    }
    denied(&send_claim(core, checker, "dave", "k1", 1).await, "sold_out", 0);
    // Returned units become available only once, even if they are returned repeatedly.
    let id = id(&again).to_owned();
    for _ in 0..3 {
        let report = core.transition(&id, "return").await.expect(200).json();
        assert_eq!(report["claim"]["status"], "returned");
    }
    checker.ended(&id);
    assert!(matches!(send_claim(core, checker, "dave", "k1", 1).await, ClaimOutcome::Claimed { .. }));
    denied(&send_claim(core, checker, "erin", "k1", 1).await, "sold_out", 0);
    let replay = core.claim("demo", "alice", "k1").await.expect(200).json();
    assert_eq!(replay["claim"]["status"], "returned", "the key belongs to this claim forever");
}

async fn changes(core: &Core, checker: &Checker) {
    core.set_admin_state("demo", "pause").await.expect(200);
    let paused = send_claim(core, checker, "erin", "k1", 1).await;
    assert!(matches!(&paused, ClaimOutcome::Denied { code, .. } if code == "paused"), "{paused:?}");
    core.set_admin_state("demo", "resume").await.expect(200);
    core.patch("demo", json!({"limits": {"total": 3}})).await.expect(200);
    denied(&send_claim(core, checker, "erin", "k1", 1).await, "sold_out", 0);
    core.patch("demo", json!({"limits": {"total": 6}})).await.expect(200);
    let stale = json!({"version": 1, "name": "late"});
    core.admin(Method::PATCH, "/admin/v1/campaigns/demo", &stale).await.refused(409, "version_conflict");
}

async fn sql_agrees(fixture: &Fixture, checker: &Checker) {
    fixture.relayed("demo").await;
    let core = &fixture.core;
    for id in checker.acknowledged() {
        assert_eq!(core.look_up(&id).await.expect(200).json()["claim"]["persisted"], true);
    }
    let csv = core.client().request(Method::GET, &core.admin_url("/admin/v1/campaigns/demo/claims"));
    let csv = csv.bearer_auth(core.admin_token()).header("accept", "text/csv");
    let csv = core.client().send(csv).await.unwrap().expect(200).text();
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines[0], "id,user_id,quantity,status,sequence,day,claimed_at,updated_at");
    let statuses: Vec<_> = lines[1..].iter().map(|line| line.split(',').nth(3).unwrap()).collect();
    assert_eq!(statuses, ["returned", "granted", "granted", "granted", "granted"], "{csv}");
    let page = core.admin_get("/admin/v1/campaigns/demo/claims?limit=3").await.expect(200).json();
    assert_eq!(page["items"].as_array().unwrap().len(), 3, "{page}");
    assert!(page["next_cursor"].is_string(), "{page}");
    let report = fixture.reconciliation("demo").await;
    assert_eq!(
        (&report["agrees"], &report["sql"]["taken"], &report["redis"]["taken"]),
        (&json!(true), &json!(6), &json!(6)),
        "{report}"
    );
}

/// Confirms one hold, returns two and lets one expire. The units of the expired hold must become available
/// automatically.
async fn holds_end(core: &Core, clock: &Clock) -> Checker {
    let limits = Limits { total: Some(3), ..LIMITS };
    let mut body = campaign("held", limits.json());
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    let checker = Checker::new("held", limits);
    let mut ids = Vec::new();
    for user in ["alice", "bob", "carol"] {
        ids.push(id(&send_claim(core, &checker, user, "k", 1).await).to_owned());
    }
    denied(&send_claim(core, &checker, "dave", "k", 1).await, "sold_out", 0);
    for _ in 0..2 {
        let report = core.transition(&ids[0], "confirm").await.expect(200).json();
        assert_eq!(
            (&report["claim"]["status"], &report["claim"]["expires_at"]),
            (&json!("granted"), &Value::Null)
        );
        core.transition(&ids[1], "return").await.expect(200);
    }
    core.transition(&ids[1], "confirm").await.refused(409, "claim_returned");
    // The clock is moved past the end of a shorter hold only.
    core.patch("held", json!({"hold_seconds": 600})).await.expect(200);
    let short = id(&send_claim(core, &checker, "erin", "k", 1).await).to_owned();
    clock.move_by_ms(1_200_000);
    eventually(SOON, || async {
        let left = core.campaign("held").await["remaining"].clone();
        holds(left == 1, || format!("{left} left"))
    })
    .await;
    core.transition(&short, "confirm").await.refused(409, "claim_expired");
    clock.move_by_ms(0);
    core.transition(&ids[2], "return").await.expect(200);
    for id in [&ids[1], &ids[2], &short] {
        checker.ended(id);
    }
    checker
}
