//! How soon decisions go on after a promotion: of a large campaign, and of one of many, whose callers wait. Printed, not judged;
//! `CLAIMS` and `CAMPAIGNS` of the environment say how large and how many.

use std::time::{Duration, Instant};

use serde_json::json;
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
use crate::registers::counter;
use crate::replicas::{has_members, waiting_for_one};
use crate::tally::Row;

const CLAIMS: u64 = 20_000;
const CAMPAIGNS: u64 = 200;
/// Callers who ask again and again until they have won.
const CALLERS: usize = 8;
/// How often the replicas are asked whether they have been promoted.
const LOOK: Duration = Duration::from_millis(5);

/// Fails over by hand; returns how long after the promotion the first of the callers of `campaign` has won, and when it was.
async fn fail_over(set: &SentinelSet, core: &Core, campaign: &str) -> (Duration, Instant) {
    let promoted = async {
        loop {
            for replica in [1, 2] {
                // By a connection of its own: Sentinel ends those of a server that it promotes.
                let role: Result<String, _> =
                    set.view(replica).await.try_query(&["INFO", "replication"]).await;
                if role.is_ok_and(|role| role.contains("role:master")) {
                    return Instant::now();
                }
            }
            sleep(LOOK).await;
        }
    };
    let won = async {
        let promoted = promoted.await;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (client, url) = (core.client().clone(), core.url("/internal/v1/claims"));
            let (campaign, user) = (campaign.to_owned(), format!("caller{caller}"));
            callers.spawn(async move { wins(&client, &url, &campaign, &user).await });
        }
        let first = callers.join_next().await.unwrap().unwrap();
        (first - promoted, promoted)
    };
    timeout(4 * SOON, async { tokio::join!(set.fail_over(), won).1 }).await.expect("callers win again")
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
    let (waited, _) = fail_over(&set, &core, "demo").await;
    assert_eq!(counter(&core, "claimgate_loads_total").await, loads, "it was not loaded from SQL");
    assert!(counter(&core, "claimgate_adoptions_total").await > 0);
    row.passed(CALLERS, &format!("{count} claims; the first caller won {waited:.2?} after the promotion"));
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
    let (waited, promoted) = fail_over(&set, &core, &format!("live{}", live / 2)).await;
    eventually(SOON + Duration::from_millis(50) * u32::try_from(live).unwrap(), || async {
        sleep(Duration::from_millis(50)).await;
        let adopted = counter(&core, "claimgate_adoptions_total").await;
        holds(adopted >= live, || format!("{adopted} campaigns of {live} go on"))
    })
    .await;
    let all = promoted.elapsed();
    row.passed(
        usize::try_from(live).unwrap(),
        &format!(
            "{live} campaigns; the first caller won {waited:.2?} after the promotion, all were ready after {all:.1?}"
        ),
    );
}
