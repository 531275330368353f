//! Who confirmed and returned which claim, once each, whatever stops between the answer and SQL.

use serde_json::json;
use support::core_client::campaign;
use support::fault_proxy::Cut;
use support::inspect::key;
use support::only_on;
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{Core, SOON, eventually};

use crate::fixture::Fixture;
use crate::flow::transition;
use crate::killed::ack_hash;
use crate::tally::Row;

/// A campaign that holds its claims; the ids of those by `users`.
async fn held(fixture: &Fixture, users: &[&str]) -> Vec<String> {
    let mut body = campaign("demo", json!({}));
    body["hold_seconds"] = json!(600);
    fixture.core.create_with(body).await;
    let mut ids = Vec::new();
    for user in users {
        let reply = fixture.core.claim("demo", user, "k").await.expect(201).json();
        ids.push(reply["claim"]["id"].as_str().unwrap().to_owned());
    }
    fixture.relayed("demo").await;
    ids
}

async fn asked(core: &Core, id: &str, verb: &str) {
    transition(core, id, verb).await.expect(200);
}

/// Waits until the audit has exactly these users' claims and what was done to them, in whatever order.
async fn audited(fixture: &Fixture, expected: &[(&str, &str)]) {
    eventually(SOON, || async {
        let rows = fixture.sql.claim_audit("demo").await;
        let mut found: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.2.as_str())).collect();
        found.sort_unstable();
        holds(found == expected, || format!("{found:?}, not {expected:?}"))
    })
    .await;
    assert!(fixture.sql.claim_audit("demo").await.iter().all(|row| row.1 == "shop"));
}

async fn survives(row: Row, mut fixture: Fixture) {
    let ids = held(&fixture, &["ann", "bob", "cy", "dan"]).await;

    // Killed before SQL has heard of what was acknowledged.
    let sql = fixture.sql.hold().await;
    asked(&fixture.core, &ids[0], "confirm").await;
    asked(&fixture.core, &ids[1], "return").await;
    assert_eq!(fixture.sql.claim_audit("demo").await.len(), 0, "SQL was to be held up");
    row.kill();
    fixture.core.kill();
    sql.release().await;
    fixture.core = fixture.core.restart().await;
    audited(&fixture, &[("ann", "confirm"), ("bob", "return")]).await;

    // Relayed by a load, since Redis has lost the campaign's users.
    let sql = fixture.sql.hold().await;
    asked(&fixture.core, &ids[0], "return").await;
    asked(&fixture.core, &ids[2], "confirm").await;
    row.fault();
    fixture.redis().await.query::<()>(&["DEL", &key("demo", "users")]).await;
    sql.release().await;
    let all = [("ann", "confirm"), ("ann", "return"), ("bob", "return"), ("cy", "confirm")];
    audited(&fixture, &all).await;

    // Loaded again, claims keep their revisions under another epoch: none is taken for one of before.
    eventually(SOON, || async {
        let reply = transition(&fixture.core, &ids[3], "confirm").await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
    asked(&fixture.core, &ids[3], "return").await;
    fixture.relayed("demo").await;
    audited(&fixture, &[&all[..], &[("dan", "confirm"), ("dan", "return")]].concat()).await;
    let told = fixture.reconciliation("demo").await;
    assert_eq!(told["agrees"], true, "{told}");
    row.passed(6, "audited once each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_audited_once_sqlite() {
    survives(Row::begin("the audit of claims: SQLite"), Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_audited_once_postgres() {
    let row = Row::begin("the audit of claims: PostgreSQL");
    match Fixture::on_postgres(false).await {
        Ok(fixture) => survives(row, fixture).await,
        Err(why) => row.skip(&why),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_relayed_twice_is_audited_once() {
    only_on!(ONE_SERVER, "its proxy stands before one server");
    let row = Row::begin("the audit of claims: core killed after SQL's commit, before it is acknowledged");
    let mut fixture = Fixture::proxied().await;
    let ids = held(&fixture, &["ann"]).await;
    fixture.proxy().cut(Cut::BeforeRequest, &ack_hash(), usize::MAX);
    asked(&fixture.core, &ids[0], "confirm").await;
    fixture.proxy().until_injected(1).await;
    audited(&fixture, &[("ann", "confirm")]).await;
    row.kill();
    fixture.core.kill();
    assert!(fixture.redis().await.outbox_entries("demo").await > 1, "it was to stay in the outbox");
    fixture.proxy().mend();
    fixture.core = fixture.core.restart().await;
    fixture.relayed("demo").await;
    audited(&fixture, &[("ann", "confirm")]).await;
    row.passed(1, "audited once");
}
