//! A follower of the feed misses no change while cores write, die and wait for each other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::client::{Client, client};
use support::core_client::API_TOKEN;
use support::follower::{CoreAddress, Follower};
use support::inspect::key;
use support::wait::holds;
use support::{Core, Reply, SOON, claim_body, eventually, heavy};
use tokio::time::sleep;

use crate::fixture::Fixture;
use crate::tally::Row;

/// Number of campaigns, as many as two cores write to PostgreSQL concurrently.
const CAMPAIGNS: usize = 8;
const CALLERS: usize = 16;
/// Number of claims of each caller; every second one is returned.
const CLAIMS: usize = 40;
/// Pause of a reader after a call without a response.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// PostgreSQL's lock timeout for core's transactions, in seconds.
const LOCK_TIMEOUT_S: u32 = 10;

/// The cores to which the calls of a storm go alternately.
#[derive(Default)]
struct Storm {
    cores: Mutex<Vec<(String, CoreAddress)>>,
    at: AtomicUsize,
    done: AtomicUsize,
    over: AtomicBool,
}

impl Storm {
    fn set(&self, cores: &[&Core]) {
        let cores = cores.iter().map(|core| (core.url("/internal/v1/claims"), CoreAddress::of(core)));
        *self.cores.lock().unwrap() = cores.collect();
    }

    fn next(&self) -> (String, CoreAddress) {
        let cores = self.cores.lock().unwrap();
        cores[self.at.fetch_add(1, Ordering::Relaxed) % cores.len()].clone()
    }

    /// Retries a POST request to a path of the claims until it is answered.
    async fn answered(&self, client: &Client, path: &str, body: &Value) -> Reply {
        eventually(SOON, || async {
            let request = client.request(Method::POST, &format!("{}{path}", self.next().0));
            let request = request.bearer_auth(API_TOKEN);
            let request = if body.is_null() { request } else { request.json(body) };
            let reply = client.send(request).await.map_err(|error| error.to_string())?;
            if reply.status == 503 { Err(reply.text()) } else { Ok(reply) }
        })
        .await
    }

