//! Latency at half of claimgate's top rate, and of single claims.

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::client::Pace;
use crate::figures::{Definition, Unit};
use crate::naive::Naive;
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "latency",
    about: "p99 at half the top rate, open loop, and latency of a single claim",
    figures: &[
        SINGLE_RATIO,
        P99_RATIO,
        RATE,
        P99_ONE,
        P99,
        P50_ONE,
        P50,
        SINGLE_TO_ONE,
        SINGLE_ONE,
        SINGLE_NAIVE,
        SINGLE,
    ],
    parts: &[Cost::of(1.0, 0.0, 3.6), Cost::of(1.0, 0.3, 1.8)],
    run: |session| Box::pin(run(session)),
};

const P99_RATIO: &Definition = &Definition::info("p99 ÷ (c)'s p99, at half the top rate", Unit::Ratio);
const SINGLE_RATIO: &Definition = &Definition::at_most("a single claim ÷ (e), everysec", Unit::Ratio, 1.5);
const SINGLE_TO_ONE: &Definition = &Definition::info("a single claim ÷ (c), everysec", Unit::Ratio);
const RATE: &Definition = &Definition::info("half the top rate", Unit::PerSecond);
const P99_ONE: &Definition = &Definition::info("(c) p99 at half the top rate", Unit::Microseconds);
const P99: &Definition = &Definition::info("(d) p99 at half the top rate", Unit::Microseconds);
const P50_ONE: &Definition = &Definition::info("(c) median at half the top rate", Unit::Microseconds);
const P50: &Definition = &Definition::info("(d) median at half the top rate", Unit::Microseconds);
const SINGLE_ONE: &Definition = &Definition::info("(c) a single claim, everysec", Unit::Microseconds);
const SINGLE_NAIVE: &Definition = &Definition::info("(e) a single claim, everysec", Unit::Microseconds);
const SINGLE: &Definition = &Definition::info("(d) a single claim, everysec", Unit::Microseconds);

/// Number of connections of an open loop: enough that requests wait for the server, not for a connection.
const OPEN_CONNECTIONS: usize = 256;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    at_half_rate(session).await?;
    single_claims(session).await
}

async fn at_half_rate(session: &mut Session) -> anyhow::Result<()> {
    let mut one = Server::start(Batching::One, Fsync::Always).await?;
    let mut shipped = Server::start(Batching::Shipped, Fsync::Always).await?;
    let top_rate = match session.top_rate {
        Some(rate) => rate,
        None => top_rate(session, &mut shipped).await?,
    };
    let pace = Pace::Open(top_rate / 2.0, length(session));
    while let Some(round) = session.next_round() {
        session.begin_round();
        let mut latencies = Vec::new();
        for server in [&mut one, &mut shipped] {
            let tally = server.claims(session, OPEN_CONNECTIONS, pace).await?.tally;
            let (p50, p99) = (tally.latency_us(0.5), tally.latency_us(0.99));
            session.say(format_args!(
                "round {round} · {} at {:.0} claims/s: median {:.2} ms, p99 {:.2} ms",
                server.name,
                top_rate / 2.0,
                p50 / 1000.0,
                p99 / 1000.0
            ));
            latencies.push((p50, p99));
        }
        session.add(RATE, top_rate / 2.0);
        session.add(P99_RATIO, latencies[1].1 / latencies[0].1);
        session.add(P50_ONE, latencies[0].0);
        session.add(P99_ONE, latencies[0].1);
        session.add(P50, latencies[1].0);
        session.add(P99, latencies[1].1);
    }
    Ok(())
}

/// Measures the top rate if group `http` has not measured it.
async fn top_rate(session: &mut Session, server: &mut Server) -> anyhow::Result<f64> {
    let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
    let rate = server.claims(session, connections, pace).await?.tally.per_second();
    session.say(format_args!("{}: {rate:.0} claims/s", server.name));
    Ok(rate)
}

async fn single_claims(session: &mut Session) -> anyhow::Result<()> {
    let mut one = Server::start(Batching::One, Fsync::EverySecond).await?;
    let mut naive = Naive::start(Fsync::EverySecond).await?;
    let mut shipped = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    // Sequential claims vary little: half the time is enough.
    let pace = Pace::Closed(length(session) / 2);
    while let Some(round) = session.next_round() {
        session.begin_round();
        let one = one.claims(session, 1, pace).await?.tally.latency_us(0.5);
        let naive = naive.claims(session, 1, pace).await?.tally.latency_us(0.5);
        let shipped = shipped.claims(session, 1, pace).await?.tally.latency_us(0.5);
        session.say(format_args!(
            "round {round} · single claims, medians: (c) {one:.0} µs, (e) {naive:.0} µs, (d) {shipped:.0} µs"
        ));
        session.add(SINGLE_RATIO, shipped / naive);
        session.add(SINGLE_TO_ONE, shipped / one);
        session.add(SINGLE_ONE, one);
        session.add(SINGLE_NAIVE, naive);
        session.add(SINGLE, shipped);
    }
    Ok(())
}
