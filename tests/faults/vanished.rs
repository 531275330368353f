//! SQL's host vanishes: no connection closes, and nothing is answered. Claims continue, callers that need SQL
//! soon get 503, and everything is relayed once SQL is back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use support::checker::{Checker, Expect};
use support::core_client::API_TOKEN;
use support::fault_proxy::FaultProxy;
use support::postgres::Postgres;
use support::signing::claim_id;
use support::sql::Sql;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, claim_body, eventually, promised};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// The longest that a call that needs SQL may take.
const ANSWER_MAX: Duration = Duration::from_millis(2500);
/// Time limit for readiness to report that SQL is down.
const REPORT_MAX: Duration = Duration::from_secs(5);
/// Time limit for relaying everything once SQL is back.
const RELAYED_MAX: Duration = Duration::from_secs(30);
/// Number of requests that core accepts concurrently, and number of requests that need SQL.
const PERMITS: usize = 400;
const CROWD: usize = 600;
/// Maximum number of such crowds: on a slow machine, all requests of one may be answered before the first claim.
const CROWDS_MAX: usize = 20;

/// Starts one core that connects to PostgreSQL through a proxy; `Err` if there is no PostgreSQL.
async fn behind_a_proxy(options: CoreOptions) -> Result<(Fixture, FaultProxy), String> {
    let postgres = Postgres::start().await?;
    let sql = Sql::open(&postgres.database("claimgate").await);
    let proxy = FaultProxy::start(postgres.socket()).await;
    let url = Postgres::url_at(proxy.address(), "claimgate");
    let core = options.with("CLAIMGATE_DATABASE_URL", url).on_fast_disk().start().await;
    let fixture = Fixture { core, others: vec![], proxy: None, server: None, postgres: Some(postgres), sql };
    Ok((fixture, proxy))
}

/// Returns every kind of call that needs SQL.
fn calls(core: &Core, claim: &str) -> Vec<RequestBuilder> {
    let internal = |method, path: &str| {
        core.client().request(method, &core.url(&format!("/internal/v1/{path}"))).bearer_auth(API_TOKEN)
    };
    let admin = |method, path: &str| {
        let url = core.admin_url(&format!("/admin/v1/campaigns{path}"));
        core.client().request(method, &url).bearer_auth(core.admin_token())
    };
    let nowhere = format!("claims/{}", claim_id("nowhere", "alice", "k"));
    let create = json!({"id": "new", "name": "new", "starts_at": "2030-01-01T00:00:00Z", "limits": {}});
    vec![
        internal(Method::GET, &format!("claims/{claim}")),
        internal(Method::GET, &format!("claims/{}", claim_id("demo", "stranger", "k"))),
        internal(Method::GET, &nowhere),
        internal(Method::POST, &format!("{nowhere}/confirm")),
        internal(Method::POST, &format!("{nowhere}/return")),
        internal(Method::GET, "campaigns/nowhere"),
        internal(Method::POST, "claims").json(&claim_body("nowhere", "alice", "k", 1)),
        admin(Method::GET, ""),
        admin(Method::POST, "").json(&create),
        admin(Method::GET, "/nowhere"),
        admin(Method::PATCH, "/demo").json(&json!({"version": 1, "name": "other"})),
        admin(Method::POST, "/demo/pause"),
        admin(Method::POST, "/nowhere/warm-up"),
        admin(Method::GET, "/demo/claims"),
        admin(Method::GET, "/demo/claims").header("Accept", "text/csv"),
        admin(Method::GET, "/demo/reconciliation"),
        admin(Method::POST, "/demo/reconciliation"),
    ]
}

/// Makes all calls concurrently; each must get 503 in time. Returns the longest time that a call took.
async fn all_get_503(core: &Core, calls: Vec<RequestBuilder>) -> Duration {
    let timed = calls.into_iter().map(|call| async {
        let what = format!("{call:?}");
        let started = Instant::now();
        let reply = core.client().once().send(call).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let took = started.elapsed();
        assert_eq!((reply.status, reply.code().as_str()), (503, "unavailable"), "{what}: {}", reply.text());
        assert!(!reply.header("retry-after").is_empty(), "{what}: no Retry-After");
        assert!(took < promised(ANSWER_MAX), "{what} was answered only after {took:?}");
        took
    });
    join_all(timed).await.into_iter().max().unwrap_or_default()
}

async fn until_reported(core: &Core, sql: &str, within: Duration) {
    eventually(within, || async {
        let reply = core.client().call(Method::GET, &core.url("/readyz"), "", &json!(null)).await;
        holds(reply.status == 200 && reply.json()["sql"] == sql, || reply.text())
    })
    .await;
}

