//! Claims over HTTP: claimgate, compared with a bare route, a server with batches of one, and the simplest server.

use std::time::Duration;

use super::Group;
use crate::bare;
use crate::budget::Cost;
use crate::child::Child;
use crate::client::{self, Pace, Template};
use crate::figures::{Definition, Unit};
use crate::median::median;
use crate::naive::{self, Naive};
use crate::redis::Fsync;
use crate::server::{Batching, Claims, Server};
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "http",
    about: "claims over HTTP: claimgate, compared with a bare route, a server with batches of one, and the simplest server",
    figures: FIGURES,
    parts: &[Cost::of(2.0, 2.0, 8.3)],
    run: |session| Box::pin(run(session)),
};

const BARE: &Definition = &Definition::info("(b) over HTTP", Unit::PerSecond);

/// The figures of one fsync setting.
#[derive(Debug)]
struct Set {
    fsync: Fsync,
    to_bare: &'static Definition,
    to_naive: &'static Definition,
    to_one: &'static Definition,
    naive_to_bare: &'static Definition,
    one: &'static Definition,
    naive: &'static Definition,
    claims: &'static Definition,
    p99: &'static Definition,
    batch: &'static Definition,
    backlog: &'static Definition,
    lag: &'static Definition,
    memory_start: &'static Definition,
    memory_end: &'static Definition,
    http_cpu_ratio: &'static Definition,
    cpu_ratio: &'static Definition,
    http_cpu: &'static Definition,
    relay_cpu: &'static Definition,
    redis_cpu: &'static Definition,
    naive_cpu: &'static Definition,
    naive_redis_cpu: &'static Definition,
}

macro_rules! sets {
    ($($name:ident: $fsync:expr, $word:literal, $to_bare:literal, $to_naive:literal;)*) => {
        $(const $name: Set = Set {
            fsync: $fsync,
            to_bare: &Definition::at_least(concat!("HTTP claims ÷ (b), ", $word), Unit::Ratio, $to_bare),
            to_naive: &Definition::at_least(concat!("HTTP claims ÷ (e), ", $word), Unit::Ratio, $to_naive),
            to_one: &Definition::info(concat!("HTTP claims ÷ (c), ", $word), Unit::Ratio),
            naive_to_bare: &Definition::info(concat!("(e) ÷ (b), ", $word), Unit::Ratio),
            one: &Definition::info(concat!("(c) over HTTP, ", $word), Unit::PerSecond),
            naive: &Definition::info(concat!("(e) over HTTP, ", $word), Unit::PerSecond),
            claims: &Definition::info(concat!("(d) over HTTP, ", $word), Unit::PerSecond),
            p99: &Definition::info(concat!("(d) p99 at top rate, ", $word), Unit::Microseconds),
            batch: &Definition::info(concat!("claims per batch over HTTP, ", $word), Unit::Claims),
            backlog: &Definition::info(concat!("largest outbox over HTTP, ", $word), Unit::Events),
            lag: &Definition::info(concat!("outbox empty after, over HTTP, ", $word), Unit::Seconds),
            memory_start: &Definition::info(
                concat!("core's memory at start, ", $word), Unit::Mebibytes).once(),
            memory_end: &Definition::info(
                concat!("core's memory at end, ", $word), Unit::Mebibytes),
            http_cpu_ratio: &Definition::at_most(
                concat!("HTTP threads' CPU ÷ (e)'s server, ", $word), Unit::Ratio, 0.8),
            cpu_ratio: &Definition::at_most(
                concat!("core and Redis CPU ÷ (e)'s, ", $word), Unit::Ratio, 0.95),
            http_cpu: &Definition::info(
                concat!("CPU per claim, HTTP threads, ", $word), Unit::CpuMicroseconds),
            relay_cpu: &Definition::info(
                concat!("CPU per claim, relay's threads, ", $word), Unit::CpuMicroseconds),
            redis_cpu: &Definition::info(
                concat!("CPU per claim, (d)'s Redis, ", $word), Unit::CpuMicroseconds),
            naive_cpu: &Definition::info(
                concat!("CPU per claim, (e)'s server, ", $word), Unit::CpuMicroseconds),
            naive_redis_cpu: &Definition::info(
                concat!("CPU per claim, (e)'s Redis, ", $word), Unit::CpuMicroseconds),
        };)*
        const SETS: &[&Set] = &[$(&$name),*];
        const FIGURES: &[&Definition] = &[BARE, $(
            $name.to_bare, $name.to_naive, $name.to_one, $name.naive_to_bare, $name.one, $name.naive,
            $name.claims, $name.p99, $name.batch, $name.backlog, $name.lag, $name.memory_start,
            $name.memory_end, $name.http_cpu_ratio, $name.cpu_ratio, $name.http_cpu, $name.relay_cpu,
            $name.redis_cpu, $name.naive_cpu, $name.naive_redis_cpu,
        )*];
    };
}

sets! {
    ALWAYS: Fsync::Always, "always", 0.5, 1.1;
    EVERY_SECOND: Fsync::EverySecond, "everysec", 0.6, 1.25;
}

/// A simplest server below this share of (b) is a bad baseline. This is not checked with fsync always, where
/// the disk affects the ratio.
const NAIVE_TO_BARE_MIN: f64 = 0.4;

/// The servers that decide claims with one fsync setting.
#[derive(Debug)]
struct Servers {
    set: &'static Set,
    one: Server,
    naive: Naive,
    shipped: Server,
}

