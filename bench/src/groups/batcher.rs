//! Claims in process, through the batcher, compared with baseline (a): neither uses HTTP.

use std::sync::Arc;

use claimgate_core::config::sqlite_url;
use claimgate_core::engine::campaign::handle::CampaignHandle;
use tempfile::TempDir;

use super::Group;
use crate::budget::Cost;
use crate::engine::{Engine, generous};
use crate::figures::{Definition, Unit};
use crate::lag::{Lag, Watcher};
use crate::metrics::batches;
use crate::plain::{self, Plain};
use crate::redis::{self, Fsync};
use crate::session::Session;
use crate::users::Uuids;

pub const GROUP: Group = Group {
    name: "batcher",
    about: "in process through the batcher, and redis-benchmark with a plain script",
    figures: FIGURES,
    parts: &[Cost::of(0.0, 4.0, 8.5)],
    run: |session| Box::pin(run(session)),
};

/// Warm-up claims. Their rate determines how many claims fill the measured time.
const WARM_UP: usize = 50_000;
const CAMPAIGN: &str = "bench";

/// The figures of one fsync setting.
#[derive(Debug)]
struct Set {
    fsync: Fsync,
    rate: &'static Definition,
    cpu: &'static Definition,
    plain_16: &'static Definition,
    plain_1: &'static Definition,
    claims: &'static Definition,
    plain_cpu: &'static Definition,
    claim_cpu: &'static Definition,
    relayed_cpu: &'static Definition,
    batch: &'static Definition,
    backlog: &'static Definition,
    lag: &'static Definition,
}

macro_rules! sets {
    ($($name:ident: $fsync:expr, $word:literal, $least:literal;)*) => {
        $(const $name: Set = Set {
            fsync: $fsync,
            rate: &Definition::at_least(
                concat!("in process ÷ (a) -P 16, ", $word), Unit::Ratio, $least),
            cpu: &Definition::at_most(
                concat!("Redis CPU ÷ (a) -P 16, ", $word), Unit::Ratio, 0.5),
            plain_16: &Definition::info(concat!("(a) -P 16, ", $word), Unit::PerSecond),
            plain_1: &Definition::info(concat!("(a) -P 1, ", $word), Unit::PerSecond),
            claims: &Definition::info(concat!("in process, ", $word), Unit::PerSecond),
            plain_cpu: &Definition::info(
                concat!("CPU per call, (a) -P 16, ", $word), Unit::CpuMicroseconds),
            claim_cpu: &Definition::at_most(
                concat!("CPU per claim, in process, ", $word), Unit::CpuMicroseconds, 3.0),
            relayed_cpu: &Definition::info(
                concat!("CPU per claim, relayed, ", $word), Unit::CpuMicroseconds),
            batch: &Definition::info(concat!("claims per batch in process, ", $word), Unit::Claims),
            backlog: &Definition::info(
                concat!("largest outbox in process, ", $word), Unit::Events),
            lag: &Definition::info(
                concat!("outbox empty after, in process, ", $word), Unit::Seconds),
        };)*
        const SETS: &[&Set] = &[$(&$name),*];
        const FIGURES: &[&Definition] = &[$(
            $name.rate, $name.cpu, $name.plain_16, $name.plain_1, $name.claims, $name.plain_cpu,
            $name.claim_cpu, $name.relayed_cpu, $name.batch, $name.backlog, $name.lag,
        )*];
    };
}

sets! {
    EVERY_SECOND: Fsync::EverySecond, "everysec", 2.0;
    ALWAYS: Fsync::Always, "always", 1.5;
}

