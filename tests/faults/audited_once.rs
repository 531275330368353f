//! Confirmations and returns are audited once each, regardless of failures between the response and SQL.

use serde_json::json;
use support::core_client::campaign;
use support::fault_proxy::Cut;
use support::inspect::key;
use support::only_on;
use support::topology::ONE_SERVER;
use support::wait::{holds, until_status};
use support::{Core, SOON, eventually};

use crate::fixture::Fixture;
use crate::killed::ack_hash;
use crate::tally::Row;

/// Creates a campaign with holds; returns the ids of the claims of `users`.
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

async fn transitioned(core: &Core, id: &str, verb: &str) {
    core.transition(id, verb).await.expect(200);
}

/// Waits until the audit has exactly these users and actions, in any order.
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

    // Kill core before SQL has the acknowledged transitions.
    let sql = fixture.sql.hold().await;
    transitioned(&fixture.core, &ids[0], "confirm").await;
    transitioned(&fixture.core, &ids[1], "return").await;
    assert_eq!(fixture.sql.claim_audit("demo").await.len(), 0, "SQL must be blocked");
    row.kill();
    fixture.core.kill();
    sql.release().await;
    fixture.core = fixture.core.restart().await;
    audited(&fixture, &[("ann", "confirm"), ("bob", "return")]).await;

    // Reloading from SQL first relays the transitions, because Redis has lost the campaign's users.
    let sql = fixture.sql.hold().await;
    transitioned(&fixture.core, &ids[0], "return").await;
    transitioned(&fixture.core, &ids[2], "confirm").await;
    row.fault();
    fixture.redis().await.query::<()>(&["DEL", &key("demo", "users")]).await;
    sql.release().await;
    let all = [("ann", "confirm"), ("ann", "return"), ("bob", "return"), ("cy", "confirm")];
    audited(&fixture, &all).await;

    // After a reload, claims keep their revisions under a new epoch, and no transition is mistaken for an
    // earlier one.
    until_status(SOON, &[200], async || fixture.core.transition(&ids[3], "confirm").await).await;
    transitioned(&fixture.core, &ids[3], "return").await;
    fixture.relayed("demo").await;
    audited(&fixture, &[&all[..], &[("dan", "confirm"), ("dan", "return")]].concat()).await;
    let report = fixture.reconciliation("demo").await;
    assert_eq!(report["agrees"], true, "{report}");
    row.passed(6, "audited once each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_transitions_are_audited_once_on_sqlite() {
    survives(Row::begin("audit of claims: SQLite"), Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_transitions_are_audited_once_on_postgres() {
    let row = Row::begin("audit of claims: PostgreSQL");
    let Some(fixture) = row.needs(Fixture::on_postgres(false).await) else { return };
    survives(row, fixture).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transition_relayed_twice_is_audited_once() {
    only_on!(ONE_SERVER, "the proxy supports only one server");
    let row = Row::begin("audit of claims: core killed between SQL's commit and the acknowledgement");
    let mut fixture = Fixture::proxied().await;
    let ids = held(&fixture, &["ann"]).await;
    fixture.proxy().cut(Cut::BeforeRequest, &ack_hash(), usize::MAX);
    transitioned(&fixture.core, &ids[0], "confirm").await;
    fixture.proxy().until_injected(1).await;
    audited(&fixture, &[("ann", "confirm")]).await;
    row.kill();
    fixture.core.kill();
    assert!(fixture.redis().await.outbox_entries("demo").await > 1, "the entry must stay in the outbox");
    fixture.proxy().mend();
    fixture.core = fixture.core.restart().await;
    fixture.relayed("demo").await;
    audited(&fixture, &[("ann", "confirm")]).await;
    row.passed(1, "audited once");
}
