//! The drain alone: an outbox filled while it was off, then moved into SQL.

use claimgate_core::config::sqlite_url;
use support::postgres::Postgres;
use tempfile::TempDir;

use super::Group;
use crate::engine::{Engine, generous};
use crate::figures::{Definition, Unit};
use crate::lag::Watcher;
use crate::redis::Fsync;
use crate::session::Session;
use crate::users::Uuids;

/// The group.
pub const GROUP: Group = Group {
    name: "drain",
    about: "the drain alone, into SQLite and into PostgreSQL",
    figures: &[SQLITE, POSTGRES],
    run: |session| Box::pin(run(session)),
};

const SQLITE: &Definition = &Definition::at_least("drain into SQLite, alone", Unit::PerSecond, 60_000.0);
const POSTGRES: &Definition =
    &Definition::at_least("drain into PostgreSQL, alone", Unit::PerSecond, 60_000.0);

const EVENTS: usize = 300_000;
const CAMPAIGN: &str = "bench";

async fn run(session: &mut Session) -> anyhow::Result<()> {
    // Synced as a register is, which the tests do without.
    let postgres = Postgres::start_with(&[("fsync", "on")]).await.map_err(anyhow::Error::msg)?;
    for round in 1..=session.options.rounds {
        let folder = TempDir::with_prefix("cgb-")?;
        let sqlite = sqlite_url(&folder.path().join("register.sqlite"));
        let postgres = postgres.database(&format!("round_{round}")).await;
        for (name, figure, url) in [("SQLite", SQLITE, sqlite), ("PostgreSQL", POSTGRES, postgres)] {
            session.begin_round();
            let rate = drain(session, &url).await?;
            session.say(format_args!("round {round} · drain into {name}: {rate:.0} rows/s"));
            session.add(figure, rate);
        }
    }
    Ok(())
}

/// Rows per second into the register at `url`.
async fn drain(session: &mut Session, url: &str) -> anyhow::Result<f64> {
    let mut engine = Engine::start(Fsync::EverySecond, url).await?;
    let known = engine.campaign(CAMPAIGN, generous()).await?;
    let requests = Uuids::of(session.seed()).requests(CAMPAIGN, EVENTS)?;
    engine.claim(&known, requests).await?;
    let seconds = session
        .measure(async {
            engine.start_relay()?;
            Ok(Watcher::start(&engine.view, CAMPAIGN).finish().await?.seconds)
        })
        .await?;
    engine.check(&known, EVENTS as u64).await?;
    engine.stop().await?;
    Ok(EVENTS as f64 / seconds)
}
