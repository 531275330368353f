//! Redis memory per granted claim after SQL has the claim.

use std::time::Duration;

use anyhow::Context as _;
use claimgate_core::config::sqlite_url;
use support::RedisView;
use support::inspect::key;
use tempfile::TempDir;

use super::Group;
use crate::budget::Cost;
use crate::engine::{Engine, generous};
use crate::figures::{Definition, Unit};
use crate::lag::Watcher;
use crate::redis::{self, Fsync, query};
use crate::session::Session;
use crate::users::Uuids;

pub const GROUP: Group = Group {
    name: "memory",
    about: "bytes of Redis per granted claim, over a million users; one round, since the figure does not vary",
    figures: &[
        BYTES, USERS, CLAIMS, HOLDS, OUTBOX, CAMPAIGN, OTHER, NAMES, RECORDS, ENTRIES, TABLE, ROUNDING,
    ],
    parts: &[Cost::once(12.0)],
    run: |session| Box::pin(run(session)),
};

const BYTES: &Definition =
    &Definition::at_most("Redis bytes per claim, 1 M users", Unit::Bytes, 150.0).once();
const USERS: &Definition = &Definition::info("… users (hash)", Unit::Bytes).once();
const CLAIMS: &Definition = &Definition::info("… claims (hash)", Unit::Bytes).once();
const HOLDS: &Definition = &Definition::info("… holds (sorted set)", Unit::Bytes).once();
const OUTBOX: &Definition = &Definition::info("… outbox (stream)", Unit::Bytes).once();
const CAMPAIGN: &Definition = &Definition::info("… campaign (hash)", Unit::Bytes).once();
const OTHER: &Definition = &Definition::info("… everything else in Redis", Unit::Bytes).once();
const NAMES: &Definition = &Definition::info("of users: user ids", Unit::Bytes).once();
const RECORDS: &Definition = &Definition::info("of users: records", Unit::Bytes).once();
const ENTRIES: &Definition = &Definition::info("of users: dict entries", Unit::Bytes).once();
const TABLE: &Definition = &Definition::info("of users: the dict's table", Unit::Bytes).once();
const ROUNDING: &Definition = &Definition::info("of users: headers, rounding", Unit::Bytes).once();

const KEYS: &[(&str, &Definition)] =
    &[("users", USERS), ("claims", CLAIMS), ("holds", HOLDS), ("outbox", OUTBOX), ("campaign", CAMPAIGN)];

const USERS_COUNT: usize = 1_000_000;
/// Number of claims per chunk; SQL catches up between chunks.
const CHUNK: usize = 250_000;
const CAMPAIGN_ID: &str = "bench";
/// Three pointers: key, value, next.
const ENTRY_BYTES: f64 = 24.0;
const POINTER_BYTES: f64 = 8.0;
/// Records in the sample of lengths.
const SAMPLE: &str = "100";
/// Poll interval until the rewrite of the append-only file has ended.
const REWRITE_POLL: Duration = Duration::from_millis(50);

async fn run(session: &mut Session) -> anyhow::Result<()> {
    while session.next_round().is_some() {
        measure(session).await?;
    }
    Ok(())
}

async fn measure(session: &mut Session) -> anyhow::Result<()> {
    let directory = TempDir::with_prefix("cgb-")?;
    let url = sqlite_url(&directory.path().join("claimgate.sqlite"));
    let mut engine = Engine::start(Fsync::EverySecond, &url).await?;
    let handle = engine.campaign(CAMPAIGN_ID, generous()).await?;
    engine.start_relay()?;
    session.begin_round();
    let before = redis::used_memory_bytes(&engine.view).await?;
    let mut uuids = Uuids::of(session.seed());
    for _ in 0..USERS_COUNT / CHUNK {
        engine.claim(&handle, uuids.requests(CAMPAIGN_ID, CHUNK)?).await?;
        Watcher::start(&engine.view, CAMPAIGN_ID).finish().await?;
    }
    while redis::is_rewriting(&engine.view).await? {
        tokio::time::sleep(REWRITE_POLL).await;
    }
    let bytes = redis::used_memory_bytes(&engine.view).await? - before;
    engine.check(&handle, USERS_COUNT as u64).await?;
    session
        .say(format_args!("{USERS_COUNT} users: {:.1} bytes of Redis per claim", bytes / USERS_COUNT as f64));
    session.add(BYTES, bytes / USERS_COUNT as f64);
    by_key(session, &engine.view, bytes).await?;
    of_users(session, &engine.view).await?;
    engine.stop().await
}

async fn by_key(session: &mut Session, view: &RedisView, bytes: f64) -> anyhow::Result<()> {
    let mut total = 0.0;
    for (name, definition) in KEYS {
        let size = usage(view, name).await?;
        total += size;
        session.add(definition, size / USERS_COUNT as f64);
    }
    session.add(OTHER, (bytes - total) / USERS_COUNT as f64);
    Ok(())
}

/// Returns Redis' memory usage of a key in bytes; 0 if the key does not exist.
async fn usage(view: &RedisView, name: &str) -> anyhow::Result<f64> {
    let size: Option<u64> =
        query(view, &["MEMORY", "USAGE", &key(CAMPAIGN_ID, name), "SAMPLES", "1000"]).await?;
    Ok(size.unwrap_or(0) as f64)
}

/// Calculates the parts of the hash of users: its contents, the dict's overhead, and the rest.
async fn of_users(session: &mut Session, view: &RedisView) -> anyhow::Result<()> {
    let users = key(CAMPAIGN_ID, "users");
    let encoding: String = query(view, &["OBJECT", "ENCODING", &users]).await?;
    let fields: u64 = query(view, &["HLEN", &users]).await?;
    let sample: Vec<(Vec<u8>, Vec<u8>)> = query(view, &["HRANDFIELD", &users, SAMPLE, "WITHVALUES"]).await?;
    // The calculation applies only to this encoding.
    if encoding != "hashtable" || sample.is_empty() {
        return Ok(());
    }
    let per_claim = fields as f64 / USERS_COUNT as f64;
    let mean = |length: fn(&(Vec<u8>, Vec<u8>)) -> usize| {
        sample.iter().map(length).sum::<usize>() as f64 / sample.len() as f64 * per_claim
    };
    let slots = fields.checked_next_power_of_two().context("a number of slots")?;
    let parts = [
        (NAMES, mean(|(name, _)| name.len())),
        (RECORDS, mean(|(_, record)| record.len())),
        (ENTRIES, ENTRY_BYTES * per_claim),
        (TABLE, POINTER_BYTES * slots as f64 / USERS_COUNT as f64),
    ];
    let rest =
        usage(view, "users").await? / USERS_COUNT as f64 - parts.iter().map(|(_, bytes)| bytes).sum::<f64>();
    for (definition, bytes) in parts.into_iter().chain([(ROUNDING, rest)]) {
        session.add(definition, bytes);
    }
    Ok(())
}