/// Checks core while SQL is gone and once it is back.
async fn survive(
    row: Row,
    mut fixture: Fixture,
    gone: impl FnOnce(&mut Fixture),
    back: impl FnOnce(&mut Fixture),
) {
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    let claim = claim_id("demo", "u1", "k");
    fixture.core.look_up(&claim).await.expect(200);
    row.fault();
    gone(&mut fixture);
    let (longest, (), ()) = tokio::join!(
        async {
            let mut longest = all_get_503(&fixture.core, calls(&fixture.core, &claim)).await;
            for _ in 0..2 {
                longest = longest.max(all_get_503(&fixture.core, calls(&fixture.core, &claim)).await);
            }
            longest
        },
        until_reported(&fixture.core, "down", promised(REPORT_MAX)),
        checker.win(&fixture.core, 10..150),
    );
    let left_out = fixture.core.claim("demo", "u1", "k").await;
    left_out.expect(200);
    back(&mut fixture);
    let started = Instant::now();
    eventually(promised(RELAYED_MAX), || async {
        let rows = fixture.sql.claims("demo").await.len();
        holds(rows == 150, || format!("SQL has {rows} claims\n{}", fixture.core.log()))
    })
    .await;
    let relayed = started.elapsed();
    until_reported(&fixture.core, "up", promised(REPORT_MAX)).await;
    fixture.core.look_up(&claim).await.expect(200);
    crate::tally::say(&format!("answered within {longest:.2?}, relayed {relayed:.1?} after SQL was back"));
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_the_sql_host_is_unreachable() {
    let row = Row::begin("SQL unreachable: PostgreSQL's host vanishes");
    let started = behind_a_proxy(CoreOptions::default()).await;
    let Some((fixture, proxy)) = row.needs(started) else { return };
    survive(row, fixture, |_| proxy.vanish(), |_| proxy.return_replaced()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_while_sql_hangs() {
    let row = Row::begin("SQL unreachable: PostgreSQL, SIGSTOP, calls that need SQL get 503");
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    survive(row, fixture, |fixture| fixture.postgres().freeze(), |fixture| fixture.postgres().thaw()).await;
}

/// Claims get a permit, regardless of how many requests wait for SQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_waiting_for_sql_leave_permits_for_claims() {
    let row = Row::begin("SQL unreachable: many requests that need SQL");
    let options = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", PERMITS.to_string());
    let Some((fixture, proxy)) = row.needs(behind_a_proxy(options).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    row.fault();
    proxy.vanish();
    let nowhere = format!("/internal/v1/claims/{}", claim_id("nowhere", "alice", "k"));
    let (mut users, mut claims_among_waiting) = (10..60, 0);
    for _ in 0..CROWDS_MAX {
        let answered = AtomicUsize::new(0);
        let crowd = (0..CROWD).map(|_| async {
            let reply = fixture.core.once().get(&nowhere).await;
            answered.fetch_add(1, Ordering::Relaxed);
            reply
        });
        let claims = async {
            // Requests beyond the permits were rejected; the remaining requests wait.
            eventually(SOON, || async {
                let answered = answered.load(Ordering::Relaxed);
                holds(answered >= CROWD - PERMITS, || format!("{answered} requests are answered"))
            })
            .await;
            let still_wait = || answered.load(Ordering::Relaxed) < CROWD;
            while still_wait()
                && let Some(user) = users.next()
            {
                // A claim without a permit would get `overloaded`.
                fixture.core.claim_once_available("demo", &format!("u{user}"), "k").await.expect(201);
                claims_among_waiting += usize::from(still_wait());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (replies, ()) = tokio::join!(join_all(crowd), claims);
        assert!(replies.iter().all(|reply| reply.status == 503), "{:?}", replies[0]);
        if claims_among_waiting > 0 {
            break;
        }
    }
    assert!(claims_among_waiting > 0, "no claim was made while requests waited");
    checker.win(&fixture.core, 10..60).await;
    proxy.return_replaced();
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Another process locks SQLite: writers get 503 in time, readers are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_to_a_locked_sqlite_get_503_in_time() {
    let row = Row::begin("SQL locked: SQLite, BEGIN EXCLUSIVE, writers get 503");
    let fixture = Fixture::managed().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    row.fault();
    let writes = || {
        let calls = calls(&fixture.core, &claim_id("demo", "u1", "k"));
        calls.into_iter().filter(|call| {
            let built = call.try_clone().and_then(|call| call.build().ok()).expect("a request");
            let path = built.url().path();
            path == "/admin/v1/campaigns" && built.method() == Method::POST
                || built.method() == Method::PATCH
                || path.ends_with("/pause")
        })
    };
    assert_eq!(writes().count(), 3);
    for _ in 0..3 {
        all_get_503(&fixture.core, writes().collect()).await;
    }
    let started = Instant::now();
    fixture.core.look_up(&claim_id("demo", "u1", "k")).await.expect(200);
    fixture.core.admin_get("/admin/v1/campaigns").await.expect(200);
    assert!(started.elapsed() < promised(Duration::from_secs(1)), "readers waited {:?}", started.elapsed());
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}