async fn run(session: &mut Session) -> anyhow::Result<()> {
    while let Some(round) = session.next_round() {
        for set in SETS {
            session.begin_round();
            let plain = plain(session, set, round).await?;
            let batched = in_process(session, set, round).await?;
            session.add(set.rate, batched.claims_per_s / plain.calls_per_s);
            session.add(set.cpu, batched.cpu_us / plain.cpu_us);
            session.add(set.plain_16, plain.calls_per_s);
            session.add(set.plain_cpu, plain.cpu_us);
            session.add(set.claims, batched.claims_per_s);
            session.add(set.claim_cpu, batched.cpu_us);
            session.add(set.relayed_cpu, batched.relayed_cpu_us);
            session.add(set.batch, batched.batch);
            session.add(set.backlog, batched.lag.largest as f64);
            session.add(set.lag, batched.lag.seconds);
        }
    }
    Ok(())
}

async fn plain(session: &mut Session, set: &Set, round: u32) -> anyhow::Result<Plain> {
    let (fsync, seconds) = (set.fsync, session.options.seconds);
    let pipelined = session.measure(plain::run(fsync, 16, seconds)).await?;
    session.say(format_args!(
        "round {round} · (a) -P 16, {fsync}: {:.0} calls/s, {:.2} µs of Redis each",
        pipelined.calls_per_s, pipelined.cpu_us
    ));
    // No target: half the time is enough.
    let single = session.measure(plain::run(fsync, 1, seconds / 2.0)).await?;
    session.say(format_args!("round {round} · (a) -P 1, {fsync}: {:.0} calls/s", single.calls_per_s));
    session.add(set.plain_1, single.calls_per_s);
    Ok(pipelined)
}

/// The result of one load through the batcher.
#[derive(Debug)]
struct InProcess {
    claims_per_s: f64,
    cpu_us: f64,
    relayed_cpu_us: f64,
    batch: f64,
    lag: Lag,
}

async fn in_process(session: &mut Session, set: &Set, round: u32) -> anyhow::Result<InProcess> {
    let directory = TempDir::with_prefix("cgb-")?;
    let mut engine =
        Engine::start(set.fsync, &sqlite_url(&directory.path().join("claimgate.sqlite"))).await?;
    let handle = engine.campaign(CAMPAIGN, generous()).await?;
    engine.start_relay()?;
    let mut uuids = Uuids::of(session.seed());
    let warm_up = engine.claim(&handle, uuids.requests(CAMPAIGN, WARM_UP)?).await?;
    Watcher::start(&engine.view, CAMPAIGN).finish().await?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a positive number of claims
    let count = (warm_up.per_second() * session.options.seconds) as usize;
    let measured = load(session, &engine, &handle, uuids, count).await?;
    engine.check(&handle, (WARM_UP + count) as u64).await?;
    engine.stop().await?;
    session.say(format_args!(
        "round {round} · in process, {}: {:.0} claims/s, {:.2} µs of Redis each, {:.0} per batch; outbox {}, \
         empty after {:.1} s",
        set.fsync,
        measured.claims_per_s,
        measured.cpu_us,
        measured.batch,
        measured.lag.largest,
        measured.lag.seconds
    ));
    Ok(measured)
}

async fn load(
    session: &mut Session,
    engine: &Engine,
    handle: &Arc<CampaignHandle>,
    mut uuids: Uuids,
    count: usize,
) -> anyhow::Result<InProcess> {
    let requests = uuids.requests(CAMPAIGN, count)?;
    let batches_before = batches(&session.metrics.render());
    let cpu_before = redis::cpu_seconds(&engine.view).await?;
    let watcher = Watcher::start(&engine.view, CAMPAIGN);
    let load = session.measure(engine.claim(handle, requests)).await?;
    let cpu_s = redis::cpu_seconds(&engine.view).await? - cpu_before;
    let lag = watcher.finish().await?;
    let relayed_cpu_s = redis::cpu_seconds(&engine.view).await? - cpu_before;
    Ok(InProcess {
        claims_per_s: load.per_second(),
        cpu_us: cpu_s * 1e6 / count as f64,
        relayed_cpu_us: relayed_cpu_s * 1e6 / count as f64,
        batch: batches(&session.metrics.render()).mean_since(batches_before),
        lag,
    })
}
