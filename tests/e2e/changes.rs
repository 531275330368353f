//! The feed: each claim that changed, in the order of commits, at least once, for as long as its cursors are kept.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use support::client::Client;
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::follower::Follower;
use support::raw::Raw;
use support::signing::claim_id;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Sql, eventually};
use tokio::time::timeout;

use crate::on_postgres::on_postgres;

/// Well below the 30 s for which a call may wait, and enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(15);

/// One call for changes, whose 503 says that all places are taken.
async fn changes(core: &Core, query: &str) -> Reply {
    core.once().admin_get(&format!("/admin/v1/changes{query}")).await
}

async fn transition(core: &Core, id: &Value, verb: &str) {
    let url = core.url(&format!("/internal/v1/claims/{}/{verb}", id.as_str().unwrap()));
    core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
}

/// Waits until SQL has so many claims of a status.
async fn persisted(sql: &Sql, id: &str, status: &str, count: usize) {
    eventually(SOON, || async {
        let rows = sql.claims(id).await;
        let found = rows.iter().filter(|row| row.status == status).count();
        holds(found == count, || format!("{found} are {status}: {rows:?}"))
    })
    .await;
}

/// User and status of each item.
fn told(items: &[Value]) -> Vec<String> {
    let text = |item: &Value, name: &str| item["claim"][name].as_str().unwrap().to_owned();
    items.iter().map(|item| format!("{} {}", text(item, "user_id"), text(item, "status"))).collect()
}

async fn every_change_is_told(mut core: Core, sql: &Sql) {
    let mut body = campaign("demo", json!({"total": 10}));
    body["hold_seconds"] = json!(3600);
    core.create_with(body).await;
    core.create("other", json!({})).await;
    let mut follower = Follower::default();
    assert_eq!(told(&follower.to_the_end(&core, 100).await), [""; 0]);

    // One after another, so that each has a commit of its own.
    let mut claims = Vec::new();
    for (at, user) in ["ann", "bob", "carl"].into_iter().enumerate() {
        claims.push(core.claim("demo", user, "k").await.expect(201).json()["claim"].clone());
        sql.until("demo", at + 1).await;
    }
    core.claim("other", "dora", "k").await.expect(201);
    sql.until("other", 1).await;
    let all = follower.to_the_end(&core, 100).await;
    assert_eq!(told(&all), ["ann held", "bob held", "carl held", "dora granted"]);
    assert_eq!((&all[1]["claim"], &all[1]["revision"]), (&claims[1], &json!(1)), "as the caller was told");
    assert!(all[1]["updated_at"].as_str().unwrap().ends_with('Z'));

    transition(&core, &claims[1]["id"], "confirm").await;
    persisted(sql, "demo", "granted", 1).await;
    transition(&core, &claims[0]["id"], "return").await;
    persisted(sql, "demo", "returned", 1).await;
    let later = follower.to_the_end(&core, 1).await;
    assert_eq!(told(&later), ["bob granted", "ann returned"]);
    assert_eq!((&later[0]["revision"], &later[0]["claim"]["expires_at"]), (&json!(2), &json!(null)));

    // Each of them once more to who goes on from before them, as they stand now; a page tells a claim once.
    let whole = Follower::default().to_the_end(&core, 100).await;
    assert_eq!(told(&whole), ["carl held", "dora granted", "bob granted", "ann returned"]);
    let mut by_two = Follower::default();
    by_two.to_the_end(&core, 2).await;
    by_two.knows(&[sql.claims("demo").await, sql.claims("other").await].concat());
    let of_demo = Follower::of("demo").to_the_end(&core, 100).await;
    assert_eq!(told(&of_demo), ["carl held", "bob granted", "ann returned"]);
    for (at, item) in whole.iter().enumerate() {
        let query = format!("?after={}", item["cursor"].as_str().unwrap());
        let rest = changes(&core, &query).await.expect(200).json();
        assert_eq!(rest["items"], json!(whole[at + 1..]), "behind {item}");
    }

    // Whatever becomes of core and of Redis.
    core.kill();
    let core = core.restart().await;
    core.claim("other", "eve", "k").await.expect(201);
    sql.until("other", 2).await;
    assert_eq!(told(&follower.to_the_end(&core, 100).await), ["eve granted"]);
    follower.knows(&[sql.claims("demo").await, sql.claims("other").await].concat());
}

#[tokio::test]
async fn every_change_is_told_on_sqlite() {
    let core = Core::start().await;
    let sql = core.sql();
    every_change_is_told(core, &sql).await;
}

#[tokio::test]
async fn every_change_is_told_on_postgresql() {
    if let Some((core, sql, _postgres)) = on_postgres("the feed on PostgreSQL", CoreOptions::default()).await
    {
        every_change_is_told(core, &sql).await;
    }
}

async fn many_are_told_by_pages(core: &Core, sql: &Sql) {
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
        let items = follower.to_the_end(core, limit).await;
        follower.knows(&rows);
        assert_eq!(items.len(), rows.len(), "each once, by pages of {limit}");
    }
}

#[tokio::test]
async fn imported_claims_are_told_by_pages_on_sqlite() {
    let core = Core::start().await;
    many_are_told_by_pages(&core, &core.sql()).await;
}

#[tokio::test]
async fn imported_claims_are_told_by_pages_on_postgresql() {
    if let Some((core, sql, _postgres)) = on_postgres("the feed on PostgreSQL", CoreOptions::default()).await
    {
        many_are_told_by_pages(&core, &sql).await;
    }
}