    async fn caller(&self, caller: usize) {
        let client = client();
        for at in 0..CLAIMS {
            let campaign = format!("demo{}", (caller + at) % CAMPAIGNS);
            let body = claim_body(&campaign, &format!("u{caller}"), &format!("k{at}"), 1);
            let claimed = self.answered(&client, "", &body).await;
            assert!([200, 201].contains(&claimed.status), "{}", claimed.text());
            if at % 2 == 0 {
                let id = claimed.json()["claim"]["id"].as_str().unwrap().to_owned();
                self.answered(&client, &format!("/{id}/return"), &Value::Null).await.expect(200);
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn callers(&self) {
        join_all((0..CALLERS).map(|caller| self.caller(caller))).await;
    }

    /// Waits until the fraction `part` / `of` of the claims has been made.
    async fn reached(&self, part: usize, of: usize) {
        let until = CALLERS * CLAIMS * part / of;
        eventually(4 * SOON, || async {
            let done = self.done.load(Ordering::Relaxed);
            holds(done >= until, || format!("{done} of {until} claims"))
        })
        .await;
    }

    /// Follows the feed until the storm is over and nothing is left to read.
    async fn follow(&self, wait_s: u32) -> Follower {
        let mut follower = Follower::default();
        loop {
            let over = self.over.load(Ordering::Relaxed);
            match follower.poll(&self.next().1, wait_s).await {
                Some(0) if over => return follower,
                Some(_) => {}
                None => sleep(RETRY_PAUSE).await,
            }
        }
    }
}

/// Kills the first core in the middle of the storm, and restarts it later.
async fn kill_a_core(row: &Row, fixture: &mut Fixture, storm: &Storm) {
    storm.reached(1, 3).await;
    row.kill();
    fixture.core.kill();
    if let [other] = &fixture.others[..] {
        storm.set(&[other]);
        storm.reached(2, 3).await;
    }
    fixture.core = fixture.core.restart().await;
    storm.set(&cores(fixture));
}

fn cores(fixture: &Fixture) -> Vec<&Core> {
    std::iter::once(&fixture.core).chain(&fixture.others).collect()
}

async fn storm(row: Row, mut fixture: Fixture) {
    for at in 0..CAMPAIGNS {
        fixture.core.create(&format!("demo{at}"), json!({})).await;
    }
    let storm = Storm::default();
    storm.set(&cores(&fixture));
    let load = async {
        tokio::join!(storm.callers(), kill_a_core(&row, &mut fixture, &storm));
        for at in 0..CAMPAIGNS {
            fixture.relayed(&format!("demo{at}")).await;
        }
        storm.over.store(true, Ordering::Relaxed);
    };
    // One follower uses long polls; the other polls continuously, so that it also reads between two commits.
    let (waits, polls, ()) = tokio::join!(storm.follow(1), storm.follow(0), load);
    let mut rows = Vec::new();
    for at in 0..CAMPAIGNS {
        rows.extend(fixture.sql.claims(&format!("demo{at}")).await);
    }
    assert_eq!(rows.len(), CALLERS * CLAIMS);
    waits.matches_sql(&rows);
    polls.matches_sql(&rows);
    row.passed(rows.len(), &format!("reported in {} and {} items", waits.items, polls.items));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_misses_nothing_in_a_storm_on_postgres() {
    let row = Row::begin("the feed followed in a storm: two cores, PostgreSQL");
    let _turn = heavy().await;
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    storm(row, fixture).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_misses_nothing_in_a_storm_on_sqlite() {
    let row = Row::begin("the feed followed in a storm: one core, SQLite");
    let _turn = heavy().await;
    storm(row, Fixture::managed().await).await;
}

/// Maximum number of polls until a claim made during a stall of the machine is reported.
const POLLS_MAX: usize = 5;

/// Claims for `user` and polls the feed once, for less than PostgreSQL's lock timeout. Returns the reported
/// users; `None` if the poll reported nothing but the machine stalled.
async fn reported_in_one_poll(core: &Core, follower: &mut Follower, user: &str) -> Option<Vec<String>> {
    let wait = Duration::from_secs(u64::from(LOCK_TIMEOUT_S - 2));
    core.claim("fast", user, "k").await.expect(201);
    let began = Instant::now();
    let mut users = polled_users(core, follower).await;
    let has_stalled = users.is_empty() && began.elapsed() > wait + Duration::from_secs(1);
    let mut polls = 1;
    while has_stalled && users.is_empty() {
        assert!(polls < POLLS_MAX, "{polls} polls do not report the claim of {user}");
        users = polled_users(core, follower).await;
        polls += 1;
    }
    (!has_stalled).then_some(users)
}

/// Polls the feed once; returns the reported users.
async fn polled_users(core: &Core, follower: &mut Follower) -> Vec<String> {
    let page = core.admin_get(&follower.path(100, LOCK_TIMEOUT_S - 2)).await.expect(200).json();
    let users = follower.take(&page).into_iter().map(|item| item["claim"]["user_id"].to_string());
    users.collect()
}

/// Commits appear in the feed in their order, without waiting for transactions that began earlier, even if
/// PostgreSQL times those out.
#[tokio::test]
async fn a_slow_commit_does_not_delay_others_in_the_feed() {
    let row = Row::begin("the feed while one campaign's row is locked");
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    for id in ["slow", "fast"] {
        fixture.core.create(id, json!({})).await;
    }
    let held = fixture.sql.hold_campaign("slow").await;
    row.fault();
    fixture.core.claim("slow", "ann", "k").await.expect(201);
    fixture.other().claim("slow", "bob", "k").await.expect(201);
    let mut follower = Follower::default();
    let mut in_time = 0;
    // If PostgreSQL's lock blocks a poll until its timeout, the poll looks like a stall of the machine. So at
    // most 3 polls may stall.
    for at in 0..6 {
        let user = format!("user-{at}");
        if let Some(reported) = reported_in_one_poll(&fixture.core, &mut follower, &user).await {
            assert_eq!(reported, [format!("\"{user}\"")]);
            in_time += 1;
        }
        if in_time == 3 {
            break;
        }
    }
    assert_eq!(in_time, 3, "polls without a stall of the machine");
    held.release().await;
    fixture.relayed("slow").await;
    follower.read_all(&fixture.core, 100).await;
    follower.matches_sql(&[fixture.sql.claims("slow").await, fixture.sql.claims("fast").await].concat());
    row.passed(5, "reported in the order of commits");
}

/// The cursor stays valid while Redis is emptied and the campaign is reloaded, and the feed reports claims
/// that the reload revokes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_stays_valid_across_a_rebuild() {
    let row = Row::begin("the feed across a rebuild: SQLite");
    let mut fixture = Fixture::managed().await;
    fixture.core.create("demo", json!({})).await;
    let mut follower = Follower::default();
    for round in 0..3 {
        for user in 0..5 {
            let seen = eventually(SOON, || async {
                let reply = fixture.core.claim("demo", &format!("u{user}"), &format!("k{round}")).await;
                if reply.status == 503 { Err(reply.text()) } else { Ok(reply) }
            });
            seen.await.expect(201);
        }
        fixture.relayed("demo").await;
        follower.read_all(&fixture.core, 2).await;
        row.fault();
        if round == 0 {
            let keys = ["campaign", "users", "claims", "holds", "outbox"].map(|what| key("demo", what));
            let command: Vec<&str> =
                std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
            fixture.redis().await.query::<u64>(&command).await;
        } else {
            fixture.replace_core().await;
        }
    }
    follower.matches_sql(&fixture.sql.claims("demo").await);
    row.passed(15, "each reported");
}
