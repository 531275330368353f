//! The feed lists each changed claim at least once, in commit order, to readers that continue from their
//! cursor.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::client::{Client, record_retry};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::follower::Follower;
use support::pair::Pair;
use support::raw::Raw;
use support::signing::claim_id;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, Sql, eventually, promised};
use tokio::time::timeout;

use crate::on_postgres::on_postgres;

/// Well below the 30 s of a long poll, and long enough for a busy machine.
const IMMEDIATE_MAX: Duration = Duration::from_secs(20);
/// Time limit from another core's commit to the end of a long poll: core polls SQL every 200 ms.
const COMMIT_SEEN_MAX: Duration = Duration::from_millis(500);

/// Reads changes with one call, without retries: a 503 means that all slots are taken.
async fn changes(core: &Core, query: &str) -> Reply {
    core.once().admin_get(&format!("/admin/v1/changes{query}")).await
}

/// Reads changes with retries, where no slots are taken.
async fn page_of_changes(core: &Core, query: &str) -> Reply {
    core.admin_get(&format!("/admin/v1/changes{query}")).await
}

async fn transition(core: &Core, id: &Value, verb: &str) {
    core.transition(id.as_str().unwrap(), verb).await.expect(200);
}

/// Waits until SQL has `count` claims with this status.
async fn until_persisted(sql: &Sql, id: &str, status: &str, count: usize) {
    eventually(SOON, || async {
        let rows = sql.claims(id).await;
        let found = rows.iter().filter(|row| row.status == status).count();
        holds(found == count, || format!("{found} claims are {status}: {rows:?}"))
    })
    .await;
}

/// Returns the user and status of each item.
fn users_and_statuses(items: &[Value]) -> Vec<String> {
    let text = |item: &Value, name: &str| item["claim"][name].as_str().unwrap().to_owned();
    items.iter().map(|item| format!("{} {}", text(item, "user_id"), text(item, "status"))).collect()
}

