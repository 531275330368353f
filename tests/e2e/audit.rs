//! The audit log: each change is listed once and in order, and paging misses none.

use reqwest::Method;
use serde_json::{Value, json};
use support::{Core, CoreOptions, Sql};

use crate::on_postgres::on_postgres;

const OLGA: &str = "the-operators-token-for-the-audits-tests";

async fn page(core: &Core, query: &str) -> Value {
    core.admin_get(&format!("/admin/v1/audit{query}")).await.expect(200).json()
}

/// Returns the campaign, the caller and the kind of change of each item.
fn summaries(items: &Value) -> Vec<String> {
    let word = |item: &Value, name: &str| item[name].as_str().unwrap().to_owned();
    let items = items.as_array().unwrap().iter();
    items.map(|item| ["campaign_id", "who", "what"].map(|name| word(item, name)).join(" ")).collect()
}

async fn every_change_is_listed_once(core: &Core, sql: &Sql) {
    core.create("one", json!({"total": 1})).await;
    core.create("two", json!({})).await;
    let olga = async |path: &str, body: Value| {
        let url = core.admin_url(&format!("/admin/v1/campaigns/one/{path}"));
        core.client().call(Method::POST, &url, OLGA, &body).await.expect(200);
    };
    olga("add", json!({"units": 4, "idempotency_key": "k"})).await;
    olga("add", json!({"units": 4, "idempotency_key": "k"})).await;
    core.patch("two", json!({"name": "Two"})).await.expect(200);
    olga("pause", Value::Null).await;

    let all = page(core, "").await;
    let expected =
        ["one admin create", "two admin create", "one olga add", "two admin update", "one olga pause"];
    assert_eq!(
        (summaries(&all["items"]), &all["next_cursor"]),
        (expected.map(str::to_owned).to_vec(), &json!(null))
    );
    let added = &all["items"][2];
    assert_eq!(
        (&added["before"]["limits"]["total"], &added["after"]["limits"]["total"], &added["version"]),
        (&json!(1), &json!(5), &json!(2))
    );
    assert!(added["at"].as_str().unwrap().ends_with('Z') && all["items"][0]["before"].is_null());

    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let part = page(core, &format!("?limit=2{after}")).await;
        seen.extend(summaries(&part["items"]));
        let Some(next) = part["next_cursor"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, expected);
    let one = page(core, "?campaign_id=one").await;
    assert_eq!(summaries(&one["items"]), ["one admin create", "one olga add", "one olga pause"]);

    // A core of an older version writes no number. Such an entry must be listed after the entries already
    // read, despite the old timestamp.
    let last = all["items"][4]["number"].as_u64().unwrap();
    sql.run(
        "INSERT INTO audit (campaign_id, version, at, who, what, before, after) \
         VALUES ('one', 99, 1000, 'late', 'end', NULL, '{}')"
            .to_owned(),
    )
    .await;
    let new = page(core, &format!("?after={last}")).await;
    assert_eq!(
        (summaries(&new["items"]), &new["items"][0]["number"]),
        (vec!["one late end".to_owned()], &json!(last + 1))
    );
    assert_eq!(page(core, &format!("?after={}", last + 1)).await["items"], json!([]));
}

#[tokio::test]
async fn every_change_is_listed_once_on_sqlite() {
    let options = CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS", format!("olga:operator:{OLGA}"));
    let core = options.start().await;
    every_change_is_listed_once(&core, &core.sql()).await;
}

#[tokio::test]
async fn every_change_is_listed_once_on_postgres() {
    if let Some((core, sql, _postgres)) = on_postgres(
        "the audit on PostgreSQL",
        CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS", format!("olga:operator:{OLGA}")),
    )
    .await
    {
        every_change_is_listed_once(&core, &sql).await;
    }
}

/// There are more entries than one batch numbers after an upgrade of claimgate.
#[tokio::test]
async fn entries_written_before_numbering_are_all_listed() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.sql()
        .run(
            "INSERT INTO audit (campaign_id, version, at, who, what, after) \
             WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 12000) \
             SELECT 'demo', i, 1000 + i, 'admin', 'update', '{}' FROM n"
                .to_owned(),
        )
        .await;
    let (mut versions, mut after) = (Vec::new(), "0".to_owned());
    loop {
        let part = page(&core, &format!("?limit=1000&after={after}")).await;
        versions
            .extend(part["items"].as_array().unwrap().iter().map(|item| item["version"].as_u64().unwrap()));
        let Some(next) = part["next_cursor"].as_str() else { break };
        next.clone_into(&mut after);
    }
    assert_eq!(versions.len(), 12_000);
    versions.sort_unstable();
    assert_eq!(versions, (1..=12_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_error_for_an_invalid_query_names_the_field() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.admin_get("/admin/v1/audit?campaign_id=none").await.refused(404, "campaign_not_found");
    for (query, field) in [
        ("campaign_id=a%20b", "campaign_id"),
        ("after=x", "after"),
        ("after=-1", "after"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("cursor=1", "query"),
        ("limit=1&limit=2", "query"),
    ] {
        let refused =
            core.admin_get(&format!("/admin/v1/audit?{query}")).await.refused(400, "invalid_request");
        assert_eq!(refused.json()["field"], field, "{query}");
    }
}