/// One round of these servers and of (b).
#[derive(Debug)]
struct Round {
    bare: f64,
    one: f64,
    naive: naive::Claims,
    shipped: Claims,
}

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let bare = bare::start().await?;
    let mut all = Vec::new();
    for set in SETS {
        let one = Server::start(Batching::One, set.fsync).await?;
        let naive = Naive::start(set.fsync).await?;
        let shipped = Server::start(Batching::Shipped, set.fsync).await?;
        session.begin_round();
        session.add(set.memory_start, shipped.resident_mib());
        all.push(Servers { set, one, naive, shipped });
    }
    let mut top_rates = Vec::new();
    while let Some(round) = session.next_round() {
        for servers in &mut all {
            let measured = measure(session, &bare, servers, round).await?;
            if servers.set.fsync == Fsync::Always {
                top_rates.push(measured.shipped.tally.per_second());
            }
            add(session, servers, &measured);
            add_processor_time(session, servers.set, &measured);
            check_naive(session);
        }
    }
    session.top_rate = Some(median(&top_rates));
    Ok(())
}

async fn measure(
    session: &mut Session,
    bare: &Child,
    servers: &mut Servers,
    round: u32,
) -> anyhow::Result<Round> {
    session.begin_round();
    let bare = bare_claims(session, bare).await?;
    session.say(format_args!("round {round} · (b) bare route: {bare:.0} responses/s"));
    // No target: half the time is enough.
    let one = claims(session, &mut servers.one, length(session) / 2, round).await?.tally.per_second();
    let naive = naive_claims(session, &mut servers.naive, round).await?;
    let shipped = claims(session, &mut servers.shipped, length(session), round).await?;
    Ok(Round { bare, one, naive, shipped })
}

fn add(session: &mut Session, servers: &Servers, measured: &Round) {
    let (set, shipped) = (servers.set, &measured.shipped);
    let (rate, naive) = (shipped.tally.per_second(), measured.naive.tally.per_second());
    session.add(BARE, measured.bare);
    session.add(set.to_bare, rate / measured.bare);
    session.add(set.to_naive, rate / naive);
    session.add(set.to_one, rate / measured.one);
    session.add(set.naive_to_bare, naive / measured.bare);
    session.add(set.one, measured.one);
    session.add(set.naive, naive);
    session.add(set.claims, rate);
    session.add(set.p99, shipped.tally.latency_us(0.99));
    session.add(set.batch, shipped.batch);
    session.add(set.backlog, shipped.lag.largest as f64);
    session.add(set.lag, shipped.lag.seconds);
    session.add(set.memory_end, servers.shipped.resident_mib());
}

fn add_processor_time(session: &mut Session, set: &Set, measured: &Round) {
    let (shipped, naive) = (measured.shipped.cpu_us, measured.naive.cpu_us);
    session.add(set.http_cpu_ratio, shipped.http / naive.http);
    session.add(set.cpu_ratio, shipped.total() / naive.total());
    session.add(set.http_cpu, shipped.http);
    session.add(set.relay_cpu, shipped.relay);
    session.add(set.redis_cpu, shipped.redis);
    session.add(set.naive_cpu, naive.http);
    session.add(set.naive_redis_cpu, naive.redis);
}

/// Marks the run as invalid if (e) is too slow to compare with. Called after every round, since any round may be
/// the last.
fn check_naive(session: &mut Session) {
    let share = session.figures.value(EVERY_SECOND.naive_to_bare);
    session.void = (share < NAIVE_TO_BARE_MIN)
        .then(|| format!("(e) reached only {share:.2} × (b); the minimum is {NAIVE_TO_BARE_MIN}"));
}

/// Returns the duration of one load.
pub fn length(session: &Session) -> Duration {
    Duration::from_secs_f64(session.options.seconds)
}

/// Measures the bare route with the same load; returns responses per second.
pub async fn bare_claims(session: &mut Session, bare: &Child) -> anyhow::Result<f64> {
    let connections = session.options.connections;
    let pace = Pace::Closed(length(session));
    let load = session.load(bare.address, connections, Template::claim("bench-1"), pace);
    let tally = session.measure(client::run(load)).await?;
    tally.all(201)?;
    Ok(tally.per_second())
}

async fn naive_claims(
    session: &mut Session,
    server: &mut Naive,
    round: u32,
) -> anyhow::Result<naive::Claims> {
    let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
    let measured = server.claims(session, connections, pace).await?;
    session.say(format_args!(
        "round {round} · {}: {:.0} claims/s, p99 {:.1} ms; CPU per claim: server {:.1} µs, Redis {:.1} µs",
        server.name,
        measured.tally.per_second(),
        measured.tally.latency_us(0.99) / 1000.0,
        measured.cpu_us.http,
        measured.cpu_us.redis
    ));
    Ok(measured)
}

async fn claims(
    session: &mut Session,
    server: &mut Server,
    length: Duration,
    round: u32,
) -> anyhow::Result<Claims> {
    let (connections, pace) = (session.options.connections, Pace::Closed(length));
    let measured = server.claims(session, connections, pace).await?;
    session.say(format_args!(
        "round {round} · {}: {:.0} claims/s, p99 {:.1} ms, {:.1} per batch; outbox {}, empty after {:.1} s; CPU per \
         claim: HTTP {:.1} µs, relay {:.1} µs, Redis {:.1} µs",
        server.name,
        measured.tally.per_second(),
        measured.tally.latency_us(0.99) / 1000.0,
        measured.batch,
        measured.lag.largest,
        measured.lag.seconds,
        measured.cpu_us.http,
        measured.cpu_us.relay,
        measured.cpu_us.redis
    ));
    Ok(measured)
}