/// A call that waits for up to 30 s, in a task of its own.
fn wait_for_more(core: &Core, follower: &Follower) -> tokio::task::JoinHandle<(Reply, Duration)> {
    let (client, token, path) = (core.client().once(), core.admin_token(), follower.path(100, 30));
    let url = core.admin_url(&path);
    tokio::spawn(async move {
        let began = Instant::now();
        // Another call may have a place for a moment.
        let reply = eventually(SOON, || async {
            let reply = send(&client, &url, &token).await;
            holds(reply.code() != "overloaded", || reply.text()).map(|()| reply)
        });
        (reply.await, began.elapsed())
    })
}

async fn send(client: &Client, url: &str, token: &str) -> Reply {
    client.call(Method::GET, url, token, &Value::Null).await
}

#[tokio::test]
async fn a_wait_ends_with_the_first_change_or_at_its_limit() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.create("other", json!({})).await;
    let mut follower = Follower::of("demo");
    let began = Instant::now();
    let nothing = core.admin_get(&follower.path(100, 1)).await.expect(200).json();
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(follower.take(&nothing).is_empty());
    let wait = wait_for_more(&core, &follower);
    // Of another campaign: it goes on waiting.
    core.claim("other", "ann", "k").await.expect(201);
    core.sql().until("other", 1).await;
    core.claim("demo", "bob", "k").await.expect(201);
    let (reply, took) = wait.await.unwrap();
    assert_eq!(told(&follower.take(&reply.expect(200).json())), ["bob granted"]);
    assert!(took < AT_ONCE, "told only after {took:?}");
    // What is there already is not waited for.
    let mut again = Follower::of("demo");
    let (reply, took) = wait_for_more(&core, &again).await.unwrap();
    assert_eq!(told(&again.take(&reply.expect(200).json())), ["bob granted"]);
    assert!(took < AT_ONCE, "told only after {took:?}");
}

#[tokio::test]
async fn a_stop_ends_waits_with_an_empty_page() {
    let mut core = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", "4").start().await;
    core.create("demo", json!({})).await;
    let mut follower = Follower::default();
    let wait = wait_for_more(&core, &follower);
    // The one place is taken once it waits.
    eventually(SOON, || async {
        let reply = changes(&core, "").await;
        holds(reply.status == 503, || reply.text())
    })
    .await;
    core.stop().await;
    let (reply, took) = wait.await.unwrap();
    assert_eq!(told(&follower.take(&reply.expect(200).json())), [""; 0]);
    assert!(took < AT_ONCE, "ended only after {took:?}");
}

#[tokio::test]
async fn who_waits_takes_no_place_of_other_calls() {
    // A quarter of them may wait.
    let core = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", "8").start().await;
    core.create("demo", json!({})).await;
    let waits = [0; 2].map(|_| wait_for_more(&core, &Follower::default()));
    let refused = eventually(SOON, || async {
        let reply = changes(&core, "").await;
        holds(reply.status == 503, || reply.text()).map(|()| reply)
    })
    .await;
    assert_eq!(refused.refused(503, "overloaded").header("retry-after"), "1");
    core.admin_get("/admin/v1/campaigns").await.expect(200);
    core.claim("demo", "ann", "k").await.expect(201);
    for wait in waits {
        let (reply, _) = wait.await.unwrap();
        assert_eq!(told(reply.expect(200).json()["items"].as_array().unwrap()), ["ann granted"]);
    }
    eventually(SOON, || async {
        let reply = changes(&core, "").await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
}

/// A call that waits for as long as it may.
async fn wait_by_hand(core: &Core) -> Raw {
    let mut connection = Raw::connect(core.admin_listen()).await;
    let token = core.admin_token();
    let head = format!(
        "GET /admin/v1/changes?wait_s=30 HTTP/1.1\r\nHost: core\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    assert!(connection.send(head).await);
    connection
}

#[tokio::test]
async fn who_hangs_up_leaves_the_place_to_others() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let mut waits = Vec::new();
    for _ in 0..64 {
        waits.push(wait_by_hand(&core).await);
    }
    // A look may have taken the place of one that came later, and was refused.
    let full = async {
        while changes(&core, "").await.status != 503 {
            waits.push(wait_by_hand(&core).await);
        }
    };
    timeout(AT_ONCE, full).await.expect("all places are taken");
    drop(waits);
    eventually(AT_ONCE, || async {
        let reply = changes(&core, "").await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
}

#[tokio::test]
async fn who_closes_its_side_is_answered_at_once() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let mut wait = wait_by_hand(&core).await;
    wait.finish().await;
    let answer = wait.read_to_end().await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains(r#""items":[]"#), "{text}");
}

#[tokio::test]
async fn what_cannot_be_told_is_refused_by_name() {
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
        let refused = changes(&core, &format!("?{query}")).await.refused(400, "invalid_request");
        assert_eq!(refused.json()["field"], field, "{query}");
    }
    changes(&core, "?campaign_id=none").await.refused(404, "campaign_not_found");
    let good = changes(&core, "").await.expect(200).json()["next_cursor"].as_str().unwrap().to_owned();
    changes(&core, &format!("?after={good}")).await.expect(200);
    changes(&another, &format!("?after={good}")).await.refused(410, "cursor_invalid");
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
        let refused = changes(&core, &format!("?after={wrong}")).await.refused(410, "cursor_invalid");
        assert!(refused.json()["detail"].as_str().unwrap().contains("begin without"), "{wrong}");
    }
    let url = core.admin_url("/admin/v1/changes");
    for token in ["", "a-token-that-is-not-known-but-long-enough"] {
        send(core.client(), &url, token).await.refused(401, "unauthenticated");
    }
    send(core.client(), &url, API_TOKEN).await.refused(403, "forbidden");
    let url = core.url("/admin/v1/changes");
    send(core.client(), &url, &core.admin_token()).await.refused(404, "not_found");
}
