//! Failovers, and how soon claims are decided after them.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::core_client::API_TOKEN;
use crate::core_client::claim_body;
use crate::core_process::Core;
use crate::inspect::key;
use crate::process::{Signal, signal_pid};
use crate::sentinel::SentinelSet;
use crate::sql::{Claims, Sql};
use crate::time_limits::SOON;
use crate::wait::{eventually, holds};

/// Number of callers that retry until their claim is granted.
pub const CALLERS: usize = 8;
/// Interval at which the replicas are polled for a promotion.
const POLL: Duration = Duration::from_millis(5);

/// Waits until the set of the core's only primary has this number of members.
pub async fn has_members(core: &Core, members: usize) {
    eventually(SOON, || async {
        let now = core.admin_get("/admin/v1/replication").await.expect(200).json();
        let set = &now["primaries"][0]["set"];
        let counted = |name: &str| set[name].as_array().map_or(0, Vec::len);
        holds((counted("members"), counted("joining")) == (members, 0), || format!("{now:#}"))
    })
    .await;
}

/// Creates the campaign `id` with `count` claims, and waits until core has loaded it from SQL into the first
/// server.
pub async fn large_campaign(set: &SentinelSet, core: &Core, sql: &Sql, id: &str, count: u64) {
    core.create(id, json!({"total": 2 * count + 100, "per_user": 4})).await;
    assert_eq!(sql.run(Claims { campaign: id, count }.insert()).await, count);
    let keys = ["campaign", "users", "claims", "holds", "outbox"].map(|what| key(id, what));
    let command: Vec<&str> = std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
    set.view(0).await.query::<u64>(&command).await;
    eventually(6 * SOON, || async {
        let view = core.admin_get(&format!("/admin/v1/campaigns/{id}")).await.json();
        holds(view["ready"] == true && view["taken"] == count, || view.to_string())
    })
    .await;
}

/// Times of the steps after a promotion, measured from the moment at which the replica reports that it is a
/// primary.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// Time at which the replica reported that it is a primary.
    pub promoted: Instant,
    /// Time until most sentinels name the promoted server.
    pub named: Duration,
    /// Time until the other replica follows the promoted server; no claim is acknowledged earlier.
    pub followed: Duration,
    /// Time until the first caller's claim is granted.
    pub won: Duration,
}

impl Timings {
    /// Returns core's share: the time after it could find the server and a replica was in sync.
    pub fn core(&self) -> Duration {
        self.won.saturating_sub(self.named.max(self.followed))
    }

    /// Describes the times in one line.
    pub fn line(&self) -> String {
        let Self { named, followed, won, .. } = *self;
        let core = self.core();
        format!(
            "the first caller won {won:.2?} after the promotion: most sentinels named the primary after {named:.2?}, its \
             replica followed after {followed:.2?}, and core took {core:.2?} from then on"
        )
    }
}

/// The reason for a promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The first server is killed.
    Killed,
    /// An operator requests it.
    Requested,
}

/// Fails over from the first server, while callers send claims of `campaign` until they succeed.
pub async fn fail_over(set: &SentinelSet, core: &Core, campaign: &str, cause: Cause) -> Timings {
    let begin = async {
        match cause {
            Cause::Killed => {
                signal_pid(set.servers[0].pid(), Signal::KILL);
                set.promoted_after(0).await
            }
            Cause::Requested => set.fail_over().await,
        }
    };
    let won = async {
        let (server, promoted) = promotion(set, 0).await;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (client, url) = (core.client().once(), core.url("/internal/v1/claims"));
            let (campaign, user) = (campaign.to_owned(), format!("caller{caller}"));
            callers.spawn(async move { wins(&client, &url, &campaign, &user).await });
        }
        let first = async { callers.join_next().await.unwrap().unwrap() };
        let (named, followed, first) = tokio::join!(named(set, server), followed(set, server), first);
        Timings { promoted, named: named - promoted, followed: followed - promoted, won: first - promoted }
    };
    timeout(4 * SOON, async { tokio::join!(begin, won).1 }).await.expect("callers win again")
}

/// Waits until a replica of the primary `before` reports that it is a primary; returns its index and the
/// time.
pub async fn promotion(set: &SentinelSet, before: usize) -> (usize, Instant) {
    loop {
        for replica in (0..set.servers.len()).filter(|server| *server != before) {
            // A separate connection, because Sentinel closes all connections of a server that it promotes.
            let role: Result<String, _> = set.view(replica).await.try_query(&["INFO", "replication"]).await;
            if role.is_ok_and(|role| role.contains("role:master")) {
                return (replica, Instant::now());
            }
        }
        sleep(POLL).await;
    }
}

/// Waits until most sentinels name the server `server`.
async fn named(set: &SentinelSet, server: usize) -> Instant {
    loop {
        let named = join_all(set.sentinels.iter().map(|sentinel| set.named_by(sentinel))).await;
        if named.iter().filter(|named| **named == server).count() * 2 > named.len() {
            return Instant::now();
        }
        sleep(POLL).await;
    }
}

/// Waits until the server `server` has a replica with all of its writes so far.
async fn followed(set: &SentinelSet, server: usize) -> Instant {
    let promoted = set.view(server).await;
    loop {
        let info: Result<String, _> = promoted.try_query(&["INFO", "replication"]).await;
        if info.is_ok_and(|info| info.contains("state=online")) {
            return Instant::now();
        }
        sleep(POLL).await;
    }
}

/// Retries until the claim of `user` is granted; returns the time.
async fn wins(client: &Client, url: &str, campaign: &str, user: &str) -> Instant {
    let body = claim_body(campaign, user, "k", 1);
    loop {
        let reply = client.call(Method::POST, url, API_TOKEN, &body).await;
        if reply.status < 300 {
            return Instant::now();
        }
    }
}
