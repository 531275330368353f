//! Single claims: Redis' CPU time per call of claimgate's script, compared with the plain script.

use claimgate_core::config::sqlite_url;
use tempfile::TempDir;

use super::Group;
use crate::budget::Cost;
use crate::engine::{Engine, generous};
use crate::figures::{Definition, Unit};
use crate::plain;
use crate::redis::{self, Fsync};
use crate::session::Session;
use crate::users::Uuids;

pub const GROUP: Group = Group {
    name: "call",
    about: "Redis' CPU time per call of one claim, sequentially, and per call of a plain script",
    figures: &[RATIO, CLAIM, PLAIN],
    parts: &[Cost::of(0.0, 2.5, 0.0)],
    run: |session| Box::pin(run(session)),
};

const RATIO: &Definition = &Definition::at_most("Redis CPU for one call ÷ plain", Unit::Ratio, 1.6);
const CLAIM: &Definition = &Definition::info("Redis CPU for a call of one claim", Unit::CpuMicroseconds);
const PLAIN: &Definition = &Definition::info("Redis CPU for a plain call", Unit::CpuMicroseconds);

const CALLS: usize = 20_000;
const CAMPAIGN: &str = "bench";

async fn run(session: &mut Session) -> anyhow::Result<()> {
    while let Some(round) = session.next_round() {
        session.begin_round();
        let plain = session.measure(plain::call_us(CALLS)).await?;
        let claim = claim_us(session).await?;
        session.say(format_args!("round {round} · a call: {plain:.2} µs plain, {claim:.2} µs for one claim"));
        session.add(RATIO, claim / plain);
        session.add(CLAIM, claim);
        session.add(PLAIN, plain);
    }
    Ok(())
}

/// Returns microseconds of Redis' CPU time per call of one claim. The relay, which also calls scripts, is
/// off.
async fn claim_us(session: &mut Session) -> anyhow::Result<f64> {
    let directory = TempDir::with_prefix("cgb-")?;
    let url = sqlite_url(&directory.path().join("claimgate.sqlite"));
    let engine = Engine::start(Fsync::EverySecond, &url).await?;
    let handle = engine.campaign(CAMPAIGN, generous()).await?;
    let mut uuids = Uuids::of(session.seed());
    // The first claim may cost more.
    engine.claim_one_by_one(&handle, uuids.requests(CAMPAIGN, 1)?).await?;
    let requests = uuids.requests(CAMPAIGN, CALLS)?;
    let before = redis::cpu_seconds(&engine.view).await?;
    session.measure(engine.claim_one_by_one(&handle, requests)).await?;
    let call_us = (redis::cpu_seconds(&engine.view).await? - before) * 1e6 / CALLS as f64;
    engine.stop().await?;
    Ok(call_us)
}
