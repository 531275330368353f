//! Lists of claims for admins, filtered by user and status, as pages and CSV.

use reqwest::Method;
use serde_json::{Value, json};
use support::signing::claim_id;
use support::sql::{Claims, Sql};
use support::{Core, CoreOptions};

use crate::on_postgres::on_postgres;

const PATH: &str = "/admin/v1/campaigns/demo/claims";

/// Returns the items of all pages for `query`, and the number of pages.
async fn all_pages(core: &Core, query: &str) -> (Vec<Value>, usize) {
    let (mut items, mut pages, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let page = core.admin_get(&format!("{PATH}?{query}{cursor}")).await.expect(200).json();
        items.extend(page["items"].as_array().expect("items").iter().cloned());
        pages += 1;
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (items, pages),
        }
    }
}

fn ids(items: &[Value]) -> Vec<String> {
    items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect()
}

async fn csv(core: &Core, query: &str) -> Vec<String> {
    let request = core.client().request(Method::GET, &core.admin_url(&format!("{PATH}?{query}")));
    let request = request.bearer_auth(core.admin_token()).header("Accept", "text/csv");
    let reply = core.client().send(request).await.expect("an answer").expect(200);
    reply.text().lines().map(str::to_owned).collect()
}

async fn claims_are_filtered_by_user_and_status(core: &Core, sql: &Sql) {
    core.create("demo", json!({})).await;
    let claims = [("alice", "a"), ("bob", "a"), ("alice", "b"), ("bob", "b"), ("alice", "c")];
    for (user, key) in claims {
        core.claim("demo", user, key).await.expect(201);
    }
    sql.until("demo", claims.len()).await;
    for (sequence, status) in [(2, "returned"), (3, "revoked"), (5, "returned")] {
        let change = format!("UPDATE claims SET status = '{status}' WHERE sequence = {sequence}");
        assert_eq!(sql.run(change).await, 1);
    }
    let id = |(user, key): (&str, &str)| claim_id("demo", user, key);
    for (query, expected) in [
        ("", vec![0, 1, 2, 3, 4]),
        ("&user_id=alice", vec![0, 2, 4]),
        ("&user_id=bob&status=granted", vec![3]),
        ("&status=returned", vec![1, 4]),
        ("&status=revoked", vec![2]),
        ("&status=held", vec![]),
        ("&user_id=stranger", vec![]),
    ] {
        let expected: Vec<String> = expected.into_iter().map(|at: usize| id(claims[at])).collect();
        for limit in 1..=6 {
            assert_eq!(
                ids(&all_pages(core, &format!("limit={limit}{query}")).await.0),
                expected,
                "{limit}{query}"
            );
        }
        let lines = csv(core, query).await;
        assert_eq!(lines[0], "id,user_id,quantity,status,sequence,day,claimed_at,updated_at", "{query}");
        let listed: Vec<_> = lines[1..].iter().map(|line| line.split(',').next().unwrap()).collect();
        assert_eq!(listed, expected, "{query}");
    }
}

#[tokio::test]
async fn claims_are_filtered_by_user_and_status_on_sqlite() {
    let core = Core::start().await;
    claims_are_filtered_by_user_and_status(&core, &core.sql()).await;
}

#[tokio::test]
async fn claims_are_filtered_by_user_and_status_on_postgres() {
    let started = on_postgres("lists of claims on PostgreSQL", CoreOptions::default()).await;
    let Some((core, sql, _postgres)) = started else { return };
    claims_are_filtered_by_user_and_status(&core, &sql).await;
}

/// A page scans a bounded number of claims, so that it is not slower in a large campaign.
#[tokio::test]
async fn a_rare_status_is_found_over_several_pages() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let sql = core.sql();
    assert_eq!(sql.run(Claims { campaign: "demo", count: 25_000 }.insert()).await, 25_000);
    assert_eq!(sql.run("UPDATE claims SET status = 'returned' WHERE sequence = 24999".to_owned()).await, 1);
    let (items, pages) = all_pages(&core, "status=returned").await;
    assert_eq!((items.len(), items[0]["sequence"].as_u64(), pages), (1, Some(24_999), 3));
    let (granted, _) = all_pages(&core, "limit=1000&status=granted").await;
    assert_eq!(granted.len(), 24_999);
    assert_eq!(csv(&core, "status=returned").await.len(), 2);
}

#[tokio::test]
async fn the_error_for_an_invalid_filter_names_the_field() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    for (query, field) in [
        ("status=lost", "status"),
        ("status=", "status"),
        ("status=Granted", "status"),
        ("user_id=a.b", "user_id"),
        ("user_id=", "user_id"),
        ("status=held&status=held", "query"),
        ("user=alice", "query"),
        ("limit=0&status=held", "limit"),
        ("cursor=x&user_id=alice", "cursor"),
    ] {
        for accept in ["application/json", "text/csv"] {
            let request = core.client().request(Method::GET, &core.admin_url(&format!("{PATH}?{query}")));
            let request = request.bearer_auth(core.admin_token()).header("Accept", accept);
            let reply = core.client().send(request).await.expect("an answer");
            assert_eq!(reply.refused(400, "invalid_request").json()["field"], field, "{query}");
        }
    }
}
