//! Outbox entries that were not written by a core, and entries that two cores remove.

use std::collections::BTreeSet;
use std::fmt::Display;

use claimgate_core::domain::event::OutboxEntry;
use claimgate_core::store::redis::RedisStore;
use claimgate_core::store::redis::outbox::OutboxLayout;
use claimgate_core::store::redis::scripts::keys::Keys;
use redis::{Client, Value};
use reqwest::Method;
use serde_json::json;
use support::checker::{Checker, Expect};
use support::core_client::API_TOKEN;
use support::events::record;
use support::inspect::key;
use support::topology::ONE_SERVER;
use support::{RedisView, claim_body, only_on};
use support::{SOON, eventually, wait::holds};

use crate::fixture::{Fixture, ROOMY};
use crate::tally::Row;

/// Entries that no core would write: (field, value) pairs.
const MALFORMED: [&[&str]; 6] = [
    &["garbage", "1"],
    &["epoch", "1"],
    &["events", "\u{5}alice"],
    &["epoch", "one", "events", ""],
    &["epoch", "1", "events", "cut short"],
    &["epoch", "-1", "events", ""],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_entries_become_dead_letters() {
    let row = Row::begin("malformed outbox entries");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    let held = fixture.sql.hold().await;
    for (at, fields) in MALFORMED.into_iter().enumerate() {
        checker.win(&fixture.core, at * 5..at * 5 + 5).await;
        row.fault();
        add(&redis, fields).await;
    }
    held.release().await;
    fixture.relayed("demo").await;
    assert_eq!(dead_letters(&redis).await, 6, "all must be kept as dead letters");
    checker.win(&fixture.core, 30..40).await;
    eventually(SOON, || async {
        let report = fixture.core.metric::<u64>("claimgate_dead_letters_total").await;
        holds(report == Some(6), || format!("{report:?}"))
    })
    .await;
    fixture.judge(row, &checker, Expect { differences: &["dead_letters"], ..Expect::default() }).await;
}

/// A rebuild also moves malformed entries to the dead letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_moves_malformed_entries_to_dead_letters() {
    let row = Row::begin("malformed outbox entries during a rebuild");
    let fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let redis = fixture.redis().await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 0..20).await;
    for fields in MALFORMED {
        row.fault();
        add(&redis, fields).await;
    }
    redis.query::<()>(&["DEL", &key("demo", "users")]).await;
    held.release().await;
    eventually(SOON, || async {
        let dead_letters = dead_letters(&redis).await;
        holds(dead_letters == 6, || format!("{dead_letters} dead letters"))
    })
    .await;
    fixture.judge(row, &checker, Expect { differences: &["dead_letters"], ..Expect::default() }).await;
}

async fn add(redis: &RedisView, fields: &[&str]) {
    let outbox = key("demo", "outbox");
    let command: Vec<&str> = ["XADD", &outbox, "*"].into_iter().chain(fields.iter().copied()).collect();
    redis.query::<Value>(&command).await;
}

async fn dead_letters(redis: &RedisView) -> u64 {
    redis.query(&["XLEN", &key("demo", "dead_letters")]).await
}

/// Records a call that is retried after an error of Redis; returns the error's text.
fn retried(error: &impl Display) -> String {
    let text = error.to_string();
    record(&format!("outbox {text}"));
    text
}

/// Removes entries from the outbox, again if Redis did not answer in time; returns the number of pending
/// events.
async fn acknowledged(store: &RedisStore, keys: &Keys, entries: &[OutboxEntry]) -> u64 {
    eventually(SOON, || async {
        let mut session = store.session(keys.slot).await.map_err(|error| retried(&error))?;
        store.acknowledge(&mut session, keys, entries, &[]).await.map_err(|error| retried(&error))
    })
    .await
}

/// Two cores may have read the same entries: removing one lowers the number of pending events only once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_removed_by_two_cores_is_counted_once() {
    only_on!(ONE_SERVER, "core's own library, on one server");
    let row = Row::begin("outbox entries removed by two cores");
    let mut fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    let _held = fixture.sql.hold().await;
    for at in 0..4 {
        checker.win(&fixture.core, at..at + 1).await;
        let claims: Vec<_> = (0..8).map(|user| claim_body("demo", &format!("{at}-{user}"), "k", 1)).collect();
        let url = fixture.core.url("/internal/v1/claims/batch");
        let body = json!({ "claims": claims });
        fixture.core.client().call(Method::POST, &url, API_TOKEN, &body).await.expect(200);
    }
    fixture.core.kill();

    let client = Client::open(fixture.server().url()).unwrap();
    let (store, keys) = (RedisStore::new(client, 1000), Keys::of(&"demo".parse().unwrap()));
    let read = async || {
        let page = eventually(SOON, || async {
            let page = store.outbox_page(&keys, OutboxLayout::Current, "0").await;
            page.map_err(|error| retried(&error))
        });
        page.await.unwrap().0.entries
    };
    let by_another: Vec<_> = read().await.into_iter().step_by(2).collect();
    let mut late = read().await;
    let sizes: BTreeSet<_> = late.iter().map(|entry| entry.events.len()).collect();
    assert!(sizes.len() > 1 && events(&late) == 36, "{sizes:?}");
    row.fault();
    let left = acknowledged(&store, &keys, &by_another).await;
    assert_eq!(left, 36 - events(&by_another));
    // Remove all but the last two entries; the other core has already removed one of these two.
    let two_left = late.split_off(late.len() - 2);
    let waits = events(&two_left)
        - events(by_another.iter().filter(|taken| two_left.iter().any(|entry| entry.id == taken.id)));
    for _ in 0..2 {
        assert_eq!(acknowledged(&store, &keys, &late).await, waits);
    }
    let redis = fixture.redis().await;
    assert_eq!(redis.counter("demo", "backlog").await, waits);
    assert_eq!(redis.outbox_entries("demo").await, 2, "the epoch marker and the pending entry");
    row.passed(40, "each counted once");
}

/// Returns the number of events in these entries.
fn events<'a>(entries: impl IntoIterator<Item = &'a OutboxEntry>) -> u64 {
    entries.into_iter().map(|entry| entry.events.len() as u64).sum()
}
