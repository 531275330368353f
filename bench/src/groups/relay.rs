//! The relay without other load: it writes an outbox, filled while the relay was off, to SQL.

use std::sync::Arc;

use claimgate_core::config::sqlite_url;
use claimgate_core::engine::campaign::handle::CampaignHandle;
use support::postgres::Postgres;
use tempfile::TempDir;

use super::Group;
use crate::budget::Cost;
use crate::engine::{Engine, generous};
use crate::figures::{Definition, Unit};
use crate::lag::Watcher;
use crate::processor::Threads;
use crate::redis::Fsync;
use crate::session::Session;
use crate::users::Uuids;

pub const GROUP: Group = Group {
    name: "relay",
    about: "the relay without claims, into SQLite and into PostgreSQL",
    figures: &[SQLITE, POSTGRES, SQLITE_CPU, POSTGRES_CPU, FEED],
    parts: &[Cost::of(1.5, 9.5, 0.0)],
    run: |session| Box::pin(run(session)),
};

const SQLITE: &Definition = &Definition::at_least("relay into SQLite, no claims", Unit::PerSecond, 60_000.0);
const POSTGRES: &Definition =
    &Definition::at_least("relay into PostgreSQL, no claims", Unit::PerSecond, 60_000.0);
const SQLITE_CPU: &Definition =
    &Definition::at_most("relay's CPU per row, SQLite", Unit::CpuMicroseconds, 4.0);
const POSTGRES_CPU: &Definition = &Definition::info("relay's CPU per row, PostgreSQL", Unit::CpuMicroseconds);
const FEED: &Definition =
    &Definition::at_most("feed's share of the relay's time, PostgreSQL", Unit::Ratio, 0.1);

const EVENTS: usize = 300_000;
const CAMPAIGN: &str = "bench";

async fn run(session: &mut Session) -> anyhow::Result<()> {
    // With fsync, as in production; the tests run without it.
    let postgres = Postgres::start_with(&[("fsync", "on")]).await.map_err(anyhow::Error::msg)?;
    // Timing statements slows the server, so it runs on a separate one.
    let timing = [("fsync", "on"), ("shared_preload_libraries", "pg_stat_statements")];
    let timed = Postgres::start_with(&timing).await.map_err(anyhow::Error::msg)?;
    while let Some(round) = session.next_round() {
        let directory = TempDir::with_prefix("cgb-")?;
        let sqlite = sqlite_url(&directory.path().join("claimgate.sqlite"));
        let postgres = postgres.database(&format!("round_{round}")).await;
        for (name, figures, url) in
            [("SQLite", [SQLITE, SQLITE_CPU], sqlite), ("PostgreSQL", [POSTGRES, POSTGRES_CPU], postgres)]
        {
            session.begin_round();
            let (rate, cpu_us) = relay(session, &url).await?;
            session.say(format_args!(
                "round {round} · relay into {name}: {rate:.0} rows/s, {cpu_us:.2} µs each"
            ));
            session.add(figures[0], rate);
            session.add(figures[1], cpu_us);
        }
        session.begin_round();
        let share = feed_share(session, &timed, &format!("round_{round}")).await?;
        session.say(format_args!("round {round} · the feed's statements: {share:.3} of the relay's time"));
        session.add(FEED, share);
    }
    Ok(())
}

/// Returns the server's time for the feed's statements divided by the relay's total time.
async fn feed_share(session: &mut Session, timed: &Postgres, database: &str) -> anyhow::Result<f64> {
    let url = timed.database(database).await;
    timed.time_statements(database).await;
    let (rate, _) = relay(session, &url).await?;
    Ok(timed.seconds_on(database, "feed").await / (EVENTS as f64 / rate))
}

/// Returns rows per second into the database at `url`, and microseconds of the relay's CPU time per row.
async fn relay(session: &mut Session, url: &str) -> anyhow::Result<(f64, f64)> {
    let engine = Engine::start(Fsync::EverySecond, url).await?;
    let handle = engine.campaign(CAMPAIGN, generous()).await?;
    relay_claims(session, engine, &handle, EVENTS).await
}

/// Makes `count` claims of the campaign, then relays them; returns the same figures.
pub async fn relay_claims(
    session: &mut Session,
    mut engine: Engine,
    handle: &Arc<CampaignHandle>,
    count: usize,
) -> anyhow::Result<(f64, f64)> {
    let campaign = handle.campaign().id.to_string();
    let requests = Uuids::of(session.seed()).requests(&campaign, count)?;
    engine.claim(handle, requests).await?;
    let before = Threads::of(std::process::id()).relay;
    let seconds = session
        .measure(async {
            engine.start_relay()?;
            Ok(Watcher::start(&engine.view, &campaign).finish().await?.seconds)
        })
        .await?;
    let cpu_s = Threads::of(std::process::id()).relay - before;
    engine.check(handle, count as u64).await?;
    engine.stop().await?;
    Ok((count as f64 / seconds, cpu_s * 1e6 / count as f64))
}
