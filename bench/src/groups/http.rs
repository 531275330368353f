//! Claims over HTTP: a bare route, claimgate in batches of one, claimgate.

use std::time::Duration;

use super::Group;
use crate::bare;
use crate::child::Child;
use crate::client::{self, Load, Pace, Template};
use crate::figures::{Definition, Unit, median};
use crate::redis::Fsync;
use crate::server::{Batching, Claims, Server};
use crate::session::Session;

/// The group.
pub const GROUP: Group = Group {
    name: "http",
    about: "claims over HTTP: a bare axum route, claimgate in batches of one, claimgate",
    figures: FIGURES,
    run: |session| Box::pin(run(session)),
};

const BARE: &Definition = &Definition::told("(b) over HTTP", Unit::PerSecond);

/// The figures of one fsync setting.
#[derive(Debug)]
struct Set {
    fsync: Fsync,
    to_bare: &'static Definition,
    to_one: &'static Definition,
    one: &'static Definition,
    claims: &'static Definition,
    p99: &'static Definition,
    batch: &'static Definition,
    backlog: &'static Definition,
    lag: &'static Definition,
    memory_start: &'static Definition,
    memory_end: &'static Definition,
}

macro_rules! sets {
    ($($name:ident: $fsync:expr, $word:literal;)*) => {
        $(const $name: Set = Set {
            fsync: $fsync,
            to_bare: &Definition::at_least(concat!("HTTP claims ÷ (b), ", $word), Unit::Ratio, 0.55),
            to_one: &Definition::at_least(concat!("HTTP claims ÷ (c), ", $word), Unit::Ratio, 1.3),
            one: &Definition::told(concat!("(c) over HTTP, ", $word), Unit::PerSecond),
            claims: &Definition::told(concat!("(d) over HTTP, ", $word), Unit::PerSecond),
            p99: &Definition::told(concat!("(d) p99 at top rate, ", $word), Unit::Microseconds),
            batch: &Definition::told(concat!("claims a batch over HTTP, ", $word), Unit::Claims),
            backlog: &Definition::told(concat!("largest outbox over HTTP, ", $word), Unit::Events),
            lag: &Definition::told(concat!("relayed after, over HTTP, ", $word), Unit::Seconds),
            memory_start: &Definition::told(
                concat!("core's memory at start, ", $word), Unit::Mebibytes),
            memory_end: &Definition::told(
                concat!("core's memory at end, ", $word), Unit::Mebibytes),
        };)*
        const SETS: &[&Set] = &[$(&$name),*];
        const FIGURES: &[&Definition] = &[BARE, $(
            $name.to_bare, $name.to_one, $name.one, $name.claims, $name.p99, $name.batch, $name.backlog,
            $name.lag, $name.memory_start, $name.memory_end,
        )*];
    };
}

sets! {
    ALWAYS: Fsync::Always, "always";
    EVERY_SECOND: Fsync::EverySecond, "everysec";
}

/// Both ways of batching under one fsync setting.
#[derive(Debug)]
struct Pair {
    set: &'static Set,
    one: Server,
    shipped: Server,
}

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let bare = bare::start().await?;
    let mut pairs = Vec::new();
    for set in SETS {
        let one = Server::start(Batching::One, set.fsync).await?;
        let shipped = Server::start(Batching::Shipped, set.fsync).await?;
        session.begin_round();
        session.add(set.memory_start, shipped.resident_mib());
        pairs.push(Pair { set, one, shipped });
    }
    let mut top_rates = Vec::new();
    for round in 1..=session.options.rounds {
        for pair in &mut pairs {
            session.begin_round();
            let bare = bare_claims(session, &bare).await?;
            session.say(format_args!("round {round} · (b) bare route: {bare:.0} answers/s"));
            session.add(BARE, bare);
            let one = claims(session, &mut pair.one, round).await?.tally.per_second();
            let shipped = claims(session, &mut pair.shipped, round).await?;
            if pair.set.fsync == Fsync::Always {
                top_rates.push(shipped.tally.per_second());
            }
            add(session, pair, bare, one, &shipped);
        }
    }
    session.top_rate = Some(median(&top_rates));
    Ok(())
}

fn add(session: &mut Session, pair: &Pair, bare: f64, one: f64, shipped: &Claims) {
    let (set, rate) = (pair.set, shipped.tally.per_second());
    session.add(set.to_bare, rate / bare);
    session.add(set.to_one, rate / one);
    session.add(set.one, one);
    session.add(set.claims, rate);
    session.add(set.p99, shipped.tally.latency_us(0.99));
    session.add(set.batch, shipped.batch);
    session.add(set.backlog, shipped.lag.largest as f64);
    session.add(set.lag, shipped.lag.seconds);
    session.add(set.memory_end, pair.shipped.resident_mib());
}

/// How long one load lasts.
pub fn length(session: &Session) -> Duration {
    Duration::from_secs_f64(session.options.seconds)
}

/// The bare route under the same load; answers per second.
pub async fn bare_claims(session: &mut Session, bare: &Child) -> anyhow::Result<f64> {
    let load = Load {
        address: bare.address,
        connections: session.options.connections,
        request: Template::claim("bench-1"),
        seed: session.seed(),
        pace: Pace::Closed(length(session)),
    };
    let tally = session.measure(client::run(load)).await?;
    tally.all(201)?;
    Ok(tally.per_second())
}

async fn claims(session: &mut Session, server: &mut Server, round: u32) -> anyhow::Result<Claims> {
    let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
    let found = server.claims(session, connections, pace).await?;
    session.say(format_args!(
        "round {round} · {}: {:.0} claims/s, p99 {:.1} ms, {:.1} a batch; outbox {}, relayed after {:.1} s",
        server.name,
        found.tally.per_second(),
        found.tally.latency_us(0.99) / 1000.0,
        found.batch,
        found.lag.largest,
        found.lag.seconds
    ));
    Ok(found)
}