async fn every_change_is_reported(mut core: Core, sql: &Sql) {
    let mut body = campaign("demo", json!({"total": 10}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    core.create("other", json!({})).await;
    let mut follower = Follower::default();
    assert_eq!(users_and_statuses(&follower.read_all(&core, 100).await), [""; 0]);

    // Sequentially, so that each claim has its own commit.
    let mut claims = Vec::new();
    for (at, user) in ["ann", "bob", "carl"].into_iter().enumerate() {
        claims.push(core.claim("demo", user, "k").await.expect(201).json()["claim"].clone());
        sql.until("demo", at + 1).await;
    }
    core.claim("other", "dora", "k").await.expect(201);
    sql.until("other", 1).await;
    let all = follower.read_all(&core, 100).await;
    assert_eq!(users_and_statuses(&all), ["ann held", "bob held", "carl held", "dora granted"]);
    assert_eq!(
        (&all[1]["claim"], &all[1]["revision"]),
        (&claims[1], &json!(1)),
        "the same claim as in the caller's answer"
    );
    assert!(all[1]["updated_at"].as_str().unwrap().ends_with('Z'));

    transition(&core, &claims[1]["id"], "confirm").await;
    until_persisted(sql, "demo", "granted", 1).await;
    transition(&core, &claims[0]["id"], "return").await;
    until_persisted(sql, "demo", "returned", 1).await;
    let later = follower.read_all(&core, 1).await;
    assert_eq!(users_and_statuses(&later), ["bob granted", "ann returned"]);
    assert_eq!((&later[0]["revision"], &later[0]["claim"]["expires_at"]), (&json!(2), &json!(null)));

    // A reader that starts from the beginning gets each claim in its current state, at most once per page.
    let whole = Follower::default().read_all(&core, 100).await;
    assert_eq!(users_and_statuses(&whole), ["carl held", "dora granted", "bob granted", "ann returned"]);
    let mut by_two = Follower::default();
    by_two.read_all(&core, 2).await;
    by_two.matches_sql(&[sql.claims("demo").await, sql.claims("other").await].concat());
    let of_demo = Follower::of("demo").read_all(&core, 100).await;
    assert_eq!(users_and_statuses(&of_demo), ["carl held", "bob granted", "ann returned"]);
    for (at, item) in whole.iter().enumerate() {
        let query = format!("?after={}", item["cursor"].as_str().unwrap());
        let rest = page_of_changes(&core, &query).await.expect(200).json();
        assert_eq!(rest["items"], json!(whole[at + 1..]), "after {item}");
    }

    // The feed continues after core and Redis have been killed.
    core.kill();
    let core = core.restart().await;
    core.claim("other", "eve", "k").await.expect(201);
    sql.until("other", 2).await;
    assert_eq!(users_and_statuses(&follower.read_all(&core, 100).await), ["eve granted"]);
    follower.matches_sql(&[sql.claims("demo").await, sql.claims("other").await].concat());
}

#[tokio::test]
async fn every_change_is_reported_on_sqlite() {
    let core = Core::start().await;
    let sql = core.sql();
    every_change_is_reported(core, &sql).await;
}

#[tokio::test]
async fn every_change_is_reported_on_postgres() {
    if let Some((core, sql, _postgres)) = on_postgres("the feed on PostgreSQL", CoreOptions::default()).await
    {
        every_change_is_reported(core, &sql).await;
    }
}

async fn imported_claims_are_reported_in_pages(core: &Core, sql: &Sql) {
    core.create("demo", json!({})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    let lines: Vec<_> = (0..3000).map(|user| format!("u{user},1")).collect();
    let url = core.admin_url("/admin/v1/campaigns/demo/import");
    let request = core.client().request(Method::POST, &url).bearer_auth(core.admin_token());
    let request =
        request.header("content-type", "text/csv").body(format!("user_id,quantity\n{}\n", lines.join("\n")));
    core.client().send(request).await.unwrap().expect(200);
    let rows = sql.claims("demo").await;
    assert_eq!(rows.len(), 3000);
    for limit in [1000, 257, 7] {
        let mut follower = Follower::default();
        let items = follower.read_all(core, limit).await;
        follower.matches_sql(&rows);
        assert_eq!(items.len(), rows.len(), "each claim once, in pages of {limit}");
    }
}

#[tokio::test]
async fn imported_claims_are_reported_in_pages_on_sqlite() {
    let core = Core::start().await;
    imported_claims_are_reported_in_pages(&core, &core.sql()).await;
}

#[tokio::test]
async fn imported_claims_are_reported_in_pages_on_postgres() {
    if let Some((core, sql, _postgres)) = on_postgres("the feed on PostgreSQL", CoreOptions::default()).await
    {
        imported_claims_are_reported_in_pages(&core, &sql).await;
    }
}

/// Starts a long poll of up to 30 s in its own task.
fn long_poll(core: &Core, follower: &Follower) -> tokio::task::JoinHandle<(Reply, Duration)> {
    let (client, token, path) = (core.client().once(), core.admin_token(), follower.path(100, 30));
    let url = core.admin_url(&path);
    tokio::spawn(async move {
        let began = Instant::now();
        // Another call may briefly hold the slot, and a slow machine may answer any call with `unavailable`.
        let reply = eventually(SOON, || async {
            let reply = send(&client, &url, &token).await;
            if reply.code() == "unavailable" {
                record_retry(&reply);
            }
            let is_read = !["overloaded", "unavailable"].contains(&reply.code().as_str());
            holds(is_read, || reply.text()).map(|()| reply)
        });
        (reply.await, began.elapsed())
    })
}

async fn send(client: &Client, url: &str, token: &str) -> Reply {
    client.call(Method::GET, url, token, &Value::Null).await
}

#[tokio::test]
async fn a_long_poll_ends_at_the_first_change_or_its_timeout() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.create("other", json!({})).await;
    let mut follower = Follower::of("demo");
    let began = Instant::now();
    let nothing = core.admin_get(&follower.path(100, 1)).await.expect(200).json();
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(follower.take(&nothing).is_empty());
    let poll = long_poll(&core, &follower);
    // A claim of another campaign does not end the long poll.
    core.claim("other", "ann", "k").await.expect(201);
    core.sql().until("other", 1).await;
    core.claim("demo", "bob", "k").await.expect(201);
    let (reply, took) = poll.await.unwrap();
    assert_eq!(users_and_statuses(&follower.take(&reply.expect(200).json())), ["bob granted"]);
    assert!(took < IMMEDIATE_MAX, "reported only after {took:?}");
    // Existing changes are returned immediately.
    let mut again = Follower::of("demo");
    let (reply, took) = long_poll(&core, &again).await.unwrap();
    assert_eq!(users_and_statuses(&again.take(&reply.expect(200).json())), ["bob granted"]);
    assert!(took < IMMEDIATE_MAX, "reported only after {took:?}");
}

/// Either core's relay may commit the claim, so one of the long polls waits for a commit by the other core.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_by_any_core_ends_the_long_polls_of_all() {
    let pair = Pair::start(CoreOptions::default()).await;
    let Some(pair) = available("long polls at two cores", pair) else { return };
    pair.cores[0].create("demo", json!({"total": 100})).await;
    let mut followers = [(); 2].map(|()| Follower::of("demo"));
    for round in 1..=4 {
        let polls = [0, 1].map(|at| long_poll(&pair.cores[at], &followers[at]));
        let ended = async {
            let mut pages = Vec::new();
            for poll in polls {
                pages.push(poll.await.unwrap().0.expect(200).json());
            }
            (pages, Instant::now())
        };
        let committed = async {
            pair.cores[round % 2].claim("demo", &format!("u{round}"), "k").await.expect(201);
            pair.sql.until("demo", round).await;
            Instant::now()
        };
        let ((pages, ended_at), committed_at) = tokio::join!(ended, committed);
        let took = ended_at.saturating_duration_since(committed_at);
        assert!(took < promised(COMMIT_SEEN_MAX), "reported {took:?} after the commit");
        for (follower, page) in followers.iter_mut().zip(&pages) {
            assert_eq!(users_and_statuses(&follower.take(page)), [format!("u{round} granted")]);
        }
    }
}

#[tokio::test]
async fn a_shutdown_ends_long_polls_with_an_empty_page() {
    let mut core = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", "4").start().await;
    core.create("demo", json!({})).await;
    let mut follower = Follower::default();
    let poll = long_poll(&core, &follower);
    // The long poll takes the only slot.
    until_status(SOON, &[503], async || changes(&core, "").await).await;
    core.stop().await;
    let (reply, took) = poll.await.unwrap();
    assert_eq!(users_and_statuses(&follower.take(&reply.expect(200).json())), [""; 0]);
    assert!(took < IMMEDIATE_MAX, "the poll ended only after {took:?}");
}

#[tokio::test]
async fn long_polls_do_not_reduce_capacity_for_other_calls() {
    // A quarter of the permits is available to long polls.
    let core = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", "8").start().await;
    core.create("demo", json!({})).await;
    let polls = [0; 2].map(|_| long_poll(&core, &Follower::default()));
    let refused = until_status(SOON, &[503], async || changes(&core, "").await).await;
    assert_eq!(refused.refused(503, "overloaded").header("retry-after"), "1");
    core.admin_get("/admin/v1/campaigns").await.expect(200);
    core.claim("demo", "ann", "k").await.expect(201);
    for poll in polls {
        let (reply, _) = poll.await.unwrap();
        assert_eq!(
            users_and_statuses(reply.expect(200).json()["items"].as_array().unwrap()),
            ["ann granted"]
        );
    }
    until_status(SOON, &[200], async || changes(&core, "").await).await;
}

/// Starts a long poll of the maximum length on a raw connection.
async fn raw_long_poll(core: &Core) -> Raw {
    let mut connection = Raw::connect(core.admin_listen()).await;
    let token = core.admin_token();
    let head = format!(
        "GET /admin/v1/changes?wait_s=30 HTTP/1.1\r\nHost: core\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    assert!(connection.send(head).await);
    connection
}

#[tokio::test]
async fn a_caller_that_hangs_up_frees_its_slot() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let mut polls = Vec::new();
    for _ in 0..64 {
        polls.push(raw_long_poll(&core).await);
    }
    // A probe may take a slot, so that a later long poll is rejected.
    let full = async {
        while changes(&core, "").await.status != 503 {
            polls.push(raw_long_poll(&core).await);
        }
    };
    timeout(IMMEDIATE_MAX, full).await.expect("all slots are taken");
    drop(polls);
    until_status(IMMEDIATE_MAX, &[200], async || changes(&core, "").await).await;
}

#[tokio::test]
async fn a_half_closed_connection_is_answered_immediately() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let mut poll = raw_long_poll(&core).await;
    poll.finish().await;
    let answer = poll.read_to_end().await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains(r#""items":[]"#), "{text}");
}

#[tokio::test]
async fn invalid_parameters_and_cursors_are_rejected() {
    let (core, another) = (Core::start().await, Core::start().await);
    for core in [&core, &another] {
        core.create("demo", json!({})).await;
        core.claim("demo", "ann", "k").await.expect(201);
        core.sql().until("demo", 1).await;
    }
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "query"),
        ("wait_s=31", "wait_s"),
        ("wait_s=-1", "query"),
        ("campaign_id=a%20b", "campaign_id"),
        ("cursor=1", "query"),
        ("limit=1&limit=2", "query"),
    ] {
        let refused = page_of_changes(&core, &format!("?{query}")).await.refused(400, "invalid_request");
        assert_eq!(refused.json()["field"], field, "{query}");
    }
    page_of_changes(&core, "?campaign_id=none").await.refused(404, "campaign_not_found");
    let good =
        page_of_changes(&core, "").await.expect(200).json()["next_cursor"].as_str().unwrap().to_owned();
    page_of_changes(&core, &format!("?after={good}")).await.expect(200);
    page_of_changes(&another, &format!("?after={good}")).await.refused(410, "cursor_invalid");
    let fields: Vec<_> = good.split('.').collect();
    let (feed, number) = (fields[1], fields[2].parse::<u64>().unwrap());
    let bobs = claim_id("demo", "bob", "k");
    let claim = bobs.trim_start_matches("demo.");
    for wrong in [
        String::new(),
        "0".to_owned(),
        good.replacen('1', "2", 1),
        format!("1.{feed}.{}.ann.{}", number + 1, fields[4]),
        format!("1.{feed}.18446744073709551615.ann.{}", fields[4]),
        format!("1.{feed}.{number}"),
        format!("1.{feed}.{number}.{claim}"),
        format!("1.{feed}.1"),
        format!("{good}.x"),
    ] {
        let refused = page_of_changes(&core, &format!("?after={wrong}")).await.refused(410, "cursor_invalid");
        assert!(refused.json()["detail"].as_str().unwrap().contains("start without"), "{wrong}");
    }
    let url = core.admin_url("/admin/v1/changes");
    for token in ["", "a-token-that-is-not-known-but-long-enough"] {
        send(core.client(), &url, token).await.refused(401, "unauthenticated");
    }
    send(core.client(), &url, API_TOKEN).await.refused(403, "forbidden");
    let url = core.url("/admin/v1/changes");
    send(core.client(), &url, &core.admin_token()).await.refused(404, "not_found");
}
