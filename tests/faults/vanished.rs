//! SQL's host gone without a word: no connection is closed, nothing is answered. Claims go on, a caller that needs SQL
//! is told soon that it does not answer, and everything is relayed once it is back.

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
use support::{Core, CoreOptions, SOON, claim_body, eventually, heavy};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// The longest that a call may take which needs SQL.
const ANSWER_MAX: Duration = Duration::from_millis(2500);
/// How soon readiness says that SQL is away.
const SAID_MAX: Duration = Duration::from_secs(5);
/// How soon everything is relayed once SQL is back.
const RELAYED_MAX: Duration = Duration::from_secs(30);
/// Requests that core takes at once in the test of places, and how many ask for what only SQL knows.
const PLACES: usize = 400;
const CROWD: usize = 600;

/// One core on a PostgreSQL behind a proxy; `Err` where there is none.
async fn behind_a_proxy(options: CoreOptions) -> Result<(Fixture, FaultProxy), String> {
    let postgres = Postgres::start().await?;
    let sql = Sql::open(&postgres.database("claimgate").await);
    let proxy = FaultProxy::start(postgres.socket()).await;
    let url = Postgres::url_at(proxy.address(), "claimgate");
    let core = options.with("CLAIMGATE_DATABASE_URL", url).on_fast_disk().start().await;
    let fixture = Fixture { core, others: vec![], proxy: None, server: None, postgres: Some(postgres), sql };
    Ok((fixture, proxy))
}

/// Every kind of call that needs SQL.
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

/// Makes all calls at once; each is told in time that SQL does not answer. The longest that one took.
async fn are_refused(core: &Core, calls: Vec<RequestBuilder>) -> Duration {
    let asked = calls.into_iter().map(|call| async {
        let what = format!("{call:?}");
        let started = Instant::now();
        let reply = core.client().once().send(call).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let took = started.elapsed();
        assert_eq!((reply.status, reply.code().as_str()), (503, "unavailable"), "{what}: {}", reply.text());
        assert!(!reply.header("retry-after").is_empty(), "{what}: no Retry-After");
        assert!(took < ANSWER_MAX, "{what} was answered only after {took:?}");
        took
    });
    join_all(asked).await.into_iter().max().unwrap_or_default()
}

async fn is_said(core: &Core, sql: &str, within: Duration) {
    eventually(within, || async {
        let reply = core.client().call(Method::GET, &core.url("/readyz"), "", &json!(null)).await;
        holds(reply.status == 200 && reply.json()["sql"] == sql, || reply.text())
    })
    .await;
}

/// What must hold while SQL is gone, and once it is back.
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
            let mut longest = are_refused(&fixture.core, calls(&fixture.core, &claim)).await;
            for _ in 0..2 {
                longest = longest.max(are_refused(&fixture.core, calls(&fixture.core, &claim)).await);
            }
            longest
        },
        is_said(&fixture.core, "down", SAID_MAX),
        checker.win(&fixture.core, 10..150),
    );
    let left_out = fixture.core.claim("demo", "u1", "k").await;
    left_out.expect(200);
    back(&mut fixture);
    let started = Instant::now();
    eventually(RELAYED_MAX, || async {
        let rows = fixture.sql.claims("demo").await.len();
        holds(rows == 150, || format!("SQL has heard of {rows} claims\n{}", fixture.core.log()))
    })
    .await;
    let relayed = started.elapsed();
    is_said(&fixture.core, "up", SAID_MAX).await;
    fixture.core.look_up(&claim).await.expect(200);
    crate::tally::say(&format!(
        "answered after {longest:.2?} at most, relayed {relayed:.1?} after its return"
    ));
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqls_host_vanishes_and_claims_go_on() {
    let _turn = heavy().await;
    let row = Row::begin("SQL gone: PostgreSQL's host vanishes");
    match behind_a_proxy(CoreOptions::default()).await {
        Ok((fixture, proxy)) => survive(row, fixture, |_| proxy.vanish(), |_| proxy.come_back()).await,
        Err(why) => row.skip(&why),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_stands_still_and_claims_go_on() {
    let _turn = heavy().await;
    let row = Row::begin("SQL gone: PostgreSQL, SIGSTOP, callers that need it are told");
    match Fixture::on_postgres(true).await {
        Ok(fixture) => {
            survive(row, fixture, |fixture| fixture.postgres().freeze(), |fixture| fixture.postgres().thaw())
                .await;
        }
        Err(why) => row.skip(&why),
    }
}

/// However many wait for SQL, claims find a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_sql_leaves_places_for_claims() {
    let _turn = heavy().await;
    let row = Row::begin("SQL gone: a crowd asks for what only SQL knows");
    let options = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", PLACES.to_string());
    let (fixture, proxy) = match behind_a_proxy(options).await {
        Ok(both) => both,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..10).await;
    row.fault();
    proxy.vanish();
    let nowhere = format!("/internal/v1/claims/{}", claim_id("nowhere", "alice", "k"));
    let answered = AtomicUsize::new(0);
    let crowd = (0..CROWD).map(|_| async {
        let reply = fixture.core.once().get(&nowhere).await;
        answered.fetch_add(1, Ordering::Relaxed);
        reply
    });
    let claims = async {
        // Those beyond the places there are have been refused: the others wait.
        eventually(SOON, || async {
            let answered = answered.load(Ordering::Relaxed);
            holds(answered >= CROWD - PLACES, || format!("{answered} of the crowd are answered"))
        })
        .await;
        for user in 10..60 {
            fixture.core.claim("demo", &format!("u{user}"), "k").await.expect(201);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (replies, ()) = tokio::join!(join_all(crowd), claims);
    assert!(replies.iter().all(|reply| reply.status == 503), "{:?}", replies[0]);
    checker.win(&fixture.core, 10..60).await;
    proxy.come_back();
    fixture.judge(row, &checker, Expect::default()).await;
}

/// SQLite locked by another process: who writes is told in time, who reads is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_is_locked_and_who_writes_is_told() {
    let _turn = heavy().await;
    let row = Row::begin("SQL locked: SQLite, BEGIN EXCLUSIVE, callers that write are told");
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
        are_refused(&fixture.core, writes().collect()).await;
    }
    let started = Instant::now();
    fixture.core.look_up(&claim_id("demo", "u1", "k")).await.expect(200);
    fixture.core.admin_get("/admin/v1/campaigns").await.expect(200);
    assert!(started.elapsed() < Duration::from_secs(1), "readers waited {:?}", started.elapsed());
    held.release().await;
    fixture.judge(row, &checker, Expect::default()).await;
}
