//! Two slow cores: campaigns are created while many callers claim, with one core's packets to Redis and the
//! other's to PostgreSQL delayed. Before loads had fencing tokens, this test granted 800 units of a total of
//! 400.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use reqwest::Method;
use support::core_client::campaign;
use support::fault_proxy::FaultProxy;
use support::only_on;
use support::postgres::Postgres;
use support::rng::Rng;
use support::sql::Sql;
use support::topology::ONE_SERVER;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, RedisServer, SOON, eventually};

use crate::fixture::socket;
use crate::tally::Row;

const TO_REDIS_MAX: Duration = Duration::from_millis(60);
const TO_POSTGRES_MAX: Duration = Duration::from_millis(12);
/// Concurrent callers over both cores.
const CALLERS: usize = 40;
const TOTAL: usize = 100;
const USERS: usize = 160;
/// Number of campaigns unless the environment variable `CAMPAIGNS` is set.
const CAMPAIGNS: usize = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_during_creation_over_slow_links_are_exact() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("two cores with slow links: campaigns created under load");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let rng = Rng::seeded("delayed");
    let server = RedisServer::start().await;
    let (to_redis, to_postgres) =
        (FaultProxy::start(socket(&server)).await, FaultProxy::start(postgres.socket()).await);
    let url = postgres.database("claimgate").await;
    let slow = Postgres::url_at(to_postgres.address(), "claimgate");
    let start = |redis: String, sql: &str| {
        CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis).with("CLAIMGATE_DATABASE_URL", sql).start()
    };
    let cores = Arc::new([start(to_redis.url(), &url).await, start(server.url(), &slow).await]);
    to_redis.slow(TO_REDIS_MAX, rng.clone());
    to_postgres.slow(TO_POSTGRES_MAX, rng);
    let sql = Sql::open(&url);
    let campaigns = std::env::var("CAMPAIGNS").ok().and_then(|text| text.parse().ok()).unwrap_or(CAMPAIGNS);
    for campaign in 0..campaigns {
        row.fault();
        one(&cores, &sql, &format!("c{campaign}")).await;
    }
    row.passed(campaigns * USERS, "acknowledged claims always match SQL and the total");
}

/// Creates a campaign while many callers already claim on it.
async fn one(cores: &Arc<[Core; 2]>, sql: &Sql, id: &str) {
    let crowd = stream::iter(0..USERS).map(|user| {
        let core = &cores[user % 2];
        async move { wins(core, id, &format!("u{user}")).await }
    });
    let crowd = crowd.buffer_unordered(CALLERS).filter(|won| std::future::ready(*won)).count();
    let body = campaign(id, serde_json::json!({"total": TOTAL, "per_user": 1}));
    // The other core may already be loading the campaign and not finish in time; in that case, the call is
    // repeated.
    let created = until_status(SOON, &[200, 201], async || {
        cores[0].admin(Method::POST, "/admin/v1/campaigns", &body).await
    });
    let (won, _) = tokio::join!(crowd, created);
    assert_eq!(won, TOTAL, "{id}: acknowledged claims of {TOTAL}");
    eventually(SOON, || async {
        let active = sql.claims(id).await.iter().filter(|claim| claim.is_active()).count();
        holds(active == TOTAL, || format!("{id}: {active} in SQL\n{}\n{}", cores[0].log(), cores[1].log()))
    })
    .await;
}

/// Retries until there is a decision; "not found" and "not ready" do not count as decisions.
async fn wins(core: &Core, id: &str, user: &str) -> bool {
    eventually(SOON, || async {
        match core.try_claim(id, user, "k", 1).await {
            Ok(reply) if [200, 201].contains(&reply.status) => Ok(true),
            Ok(reply) if reply.status == 409 => Ok(false),
            Ok(reply) => Err(format!("{user} got {}: {}", reply.status, reply.text())),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await
}
